package cli

import (
	"slices"
	"testing"

	"github.com/weftnet/weft/api"
)

// TestHearsay has agents tell of others than their own nodes.
func TestHearsay(t *testing.T) {
	said := func(kind, name, message string) api.Problem {
		return api.Problem{Kind: kind, Name: name, Message: message}
	}
	var l problemList
	l.add(said("HostSubnet", "node3", "who asks sees this, too"))
	h := hearsay{nodes: 3}
	h.add("node1", said("HostSubnet", "node3", "who asks sees this, too"))
	h.add("node1", said("Node", "node2", "on fire"))
	h.add("node1", said("ClusterConfig", "default", "a part of it"))
	h.add("node3", said("ClusterConfig", "default", "a part of it"))
	for _, node := range []string{"node1", "node2", "node3"} {
		h.add(node, said("ClusterConfig", "default", "all of it"))
	}
	h.addTo(&l)
	var got []string
	for _, p := range l.list {
		got = append(got, p.String())
	}
	want := []string{"hostsubnet node3: who asks sees this, too", "node node2: on fire (so says node1)",
		"clusterconfig default: a part of it (so says node1, node3)", "clusterconfig default: all of it"}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nand not\n%q", got, want)
	}
}
