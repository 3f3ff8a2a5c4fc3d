package linux

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/plan"
)

// Tags travel in the VXLAN network identifier: a tag is what an identifier is more
// than the first of the network. The tunnel's device sends and takes the first alone.
//
// What an endpoint sends has the identifier of its tag as its priority from the last
// chain before the tunnel's device to the first behind it, which writes it into the
// outer packet. Of others' chains only those of raw priority can be between the two, and
// queueing disciplines of the device, which has none unless somebody gives it one. It is
// not the mark: the kernel looks for the way of the outer packet between the two, and
// goes by rules about marks (ip rule fwmark), which are others', in doing so. The priority
// that the packet had before, as by its type of service, is lost; that of the outer
// packet is the least, as is its own type of service.
//
// What comes has its identifier taken out by the last chain before the tunnel's
// socket, and the first one set in its place. The tag is the packet's mark from
// there to connection tracking on its way out of the tunnel's device; there the
// connection gets it as a label, with its first packet, and the mark is 0 again.
// Before connection tracking only chains of raw priority see it, and no way is looked
// for. Others' marks have a meaning to others: kube-proxy's rules drop what has one of
// the bits.
//
// A kernel that labels no connections can keep no tag of what comes. It takes all
// identifiers of the network as if they were the first.
//
// So a label says what a connection began with, whoever sent it. Whether that is
// believed is for policies to say, which change at once with all else of theirs: see
// believedSources, and labelled. Packets of a connection are known by their addresses and
// ports: if another endpoint behind a peer gets the address, and the connection is not
// over, it goes on with the tag of the one before. What endpoints of the node leave behind
// is forgotten when they go; of others nobody tells.
//
// The tags that endpoints send with change in the transaction that changes their policies
// (see retag). A packet is asked about policies by one chain and gets its tag from the
// next, so that one which is between the two in that moment has what either says.
//
// The UDP source port takes up what the identifier changes of the outer packet's
// checksum, so that this stays right whoever computes it, and when: the kernel before
// its packet comes here, or after, where it takes a long one apart late, or a network
// card. The port still tells connections apart: for one tag it moves by one number.

// What a mark, and the word of a label, say of a tag: a flag, and 24 bits. A priority says
// them of an identifier the other way round.
var (
	tagFlag = []byte{1, 0, 0, 0}
	tagBits = []byte{0, 0xff, 0xff, 0xff}
	noMark  = make([]byte, 4)
	// vniFlag says that a priority is an identifier. Others' are small numbers, which
	// end with 0 in memory on nearly all machines.
	vniFlag = []byte{0, 0, 0, 1}
)

const (
	// labelWord is the one of the label's four words that holds the tag. Others'
	// names of labels are numbered from the first on (connlabel.conf, in
	// iptables-extensions(8)).
	labelWord  = 2
	labelBytes = 16
)

// How long an IP header without options is, in bytes.
const ipv4Header, ipv6Header = 20, 40

const (
	tagsOutward = "tags-outward"
	tagsInward  = "tags-inward"
	tagsKept    = "tags-kept"
	// lastPlace is behind the chains of all others, but before connection tracking
	// makes a connection of the packet.
	lastPlace nftables.ChainPriority = 1<<31 - 2
)

// hasTags reports whether the tunnel's network has identifiers for tags.
func hasTags(t rtnl.Overlay) bool { return t.LastVNI > t.VNI }

// sendsTags reports whether what the node sends through the tunnel carries tags.
func sendsTags(t rtnl.Overlay) bool { return t.CarriesTags && hasTags(t) }

// tags adds what sends tags, and what takes them out of what comes. What writes
// them into outer packets is a part of departures. labels says whether the kernel
// labels connections.
func (r *ruleset) tags(p *plan.Plan, labels bool) {
	tunnels := rtnl.Overlays(r.stamps, p)
	if slices.ContainsFunc(tunnels, sendsTags) {
		r.tagsOutward(p, tunnels)
	}
	if slices.ContainsFunc(tunnels, hasTags) {
		r.tagsInward(tunnels, labels)
	}
	if labels && slices.ContainsFunc(tunnels, hasTags) {
		r.tagsKept(tunnels)
	}
}

func (r *ruleset) tagsOutward(p *plan.Plan, tunnels []rtnl.Overlay) {
	c := r.Chain(tagsOutward)
	c.Hook = &nft.Hook{Kind: nftables.ChainTypeFilter, Number: *nftables.ChainHookPostrouting, Priority: lastPlace}
	c.Add("what takes no tunnel", nft.MetaNotEqual(expr.MetaKeyOIFNAME, []byte(r.stamps.TunnelPrefix)), nft.Decide(nft.Accept))
	for _, t := range tunnels {
		if !sendsTags(t) {
			continue
		}
		into := nft.MetaEqual(expr.MetaKeyOIFNAME, []byte(nft.InterfaceKey(t.Device)))
		c.Add("the identifier of who sends it", into, nft.InterfaceName(), []expr.Any{
			&expr.Lookup{SourceRegister: 1, SetName: r.senders(p, t), DestRegister: 1, IsDestRegSet: true},
		}, setPriority(1), nft.Decide(nft.Accept))
		c.Add("of nobody who has a tag", into, hasVNI(), nft.Literal(1, string(noMark)), setPriority(1))
	}
}

// senders fills the map of the endpoints that send with a tag through a tunnel, and
// returns its name.
func (r *ruleset) senders(p *plan.Plan, t rtnl.Overlay) (name string) {
	name = "vnis-" + t.Name
	sent := r.Set(name, nft.Set{Key: nftables.TypeIFName, Data: nftables.TypeMark})
	for k, e := range p.Endpoints.All() {
		if vni, ok := p.Encode(t.Name, e.Network, e.Tag); ok && vni != t.VNI {
			flagged := onWire(vni)
			flagged[3] = vniFlag[3]
			sent.Elements[nft.Element{Key: nft.InterfaceKey(k.Interface)}] = nft.Value{Data: string(flagged)}
		}
	}
	return name
}

// retag returns how the tags change that endpoints send with, for the transaction that
// changes their policies: neither may hold without the other. A table that has no such
// map, or another, gets it later, with all else.
func (d *DataPlane) retag(p *plan.Plan) nft.Edit {
	r := newRuleset(d.stamps, d.stamps.Table)
	edit := nft.Edit{Table: r.Table, Changes: map[string]nft.Change{}}
	for _, t := range rtnl.Overlays(d.stamps, p) {
		if !sendsTags(t) {
			continue
		}
		name := r.senders(p, t)
		if changes := d.table.Difference(r.Table, name); len(changes) > 0 {
			edit.Changes[name] = nft.Change{Elements: changes}
		}
	}
	return edit
}

// retagged takes note that it was done.
func (d *DataPlane) retagged(e nft.Edit) {
	for name := range e.Changes {
		d.table = d.table.With(name, e.Sets[name].Elements)
	}
}

// writesVNI adds, to the chain of what the node sends, the rule that gives a tunnel's
// packets the identifier of who sent what is in them. Until then they have that of the
// tunnel's device: what has another is of somebody else's network.
func writesVNI(c *nft.Chain, t rtnl.Overlay) {
	is4 := t.VTEP.Is4()
	c.Add("the identifier of who sent it", nft.IsFamily(is4), nft.IsProtocol(unix.IPPROTO_UDP), nft.IsPort(t.Port), hasVNI(),
		nft.FromTransport(offsetVNI, 3), []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: onWire(t.VNI)[:3]}},
		writeOuterVNI(is4, 1), nft.Literal(1, string(noMark)), setPriority(1))
}

// hasVNI matches packets whose priority is an identifier.
func hasVNI() []expr.Any {
	return append([]expr.Any{&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: 1}}, nft.Masked(vniFlag)...)
}

func (r *ruleset) tagsInward(tunnels []rtnl.Overlay, labels bool) {
	c := r.Chain(tagsInward)
	c.Hook = &nft.Hook{Kind: nftables.ChainTypeFilter, Number: *nftables.ChainHookInput, Priority: lastPlace}
	for _, t := range tunnels {
		if !hasTags(t) {
			continue
		}
		name := tagsInward + "-" + t.Name
		// All others of these have been dropped; see guard.
		c.Add("the tunnel's packets", packetsOf(t), nft.IsFamily(t.VTEP.Is4()), nft.Decide(nft.GoTo(name)))
		in := r.Chain(name)
		if labels {
			in.Add("the tag becomes the mark", r.tagOf(t), setMark(1))
		}
		in.Add("the identifier of the tunnel's device", nft.FromTransport(offsetVNI, 3), []expr.Any{
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: onWire(t.VNI)[:3]},
		}, nft.Literal(1, string(onWire(t.VNI))), []expr.Any{writeVNI(1, 0, 3, true)})
	}
}

// tagsKept adds what keeps the tag with the connection.
func (r *ruleset) tagsKept(tunnels []rtnl.Overlay) {
	c := r.Chain(tagsKept)
	c.Hook = &nft.Hook{Kind: nftables.ChainTypeFilter, Number: *nftables.ChainHookPrerouting, Priority: *nftables.ChainPriorityConntrack + 1}
	c.Add("what comes out of no tunnel", nft.MetaNotEqual(expr.MetaKeyIIFNAME, []byte(r.stamps.TunnelPrefix)), nft.Decide(nft.Accept))
	for _, t := range tunnels {
		if !hasTags(t) {
			c.Add("out of a tunnel without tags", nft.MetaEqual(expr.MetaKeyIIFNAME, []byte(nft.InterfaceKey(t.Device))), nft.Decide(nft.Accept))
		}
	}
	c.Add("the mark becomes the connection's label", unconfirmed(), nft.Literal(unix.NFT_REG32_00, string(make([]byte, labelBytes))), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG32_00 + labelWord},
		&expr.Ct{Key: expr.CtKeyLABELS, Register: unix.NFT_REG32_00, SourceRegister: true},
	})
	c.Add("and nobody else's mark", nft.Literal(1, string(noMark)), setMark(1))
}

// onWire is a network identifier as it is in a packet, in four bytes.
func onWire(vni uint32) []byte { return binary.BigEndian.AppendUint32(nil, vni<<8) }

func setMark(register uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: register, SourceRegister: true}}
}

func setPriority(register uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: register, SourceRegister: true}}
}

// unconfirmed matches the first packet of a connection. Packets after it are new,
// too, to connection tracking, until one is answered.
func unconfirmed() []expr.Any {
	const confirmed = 1 << 3 // IPS_CONFIRMED
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: nft.HostEndian(confirmed), Xor: nft.HostEndian(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: nft.HostEndian(0)},
	}
}

// writeVNI writes some bytes of the identifier into a tunnel packet that came. The
// source port takes up what that changes of the checksum, or nothing does.
func writeVNI(register, at, length uint32, taken bool) expr.Any {
	w := &expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: register,
		Base: expr.PayloadBaseTransportHeader, Offset: offsetVNI + at, Len: length}
	if taken {
		w.CsumType, w.CsumOffset = expr.CsumTypeInet, 0
	}
	return w
}

// writeOuterVNI loads the priority and writes it into a tunnel packet that the node
// sends, as its identifier. Its IP header has no options. Counted from the transport
// header, the kernel would leave the checksum of a packet alone of which it has to
// complete the inner one.
func writeOuterVNI(is4 bool, register uint32) []expr.Any {
	header := uint32(ipv6Header)
	if is4 {
		header = ipv4Header
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: register},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: register, Base: expr.PayloadBaseNetworkHeader,
			Offset: header + offsetVNI, Len: 3, CsumType: expr.CsumTypeInet, CsumOffset: header},
	}
}

// tagOf loads the tag of a tunnel packet, with the flag that there is one.
func (r *ruleset) tagOf(t rtnl.Overlay) []expr.Any {
	// Before the identifier is a reserved byte (RFC 7348, section 5).
	read := nft.FromTransport(offsetVNI-1, 4)
	flagged := slices.Clone(tagFlag)
	room := uint32(plan.MaxVNI)
	for room>>1 >= t.LastVNI-t.VNI {
		room >>= 1
	}
	if t.VNI&room == 0 { // the first ends where tags begin
		for i, b := range binary.BigEndian.AppendUint32(nil, t.VNI) {
			flagged[i] |= b
		}
		return append(read, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: tagBits, Xor: flagged})
	}
	return slices.Concat(r.subtract(t), read,
		[]expr.Any{&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: tagBits, Xor: flagged}},
		[]expr.Any{writeVNI(registerLookup, 0, 3, false)})
}

// subtract makes the tag of a packet's identifier, in the packet, and keeps the
// identifier in registerLookup. The packet filter cannot count; so maps say of each
// byte, and of what the one before borrowed, the byte of the difference and what it
// borrows.
func (r *ruleset) subtract(t rtnl.Overlay) []expr.Any {
	kind := nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetProto)
	first := onWire(t.VNI)
	const result = unix.NFT_REG32_00 // and what was borrowed, in the next
	all := []expr.Any{
		&expr.Payload{DestRegister: registerLookup, Base: expr.PayloadBaseTransportHeader, Offset: offsetVNI, Len: 3},
		&expr.Immediate{Register: result, Data: make([]byte, 8)},
	}
	for at := 2; at >= 0; at-- {
		name := "less-" + t.Name + "-" + string(rune('0'+at))
		less := r.Set(name, nft.Set{Key: kind, Concat: true, Data: kind})
		for b := range 256 {
			for before := range 2 {
				difference := b - int(first[at]) - before
				after := byte(0)
				if difference < 0 {
					after = 1
				}
				less.Elements[nft.Element{Key: words(byte(b), byte(before))}] = nft.Value{Data: words(byte(difference), after)}
			}
		}
		all = append(all,
			&expr.Payload{DestRegister: result, Base: expr.PayloadBaseTransportHeader, Offset: offsetVNI + uint32(at), Len: 1},
			&expr.Lookup{SourceRegister: result, SetName: name, DestRegister: result, IsDestRegSet: true},
			writeVNI(result, uint32(at), 1, false))
	}
	return all
}

// words are bytes as registers have them, each in one of four bytes.
func words(all ...byte) string {
	var b []byte
	for _, v := range all {
		b = append(b, v, 0, 0, 0)
	}
	return string(b)
}
