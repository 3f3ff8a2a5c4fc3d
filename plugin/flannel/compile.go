package flannel

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/subnet"
)

// The bounds of an MTU in bytes: what each host must take (RFC 791, RFC 8200),
// and what fits the field in a header.
const (
	minMTU   = 576
	minMTUV6 = 1280
	maxMTU   = 65535
)

// Compile implements plugin.Plugin.
func (p Plugin) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	p = p.withDefaults()
	c := newCompiler(in, etcdWords)
	c.config = reference{p.Config, registry.Key{Name: ConfigName}}
	c.leases, c.problems = p.readLeases(in.Objects)
	reserved, _ := readReservations(in.Objects, p.Reservations)
	v, known := c.chooseSettings(reserved)
	if known {
		c.own = v.own()
		c.surrendered = c.own != nil && v.surrenders(c.own) != ""
	}
	// Why the node takes none over the nodes' network the configuration's problem says.
	if known && c.own == nil && v.over() == nil {
		c.problems = append(c.problems, plugin.Problem{Message: fmt.Sprintf("node %s has no lease below %s yet", in.Node.Name, p.Leases.Layout.Prefix)})
	}
	if c.own != nil && c.own.reserved != nil && !c.own.reserved.names(in.Node.Addresses) {
		c.problem(c.own, "it is reserved for a node %s at %s, and this node has none of that; others leave it out: make the reservation anew", c.own.reserved.Node, c.own.reserved)
	}
	if known && c.own != nil && !c.settings.Bears(c.own.subnet) {
		if c.surrendered {
			c.passing(c.own, "%s gives no such subnet, and no pod lives on it: the node takes another", p.Config.Layout.Prefix)
		} else {
			c.problem(c.own, "%s gives no such subnet; the node keeps it while pods live on it: drain the node to move it", p.Config.Layout.Prefix)
		}
	}
	return c.compile(known)
}

// reference names the object that says something.
type reference struct {
	kind *registry.Kind
	key  registry.Key
}

func (r reference) String() string { return r.kind.Kind + " " + r.key.String() }

// words are what a form of the plug-in calls the parts of a lease.
type words struct {
	backendType, publicIP, publicIPv6, data, dataV6 string
	// otherSubnet says how a node gets another subnet.
	otherSubnet string
}

// end returns what the parts are called by which a node is reached over a family.
func (w words) end(v6 bool) (publicIP, data string) {
	if v6 {
		return w.publicIPv6, w.dataV6
	}
	return w.publicIP, w.data
}

var etcdWords = words{"BackendType", "PublicIP", "PublicIPv6", "BackendData", "BackendV6Data", "delete the lease"}

// compiler is one run of Compile, of either form of the plug-in.
type compiler struct {
	in       plugin.Input
	words    words
	b        *plan.Builder
	problems []plugin.Problem
	leases   []*lease
	own      *lease
	// config is where settings come from.
	config   reference
	settings Settings
	// surrendered says that the node is to give its lease back.
	surrendered bool
	// unconfigured says that nobody told the cluster's network: it is what
	// nodes have.
	unconfigured bool
	// nodesAreLeases says that the plug-in's form is that of Kubernetes.
	nodesAreLeases bool
	// others and whose are plugin.Node.Elsewhere.
	others *subnet.Set
	whose  func(netip.Prefix) string
	machines
	claims
}

func newCompiler(in plugin.Input, w words) *compiler {
	c := &compiler{in: in, words: w, b: plan.NewBuilder(in.Previous)}
	c.others, c.whose = in.Node.Elsewhere()
	return c
}

// compile states all that follows from the leases and, where they are known,
// the settings.
func (c *compiler) compile(known bool) (*plan.Plan, []plugin.Problem) {
	c.settle()
	plugin.PutNode(c.b, c.in.Node)
	if known {
		c.putLocal()
	}
	c.problems = append(c.problems, plugin.PutEndpoints(c.b, c.in.Node)...)
	if known {
		c.putCluster()
		for _, l := range c.leases {
			if l != c.own {
				c.putPeer(l)
			}
		}
		c.machines.put(c.b)
		c.putUnconfigured()
		c.putStranded()
	}
	return c.b.Build(), c.problems
}

// lease is a node's hold on a subnet and what the node says of itself,
// wherever that is written.
type lease struct {
	at     reference
	subnet Subnet
	Attributes
	err error // why what the node says could not be read
	// Lease is the object in etcd; nil of a Node's lease.
	*Lease
	// node is the Node whose podCIDRs the lease is; nil of a lease in etcd.
	node *corev1.Node
	// reserved is what an administrator said of the lease's node; nil where
	// none did.
	reserved *reservation
	// born is when the registry was first told of the lease: of two the lesser
	// is the older.
	born int64
}

// readLeases returns the leases whose names can be read, in key order, and why
// others cannot.
func (p Plugin) readLeases(objects registry.Objects) ([]*lease, []plugin.Problem) {
	var leases []*lease
	k := p.Leases
	reservations, problems := readReservations(objects, p.Reservations)
	for o := range registry.Each[*Lease](objects, k) {
		subnet, err := ParseSubnet(o.Name)
		if err != nil {
			problems = append(problems, plugin.Problem{Kind: k, Key: registry.KeyOf(o), Message: err.Error()})
			continue
		}
		a, err := ParseAttributes(o.Spec)
		leases = append(leases, &lease{at: reference{k, registry.KeyOf(o)}, subnet: subnet, Attributes: a, err: err, Lease: o, reserved: reservations[subnet], born: o.Created})
	}
	return leases, problems
}

// compare orders leases by whose word counts: what is reserved goes before what is not,
// and the older before the younger.
func (l *lease) compare(o *lease) int {
	rank := func(l *lease) int {
		if l.reserved != nil {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(rank(l), rank(o)), cmp.Compare(l.born, o.born), l.at.key.Compare(o.at.key))
}

// displaces reports whether the lease has a part of another's subnet, and is right.
func (l *lease) displaces(o *lease) bool { return l.subnet.Overlaps(o.subnet) && l.compare(o) < 0 }

// heldBy reports whether the lease says that a node with these addresses has it.
func (l *lease) heldBy(addresses []netip.Addr) bool {
	return slices.Contains(addresses, l.PublicIP) || slices.Contains(addresses, l.PublicIPv6)
}

// owner is who looks for a lease of its own.
type owner struct {
	name      string
	addresses []netip.Addr
	// pods are the addresses of its pods.
	pods []netip.Addr
	// nodes are all nodes by name, with their addresses.
	nodes map[string][]netip.Addr
	// others are the Nodes of others.
	others []*corev1.Node
}

func ownerOf(n plugin.Node, objects registry.Objects) owner {
	o := owner{name: n.Name, addresses: n.Addresses, nodes: map[string][]netip.Addr{}}
	for _, e := range n.Endpoints {
		o.pods = append(o.pods, e.Addresses...)
	}
	for node := range registry.Each[*corev1.Node](objects, api.Node) {
		o.nodes[node.Name] = api.NodeAddresses(node)
		if node.Name != o.name {
			o.others = append(o.others, node)
		}
	}
	return o
}

// networks returns the networks that others' agents say their nodes are on, of each as many
// as of its addresses at most. Only who looks for a subnet asks, so they are not read before.
func (o owner) networks() []netip.Prefix {
	var all []netip.Prefix
	for _, n := range o.others {
		on := api.OnLink(n)
		all = append(all, on[:min(len(on), api.MaxNodeAddresses)]...)
	}
	return all
}

// within returns the first node by its name, be it this one, that has an address in a
// prefix, and the address; "" where there is none. So all nodes name the same one.
func (o owner) within(p netip.Prefix) (a netip.Addr, who string) {
	for _, name := range append(slices.Sorted(maps.Keys(o.nodes)), o.name) {
		addresses := o.nodes[name]
		if name == o.name {
			addresses = o.addresses
		}
		if i := slices.IndexFunc(addresses, p.Contains); i >= 0 {
			return addresses[i], name
		}
	}
	return a, ""
}

// wrote reports whether the lease says that the node was the last to write it.
// Whoever may write the lease can make it say so.
func (o owner) wrote(l *lease) bool { return l.Weft != nil && l.Weft.Node == o.name }

// had reports whether the lease may be the node's from when it had another
// address, which no other node has.
func (o owner) had(l *lease) bool {
	if !o.wrote(l) {
		return false
	}
	for name, addresses := range o.nodes {
		if name != o.name && l.heldBy(addresses) {
			return false
		}
	}
	return true
}

// mayTake reports whether the lease names an address of the node, and is not
// that of another node which has the same address.
func (o owner) mayTake(l *lease) bool {
	return l.heldBy(o.addresses) && (l.Weft == nil || !l.heldBy(o.nodes[l.Weft.Node]) || o.wrote(l))
}

// reserved reports whether the lease is the node's by an administrator's word.
func (o owner) reserved(l *lease) bool { return l.reserved != nil && l.reserved.Node == o.name }

// proof is what speaks for a lease's being a node's; the least counts most.
type proof int

const (
	reservedFor    proof = iota
	reservedInVain       // the configuration does not allow it
	livedOn              // the node's pods live on it
	livedOnStill         // and the configuration does not allow it
	addressed            // it names an address of the node, and no other node
	named                // it names the node, and an address that the node may have had
	renamed              // it names an address of the node, and a node that has not this address
	livedInVain          // pods live on it, and an older lease has a part of it
	// What the configuration does not allow is only to be given back.
	leftAddressed
	leftNamed
	none
)

// proves returns what speaks for a lease's being the node's by the settings, where known.
// What is reserved for another node is none of its leases, whatever it says. Nor is what
// would make an address of the node itself one for pods, unless the configuration does.
func (o owner) proves(l *lease, s *Settings) proof {
	addresses, names := o.mayTake(l), o.had(l)
	allowed := s == nil || s.Allows(l.subnet)
	switch {
	case o.reserved(l) && allowed:
		return reservedFor
	case o.reserved(l):
		return reservedInVain
	case l.reserved != nil:
		return none
	case (addresses || o.wrote(l)) && slices.ContainsFunc(o.pods, l.subnet.contains):
		if allowed {
			return livedOn
		}
		return livedOnStill
	case addresses && allowed && (l.Weft == nil || o.wrote(l)):
		return addressed
	case names && allowed:
		return named
	case addresses && allowed:
		return renamed
	case slices.ContainsFunc(o.addresses, l.subnet.contains):
		return none
	case addresses:
		return leftAddressed
	case names:
		return leftNamed
	}
	return none
}

// find returns the node's lease, or nil: that for which most speaks. Of several that are
// reserved for it, it is the first, by which the reservation is made again, too. Of others
// it is the one that counts most for all nodes, the oldest: whoever may make leases can
// make one that names the node and its address, but none older than what the node has.
// What overlaps with an older one, as what pods of a lost lease live on may, leads nobody
// to the node: it goes before nothing that the node can use.
func (o owner) find(leases []*lease, s *Settings) *lease {
	var mine *lease
	most := none
	for _, l := range leases {
		p := o.proves(l, s)
		if (p == livedOn || p == livedOnStill) && slices.ContainsFunc(leases, func(other *lease) bool { return other.displaces(l) }) {
			p = livedInVain
		}
		if p < most || p == most && p > reservedInVain && p < none && l.compare(mine) < 0 {
			mine, most = l, p
		}
	}
	return mine
}

func (c *compiler) problem(l *lease, format string, args ...any) {
	c.problems = append(c.problems, plugin.Problem{Kind: l.at.kind, Key: l.at.key, Message: fmt.Sprintf(format, args...)})
}

// passing states a problem that an agent puts right by itself.
func (c *compiler) passing(l *lease, format string, args ...any) {
	c.problem(l, format, args...)
	c.problems[len(c.problems)-1].Passing = true
}

// outdated states that a lease does not say what whoever keeps it would write by now. Weft's
// agents do so by themselves, once their nodes do the plug-in.
func (c *compiler) outdated(l *lease, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if l.isWefts() {
		c.passing(l, "%s; the agent of its node writes it anew", text)
	} else {
		c.problem(l, "%s; restart flanneld on its node", text)
	}
}

// isWefts reports whether an agent of Weft's keeps the lease. Where Nodes are leases it is
// known by what it says of plug-ins.
func (l *lease) isWefts() bool {
	return l.Weft != nil || l.node != nil && l.node.Annotations[api.PluginsAnnotation] != ""
}

func (c *compiler) configProblem(format string, args ...any) {
	c.problems = append(c.problems, plugin.Problem{Kind: c.config.kind, Key: c.config.key, Message: fmt.Sprintf(format, args...)})
}

// readSettings reads the configuration from the registry.
func readSettings(objects registry.Objects, k *registry.Kind) (Settings, error) {
	o := registry.GetAs[*Config](objects, k, registry.Key{Name: ConfigName})
	if o == nil {
		return Settings{}, fmt.Errorf(`key %s is missing: write it, or apply %s %s with the same as its spec (weft apply -f), for example {"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`, k.Layout.Prefix, k.Kind, ConfigName)
	}
	return ParseSettings(o.Spec)
}

// chooseSettings finds what the node goes by: what the configuration says, or else what
// it said when the node's lease was last written. It returns what the node's steps follow
// from, and false when neither is there.
func (c *compiler) chooseSettings(reserved reservations) (view, bool) {
	v := view{node: c.in.Node, owner: c.owner(), leases: c.leases, reserved: reserved, forced: forced(c.in)}
	settings, err := readSettings(c.in.Objects, c.config.kind)
	if err == nil {
		for _, text := range settings.Ignored {
			c.configProblem("%s", text)
		}
		c.settings, v.settings = settings, settings
		return v, true
	}
	if c.own = v.owner.find(c.leases, nil); c.own != nil && c.own.Weft != nil {
		if former, formerErr := ParseSettings(c.own.Weft.Config); formerErr == nil {
			c.configProblem("%v (until then the node goes by what it said before)", err)
			c.settings, v.settings = former, former
			return v, true
		}
	}
	c.configProblem("%v", err)
	return v, false
}

// families returns an address of each family that the cluster uses.
func (s Settings) families() []netip.Addr {
	var out []netip.Addr
	for _, r := range []Range{s.V4, s.V6} {
		if !r.IsZero() {
			out = append(out, r.Network.Addr())
		}
	}
	return out
}

// firstOf returns the first address of the family, or the zero Addr.
func firstOf(addresses []netip.Addr, v6 bool) netip.Addr {
	for _, a := range addresses {
		if a.Is6() == v6 {
			return a
		}
	}
	return netip.Addr{}
}

// port is the UDP port of the overlay.
func (s Settings) port(config *api.ClusterConfig) uint16 {
	if p := config.Spec.VXLANPort; p > 0 && p <= 65535 {
		return uint16(p)
	}
	return s.Port
}

// mtu returns the MTU of pods' interfaces in bytes, 0 where it is not known: what was
// asked for if the node's network can carry it, else what it can. An error says why it
// is another than was asked for.
func (s Settings) mtu(config *api.ClusterConfig, node plugin.Node) (int, error) {
	least, overhead := minMTU, s.overhead()
	if !s.V6.IsZero() {
		least = minMTUV6
	}
	mtu, what := 0, ""
	switch m := config.Spec.MTU; {
	case m != 0 && (m < least || m > maxMTU):
		return least, fmt.Errorf("ClusterConfig %s: spec.mtu %d is not between %d and %d; %d is used", api.DefaultName, m, least, maxMTU, least)
	case m != 0:
		mtu, what = m, fmt.Sprintf("ClusterConfig %s: spec.mtu %d", api.DefaultName, m)
	case s.MTU != 0:
		mtu, what = s.MTU-overhead, fmt.Sprintf("Backend.MTU %d", s.MTU)
	case node.MTU == 0:
		return 0, nil
	default:
		mtu, what = node.MTU-overhead, fmt.Sprintf("the MTU of the node's interface, %d,", node.MTU)
	}
	if mtu < least {
		return least, fmt.Errorf("%s leaves pods' interfaces %d bytes, and %d are the least; raise it", what, mtu, least)
	}
	if most := max(node.MTU-overhead, least); node.MTU != 0 && mtu > most {
		return most, fmt.Errorf("%s is more than the node can carry, whose pods get %d bytes: raise the MTU of its network by %d, or lower it", what, most, mtu-most)
	}
	return min(mtu, maxMTU), nil
}

func (c *compiler) owner() owner { return ownerOf(c.in.Node, c.in.Objects) }

// putLocal states the node's own part: its pools, tunnels and MTU.
func (c *compiler) putLocal() {
	s := c.settings
	var err error
	if c.b.Local.MTU, err = s.mtu(c.in.Config, c.in.Node); err != nil {
		c.problems = append(c.problems, plugin.Problem{Message: err.Error()})
	}
	c.putTunnels()
	if c.own == nil {
		return
	}
	for _, other := range c.leases {
		switch {
		case other == c.own || !other.subnet.Overlaps(c.own.subnet):
		case c.own.Lease != nil && other.displaces(c.own):
			c.problem(c.own, "its subnet overlaps with %s of %s, which is older or reserved; the node keeps it while pods live on it: drain the node to move it", other.subnet, other.at)
		default:
			c.problem(other, "its subnet %s overlaps with that of node %s, %s; %s", other.subnet, c.in.Node.Name, c.own.subnet, c.words.otherSubnet)
		}
	}
	for _, prefix := range c.own.subnet.Prefixes() {
		if c.uses(prefix) {
			o, _ := c.overlay(prefix) // without one the pool names none
			plugin.PutPool(c.b, prefix, o.name, c.origin(c.own))
			c.b.Local.Pools[len(c.b.Local.Pools)-1].Closed = c.surrendered
		}
	}
	c.putReached()
}

// putCluster states what holds for the network as a whole.
func (c *compiler) putCluster() {
	origin := c.config.String()
	for i, r := range []Range{c.settings.V4, c.settings.V6} {
		if r.IsZero() {
			continue
		}
		if clash := slices.IndexFunc(c.near(), r.Network.Overlaps); clash >= 0 {
			// What the cluster does not know in there may well be a machine.
			what := fmt.Sprintf("overlaps with %s, which node %s is in", c.near()[clash], c.in.Node.Name)
			if a, who := c.owner().within(r.Network); who != "" {
				what = fmt.Sprintf("holds addresses of nodes (%s of %s)", a, who)
			}
			c.configProblem("the network %s %s; use one that is free", r.Network, what)
			plugin.PutDirect(c.b, r.Network, origin)
		} else {
			plugin.PutCluster(c.b, r.Network, origin)
		}
		multicast := []netip.Prefix{netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("ff00::/8")}[i]
		plugin.PutDirect(c.b, multicast, origin)
		plugin.PutExit(c.b, r.Network.Addr(), origin)
	}
}

// putUnconfigured states that the cluster's network is what nodes have, be they
// known to be reachable or not, where nobody has told what it is.
func (c *compiler) putUnconfigured() {
	if !c.unconfigured {
		return
	}
	for _, l := range c.leases {
		for _, prefix := range l.subnet.Prefixes() {
			if c.uses(prefix) && !slices.ContainsFunc(c.near(), prefix.Overlaps) {
				plugin.PutCluster(c.b, prefix, c.origin(l))
			}
		}
	}
}

// near returns the prefixes that the node itself is in, without those of its
// own pods. One that holds all addresses is no network apart from the pods'.
func (c *compiler) near() []netip.Prefix {
	out := hosts(c.in.Node.Addresses)
	for _, p := range c.in.Node.Prefixes {
		if p.Bits() > 0 && (c.own == nil || !slices.ContainsFunc(c.own.subnet.Prefixes(), p.Overlaps)) {
			out = append(out, p)
		}
	}
	return out
}

// putNodeDirect states that nodes see pods' own addresses.
func (c *compiler) putNodeDirect(addresses []netip.Addr, origin string) {
	for _, h := range hosts(addresses) {
		if c.uses(h) {
			plugin.PutDirect(c.b, h, origin)
		}
	}
}

// uses reports whether the cluster has addresses of the prefix's family.
func (c *compiler) uses(p netip.Prefix) bool {
	if p.Addr().Is6() {
		return !c.settings.V6.IsZero()
	}
	return !c.settings.V4.IsZero()
}

func hosts(addresses []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range addresses {
		if a.IsValid() {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return out
}

func (c *compiler) origin(l *lease) string { return l.at.String() }

func key(p netip.Prefix) plan.RouteKey {
	return plan.RouteKey{Network: plan.DefaultNetwork, Prefix: p}
}
