// Package change changes the plug-in of running clusters under traffic, and the data
// planes of their nodes, and holds them to losing nothing of it: not a request, not a
// connection, not a datagram, and no pod's address. It has tests only. Each has a lab of its own, real agents, real pods and real
// packets; by hand, all pairs of plug-ins, and a longer test with kills between the
// seventh pair of them, are
//
//	go test ./test/change -run '^TestChanges$' -matrix -v -timeout 1h
//	go test ./test/change -run '^TestKills$' -kills 200 -seed 7 -v -timeout 1h
package change
