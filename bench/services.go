package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// What Services cost is measured on nodes that each were loaded with a number of them and then
// left alone: who did it is ended, and what the kernel has stays. So nodes with one Service
// and with thirty thousand can be measured in turns. Each node has three pods, a client and
// two that stand behind the one Service that is measured.

// serviceResults is what was measured of Services.
type serviceResults struct {
	Loads    []serviceLoad
	Variants []serviceVariant
	Traffic  traffic
}

// serviceLoad is how it went to load a node with Services.
type serviceLoad struct {
	By       string
	Services int
	// Took is from the start of who did it until a client was connected by way of the Service;
	// 0 where that never happened in the time that there was.
	Took time.Duration
	// Spent is the processor time of the process until then, its programs' not among it.
	Spent time.Duration
	// Loaded is what it takes then, Peak the most that it ever had resident, in bytes.
	Loaded memory
	Peak   uint64
	// Changes are how long it took from an endpoint's coming or going until packets fared
	// accordingly, in order. Unseen says that a change came after these of which packets never
	// knew in the time that there was.
	Changes []time.Duration
	Unseen  bool
}

// serviceVariant is a way to the pods. Those without a Service have 0.
type serviceVariant struct {
	variant
	By       string
	Services int
}

// Who does Services.
const (
	byWeft     = "Weft"
	byNftables = "kube-proxy, nftables"
	byIptables = "kube-proxy, iptables"
)

// byKubeProxy are its modes.
var byKubeProxy = []string{byNftables, byIptables}

const (
	serviceNamespace = "default"
	// mostServices is how many there can be: there are addresses for no more.
	mostServices    = 60_000
	measuredService = "measured"
	// serviceNetwork is where Services have their addresses, in a lab and on an API server.
	serviceNetwork = "10.96.0.0/16"
	// probePort is the UDP port of the measured Service, whose endpoint comes and goes.
	probePort = 7009
	// leastChange is the least time between two changes. kube-proxy lets changes gather for a
	// second.
	leastChange = 200 * time.Millisecond
	// settledAfter is how long a process is left alone before its memory is looked at.
	settledAfter = 5 * time.Second
)

// measuredIP is the address of the measured Service.
var measuredIP = netip.MustParseAddr("10.96.255.254")

// serviceNode is a node that is loaded with Services.
type serviceNode struct {
	by string
	// address is the node's, where its NodePorts are asked for.
	address netip.Addr
	// itself is in the node's network namespace.
	itself, client *worker
	// behind are the pods behind the measured Service.
	behind    [2]*worker
	addresses [2]netip.Addr
	// start starts who does Services there, and stop ends that. pid is its process number.
	start func(context.Context) error
	stop  func() error
	pid   func() int
}

// serve has both pods serve.
func (n *serviceNode) serve() error {
	return errors.Join(n.behind[0].serve(), n.behind[1].serve())
}

func (s settings) serviceBench(ctx context.Context) (_ *serviceResults, err error) {
	say("services: building the nodes")
	var clusters []serviceCluster
	defer func() {
		for _, c := range clusters {
			err = errors.Join(err, c.close())
		}
	}()
	weft, err := s.weftNodes(ctx)
	if err != nil {
		return nil, err
	}
	clusters = append(clusters, weft)
	if s.kubeProxy {
		kube, err := s.kubeNodes(ctx)
		if err != nil {
			return nil, err
		}
		clusters = append(clusters, kube)
	}
	var r serviceResults
	hand, direct := handRouted("no Service", "")
	if err := hand.done(); err != nil {
		return nil, err
	}
	defer hand.close()
	r.Variants = append(r.Variants,
		serviceVariant{variant: variant{name: "by hand", pair: direct}},
		serviceVariant{variant: variant{name: byWeft, pair: pair{weft.bare.client, weft.bare.behind[0], weft.bare.addresses[0]}}, By: byWeft})
	for _, c := range clusters {
		if err := s.loadNodes(ctx, c, &r); err != nil {
			return nil, err
		}
	}
	variants := make([]variant, len(r.Variants))
	for i, v := range r.Variants {
		variants[i] = v.variant
	}
	r.Traffic, err = measureTraffic(ctx, variants, []load{{doConnect, true}}, s.rounds, s.sample, say)
	return &r, err
}

// serviceCluster is nodes of which each is to be loaded with a number of Services.
type serviceCluster interface {
	registry() registry.Registry
	// nodes are those that are to have as many Services as settings.services says, by its index.
	nodes(i int) []*serviceNode
	// ready waits until so many Services can be served.
	ready(ctx context.Context, n int) error
	close() error
}

// loadNodes loads each node of a cluster, and says how that went.
func (s settings) loadNodes(ctx context.Context, c serviceCluster, r *serviceResults) error {
	reg, have := c.registry(), 0
	for i, n := range s.services {
		say("services: making them %d", n)
		var services, endpoints []registry.Object
		for ; have < n; have++ {
			if have == 0 {
				services = append(services, measured())
				continue
			}
			services, endpoints = append(services, fillingService(have)), append(endpoints, fillingSlice(have))
		}
		if err := errors.Join(create(ctx, reg, api.Service, services), create(ctx, reg, api.EndpointSlice, endpoints)); err != nil {
			return err
		}
		if err := c.ready(ctx, n); err != nil {
			return err
		}
		for _, node := range c.nodes(i) {
			say("services: loading %d by %s", n, node.by)
			if err := node.point(ctx, reg); err != nil {
				return err
			}
			l, err := s.loadNode(ctx, reg, node)
			if err != nil {
				return fmt.Errorf("%d Services by %s: %w", n, node.by, errors.Join(err, node.stop()))
			}
			l.Services = n
			r.Loads = append(r.Loads, l)
			if err := node.stop(); err != nil {
				return err
			}
			if l.Took > 0 {
				name := fmt.Sprintf("%s, %d", node.by, n)
				r.Variants = append(r.Variants, serviceVariant{variant{name: name, pair: pair{node.client, node.behind[0], measuredIP}}, node.by, n})
			}
		}
	}
	return nil
}

// loadNode starts who does Services on a node, and looks at what that costs.
func (s settings) loadNode(ctx context.Context, reg registry.Registry, node *serviceNode) (l serviceLoad, err error) {
	l.By = node.by
	if err := node.serve(); err != nil {
		return l, err
	}
	started := make(chan error, 1)
	go func() { started <- node.start(ctx) }()
	reached, unreached := node.client.do(request{Do: doReach, To: measuredIP, For: s.patience})
	if err := <-started; err != nil {
		return l, err
	}
	if unreached != nil {
		say("services: not in %v: %v", s.patience, unreached)
		return l, nil
	}
	l.Took = reached.Took
	if l.Spent, err = processTime(node.pid()); err != nil {
		return l, err
	}
	if l.Changes, l.Unseen, err = s.endpointChanges(ctx, reg, node); err != nil {
		return l, err
	}
	select {
	case <-ctx.Done():
		return l, ctx.Err()
	case <-time.After(settledAfter):
	}
	if l.Loaded, err = processMemory(node.pid()); err != nil {
		return l, err
	}
	l.Peak, err = peakMemory(node.pid())
	return l, err
}

// endpointChanges lets the endpoint of the measured Service's UDP port come and go. It ends early
// where that takes long, or where packets do not fare accordingly at all, which is unseen.
func (s settings) endpointChanges(ctx context.Context, reg registry.Registry, node *serviceNode) (times []time.Duration, unseen bool, err error) {
	p, err := newProbe(node.client.namespace(), node.behind[1].namespace(), "eth0", measuredIP, probePort)
	if err != nil {
		return nil, false, err
	}
	defer p.close()
	p.arrives = node.addresses[1]
	for i, end := 0, time.Now().Add(s.changesWithin); i < s.changes && time.Now().Before(end); i++ {
		next := time.Now().Add(leastChange)
		comes := i%2 == 0
		took, err := p.time(ctx, comes, func() error { return node.change(ctx, reg, comes) })
		if errors.Is(err, errNeverCame) {
			say("services: change %d of an endpoint: %v", i+1, err)
			unseen = true
			break
		}
		if err != nil {
			return nil, false, fmt.Errorf("change %d of an endpoint: %w", i+1, err)
		}
		times = append(times, took)
		time.Sleep(time.Until(next))
	}
	slices.Sort(times)
	return times, unseen, nil
}

// point has the measured Service lead to a node's pods.
func (n *serviceNode) point(ctx context.Context, reg registry.Registry) error {
	return errors.Join(
		putSlice(ctx, reg, sliceOf(serviceNamespace, measuredService, "connect", corev1.ProtocolTCP, connectPort, n.addresses[:]...)),
		n.change(ctx, reg, false))
}

// change has the endpoint of the UDP port come or go.
func (n *serviceNode) change(ctx context.Context, reg registry.Registry, comes bool) error {
	var behind []netip.Addr
	if comes {
		behind = n.addresses[1:]
	}
	return putSlice(ctx, reg, sliceOf(serviceNamespace, measuredService, "probe", corev1.ProtocolUDP, probePort, behind...))
}

// putSlice makes there be an EndpointSlice, whatever it was before.
func putSlice(ctx context.Context, reg registry.Registry, s *discoveryv1.EndpointSlice) error {
	err := modify(ctx, reg, api.EndpointSlice, registry.KeyOf(s), func(o *discoveryv1.EndpointSlice) { o.Endpoints = s.Endpoints })
	if errors.Is(err, registry.ErrNotFound) {
		_, err = reg.Create(ctx, api.EndpointSlice, s)
	}
	return err
}

// measured is the Service that is measured.
func measured() *corev1.Service {
	return serviceAt(serviceNamespace, measuredService, measuredIP.String(),
		corev1.ServicePort{Name: "connect", Protocol: corev1.ProtocolTCP, Port: connectPort},
		corev1.ServicePort{Name: "probe", Protocol: corev1.ProtocolUDP, Port: probePort})
}

// serviceAt is a Service with an address, which may be None.
func serviceAt(namespace, name, address string, ports ...corev1.ServicePort) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: address, ClusterIPs: []string{address}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: ports}
	return s
}

// fillingName is that of one of the Services that are only there, from 1 on.
func fillingName(i int) string { return fmt.Sprintf("service%d", i) }

// spread16 is one of the addresses of a network of 16 bits, none of the first and last 256.
func spread16(network [2]byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{network[0], network[1], byte(1 + i/250), byte(1 + i%250)})
}

// serviceAddress is the address of one of mostServices.
func serviceAddress(i int) netip.Addr { return spread16([2]byte{10, 96}, i) }

// httpPort is that of a Service that is only there.
var httpPort = corev1.ServicePort{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}

func fillingService(i int) *corev1.Service {
	return serviceAt(serviceNamespace, fillingName(i), serviceAddress(i).String(), httpPort)
}

// fillingSlice has its two endpoints.
func fillingSlice(i int) *discoveryv1.EndpointSlice {
	return sliceOf(serviceNamespace, fillingName(i), "http", corev1.ProtocolTCP, 8080, spread16([2]byte{10, 250}, i), spread16([2]byte{10, 251}, i))
}

func sliceOf(namespace, service, port string, protocol corev1.Protocol, number int32, addresses ...netip.Addr) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: service + "-" + port, Labels: map[string]string{
		discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "bench.weft.network"}}, AddressType: discoveryv1.AddressTypeIPv4}
	s.Ports = []discoveryv1.EndpointPort{{Name: &port, Protocol: &protocol, Port: &number}}
	s.Endpoints = []discoveryv1.Endpoint{}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)}})
	}
	return s
}
