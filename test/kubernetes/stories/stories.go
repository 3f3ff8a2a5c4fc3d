// Package stories tells what a user of Weft lives through on a real Kubernetes
// cluster: pods that reach each other, agents that are killed under load, an
// API server that goes away, a node that dies. The stories are the tests; what
// stands beside them compares what there should be with what there is, and is
// tested by itself.
//
// TestStories brings up a cluster of its own (package cluster) for each
// plug-in, tells the stories there and takes it down:
//
//	go test ./test/kubernetes/stories -timeout 40m -plugin openshift-networkpolicy,flannel
//
// With -short it tells the few that fit in three minutes. A cluster that is up
// serves with -cluster NAME, but for the last story: it is not taken down.
package stories
