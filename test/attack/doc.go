// Package attack plays the attacker against whole clusters: one who owns a pod
// (with no capability, with NET_RAW, with NET_ADMIN), who sits on the nodes'
// network and is no node, who has rights in one namespace, who is a user of a
// node without being root, or who owns one agent. It has tests only.
//
// Each attack is a value in a table, in the file of its attacker: a name, who
// tries it, what must not happen, and a function that tries it. TestAttacks
// tries each on a cluster of every plug-in, over IPv4 and IPv6. What is sent
// is real, by a process that has the stated capabilities and no others; what
// arrives is seen by real receivers. Beside everything that must not arrive
// there is a control: the same observer sees the same packet where it should
// arrive. An attack without a control that was seen is a failure of the test,
// so that none can hold for a wrong reason.
//
//	go test ./test/attack -run 'TestAttacks/flannel/vxlan_from_a_pod'
//
// Start reading at attack_test.go. To add an attack, add an entry to the table
// of its attacker. What succeeds today is in holes_test.go, and only there: a
// hole that is mended must be deleted from it.
package attack
