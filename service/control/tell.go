package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/dns/compile"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// Served is the condition of a Service that says what of it, and of its EndpointSlices, nodes
// cannot do as it is written, and what their name servers leave out of its names. Where they do all
// it is not there.
const Served = "weft.network/Served"

// tellPause is the least time between two looks at what is wrong with Services.
const tellPause = time.Second

// teller finds what is wrong with Services. All nodes find the same, so that one says it for
// all of them.
type teller struct {
	compiler service.Compiler
	checker  service.Checker
	names    compile.Compiler
}

// decide returns what is to be said of Services.
func (t *teller) decide(objects registry.Objects) (say []saying) {
	wrong := make(map[registry.Key][]string)
	// What is wrong with an endpoint is told once, though nodes can neither send to it nor give it a name.
	told := make(map[[2]string]bool)
	add := func(problems []service.Problem) {
		for _, p := range problems {
			text := p.Message
			if p.Kind == api.EndpointSlice {
				what, _, _ := strings.Cut(text, ", and ")
				if told[[2]string{p.Key.String(), what}] {
					continue
				}
				told[[2]string{p.Key.String(), what}] = true
				text = fmt.Sprintf("EndpointSlice %s: %s", p.Key.Name, text)
			}
			wrong[p.Service] = append(wrong[p.Service], text)
		}
	}
	config := api.Effective(objects.Get(api.ClusterConfigKind, registry.Key{Name: api.DefaultName}))
	if config.Spec.ServiceProxy != api.KubeProxy {
		local := plan.Local{Node: "a node"}
		local.Addresses, t.compiler.Whose = claimed(objects, t.compiler.Grants)
		t.compiler.Names = service.NameServersOf(config, local.Addresses)
		t.compiler.Compile(objects, local)
		_, asked := t.checker.Checks(objects, local.Node)
		add(slices.Concat(t.compiler.Problems(), t.compiler.Astray(addressesOfNodes(objects)), asked))
	}
	// Nodes answer for names also where another program serves Services.
	if config.Spec.DNS.Server == api.NamesByNodes {
		t.names.Compile(objects)
		add(t.names.Problems())
	} else {
		t.names = compile.Compiler{}
	}
	for svc := range registry.Each[*corev1.Service](objects, api.Service) {
		problem := printable.Sentence(wrong[registry.KeyOf(svc)])
		if said := meta.FindStatusCondition(svc.Status.Conditions, Served); problem != "" && (said == nil || said.Message != problem) || problem == "" && said != nil {
			say = append(say, saying{registry.KeyOf(svc), svc.UID, Served, problem})
		}
	}
	return say
}

// addressesOfNodes returns whose the addresses of nodes are.
func addressesOfNodes(objects registry.Objects) map[netip.Addr]string {
	of := make(map[netip.Addr]string)
	for n := range registry.Each[*corev1.Node](objects, api.Node) {
		for _, a := range api.NodeAddresses(n) {
			of[a] = cmp.Or(of[a], n.Name)
		}
	}
	return of
}

// maxClaimed is how many addresses of nodes are looked at. At each of them are all node ports, and one
// Service may name the addresses of all nodes.
const maxClaimed = 16

// claimed returns the addresses of nodes that Services have, or are to have, as their own, and
// the names of these, the first maxClaimed of them: there node ports, and nodes themselves, may be in the way. All
// others would cost what there are of nodes and of node ports. That a node has an address where
// Services get theirs is not believed, as any Node could say so of others' Services. Of node ports
// those may be in the way, too, that are the API server's on a node, where there is one.
func claimed(objects registry.Objects, grants bool) (addresses []netip.Addr, whose map[netip.Addr]string) {
	given := ranges(objects)
	of := make(map[netip.Addr]string)
	for n := range registry.Each[*corev1.Node](objects, api.Node) {
		for _, a := range api.NodeAddresses(n) {
			if !slices.ContainsFunc(given, func(r netip.Prefix) bool { return r.Contains(a) }) {
				of[a] = cmp.Or(of[a], n.Name)
			}
		}
	}
	whose = make(map[netip.Addr]string)
	servers := make(map[uint16][]netip.Addr)
	if !grants {
		for _, at := range service.APIServers(objects) {
			if of[at.Address] != "" {
				servers[at.Port] = append(servers[at.Port], at.Address)
			}
		}
	}
	add := func(a netip.Addr) {
		if of[a] != "" && whose[a] == "" && len(addresses) < maxClaimed {
			addresses, whose[a] = append(addresses, a), "node "+of[a]
		}
	}
	for svc := range registry.Each[*corev1.Service](objects, api.Service) {
		texts := append(append([]string{svc.Spec.ClusterIP}, svc.Spec.ClusterIPs...), svc.Spec.ExternalIPs...)
		for _, i := range svc.Status.LoadBalancer.Ingress {
			texts = append(texts, i.IP)
		}
		for _, text := range texts {
			if a, err := netip.ParseAddr(text); err == nil {
				add(a.Unmap())
			}
		}
		for _, p := range svc.Spec.Ports {
			if p.NodePort > 0 && p.NodePort <= math.MaxUint16 {
				for _, a := range servers[uint16(p.NodePort)] {
					add(a)
				}
			}
		}
	}
	return addresses, whose
}

// saying is what a condition of a Service is to say; problem is empty where it is to go.
type saying struct {
	service   registry.Key
	uid       types.UID
	condition string
	problem   string
}

// write has the Service say it.
func (s saying) write(ctx context.Context, r registry.Registry) error {
	_, err := registry.Modify(ctx, r, api.Service, s.service, func(svc *corev1.Service) error {
		switch {
		case svc.UID != s.uid:
		case s.problem == "":
			meta.RemoveStatusCondition(&svc.Status.Conditions, s.condition)
		default:
			meta.SetStatusCondition(&svc.Status.Conditions, metav1.Condition{Type: s.condition, Status: metav1.ConditionFalse, Reason: "Impossible", Message: s.problem})
		}
		return nil
	})
	if errors.Is(err, registry.ErrNotFound) {
		return nil
	}
	return err
}
