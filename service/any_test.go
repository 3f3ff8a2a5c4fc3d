package service_test

import (
	"math"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// Whatever stands in the objects, whether the API lets it in or not, the plan of a node is
// valid: one object does not take the plan from all others.
func TestAnyObjectsMakeAValidPlan(t *testing.T) {
	plantest.CheckMeeting(t, []string{"a frontend", "a backend", "a source", "a problem"}, func(t *rapid.T, meets func(string)) {
		w := world{api.Service: {}, api.EndpointSlice: {}}
		for range 6 {
			s := anyService(t)
			w[api.Service][registry.KeyOf(s)] = s
		}
		for range 12 {
			s := anySlice(t)
			w[api.EndpointSlice][registry.KeyOf(s)] = s
		}
		c := new(service.Compiler)
		tables := c.Compile(w.snapshot(), node)
		problems := c.Problems()
		p := planOf(node, tables)
		if err := p.Validate(); err != nil {
			t.Fatalf("%v\nin\n%s\nof which is said %v", err, p, problems)
		}
		if again, err := plan.Parse(p.String()); err != nil || !again.Equal(p) {
			t.Fatalf("%v: read again it is\n%s\nand was\n%s", err, again, p)
		}
		for what, n := range map[string]int{"a frontend": p.Services.Len(), "a backend": p.Backends.Len(), "a source": p.Sources.Len(), "a problem": len(problems)} {
			if n > 0 {
				meets(what)
			}
		}
	})
}

// anyAddress is most often one that somebody has: the node, Services and pods.
func anyAddress() *rapid.Generator[string] {
	usual := rapid.SampledFrom([]string{"172.30.0.2", "fd01::2", "10.1.1.0", "10.1.1.1", "fd00:1::1", "10.96.0.1", "fd96::1", "10.1.1.2", "fd00:1::2"})
	return rapid.OneOf(usual, usual, usual,
		rapid.SampledFrom([]string{"", "None", "0.0.0.0", "::", "127.0.0.1", "::1", "169.254.1.1", "fe80::1", "fe80::1%eth0", "224.0.0.1", "ff02::1", "255.255.255.255",
			"0.1.2.3", "240.0.0.1", "::ffff:10.96.0.1", "::ffff:172.30.0.2", "::ffff:127.0.0.1", "::ffff:0.0.0.0", "010.96.0.1", "10.96.0.1/32"}),
		rapid.Map(plantest.Addr(), netip.Addr.String),
		rapid.String(),
	)
}

// anyRange is a prefix, most often.
func anyRange() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.SampledFrom([]string{"0.0.0.0/0", "::/0", "192.0.2.7/24", " 192.0.2.0/24 ", "::ffff:10.0.0.0/104", "::ffff:10.0.0.7/104", "::ffff:0:0/96", "::ffff:0:0/95",
			"::ffff:10.0.0.0/8", "fe80::1%eth0/64", "192.0.2.0", "192.0.2.0/33"}),
		rapid.Map(plantest.Prefix(), netip.Prefix.String),
		rapid.String(),
	)
}

// anyPort is most often one that a port may have.
func anyPort() *rapid.Generator[int32] {
	return rapid.OneOf(rapid.Int32Range(79, 81), rapid.Int32Range(79, 81), rapid.SampledFrom([]int32{math.MinInt32, -1, 0, 1, 65535, 65536, math.MaxInt32}))
}

func anyProtocol() *rapid.Generator[corev1.Protocol] {
	return rapid.SampledFrom([]corev1.Protocol{"", "", "", corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP, "ICMP", "tcp"})
}

// anyPortName is most often one of those that Services and slices both use.
func anyPortName() *rapid.Generator[string] {
	return rapid.OneOf(rapid.Just(""), rapid.Just(""), rapid.SampledFrom([]string{"http", "local", "http/local"}), plantest.Name())
}

// names are those of Services that slices name, too.
var names = rapid.SampledFrom([]string{"web", "db", "dns", "kubernetes"})

func anyMeta(t *rapid.T) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: rapid.OneOf(names, names, plantest.Name()).Draw(t, "name"),
		CreationTimestamp: metav1.NewTime(time.Unix(rapid.Int64Range(0, 1).Draw(t, "created"), 0))}
}

func anyService(t *rapid.T) *corev1.Service {
	s := &corev1.Service{ObjectMeta: anyMeta(t)}
	texts := rapid.SliceOfN(anyAddress(), 0, 3)
	s.Spec = corev1.ServiceSpec{
		Type:      rapid.SampledFrom([]corev1.ServiceType{"", corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName, "Other"}).Draw(t, "type"),
		ClusterIP: rapid.OneOf(rapid.Just("10.96.0.1"), anyAddress()).Draw(t, "cluster IP"), ClusterIPs: texts.Draw(t, "cluster IPs"), ExternalIPs: texts.Draw(t, "external IPs"),
		IPFamilies:               rapid.SliceOfN(rapid.SampledFrom([]corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol, "IPv5"}), 0, 3).Draw(t, "families"),
		LoadBalancerSourceRanges: rapid.SliceOfN(anyRange(), 0, 3).Draw(t, "ranges"),
		ExternalTrafficPolicy:    rapid.SampledFrom([]corev1.ServiceExternalTrafficPolicy{"", corev1.ServiceExternalTrafficPolicyLocal, "Other"}).Draw(t, "external policy"),
		SessionAffinity:          rapid.SampledFrom([]corev1.ServiceAffinity{"", corev1.ServiceAffinityClientIP, "Other"}).Draw(t, "affinity"),
	}
	if rapid.Bool().Draw(t, "internal") {
		s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	if rapid.Bool().Draw(t, "for how long") {
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(rapid.Int32().Draw(t, "seconds"))}}
	}
	for range rapid.IntRange(1, 3).Draw(t, "ports") {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: anyPortName().Draw(t, "port name"), Protocol: anyProtocol().Draw(t, "protocol"),
			Port: anyPort().Draw(t, "port"), NodePort: anyPort().Draw(t, "node port")})
	}
	for _, text := range texts.Draw(t, "balanced") {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: text})
	}
	if rapid.Bool().Draw(t, "for some clients") {
		// Sources are there only if all of this is right at once, which chance alone seldom makes.
		s.Spec.Type, s.Spec.IPFamilies = corev1.ServiceTypeLoadBalancer, nil
		s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, "192.0.2.0/24")
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: "198.51.100.1"})
	}
	return s
}

func anySlice(t *rapid.T) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: anyMeta(t)}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: rapid.OneOf(names, names, names, plantest.Name()).Draw(t, "of")}
	s.AddressType = rapid.SampledFrom([]discoveryv1.AddressType{"", discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN}).Draw(t, "address type")
	for range rapid.IntRange(1, 3).Draw(t, "ports") {
		p := discoveryv1.EndpointPort{}
		if rapid.IntRange(0, 3).Draw(t, "named") > 0 {
			p.Name = new(anyPortName().Draw(t, "port name"))
		}
		if rapid.IntRange(0, 3).Draw(t, "of a protocol") > 0 {
			p.Protocol = new(anyProtocol().Draw(t, "protocol"))
		}
		if rapid.IntRange(0, 3).Draw(t, "numbered") > 0 {
			p.Port = new(anyPort().Draw(t, "port"))
		}
		s.Ports = append(s.Ports, p)
	}
	for range rapid.IntRange(1, 3).Draw(t, "endpoints") {
		e := discoveryv1.Endpoint{Addresses: rapid.SliceOfN(anyAddress(), 1, 2).Draw(t, "addresses")}
		if rapid.Bool().Draw(t, "on a node") {
			e.NodeName = new(rapid.OneOf(rapid.Just(node.Node), plantest.Name()).Draw(t, "node"))
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}
