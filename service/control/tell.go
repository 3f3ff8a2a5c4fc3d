package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
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
// it is not there. It is Unknown where that is not known, as Services name too many addresses of nodes.
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
	type endpoint struct {
		slice   registry.Key
		address string
	}
	told := make(map[endpoint]bool)
	add := func(problems []service.Problem) {
		for _, p := range problems {
			text := p.Message
			if p.Kind == api.EndpointSlice {
				is := endpoint{p.Key, p.Endpoint}
				if told[is] {
					continue
				}
				told[is] = p.Endpoint != ""
				text = fmt.Sprintf("EndpointSlice %s: %s", p.Key.Name, text)
			}
			wrong[p.Service] = append(wrong[p.Service], text)
		}
	}
	var left map[registry.Key][]netip.Addr
	config := api.Effective(objects.Get(api.ClusterConfigKind, registry.Key{Name: api.DefaultName}))
	if config.Spec.ServiceProxy != api.KubeProxy {
		claims := claimed(objects, t.compiler.Grants)
		local := plan.Local{Node: "a node", Addresses: claims.addresses}
		t.compiler.Whose, left = claims.whose, claims.left
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
		key := registry.KeyOf(svc)
		is := saying{service: key, uid: svc.UID, condition: Served, problem: printable.Sentence(wrong[key])}
		if some := left[key]; len(some) > 0 && is.problem != "" {
			is.problem += "; " + unseen(some)
		} else if len(some) > 0 {
			is.problem, is.unknown = unseen(some), true
		}
		if !is.isSaid(svc) {
			say = append(say, is)
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

// maxClaimed is how many addresses of nodes are looked at that Services claim, and of API servers' own as many
// besides. At each of them are all node ports, and one Service may name the addresses of all nodes.
const maxClaimed = 16

// claims are addresses of nodes that Services have, or are to have, as their own: there node ports, and nodes
// themselves, may be in the way.
type claims struct {
	// addresses are those that are looked at, and whose says whose they are.
	addresses []netip.Addr
	whose     map[netip.Addr]string
	// left are, by the Service that claims them, those that are not.
	left map[registry.Key][]netip.Addr
}

// look has an address of a node be looked at.
func (c *claims) look(a netip.Addr, node string) {
	c.addresses, c.whose[a] = append(c.addresses, a), "node "+node
}

// claimed returns which addresses of nodes Services claim. All would cost what there are of nodes and of node
// ports, so that maxClaimed are looked at: one of each namespace in turns, and there of each Service, so that
// no namespace keeps others from being looked at. That a node has an address where
// Services get theirs is not believed, as any Node could say so of others' Services. Of node ports
// those may be in the way, too, that are the API server's on a node, where there is one.
func claimed(objects registry.Objects, grants bool) claims {
	given := ranges(objects)
	of := make(map[netip.Addr]string)
	for n := range registry.Each[*corev1.Node](objects, api.Node) {
		for _, a := range api.NodeAddresses(n) {
			if !slices.ContainsFunc(given, func(r netip.Prefix) bool { return r.Contains(a) }) {
				of[a] = cmp.Or(of[a], n.Name)
			}
		}
	}
	ports := make(map[int32]bool)
	for svc := range registry.Each[*corev1.Service](objects, api.Service) {
		for _, p := range svc.Spec.Ports {
			if p.NodePort > 0 {
				ports[p.NodePort] = true
			}
		}
	}
	c := claims{whose: make(map[netip.Addr]string), left: make(map[registry.Key][]netip.Addr)}
	if !grants {
		for _, at := range service.APIServers(objects) {
			if a := at.Address; ports[int32(at.Port)] && of[a] != "" && c.whose[a] == "" && len(c.addresses) < maxClaimed {
				c.look(a, of[a])
			}
		}
	}
	turns := make(map[string][][]netip.Addr)
	for svc := range registry.Each[*corev1.Service](objects, api.Service) {
		mine := slices.DeleteFunc(meets(svc, ports), func(a netip.Addr) bool { return of[a] == "" })
		if len(mine) > 0 {
			c.left[registry.KeyOf(svc)] = mine
			turns[svc.Namespace] = append(turns[svc.Namespace], mine)
		}
	}
	namespaces := slices.Sorted(maps.Keys(turns))
	for most, more := len(c.addresses)+maxClaimed, true; more; {
		more = false
		for _, namespace := range namespaces {
			if len(c.addresses) == most {
				break
			}
			var a netip.Addr
			if a, turns[namespace] = c.next(turns[namespace]); a.IsValid() {
				c.look(a, of[a])
				more = true
			}
		}
	}
	for key, mine := range c.left {
		mine = slices.DeleteFunc(mine, func(a netip.Addr) bool { return c.whose[a] != "" })
		if c.left[key] = mine; len(mine) == 0 {
			delete(c.left, key)
		}
	}
	return c
}

// next returns the first address of some lists that is not looked at yet, and what is left of them: the list that
// has it comes last.
func (c *claims) next(lists [][]netip.Addr) (a netip.Addr, left [][]netip.Addr) {
	for ; len(lists) > 0; lists = lists[1:] {
		if i := slices.IndexFunc(lists[0], func(a netip.Addr) bool { return c.whose[a] == "" }); i >= 0 {
			return lists[0][i], append(lists[1:], lists[0][i+1:])
		}
	}
	return a, nil
}

// meets returns at which addresses of a Service, each once, something is in its way where they are a node's: at
// all that are to be its alone, and at others where it has a port that is one of nodes, or that of their
// name servers.
func meets(svc *corev1.Service, nodePorts map[int32]bool) (all []netip.Addr) {
	texts := append([]string{svc.Spec.ClusterIP}, svc.Spec.ClusterIPs...)
	for _, i := range svc.Status.LoadBalancer.Ingress {
		texts = append(texts, i.IP)
	}
	if slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == api.DNSPort || nodePorts[p.Port] }) {
		texts = append(texts, svc.Spec.ExternalIPs...)
	}
	seen := make(map[netip.Addr]bool)
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && !seen[a.Unmap()] {
			seen[a.Unmap()] = true
			all = append(all, a.Unmap())
		}
	}
	return all
}

// unseen says of a Service that not all that it claims is looked at.
func unseen(left []netip.Addr) string {
	var names []string
	for _, a := range left {
		names = append(names, a.String())
	}
	return fmt.Sprintf("whether something is in its way at %s is not known, as these are addresses of nodes, and no more than %d of those that Services name are looked at: give it addresses that no node has",
		printable.Few(names, 0), maxClaimed)
}

// saying is what a condition of a Service is to say; problem is empty where it is to go. unknown says that it is
// not known whether something is wrong.
type saying struct {
	service   registry.Key
	uid       types.UID
	condition string
	problem   string
	unknown   bool
}

// is returns the condition, which is due where there is a problem.
func (s saying) is() metav1.Condition {
	if s.unknown {
		return metav1.Condition{Type: s.condition, Status: metav1.ConditionUnknown, Reason: "TooMany", Message: s.problem}
	}
	return metav1.Condition{Type: s.condition, Status: metav1.ConditionFalse, Reason: "Impossible", Message: s.problem}
}

// isSaid reports whether the Service says it already.
func (s saying) isSaid(svc *corev1.Service) bool {
	said, due := meta.FindStatusCondition(svc.Status.Conditions, s.condition), s.is()
	if said == nil || s.problem == "" {
		return said == nil && s.problem == ""
	}
	return said.Status == due.Status && said.Message == due.Message
}

// put has a Service say it that is not written yet.
func (s saying) put(svc *corev1.Service) {
	if s.problem == "" {
		meta.RemoveStatusCondition(&svc.Status.Conditions, s.condition)
	} else {
		meta.SetStatusCondition(&svc.Status.Conditions, s.is())
	}
}

// write has the Service say it.
func (s saying) write(ctx context.Context, r registry.Registry) error {
	_, err := registry.ModifyOnce(ctx, r, api.Service, s.service, func(svc *corev1.Service) error {
		if svc.UID == s.uid {
			s.put(svc)
		}
		return nil
	})
	if errors.Is(err, registry.ErrNotFound) {
		return nil
	}
	return err
}
