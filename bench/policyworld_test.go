package main

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// Each namespace has as many pods as any other, and ten of each role, but for
// the two pods of the real node that keep another company.
func TestTheLargeClusterIsEven(t *testing.T) {
	count := make(map[fictive]int)
	for node := range worldNodes {
		for slot := range worldPods {
			f := placed(node, slot)
			count[f]++
			if node > 0 && hostOf(f.namespace, slot) != node {
				t.Fatalf("slot %d of %s is on node %d, and hostOf says %d", slot, namespaceName(f.namespace), node, hostOf(f.namespace, slot))
			}
		}
	}
	if len(count) != worldNamespaces*roles {
		t.Errorf("%d kinds of pods, want %d", len(count), worldNamespaces*roles)
	}
	most := worldPods / roles
	for f, n := range count {
		moved := f == placed(0, frontSlot) || f == placed(0, clientSlot)
		if n != most && !(moved && n == most+1) && !(n == most-1 && hostOf(f.namespace, int(f.role)+worldPods-roles) == 0) {
			t.Errorf("%d pods of %v", n, f)
		}
	}
}

// The registry takes all of what it is given.
func TestTheLargeClusterIsValid(t *testing.T) {
	subnet := netip.MustParsePrefix("10.128.7.0/24")
	pods := nodePods(7, subnet)
	retag(pods, slotAddress(subnet, 3), fictive{0, db}.tag())
	addTagged(pods, placed(7, 0).tag(), slotAddress(subnet, worldPods))
	for _, list := range []struct {
		kind    *registry.Kind
		count   int
		objects []registry.Object
	}{
		{api.NetworkPolicy, 10 * worldNamespaces, worldPolicies()},
		{api.ClusterNetworkPolicy, 20, clusterPolicies()},
		{api.NetworkPolicy, manyPolicies, trafficPolicies(manyPolicies)},
		{api.TagKind, worldNamespaces * roles, worldTags()},
		{api.Namespace, worldNamespaces, worldNamespaceObjects()},
		{api.NodePodsKind, 1, []registry.Object{pods}},
		{api.Node, 1, []registry.Object{worldNode(worldNodes - 1)}},
		{api.Pod, 1, []registry.Object{worldPod(placed(0, 0), "pod0", "00000000-0000-4000-8000-000000000000", "node1")}},
	} {
		if len(list.objects) != list.count {
			t.Errorf("%d %s, want %d", len(list.objects), list.kind.Plural, list.count)
		}
		for _, o := range list.objects {
			if err := list.kind.Validate(o); err != nil {
				t.Fatalf("%s %s: %v", list.kind.Singular, registry.KeyOf(o), err)
			}
		}
	}
}

func TestRetag(t *testing.T) {
	subnet := netip.MustParsePrefix("10.128.7.0/24")
	pods := &api.NodePods{}
	addTagged(pods, 30, slotAddress(subnet, 1))
	addTagged(pods, 20, slotAddress(subnet, 9))
	addTagged(pods, 20, slotAddress(subnet, 0))
	retag(pods, slotAddress(subnet, 1), 20)
	want := []api.TaggedPods{{Tag: 20, Addresses: []string{"10.128.7.2", "10.128.7.3", "10.128.7.11"}}}
	if !slices.EqualFunc(pods.Pods, want, func(a, b api.TaggedPods) bool {
		return a.Tag == b.Tag && slices.Equal(a.Addresses, b.Addresses)
	}) {
		t.Errorf("%v, want %v", pods.Pods, want)
	}
}

func TestPodStages(t *testing.T) {
	var running corev1.Pod
	if err := yaml.UnmarshalStrict(podYAML, &running); err != nil {
		t.Fatal(err)
	}
	if err := api.Pod.Validate(&running); err != nil {
		t.Fatal(err)
	}
	stages := podStages(&running)
	for i, p := range stages {
		if i > 0 && p.Size() <= stages[i-1].Size() {
			t.Errorf("stage %d of a pod has %d bytes, and the one before %d", i, p.Size(), stages[i-1].Size())
		}
		if (p.Spec.NodeName != "") != (i > 0) || (p.Status.PodIP != "") != (i == 3) {
			t.Errorf("stage %d is on node %q with address %q", i, p.Spec.NodeName, p.Status.PodIP)
		}
	}
}
