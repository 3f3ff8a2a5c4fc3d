package service_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// TestNobodyDrawsWhatNameServersAreAsked has Services claim where the node's own name server is, and
// those that it asks, by externalIPs. They have other ports of these addresses, and all once nodes do
// not answer for names. The Service at whose addresses pods ask keeps what it has, and so does one
// that is asked at the address that it was given.
func TestNobodyDrawsWhatNameServersAreAsked(t *testing.T) {
	w := world{}
	ports := []corev1.ServicePort{{Name: "a", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "b", Port: 5353, Protocol: corev1.ProtocolUDP}, {Name: "c", Port: 80}}
	up := serviceOf("up", "10.96.0.1")
	up.Spec.Ports, up.Spec.ExternalIPs = ports, []string{"172.30.0.2", "192.0.2.1", "192.0.2.2", "192.0.2.9"}
	w.put(api.Service, up)
	names := serviceOf("kube-dns", "10.96.0.10")
	names.Namespace, names.Spec.Ports, names.Spec.ExternalIPs = "kube-system", ports, []string{"172.30.0.2"}
	w.put(api.Service, names)

	spec := api.DNSSpec{Server: api.NamesByNodes, Addresses: []string{"node", "192.0.2.9"}, Upstreams: []string{"192.0.2.1"},
		StubDomains: []api.StubDomain{{Domain: "corp", Servers: []string{"192.0.2.2:5353"}}, {Domain: "own", Servers: []string{"10.96.0.1"}}}}
	byPods, others := spec, spec
	byPods.Server, others.Service = api.NamesByPods, "shop/names"
	const mine, its = "Service default/up", "Service kube-system/kube-dns"
	open := map[string]string{"10.96.0.1:53": mine, "172.30.0.2:53": mine, "172.30.0.2:80": mine, "192.0.2.9:53": mine, "192.0.2.1:53": mine, "192.0.2.1:80": mine, "192.0.2.2:53": mine, "192.0.2.2:5353": mine}
	kept := map[string]string{"10.96.0.1:53": mine, "172.30.0.2:53": its, "172.30.0.2:80": mine, "192.0.2.9:53": "", "192.0.2.1:53": "", "192.0.2.1:80": mine, "192.0.2.2:53": mine, "192.0.2.2:5353": ""}
	nobodys := map[string]string{"10.96.0.1:53": mine, "172.30.0.2:53": "", "172.30.0.2:80": mine, "192.0.2.9:53": "", "192.0.2.1:53": "", "192.0.2.1:80": mine, "192.0.2.2:53": mine, "192.0.2.2:5353": ""}
	var c service.Compiler
	for i, step := range []struct {
		dns api.DNSSpec
		// has says who has addresses and ports.
		has map[string]string
	}{{byPods, open}, {spec, kept}, {others, nobodys}, {spec, kept}, {api.DNSSpec{}, open}} {
		config := &api.ClusterConfig{}
		config.Spec.DNS = step.dns
		c.Names = service.NameServersOf(config, node.Addresses)
		tables := c.Compile(w.snapshot(), node)
		problems := c.Problems()
		fresh := service.Compiler{Names: c.Names}
		if now, anew := planOf(node, tables), planOf(node, fresh.Compile(w.snapshot(), node)); !now.Equal(anew) || fmt.Sprint(problems) != fmt.Sprint(fresh.Problems()) {
			t.Errorf("step %d: step by step it is\n%s%v\nand at once\n%s%v", i, now, problems, anew, fresh.Problems())
		}
		for text, want := range step.has {
			at := netip.MustParseAddrPort(text)
			protocol, word := plan.UDP, "UDP"
			if at.Port() == 80 {
				protocol, word = plan.TCP, "TCP"
			}
			svc, _ := tables.Services.Get(plan.ServiceKey{Network: plan.DefaultNetwork, Address: at.Addr(), Protocol: protocol, Port: at.Port()})
			if svc.Origin != want {
				t.Errorf("step %d: %s is %q's, want %q", i, text, svc.Origin, want)
			}
			// Of many the last is but counted.
			told := slices.ContainsFunc(problems, func(p service.Problem) bool {
				return p.Service == registry.KeyOf(up) && (strings.HasPrefix(p.Message, text+"/"+word+" is a name server, as the ClusterConfig says, and no Service's") ||
					want == "" && slices.Contains([]string{"192.0.2.2:5353", "192.0.2.9:53"}, text) && p.Message == "2 more of its addresses and ports are others': choose other addresses or ports")
			})
			if told != (want == "") {
				t.Errorf("step %d: of %s it is told: %t", i, text, told)
			}
		}
		for _, p := range problems {
			if p.Service == (registry.Key{}) {
				t.Errorf("step %d: of no Service it is said: %s", i, p.Message)
			}
		}
	}
}
