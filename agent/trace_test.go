package agent

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/trace"
)

// TestWhereAProbeIsSentFrom has a pod with the same address in two networks, of which
// the record of one is lost.
func TestWhereAProbeIsSentFrom(t *testing.T) {
	at := func(pod, network, netns string) ipam.Attachment {
		return ipam.Attachment{Request: ipam.Request{Key: ipam.Key{ContainerID: pod, IfName: "in-" + network}, Network: network, NetNS: netns,
			PodName: ipam.PodName{Namespace: "shop", Pod: pod}}, Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.2")}}
	}
	all := []ipam.Attachment{at("web", plan.DefaultNetwork, "/run/netns/web"), at("web", "red", ""), at("db", "blue", "/run/netns/db"), at("lost", "green", "")}
	tr := &tracer{node: "node1", attachments: func(f func(ipam.Attachment)) {
		for _, a := range all {
			f(a)
		}
	}}
	for _, test := range []struct{ pod, address, want string }{
		{"shop/web", "10.1.0.2", "/run/netns/web"},
		{"shop/db", "10.1.0.2", "/run/netns/db"},
		{"shop/lost", "10.1.0.2", "node node1 has lost where the network namespace of pod shop/lost is"},
		{"shop/web", "10.1.0.3", "node node1 has no pod shop/web with address 10.1.0.3"},
	} {
		path, err := tr.namespace(trace.Watch{Pod: test.pod, Source: netip.MustParseAddr(test.address)})
		if err != nil {
			path = err.Error()
		}
		if !strings.Contains(path, test.want) || path == "" {
			t.Errorf("%s from %s: %s, want %s", test.pod, test.address, path, test.want)
		}
	}
}
