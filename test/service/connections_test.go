package service

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weftnet/weft/datapath/judge"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/test/service/oracle"
)

// TestOpenConnections has a Service change that gave a connection a backend of another node. A stream goes
// on as long as that is an endpoint of the Service; datagrams do as long as new ones would go there.
func TestOpenConnections(t *testing.T) {
	local := func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal) }
	all := []*discoveryv1.EndpointSlice{sliceOf("web", "web-1", entry("10.1.1.3", here, nil), entry("10.1.2.2", "node2", nil))}
	left := []*discoveryv1.EndpointSlice{sliceOf("web", "web-1", entry("10.1.1.3", here, nil))}
	for _, c := range []struct {
		name              string
		change            func(*corev1.Service)
		slices            []*discoveryv1.EndpointSlice
		stream, datagrams bool
	}{
		{"nothing changes", nil, all, true, true},
		{"what is sent to the cluster's address stays on the node", local, all, true, false},
		{"it does, and the backend is no endpoint any more", local, left, false, false},
		{"it does, and there is an address outside", func(s *corev1.Service) { local(s); s.Spec.ExternalIPs = []string{"192.0.2.100"} }, all, true, false},
		{"the port is called otherwise, and the slices not yet", func(s *corev1.Service) {
			s.Spec.Selector, s.Spec.Ports[0].Name, s.Spec.Ports[0].TargetPort.IntVal = map[string]string{"app": "web"}, "http", 8080
		}, all, true, true},
	} {
		for protocol, goesOn := range map[corev1.Protocol]bool{corev1.ProtocolTCP: c.stream, corev1.ProtocolUDP: c.datagrams} {
			is := &compiled{node: here}
			become := func(change func(*corev1.Service), slices []*discoveryv1.EndpointSlice) (unserved bool) {
				t.Helper()
				svc := serviceOf("web", 1, []string{"10.96.0.1"}, change)
				svc.Spec.Ports[0].Protocol = protocol
				w := &oracle.World{Services: []*corev1.Service{svc}}
				for _, s := range slices {
					s = s.DeepCopy()
					s.Ports[0].Protocol = &protocol
					w.Slices = append(w.Slices, s)
				}
				if err := is.become(w); err != nil {
					t.Fatal(err)
				}
				return judge.NewJury(is.plan, nil).Unserved(judge.Connection{Network: plan.DefaultNetwork, Protocol: planned[protocol], Served: true,
					Source: netip.MustParseAddrPort("10.1.1.2:4000"), Dialled: netip.MustParseAddrPort("10.96.0.1:80"), Destination: netip.MustParseAddrPort("10.1.2.2:8080")})
			}
			if become(nil, all) {
				t.Fatal("the connection has no backend before")
			}
			if ends := become(c.change, c.slices); ends == goesOn {
				t.Errorf("%s: a connection of %s ends is %t", c.name, protocol, ends)
			}
		}
	}
}

// TestOpenStreamsOutliveChanges has what is sent to the cluster's address stay on the node, and the Service get an address
// outside and lose it, one after the other: a stream to another node goes on.
func TestOpenStreamsOutliveChanges(t *testing.T) {
	local := func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal) }
	outside := func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.100"} }
	both := func(s *corev1.Service) { local(s); outside(s) }
	ports := func(s *corev1.Service) {
		local(s)
		s.Spec.Type, s.Spec.Ports[0].NodePort, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, 30080, corev1.ServiceExternalTrafficPolicyLocal
	}
	is := &compiled{node: here}
	for i, change := range []func(*corev1.Service){nil, local, both, local, ports, both, outside, both, nil, ports, local, nil} {
		w := &oracle.World{Services: []*corev1.Service{serviceOf("web", 1, []string{"10.96.0.1"}, change)},
			Slices: []*discoveryv1.EndpointSlice{sliceOf("web", "web-1", entry("10.1.1.3", here, nil), entry("10.1.2.2", "node2", nil))}}
		if err := is.become(w); err != nil {
			t.Fatal(err)
		}
		if judge.NewJury(is.plan, nil).Unserved(judge.Connection{Network: plan.DefaultNetwork, Protocol: plan.TCP, Served: true,
			Source: netip.MustParseAddrPort("10.1.1.2:4000"), Dialled: netip.MustParseAddrPort("10.96.0.1:80"), Destination: netip.MustParseAddrPort("10.1.2.2:8080")}) {
			t.Errorf("it ends with change %d, in\n%s", i, is.plan)
		}
	}
}
