package nft

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Pieces of rules. Each loads into register 1 unless it says otherwise.

// MetaEqual matches packets of which that is so.
func MetaEqual(key expr.MetaKey, value []byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value}}
}

// MetaNotEqual matches packets of which that is not so.
func MetaNotEqual(key expr.MetaKey, value []byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: value}}
}

// IsFamily matches packets of a family.
func IsFamily(is4 bool) []expr.Any {
	if is4 {
		return MetaEqual(expr.MetaKeyNFPROTO, []byte{unix.NFPROTO_IPV4})
	}
	return MetaEqual(expr.MetaKeyNFPROTO, []byte{unix.NFPROTO_IPV6})
}

// Address loads the source or destination address.
func Address(is4, source bool) []expr.Any { return AddressInto(is4, source, 1) }

// AddressInto is Address for another register.
func AddressInto(is4, source bool, register uint32) []expr.Any {
	p := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader}
	switch {
	case is4 && source: // RFC 791, section 3.1
		p.Offset, p.Len = 12, 4
	case is4:
		p.Offset, p.Len = 16, 4
	case source: // RFC 8200, section 3
		p.Offset, p.Len = 8, 16
	default:
		p.Offset, p.Len = 24, 16
	}
	return []expr.Any{p}
}

// InterfaceName loads the name of the interface that a packet came from, which
// fills register 1 whole.
func InterfaceName() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}}
}

// InterfaceKey is an interface's name as a set element.
func InterfaceKey(name string) string {
	var b [unix.IFNAMSIZ]byte
	copy(b[:], name)
	return string(b[:])
}

// VerdictOf ends the rule with what a map says about register 1.
func VerdictOf(set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: set, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true}}
}

// Decide ends the rule with a verdict.
func Decide(v Verdict) []expr.Any { return []expr.Any{&expr.Verdict{Kind: v.Kind, Chain: v.Chain}} }

// Jump asks a chain, and goes on where that does not end.
func Jump(chain string) []expr.Any { return Decide(Verdict{expr.VerdictJump, chain}) }

// Literal loads a value.
func Literal(register uint32, value string) []expr.Any {
	return []expr.Any{&expr.Immediate{Register: register, Data: []byte(value)}}
}

// ICMPv6Type loads the type of an ICMPv6 message, and matches nothing else.
func ICMPv6Type() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
	}
}

// SourceNAT makes an address the source.
func SourceNAT(a netip.Addr) []expr.Any {
	return append([]expr.Any{&expr.Immediate{Register: 1, Data: a.AsSlice()}}, SourceNATTo(a.Is4(), 1)...)
}

// Count counts packets.
func Count() []expr.Any { return []expr.Any{&expr.Counter{}} }

// Established matches packets of connections that were let through before,
// and what belongs to them.
func Established() []expr.Any {
	return InState(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
}

// InState matches packets that are to connection tracking in one of some states.
func InState(states uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: HostEndian(states), Xor: HostEndian(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: HostEndian(0)},
	}
}

// NotInState matches packets that are to connection tracking in none of some states.
func NotInState(states uint32) []expr.Any {
	e := InState(states)
	e[len(e)-1] = &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: HostEndian(0)}
	return e
}

// Untracked matches packets that were kept from connection tracking, and so
// from translation.
func Untracked() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: HostEndian(expr.CtStateBitUNTRACKED)},
	}
}

// HostEndian is a number as the kernel has it in registers.
func HostEndian(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// FromTransport loads bytes, at most 16, from the transport header on.
func FromTransport(offset, length uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: length}}
}

// IsProtocol matches packets of a protocol.
func IsProtocol(protocol byte) []expr.Any { return MetaEqual(expr.MetaKeyL4PROTO, []byte{protocol}) }

// IsNotProtocol matches packets of all other protocols.
func IsNotProtocol(protocol byte) []expr.Any {
	return MetaNotEqual(expr.MetaKeyL4PROTO, []byte{protocol})
}

// IsAddress matches packets from, or to, an address of their family.
func IsAddress(a netip.Addr, source bool) []expr.Any {
	return append(Address(a.Is4(), source), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()})
}

func port(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }

// PortInto loads the destination port.
func PortInto(register uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
}

// IsPort matches packets to a port.
func IsPort(p uint16) []expr.Any {
	return append(PortInto(1), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: port(p)})
}

// Equals matches where what was loaded is a byte.
func Equals(b byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{b}}}
}

// AtLeast matches where what was loaded is no less than a byte.
func AtLeast(b byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: []byte{b}}}
}

// Masked matches where one of the bits is set in what was loaded.
func Masked(mask []byte) []expr.Any {
	none := make([]byte, len(mask))
	return []expr.Any{
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(mask)), Mask: mask, Xor: none},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: none},
	}
}

// InSet matches where what was loaded is in a set.
func InSet(name string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: name}}
}

// NotInSet matches where what was loaded is not in a set.
func NotInSet(name string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: name, Invert: true}}
}

// LaterFragment matches the parts of a packet that come after the first.
func LaterFragment(is4 bool) []expr.Any {
	if is4 { // RFC 791, section 3.1
		return append([]expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 6, Len: 2}}, Masked([]byte{0x1f, 0xff})...)
	}
	// RFC 8200, section 4.5
	return append([]expr.Any{&expr.Exthdr{DestRegister: 1, Type: unix.IPPROTO_FRAGMENT, Offset: 2, Len: 2, Op: expr.ExthdrOpIpv6}}, Masked([]byte{0xff, 0xf8})...)
}

// IsLoopback4 matches where the IPv4 address that was loaded is a loopback one.
func IsLoopback4() []expr.Any {
	return []expr.Any{
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: []byte{0xff, 0, 0, 0}, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{127, 0, 0, 0}},
	}
}

// FibType matches packets whose source, or destination, is an address of a
// type (RTN_LOCAL and others) to the node.
func FibType(source bool, kind uint32) []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, FlagSADDR: source, FlagDADDR: !source, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: HostEndian(kind)},
	}
}

// InPrefix matches packets from, or to, a prefix of their family.
func InPrefix(p netip.Prefix, source bool) []expr.Any {
	a := p.Masked().Addr()
	mask := make([]byte, a.BitLen()/8)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return append(Address(a.Is4(), source),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()})
}

// InSetOf matches where what a register holds is in a set.
func InSetOf(register uint32, name string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: register, SetName: name}}
}

// NotInSetOf matches where what a register holds is not in a set.
func NotInSetOf(register uint32, name string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: register, SetName: name, Invert: true}}
}

// HasBits matches where one of some bits is set in the number that a register holds.
func HasBits(register uint32, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: HostEndian(bits), Xor: HostEndian(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: HostEndian(0)},
	}
}

// SourceNATTo makes the address that a register holds the source.
func SourceNATTo(is4 bool, register uint32) []expr.Any {
	family := uint32(unix.NFPROTO_IPV6)
	if is4 {
		family = unix.NFPROTO_IPV4
	}
	return []expr.Any{&expr.NAT{Type: expr.NATTypeSourceNAT, Family: family, RegAddrMin: register}}
}

// Masquerade is SourceNAT with another source port for each connection, drawn at random. Of two that begin at once with one port
// the kernel else gives both the same, as long as neither is confirmed, and drops the later one's packet.
func Masquerade(a netip.Addr) []expr.Any {
	all := SourceNAT(a)
	all[len(all)-1].(*expr.NAT).FullyRandom = true
	return all
}
