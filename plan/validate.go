package plan

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// Validate says everything that is wrong with the plan, or returns nil. Each
// of the joined errors shows the entry in the text form. A data plane may
// count on what Validate checks; a plug-in that compiles anything else has a
// bug. It costs O(n log n).
func (p *Plan) Validate() error {
	if p == nil {
		return nil
	}
	v := &validator{plan: p}
	v.local()
	v.networks()
	v.peers()
	v.endpoints()
	v.routes()
	for k, t := range p.Tags.All() {
		v.tagging(k, t)
	}
	for k, m := range p.Classes.All() {
		v.membership(k, m)
	}
	v.within()
	v.verdicts(p.Verdicts.All())
	v.likes(p.Verdicts.All())
	v.services()
	v.egress()
	return errors.Join(v.problems...)
}

// ValidateAfter is Validate of a plan that follows one which is valid. Where p
// was built from previous it costs in proportion to the tags, classes, verdicts
// and entries of Services that differ, and to the verdicts of the policies that these
// are of; the other tables, which refer to one another, are checked whole if anything in
// them differs. A nil previous tells nothing.
func (p *Plan) ValidateAfter(previous *Plan) error {
	if p == nil || previous == nil {
		return p.Validate()
	}
	v := &validator{plan: p}
	changes := previous.Diff(p)
	rest := changes.Local || len(changes.Networks)+len(changes.Peers)+len(changes.Endpoints)+len(changes.Routes)+len(changes.Egress) > 0
	if rest {
		v.local()
		v.networks()
		v.peers()
		v.endpoints()
		v.routes()
	}
	for _, c := range changes.Tags {
		if c.New != nil {
			v.tagging(c.Key, *c.New)
		}
	}
	for _, c := range changes.Classes {
		if c.New != nil {
			v.membership(c.Key, *c.New)
		}
	}
	if len(changes.Within) > 0 {
		v.within()
	}
	var checked *VerdictKey
	for _, c := range changes.Verdicts {
		// The rules are about keys: what goes, or says something else, breaks none.
		rivals := c.Key.rivals()
		if c.Old != nil || checked != nil && *checked == rivals {
			continue
		}
		checked = &rivals
		v.verdicts(v.rivals(rivals))
	}
	var seen VerdictKey
	for i, c := range changes.Verdicts {
		// What others are like may have gone, and who is like it is not known.
		if least := (VerdictKey{Policy: c.Key.Policy, Direction: c.Key.Direction}); i == 0 || least != seen {
			seen = least
			v.likes(v.policy(least))
		}
	}
	if changes.Local {
		v.services()
	} else {
		v.servicesAfter(changes)
	}
	if rest {
		v.egress()
	}
	return errors.Join(v.problems...)
}

type validator struct {
	plan     *Plan
	problems []error
}

// add reports a problem with what text shows.
func (v *validator) add(text, format string, args ...any) {
	v.problems = append(v.problems, fmt.Errorf("%s: %w", text, fmt.Errorf(format, args...)))
}

// subject is the entry being checked. Its text is made only when something is
// wrong with it.
type subject struct {
	v    *validator
	text func() string
}

func about[K entryKey[V], V any](v *validator, k K, e V) subject {
	return subject{v, func() string { return entry(k, e) }}
}

func (s subject) add(format string, args ...any) { s.v.add(s.text(), format, args...) }

func (s subject) name(what, name string) {
	if name == "" {
		s.add("%s has no name", what)
	}
}

func (s subject) tag(t Tag) {
	if t > MaxTag {
		s.add("tag %d is above %d", t, MaxTag)
	}
}

func (s subject) class(c Class) {
	if c > MaxClass {
		s.add("class %s is no single one", c)
	}
}

// unicast reports whether a is an address that one machine can have.
func (s subject) unicast(what string, a netip.Addr) bool {
	switch {
	case !a.IsValid():
		s.add("%s is missing", what)
	case a.Is4In6():
		s.add("%s %s is an IPv4-mapped IPv6 address: use %s", what, a, a.Unmap())
	case a.Zone() != "":
		s.add("%s %s has a zone", what, a)
	case a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		s.add("%s %s is not a unicast address", what, a)
	default:
		return true
	}
	return false
}

func (s subject) prefix(what string, p netip.Prefix) bool {
	switch {
	case !p.IsValid():
		s.add("%s is missing or invalid", what)
	case p.Addr().Is4In6():
		s.add("%s %s is an IPv4-mapped IPv6 prefix", what, p)
	case p != p.Masked():
		s.add("%s %s has bits set after its length: use %s", what, p, p.Masked())
	default:
		return true
	}
	return false
}

func (s subject) mac(what string, m MAC) {
	if m[0]&1 != 0 {
		s.add("%s %s is a group address", what, m)
	}
}

func sameFamily(a, b netip.Addr) bool { return a.BitLen() == b.BitLen() }

// owners yields the node's own addresses by what people call them.
func (p *Plan) owners() map[Address]string {
	owners := make(map[Address]string, len(p.Local.Addresses)+len(p.Local.Pools)+p.Endpoints.Len())
	for _, a := range p.Local.Addresses {
		owners[Address{DefaultNetwork, a}] = "the node itself"
	}
	for _, pool := range p.Local.Pools {
		owners[Address{pool.Network, pool.Gateway}] = "the gateway of pool " + pool.Prefix.String()
		if a := pool.TunnelAddress(); a.IsValid() {
			owners[Address{pool.Network, a}] = "the node's end of the tunnel, of pool " + pool.Prefix.String()
		}
	}
	return owners
}

func (v *validator) local() {
	l := v.plan.Local
	node := subject{v, func() string { return string(line(nil).keyword("node").name(l.Node)) }}
	node.name("the node", l.Node)
	seen := map[netip.Addr]bool{}
	for _, a := range l.Addresses {
		if node.unicast("address", a) && seen[a] {
			node.add("address %s is there twice", a)
		}
		seen[a] = true
	}
	for i, a := range l.ReachedAt {
		switch {
		case !slices.Contains(l.Addresses, a):
			node.add("reached-at %s is none of its addresses", a)
		case slices.ContainsFunc(l.ReachedAt[:i], func(o netip.Addr) bool { return sameFamily(o, a) }):
			node.add("reached-at %s is the second of its family", a)
		}
	}
	least := 576 // RFC 791
	for _, pool := range l.Pools {
		if pool.Prefix.Addr().Is6() {
			least = 1280 // RFC 8200
		}
	}
	if l.MTU != 0 && (l.MTU < least || l.MTU > 65535) {
		node.add("MTU %d is not between %d and 65535", l.MTU, least)
	}
	for i, pool := range l.Pools {
		s := subject{v, func() string {
			return string(line(nil).keyword("pool").name(pool.Network).name(pool.Prefix.String()))
		}}
		s.name("the network", pool.Network)
		if s.prefix("prefix", pool.Prefix) && s.unicast("gateway", pool.Gateway) && !pool.Prefix.Contains(pool.Gateway) {
			s.add("gateway %s is not in the prefix", pool.Gateway)
		}
		for _, other := range l.Pools[:i] {
			if other.Network == pool.Network && other.Prefix.Overlaps(pool.Prefix) {
				s.add("it overlaps with pool %s", other.Prefix)
			}
		}
	}
	v.tunnels()
}

func (v *validator) tunnels() {
	l := v.plan.Local
	for i, t := range l.Tunnels {
		s := subject{v, func() string { return string(line(nil).keyword("tunnel").name(t.Name)) }}
		switch {
		case len(t.Name) == 0 || len(t.Name) > MaxTunnelName:
			s.add("the name has %d characters, and not 1 to %d", len(t.Name), MaxTunnelName)
		case strings.Trim(t.Name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "":
			s.add("the name has others than the characters a to z, 0 to 9 and -")
		}
		s.unicast("vtep", t.VTEP)
		s.mac("mac", t.MAC)
		if t.MAC.IsZero() {
			s.add("mac is missing")
		}
		if t.Port == 0 {
			s.add("port is missing")
		}
		if t.Only != BothFamilies && t.Only != IPv4 && t.Only != IPv6 {
			s.add("only %q is neither %s nor %s", t.Only, IPv4, IPv6)
		}
		for _, other := range l.Tunnels[:i] {
			if other.Name == t.Name {
				s.add("it is there twice")
				continue
			}
			if other.Port != t.Port || !sameFamily(other.VTEP, t.VTEP) {
				continue
			}
			for _, k := range v.networksIn(t.Name) {
				n, _ := v.plan.Networks.Get(k)
				if network, _, ok := v.overlapping(other.Name, n); ok {
					s.add("port %d and the VNIs of network %s are those of network %s in tunnel %s", t.Port, k.Name, network, other.Name)
				}
			}
		}
	}
	for _, pool := range l.Pools {
		if _, ok := l.Tunnel(pool.Tunnel); !ok && pool.Tunnel != "" {
			s := subject{v, func() string {
				return string(line(nil).keyword("pool").name(pool.Network).name(pool.Prefix.String()))
			}}
			s.add("the plan has no tunnel %q", pool.Tunnel)
		}
	}
}

// networksIn returns the networks that a tunnel carries.
func (v *validator) networksIn(tunnel string) []NetworkKey {
	var all []NetworkKey
	for k := range v.plan.Networks.All() {
		if k.Tunnel == tunnel {
			all = append(all, k)
		}
	}
	return all
}

// overlapping returns a network in a tunnel that has a VNI of another network.
func (v *validator) overlapping(tunnel string, n Network) (name string, vni uint32, ok bool) {
	for k, other := range v.plan.Networks.All() {
		if k.Tunnel == tunnel && other.FirstVNI <= n.LastVNI && n.FirstVNI <= other.LastVNI {
			return k.Name, max(n.FirstVNI, other.FirstVNI), true
		}
	}
	return "", 0, false
}

func (v *validator) endpoints() {
	owners := v.plan.owners()
	macs := map[networkMAC]string{}
	for k, e := range v.plan.Endpoints.All() {
		s := about(v, k, e)
		s.name("the interface", k.Interface)
		s.name("the network", e.Network)
		s.tag(e.Tag)
		s.mac("mac", e.MAC)
		if len(e.Addresses) == 0 {
			s.add("it has no address")
		}
		for _, a := range e.Addresses {
			if !s.unicast("address", a) {
				continue
			}
			at := Address{e.Network, a}
			if owner, ok := owners[at]; ok {
				s.add("address %s belongs to %s", a, owner)
				continue
			}
			owners[at] = string(line(nil).keyword("endpoint").name(k.Interface))
		}
		if e.MAC.IsZero() {
			continue
		}
		at := networkMAC{e.Network, e.MAC}
		if owner, ok := macs[at]; ok {
			s.add("mac %s belongs to endpoint %s", e.MAC, owner)
		} else {
			macs[at] = k.Interface
		}
	}
}

type networkMAC struct {
	network string
	mac     MAC
}

func (v *validator) networks() {
	type named struct {
		NetworkKey
		Network
	}
	var all []named
	for k, n := range v.plan.Networks.All() {
		s := about(v, k, n)
		s.name("the network", k.Name)
		s.name("the tunnel", k.Tunnel)
		switch {
		case n.LastVNI < n.FirstVNI:
			s.add("the range of VNIs ends before it begins")
			continue
		case n.LastVNI > MaxVNI:
			s.add("VNI %d is above %d", n.LastVNI, MaxVNI)
		}
		all = append(all, named{k, n})
	}
	// In a tunnel each identifier is one network's: of those that begin before it, the
	// one that ends last must end before.
	slices.SortStableFunc(all, func(a, b named) int {
		return cmp.Or(strings.Compare(a.Tunnel, b.Tunnel), cmp.Compare(a.FirstVNI, b.FirstVNI))
	})
	for i, furthest := 1, 0; i < len(all); i++ {
		n, before := all[i], all[furthest]
		if n.Tunnel != before.Tunnel {
			furthest = i
			continue
		}
		if n.FirstVNI <= before.LastVNI {
			about(v, n.NetworkKey, n.Network).add("VNI %d is that of network %s", n.FirstVNI, before.Name)
		}
		if all[i].LastVNI > all[furthest].LastVNI {
			furthest = i
		}
	}
}

func (v *validator) peers() {
	// Each end is one machine's, which may be there by several names, and so is a
	// MAC address among the ends of one tunnel, and a public key.
	type at struct {
		tunnel string
		vtep   netip.Addr
	}
	type called struct {
		tunnel string
		mac    MAC
	}
	type keyed struct {
		tunnel string
		key    PublicKey
	}
	type known struct {
		end         TunnelEnd
		carriesTags bool
		peer        string
	}
	vteps, macs, keys := map[at]known{}, map[called]known{}, map[keyed]known{}
	for k, p := range v.plan.Peers.All() {
		s := about(v, k, p)
		s.name("the peer", k.Name)
		for i, a := range p.Addresses {
			if s.unicast("address", a) && slices.Contains(p.Addresses[:i], a) {
				s.add("address %s is there twice", a)
			}
		}
		for i, f := range p.Plain {
			any, ok := map[Family]netip.Addr{IPv4: netip.IPv4Unspecified(), IPv6: netip.IPv6Unspecified()}[f]
			switch {
			case !ok:
				s.add("plain family %q is neither %s nor %s", f, IPv4, IPv6)
			case i > 0 && f <= p.Plain[i-1]:
				s.add("plain family %s is there twice, or behind %s", f, p.Plain[i-1])
			case !p.NextHop(any).IsValid():
				s.add("it has no %s address to send plainly from", f)
			}
		}
		for i, e := range p.Ends {
			s.name("the tunnel", e.Tunnel)
			if slices.ContainsFunc(p.Ends[:i], func(o TunnelEnd) bool { return o.Tunnel == e.Tunnel }) {
				s.add("VTEP %s is another one of tunnel %s", e.VTEP, e.Tunnel)
			}
			if e.MAC.IsZero() {
				s.add("mac of VTEP %s is missing", e.VTEP)
			}
			s.mac("mac", e.MAC)
			if !s.unicast("VTEP", e.VTEP) {
				continue
			}
			own, ok := v.plan.Local.Tunnel(e.Tunnel)
			if ok && e.VTEP == own.VTEP {
				s.add("VTEP %s is the node's own", e.VTEP)
			}
			if ok && e.MAC == own.MAC {
				s.add("mac %s is that of the node's own VTEP", e.MAC)
			}
			if ok && !sameFamily(e.VTEP, own.VTEP) {
				s.add("VTEP %s is not of the family of the node's own, %s", e.VTEP, own.VTEP)
			}
			if other, ok := vteps[at{e.Tunnel, e.VTEP}]; ok && (other.end != e || other.carriesTags != p.CarriesTags) {
				s.add("VTEP %s is that of peer %s, which is another", e.VTEP, other.peer)
			}
			if other, ok := macs[called{e.Tunnel, e.MAC}]; ok && other.end != e {
				s.add("mac %s is that of peer %s, which is another", e.MAC, other.peer)
			}
			if other, ok := keys[keyed{e.Tunnel, e.Key}]; ok && other.end != e {
				s.add("public key %s is that of peer %s, which is another", e.Key, other.peer)
			}
			this := known{e, p.CarriesTags, k.Name}
			vteps[at{e.Tunnel, e.VTEP}], macs[called{e.Tunnel, e.MAC}] = this, this
			if !e.Key.IsZero() {
				keys[keyed{e.Tunnel, e.Key}] = this
			}
		}
	}
}

func (v *validator) routes() {
	for k, r := range v.plan.Routes.All() {
		s := about(v, k, r)
		s.name("the network", k.Network)
		s.prefix("prefix", k.Prefix)
		s.onlyFor("interface", r.Interface != "", r.Way, ToEndpoint)
		s.onlyFor("peers", len(r.Peers) > 0, r.Way, ToTunnel, ToNextHop)
		switch r.Way {
		case ToHost, ToGateway, ToDrop:
		case ToEndpoint:
			e, ok := v.plan.Endpoints.Get(EndpointKey{r.Interface})
			if !ok {
				s.add("the plan has no endpoint %q", r.Interface)
			} else if e.Network != k.Network {
				s.add("endpoint %s is in network %q", r.Interface, e.Network)
			}
		case ToNextHop, ToTunnel:
			if len(r.Peers) == 0 {
				s.add("it leads to no peer")
			}
			for i, name := range r.Peers {
				peer, ok := v.plan.Peers.Get(PeerKey{name})
				switch {
				case !ok:
					s.add("the plan has no peer %q", name)
				case slices.Contains(r.Peers[:i], name):
					s.add("peer %s is there twice", name)
				case r.Way == ToNextHop && !peer.NextHop(k.Prefix.Addr()).IsValid():
					s.add("peer %s has no address of the prefix's family", name)
				}
				if !ok || r.Way != ToTunnel {
					continue
				}
				if _, own, has := v.plan.Local.EndOf(peer, k.Prefix.Addr()); !has {
					s.add("the node and peer %s have no tunnel in common that carries the prefix's family", name)
				} else if _, ok := v.plan.Networks.Get(NetworkKey{k.Network, own.Name}); !ok {
					s.add("the plan does not say what network %q is in tunnel %s", k.Network, own.Name)
				}
			}
		default:
			s.add("way %q is none of those there are", r.Way)
		}
	}
}

// onlyFor reports a field that is set where the way has no use for it.
func (s subject) onlyFor(field string, set bool, way Way, ways ...Way) {
	if set && !slices.Contains(ways, way) {
		s.add("%s is set, which means nothing for way %q", field, way)
	}
}

func (v *validator) tagging(k TagKey, t Tagging) {
	s := about(v, k, t)
	s.name("the network", k.Network)
	s.prefix("prefix", k.Prefix)
	s.tag(t.Tag)
}

func (v *validator) membership(k ClassKey, m Membership) {
	s := about(v, k, m)
	s.name("the network", k.Network)
	s.prefix("prefix", k.Prefix)
	s.class(m.Class)
}

func (v *validator) within() {
	for k, w := range v.plan.Within.All() {
		s := about(v, k, w)
		s.class(k.Class)
		s.class(w.Class)
		if _, ok := v.plan.Within.Get(WithinKey(w)); ok {
			s.add("class %s is within another itself", w.Class)
		}
	}
}

// rivals is what verdicts share whose ranges of ports must be disjoint. It
// orders before all of them.
func (k VerdictKey) rivals() VerdictKey {
	k.Ports = PortRange{}
	return k
}

// rivals yields the verdicts that are rivals.
func (v *validator) rivals(rivals VerdictKey) iter.Seq2[VerdictKey, Verdict] {
	return func(yield func(VerdictKey, Verdict) bool) {
		for k, verdict := range v.plan.Verdicts.From(rivals) {
			if k.rivals() != rivals || !yield(k, verdict) {
				return
			}
		}
	}
}

// verdicts checks entries that come in key order, which puts rivals side by
// side, by their first port.
func (v *validator) verdicts(entries iter.Seq2[VerdictKey, Verdict]) {
	var furthest VerdictKey // of the rivals so far, the one whose ports reach furthest
	first := true
	for k, verdict := range entries {
		s := about(v, k, verdict)
		s.name("the policy", k.Policy)
		if k.Direction != Incoming && k.Direction != Outgoing {
			s.add("direction %q is neither %s nor %s", k.Direction, Incoming, Outgoing)
		}
		if k.Ports.First > k.Ports.Last {
			s.add("port range %s ends before it begins", k.Ports)
		}
		if !k.Protocol.HasPorts() && k.Ports != AllPorts {
			s.add("protocol %s has no ports to tell apart", k.Protocol)
		}
		if first || furthest.rivals() != k.rivals() {
			furthest, first = k, false
			continue
		}
		if k.Ports.First <= furthest.Ports.Last {
			s.add("it overlaps with the entry of the same peer and protocol for ports %s", furthest.Ports)
		}
		if k.Ports.Last > furthest.Ports.Last {
			furthest = k
		}
	}
}

func (v *validator) egress() {
	for k, e := range v.plan.Egress.All() {
		s := about(v, k, e)
		s.name("the network", k.Network)
		destination := s.prefix("destination", k.Destination)
		s.tag(k.Tag)
		if k.Interface != "" {
			if k.Tagged {
				s.add("both an endpoint and a tag select the sources")
			}
			if endpoint, ok := v.plan.Endpoints.Get(EndpointKey{k.Interface}); !ok {
				s.add("the plan has no endpoint %q", k.Interface)
			} else if endpoint.Network != k.Network {
				s.add("endpoint %s is in network %q", k.Interface, endpoint.Network)
			}
		}
		if !k.Tagged && k.Tag != 0 {
			s.add("tag %d is set but does not select", k.Tag)
		}
		switch e.Action {
		case Direct, Masquerade, Discard, SourceNAT, ViaNode:
		default:
			s.add("action %q is none of those there are", e.Action)
		}
		switch {
		case e.Action == SourceNAT:
			if s.unicast("source", e.Source) && destination && !sameFamily(e.Source, k.Destination.Addr()) {
				s.add("source %s is not of the destination's family", e.Source)
			}
		case e.Source.IsValid():
			s.add("source is set, which means nothing for action %q", e.Action)
		}
		switch {
		case e.Action == ViaNode:
			s.name("the gateway node", e.Node)
			if e.Node != "" && e.Node == v.plan.Local.Node {
				s.add("the gateway node is the node itself")
			}
		case e.Node != "":
			s.add("node is set, which means nothing for action %q", e.Action)
		}
	}
}
