// Package announce says which addresses a node may answer for on the link, and who comes
// before it. It is a function of the cluster's objects, of what the node's data plane has in
// force, and of the node's own interfaces.
//
// Addresses are those of AddressGrants, which Services have, and VirtualAddresses, which a node
// has itself. Which of the candidates has one, they find out among themselves on the link: see
// package election below, whose frames package wire writes and package link sends.
//
// Start reading at Candidates.
package announce

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weftnet/weft/announce/election"
	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// Kinds are the kinds that are read.
var Kinds = []*registry.Kind{api.AddressPoolKind, api.AddressGrantKind, api.VirtualAddressKind, api.Service, api.EndpointSlice, api.Node}

// MaxAddresses is how many addresses a node is a candidate for at most.
const MaxAddresses = api.MaxAnswered

// MaxChecks is how many ports nodes try at most for VirtualAddresses.
const MaxChecks = 64

// Grades of candidates. One that has to be replaced soon is better than none.
const (
	gradeReady uint8 = iota
	// gradeEnding is that of a node whose endpoints are all about to end.
	gradeEnding
	// gradeLeaving is that of a node that is about to go.
	gradeLeaving
)

// Link is one of the node's interfaces.
type Link struct {
	Name string
	// Prefixes are those that it is on-link with.
	Prefixes []netip.Prefix
	// Metrics are the least ones of default routes through it, of IPv4 and of IPv6; -1 for none.
	Metrics [2]int
}

// Self is what a node knows of itself.
type Self struct {
	Node  string
	Links []Link
	// Serves reports whether the data plane hands on connections that come from outside for an
	// address to a Service.
	Serves func(netip.Addr, registry.Key) bool
	// Has are the addresses that the node's kernel has, but those that it has for VirtualAddresses,
	// and on which interface.
	Has map[netip.Addr]string
	// Inside says whose an address in the cluster is, by the plan in force, "" for nobody's.
	Inside func(netip.Addr) string
	// Answers reports whether a program on the node accepts connections at a port, one of Checks.
	Answers func(port uint16) bool
}

// Candidate is an address that the node may answer for.
type Candidate struct {
	election.Candidacy
	// Link is the interface on whose link it answers.
	Link string
	// Virtual says that the node is to have the address itself.
	Virtual bool
}

// Problem is what cannot be done of an object.
type Problem struct {
	Kind    *registry.Kind
	Key     registry.Key
	Message string
}

// NobodyMay is in the message of a problem of a VirtualAddress for which no node may answer.
const NobodyMay = "no node answers for it by this object"

func (p Problem) String() string { return fmt.Sprintf("%s %s: %s", p.Kind.Kind, p.Key, p.Message) }

// Candidates returns what a node may answer for, and what of the objects cannot be done. It
// costs in proportion to the number of addresses, times that of nodes, and, where an address
// is of a Service that only nodes with its endpoints serve, or there are VirtualAddresses, to
// that of Services and EndpointSlices.
func Candidates(objects registry.Objects, self Self) (map[netip.Addr]Candidate, []Problem) {
	c := &candidates{Self: self, objects: objects, found: make(map[netip.Addr]Candidate), of: make(map[string][]rated)}
	c.readNodes()
	// Those that administrators write come first: who makes Services in a namespace takes none of
	// them away.
	c.virtual()
	c.own()
	if c.me != nil {
		c.grants()
	}
	c.choose()
	return c.found, c.problems
}

// rated is a node that may answer for an address.
type rated struct {
	name  string
	grade uint8
}

// candidates collects them.
type candidates struct {
	Self
	objects registry.Objects
	// nodes are those that may answer at all, me is the node itself, nil where it may not.
	nodes []*corev1.Node
	me    *corev1.Node
	// of are the nodes of an AddressPool.
	of       map[string][]rated
	found    map[netip.Addr]Candidate
	problems []Problem
	// offers are what the node could answer for, VirtualAddresses first.
	offers []offer
}

// offer is an address that a node could answer for, by one of several nodes.
type offer struct {
	address netip.Addr
	link    string
	of      []rated
	me      rated
	// namespace is that of the Service, "" for a VirtualAddress.
	namespace string
	virtual   bool
	// turn is how many of the namespace come before it, and score the node's own for it.
	turn  int
	score uint64
}

func (c *candidates) problem(kind *registry.Kind, key registry.Key, format string, args ...any) {
	c.problems = append(c.problems, Problem{kind, key, fmt.Sprintf(format, args...)})
}

// MayAnnounce reports whether a node may answer for addresses at all.
func MayAnnounce(n *corev1.Node) bool {
	_, excluded := n.Labels[api.NotAnnouncingLabel]
	return !excluded
}

func (c *candidates) readNodes() {
	for n := range registry.Each[*corev1.Node](c.objects, api.Node) {
		if !MayAnnounce(n) {
			continue
		}
		c.nodes = append(c.nodes, n)
		if n.Name == c.Node {
			c.me = n
		}
	}
}

// rate returns the nodes that may answer for what selects them.
func (c *candidates) rate(selects func(labels map[string]string) bool) (all []rated) {
	for _, n := range c.nodes {
		if !selects(n.Labels) {
			continue
		}
		r := rated{n.Name, gradeReady}
		if api.IsLeaving(n) {
			r.grade = gradeLeaving
		}
		all = append(all, r)
	}
	return all
}

// own tells of granted addresses that the node's kernel has itself, as somebody gave it them: it
// answers for them on its links, whoever is to.
func (c *candidates) own() {
	for _, a := range slices.SortedFunc(maps.Keys(c.Has), netip.Addr.Compare) {
		key := registry.Key{Name: api.GrantName(a)}
		if g := registry.GetAs[*api.AddressGrant](c.objects, api.AddressGrantKind, key); g != nil {
			c.problem(api.AddressGrantKind, key, "%s has %s on its own interface %s, and answers for it whichever node is to, so that some find Service %s there alone, or not at all: take it from that interface, or out of AddressPool %s",
				c.Node, a, c.Has[a], g.Spec.Service(), g.Spec.Pool)
		}
	}
}

// grants adds the addresses of AddressGrants that are served here.
func (c *candidates) grants() {
	type local struct {
		address netip.Addr
		of      []rated
	}
	locals := make(map[registry.Key][]local)
	for g := range registry.Each[*api.AddressGrant](c.objects, api.AddressGrantKind) {
		a := g.Address()
		svc := registry.GetAs[*corev1.Service](c.objects, api.Service, g.Spec.Service())
		pool := registry.GetAs[*api.AddressPool](c.objects, api.AddressPoolKind, registry.Key{Name: g.Spec.Pool})
		if !a.IsValid() || svc == nil || pool != nil && !pool.OnLink() || !g.IsOf(svc) || !c.Serves(a, g.Spec.Service()) {
			continue
		}
		of, known := c.of[g.Spec.Pool]
		if !known {
			// A Service keeps its address when the pool is deleted, and so all nodes answer for it
			// then, as for one of a pool that says nothing.
			selects := func(map[string]string) bool { return true }
			if pool != nil {
				selects = pool.MayAnnounce
			}
			of = c.rate(selects)
			c.of[g.Spec.Pool] = of
		}
		if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
			locals[registry.KeyOf(svc)] = append(locals[registry.KeyOf(svc)], local{a, of})
			continue
		}
		c.add(a, of, svc.Namespace, api.AddressGrantKind, registry.KeyOf(g))
	}
	if len(locals) == 0 {
		return
	}
	ends := c.endpoints(func(key registry.Key) bool { return locals[key] != nil })
	for _, key := range slices.SortedFunc(maps.Keys(locals), registry.Key.Compare) {
		for _, l := range locals[key] {
			var of []rated
			for _, r := range l.of {
				grade, has := ends[end{key, l.address.Is6(), r.name}]
				if r.grade = max(r.grade, grade); has {
					of = append(of, r)
				}
			}
			c.add(l.address, of, key.Namespace, api.AddressGrantKind, registry.Key{Name: api.GrantName(l.address)})
		}
	}
}

// end is a Service's endpoints of a family on a node.
type end struct {
	service registry.Key
	six     bool
	node    string
}

// endpoints returns the nodes that have endpoints of Services, and the grade that they have by
// these.
func (c *candidates) endpoints(asked func(registry.Key) bool) map[end]uint8 {
	found := make(map[end]uint8)
	for s := range registry.Each[*discoveryv1.EndpointSlice](c.objects, api.EndpointSlice) {
		key := registry.Key{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
		if !asked(key) {
			continue
		}
		for _, e := range s.Endpoints {
			if e.NodeName == nil {
				continue
			}
			is := func(b *bool) bool { return b == nil || *b }
			at := end{key, s.AddressType == discoveryv1.AddressTypeIPv6, *e.NodeName}
			switch _, known := found[at]; {
			case is(e.Conditions.Ready):
				found[at] = gradeReady
			case !known && is(e.Conditions.Serving) && e.Conditions.Terminating != nil && *e.Conditions.Terminating:
				found[at] = gradeEnding
			}
		}
	}
	return found
}

// virtual adds VirtualAddresses, the oldest first, so that who writes one later takes none away.
func (c *candidates) virtual() {
	all := oldest(c.objects)
	if len(all) == 0 {
		return
	}
	taken, said, tried := c.taken(), c.said(), Checks(c.objects)
	before := make(map[netip.Addr]string, len(all))
	for _, v := range all {
		key, a := registry.KeyOf(v), v.Address()
		if !a.IsValid() {
			c.problem(api.VirtualAddressKind, key, "spec.address: %q is no address at which others reach one machine: write one such as 192.0.2.7", v.Spec.Address)
			continue
		}
		if whose := cmp.Or(before[a], taken[a], c.Inside(a)); whose != "" {
			c.problem(api.VirtualAddressKind, key, "spec.address: %s is %s, and "+NobodyMay+": choose another", a, whose)
			continue
		}
		before[a] = "also that of VirtualAddress " + v.Name
		if who := said[a]; who != "" {
			c.problem(api.VirtualAddressKind, key, "spec.address: %s says that it has %s, too, and may get what is meant for the node that has it: choose another", who, a)
		}
		if check := v.Spec.Check; check != nil && !tried[uint16(check.Port)] {
			c.problem(api.VirtualAddressKind, key, "spec.check.port: %d is not tried, as older VirtualAddresses have %d others tried, and "+NobodyMay+": take one of these ports, or leave spec.check out", check.Port, MaxChecks)
			continue
		}
		of := c.rate(v.MayHave)
		if c.me == nil || !slices.ContainsFunc(of, func(r rated) bool { return r.name == c.Node }) {
			continue
		}
		if check := v.Spec.Check; check != nil && !c.Answers(uint16(check.Port)) {
			continue
		}
		c.add(a, of, "", api.VirtualAddressKind, key)
	}
}

// oldest returns VirtualAddresses, the oldest first.
func oldest(objects registry.Objects) (all []*api.VirtualAddress) {
	for v := range registry.Each[*api.VirtualAddress](objects, api.VirtualAddressKind) {
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b *api.VirtualAddress) int {
		return cmp.Or(a.CreationTimestamp.Time.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// Checks returns the ports that nodes try for VirtualAddresses: those of the oldest, MaxChecks
// at most.
func Checks(objects registry.Objects) map[uint16]bool {
	ports := make(map[uint16]bool)
	for _, v := range oldest(objects) {
		if v.Spec.Check != nil && len(ports) < MaxChecks {
			ports[uint16(v.Spec.Check.Port)] = true
		}
	}
	return ports
}

// taken returns what says whose an address is by what the controller and nodes write, "" for
// nobody's. One of an AddressPool is nobody's until a Service is given it: the controller gives
// none that a VirtualAddress has.
func (c *candidates) taken() map[netip.Addr]string {
	whose := make(map[netip.Addr]string)
	for g := range registry.Each[*api.AddressGrant](c.objects, api.AddressGrantKind) {
		whose[g.Address()] = "granted to Service " + g.Spec.Service().String()
	}
	// A node that is down does not defend its address, and another would take it.
	for n := range registry.Each[*corev1.Node](c.objects, api.Node) {
		addresses, _ := api.AddressesOf(n, corev1.NodeInternalIP, corev1.NodeExternalIP)
		for _, a := range addresses {
			whose[a] = "an address of Node " + n.Name
		}
	}
	return whose
}

// said returns which Service says that it has an address. Anybody may who writes Services, so
// it takes no VirtualAddress from anybody.
func (c *candidates) said() map[netip.Addr]string {
	who := make(map[netip.Addr]string)
	note := func(text, by string) {
		if a, err := netip.ParseAddr(text); err == nil && who[a.Unmap()] == "" {
			who[a.Unmap()] = by
		}
	}
	for svc := range registry.Each[*corev1.Service](c.objects, api.Service) {
		by := "Service " + registry.KeyOf(svc).String()
		note(svc.Spec.ClusterIP, by)
		for _, text := range slices.Concat(svc.Spec.ClusterIPs, svc.Spec.ExternalIPs) {
			note(text, by)
		}
		for _, i := range svc.Status.LoadBalancer.Ingress {
			note(i.IP, by)
		}
	}
	return who
}

// add adds an address if the node is among those that may answer for it: that of a Service in a
// namespace, or, where that is empty, a VirtualAddress.
func (c *candidates) add(a netip.Addr, of []rated, namespace string, kind *registry.Kind, key registry.Key) {
	i := slices.IndexFunc(of, func(r rated) bool { return r.name == c.Node })
	if i < 0 {
		return
	}
	link, there := Place(a, c.Links)
	if !there {
		c.problem(kind, key, "%s has no interface that is on-link with %s, nor a default route of its family, and does not answer for it: give the node an address next to it, or select other nodes", c.Node, a)
		return
	}
	c.offers = append(c.offers, offer{address: a, link: link, of: of, me: of[i], namespace: namespace, virtual: kind == api.VirtualAddressKind})
}

// choose takes what there is room for: VirtualAddresses in their order, and then one address of
// each namespace after the other, so that who has many takes none from who has few. Of those of
// a namespace a node takes the ones that it is best for, so that other nodes take others.
func (c *candidates) choose() {
	if len(c.offers) > MaxAddresses {
		virtual := 0
		for virtual < len(c.offers) && c.offers[virtual].virtual {
			virtual++
		}
		services := c.offers[virtual:]
		for i := range services {
			services[i].score = election.Score(services[i].address, c.Node)
		}
		slices.SortFunc(services, func(x, y offer) int {
			return cmp.Or(cmp.Compare(x.score, y.score), x.address.Compare(y.address))
		})
		turns := make(map[string]int)
		for i := range services {
			services[i].turn = turns[services[i].namespace]
			turns[services[i].namespace]++
		}
		slices.SortStableFunc(services, func(x, y offer) int { return cmp.Compare(x.turn, y.turn) })
		left := c.offers[MaxAddresses:]
		c.offers = c.offers[:MaxAddresses]
		c.problem(api.Node, registry.Key{Name: c.Node}, "%s answers for %d addresses at most, and leaves %d to other nodes, among them %s: have more nodes answer, or select other nodes for some addresses", c.Node, MaxAddresses, len(left), left[0].address)
	}
	for _, o := range c.offers {
		c.found[o.address] = Candidate{election.Candidacy{Grade: o.me.grade, Before: before(o.address, o.of, o.me)}, o.link, o.virtual}
	}
}

// before returns the first of the nodes that come before one for an address.
func before(a netip.Addr, of []rated, me rated) []string {
	type scored struct {
		rated
		score uint64
	}
	order := func(x, y scored) int {
		return cmp.Or(cmp.Compare(x.grade, y.grade), cmp.Compare(x.score, y.score), strings.Compare(x.name, y.name))
	}
	mine := scored{me, election.Score(a, me.name)}
	var first []scored
	for _, r := range of {
		s := scored{r, election.Score(a, r.name)}
		if order(s, mine) >= 0 {
			continue
		}
		i, _ := slices.BinarySearchFunc(first, s, order)
		if i == election.MaxBefore {
			continue
		}
		first = slices.Insert(first, i, s)
		first = first[:min(len(first), election.MaxBefore)]
	}
	var names []string
	for _, s := range first {
		names = append(names, s.name)
	}
	return names
}

// Place returns on which link an address is answered for: that of the interface whose own
// network it is in, of several the smallest, or else that of the default route.
func Place(a netip.Addr, links []Link) (name string, ok bool) {
	bits := -1
	for _, l := range links {
		for _, p := range l.Prefixes {
			if p.Contains(a) && !p.IsSingleIP() && (p.Bits() > bits || p.Bits() == bits && l.Name < name) {
				name, bits = l.Name, p.Bits()
			}
		}
	}
	if bits >= 0 {
		return name, true
	}
	family := 0
	if a.Is6() {
		family = 1
	}
	least := -1
	for _, l := range links {
		if m := l.Metrics[family]; m >= 0 && (least < 0 || m < least || m == least && l.Name < name) {
			name, least = l.Name, m
		}
	}
	return name, least >= 0
}
