package linux

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/nft"
)

// icmpErrors is the set of the types of ICMP messages that are about another
// packet: destination unreachable, source quench, redirect, time exceeded and
// parameter problem (RFC 792). ICMPv6's are those below 128 (RFC 4443, section
// 2.1), and its redirect.
const icmpErrors = "icmp-errors"

func (r *ruleset) icmpErrors() string {
	s := r.Set(icmpErrors, nft.Set{Key: nftables.TypeICMPType})
	for _, t := range []byte{3, 4, 5, 11, 12} {
		s.Elements[nft.Element{Key: string([]byte{t})}] = nft.Value{}
	}
	return icmpErrors
}

// icmpOf is the protocol number of ICMP in a family.
func icmpOf(is4 bool) byte {
	if is4 {
		return unix.IPPROTO_ICMP
	}
	return unix.IPPROTO_ICMPV6
}

// redirectOf is the type of a redirect.
func redirectOf(is4 bool) byte {
	if is4 {
		return 5
	}
	return 137
}

// noICMP matches what is of neither family's ICMP.
func noICMP() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_ICMP}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}},
	}
}

// icmpType loads the type of an ICMP message.
func icmpType() []expr.Any { return nft.FromTransport(0, 1) }

// noError matches ICMP messages that are not about another packet; of ICMPv6,
// also redirects.
func (r *ruleset) noError(is4 bool) []expr.Any {
	if is4 {
		return append(icmpType(), nft.NotInSet(r.icmpErrors())...)
	}
	return append(icmpType(), nft.AtLeast(128)...)
}

// saysTooLong matches ICMP errors that a packet is longer than a link on its way takes
// (RFC 1191, section 4; RFC 4443, section 3.2).
func saysTooLong(is4 bool) []expr.Any {
	if is4 {
		return append(nft.FromTransport(0, 2), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{3, 4}})
	}
	return append(icmpType(), nft.Equals(2)...)
}

// quotedDestination loads the destination of the packet that an ICMP error is
// about.
func quotedDestination(is4 bool, register uint32) []expr.Any {
	p := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader}
	if p.Offset, p.Len = headerICMP+24, 16; is4 {
		p.Offset, p.Len = headerICMP+16, 4
	}
	return []expr.Any{p}
}
