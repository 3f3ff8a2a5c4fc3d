package service

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/test/service/oracle"
)

// What there is little of, so that Services meet: by family, 0 for IPv4 and 1 for IPv6.
var (
	clusterIPs = [2][]string{
		{"10.96.0.1", "10.96.0.2", "10.96.0.3", "10.96.0.4"},
		{"fd96::1", "fd96::2", "fd96::3", "fd96::4"},
	}
	// externalIPs are addresses outside, of nodes, and of other Services.
	externalIPs = [2][]string{
		{"192.0.2.100", "::ffff:192.0.2.101", "172.30.0.2", "172.30.0.3", "10.96.0.1"},
		{"2001:db8::100", "2001:db8::101", "fd01::2", "fd01::3", "fd96::1"},
	}
	// nodeIPs are addresses of nodes: those of the Node, of the end of the tunnel, and
	// gateways.
	nodeIPs = [2][]string{
		{"172.30.0.2", "172.30.0.3", "10.1.1.0", "10.1.1.1", "10.1.2.1"},
		{"fd01::2", "fd01::3", "fd00:1::", "fd00:1::1", "fd00:2::1"},
	}
	// endpoints are pods of the three nodes, a node, a machine outside, and what no
	// endpoint may be at.
	endpoints = [2][]string{
		{"10.1.1.2", "10.1.1.3", "10.1.2.2", "10.1.3.2", "172.30.0.2", "198.51.100.7", "127.0.0.1", "169.254.1.1", "224.0.0.1"},
		{"fd00:1::2", "fd00:1::3", "fd00:2::2", "fd00:3::2", "fd01::2", "2001:db8::7", "::1", "fe80::1", "ff0e::1"},
	}
	outside = [2][]string{
		{"198.51.100.7", "198.51.100.130", "203.0.113.9", "172.30.0.3"},
		{"2001:db8::7", "2001:db8:1::7", "2001:db9::9", "fd01::3"},
	}
	ranges = []string{
		"0.0.0.0/0", "::/0", "198.51.100.0/24", "198.51.100.7/25", " 203.0.113.9/32 ", "10.1.0.0/16", "172.30.0.2/32",
		"2001:db8::/32", "2001:db8::7/128", "fd00::/16", "::ffff:198.51.100.7/121", "::ffff:0:0/96", "everybody",
	}
	portNames   = []string{"http", "dns", ""}
	portNumbers = []int32{80, 53, 30080}
	nodePorts   = []int32{30080, 30053, 0}
	protocols   = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP, ""}
	zones       = []string{"a", "b", ""}
)

// here is the node that is asked. Node i has the addresses, and its pods have those, that
// plantest.Shape gives them.
const here = "node1"

func nodeName(i int) string { return fmt.Sprintf("node%d", i) }

// number draws one from 0 up to, but without, n. rapid's own generators favour small
// ones, so that of a world's parts most would be left out.
func number(t *rapid.T, label string, n int) int {
	return rapid.Custom(func(t *rapid.T) int {
		drawn := 0
		for range numberBits {
			drawn *= 2
			if rapid.Bool().Draw(t, "bit") {
				drawn++
			}
		}
		return drawn * n >> numberBits
	}).Draw(t, label)
}

// numberBits are as many as make a hundred numbers about as likely as each other.
const numberBits = 8

// one draws one of some; what comes first is the smallest.
func one[T any](t *rapid.T, label string, from []T) T { return from[number(t, label, len(from))] }

// chance is true in about so many of a hundred cases.
func chance(t *rapid.T, label string, percent int) bool { return number(t, label, 100) >= 100-percent }

func drawWorld(t *rapid.T) *oracle.World {
	w := &oracle.World{Gateways: map[string][]netip.Addr{}, Others: map[string][]netip.Addr{here: {netip.MustParseAddr("192.0.2.100")}}}
	w.Granting, w.ServicesLeft = chance(t, "without Kubernetes", 25), chance(t, "left", 5)
	for name, p := range bare {
		w.Gateways[name] = p.Local.PoolAddresses()
	}
	for i := range 3 {
		w.Nodes = append(w.Nodes, drawNode(t, i+1))
	}
	for i := range 4 {
		if i == 0 || chance(t, "service", 55) {
			w.Services = append(w.Services, drawService(t, i))
		}
	}
	for i := range number(t, "slices", 12) {
		w.Slices = append(w.Slices, drawSlice(t, w, i))
	}
	drawPools(t, w)
	drawGrants(t, w)
	for i := range podsOn {
		if chance(t, "pod", 60) {
			w.Pods = append(w.Pods, drawPod(t, i))
		}
	}
	drawNames(t, w)
	return w
}

func drawNode(t *rapid.T, i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}
	if zone := one(t, "zone", zones); zone != "" {
		n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("172.30.0.%d", i+1)},
		{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("fd01::%d", i+1)},
		{Type: corev1.NodeHostName, Address: nodeName(i)},
	}
	return n
}

// drawService makes one of four. Their namespaces and names are fixed, and not in order; the
// last is the API server's.
func drawService(t *rapid.T, i int) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: []string{"red", "blue", "red", "default"}[i], Name: []string{"web", "web", "db", "kubernetes"}[i],
		CreationTimestamp: metav1.NewTime(time.Unix(int64(1+number(t, "created", 3)), 0)), UID: one(t, "UID", uids),
	}}
	s.Spec.Type = one(t, "type", []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeClusterIP, "", corev1.ServiceTypeNodePort, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName})
	if label := one(t, "label", []string{"", "", "", "", "", "", "", "", "", "", "", "", "", "app", "service.kubernetes.io/service-proxy-name", corev1.IsHeadlessService}); label != "" {
		s.Labels = map[string]string{label: one(t, "value", []string{"", "x"})}
	}
	drawPorts(t, s)
	if chance(t, "selector", 50) {
		s.Spec.Selector = map[string]string{"app": s.Name}
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].TargetPort = one(t, "targetPort", []intstr.IntOrString{{}, intstr.FromInt32(8080), intstr.FromInt32(5353), intstr.FromString("http")})
		}
	}
	s.Spec.PublishNotReadyAddresses = chance(t, "publish", 10)
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		s.Spec.ExternalName = "www.example.com"
		return s
	}
	families := one(t, "families", [][]int{{0}, {1}, {0, 1}, {1, 0}})
	if s.Spec.Type != corev1.ServiceTypeNodePort && s.Spec.Type != corev1.ServiceTypeLoadBalancer && chance(t, "headless", 10) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	} else {
		drawClusterIPs(t, s, i, families)
	}
	for _, f := range families {
		s.Spec.IPFamilies = append(s.Spec.IPFamilies, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}[f])
	}
	for range number(t, "externalIPs", 3) {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, one(t, "externalIP", externalIPs[number(t, "family", 2)]))
	}
	if chance(t, "internal", 50) {
		s.Spec.InternalTrafficPolicy = new(one(t, "internalTrafficPolicy", []corev1.ServiceInternalTrafficPolicy{corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal}))
	}
	if s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer || len(s.Spec.ExternalIPs) > 0 {
		s.Spec.ExternalTrafficPolicy = one(t, "externalTrafficPolicy", []corev1.ServiceExternalTrafficPolicy{corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal})
	}
	drawAffinity(t, s)
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		drawLoadBalancer(t, s)
	}
	return s
}

// drawClusterIPs gives a Service cluster IPs of its own, or seldom another's, or a node's.
func drawClusterIPs(t *rapid.T, s *corev1.Service, i int, families []int) {
	for _, f := range families {
		if chance(t, "another's", 8) {
			i = number(t, "whose", 4)
		}
		ip := clusterIPs[f][i]
		if chance(t, "a node's", 6) {
			ip = one(t, "node's", nodeIPs[f])
		}
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, ip)
	}
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	if len(families) == 1 && chance(t, "old", 10) {
		s.Spec.ClusterIPs = nil
	}
}

// drawPorts gives a Service ports that the API lets it have: names, and numbers of a
// protocol, are there once.
func drawPorts(t *rapid.T, s *corev1.Service) {
	count := 1 + number(t, "ports", 3)
	for i := range count {
		p := corev1.ServicePort{Protocol: one(t, "protocol", protocols), Port: one(t, "port", portNumbers), Name: portNames[i]}
		if count == 1 {
			p.Name = one(t, "port name", []string{"", "http", "dns"})
		}
		if s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer {
			p.NodePort = one(t, "nodePort", nodePorts)
		}
		if count > 1 && p.Name == "" || slices.ContainsFunc(s.Spec.Ports, func(o corev1.ServicePort) bool {
			return protocolOf(o.Protocol) == protocolOf(p.Protocol) && (o.Port == p.Port || o.NodePort == p.NodePort && p.NodePort != 0)
		}) {
			continue
		}
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
}

func protocolOf(p corev1.Protocol) corev1.Protocol {
	if p == "" {
		return corev1.ProtocolTCP
	}
	return p
}

func drawAffinity(t *rapid.T, s *corev1.Service) {
	switch number(t, "affinity", 5) {
	case 1:
		s.Spec.SessionAffinity = corev1.ServiceAffinityNone
	case 2:
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	case 3:
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(60))}}
	}
}

func drawLoadBalancer(t *rapid.T, s *corev1.Service) {
	for range number(t, "ingress", 3) {
		i := corev1.LoadBalancerIngress{}
		switch mode := number(t, "ipMode", 6); mode {
		case 5:
			i.Hostname = "lb.example.com"
		default:
			i.IP = one(t, "ip", externalIPs[number(t, "family", 2)])
			if mode > 1 {
				i.IPMode = new([]corev1.LoadBalancerIPMode{corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy}[mode-2])
			}
		}
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, i)
	}
	if chance(t, "guarded", 40) {
		for range 1 + number(t, "ranges", 3) {
			s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, one(t, "range", ranges))
		}
	}
}

// drawSlice makes one that most often is of one of the Services.
func drawSlice(t *rapid.T, w *oracle.World, i int) *discoveryv1.EndpointSlice {
	of := one(t, "of", w.Services)
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: fmt.Sprintf("slice%d", i+1)}}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: of.Name}
	switch number(t, "odd", 31) {
	case 30:
		delete(s.Labels, discoveryv1.LabelServiceName)
	case 29:
		s.Labels["service.kubernetes.io/service-proxy-name"] = ""
	case 28:
		s.Labels[corev1.IsHeadlessService] = ""
	case 27:
		s.Namespace = "green"
	}
	f := number(t, "family", 2)
	if len(of.Spec.IPFamilies) == 1 && !chance(t, "of the other family", 10) {
		f = 0
		if of.Spec.IPFamilies[0] == corev1.IPv6Protocol {
			f = 1
		}
	}
	s.AddressType = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}[f]
	drawEndpointPorts(t, s, of)
	if chance(t, "API server", 8) {
		drawAPIServer(t, s, f)
		return s
	}
	for range 1 + number(t, "endpoints", 4) {
		// "endpoints is a list of unique endpoints in this slice."
		if e := drawEndpoint(t, f); !slices.ContainsFunc(s.Endpoints, func(o discoveryv1.Endpoint) bool { return o.Addresses[0] == e.Addresses[0] }) {
			s.Endpoints = append(s.Endpoints, e)
		}
	}
	if chance(t, "FQDN", 3) {
		s.AddressType = discoveryv1.AddressTypeFQDN
		for i := range s.Endpoints {
			s.Endpoints[i].Addresses = []string{"www.example.com"}
		}
	}
	return s
}

// drawAPIServer makes a slice one that says that the API server is where others want to be.
func drawAPIServer(t *rapid.T, s *discoveryv1.EndpointSlice, f int) {
	s.Namespace, s.Labels[discoveryv1.LabelServiceName] = "default", "kubernetes"
	s.Ports = []discoveryv1.EndpointPort{{Name: new("https"), Protocol: new(protocolOf(one(t, "protocol", protocols))), Port: new(one(t, "port", portNumbers))}}
	for range 1 + number(t, "endpoints", 2) {
		e := discoveryv1.Endpoint{Addresses: []string{one(t, "address", slices.Concat(clusterIPs[f], externalIPs[f], nodeIPs[f]))}}
		if chance(t, "not ready", 20) {
			e.Conditions.Ready, e.Conditions.Serving = new(false), new(false)
		}
		s.Endpoints = append(s.Endpoints, e)
	}
}

// drawEndpointPorts gives a slice most of the ports of its Service, to other numbers.
func drawEndpointPorts(t *rapid.T, s *discoveryv1.EndpointSlice, of *corev1.Service) {
	for _, p := range of.Spec.Ports {
		e := discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(protocolOf(p.Protocol)), Port: new(one(t, "target", []int32{8080, 5353, 80}))}
		switch number(t, "odd port", 31) {
		case 30:
			continue
		case 29:
			e.Port = nil
		case 28:
			e.Name = new("metrics")
		case 27:
			e.Protocol = nil
		case 26:
			e.Protocol = new(corev1.ProtocolUDP)
		case 25:
			if p.Name == "" {
				e.Name = nil
			}
		}
		s.Ports = append(s.Ports, e)
	}
}

func drawEndpoint(t *rapid.T, f int) discoveryv1.Endpoint {
	i := number(t, "endpoint", len(endpoints[f]))
	if i > 4 && !chance(t, "odd endpoint", 50) {
		i -= 5
	}
	e := discoveryv1.Endpoint{Addresses: []string{endpoints[f][i]}}
	if chance(t, "more addresses", 10) {
		e.Addresses = append(e.Addresses, one(t, "second address", endpoints[f][:4]))
	}
	switch node := []string{here, here, nodeName(2), nodeName(3), here, "", "", "", ""}[i]; {
	case chance(t, "odd node", 10):
		e.NodeName = new(one(t, "node", []string{here, nodeName(2), "node9"}))
	case node != "" && !chance(t, "no node", 5):
		e.NodeName = new(node)
	}
	conditions := []*bool{nil, new(true), new(false)}
	switch number(t, "conditions", 5) {
	case 1:
		e.Conditions.Ready, e.Conditions.Serving, e.Conditions.Terminating = new(false), new(true), new(true)
	case 2:
		e.Conditions.Ready = new(false)
	case 3:
		e.Conditions.Ready, e.Conditions.Serving, e.Conditions.Terminating = one(t, "ready", conditions), one(t, "serving", conditions), one(t, "terminating", conditions)
	}
	if kind := number(t, "hints", 6); kind > 0 {
		e.Hints = &discoveryv1.EndpointHints{}
		if kind < 4 {
			for _, zone := range one(t, "forZones", [][]string{{"a"}, {"b"}, {"a", "b"}}) {
				e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: zone})
			}
		}
		if kind > 2 {
			e.Hints.ForNodes = []discoveryv1.ForNode{{Name: nodeName(1 + number(t, "forNode", 2))}}
		}
	}
	return e
}

// change returns a world in which some of the objects are others. What did not change is
// the same pointer, as in a cache of a registry's objects.
func change(t *rapid.T, w *oracle.World) *oracle.World {
	next := new(*w)
	next.Services, next.Slices, next.Nodes, next.Pods = slices.Clone(w.Services), slices.Clone(w.Slices), slices.Clone(w.Nodes), slices.Clone(w.Pods)
	for range 1 + number(t, "changes", 2) {
		switch number(t, "change", 9) {
		case 6:
			changeGranted(t, next)
		case 7:
			i := number(t, "pod", len(podsOn))
			p := drawPod(t, i)
			at := slices.IndexFunc(next.Pods, func(o *corev1.Pod) bool { return o.Name == p.Name })
			switch {
			case at < 0:
				next.Pods = append(next.Pods, p)
			case chance(t, "deleted", 40):
				next.Pods = slices.Delete(next.Pods, at, at+1)
			default:
				next.Pods[at] = p
			}
		case 8:
			drawNames(t, next)
		case 0:
			i := number(t, "node", 3)
			next.Nodes[i] = drawNode(t, i+1)
		case 1, 2:
			i := number(t, "service", 4)
			s := drawService(t, i)
			at := slices.IndexFunc(next.Services, func(o *corev1.Service) bool { return o.Namespace == s.Namespace && o.Name == s.Name })
			switch {
			case at < 0:
				next.Services = append(next.Services, s)
			case len(next.Services) > 1 && chance(t, "deleted", 30):
				next.Services = slices.Delete(next.Services, at, at+1)
			default:
				next.Services[at] = s
			}
		default:
			i := number(t, "slice", len(next.Slices)+1)
			if i == len(next.Slices) {
				if !slices.ContainsFunc(next.Slices, func(o *discoveryv1.EndpointSlice) bool { return o.Name == fmt.Sprintf("slice%d", i+1) }) {
					next.Slices = append(next.Slices, drawSlice(t, next, i))
				}
			} else if chance(t, "deleted", 30) {
				next.Slices = slices.Delete(next.Slices, i, i+1)
			} else {
				s := drawSlice(t, next, i)
				s.Name = next.Slices[i].Name
				next.Slices[i] = s
			}
		}
	}
	return next
}

// drawPacket makes one that most often a Service may be asked about.
func drawPacket(t *rapid.T, w *oracle.World) oracle.Packet {
	f := number(t, "family", 2)
	s := one(t, "to", w.Services)
	if len(s.Spec.IPFamilies) == 1 && !chance(t, "of the other family", 5) {
		f = 0
		if s.Spec.IPFamilies[0] == corev1.IPv6Protocol {
			f = 1
		}
	}
	p := oracle.Packet{Node: here, Sender: one(t, "sender", []oracle.Sender{oracle.PodHere, oracle.PodElsewhere, oracle.NodeItself, oracle.Outsider, oracle.Outsider})}
	var source string
	switch p.Sender {
	case oracle.PodHere:
		source = one(t, "source", endpoints[f][:2])
	case oracle.PodElsewhere:
		source = one(t, "source", endpoints[f][2:4])
	case oracle.NodeItself:
		source = externalIPs[f][2]
	default:
		source = one(t, "source", outside[f])
	}
	claims := slices.Concat(s.Spec.ClusterIPs, s.Spec.ExternalIPs)
	for _, i := range s.Status.LoadBalancer.Ingress {
		claims = append(claims, i.IP)
	}
	port := one(t, "service port", s.Spec.Ports)
	p.Protocol, p.Port = protocolOf(port.Protocol), uint16(port.Port)
	destination := externalIPs[f][2] // the node's own
	switch n := number(t, "destination", 26); {
	case n > 23 && w.Names != nil:
		destination, p.Port, p.Protocol = one(t, "name server", namesAt[f]), 53, one(t, "by", []corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolTCP})
		if len(w.Names.Answering[here]) > 0 {
			destination = one(t, "answering", w.Names.Answering[here]).String()
		}
	case n > 19 && n < 24 && len(w.Pods) > 0:
		destination, p.Port, p.Protocol = toHostPort(t, w, f, p.Sender)
	case len(claims) > 0 && (n < 11 || n < 17 && port.NodePort == 0):
		destination = one(t, "claim", claims)
	case n < 17 && port.NodePort != 0:
		p.Port = uint16(port.NodePort)
		if p.Sender == oracle.NodeItself && chance(t, "loopback", 30) {
			destination = []string{"127.0.0.1", "::1"}[f]
		}
	case n < 18:
		destination = one(t, "any", slices.Concat(clusterIPs[f], externalIPs[f], endpoints[f][:6]))
	default:
		destination = one(t, "cluster IP", clusterIPs[f])
	}
	if chance(t, "another port", 12) {
		p.Port = uint16(one(t, "number", []int32{80, 53, 30080, 30053, 8080}))
		p.Protocol = protocolOf(one(t, "protocol", protocols))
	}
	var err error
	if p.Destination, err = netip.ParseAddr(destination); err != nil {
		p.Destination = netip.MustParseAddr(clusterIPs[f][0])
	}
	p.Destination = p.Destination.Unmap()
	p.Source = netip.MustParseAddr(source)
	if p.Source.Is4() != p.Destination.Is4() {
		p.Source = otherFamily(p.Source)
		if p.Sender == oracle.NodeItself && p.Destination.IsLoopback() {
			p.Source = p.Destination
		}
	}
	return p
}

// otherFamily returns who has an address in the other family.
func otherFamily(a netip.Addr) netip.Addr {
	for _, pools := range [][2][]string{endpoints, outside, externalIPs} {
		for f := range 2 {
			if i := slices.Index(pools[f], a.String()); i >= 0 {
				return netip.MustParseAddr(pools[1-f][i])
			}
		}
	}
	panic(fmt.Sprintf("nobody has %s", a))
}
