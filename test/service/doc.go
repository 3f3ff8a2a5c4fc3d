// Package service holds the compiler of Services, and what plugin.PutPorts and
// plugin.PutNames put beside them, against package oracle, which reads the definitions
// of Services word by word: both are asked about the same packets in the same random
// worlds, as these are and after each of some changes, and must agree on what becomes of a
// packet, which backends may be chosen, and from whose address each is reached. It has
// tests only.
//
// Beside Services these worlds have pools and grants of their addresses, ports of nodes
// that pods have, and name servers of nodes.
//
// generate_test.go and granted_test.go make worlds and packets, compiled_test.go asks the
// tables of a node, and cluster_test.go asks plan.Explain of a whole cluster. connections_test.go
// asks which open connections go on when a Service changes. Of a
// difference rapid shows the smallest world that it finds, and by which flags it comes
// again; once understood, it is told in told_test.go.
//
// `make prove` asks about a million packets.
package service
