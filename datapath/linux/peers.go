package linux

import (
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
)

// peers is what the rules know of who is behind which peer. As a rule each peer
// has its own address and one subnet, and all subnets are as long as the node's
// own. So there are two sets that are hashes, of subnets by their first address
// and of single addresses: a packet costs the same however many peers there are,
// and so does a peer that comes. All that is otherwise is in a set of ranges.
type peers struct {
	outer4 bool
	// bits is how long the prefixes of the subnets are, by whether they are
	// IPv4; 0 where the node has none.
	bits map[bool]int
}

// peers fills the sets of who is behind which peer, by the inner family.
func (r *ruleset) peers(p *plan.Plan, s *sources) *peers {
	known := &peers{outer4: p.Local.Tunnel.VTEP.Is4(), bits: map[bool]int{}}
	for _, pool := range slices.Backward(p.Local.Pools) {
		known.bits[pool.Prefix.Addr().Is4()] = pool.Prefix.Bits()
	}
	vteps := r.set(peersPrefix+suffix(known.outer4), set{key: addressType(known.outer4)})
	for a := range s.peers {
		vteps.elements[element{key: string(a.AsSlice())}] = value{}
	}
	for _, is4 := range families {
		key := nftables.MustConcatSetType(addressType(known.outer4), addressType(is4))
		r.set(hostsPrefix+suffix(is4), set{key: key, concat: true})
		r.set(membersPrefix+suffix(is4), set{key: key, concat: true, interval: true})
		if known.bits[is4] > 0 {
			r.set(subnetsPrefix+suffix(is4), set{key: key, concat: true})
		}
	}
	for _, m := range s.members {
		is4 := m.first.Is4()
		e, name := element{key: string(m.vtep.AsSlice()) + string(m.first.AsSlice())}, membersPrefix
		subnet := netip.PrefixFrom(m.first, known.bits[is4])
		switch {
		case subnet.Bits() > 0 && subnet.Masked().Addr() == m.first && lastOf(subnet) == m.last:
			name = subnetsPrefix
		case m.first == m.last:
			name = hostsPrefix
		default:
			e.last = string(m.vtep.AsSlice()) + string(m.last.AsSlice())
		}
		r.sets[name+suffix(is4)].elements[e] = value{}
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
			&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: subnetsPrefix + suffix(inner4)},
		}, decide(then))
	}
	for _, name := range []string{hostsPrefix, membersPrefix} {
		c.add(comment, of, key, []expr.Any{&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: name + suffix(inner4)}}, decide(then))
	}
}
