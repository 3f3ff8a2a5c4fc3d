package change

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Change is a Question whose plug-ins were found.
type Change struct {
	To                    plugin.Plugin // nil where nodes go on as they do
	Beside, Before, After []plugin.Plugin
	// Only is nil but where it is asked what others have left behind.
	Only plugin.Plugin
	// Enforcers returns the names of all plug-ins that enforce a kind of policies. It may be
	// nil: then none is named.
	Enforcers func(*registry.Kind) []string
}

// Find returns the change that a question is of. It fails where there is not the plug-in
// that nodes are to use, or do alone; of others that there are not nobody knows anything.
func (q Question) Find(named func(string) (plugin.Plugin, error)) (c Change, err error) {
	if q.To != "" {
		if c.To, err = named(q.To); err != nil {
			return Change{}, err
		}
	}
	if q.Only != "" {
		if c.Only, err = named(q.Only); err != nil {
			return Change{}, err
		}
	}
	for _, list := range []struct {
		names []string
		found *[]plugin.Plugin
	}{{q.Beside, &c.Beside}, {q.Before, &c.Before}, {q.After, &c.After}} {
		for _, name := range list.names {
			if p, err := named(name); err == nil {
				*list.found = append(*list.found, p)
			}
		}
	}
	return c, nil
}

// Kinds are those that Against reads, and all that nodes will under the plug-in that the
// cluster changes to: where one cannot be read, as there is no such kind, the change comes
// to nothing. Pods are not among them, as they are many.
func (c Change) Kinds() []*registry.Kind {
	kinds := c.ineffective()
	if c.Only != nil {
		return without(api.MadeKinds, c.Only.Kinds()...)
	}
	leaving := c.leaving()
	if c.To == nil && len(c.Beside) == 0 && len(leaving) == 0 {
		return kinds
	}
	kinds = slices.Concat([]*registry.Kind{api.Node}, kinds, c.effective())
	read := func(more []*registry.Kind) {
		for _, k := range more {
			if k != api.Pod && !slices.Contains(kinds, k) {
				kinds = append(kinds, k)
			}
		}
	}
	if c.To != nil {
		// All plug-ins have Services, or none has.
		read(plugin.Without(c.To, plugin.Services).Kinds())
	}
	surveyed := slices.Concat(c.Beside, leaving)
	if len(leaving) > 0 {
		surveyed = append(surveyed, c.After...)
	}
	for _, p := range surveyed {
		read(plugin.BaseOf(p).Kinds())
	}
	return kinds
}

// Against returns what speaks against the change. Pods among the objects, which Kinds
// does not name, are counted where they would be cut off.
func (c Change) Against(config *api.ClusterConfig, objects registry.Objects) Objections {
	var o Objections
	if c.Only != nil {
		o.Made = make(map[*registry.Kind][]string)
		for _, k := range c.Kinds() {
			for object := range objects.All(k) {
				if api.MadeForNode(object) {
					o.Made[k] = append(o.Made[k], object.GetName())
				}
			}
		}
		return o
	}
	under := ""
	if c.To != nil {
		under = " under " + c.To.Name()
	}
	for _, k := range c.ineffective() {
		if names := namesOf(objects, k); len(names) > 0 {
			of, which := "them", ""
			if len(names) == 1 {
				of = "it"
			}
			if c.Enforcers != nil {
				which = " (" + strings.Join(c.Enforcers(k), ", ") + ")"
			}
			o.Refusals = append(o.Refusals, fmt.Sprintf("%d %s, which %s enforces, would be without effect%s (%s): change to a plug-in that enforces %s%s, or delete %s",
				len(names), plural(k, len(names)), enforcer(c.Before, k).Name(), under, printable.Few(names, 0), of, which, of))
		}
	}
	lands := survey{config, objects, make(map[string]land)}
	for _, p := range c.leaving() {
		o.Refusals = append(o.Refusals, c.cutOff(p, lands)...)
	}
	o.Clashes = clashes(c.Beside, lands)
	if c.To == nil {
		return o
	}
	var hasty []string
	for n := range registry.Each[*corev1.Node](objects, api.Node) {
		if api.KnowsNoStages(n) {
			hasty = append(hasty, n.Name)
		}
	}
	if len(hasty) > 0 {
		o.Refusals = append(o.Refusals, fmt.Sprintf("agents of an earlier version of Weft change as soon as they are asked, before others are ready, and these are such: %s; upgrade them first, or delete Nodes that are gone",
			printable.Few(hasty, 0)))
	}
	for _, k := range c.effective() {
		if names := namesOf(objects, k); len(names) > 0 {
			comes := "come"
			if len(names) == 1 {
				comes = "comes"
			}
			o.Effects = append(o.Effects, fmt.Sprintf("%d %s %s into force with %s: %s", len(names), plural(k, len(names)), comes, c.To.Name(), printable.Few(names, 0)))
		}
	}
	to := lands.land(c.To)
	over := to.covers(objects)
	o.Refusals = append(o.Refusals, over...)
	if len(over) == 0 { // else most of what lacks comes of that
		o.Lacks = to.lacks
	}
	o.Effects = append(o.Effects, c.otherAddresses(to, lands)...)
	for _, p := range c.Beside {
		if plugin.BaseOf(p).Name() != plugin.BaseOf(c.To).Name() {
			other := lands.land(p)
			o.Refusals = append(append(o.Refusals, to.clashes(other, objects)...), to.mayClash(other)...)
		}
	}
	return o
}

// clashes returns which addresses two machines have by plug-ins that are loaded beside each
// other. A change is not begun where there would be such; they may come up at any moment
// later, as whoever gives subnets by one may know nothing of the others.
func clashes(loaded []plugin.Plugin, lands survey) (out []string) {
	bases := plugin.BasesOf(loaded)
	for i, p := range bases {
		for _, other := range bases[:i] {
			out = append(out, lands.land(p).clashes(lands.land(other), lands.objects)...)
		}
	}
	return out
}

// leaving returns the plug-ins whose networks there are before the change and not after it,
// of those that may have machines in there that are no nodes. One that was but loading is
// not among them: nobody was to rely on it.
func (c Change) leaving() []plugin.Plugin {
	after := plugin.BasesOf(c.After)
	return slices.DeleteFunc(plugin.BasesOf(c.Before), func(p plugin.Plugin) bool {
		_, admits := p.(plugin.Admitter)
		return !admits || slices.ContainsFunc(after, func(a plugin.Plugin) bool { return a.Name() == p.Name() })
	})
}

// cutOff says which machines that are no nodes have subnets by a plug-in that leaves, and
// none after the change. Nodes are asked whether they are ready, and whether they need the
// plug-in still; for these nobody answers.
func (c Change) cutOff(leaves plugin.Plugin, lands survey) []string {
	var after []string
	stays := make(map[netip.Addr]bool)
	admits := false
	for _, p := range plugin.BasesOf(c.After) {
		after = append(after, p.Name())
		maps.Copy(stays, lands.land(p).at)
		if _, ok := p.(plugin.Admitter); ok {
			admits = true
		}
	}
	has := lands.land(leaves)
	machines := make(map[string]bool)
	var subnets []string
	for _, p := range slices.SortedFunc(maps.Keys(has.outsiders), comparePrefixes) {
		if o := has.outsiders[p]; !slices.ContainsFunc(o.addresses, func(a netip.Addr) bool { return stays[a] }) {
			machines[o.name] = true
			subnets = append(subnets, fmt.Sprintf("%s with %s of %s", o.name, p, o.origin))
		}
	}
	if len(machines) == 0 {
		return nil
	}
	names := cmp.Or(strings.Join(after, ", "), "any other")
	who, what, do := "1 machine that is no node has a subnet", "it", "delete the objects of those that may be cut off"
	if n := len(machines); n > 1 {
		who, what = fmt.Sprintf("%d machines that are no nodes have subnets", n), "they"
	}
	if admits {
		do = fmt.Sprintf("give each another subnet under %s, at the same address, or %s", names, do)
	}
	return []string{fmt.Sprintf("%s under %s and none under %s, so %s would lose all pods (%s): %s", who, leaves.Name(), names, what, printable.Few(subnets, 0), do)}
}

// survey has each plug-in's land taken once.
type survey struct {
	config  *api.ClusterConfig
	objects registry.Objects
	lands   map[string]land
}

func (s survey) land(p plugin.Plugin) land {
	name := plugin.BaseOf(p).Name()
	l, taken := s.lands[name]
	if !taken {
		l = landOf(p, s.config, begun{s.objects, plugin.BaseOf(p)})
		s.lands[name] = l
	}
	return l
}

// begun are objects beside what a plug-in begins with where there is none.
type begun struct {
	registry.Objects
	by plugin.Plugin
}

// begins returns what the plug-in makes of a kind, nil where there is such an object, or
// where it makes none.
func (b begun) begins(k *registry.Kind) registry.Object {
	p, ok := b.by.(plugin.Beginner)
	if !ok {
		return nil
	}
	o := p.Begins(k)
	if o == nil || b.Objects.Get(k, registry.KeyOf(o)) != nil {
		return nil
	}
	return o
}

// Get implements registry.Objects.
func (b begun) Get(k *registry.Kind, key registry.Key) registry.Object {
	if o := b.begins(k); o != nil && registry.KeyOf(o) == key {
		return o
	}
	return b.Objects.Get(k, key)
}

// All implements registry.Objects.
func (b begun) All(k *registry.Kind) iter.Seq[registry.Object] {
	o := b.begins(k)
	if o == nil {
		return b.Objects.All(k)
	}
	all := slices.Collect(b.Objects.All(k))
	i, _ := slices.BinarySearchFunc(all, registry.KeyOf(o), func(o registry.Object, key registry.Key) int { return registry.KeyOf(o).Compare(key) })
	return slices.Values(slices.Insert(all, i, o))
}

func namesOf(objects registry.Objects, k *registry.Kind) []string {
	var names []string
	for o := range objects.All(k) {
		names = append(names, registry.KeyOf(o).String())
	}
	return names
}

func plural(k *registry.Kind, n int) string {
	if n == 1 {
		return k.Singular
	}
	return k.Plural
}

// ineffective returns the kinds of policies that are enforced before the change and not
// after it.
func (c Change) ineffective() []*registry.Kind { return enforcedOnly(c.Before, c.After) }

// effective returns the kinds of policies that are enforced after the change and not
// before it.
func (c Change) effective() []*registry.Kind { return enforcedOnly(c.After, c.Before) }

// enforcedOnly returns the kinds of policies that some plug-ins enforce and others do not.
func enforcedOnly(by, not []plugin.Plugin) []*registry.Kind {
	return slices.DeleteFunc(slices.Clone(api.PolicyKinds), func(k *registry.Kind) bool {
		return enforcer(by, k) == nil || enforcer(not, k) != nil
	})
}

// enforcer is the first of some plug-ins that enforces a kind of policies, nil for none.
func enforcer(plugins []plugin.Plugin, k *registry.Kind) plugin.Plugin {
	for _, p := range plugins {
		if slices.Contains(p.Kinds(), k) {
			return p
		}
	}
	return nil
}

// land is who has which addresses under a plug-in.
type land struct {
	plugin string
	// of is the machine that has a subnet: a node, or another by what it is known.
	of map[netip.Prefix]string
	// ranges are what the plug-in gives subnets from, in order.
	ranges []netip.Prefix
	// landless are the nodes without a subnet.
	landless []string
	lacks    []string
	// adopts says that the plug-in gives nodes the subnets that they have by others.
	adopts bool
	// at are the addresses of the machines that have subnets, and outsiders those of them
	// that are no nodes, by these subnets.
	at        map[netip.Addr]bool
	outsiders map[netip.Prefix]outsider
}

// outsider is a machine that is no node: what it is known by, which object gives it a
// subnet, and where it is.
type outsider struct {
	name, origin string
	addresses    []netip.Addr
}

// landOf reads it off the plan of a machine that is no node, which tells of all that are
// known to others: the plans of all nodes would cost the square of their number, and what a
// node says of itself, as with which prefixes it is on-link or by which configuration it
// goes, must not decide for the others. Of those that are not known, as they do not do the
// plug-in yet, it asks their own.
func landOf(p plugin.Plugin, config *api.ClusterConfig, objects registry.Objects) land {
	p = plugin.BaseOf(p)
	_, adopts := p.(plugin.Adopter)
	admitter, admits := p.(plugin.Admitter)
	l := land{plugin: p.Name(), of: make(map[netip.Prefix]string), adopts: adopts,
		at: make(map[netip.Addr]bool), outsiders: make(map[netip.Prefix]outsider)}
	nodes := make(map[netip.Addr]string)
	landless := make(map[string]*corev1.Node)
	more6 := 0 // by how many nodes more IPv6 comes first than IPv4
	for n := range registry.Each[*corev1.Node](objects, api.Node) {
		landless[n.Name] = n
		for i, a := range api.NodeAddresses(n) {
			switch {
			case i > 0:
			case a.Is6():
				more6++
			default:
				more6--
			}
			if had, twice := nodes[a]; twice && had != n.Name {
				nodes[a] = "" // which of the two it is of nobody knows
			} else {
				nodes[a] = n.Name
			}
		}
	}
	if len(nodes) == 0 {
		return l // nobody has an address, so nothing has a way
	}
	_, works := p.(plugin.ClusterRunner)
	told := make(map[string]bool)
	compile := func(n plugin.Node, objects registry.Objects) *plan.Plan {
		made, problems := p.Compile(plugin.Input{Config: config, Objects: objects, Node: n})
		for _, problem := range problems {
			if problem.Told || problem.Passing || problem.Kind == nil || problem.Key.Name == "" || works && objects.Get(problem.Kind, problem.Key) == nil {
				continue // said of what is done all the same, or as soon as nodes do the plug-in, the machine's own, or made by the plug-in's work for the cluster
			}
			if text := problem.String(); !told[text] {
				told[text] = true
				l.lacks = append(l.lacks, text)
			}
		}
		for _, pool := range made.Local.Pools {
			l.of[pool.Prefix] = cmp.Or(l.of[pool.Prefix], n.Name)
		}
		return made
	}
	all := &apart{Objects: objects, nodes: make(map[string]bool), known: make(map[*registry.Kind]map[registry.Key]bool), common: make(map[*registry.Kind][]registry.Object)}
	kinds := p.Kinds()
	for _, k := range kinds {
		all.known[k] = make(map[registry.Key]bool)
	}
	made := compile(noNode(more6 > 0), objects)
	for k, r := range made.Routes.All() {
		if k.Network != plan.DefaultNetwork || r.Peer() == "" || r.EndpointsOnly || k.Prefix.IsSingleIP() {
			continue
		}
		peer := made.Peer(r.Peer())
		at := slices.Clone(peer.Addresses)
		for _, end := range peer.Ends {
			at = append(at, end.VTEP)
		}
		nodeless := landless[r.Peer()] == nil
		for _, a := range at {
			l.at[a] = true
			if _, node := nodes[a]; node {
				nodeless = false
			}
		}
		if kind, key, ok := plugin.ParseOrigin(kinds, r.Origin); ok {
			all.known[kind][key] = true
			if o := objects.Get(kind, key); admits && nodeless && o != nil && admitter.Admits(o) {
				l.outsiders[k.Prefix] = outsider{r.Peer(), r.Origin, at}
			}
		}
		l.of[k.Prefix] = r.Peer()
		for _, a := range peer.Addresses {
			if n := nodes[a]; n != "" && landless[r.Peer()] == nil {
				l.of[k.Prefix] = n // a peer that is known by its address
				break
			}
		}
	}
	for name := range landless {
		all.nodes[name] = true
	}
	for _, name := range l.of {
		delete(landless, name)
	}
	for _, name := range slices.Sorted(maps.Keys(landless)) {
		if n := landless[name]; len(api.NodeAddresses(n)) > 0 {
			compile(plugin.Node{Name: n.Name, Addresses: api.NodeAddresses(n), Prefixes: api.OnLink(n)}, alone{all, registry.KeyOf(n)})
		}
	}
	has := make(map[string]bool)
	for _, name := range l.of {
		has[name] = true
	}
	for n := range objects.All(api.Node) {
		if !has[n.GetName()] {
			l.landless = append(l.landless, n.GetName())
		}
	}
	for k, r := range made.Routes.All() {
		if k.Network == plan.DefaultNetwork && r.Way == plan.ToDrop && l.of[k.Prefix] == "" {
			l.ranges = append(l.ranges, k.Prefix)
		}
	}
	return l
}

// SubnetsOf returns the subnets that machines have under a plug-in, by their names, in any
// order. It costs what one plan does, and a little for each node that others do not know yet.
func SubnetsOf(p plugin.Plugin, config *api.ClusterConfig, objects registry.Objects) map[string][]netip.Prefix {
	of := make(map[string][]netip.Prefix)
	for prefix, name := range landOf(p, config, objects).of {
		of[name] = append(of[name], prefix)
	}
	return of
}

// noNode is a machine without a name, at addresses that no machine can have (RFC 1112,
// section 4; RFC 6666), of which that of IPv6 may come first. It is on-link with everyone,
// as who is not with others may be so in part.
func noNode(v6First bool) plugin.Node {
	addresses := []netip.Addr{netip.MustParseAddr("240.0.0.1"), netip.MustParseAddr("100::1")}
	if v6First {
		slices.Reverse(addresses)
	}
	return plugin.Node{Addresses: addresses, Prefixes: []netip.Prefix{
		netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}}
}

// apart are objects of which those of single nodes can be told from what is nobody's: their
// Nodes, what is named like these, and what is known to say where others are.
type apart struct {
	registry.Objects
	nodes  map[string]bool
	known  map[*registry.Kind]map[registry.Key]bool
	common map[*registry.Kind][]registry.Object
}

// isOf reports whether an object is a node's, or that of a machine whose subnet is known.
func (a *apart) isOf(k *registry.Kind, key registry.Key) bool {
	return key.Namespace == "" && a.nodes[key.Name] || a.known[k][key]
}

// commonOf returns the objects of a kind that are nobody's.
func (a *apart) commonOf(k *registry.Kind) []registry.Object {
	all, there := a.common[k]
	if !there {
		for o := range a.Objects.All(k) {
			if !a.isOf(k, registry.KeyOf(o)) {
				all = append(all, o)
			}
		}
		a.common[k] = all
	}
	return all
}

// alone are objects without those of other nodes, as only one's subnet is asked for: to go
// through all, for each node, would cost the square of their number.
type alone struct {
	*apart
	node registry.Key
}

// All implements registry.Objects.
func (o alone) All(k *registry.Kind) iter.Seq[registry.Object] {
	all := o.commonOf(k)
	if own := o.Objects.Get(k, o.node); own != nil {
		i, _ := slices.BinarySearchFunc(all, o.node, func(o registry.Object, key registry.Key) int { return registry.KeyOf(o).Compare(key) })
		all = slices.Insert(slices.Clone(all), i, own)
	}
	return slices.Values(all)
}

// Get implements registry.Objects.
func (o alone) Get(k *registry.Kind, key registry.Key) registry.Object {
	if key != o.node && o.isOf(k, key) {
		return nil
	}
	return o.Objects.Get(k, key)
}

// clashes says which addresses two machines would have, of those that nodes have under
// another plug-in.
func (l land) clashes(other land, objects registry.Objects) []string {
	var out []string
	var pods map[string][]netip.Addr
	clash := func(theirs, ours netip.Prefix) {
		if l.of[ours] == other.of[theirs] {
			return // it keeps them
		}
		if pods == nil {
			pods = podsOf(objects)
		}
		out = append(out, fmt.Sprintf("%s is the subnet of %s under %s%s, and %s that of %s under %s, so addresses would be given twice: give %s another subnet under %s",
			theirs, other.of[theirs], other.plugin, within(pods[other.of[theirs]], theirs), ours, l.of[ours], l.plugin, l.of[ours], l.plugin))
	}
	for p := range other.of {
		for q := range containing(p, l.of) {
			clash(p, q)
		}
	}
	for q := range l.of {
		for p := range containing(q, other.of) {
			if p != q { // else it was met
				clash(p, q)
			}
		}
	}
	slices.Sort(out)
	return out
}

// mayClash says from which ranges nodes that have no subnet yet could get one that nodes
// have under another plug-in.
func (l land) mayClash(other land) (out []string) {
	if len(l.landless) == 0 || l.adopts {
		return nil
	}
	for _, r := range l.ranges {
		var taken []string
		for _, p := range slices.SortedFunc(maps.Keys(other.of), comparePrefixes) {
			if r.Overlaps(p) && l.of[p] != other.of[p] {
				taken = append(taken, p.String()+" of "+other.of[p])
			}
		}
		if len(taken) > 0 {
			out = append(out, fmt.Sprintf("%s gives subnets from %s, in which nodes have %s under %s, and not all nodes have theirs yet (%s), so addresses could be given twice: configure one of the plug-ins with a range of its own",
				l.plugin, r, printable.Few(taken, 0), other.plugin, printable.Few(l.landless, 0)))
		}
	}
	return out
}

// containing yields the prefixes of a map that hold all of p, p among them.
func containing(p netip.Prefix, of map[netip.Prefix]string) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for bits := range p.Bits() + 1 {
			wider, err := p.Addr().Prefix(bits)
			if _, there := of[wider]; err == nil && there && !yield(wider) {
				return
			}
		}
	}
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// podsOf returns the addresses of nodes' pods, as far as these are among the objects.
func podsOf(objects registry.Objects) map[string][]netip.Addr {
	of := make(map[string][]netip.Addr)
	for pod := range registry.Each[*corev1.Pod](objects, api.Pod) {
		if pod.Spec.HostNetwork || api.Ended(pod) {
			continue
		}
		for _, ip := range pod.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil {
				of[pod.Spec.NodeName] = append(of[pod.Spec.NodeName], a)
			}
		}
	}
	return of
}

// within says how many pods' addresses are of a subnet, if any are.
func within(addresses []netip.Addr, p netip.Prefix) string {
	n := len(slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return !p.Contains(a) }))
	switch n {
	case 0:
		return ""
	case 1:
		return " with a pod"
	}
	return fmt.Sprintf(" with %d pods", n)
}
