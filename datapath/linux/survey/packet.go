package survey

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/nft"
)

// packet is what is known of packets of which it is asked what becomes of them
// in the rules of others.
type packet struct {
	ipv6     bool
	protocol byte
	// source and destination are what kinds of address it comes from and goes to:
	// unix.RTN_LOCAL, say.
	source, destination byte
	meta                map[expr.MetaKey]values
	fields              []field
	// state is that of connection tracking, a bit as nftables has it, 0 where it
	// may be any; and status that of the connection, where one is tracked.
	state  uint32
	status values
}

// values are all that something may be; none where it may be anything.
type values []bits

// bits is a value of which some bits are known.
type bits struct {
	value, known []byte
}

// wholly is a value that is known.
func wholly(value []byte) bits { return bits{value, bytes.Repeat([]byte{0xff}, len(value))} }

// first returns the first bytes of a value; false unless they are all known.
func (b bits) first(n int) ([]byte, bool) {
	if n > len(b.value) {
		return nil, false
	}
	for _, k := range b.known[:n] {
		if k != 0xff {
			return nil, false
		}
	}
	return b.value[:n], true
}

// masked returns what the kernel makes of the value.
func (b bits) masked(mask, xor []byte) bits {
	m := bits{make([]byte, len(b.value)), make([]byte, len(b.value))}
	for i := range b.value {
		m.value[i] = b.value[i]&mask[i] ^ xor[i]
		m.known[i] = b.known[i] | ^mask[i]
	}
	return m
}

// field is a part of a packet, and what it may be.
type field struct {
	base   expr.PayloadBase
	offset uint32
	values values
}

// within is an address of which it is known that a prefix holds it. length is
// that of an address, in bytes.
func within(p netip.Prefix, length int) bits {
	b := bits{make([]byte, length), make([]byte, length)}
	if p.Addr().BitLen() != 8*length {
		return b
	}
	copy(b.value, p.Masked().Addr().AsSlice())
	copy(b.known, net.CIDRMask(p.Bits(), 8*length))
	return b
}

// bounds are the least and the greatest that the first bytes of a value may be;
// false where there are not that many.
func (b bits) bounds(n int) (low, high []byte, ok bool) {
	if n > len(b.value) {
		return nil, nil, false
	}
	low, high = make([]byte, n), make([]byte, n)
	for i := range n {
		low[i], high[i] = b.value[i]&b.known[i], b.value[i]|^b.known[i]
	}
	return low, high, true
}

func newPacket(ipv6 bool, protocol, source, destination byte) packet {
	p := packet{ipv6: ipv6, protocol: protocol, source: source, destination: destination}
	family, etherType, next := byte(unix.NFPROTO_IPV4), []byte{0x08, 0x00}, uint32(9)
	if ipv6 {
		family, etherType, next = unix.NFPROTO_IPV6, []byte{0x86, 0xdd}, 6
	}
	p.meta = map[expr.MetaKey]values{
		expr.MetaKeyNFPROTO:  {wholly([]byte{family})},
		expr.MetaKeyPROTOCOL: {wholly(etherType)},
		expr.MetaKeyL4PROTO:  {wholly([]byte{protocol})},
		expr.MetaKeyPKTTYPE:  {wholly([]byte{unix.PACKET_HOST})},
	}
	p.fields = []field{{expr.PayloadBaseNetworkHeader, next, values{wholly([]byte{protocol})}}}
	return p
}

// load returns what a part of the packet may be.
func (p *packet) load(base expr.PayloadBase, offset, length uint32) values {
	all := values{{make([]byte, length), make([]byte, length)}}
	for _, f := range p.fields {
		if f.base != base || len(f.values) == 0 {
			continue
		}
		from, to := max(offset, f.offset), min(offset+length, f.offset+uint32(len(f.values[0].value)))
		if from >= to {
			continue
		}
		var with values
		for _, before := range all {
			for _, v := range f.values {
				b := bits{bytes.Clone(before.value), bytes.Clone(before.known)}
				copy(b.value[from-offset:to-offset], v.value[from-f.offset:])
				copy(b.known[from-offset:to-offset], v.known[from-f.offset:])
				with = append(with, b)
			}
		}
		all = with
	}
	return all
}

// fate is what becomes of a packet in a chain.
type fate int

const (
	goesOn fate = iota
	isAccepted
	isDropped
	isUnknown
)

type certainty int

const (
	yes certainty = iota
	no
	perhaps
)

// whether says how certain it is that a thing that may be any of some values
// passes a test.
func whether(v values, passes func(bits) certainty) certainty {
	if len(v) == 0 {
		return perhaps
	}
	first := passes(v[0])
	for _, one := range v[1:] {
		if passes(one) != first {
			return perhaps
		}
	}
	return first
}

// is makes of a condition what is certain.
func is(holds bool) certainty {
	if holds {
		return yes
	}
	return no
}

// deepest is how many jumps in a row the kernel allows.
const deepest = 16

// ruleTable is a table of a packet filter.
type ruleTable interface {
	// rules returns those of a chain; false if there is no such chain.
	rules(chain string) ([][]expr.Any, bool, error)
	// find returns what looks a key up in a set; false if it cannot be looked up.
	find(set string) (finder, bool)
}

// through says what becomes of the packet in a chain, before its policy.
func (p *packet) through(t ruleTable, chain string) (fate, error) {
	w := &walk{packet: p, table: t, fates: map[string]fate{}}
	return w.through(chain, 0)
}

// walk follows a packet through a table.
type walk struct {
	*packet
	table ruleTable
	// fates are those in the chains that it came to the end of.
	fates map[string]fate
}

func (w *walk) through(chain string, depth int) (fate, error) {
	if f, ok := w.fates[chain]; ok {
		return f, nil
	}
	if depth > deepest {
		return isUnknown, nil
	}
	f, err := w.along(chain, depth)
	if err == nil {
		w.fates[chain] = f
	}
	return f, err
}

func (w *walk) along(chain string, depth int) (fate, error) {
	rules, ok, err := w.table.rules(chain)
	if err != nil || !ok {
		return isUnknown, err
	}
	for _, rule := range rules {
		matches, decides := w.match(w.table, rule)
		if matches == no || decides == nil {
			continue
		}
		end := goesOn
		switch decides.Kind {
		case expr.VerdictAccept:
			end = isAccepted
		case expr.VerdictDrop:
			end = isDropped
		case expr.VerdictReturn:
			if matches == yes {
				return goesOn, nil
			}
			end = isUnknown
		case expr.VerdictJump, expr.VerdictGoto:
			if end, err = w.through(decides.Chain, depth+1); err != nil {
				return isUnknown, err
			}
			if decides.Kind == expr.VerdictGoto && end == goesOn {
				if matches == yes {
					return goesOn, nil
				}
				end = isUnknown
			}
		case expr.VerdictContinue:
		default:
			end = isUnknown
		}
		switch {
		case end == goesOn:
		case matches == yes, end == isUnknown:
			return end, nil
		case end == isAccepted:
			return isUnknown, nil
		}
		// What may be dropped may also go on.
	}
	return goesOn, nil
}

// match says whether a rule is about the packet, and what it decides; nil where
// it decides nothing.
func (p *packet) match(t ruleTable, exprs []expr.Any) (certainty, *nft.Verdict) {
	known := map[uint32]values{} // by register
	sure := yes
	for _, e := range exprs {
		holds := yes
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Meta:
			if known[e.Register] = p.meta[e.Key]; e.SourceRegister {
				delete(known, e.Register) // it sets something
			}
		case *expr.Payload:
			if e.OperationType == expr.PayloadLoad {
				known[e.DestRegister] = p.load(e.Base, e.Offset, e.Len)
			}
		case *expr.Ct:
			delete(known, e.Register)
			switch {
			case e.SourceRegister:
			case p.state == 0:
			case e.Key == expr.CtKeySTATE:
				known[e.Register] = values{wholly(nft.HostEndian(p.state))}
			case !p.tracked():
				holds = no // there is no connection that could have it
			case e.Key == expr.CtKeySTATUS:
				known[e.Register] = p.status
			}
		case *expr.Fib:
			delete(known, e.Register)
			if e.ResultADDRTYPE && e.FlagDADDR && !e.FlagSADDR {
				known[e.Register] = values{wholly(nft.HostEndian(uint32(p.destination)))}
			}
		case *expr.Immediate:
			known[e.Register] = values{wholly(e.Data)}
		case *expr.Objref:
			if e.Type != unix.NFT_OBJECT_COUNTER {
				holds = perhaps
			}
		case *expr.Bitwise:
			var masked values
			for _, v := range known[e.SourceRegister] {
				if len(v.value) != len(e.Mask) || len(v.value) != len(e.Xor) {
					masked = nil
					break
				}
				masked = append(masked, v.masked(e.Mask, e.Xor))
			}
			known[e.DestRegister] = masked
		case *expr.Cmp:
			holds = whether(known[e.Register], func(v bits) certainty { return compare(v, e.Op, e.Data) })
			if e.Op == expr.CmpOpEq || e.Op == expr.CmpOpNeq {
				// The library leaves out what it does not know, which may load
				// something else now.
				delete(known, e.Register)
			}
		case *expr.Range:
			holds = whether(known[e.Register], func(v bits) certainty {
				in := both(compare(v, expr.CmpOpGte, e.FromData), compare(v, expr.CmpOpLte, e.ToData))
				if in == perhaps {
					return perhaps
				}
				return is((in == yes) == (e.Op == expr.CmpOpEq))
			})
			delete(known, e.Register)
		case *expr.Lookup:
			found, decides := p.lookup(t, e, known[e.SourceRegister])
			if delete(known, e.SourceRegister); e.IsDestRegSet {
				delete(known, e.DestRegister)
			}
			if holds = found; holds != no && decides != nil {
				if holds == perhaps {
					sure = perhaps
				}
				return sure, decides
			}
		case *expr.Match:
			holds = p.extension(e)
		case *expr.Reject:
			return sure, &nft.Verdict{Kind: expr.VerdictDrop}
		case *expr.NAT, *expr.Masq, *expr.Redir:
			return sure, &nft.Verdict{Kind: expr.VerdictAccept}
		case *expr.Queue, *expr.SynProxy: // it goes to a program, or is answered
			return perhaps, &nft.Verdict{Kind: expr.VerdictAccept}
		case *expr.Target:
			if e.Name == "REJECT" {
				return sure, &nft.Verdict{Kind: expr.VerdictDrop}
			}
			if e.Name != "LOG" && e.Name != "NFLOG" {
				return perhaps, &nft.Verdict{Kind: expr.VerdictAccept}
			}
		case *expr.Verdict:
			return sure, &nft.Verdict{Kind: e.Kind, Chain: e.Chain}
		default:
			holds = perhaps
			clear(known) // it may have put anything anywhere
		}
		switch holds {
		case no:
			return no, nil
		case perhaps:
			sure = perhaps
		}
	}
	return sure, nil
}

// compare compares a value as the kernel does: as many bytes as there are in
// what it is compared with.
func compare(v bits, op expr.CmpOp, with []byte) certainty {
	low, high, ok := v.bounds(len(with))
	if !ok || !bytes.Equal(low, high) {
		for i := range min(len(with), len(v.value)) {
			if (v.value[i]^with[i])&v.known[i] != 0 && (op == expr.CmpOpEq || op == expr.CmpOpNeq) {
				return is(op == expr.CmpOpNeq)
			}
		}
		if !ok {
			return perhaps
		}
	}
	holds := func(value []byte) bool {
		order := bytes.Compare(value, with)
		switch op {
		case expr.CmpOpEq:
			return order == 0
		case expr.CmpOpNeq:
			return order != 0
		case expr.CmpOpLt:
			return order < 0
		case expr.CmpOpLte:
			return order <= 0
		case expr.CmpOpGt:
			return order > 0
		}
		return order >= 0
	}
	// What is between two values of which one is less than a third and the other
	// is not may be either.
	if holds(low) != holds(high) || !bytes.Equal(low, high) && (op == expr.CmpOpEq || op == expr.CmpOpNeq) {
		return perhaps
	}
	return is(holds(low))
}

// lookup says whether a set has what may be any of some values, and, of a map
// to verdicts, which. A map that cannot be followed might accept.
func (p *packet) lookup(t ruleTable, e *expr.Lookup, v values) (certainty, *nft.Verdict) {
	decides := e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT
	unknown := func() (certainty, *nft.Verdict) {
		if decides {
			return perhaps, &nft.Verdict{Kind: expr.VerdictAccept}
		}
		return perhaps, nil
	}
	if len(v) == 0 {
		return unknown()
	}
	find, ok := t.find(e.SetName)
	if !ok {
		return unknown()
	}
	var says nft.Verdict
	var has certainty
	for i, one := range v {
		low, high, _ := one.bounds(len(one.value))
		s, h := find(low, high)
		if i > 0 && (h != has || s != says) {
			return unknown()
		}
		says, has = s, h
	}
	switch {
	case has == perhaps:
		return unknown()
	case decides && has == yes:
		return yes, &says
	case e.Invert:
		return is(has == no), nil
	}
	return has, nil
}

// extension says whether what an extension of iptables asks for is so.
func (p *packet) extension(e *expr.Match) certainty {
	switch info := e.Info.(type) {
	case *xt.Comment:
		return yes
	case *xt.ConntrackMtinfo1:
		return p.conntrack(&info.ConntrackMtinfoBase, uint16(info.StateMask), uint16(info.StatusMask))
	case *xt.ConntrackMtinfo2:
		return p.conntrack(&info.ConntrackMtinfoBase, info.StateMask, info.StatusMask)
	case *xt.ConntrackMtinfo3:
		return p.conntrack(&info.ConntrackMtinfoBase, info.StateMask, info.StatusMask)
	case *xt.AddrTypeV1:
		const invertSource, invertDestination = 1, 2 // XT_ADDRTYPE_INVERT_SOURCE, XT_ADDRTYPE_INVERT_DEST
		if info.Flags&^(invertSource|invertDestination) != 0 {
			return perhaps // it is asked of one of the interfaces
		}
		if info.Source != 0 && (info.Source&(1<<p.source) != 0) == (info.Flags&invertSource != 0) {
			return no
		}
		return is(info.Dest == 0 || (info.Dest&(1<<p.destination) != 0) != (info.Flags&invertDestination != 0))
	case *xt.Udp:
		if p.protocol != unix.IPPROTO_UDP {
			return no
		}
		return both(p.ports(0, info.SrcPorts, info.InvFlags&xt.UdpInvSrcPorts != 0), p.ports(2, info.DstPorts, info.InvFlags&xt.UdpInvDestPorts != 0))
	case *xt.Tcp:
		if p.protocol != unix.IPPROTO_TCP {
			return no
		}
		return perhaps
	}
	if e.Name == "comment" {
		return yes
	}
	return perhaps
}

// conntrack is the extension of that name. Of what nothing tracks, it asks for
// the state alone.
func (p *packet) conntrack(info *xt.ConntrackMtinfoBase, states, statuses uint16) certainty {
	if p.state == 0 {
		return perhaps
	}
	// XT_CONNTRACK_STATE_UNTRACKED; the others are as nftables has them.
	state := uint16(p.state)
	if p.state == expr.CtStateBitUNTRACKED {
		state = 1 << 8
	}
	flags := xt.ConntrackFlags(info.MatchFlags) &^ xt.ConntrackStateAlias
	inverted := xt.ConntrackFlags(info.InvertFlags)
	if flags&xt.ConntrackState != 0 && (states&state != 0) == (inverted&xt.ConntrackState != 0) {
		return no
	}
	if !p.tracked() {
		return is(flags&xt.ConntrackState != 0)
	}
	sure := yes
	if flags&xt.ConntrackStatus != 0 {
		sure = whether(p.status, func(v bits) certainty {
			masked := v.masked(nft.HostEndian(uint32(statuses)), make([]byte, len(v.value)))
			return compare(masked, map[bool]expr.CmpOp{false: expr.CmpOpNeq, true: expr.CmpOpEq}[inverted&xt.ConntrackStatus != 0], make([]byte, len(v.value)))
		})
	}
	if flags&^(xt.ConntrackState|xt.ConntrackStatus) != 0 {
		sure = both(sure, perhaps)
	}
	return sure
}

// tracked reports whether the packet is of a connection that is tracked.
func (p *packet) tracked() bool {
	return p.state != expr.CtStateBitUNTRACKED && p.state != expr.CtStateBitINVALID
}

// ports says whether a port is in a range, or is not.
func (p *packet) ports(offset uint32, between [2]uint16, inverted bool) certainty {
	if between == [2]uint16{0, 65535} {
		return is(!inverted)
	}
	return whether(p.load(expr.PayloadBaseTransportHeader, offset, 2), func(v bits) certainty {
		number, ok := v.first(2)
		if !ok {
			return perhaps
		}
		port := binary.BigEndian.Uint16(number)
		return is((between[0] <= port && port <= between[1]) != inverted)
	})
}

// both says how certain it is that two things are so.
func both(a, b certainty) certainty {
	switch {
	case a == no || b == no:
		return no
	case a == perhaps || b == perhaps:
		return perhaps
	}
	return yes
}
