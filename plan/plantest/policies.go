package plantest

import (
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
	"pgregory.net/rapid"
)

// Policing is what policies make of an endpoint.
type Policing struct {
	// Tag is the endpoint's own. Where it is not 0 and tunnels have no room for tags, the
	// shape's Tags or Classes have each of the endpoint's addresses.
	Tag plan.Tag
	// Ingress and Egress name the policies that hold, or none.
	Ingress, Egress string
}

// What policies of a generated shape are made of.
var (
	policies = []string{"p1", "p2"}
	// There are few, so that several wear one.
	clusterTags = []plan.Tag{10, 11}
	anyTags     = []plan.Tag{0, 10, 11, plan.MaxTag}
	// rooms are for none of these, one, both and all.
	rooms      = []uint32{0, 10, 11, uint32(plan.MaxTag) - 1<<21}
	ownClasses = []plan.Class{plan.FirstOwnClass, plan.FirstOwnClass + 1, plan.MaxClass}
	anyClasses = append([]plan.Class{0, 10, 11, plan.ClassOf(plan.MaxTag)}, ownClasses...)
	// peerless is a class that no address is of.
	peerless = plan.FirstOwnClass + 2
	// ports are those that Flows asks for; they are neighbours, and ranges
	// begin and end there.
	ports = []uint16{8080, 8081}
)

// Policed generates shapes like those of another generator, but with tags,
// with classes and with policies on some endpoints. Verdicts are about any protocol, TCP, UDP
// and ICMP, for one peer or any, for all ports or some.
func Policed(shapes *rapid.Generator[Shape]) *rapid.Generator[Shape] {
	return rapid.Custom(func(t *rapid.T) Shape {
		s := shapes.Draw(t, "shape")
		s.Tags, s.Classes = map[netip.Prefix]plan.Tag{}, map[netip.Prefix]plan.Class{}
		s.Policed = map[string]Policing{}
		prefixes := s.taggable()
		for range rapid.IntRange(0, 4).Draw(t, "tags") {
			s.Tags[rapid.SampledFrom(prefixes).Draw(t, "prefix")] = rapid.SampledFrom(anyTags).Draw(t, "tag")
		}
		for range rapid.IntRange(0, 4).Draw(t, "classes") {
			s.Classes[rapid.SampledFrom(prefixes).Draw(t, "prefix")] = rapid.SampledFrom(anyClasses).Draw(t, "class")
		}
		for node := range s.Endpoints {
			for number := range s.Endpoints[node] {
				s.police(t, node+1, number+1)
			}
		}
		s.Verdicts = verdicts().Draw(t, "verdicts")
		s.Within = map[plan.Class]plan.Class{}
		for range rapid.IntRange(0, 3).Draw(t, "within") {
			s.Within[rapid.SampledFrom(anyClasses[:5]).Draw(t, "class")] = rapid.SampledFrom(append(anyClasses[5:], peerless)).Draw(t, "wider")
		}
		return s
	})
}

// taggable lists prefixes that hold endpoints, nodes or the outside: whole,
// in part, or one of them.
func (s Shape) taggable() []netip.Prefix {
	var all []netip.Prefix
	for _, f := range s.families() {
		outside, _ := Outside[f].Prefix([]int{24, 64}[f])
		all = append(all, everything[f], clusterPrefixes[f], outside)
		for i := range s.Endpoints {
			pool := poolPrefix(f, i+1)
			// Hosts 2 and 3 of the pool: the first two endpoints, not the third.
			part, _ := podAddress(f, i+1, 2).Prefix(pool.Addr().BitLen() - 1)
			all = append(all, pool, part, hostPrefix(podAddress(f, i+1, 2)), hostPrefix(podAddress(f, i+1, 3)), hostPrefix(nodeAddress(f, i+1)))
		}
	}
	return all
}

// police draws what policies make of an endpoint.
func (s Shape) police(t *rapid.T, node, number int) {
	policy := rapid.SampledFrom(append([]string{"", ""}, policies...))
	p := Policing{Ingress: policy.Draw(t, "ingress policy"), Egress: policy.Draw(t, "egress policy")}
	if rapid.Bool().Draw(t, "tagged") {
		p.Tag = rapid.SampledFrom(clusterTags).Draw(t, "tag")
		for _, f := range s.families() {
			// What the node's own policies tell apart comes before what the
			// endpoint wears.
			if a := hostPrefix(podAddress(f, node, number+1)); s.Room > 0 && rapid.Bool().Draw(t, "by the tunnel alone") {
				continue
			} else if rapid.Bool().Draw(t, "of a class") {
				s.Classes[a] = rapid.SampledFrom(ownClasses).Draw(t, "seen as")
			} else {
				s.Tags[a] = p.Tag
			}
		}
	}
	s.Policed[interfaceName(node, number)] = p
}

// verdicts generates the verdicts of all policies.
func verdicts() *rapid.Generator[map[plan.VerdictKey]plan.Verdict] {
	// rivals are alike but for their ports, which are disjoint.
	rivals := rapid.Custom(func(t *rapid.T) plan.VerdictKey {
		k := plan.Otherwise(rapid.SampledFrom(policies).Draw(t, "policy"),
			rapid.SampledFrom([]plan.Direction{plan.Incoming, plan.Outgoing}).Draw(t, "direction"))
		k.Peer = rapid.SampledFrom(append([]plan.Class{plan.AnyPeer}, anyClasses...)).Draw(t, "peer")
		k.Protocol = rapid.SampledFrom([]plan.Protocol{plan.AnyProtocol, plan.TCP, plan.UDP, plan.ICMP, plan.ICMPv6}).Draw(t, "protocol")
		return k
	})
	return rapid.Custom(func(t *rapid.T) map[plan.VerdictKey]plan.Verdict {
		all := map[plan.VerdictKey]plan.Verdict{}
		for _, policy := range policies {
			for _, d := range []plan.Direction{plan.Incoming, plan.Outgoing} {
				if rapid.Bool().Draw(t, "otherwise") {
					all[plan.Otherwise(policy, d)] = plan.Verdict{Allow: rapid.Bool().Draw(t, "allow"), Origin: "policy " + policy}
				}
			}
		}
		for _, k := range rapid.SliceOfNDistinct(rivals, 4, 32, rapid.ID[plan.VerdictKey]).Draw(t, "rivals") {
			for _, k.Ports = range portRanges(t, k.Protocol) {
				all[k] = plan.Verdict{Allow: rapid.Bool().Draw(t, "allow"), Origin: "policy " + k.Policy}
			}
		}
		for range rapid.IntRange(0, 4).Draw(t, "likes") {
			likeAnother(t, all)
		}
		return all
	})
}

// likeAnother makes a peer like another, which decides about everything or is
// like one that does.
func likeAnother(t *rapid.T, all map[plan.VerdictKey]plan.Verdict) {
	k := plan.Rest(rapid.SampledFrom(policies).Draw(t, "policy"),
		rapid.SampledFrom([]plan.Direction{plan.Incoming, plan.Outgoing}).Draw(t, "direction"), rapid.SampledFrom(anyClasses).Draw(t, "peer"))
	to := k
	to.Peer = peerless
	if rapid.Bool().Draw(t, "like one of addresses") {
		to.Peer = rapid.SampledFrom(append([]plan.Class{plan.AnyPeer}, anyClasses[1:]...)).Draw(t, "like")
	}
	if k.Peer == to.Peer {
		return
	}
	has := func(found func(plan.VerdictKey, plan.Verdict) bool) bool {
		for o, v := range all {
			if o.Policy == k.Policy && o.Direction == k.Direction && found(o, v) {
				return true
			}
		}
		return false
	}
	if has(func(_ plan.VerdictKey, v plan.Verdict) bool { return v.Like == k.Peer }) {
		return // then nobody can tell how far it would go
	}
	if other, ok := all[to]; !ok {
		all[to] = plan.Verdict{Allow: rapid.Bool().Draw(t, "allow"), Origin: "policy " + k.Policy}
	} else if other.Like != 0 {
		if chained := all[plan.Rest(k.Policy, k.Direction, other.Like)]; chained.Like != 0 ||
			has(func(o plan.VerdictKey, _ plan.Verdict) bool { return o.Peer == k.Peer && o != k }) {
			return
		}
	}
	all[k] = plan.Verdict{Like: to.Peer, Origin: "policy " + k.Policy}
}

// portRanges draws disjoint ranges of a protocol's ports.
func portRanges(t *rapid.T, p plan.Protocol) []plan.PortRange {
	if !p.HasPorts() || rapid.Bool().Draw(t, "all ports") {
		return []plan.PortRange{plan.AllPorts}
	}
	var ranges []plan.PortRange
	rest := plan.AllPorts
	for _, first := range []uint16{ports[0], ports[1], ports[1] + 1} {
		if rapid.Bool().Draw(t, "cut") {
			ranges = append(ranges, plan.PortRange{First: rest.First, Last: first - 1})
			rest.First = first
		}
	}
	return slices.DeleteFunc(append(ranges, rest), func(plan.PortRange) bool { return rapid.Bool().Draw(t, "left out") })
}

// putPolicies states the Tags, Classes and Verdicts, which are those of every node.
func (s Shape) putPolicies(b *plan.Builder) {
	for prefix, tag := range s.Tags {
		b.PutTag(plan.TagKey{Network: plan.DefaultNetwork, Prefix: prefix}, plan.Tagging{Tag: tag, Origin: "tag"})
	}
	for prefix, class := range s.Classes {
		b.PutClass(plan.ClassKey{Network: plan.DefaultNetwork, Prefix: prefix}, plan.Membership{Class: class, Origin: "class"})
	}
	for class, wider := range s.Within {
		b.PutWithin(plan.WithinKey{Class: class}, plan.Within{Class: wider})
	}
	for k, v := range s.Verdicts {
		b.PutVerdict(k, v)
	}
}
