package agent

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
)

func TestNodeStateIsWrittenOnce(t *testing.T) {
	early := metav1.NewTime(time.Unix(1000, 0))
	late := metav1.NewTime(time.Unix(2000, 0))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "203.0.113.1"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	state := nodeState{Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.11"), netip.MustParseAddr("fd30::11")}}

	if !state.describe(node, early) {
		t.Fatal("the first description changed nothing")
	}
	want := []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.30.0.11"}, {Type: corev1.NodeInternalIP, Address: "fd30::11"},
		{Type: corev1.NodeExternalIP, Address: "203.0.113.1"}, {Type: corev1.NodeHostName, Address: "node1"}}
	if len(node.Status.Addresses) != len(want) {
		t.Fatalf("addresses are %v, want %v", node.Status.Addresses, want)
	}
	for i := range want {
		if node.Status.Addresses[i] != want[i] {
			t.Errorf("address %d is %v, want %v", i, node.Status.Addresses[i], want[i])
		}
	}
	if state.describe(node, late) {
		t.Error("the same description changed something: agents would write for ever")
	}
	if len(node.Status.Conditions) != 3 || node.Status.Conditions[0].Type != corev1.NodeReady {
		t.Errorf("conditions of others were not kept: %v", node.Status.Conditions)
	}

	state.NotReady = "the node has no subnet yet"
	if !state.describe(node, late) {
		t.Fatal("a change of readiness changed nothing")
	}
	c := node.Status.Conditions[1]
	if c.Type != corev1.NodeNetworkUnavailable || c.Status != corev1.ConditionTrue || c.Message != state.NotReady || !c.LastTransitionTime.Equal(&late) {
		t.Errorf("condition is %v", c)
	}
	state.NotReady = "something else"
	later := metav1.NewTime(time.Unix(3000, 0))
	state.describe(node, later)
	if c := node.Status.Conditions[1]; c.Message != "something else" || !c.LastTransitionTime.Equal(&late) {
		t.Errorf("a new reason for the same status is no transition: %v", c)
	}
}

func addresses(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// TestWhatEarlierAgentsWrote has a Node say what an agent of an earlier version wrote
// where a user asks for a data plane now.
func TestWhatEarlierAgentsWrote(t *testing.T) {
	for text, stays := range map[string]bool{`{"IPv6":true}`: false, "ovs": true} {
		node := &corev1.Node{}
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, api.DataPlaneAnnotation, text)
		state := nodeState{Capabilities: `{"IPv6":false}`, DataPlane: api.DataPlaneReport{Uses: "linux"}.Text()}
		state.describe(node, metav1.Now())
		if got, there := node.Annotations[api.DataPlaneAnnotation]; there != stays || there && got != text {
			t.Errorf("of %q there is %q", text, got)
		}
		if node.Annotations[api.CapabilitiesAnnotation] != state.Capabilities || node.Annotations[api.DataPlaneReportAnnotation] != state.DataPlane {
			t.Errorf("the Node says %v", node.Annotations)
		}
		if state.describe(node, metav1.Now()) {
			t.Error("there is always something to write")
		}
	}
}

// TestFirstWord has an agent that has loaded nothing yet say so: by that it is told from
// those of earlier versions. What one said before it is not taken back.
func TestFirstWord(t *testing.T) {
	node := &corev1.Node{}
	if api.KnowsNoStages(node) {
		t.Error("a Node without an agent has one of an earlier version")
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: api.NodeInSync, Status: corev1.ConditionTrue}}
	if !api.KnowsNoStages(node) {
		t.Error("an agent that says nothing of plug-ins is not of an earlier version")
	}
	nodeState{}.describe(node, metav1.Now())
	if r, err := api.NodePlugins(node); err != nil || r == nil || r.Revision != 0 || r.Uses != "" || len(r.Ready)+len(r.Needs) > 0 || api.KnowsNoStages(node) {
		t.Errorf("its first word is %+v, %v", r, err)
	}
	says := api.PluginReport{Revision: 7, Uses: "flannel"}.Text()
	nodeState{Plugins: says}.describe(node, metav1.Now())
	nodeState{}.describe(node, metav1.Now())
	if got := node.Annotations[api.PluginsAnnotation]; got != says {
		t.Errorf("the next agent says %s", got)
	}
}
