package linux

import (
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/plan"
)

// peers is what the rules know of who is behind which peer. As a rule each peer
// has its own address and one subnet, and all subnets are as long as the node's
// own. So there are two sets that are hashes, of subnets by their first address
// and of single addresses: a packet costs the same however many peers there are,
// and so does a peer that comes. All that is otherwise is in a set of ranges.
type peers struct {
	tunnel string
	outer4 bool
	// bits is how long the prefixes of the subnets are, by whether they are
	// IPv4; 0 where the node has none.
	bits map[bool]int
}

// setOf is the name of a set that is one for each tunnel and family.
func setOf(prefix, tunnel string, is4 bool) string { return prefix + "-" + tunnel + suffix(is4) }

func (p *peers) set(prefix string, is4 bool) string { return setOf(prefix, p.tunnel, is4) }

// peers fills the sets of who is behind which peer of a tunnel, by the inner family.
func (r *ruleset) peers(p *plan.Plan, t plan.Tunnel, s *sources) *peers {
	known := &peers{tunnel: t.Name, outer4: t.VTEP.Is4(), bits: map[bool]int{}}
	for _, pool := range slices.Backward(p.Local.Pools) {
		known.bits[pool.Prefix.Addr().Is4()] = pool.Prefix.Bits()
	}
	vteps := r.set(known.set(peersPrefix, known.outer4), set{key: addressType(known.outer4)})
	for a := range s.tunnels[t.Name].peers {
		vteps.elements[element{key: string(a.AsSlice())}] = value{}
	}
	for _, is4 := range families {
		key := nftables.MustConcatSetType(addressType(known.outer4), addressType(is4))
		r.set(known.set(hostsPrefix, is4), set{key: key, concat: true})
		r.set(known.set(membersPrefix, is4), set{key: key, concat: true, interval: true})
		if known.bits[is4] > 0 {
			r.set(known.set(subnetsPrefix, is4), set{key: key, concat: true})
		}
	}
	for _, m := range s.tunnels[t.Name].members {
		is4 := m.first.Is4()
		e, name := element{key: string(m.vtep.AsSlice()) + string(m.first.AsSlice())}, membersPrefix
		subnet := netip.PrefixFrom(m.first, known.bits[is4])
		switch {
		case subnet.Bits() > 0 && subnet.Masked().Addr() == m.first && interval.Last(subnet) == m.last:
			name = subnetsPrefix
		case m.first == m.last:
			name = hostsPrefix
		default:
			e.last = string(m.vtep.AsSlice()) + string(m.last.AsSlice())
		}
		r.sets[known.set(name, is4)].elements[e] = value{}
	}
	return known
}

// behind adds rules for what is from a peer and matches what is given, with an
// inner address that the peer answers for, of which offset says where it is.
func (p *peers) behind(c *chain, comment string, of []expr.Any, inner4 bool, offset uint32, then verdict) {
	length, next := uint32(16), uint32(unix.NFT_REG32_04)
	if inner4 {
		length = 4
	}
	if p.outer4 {
		next = unix.NFT_REG32_01
	}
	key := append(addressInto(p.outer4, true, unix.NFT_REG32_00),
		&expr.Payload{DestRegister: next, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: length})
	if bits := p.bits[inner4]; bits > 0 {
		c.add(comment, of, key, []expr.Any{
			&expr.Bitwise{SourceRegister: next, DestRegister: next, Len: length, Mask: net.CIDRMask(bits, int(length)*8), Xor: make([]byte, length)},
			&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: p.set(subnetsPrefix, inner4)},
		}, decide(then))
	}
	for _, name := range []string{hostsPrefix, membersPrefix} {
		c.add(comment, of, key, []expr.Any{&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: p.set(name, inner4)}}, decide(then))
	}
}
