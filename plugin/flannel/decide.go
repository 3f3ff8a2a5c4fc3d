package flannel

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/subnet"
)

// view is all that a node's next step follows from.
type view struct {
	settings Settings
	// config is the configuration that settings come from.
	config []byte
	node   plugin.Node
	owner  owner
	leases []*lease
	// reserved are what administrators said of subnets, whether or not they
	// have leases.
	reserved reservations
	// due says that the node's lease is to be written again to live on.
	due bool
	// forced says that the cluster changes its plug-in whatever speaks against it.
	forced bool
	// former is the subnet that subnet.env names.
	former Subnet
	pick   func(n int) int
}

// verb is what to do with a lease.
type verb string

const (
	keep    verb = "keep"
	create  verb = "create"
	update  verb = "update"
	release verb = "release"
)

// step is what a node has to do next. object is the lease to keep, write or
// delete.
type step struct {
	verb   verb
	object *Lease
	subnet Subnet
	reason string
}

// candidates is from how many free subnets, at most, one is picked.
const candidates = 100

// decide says what to do next. Nodes that decide at the same time may pick the
// same subnet; that only one creates its lease is for the registry to see to.
// Where they pick subnets that overlap, under different names, both create theirs.
// Whoever sees his own lease sees the older ones, too, and so the younger goes, whenever
// its node looks, and before it has had a pod.
func (v view) decide() (step, error) {
	attributes, err := v.settings.attributes(v.node)
	if err != nil {
		return step{}, err
	}
	attributes.Weft = &Stamp{Node: v.node.Name, Config: v.config}
	if own := v.own(); own != nil {
		if why := v.surrenders(own); why != "" {
			return step{release, own.Lease, own.subnet, why}, nil
		}
		object := own.DeepCopyObject().(*Lease)
		object.Spec = attributes.Merge(own.Spec)
		switch {
		case !bytes.Equal(object.Spec, fieldsOf(own.Spec).encode()):
			return step{update, object, own.subnet, "what it says of the node has changed"}, nil
		case v.due && own.Expires:
			return step{update, object, own.subnet, "it is to live on"}, nil
		}
		return step{keep, own.Lease, own.subnet, ""}, nil
	}
	if other := v.double(attributes); other != "" && !v.isVouchedFor(attributes) {
		return step{}, fmt.Errorf("node %s has the address of node %s; delete it if it is gone, else give each an address of its own", other, v.node.Name)
	}
	if err := v.over(); err != nil {
		return step{}, compileTells(err)
	}
	subnet, reason, err := v.choose()
	if err != nil {
		return step{}, err
	}
	object := &Lease{Expires: true, Spec: attributes.Merge(nil)}
	object.Name = subnet.String()
	return step{create, object, subnet, reason}, nil
}

// double returns the first of the other nodes that have an address by which the node is
// reached, "" for none.
func (v view) double(a Attributes) string {
	for _, name := range slices.Sorted(maps.Keys(v.owner.nodes)) {
		if addresses := v.owner.nodes[name]; name != v.node.Name && (slices.Contains(addresses, a.PublicIP) || slices.Contains(addresses, a.PublicIPv6)) {
			return name
		}
	}
	return ""
}

// isVouchedFor reports whether an administrator has said that the node is at its addresses:
// what others say of these counts less then.
func (v view) isVouchedFor(a Attributes) bool {
	for _, r := range v.reserved {
		if r.Node == v.node.Name && r.names([]netip.Addr{a.PublicIP}) && (!a.PublicIPv6.IsValid() || r.names([]netip.Addr{a.PublicIPv6})) {
			return true
		}
	}
	return false
}

// surrenders says why the node is to give its lease back; empty where it is not to. No pod
// gets addresses of it then.
func (v view) surrenders(own *lease) string {
	if !own.Expires {
		return ""
	}
	return v.unfit(own)
}

// unfit says why a lease cannot be the node's, as long as no pod lives on it; empty where
// it can. One that the configuration does not allow is no longer needed for pods that are
// reached by another plug-in as well.
func (v view) unfit(l *lease) string {
	if v.livesOn(l.subnet) {
		return ""
	}
	switch {
	case !v.mayKeep(l):
		return "the configuration does not allow it and no pod lives on it alone"
	case v.inUse(l.subnet):
		return ""
	case v.given(l.subnet):
		return "another node got it by another plug-in at the same time, and no pod lives on it"
	}
	if i := slices.IndexFunc(v.leases, func(o *lease) bool { return o.displaces(l) }); i >= 0 {
		return fmt.Sprintf("%s has a part of it and is older or reserved, and no pod lives on it", v.leases[i].at)
	}
	return ""
}

// own returns the lease that is this node's, or nil. One without an end that is unfit is
// an administrator's to remove, and the node takes another.
func (v view) own() *lease {
	leases := v.leases
	for {
		own := v.owner.find(leases, &v.settings)
		if own == nil || own.Expires || v.unfit(own) == "" {
			return own
		}
		leases = slices.DeleteFunc(slices.Clone(leases), func(l *lease) bool { return l == own })
	}
}

// mayKeep reports whether a lease may stay the node's.
func (v view) mayKeep(l *lease) bool {
	said := v.reserved[l.subnet]
	mine := said != nil && said.Node == v.node.Name || v.kept(l.subnet)
	return v.settings.Allows(l.subnet) || v.livesOn(l.subnet) || mine && v.settings.Bears(l.subnet)
}

// over says that nodes have addresses where the configuration gives subnets from, while
// the node uses another plug-in: so it takes none in there, and does not get ready, unless
// the change is forced. Where nodes use flannel already, they live with it.
func (v view) over() error {
	if !v.node.Beside || v.forced {
		return nil
	}
	for _, r := range []Range{v.settings.V4, v.settings.V6} {
		if r.IsZero() {
			continue
		}
		if a, who := v.owner.within(r.Network); who != "" {
			return fmt.Errorf("the network %s holds addresses of nodes (%s of %s)", r.Network, a, who)
		}
	}
	return nil
}

// forced reports whether the cluster changes its plug-in whatever speaks against it.
func forced(in plugin.Input) bool { return in.Config != nil && api.ForcedPlugin(in.Config) != "" }

// livesOn reports whether a pod of the node has an address in the subnet, or is about to,
// and is not reached there by another plug-in.
func (v view) livesOn(s Subnet) bool { return v.inUse(s) && !v.kept(s) }

// kept reports whether the node has a subnet by another plug-in as well.
func (v view) kept(s Subnet) bool {
	return !slices.ContainsFunc(s.Prefixes(), func(p netip.Prefix) bool { return !slices.Contains(v.node.Kept, p) })
}

// inUse reports whether a pod of the node has an address in the subnet, or is about to.
func (v view) inUse(s Subnet) bool {
	return slices.ContainsFunc(v.node.Held, func(a plan.Address) bool { return s.contains(a.IP) }) || slices.ContainsFunc(v.node.Endpoints, func(e plugin.Endpoint) bool {
		return slices.ContainsFunc(e.Addresses, func(a netip.Addr) bool {
			return slices.ContainsFunc(s.Prefixes(), func(p netip.Prefix) bool { return p.Contains(a) })
		})
	})
}

// stranded returns the endpoints of a node that have no address in the subnet that it
// gets, nor in one that it has by another plug-in.
func stranded(node plugin.Node, to Subnet) (all []plugin.Endpoint) {
	for _, e := range node.Endpoints {
		v := view{node: plugin.Node{Endpoints: []plugin.Endpoint{e}}}
		if !v.inUse(to) && !slices.ContainsFunc(e.Addresses, node.Keeps) {
			all = append(all, e)
		}
	}
	return all
}

// choose returns a subnet to create a lease for, and why that one.
func (v view) choose() (Subnet, string, error) {
	if s, able := v.granted(); able {
		return s, "it is reserved for the node", nil
	} else if !s.IsZero() {
		return Subnet{}, "", fmt.Errorf("subnet %s is reserved for node %s, but the configuration does not allow it, another has a part of it, or it has one of the nodes' own network (here %s); delete its lease, if there is one, and make another reservation", s, v.node.Name, v.network())
	}
	return v.chooseAny()
}

// chooseAny returns a subnet that need not be reserved for the node, and why that one.
func (v view) chooseAny() (Subnet, string, error) {
	// By any other subnet others would lose pods that live on this one alone.
	if v.free(v.former) && v.inUse(v.former) && !v.kept(v.former) {
		return v.former, "it is what the subnet file names, and pods live on it", nil
	}
	for _, able := range []func(Subnet) bool{v.settings.Allows, v.settings.Bears} {
		for _, e := range v.node.Endpoints {
			if s := v.subnetOf(e.Addresses); !s.IsZero() && !slices.ContainsFunc(e.Addresses, v.node.Keeps) && able(s) && v.unclaimed(s) {
				return s, "pod " + e.Name() + " lives on it", nil
			}
		}
	}
	for _, able := range []func(Subnet) bool{v.settings.Allows, v.settings.Bears} {
		if s := v.subnetOf(addressesOf(v.node.Kept)); !s.IsZero() && able(s) && v.unclaimed(s) {
			return s, "it is the node's by the plug-in that the cluster changes from", nil
		}
	}
	// What others say of the networks that they are on moves the choice, and takes away
	// none: else one node could leave others without.
	networks := v.owner.networks()
	former := v.free(v.former) && v.spares(v.former)
	if former && !slices.ContainsFunc(v.former.Prefixes(), func(p netip.Prefix) bool { return slices.ContainsFunc(networks, p.Overlaps) }) {
		return v.former, "it is what the subnet file names", nil
	}
	// Both families are picked by the same number, so that nodes that pick at once from
	// the same lists either pick the same pair, and notice, or pairs that have nothing in
	// common. Lists differ where nodes do not know the same of each other, and where there
	// is room on some node's network alone. Pairs may have one family in common then, and
	// the younger goes: see displaces.
	var families [][]netip.Prefix
	n := candidates
	for _, r := range []Range{v.settings.V4, v.settings.V6} {
		var free []netip.Prefix
		if !r.IsZero() {
			if free = v.freeIn(r, networks); len(free) == 0 && former {
				return v.former, "it is what the subnet file names", nil
			}
			if len(free) == 0 {
				free = v.freeIn(r, nil)
			}
			if len(free) == 0 {
				return Subnet{}, "", v.exhausted(r)
			}
			n = min(n, len(free))
		}
		families = append(families, free)
	}
	i := v.pick(n)
	var s Subnet
	if len(families[0]) > 0 {
		s.V4 = families[0][i]
	}
	if len(families[1]) > 0 {
		s.V6 = families[1][i]
	}
	return s, "it is free", nil
}

// granted returns the first subnet that is reserved for the node and that it can have,
// by the order in which it finds its lease: one that the configuration gives goes before
// one that it bears. Where it can have none, it is the first; the zero Subnet where none
// is reserved.
func (v view) granted() (s Subnet, able bool) {
	mine := v.reserved.of(v.node.Name)
	for _, able := range []func(Subnet) bool{v.settings.Allows, v.settings.Bears} {
		for _, s := range mine {
			if able(s) && v.unclaimed(s) && (v.spares(s) || v.inUse(s)) {
				return s, true
			}
		}
	}
	if len(mine) == 0 {
		return Subnet{}, false
	}
	return mine[0], false
}

// free reports whether the configuration allows a subnet and nobody has it, nor
// may alone have it.
func (v view) free(s Subnet) bool {
	return !s.IsZero() && v.settings.Allows(s) && v.unclaimed(s)
}

// unclaimed reports whether nobody has a subnet, nor may alone have it.
func (v view) unclaimed(s Subnet) bool {
	for other, r := range v.reserved {
		if r.Node != v.node.Name && other.Overlaps(s) {
			return false
		}
	}
	return !v.given(s) && !slices.ContainsFunc(v.leases, func(l *lease) bool { return l.subnet.Overlaps(s) }) &&
		!slices.ContainsFunc(s.Prefixes(), func(own netip.Prefix) bool {
			return slices.ContainsFunc(v.node.Kept, func(p netip.Prefix) bool { return p != own && p.Overlaps(own) })
		})
}

// spares reports whether a subnet has nothing of the node's own network, and no address of
// a node: pods would take the place of what is there. Where pods are there already, or the
// node has a lease, it is too late to ask.
func (v view) spares(s Subnet) bool {
	return !slices.ContainsFunc(s.Prefixes(), func(p netip.Prefix) bool {
		_, who := v.owner.within(p)
		return who != "" || slices.ContainsFunc(v.node.Prefixes, p.Overlaps)
	})
}

// exhausted says that a range has no subnet for the node.
func (v view) exhausted(r Range) error {
	if v.spares(Subnet{V4: r.Network}) {
		return fmt.Errorf("no subnet is free between %s and %s; delete leases that are not needed, or widen the configuration", r.Min, r.Max)
	}
	return fmt.Errorf("no subnet is free between %s and %s outside of the nodes' own network (here %s); give subnets from another range, or delete leases that are not needed", r.Min, r.Max, v.network())
}

// network is the node's own network, for people.
func (v view) network() string {
	var words []string
	for _, p := range v.node.Prefixes {
		words = append(words, p.String())
	}
	for _, a := range v.node.Addresses {
		if !slices.ContainsFunc(v.node.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			words = append(words, a.String())
		}
	}
	return strings.Join(words, ", ")
}

// given reports whether another node has a part of a subnet by another plug-in.
func (v view) given(s Subnet) bool {
	return slices.ContainsFunc(s.Prefixes(), func(own netip.Prefix) bool { return slices.ContainsFunc(v.taken(), own.Overlaps) })
}

// taken are the subnets of others by other plug-ins.
func (v view) taken() []netip.Prefix {
	return slices.SortedFunc(maps.Keys(v.node.Taken), netip.Prefix.Compare)
}

// addressesOf returns the first address of each prefix.
func addressesOf(prefixes []netip.Prefix) []netip.Addr {
	var all []netip.Addr
	for _, p := range prefixes {
		all = append(all, p.Addr())
	}
	return all
}

// subnetOf returns the subnet that addresses are in.
func (v view) subnetOf(addresses []netip.Addr) Subnet {
	var s Subnet
	for _, a := range addresses {
		switch {
		case a.Is4() && !v.settings.V4.IsZero():
			s.V4, _ = a.Prefix(v.settings.V4.Bits)
		case a.Is6() && !v.settings.V6.IsZero():
			s.V6, _ = a.Prefix(v.settings.V6.Bits)
		}
	}
	return s
}

// freeIn returns the first subnets of a range that nobody has, and that spare the nodes'
// own network, and those of others that are given. It takes a step for each of them and
// for each that somebody has, however much of the range that one covers.
func (v view) freeIn(r Range, networks []netip.Prefix) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, l := range v.leases {
		prefixes = append(prefixes, l.subnet.Prefixes()...)
	}
	for s := range v.reserved {
		prefixes = append(prefixes, s.Prefixes()...)
	}
	prefixes = slices.Concat(prefixes, v.taken(), v.node.Kept, v.node.Prefixes, networks)
	for _, a := range slices.Concat(v.owner.addresses, slices.Concat(slices.Collect(maps.Values(v.owner.nodes))...)) {
		prefixes = append(prefixes, netip.PrefixFrom(a, a.BitLen()))
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	var taken subnet.Set
	for _, p := range prefixes {
		taken.Add(p)
	}
	var free []netip.Prefix
	p, ok := netip.PrefixFrom(r.Min, r.Bits), true
	for ok && len(free) < candidates && r.Allows(p) {
		passed := p
		if t, overlaps := taken.Overlap(p); !overlaps {
			free = append(free, p)
		} else if t.Bits() < p.Bits() {
			passed = t
		}
		passed, ok = next(passed)
		p = netip.PrefixFrom(passed.Addr(), r.Bits)
	}
	return free
}
