package linux

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
)

// Pieces of rules. Each loads into register 1 unless it says otherwise.

func metaEqual(key expr.MetaKey, value []byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value}}
}

func metaNotEqual(key expr.MetaKey, value []byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: value}}
}

func isFamily(is4 bool) []expr.Any {
	if is4 {
		return metaEqual(expr.MetaKeyNFPROTO, []byte{unix.NFPROTO_IPV4})
	}
	return metaEqual(expr.MetaKeyNFPROTO, []byte{unix.NFPROTO_IPV6})
}

// address loads the source or destination address.
func address(is4, source bool) []expr.Any { return addressInto(is4, source, 1) }

func addressInto(is4, source bool, register uint32) []expr.Any {
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

// interfaceName loads the name of the interface that a packet came from, which
// fills register 1 whole.
func interfaceName() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}}
}

// interfaceKey is an interface's name as a set element.
func interfaceKey(name string) string {
	var b [unix.IFNAMSIZ]byte
	copy(b[:], name)
	return string(b[:])
}

// verdictOf ends the rule with what a map says about register 1.
func verdictOf(set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: set, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true}}
}

func decide(v verdict) []expr.Any { return []expr.Any{&expr.Verdict{Kind: v.kind, Chain: v.chain}} }

func jump(chain string) []expr.Any { return decide(verdict{expr.VerdictJump, chain}) }

// literal loads a value.
func literal(register uint32, value string) []expr.Any {
	return []expr.Any{&expr.Immediate{Register: register, Data: []byte(value)}}
}

// icmpv6Type loads the type of an ICMPv6 message, and matches nothing else.
func icmpv6Type() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
	}
}

func sourceNAT(a netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: a.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(family(a)), RegAddrMin: 1},
	}
}

func count() []expr.Any { return []expr.Any{&expr.Counter{}} }

// established matches packets of connections that were let through before,
// and what belongs to them.
func established() []expr.Any {
	return inState(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
}

// inState matches packets that are to connection tracking in one of some states.
func inState(states uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: hostEndian(states), Xor: hostEndian(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: hostEndian(0)},
	}
}

// untracked matches packets that were kept from connection tracking, and so
// from translation.
func untracked() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: hostEndian(expr.CtStateBitUNTRACKED)},
	}
}

func hostEndian(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// fromTransport loads bytes, at most 16, from the transport header on.
func fromTransport(offset, length uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: length}}
}

func isProtocol(protocol byte) []expr.Any { return metaEqual(expr.MetaKeyL4PROTO, []byte{protocol}) }

func isNotProtocol(protocol byte) []expr.Any {
	return metaNotEqual(expr.MetaKeyL4PROTO, []byte{protocol})
}

// isAddress matches packets from, or to, an address of their family.
func isAddress(a netip.Addr, source bool) []expr.Any {
	return append(address(a.Is4(), source), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()})
}

func port(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }

// portInto loads the destination port.
func portInto(register uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
}

func isPort(p uint16) []expr.Any {
	return append(portInto(1), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: port(p)})
}

func equals(b byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{b}}}
}

func atLeast(b byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: []byte{b}}}
}

// masked matches where one of the bits is set in what was loaded.
func masked(mask []byte) []expr.Any {
	none := make([]byte, len(mask))
	return []expr.Any{
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(mask)), Mask: mask, Xor: none},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: none},
	}
}

func inSet(name string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: name}}
}

func notInSet(name string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: name, Invert: true}}
}

// fromOwnDevice matches where the interface that a packet came from is one of
// Weft's, an endpoint's included.
func fromOwnDevice() []expr.Any {
	return metaEqual(expr.MetaKeyIIFNAME, []byte(datapath.InterfacePrefix))
}

// laterFragment matches the parts of a packet that come after the first.
func laterFragment(is4 bool) []expr.Any {
	if is4 { // RFC 791, section 3.1
		return append([]expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 6, Len: 2}}, masked([]byte{0x1f, 0xff})...)
	}
	// RFC 8200, section 4.5
	return append([]expr.Any{&expr.Exthdr{DestRegister: 1, Type: unix.IPPROTO_FRAGMENT, Offset: 2, Len: 2, Op: expr.ExthdrOpIpv6}}, masked([]byte{0xff, 0xf8})...)
}

func isLoopback4() []expr.Any {
	return []expr.Any{
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: []byte{0xff, 0, 0, 0}, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{127, 0, 0, 0}},
	}
}

// fibType matches packets whose source, or destination, is an address of a
// type (RTN_LOCAL and others) to the node.
func fibType(source bool, kind uint32) []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, FlagSADDR: source, FlagDADDR: !source, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: hostEndian(kind)},
	}
}
