package service

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/test/service/oracle"
)

// told are packets in worlds of which the definitions say what becomes of them.
var told = []struct {
	name     string
	services []*corev1.Service
	slices   []*discoveryv1.EndpointSlice
	packet   oracle.Packet
	want     oracle.Answer
	// more changes the world in what is not Kubernetes' own.
	more func(*oracle.World)
}{
	{
		"a load balancer's address of another family than its Service is no Service's",
		[]*corev1.Service{serviceOf("web", 1, []string{"fd96::1"}, func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.100"}}
		})},
		nil,
		packetTo("192.0.2.100"),
		oracle.Answer{Fate: oracle.Unserved},
		nil,
	}, {
		"an external IP goes to the Service that is of its family, though an older one names it",
		[]*corev1.Service{
			serviceOf("older", 1, []string{"fd96::1"}, func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.100"} }),
			serviceOf("web", 2, []string{"10.96.0.1"}, func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.100"} }),
		},
		[]*discoveryv1.EndpointSlice{sliceOf("web", "web-1", entry("10.1.2.2", "node2", nil))},
		packetTo("192.0.2.100"),
		served(oracle.Backend{AddrPort: netip.MustParseAddrPort("10.1.2.2:8080"), Masqueraded: true}),
		nil,
	}, {
		"an endpoint about to end of which nothing says that it does not serve is chosen where none is ready",
		[]*corev1.Service{serviceOf("web", 1, []string{"10.96.0.1"}, nil)},
		[]*discoveryv1.EndpointSlice{sliceOf("web", "web-1", entry("10.1.2.2", "node2", func(e *discoveryv1.Endpoint) {
			e.Conditions.Ready, e.Conditions.Terminating = new(false), new(true)
		}))},
		packetTo("10.96.0.1"),
		served(oracle.Backend{AddrPort: netip.MustParseAddrPort("10.1.2.2:8080")}),
		nil,
	}, {
		"where the policy is Local, hints choose among no endpoints",
		[]*corev1.Service{serviceOf("web", 1, []string{"10.96.0.1"}, func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
		})},
		[]*discoveryv1.EndpointSlice{sliceOf("web", "web-1", entry("10.1.1.3", here, inZone("a")), entry("10.1.1.4", here, inZone("b")))},
		packetTo("10.96.0.1"),
		served(oracle.Backend{AddrPort: netip.MustParseAddrPort("10.1.1.3:8080")}, oracle.Backend{AddrPort: netip.MustParseAddrPort("10.1.1.4:8080")}),
		nil,
	}, {
		"an endpoint of this node in two slices is ready if one says so",
		[]*corev1.Service{serviceOf("web", 1, []string{"10.96.0.1"}, nil)},
		[]*discoveryv1.EndpointSlice{
			sliceOf("web", "web-1", entry("10.1.1.3", here, func(e *discoveryv1.Endpoint) { e.Conditions.Ready = new(false) })),
			sliceOf("web", "web-2", entry("10.1.1.3", here, nil)),
		},
		packetTo("10.96.0.1"),
		served(oracle.Backend{AddrPort: netip.MustParseAddrPort("10.1.1.3:8080")}),
		nil,
	}, {
		"an endpoint of another node in two slices is ready if one says so",
		[]*corev1.Service{serviceOf("web", 1, []string{"10.96.0.1"}, nil)},
		[]*discoveryv1.EndpointSlice{
			sliceOf("web", "web-1", entry("10.1.2.2", "node2", func(e *discoveryv1.Endpoint) { e.Conditions.Ready = new(false) })),
			sliceOf("web", "web-2", entry("10.1.2.2", "node2", nil)),
		},
		packetTo("10.96.0.1"),
		served(oracle.Backend{AddrPort: netip.MustParseAddrPort("10.1.2.2:8080")}),
		nil,
	}, {
		"of a cluster IP that is the node's own gateway the Service has its port",
		[]*corev1.Service{serviceOf("web", 1, []string{"10.1.1.1"}, nil)},
		[]*discoveryv1.EndpointSlice{sliceOf("web", "web-1", entry("10.1.2.2", "node2", nil))},
		packetTo("10.1.1.1"),
		served(oracle.Backend{AddrPort: netip.MustParseAddrPort("10.1.2.2:8080")}),
		nil,
	}, {
		"and the node all else",
		[]*corev1.Service{serviceOf("web", 1, []string{"10.1.1.1"}, func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })},
		nil,
		packetTo("10.1.1.1"),
		oracle.Answer{Fate: oracle.Unserved},
		nil,
	}, {
		"a source range of IPv4 in the form of IPv6 lets in who is in it",
		[]*corev1.Service{serviceOf("web", 1, []string{"10.96.0.1"}, func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.LoadBalancerSourceRanges = []string{"::ffff:10.1.0.0/112"}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.100"}}
		})},
		[]*discoveryv1.EndpointSlice{sliceOf("web", "web-1", entry("10.1.2.2", "node2", nil))},
		packetTo("192.0.2.100"),
		served(oracle.Backend{AddrPort: netip.MustParseAddrPort("10.1.2.2:8080"), Masqueraded: true}),
		nil,
	}, {
		"where the API server is, no Service is",
		[]*corev1.Service{serviceOf("web", 1, []string{"10.96.0.1"}, func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.100"} })},
		[]*discoveryv1.EndpointSlice{sliceOf("web", "web-1", entry("10.1.2.2", "node2", nil)), serversAt("192.0.2.100", 80)},
		packetTo("192.0.2.100"),
		oracle.Answer{Fate: oracle.Unserved},
		nil,
	}, {
		"but at other ports of its address",
		[]*corev1.Service{serviceOf("web", 1, []string{"10.96.0.1"}, func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.100"} })},
		[]*discoveryv1.EndpointSlice{sliceOf("web", "web-1", entry("10.1.2.2", "node2", nil)), serversAt("192.0.2.100", 6443)},
		packetTo("192.0.2.100"),
		served(oracle.Backend{AddrPort: netip.MustParseAddrPort("10.1.2.2:8080"), Masqueraded: true}),
		nil,
	}, {
		"of a cluster IP at which the API server is, all is its own that is no port of the Service",
		[]*corev1.Service{serviceOf("web", 1, []string{"192.0.2.100"}, func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })},
		[]*discoveryv1.EndpointSlice{serversAt("192.0.2.100", 6443)},
		packetTo("192.0.2.100"),
		oracle.Answer{Fate: oracle.Unserved},
		nil,
	}, {
		"a cluster IP stays its Service's whose status says that it has it from a pool, too, as another has",
		[]*corev1.Service{serviceOf("web", 1, []string{"10.96.0.1"}, func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.96.0.1"}}
		})},
		[]*discoveryv1.EndpointSlice{sliceOf("web", "web-1", entry("10.1.2.2", "node2", nil))},
		packetTo("10.96.0.1"),
		served(oracle.Backend{AddrPort: netip.MustParseAddrPort("10.1.2.2:8080")}),
		func(w *oracle.World) {
			w.AddressGrants = []*oracle.Grant{{What: "10.96.0.1", Service: "default/other", UID: "1"}}
		},
	}, {
		"an address of a pool is nobody's who has no grant of it",
		[]*corev1.Service{serviceOf("web", 1, []string{"10.96.0.1"}, func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.100"} })},
		[]*discoveryv1.EndpointSlice{sliceOf("web", "web-1", entry("10.1.2.2", "node2", nil))},
		packetTo("192.0.2.100"),
		oracle.Answer{Fate: oracle.Unserved},
		func(w *oracle.World) { w.Pools = []*oracle.Pool{{Addresses: []string{"192.0.2.0/24"}}} },
	}, {
		"and that who has one has alone, so that what is none of his ports is refused",
		[]*corev1.Service{serviceOf("web", 1, []string{"10.96.0.1"}, func(s *corev1.Service) {
			s.Spec.Type, s.Spec.Ports[0].Port = corev1.ServiceTypeLoadBalancer, 81
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.100"}}
		})},
		nil,
		packetTo("192.0.2.100"),
		oracle.Answer{Fate: oracle.Refused},
		func(w *oracle.World) {
			w.AddressGrants = []*oracle.Grant{{What: "192.0.2.100", Service: "default/web"}}
		},
	}, {
		"where there are ServiceGrants, who has none has no cluster IP",
		[]*corev1.Service{serviceOf("web", 1, []string{"10.96.0.1"}, nil)},
		[]*discoveryv1.EndpointSlice{sliceOf("web", "web-1", entry("10.1.2.2", "node2", nil))},
		packetTo("10.96.0.1"),
		oracle.Answer{Fate: oracle.Unserved},
		func(w *oracle.World) { w.Granting = true },
	}, {
		"a pod's port goes before a Service's",
		[]*corev1.Service{serviceOf("web", 1, []string{"172.30.0.2"}, nil)},
		[]*discoveryv1.EndpointSlice{sliceOf("web", "web-1", entry("10.1.2.2", "node2", nil))},
		packetTo("172.30.0.2"),
		oracle.Answer{Fate: oracle.Served, Service: "Pod default/one", Backends: []oracle.Backend{{AddrPort: netip.MustParseAddrPort("10.1.1.3:8080")}}},
		func(w *oracle.World) { w.Pods = []*corev1.Pod{podWithPort("one", "10.1.1.3", 80)} },
	}, {
		"a name server of the node stands in for its Service",
		[]*corev1.Service{serviceOf("web", 1, []string{"10.96.0.1"}, func(s *corev1.Service) { s.Spec.Ports[0].Port = 53 })},
		nil,
		packetTo("10.96.0.1", at53),
		oracle.Answer{Fate: oracle.AnsweredHere, Service: "default/web"},
		namesOf("10.96.0.1"),
	}, {
		"but not where a pod has the port",
		[]*corev1.Service{serviceOf("web", 1, []string{"172.30.0.2"}, func(s *corev1.Service) { s.Spec.Ports[0].Port = 53 })},
		nil,
		packetTo("172.30.0.2", at53),
		oracle.Answer{Fate: oracle.Served, Service: "Pod default/one", Backends: []oracle.Backend{{AddrPort: netip.MustParseAddrPort("10.1.1.3:8080")}}},
		func(w *oracle.World) {
			namesOf("172.30.0.2")(w)
			w.Pods = []*corev1.Pod{podWithPort("one", "10.1.1.3", 53)}
		},
	}, {
		"pods of other nodes go where they went, and are seen as they were",
		[]*corev1.Service{serviceOf("web", 1, []string{"10.96.0.1"}, func(s *corev1.Service) {
			s.Spec.Ports[0].Port, s.Spec.ExternalIPs = 53, []string{"10.96.0.1"}
		})},
		[]*discoveryv1.EndpointSlice{sliceOf("web", "web-1", entry("10.1.3.2", "node3", nil))},
		packetTo("10.96.0.1", at53, func(p *oracle.Packet) { p.Sender, p.Source = oracle.PodElsewhere, netip.MustParseAddr("10.1.2.2") }),
		served(oracle.Backend{AddrPort: netip.MustParseAddrPort("10.1.3.2:8080"), Masqueraded: true}),
		func(w *oracle.World) {
			namesOf("10.96.0.1")(w)
			w.Granting = true // and the Service has no cluster IP
		},
	}, {
		"other machines are not answered at an address of the node, where nobody else has the port",
		[]*corev1.Service{serviceOf("web", 1, []string{"10.96.0.1"}, nil)},
		nil,
		packetTo("172.30.0.2", at53, func(p *oracle.Packet) { p.Sender, p.Source = oracle.Outsider, netip.MustParseAddr("198.51.100.7") }),
		oracle.Answer{Fate: oracle.Dropped, Service: oracle.NamesOfConfig},
		namesOf("172.30.0.2", "node"),
	},
}

// TestTold holds the oracle and the compiler to what is told.
func TestTold(t *testing.T) {
	for _, c := range told {
		t.Run(c.name, func(t *testing.T) {
			w := &oracle.World{Services: c.services, Slices: c.slices, Nodes: []*corev1.Node{{
				ObjectMeta: metav1.ObjectMeta{Name: here, Labels: map[string]string{corev1.LabelTopologyZone: "a"}},
				Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.30.0.2"}}},
			}}, Gateways: map[string][]netip.Addr{here: bare[here].Local.PoolAddresses()}}
			if c.more != nil {
				c.more(w)
			}
			if says := w.Evaluate(c.packet); !reflect.DeepEqual(says, c.want) {
				t.Errorf("the oracle: %+v\nexpected:   %+v", says, c.want)
			}
			is := &compiled{node: here}
			if err := is.become(w); err != nil {
				t.Fatal(err)
			}
			if got := is.evaluate(c.packet); !reflect.DeepEqual(got, c.want) {
				t.Errorf("it is:    %+v\nexpected: %+v\n%s%s", got, c.want, is.plan, format(w))
			}
		})
	}
}

func serviceOf(name string, created int64, ips []string, change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: metav1.NewTime(time.Unix(created, 0))}}
	s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeClusterIP, ips[0], ips
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	if netip.MustParseAddr(ips[0]).Is6() {
		s.Spec.IPFamilies[0] = corev1.IPv6Protocol
	}
	s.Spec.Ports = []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}
	if change != nil {
		change(s)
	}
	return s
}

func sliceOf(service, name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: new(""), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}},
	}
}

// serversAt says where the API server is.
func serversAt(address string, port int32) *discoveryv1.EndpointSlice {
	s := sliceOf("kubernetes", "kubernetes", entry(address, "", nil))
	s.Ports[0].Port = &port
	return s
}

func entry(address, node string, change func(*discoveryv1.Endpoint)) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{address}, NodeName: new(node)}
	if change != nil {
		change(&e)
	}
	return e
}

func inZone(name string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: name}}}
	}
}

// packetTo is one of a pod of the node, unless something is changed.
func packetTo(address string, changes ...func(*oracle.Packet)) oracle.Packet {
	p := oracle.Packet{Node: here, Sender: oracle.PodHere, Source: netip.MustParseAddr("10.1.1.2"),
		Destination: netip.MustParseAddr(address), Protocol: corev1.ProtocolTCP, Port: 80}
	for _, change := range changes {
		change(&p)
	}
	return p
}

func at53(p *oracle.Packet) { p.Port = 53 }

// podWithPort is a pod of the node with a hostPort.
func podWithPort(name, address string, port int32) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	p.Spec.NodeName, p.Status.PodIPs = here, []corev1.PodIP{{IP: address}}
	p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: port, ContainerPort: 8080}}}}
	return p
}

// namesOf has the node answer at an address for Service web, or for what the ClusterConfig names.
func namesOf(address string, more ...string) func(*oracle.World) {
	return func(w *oracle.World) {
		w.Names = &oracle.Names{Service: "default/web", Addresses: more, Answering: map[string][]netip.Addr{here: {netip.MustParseAddr(address)}}}
	}
}

// served is an answer of the Service web.
func served(backends ...oracle.Backend) oracle.Answer {
	return oracle.Answer{Fate: oracle.Served, Service: "default/web", Backends: backends}
}
