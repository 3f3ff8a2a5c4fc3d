package control

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/explore"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// TestTold shows what is said of Services that nodes cannot do as they are written: each file
// has objects, that are applied to what there is of the files before, and the conditions then.
func TestTold(t *testing.T) {
	golden.Archives(t, "testdata/told/*.txtar", func(t *testing.T, files []txtar.File) (out []txtar.File) {
		s := &explore.Store{Now: time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)}
		var all teller
		for _, f := range files {
			if !strings.HasSuffix(f.Name, ".yaml") {
				continue
			}
			apply(t, s, f.Data)
			for range 2 {
				says := all.decide(s.Snapshot(kinds...))
				for _, say := range says {
					if err := say.write(t.Context(), s.Registry()); err != nil {
						t.Fatal(err)
					}
				}
			}
			if again := all.decide(s.Snapshot(kinds...)); len(again) > 0 {
				t.Errorf("what was said is to be said again: %v", again)
			}
			var b strings.Builder
			for svc := range registry.Each[*corev1.Service](s.Snapshot(kinds...), api.Service) {
				b.WriteString(registry.KeyOf(svc).String() + "\n")
				for _, c := range svc.Status.Conditions {
					b.WriteString("  " + c.Type + " " + string(c.Status) + ": " + c.Message + "\n")
				}
			}
			out = append(out, f, txtar.File{Name: strings.TrimSuffix(f.Name, ".yaml") + ".out", Data: []byte(b.String())})
		}
		return out
	})
}

// One Service names the addresses of very many nodes. Few of these are looked at, which it says, and of another
// Service, which has ports of nodes, nothing is told.
func TestManyNodesAreNamed(t *testing.T) {
	s := &explore.Store{Now: began}
	var b strings.Builder
	b.WriteString(`
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {type: NodePort, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [`)
	for i := range 100 {
		fmt.Fprintf(&b, "{name: p%d, port: %d, nodePort: %d}, ", i, 1000+i, 30000+i)
	}
	b.WriteString(`]}
---
apiVersion: v1
kind: Service
metadata: {namespace: evil, name: all, creationTimestamp: "2026-01-01T10:00:00Z"}
spec: {clusterIP: 10.96.0.2, clusterIPs: [10.96.0.2], ports: [{port: 30000}], externalIPs: [`)
	const many = 200
	address := func(i int) string { return fmt.Sprintf("172.30.1.%d", i+1) }
	for i := range many {
		b.WriteString(address(i) + ", ")
	}
	b.WriteString("]}\n")
	for i := range many {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Node\nmetadata: {name: node%d}\nstatus: {addresses: [{type: InternalIP, address: %s}]}\n", i, address(i))
	}
	apply(t, s, []byte(b.String()))
	if c := claimed(s.Snapshot(kinds...), false); len(c.addresses) != maxClaimed || len(c.whose) != maxClaimed {
		t.Errorf("%d addresses of nodes are looked at, and %d have names", len(c.addresses), len(c.whose))
	}
	says := new(teller).decide(s.Snapshot(kinds...))
	if len(says) != 1 || says[0].service.Name != "all" || says[0].unknown || !strings.Contains(says[0].problem, "172.30.1.1:30000/TCP is Service shop/web's") ||
		!strings.Contains(says[0].problem, "in its way at 172.30.1.17, 172.30.1.18, 172.30.1.19 and 181 more is not known") {
		t.Errorf("it is said %v", says)
	}
}

// The Services of one namespace name more addresses of nodes than are looked at. What is wrong with those of other
// namespaces is told all the same, and with a port of nodes that is the API server's on one. Of those that are left
// out it is said that it is not known, which counts like a problem.
func TestNamesOfNodesHideNothing(t *testing.T) {
	s := &explore.Store{Now: began}
	var b strings.Builder
	b.WriteString(`
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {type: NodePort, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{port: 80, nodePort: 30000}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: kubernetes, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
ports: [{port: 30000}]
endpoints: [{addresses: [172.30.1.99]}]
`)
	names := func(namespace, name string, i, port int, addresses string) {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Service\nmetadata: {namespace: %s, name: %s}\nspec: {clusterIP: 10.96.1.%d, clusterIPs: [10.96.1.%d], ports: [{port: %d}], externalIPs: [%s]}\n",
			namespace, name, i, i, port, addresses)
	}
	const many = 30
	for i := range many {
		names("evil", fmt.Sprintf("s%02d", i), i+1, 30000, fmt.Sprintf("172.30.1.%d", i+1))
	}
	names("shop", "other", 100, 30000, "172.30.1.100")
	names("shop", "apart", 101, 80, "172.30.1.98") // nobody is there
	for _, i := range []int{98, 99, 100} {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Node\nmetadata: {name: node%d}\nstatus: {addresses: [{type: InternalIP, address: 172.30.1.%d}]}\n", i, i)
	}
	for i := range many {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Node\nmetadata: {name: node%d}\nstatus: {addresses: [{type: InternalIP, address: 172.30.1.%d}]}\n", i+1, i+1)
	}
	apply(t, s, []byte(b.String()))
	var all teller
	unknown := 0
	for _, say := range all.decide(s.Snapshot(kinds...)) {
		says := ""
		switch {
		case say.service.Namespace == "evil" && say.unknown:
			says = "whether something is in its way at 172.30.1."
			unknown++
		case say.service.Namespace == "evil", say.service.Name == "other":
			says = ":30000/TCP is Service shop/web's"
		case say.service.Name == "web":
			says = "172.30.1.99:30000/TCP is where the API server is"
		}
		if says == "" || !strings.Contains(say.problem, says) {
			t.Errorf("of Service %s it is said: %s", say.service, say.problem)
		}
		if err := say.write(t.Context(), s.Registry()); err != nil {
			t.Fatal(err)
		}
	}
	if expected := many - (maxClaimed - 1); unknown != expected {
		t.Errorf("of %d Services it is not known, and not of %d", unknown, expected)
	}
	if again := all.decide(s.Snapshot(kinds...)); len(again) > 0 {
		t.Errorf("what was said is to be said again: %v", again)
	}
	if services, _ := problems(s.Snapshot(kinds...)); services != many+2 {
		t.Errorf("%d Services have a problem", services)
	}
}

// What one Service has Grants of an older one cannot take, nor one that says of itself all
// that another is. Who has it on nodes is who has the Grant, and all conditions say the same.
func TestAnOlderServiceTakesNothing(t *testing.T) {
	for name, lie := range map[string]func(evil, other *corev1.Service){
		"it is older":           func(_, _ *corev1.Service) {},
		"it says another's UID": func(evil, other *corev1.Service) { evil.UID = other.UID },
		"it says another's status and annotations": func(evil, other *corev1.Service) {
			evil.Annotations, evil.Labels, evil.Status, evil.OwnerReferences = other.Annotations, other.Labels, other.Status, other.OwnerReferences
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &explore.Store{Now: began}
			apply(t, s, []byte(`
apiVersion: weft.network/v1
kind: ClusterConfig
metadata: {name: default}
spec: {serviceNetworks: [10.96.0.0/24]}
---
apiVersion: v1
kind: Service
metadata: {namespace: evil, name: old, creationTimestamp: "2026-01-01T10:00:00Z"}
spec: {type: NodePort, ports: [{port: 53}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: system, name: dns, creationTimestamp: "2026-01-01T11:00:00Z"}
spec: {type: NodePort, clusterIP: 10.96.0.10, ports: [{port: 53, nodePort: 30053}]}
---
apiVersion: v1
kind: Node
metadata: {name: node1}
status: {addresses: [{type: InternalIP, address: 172.30.0.11}]}
`))
			settleAll(t, s)
			get := func(key registry.Key) *corev1.Service {
				o, err := s.Get(api.Service, key)
				if err != nil {
					t.Fatal(err)
				}
				return o.(*corev1.Service)
			}
			old, dns := registry.Key{Namespace: "evil", Name: "old"}, registry.Key{Namespace: "system", Name: "dns"}
			evil := get(old)
			evil.Spec.ClusterIP, evil.Spec.ClusterIPs, evil.Spec.Ports[0].NodePort = "10.96.0.10", []string{"10.96.0.10"}, 30053
			lie(evil, get(dns))
			if _, err := s.Update(api.Service, evil); err != nil {
				t.Fatal(err)
			}
			var all teller
			for range 3 {
				if err := onNodes(s.Snapshot(kinds...)); err != nil {
					t.Fatal(err)
				}
				settleAll(t, s)
				for _, say := range all.decide(s.Snapshot(kinds...)) {
					if err := say.write(t.Context(), s.Registry()); err != nil {
						t.Fatal(err)
					}
				}
			}
			if said := get(dns).Status.Conditions; len(said) > 0 {
				t.Errorf("of the one that has the Grants it is said: %v", said)
			}
			if said := get(old).Status.Conditions; len(said) != 2 {
				t.Errorf("of the other it is said: %v", said)
			}
			for _, c := range get(old).Status.Conditions {
				if !strings.Contains(c.Message, "10.96.0.10 is Service system/dns's") {
					t.Errorf("%s: %s", c.Type, c.Message)
				}
			}
			for _, name := range []string{"10.96.0.10", "30053-tcp"} {
				if o, err := s.Get(service.GrantKind, registry.Key{Name: name}); err != nil || !o.(*service.Grant).IsOf(get(dns)) {
					t.Errorf("%s is granted to %v, %v", name, o, err)
				}
			}
		})
	}
}
