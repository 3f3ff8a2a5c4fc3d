package linux

import (
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
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
	vteps := r.Set(known.set(peersPrefix, known.outer4), nft.Set{Key: nft.AddressType(known.outer4)})
	for a := range s.tunnels[t.Name].peers {
		vteps.Elements[nft.Element{Key: string(a.AsSlice())}] = nft.Value{}
	}
	for _, is4 := range interval.Families {
		key := nftables.MustConcatSetType(nft.AddressType(known.outer4), nft.AddressType(is4))
		r.Set(known.set(hostsPrefix, is4), nft.Set{Key: key, Concat: true})
		r.Set(known.set(membersPrefix, is4), nft.Set{Key: key, Concat: true, Interval: true})
		if known.bits[is4] > 0 {
			r.Set(known.set(subnetsPrefix, is4), nft.Set{Key: key, Concat: true})
		}
	}
	for _, m := range s.tunnels[t.Name].members {
		is4 := m.first.Is4()
		e, name := nft.Element{Key: string(m.vtep.AsSlice()) + string(m.first.AsSlice())}, membersPrefix
		subnet := netip.PrefixFrom(m.first, known.bits[is4])
		switch {
		case subnet.Bits() > 0 && subnet.Masked().Addr() == m.first && interval.Last(subnet) == m.last:
			name = subnetsPrefix
		case m.first == m.last:
			name = hostsPrefix
		default:
			e.Last = string(m.vtep.AsSlice()) + string(m.last.AsSlice())
		}
		r.Sets[known.set(name, is4)].Elements[e] = nft.Value{}
	}
	return known
}

// behind adds rules for what is from a peer and matches what is given, with an
// inner address that the peer answers for, of which offset says where it is.
func (p *peers) behind(c *nft.Chain, comment string, of []expr.Any, inner4 bool, offset uint32, then nft.Verdict) {
	length, next := uint32(16), uint32(unix.NFT_REG32_04)
	if inner4 {
		length = 4
	}
	if p.outer4 {
		next = unix.NFT_REG32_01
	}
	key := append(nft.AddressInto(p.outer4, true, unix.NFT_REG32_00),
		&expr.Payload{DestRegister: next, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: length})
	if bits := p.bits[inner4]; bits > 0 {
		c.Add(comment, of, key, []expr.Any{
			&expr.Bitwise{SourceRegister: next, DestRegister: next, Len: length, Mask: net.CIDRMask(bits, int(length)*8), Xor: make([]byte, length)},
			&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: p.set(subnetsPrefix, inner4)},
		}, nft.Decide(then))
	}
	for _, name := range []string{hostsPrefix, membersPrefix} {
		c.Add(comment, of, key, []expr.Any{&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: p.set(name, inner4)}}, nft.Decide(then))
	}
}
