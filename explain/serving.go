package explain

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
	"github.com/weftnet/weft/service/counts"
)

// Serving is how nodes serve a Service: where it is reached, and who gets connections from
// where.
type Serving struct {
	// Service is "namespace/name".
	Service string `json:"service"`
	// Unserved says why no node is to serve it, as where it is left to another program; empty where nodes are.
	Unserved string `json:"unserved,omitempty"`
	// On are the nodes, those together that serve it alike.
	On []ServingNodes `json:"on"`
	// Announced is which node answers on the link for each of the addresses that nodes announce.
	Announced []Announced `json:"announced,omitempty"`
	// Uncounted are the nodes whose counts are not among those told, and why.
	Uncounted []Uncounted `json:"uncounted,omitempty"`
	// Problems are what the Service's own conditions say, which of its ports nobody is behind, and of
	// which nodes it is not known that they do as is said here.
	Problems []string `json:"problems,omitempty"`
}

// ServingNodes are nodes that serve a Service alike.
type ServingNodes struct {
	Nodes     []string         `json:"nodes"`
	Frontends []ServedFrontend `json:"frontends"`
	Sets      []ServedSet      `json:"sets"`
}

// ServedFrontend is where a Service is reached.
type ServedFrontend struct {
	// Address is empty for the node's own addresses, of the family of Family, 4 or 6.
	Address netip.Addr `json:"address,omitzero"`
	Family  int        `json:"family"`
	// Port is with its protocol, as "80/tcp"; empty for all that is no other frontend's.
	Port string `json:"port,omitempty"`
	// From is "inside" or "outside", empty for both.
	From string `json:"from,omitempty"`
	// Set names the backends, one of ServingNodes.Sets.
	Set string `json:"set,omitempty"`
	// Here says that the node itself answers, in place of backends.
	Here bool `json:"here,omitempty"`
	// Otherwise is what becomes of a connection where there are none: "refused" or "dropped".
	Otherwise string `json:"otherwise"`
	// Affinity is for how long a client stays with a backend, as "3h0m0s"; empty for not at all.
	Affinity string `json:"affinity,omitempty"`
	// Masquerade are those who are seen as the node: "endpoints", which are pods, "strangers", which are
	// all others, or both.
	Masquerade string `json:"masquerade,omitempty"`
	// Sources are the prefixes of those who may use it; everybody where there are none.
	Sources []string `json:"sources,omitempty"`
	// Counts is what became of what was sent there, on all nodes that told; nil where none did.
	Counts *counts.Outcome `json:"counts,omitempty"`
}

// ServedSet is who is behind frontends.
type ServedSet struct {
	Name     string          `json:"name"`
	Backends []ServedBackend `json:"backends"`
}

// ServedBackend is one of those.
type ServedBackend struct {
	At netip.AddrPort `json:"at"`
	// Who is "pod shop/web" or "node node1"; empty for one that is not known.
	Who  string `json:"who,omitempty"`
	Node string `json:"node,omitempty"`
	// Weight is how often it gets a new connection, beside the others; none with 0.
	Weight uint16 `json:"weight"`
	// Given is how many new connections all nodes that told gave it; nil where none told.
	Given *uint64 `json:"given,omitempty"`
}

// Serving returns how nodes serve a Service, by their plans: all of them, or one alone where that is
// named. It fails where there is no such Service, or that node has no plan. Plans are
// compiled of what concerns the Service, and one by one, so that a large cluster does not take long. Of one that
// no node is to serve it returns why, and all else that is known of it.
func (c Cluster) Serving(key registry.Key, only string) (Serving, error) {
	svc := registry.GetAs[*corev1.Service](c.Objects, api.Service, key)
	if svc == nil {
		_, err := c.service(key)
		return Serving{}, err
	}
	s := Serving{Service: key.String(), On: []ServingNodes{}}
	if only != "" && c.Objects.Get(api.Node, registry.Key{Name: only}) == nil {
		return s, fmt.Errorf("there is no node %q (see: weft status)", only)
	}
	c.Objects = service.Concerning(c.Objects, key, Config(c.Objects, c.Plugin).Spec.DNS.ServiceKey())
	p, err := c.planner()
	if err != nil {
		return s, err
	}
	s.Unserved = unservedBy(svc, p.config.Spec.ServiceProxy)
	for _, condition := range svc.Status.Conditions {
		if strings.HasPrefix(condition.Type, api.GroupVersion.Group+"/") && condition.Status != "True" {
			s.Problems = append(s.Problems, fmt.Sprintf("%s: %s", condition.Type, condition.Message))
		}
	}
	c.announce(&s, svc)
	if s.Unserved != "" {
		return s, nil
	}
	if len(api.ClusterAddresses(svc)) == 0 {
		s.Problems = append(s.Problems, "it has got no address in the cluster yet, and no node serves it")
		return s, nil
	}
	owners := make(map[netip.Addr]string)
	for node := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		if only != "" && node.Name != only || c.Agentless(node) {
			continue
		}
		p.compile(node.Name)
		// A node knows of more than objects tell, as of pods that have none.
		for _, problem := range api.NodeProblems(node) {
			s.blame(svc, problem)
		}
		made := p.plans[node.Name]
		if made == nil {
			s.Problems = append(s.Problems, fmt.Sprintf("node %s has no address, and no plan", node.Name))
			continue
		}
		switch {
		case c.Lost[node.Name]:
			s.Problems = append(s.Problems, fmt.Sprintf("node %s: %s", node.Name, agentLost))
		case !Reported(node):
			s.Problems = append(s.Problems, "no agent has reported on "+node.Name)
		case !InSync(node):
			s.Problems = append(s.Problems, fmt.Sprintf("node %s does not do all that its plan says: see weft status", node.Name))
		}
		for _, doubt := range p.doubts[node.Name] {
			s.Problems = append(s.Problems, "node "+doubt)
		}
		for _, problem := range p.problems[node.Name] {
			s.blame(svc, Told(node.Name, problem))
		}
		as := c.servedBy(made, key, owners)
		if slices.ContainsFunc(as.Frontends, func(f ServedFrontend) bool { return f.Here }) {
			for _, problem := range api.NodeProblems(node) {
				if plugin.RefusesNames(node.Name, problem) {
					s.Problems = append(s.Problems, fmt.Sprintf("node %s: %s", node.Name, problem.Message))
				}
			}
		}
		s.add(node.Name, as)
		delete(p.plans, node.Name)
	}
	if only != "" && len(s.On) == 0 {
		return s, fmt.Errorf("no node %q serves it (see: weft status)", only)
	}
	s.findEmpty(key, only != "")
	return s, nil
}

// findEmpty adds which ports have no endpoint that gets connections, of those that the nodes hand on to
// endpoints. Where a node itself answers, nobody else need be there. one says that a node alone is told
// of: then what is for endpoints of that node says nothing of others.
func (s *Serving) findEmpty(key registry.Key, one bool) {
	gets := make(map[string]bool) // by the name of the port
	for _, on := range s.On {
		if slices.ContainsFunc(on.Frontends, func(f ServedFrontend) bool { return f.Here }) {
			return
		}
		for _, set := range on.Sets {
			of, port, _ := strings.Cut(set.Name, ":")
			if !one || of != service.LocalSet(key) {
				gets[port] = gets[port] || slices.ContainsFunc(set.Backends, func(b ServedBackend) bool { return b.Weight > 0 })
			}
		}
	}
	var empty []string
	for _, port := range slices.Sorted(maps.Keys(gets)) {
		if !gets[port] {
			empty = append(empty, port)
		}
	}
	switch n := len(empty); {
	case n == 0:
	case n == len(gets):
		s.Problems = append(s.Problems, "no endpoint of it gets connections")
	default:
		s.Problems = append(s.Problems, "no endpoint gets connections at its ports that are called "+printable.Few(empty, 0))
	}
}

// unservedBy says why no node is to serve a Service, where proxy does all that say nothing else; "" where
// nodes are to.
func unservedBy(svc *corev1.Service, proxy string) string {
	name, labelled := svc.Labels[service.ProxyName]
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName && svc.Spec.ExternalName == "":
		return "it is to stand for a host name, and has none: its spec.externalName is empty"
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return "it stands for the host name " + printable.Line(svc.Spec.ExternalName) + ", and no node serves it"
	case isHeadless(svc):
		return "it is headless: its name stands for its endpoints, and no node serves it"
	case labelled && name == "":
		return fmt.Sprintf("its label %s names no program, and no node serves it: take the label off", service.ProxyName)
	case labelled:
		return fmt.Sprintf("its label %s leaves it to %s, and no node serves it: ask that", service.ProxyName, service.LeftTo(svc))
	case proxy == api.KubeProxy:
		return "it is left to " + proxy + ", and no node serves it: ask that"
	}
	return ""
}

// blame adds a problem if it is the Service's or that of one of its addresses, and not said yet:
// what its conditions say is what all nodes find.
func (s *Serving) blame(svc *corev1.Service, p api.Problem) {
	said := func(known string) bool { return strings.HasSuffix(known, p.Message) }
	is := p.Kind == api.Service.Kind && p.Namespace+"/"+p.Name == s.Service
	if p.Kind == api.AddressGrantKind.Kind {
		is = slices.ContainsFunc(svc.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool {
			a, err := netip.ParseAddr(i.IP)
			return err == nil && p.Name == api.GrantName(a)
		})
	}
	if is && !slices.ContainsFunc(s.Problems, said) {
		s.Problems = append(s.Problems, p.Message)
	}
}

// add adds how a node serves.
func (s *Serving) add(node string, as ServingNodes) {
	for i, other := range s.On {
		if reflect.DeepEqual(other.Frontends, as.Frontends) && reflect.DeepEqual(other.Sets, as.Sets) {
			s.On[i].Nodes = append(s.On[i].Nodes, node)
			return
		}
	}
	as.Nodes = []string{node}
	s.On = append(s.On, as)
}

// servedBy returns what a plan has of a Service. owners are those of backends' addresses that are
// known, which many plans have alike.
func (c Cluster) servedBy(p *plan.Plan, key registry.Key, owners map[netip.Addr]string) (as ServingNodes) {
	origin := "Service " + key.String()
	sets := make(map[string]bool)
	// Where all of the node's own addresses of a family have a frontend, that is told once.
	own, first := make(map[string]int), make(map[string]int)
	addresses := firstOfEach(p.Local.Addresses)
	for k, svc := range p.Services.All() {
		if svc.Origin != origin {
			continue
		}
		f := ServedFrontend{Address: k.Address, Family: 6, From: string(k.From), Set: svc.Set, Here: svc.Here, Otherwise: "refused", Masquerade: svc.Masquerade.String()}
		if k.Address.Is4() {
			f.Family = 4
		}
		if svc.Otherwise == plan.Silence {
			f.Otherwise = "dropped"
		}
		if svc.Affinity > 0 {
			f.Affinity = svc.Affinity.String()
		}
		if k.Protocol != plan.AnyProtocol {
			f.Port = fmt.Sprintf("%d/%s", k.Port, k.Protocol)
		}
		if svc.Sources != "" {
			f.Sources = []string{}
			for source := range p.Sources.From(plan.SourceKey{Network: k.Network, Name: svc.Sources}) {
				if source.Network != k.Network || source.Name != svc.Sources {
					break
				}
				f.Sources = append(f.Sources, source.Prefix.String())
			}
		}
		if slices.Contains(addresses, k.Address) {
			alike := f
			alike.Address = netip.Addr{}
			text := fmt.Sprint(alike)
			if own[text]++; own[text] == 1 {
				first[text] = len(as.Frontends)
			}
		}
		as.Frontends = append(as.Frontends, f)
		sets[svc.Set] = svc.Set != ""
	}
	as.Frontends = once(as.Frontends, addresses, own, first)
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name, is := range sets {
			if is && !yield(name) {
				return
			}
		}
	}) {
		set := ServedSet{Name: name, Backends: []ServedBackend{}}
		of, _, _ := strings.Cut(name, ":")
		local := of == service.LocalSet(key)
		for k, b := range p.BackendsOf(plan.DefaultNetwork, name) {
			if local && b.Weight == 0 && b.Node != p.Local.Node {
				continue // so are all of other nodes
			}
			who, known := owners[k.Address]
			if !known {
				if who = c.owner(k.Address).Name; who == k.Address.String() {
					who = ""
				}
				owners[k.Address] = who
			}
			one := ServedBackend{At: netip.AddrPortFrom(k.Address, k.Port), Who: who, Node: b.Node, Weight: b.Weight}
			set.Backends = append(set.Backends, one)
		}
		as.Sets = append(as.Sets, set)
	}
	return as
}

// once returns frontends with those in one that all addresses of a family have. own is how many
// of the addresses have one, by what it says beside the address, and first where the first is.
func once(all []ServedFrontend, addresses []netip.Addr, own, first map[string]int) (told []ServedFrontend) {
	have := make(map[int]int)
	for _, a := range addresses {
		have[map[bool]int{true: 4, false: 6}[a.Is4()]]++
	}
	for i, f := range all {
		alike := f
		alike.Address = netip.Addr{}
		text := fmt.Sprint(alike)
		switch {
		case !slices.Contains(addresses, f.Address) || own[text] < have[f.Family]:
			told = append(told, f)
		case first[text] == i:
			told = append(told, alike)
		}
	}
	return told
}

// String writes it for people.
func (s Serving) String() string {
	var b strings.Builder
	printable.Fprintf(&b, "Service %s\n", s.Service)
	if s.Unserved != "" {
		printable.Fprintf(&b, "\n%s\n", s.Unserved)
	}
	for _, on := range s.On {
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		printable.Fprintf(w, "\non %s:\n", printable.Few(on.Nodes, 0))
		if len(on.Frontends) == 0 {
			fmt.Fprintln(w, "  it is not reached")
		}
		for _, f := range on.Frontends {
			fmt.Fprintf(w, "  %s\n", f)
		}
		for _, set := range on.Sets {
			printable.Fprintf(w, "  backends of %s:\n", set.Name)
			for _, backend := range set.Backends {
				fmt.Fprintf(w, "    %s\n", backend)
			}
			if len(set.Backends) == 0 {
				fmt.Fprintln(w, "    none")
			}
		}
		w.Flush()
	}
	for i, a := range s.Announced {
		if i == 0 {
			b.WriteByte('\n')
		}
		printable.Fprintf(&b, "%s\n", a)
	}
	for i, u := range s.Uncounted {
		if i == 0 {
			b.WriteByte('\n')
		}
		printable.Fprintf(&b, "%s\n", u)
	}
	for i, problem := range s.Problems {
		if i == 0 {
			b.WriteByte('\n')
		}
		printable.Fprintf(&b, "problem: %s\n", problem)
	}
	return b.String()
}

// masqueraded are those who are seen as the node, as people are told. The node itself is in any case, but
// where a plan says that strangers are not.
var masqueraded = map[string]string{
	plan.FromEndpoints.String(): "pods",
	plan.FromStrangers.String(): "clients that are no pods",
	plan.FromAll.String():       "all clients",
}

// String writes a frontend in columns.
func (f ServedFrontend) String() string {
	at, port := fmt.Sprintf("the node's IPv%d addresses", f.Family), "all other ports"
	if f.Address.IsValid() {
		at = f.Address.String()
	}
	if f.Port != "" {
		port = f.Port
	}
	if f.From != "" {
		port += " from " + f.From
	}
	what := f.Otherwise
	switch {
	case f.Here:
		what = "the node itself answers"
	case f.Set != "":
		what = "to " + printable.Line(f.Set) + ", else " + f.Otherwise
	}
	if f.Affinity != "" {
		what += "; a client stays for " + f.Affinity
	}
	if who := masqueraded[f.Masquerade]; who != "" {
		what += "; the node's address becomes the source of " + who
	}
	switch {
	case f.Sources == nil:
	case len(f.Sources) == 0:
		what += "; for nobody"
	default:
		what += "; for " + printable.Few(f.Sources, 0) + " alone"
	}
	if f.Counts != nil {
		what += "; " + told(*f.Counts)
	}
	return fmt.Sprintf("%s\t%s\t%s", at, port, what)
}

// String writes a backend in columns.
func (b ServedBackend) String() string {
	what := "gets connections"
	switch {
	case b.Weight == 0:
		what = "keeps connections, and gets none"
	case b.Weight > 1:
		what = fmt.Sprintf("gets connections, with weight %d", b.Weight)
	}
	if b.Given != nil {
		what += "; " + told(counts.Outcome{Given: *b.Given})
	}
	who := b.Who
	if b.Node != "" {
		who = strings.TrimSpace(who + " on " + b.Node)
	}
	who = printable.Line(who)
	return fmt.Sprintf("%s\t%s\t%s", b.At, who, what)
}
