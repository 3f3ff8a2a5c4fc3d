// Package cluster tells stories of whole clusters: nodes whose addresses
// change, that leave and come back, packets of full size, the addresses that
// peers see, and all that may be said wrongly. It has tests only. Each story
// has a lab of its own, real agents, real pods and real packets; begin with
// cluster_test.go, which says what a story can do.
package cluster
