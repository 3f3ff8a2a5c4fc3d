package plugin

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

const namesPlan = `node node1 addresses 172.30.0.2 mtu 1450
pool default 10.1.1.0/24 gateway 10.1.1.1
service default 10.96.0.10 any # Service kube-system/kube-dns
service default 10.96.0.10 tcp 9153 to kube-system/kube-dns:metrics # Service kube-system/kube-dns
service default 10.96.0.10 tcp 53 to kube-system/kube-dns:dns-tcp # Service kube-system/kube-dns
service default 10.96.0.10 udp 53 to kube-system/kube-dns:dns # Service kube-system/kube-dns
service default 10.96.0.11 udp 53 from inside to default/other # Service default/other
service default 10.96.0.12 udp 53 to default/other # Service default/other
service default fd96::a udp 53 from inside to kube-system/kube-dns:dns # Service kube-system/kube-dns
service default fd96::a udp 53 from outside to kube-system/kube-dns:dns/local # Service kube-system/kube-dns
`

func TestPutNames(t *testing.T) {
	addresses := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	const service, config = "Service kube-system/kube-dns", "ClusterConfig default"
	for what, test := range map[string]struct {
		at      NameServer
		left    bool // Services are another program's
		changed string
	}{
		"nowhere": {},
		"at the Service's addresses": {at: NameServer{Service: addresses("10.96.0.10", "fd96::a"), Origin: service},
			changed: `- service default 10.96.0.10 tcp 53 to kube-system/kube-dns:dns-tcp # Service kube-system/kube-dns
+ service default 10.96.0.10 tcp 53 from inside here # Service kube-system/kube-dns
+ service default 10.96.0.10 tcp 53 from outside to kube-system/kube-dns:dns-tcp # Service kube-system/kube-dns
- service default 10.96.0.10 udp 53 to kube-system/kube-dns:dns # Service kube-system/kube-dns
+ service default 10.96.0.10 udp 53 from inside here # Service kube-system/kube-dns
+ service default 10.96.0.10 udp 53 from outside to kube-system/kube-dns:dns # Service kube-system/kube-dns
- service default fd96::a udp 53 from inside to kube-system/kube-dns:dns # Service kube-system/kube-dns
+ service default fd96::a udp 53 from inside here # Service kube-system/kube-dns
`},
		"not where others are, or nobody": {at: NameServer{Service: addresses("10.96.0.11", "10.96.0.12", "10.96.0.13"), Origin: service}},
		"more addresses": {at: NameServer{More: addresses("169.254.20.10", "172.30.0.2", "10.96.0.12"), MoreOrigin: config},
			changed: `+ service default 10.96.0.12 tcp 53 from inside here # ClusterConfig default
+ service default 169.254.20.10 tcp 53 from inside here # ClusterConfig default
+ service default 169.254.20.10 udp 53 from inside here # ClusterConfig default
+ service default 172.30.0.2 tcp 53 from inside here # ClusterConfig default
+ service default 172.30.0.2 tcp 53 from outside else drop # ClusterConfig default
+ service default 172.30.0.2 udp 53 from inside here # ClusterConfig default
+ service default 172.30.0.2 udp 53 from outside else drop # ClusterConfig default
`},
		"beside kube-proxy": {at: NameServer{Service: addresses("10.96.0.99"), Origin: service}, left: true,
			changed: `+ service default 10.96.0.99 tcp 53 from inside here # Service kube-system/kube-dns
+ service default 10.96.0.99 udp 53 from inside here # Service kube-system/kube-dns
`},
	} {
		base, err := plan.Parse(namesPlan)
		if err != nil {
			t.Fatal(err)
		}
		base.Local.ServicesLeft = test.left
		got := PutNames(base, test.at)
		if err := got.Validate(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if d := cmp.Diff(test.changed, base.Diff(got).String()); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
		if again := PutNames(got, test.at); !base.Diff(got).Empty() && !got.Diff(again).Empty() {
			t.Errorf("%s: put twice:\n%s", what, got.Diff(again))
		}
	}
}

// TestKeepOthersOut: other machines are kept from the node's own addresses, and from nothing of
// somebody else's.
func TestKeepOthersOut(t *testing.T) {
	base, err := plan.Parse(namesPlan + `service default 172.30.0.2 tcp 53 to default/port # Pod default/port
`)
	if err != nil {
		t.Fatal(err)
	}
	var at []netip.Addr
	for _, a := range []string{"169.254.20.10", "172.30.0.2", "10.1.1.1", "10.96.0.12"} {
		at = append(at, netip.MustParseAddr(a))
	}
	var before, after []bool
	got := KeepOthersOut(base, at, "ClusterConfig default")
	for _, a := range at {
		before, after = append(before, KeepsOthersOut(base, a)), append(after, KeepsOthersOut(got, a))
	}
	if d := cmp.Diff(`+ service default 10.1.1.1 tcp 53 from outside else drop # ClusterConfig default
+ service default 10.1.1.1 udp 53 from outside else drop # ClusterConfig default
+ service default 172.30.0.2 udp 53 from outside else drop # ClusterConfig default
`, base.Diff(got).String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if fmt.Sprint(before, after) != "[true false false true] [true true true true]" {
		t.Errorf("others are kept out of %v: %t, and then %t", at, before, after)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
	if again := KeepOthersOut(got, at, "ClusterConfig default"); again != got {
		t.Errorf("put twice:\n%s", got.Diff(again))
	}
}

func TestNameServerOf(t *testing.T) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10", "fd96::a"}, Ports: []corev1.ServicePort{{Port: 53, Protocol: corev1.ProtocolUDP}}}}
	headless := service.DeepCopy()
	headless.Spec.ClusterIP, headless.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	web := service.DeepCopy()
	web.Spec.Ports[0].Port = 80
	node := []netip.Addr{netip.MustParseAddr("172.30.0.2")}
	for what, test := range map[string]struct {
		dns     api.DNSSpec
		service *corev1.Service
		want    string
	}{
		"pods answer":                 {api.DNSSpec{Server: api.NamesByPods, Addresses: []string{"node"}}, service, "[]"},
		"nobody said who":             {api.DNSSpec{}, service, "[]"},
		"nodes answer":                {api.DNSSpec{Server: api.NamesByNodes}, service, "[10.96.0.10 fd96::a]"},
		"at addresses of their own":   {api.DNSSpec{Server: api.NamesByNodes, Addresses: []string{"node", "169.254.20.10"}}, service, "[10.96.0.10 169.254.20.10 172.30.0.2 fd96::a]"},
		"there is no Service":         {api.DNSSpec{Server: api.NamesByNodes, Service: "a/b"}, service, "[]"},
		"it has no address":           {api.DNSSpec{Server: api.NamesByNodes}, headless, "[]"},
		"it is of another kind":       {api.DNSSpec{Server: api.NamesByNodes}, web, "[]"},
		"an address that is nobody's": {api.DNSSpec{Server: api.NamesByNodes, Addresses: []string{"nonsense"}}, web, "[]"},
	} {
		config := api.Effective(&api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: api.ClusterConfigSpec{DNS: test.dns}})
		objects := registry.NewSnapshot(map[*registry.Kind][]registry.Object{api.Service: {test.service}})
		if got := fmt.Sprint(NameServerOf(config, objects, node).Addresses()); got != test.want {
			t.Errorf("%s: %s, want %s", what, got, test.want)
		}
	}
}
