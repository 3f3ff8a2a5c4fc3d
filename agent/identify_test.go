package agent

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
)

// TestWhose finds the pod of an attachment of which the node has lost that, or
// none where there is a doubt.
func TestWhose(t *testing.T) {
	with := func(p *corev1.Pod, ips ...string) *corev1.Pod {
		for _, ip := range ips {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		return p
	}
	ended := with(pod("old", "u0", "node1", nil), "10.1.0.2")
	ended.Status.Phase = corev1.PodSucceeded
	mirror := with(pod("static", "u3", "node1", map[string]string{corev1.MirrorPodAnnotationKey: "hash"}), "10.1.0.4")
	web, dual := with(pod("web", "u1", "node1", nil), "10.1.0.2"), with(pod("dual", "u2", "node1", nil), "10.1.0.3", "FD00:0::3")
	all := []*corev1.Pod{ended, web, dual, mirror}
	liar := pod("liar", "u4", "node1", map[string]string{corev1.MirrorPodAnnotationKey: "u1"})
	for _, test := range []struct {
		name, uid string
		addresses []string
		pods      []*corev1.Pod
		want      string // or a part of the error
	}{
		{"by its UID", "u2", []string{"10.1.0.9"}, all, "dual"},
		{"a static pod, by what the kubelet calls its UID", "hash", []string{"10.1.0.4"}, all, "static"},
		{"a UID that another pod claims", "u1", []string{"10.1.0.2"}, append([]*corev1.Pod{liar}, all...), "web"},
		{"a static pod's UID that another pod claims", "hash", []string{"10.1.0.4"},
			append([]*corev1.Pod{pod("liar", "u5", "node1", mirror.Annotations)}, all...), "several pods"},
		{"a UID that no pod has", "u9", []string{"10.1.0.2"}, all, "no pod"},
		{"by its address, which one that ended had", "", []string{"10.1.0.2"}, all, "web"},
		{"by its addresses", "", []string{"10.1.0.3", "fd00::3"}, all, "dual"},
		{"by some of its addresses", "", []string{"10.1.0.3"}, all, "no pod"},
		{"by its address in another network", "", []string{"red", "10.1.0.2"}, all, "no pod"},
		{"by its UID in another network", "u1", []string{"red", "10.1.0.9"}, all, "web"},
		{"an address that two have", "", []string{"10.1.0.2"}, append([]*corev1.Pod{with(pod("twin", "u6", "node1", nil), "10.1.0.2")}, all...), "several pods"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := ipam.Attachment{Request: ipam.Request{Key: ipam.Key{ContainerID: "c", IfName: "eth0"}, Network: plan.DefaultNetwork, PodName: ipam.PodName{UID: test.uid}, Unidentified: true}}
			if test.addresses[0] == "red" {
				a.Network, test.addresses = "red", test.addresses[1:]
			}
			for _, text := range test.addresses {
				a.Addresses = append(a.Addresses, netip.MustParseAddr(text))
			}
			p, err := whose(a, test.pods, "node1")
			switch {
			case err != nil && !strings.Contains(err.Error(), test.want):
				t.Errorf("got the error %v, want %s", err, test.want)
			case err == nil && p.Name != test.want:
				t.Errorf("it is %s, want %s", p.Name, test.want)
			}
		})
	}
	// Those that share the node's network, and other nodes', are not asked.
	reg := newFlaky()
	away, host := pod("away", "u7", "node2", nil), pod("host", "u8", "node1", nil)
	host.Spec.HostNetwork = true
	for _, p := range []*corev1.Pod{web, away, host} {
		if _, err := reg.Registry.Create(t.Context(), api.Pod, p); err != nil {
			t.Fatal(err)
		}
	}
	a := &agent{Config: Config{Node: "node1", Registry: reg}}
	if own, err := a.ownPods(t.Context()); err != nil || len(own) != 1 || own[0].Name != "web" {
		t.Errorf("the node's own pods are %v, %v", own, err)
	}
}

// TestIdentifiedBesideAnUnknownOne has one of which nobody can tell whose it is come
// first.
func TestIdentifiedBesideAnUnknownOne(t *testing.T) {
	lost := []ipam.Attachment{
		{Request: ipam.Request{Key: ipam.Key{ContainerID: "a", IfName: "eth0"}, PodName: ipam.PodName{UID: "u9"}, HostInterface: "weft-a"}},
		{Request: ipam.Request{Key: ipam.Key{ContainerID: "b", IfName: "eth0"}, PodName: ipam.PodName{UID: "u1"}, HostInterface: "weft-b"}},
	}
	var known []string
	err := identified(lost, []*corev1.Pod{pod("web", "u1", "node1", nil)}, "node1", func(k ipam.Key, p ipam.PodName) error {
		known = append(known, k.ContainerID+" "+p.Pod)
		return nil
	})
	if !slices.Equal(known, []string{"b web"}) || err == nil || !strings.Contains(err.Error(), "weft-a") {
		t.Errorf("identified %q, %v", known, err)
	}
}

// TestRegretted says of pods that their ports and limits are not known, but of those whose objects
// ask for none.
func TestRegretted(t *testing.T) {
	lost := func(name, uid string) ipam.Attachment {
		return ipam.Attachment{Request: ipam.Request{PodName: ipam.PodName{Namespace: "default", Pod: name, UID: uid}}}
	}
	port := pod("port", "u2", "node1", nil)
	port.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}}}
	limit := pod("limit", "u3", "node1", map[string]string{"kubernetes.io/egress-bandwidth": "1M"})
	quiet := pod("quiet", "u1", "node1", nil)
	all := []*corev1.Pod{quiet, port, limit}
	if text := regretted([]ipam.Attachment{lost("quiet", "u1"), lost("quiet", "")}, all); text != "" {
		t.Errorf("of one that asks for nothing it is said: %s", text)
	}
	text := regretted([]ipam.Attachment{
		{Request: ipam.Request{Key: ipam.Key{ContainerID: "c1", IfName: "eth0"}, Network: plan.DefaultNetwork, HostInterface: "weft1"}},
		lost("quiet", "u9"), lost("port", "u2"), lost("limit", "u3"),
	}, all)
	if !strings.HasSuffix(text, "start these pods anew: default/limit, default/port, default/quiet and 1 more") {
		t.Errorf("it is said: %s", text)
	}
}
