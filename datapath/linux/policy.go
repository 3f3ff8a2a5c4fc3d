package linux

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/plan"
)

// Stamps.PolicyTable is the table of the Classes, Tags and Verdicts tables and of what
// endpoints say of policies. It is there as long as an endpoint has one, or an egress rule
// drops something: either may end connections, of which it keeps what is left out.
//
// Its rules never change: whatever there is of policies is elements of maps,
// so that a new connection costs the same however many there are, and a change
// is a few elements, all of which one transaction brings into force. What a packet
// that starts a connection is asked:
//
//	interface                  -> policy    (policies-egress, policies-ingress)
//	address of the other side  -> class     (addresses, prefixes, endpoint-tags, or
//	                                         the tag that came with it: believed)
//	policy, class              -> profile   (peers)
//	profile, protocol, port    -> verdict   (verdicts)
//
// and, where that has no answer, once more with the profile of whom the class goes
// like (likes), or else with that of the class that stands for any peer. Where the
// policy has nothing of the class, it is the wider one that counts (within).
// A profile is a list of protocols and ports with verdicts, which all share
// who have the same. What allows returns to whom the chain was asked by, and all
// else ends in a chain that drops. So no element has to name a chain: the kernel
// would follow each whenever one is added.
//
// A transaction is one step for rules, but not for the lookups of a packet that is
// being judged: each finds the elements that hold at its own moment. A packet whose
// class was looked up before a change, and the policy's peer behind it, would go by
// the old class and the new verdicts, which may allow what neither plan does. So a
// set says which generation the elements are of, and each transaction about them
// puts the next in its place. Which one a packet finds there first is kept by the
// chains that it goes through, as the kernel keeps nothing else from one rule to the
// next: each generation has the same rules in chains of its own. What is allowed and
// what is denied must find the same one there once more, behind all other
// lookups. A packet that does not is judged anew. Both directions are judged in one
// hook for the same reason: nothing could be kept from one hook to the next.
//
// Sets of intervals, of some kernels, show a transaction's elements only a while after
// all other sets do. What comes to the verdicts is therefore written in a transaction
// before, when nothing leads to it yet, and each of the others is there twice: the next
// elements are written to the side that no packet is looked up in, and the transaction
// that changes all else says which side it is from then on.

// The chains of the policy table.
const (
	throughNode  = "through-node"
	toNode       = "to-node"
	judgeChain   = "judge"
	endedChain   = "ended"
	refusedChain = "refused"
)

// generations is how many there are before the first comes again. As many
// transactions would have to be done while one packet is judged to be taken for none: what
// was denied between them would then pass.
const generations = 4

// The sets of the policy table; some are one for each family, with a suffix.
const (
	policiesPrefix     = "policies-"     // and the direction: interface -> policy
	ownAddresses       = "own"           // interface, address
	classesOfAddresses = "addresses"     // whole addresses -> class
	classesOfPrefixes  = "prefixes"      // ranges of addresses -> class
	tagsOfEndpoints    = "endpoint-tags" // interface -> tag
	profilesOfPeers    = "peers"         // policy, class -> profile
	profilesOfLikes    = "likes"         // policy, class -> profile of whom it goes like
	widerClasses       = "within"        // class -> wider class
	profileVerdicts    = "verdicts"      // ranges of profile, protocol, port -> verdict
	believedPrefix     = "believed"      // tunnel's device, ranges of addresses whose tags are believed
	currentGeneration  = "generation"    // that of the elements of those above
	currentSides       = "sides"         // of each set that is there twice, the one that counts
	endedPrefix        = "ended"         // addresses, protocol, ports
	endedAll           = "ended-all"     // protocol, once there are more than maxEnded
	latePrefix         = "late"          // addresses, protocol, ports of answers to datagrams
)

var directions = []plan.Direction{plan.Outgoing, plan.Incoming}

// Registers of 32 bits. Keys are put together from what maps give, of which nft
// before 1.1 does not know the length; it would end with a failure when it shows
// such a rule. So a key's registers are filled before, all at once, and what a
// map gives begins one register earlier, with a word that is not used.
const (
	registerDigest   = unix.NFT_REG32_00 // what a map gives: a blank word and a digest
	registerKey      = unix.NFT_REG32_01 // four, of which two are the digest
	registerClass    = unix.NFT_REG32_03
	registerProtocol = unix.NFT_REG32_03
	registerPort     = unix.NFT_REG32_04
	registerLookup   = unix.NFT_REG32_08 // four, for an address or a name
)

// Types of keys and data. What are digests are numbers to nft.
var (
	typeDigest = nftables.MustConcatSetType(nftables.TypeMark, nftables.TypeMark, nftables.TypeMark)
	typePeer   = nftables.MustConcatSetType(nftables.TypeMark, nftables.TypeMark, nftables.TypeMark)
	// typeProfile is a type of the right length: nft can show ranges of no
	// concatenation that is kept in order.
	typeProfile = nftables.TypeIP6Addr
)

func classKey(c plan.Class) string { return string(binary.BigEndian.AppendUint32(nil, uint32(c))) }

// digestData is a digest as data of a map.
func digestData(digest string) nft.Value { return nft.Value{Data: "\x00\x00\x00\x00" + digest} }

// widerKey is a class as the key of the wider one: where a policy's peer has the
// policy, it has nothing.
func widerKey(c plan.Class) string { return "\x00\x00\x00\x00\x00\x00\x00\x00" + classKey(c) }

func generationKey(g int) string { return string(binary.BigEndian.AppendUint32(nil, uint32(g))) }

// sided are the sets that are there twice.
var sided = []string{
	classesOfPrefixes + suffix(true), classesOfPrefixes + suffix(false),
	believedPrefix + suffix(true), believedPrefix + suffix(false),
}

// sides says, in the order of sided, which side of each counts.
type sides [4]int

// setOn is the name of one side of a set.
func setOn(name string, side int) string { return name + "-" + strconv.Itoa(side) }

// sideKey says that a side of a set counts, as an element.
func sideKey(name string, side int) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(2*slices.Index(sided, name)+side)))
}

// onSide matches where a side of a set counts.
func onSide(name string, side int) []expr.Any {
	return slices.Concat(nft.Literal(1, sideKey(name, side)), nft.InSet(currentSides))
}

func classData(c plan.Class) nft.Value { return nft.Value{Data: classKey(c)} }

// policyRules returns the table's rules, with its sets empty. tags says whether the
// kernel labels connections, so that tags which come with them can be judged.
func policyRules(stamps Stamps, tags bool) *ruleset {
	r := newRuleset(stamps, stamps.PolicyTable)
	for _, is4 := range interval.Families {
		own := nftables.MustConcatSetType(nftables.TypeIFName, nft.AddressType(is4))
		r.Set(ownAddresses+suffix(is4), nft.Set{Key: own, Concat: true})
		r.Set(classesOfAddresses+suffix(is4), nft.Set{Key: nft.AddressType(is4), Data: nftables.TypeMark})
		for side := range 2 {
			r.Set(setOn(classesOfPrefixes+suffix(is4), side), nft.Set{Key: nft.AddressType(is4), Interval: true, Data: nftables.TypeMark})
			r.Set(setOn(believedPrefix+suffix(is4), side), setOfBelieved(is4))
		}
		r.Set(endedPrefix+suffix(is4), setOfEnded(is4))
		r.Set(latePrefix+suffix(is4), setOfEnded(is4))
	}
	for _, d := range directions {
		r.Set(policiesPrefix+string(d), nft.Set{Key: nftables.TypeIFName, Data: typeDigest})
	}
	r.Set(currentGeneration, nft.Set{Key: nftables.TypeMark})
	r.Set(currentSides, nft.Set{Key: nftables.TypeMark})
	r.Set(endedAll, setOfAllEnded)
	r.Set(tagsOfEndpoints, nft.Set{Key: nftables.TypeIFName, Data: nftables.TypeMark})
	r.Set(widerClasses, nft.Set{Key: typePeer, Concat: true, Data: nftables.TypeMark})
	r.Set(profilesOfPeers, nft.Set{Key: typePeer, Concat: true, Data: typeDigest})
	r.Set(profilesOfLikes, nft.Set{Key: typePeer, Concat: true, Data: typeDigest})
	r.Set(profileVerdicts, nft.Set{Key: typeProfile, Interval: true, Verdicts: true, Counts: true})

	r.refuseEnded()
	c := r.Chain(throughNode)
	c.Hook = forwarding(byPolicy)
	c.Add("replies, and what belongs to connections", nft.Established(), nft.Decide(nft.Accept))
	c.Add("of connections that were ended", nft.Jump(endedChain))
	r.judgeTwice(c)

	// What the node itself sends to its endpoints passes neither hook.
	c = r.Chain(toNode)
	c.Hook = &nft.Hook{Kind: nftables.ChainTypeFilter, Number: *nftables.ChainHookInput, Priority: *nftables.ChainPriorityFilter}
	c.Add("what no endpoint sent", nft.MetaNotEqual(expr.MetaKeyIIFGROUP, nft.HostEndian(stamps.Group)), nft.Decide(nft.Accept))
	c.Add("replies, and what belongs to connections", nft.Established(), nft.Decide(nft.Accept))
	c.Add("neighbour and router discovery", nft.IsFamily(false), nft.ICMPv6Type(), []expr.Any{
		&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte{133}, ToData: []byte{136}},
	}, nft.Decide(nft.Accept))
	// What is not tracked, as what the node itself answers of Services, is asked about each time.
	c.Add("of connections that were ended", []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: nft.HostEndian(expr.CtStateBitUNTRACKED)},
	}, nft.Jump(endedChain))
	r.judgeTwice(c)

	r.denied()
	for g := range generations {
		r.ofGeneration(generation(g), tags)
	}
	return r
}

// judgeTwice ends a chain with the verdict of policies.
func (r *ruleset) judgeTwice(c *nft.Chain) {
	c.Add("what policies say", nft.Jump(judgeChain))
	c.Add("they changed meanwhile", nft.Jump(judgeChain))
	c.Add("they changed once more", nft.Count(), nft.Decide(nft.Verdict{Kind: expr.VerdictDrop}))
}

// generation is one of generations, of which each has the same chains.
type generation int

func (g generation) String() string { return "generation-" + strconv.Itoa(int(g)) }

// chain is the name of one of its chains.
func (g generation) chain(name string) string { return g.String() + "-" + name }

// counts matches where the elements are of this generation.
func (g generation) counts() []expr.Any {
	return slices.Concat(nft.Literal(1, generationKey(int(g))), nft.InSet(currentGeneration))
}

// ofGeneration adds the way of a packet that finds elements of a generation first. It
// is accepted where both directions allow it, and dropped where one of them does not.
// It comes back where the elements changed while they were asked, as it may then have
// been allowed, or denied, by some of either.
func (r *ruleset) ofGeneration(g generation, tags bool) {
	leave, enter := g.chain("leave"), g.chain("enter")
	r.Chain(judgeChain).Add("elements of "+g.String(), g.counts(), nft.Decide(nft.GoTo(g.String())))
	c := r.Chain(g.String())
	c.Add("endpoints with an egress policy", policyOf(plan.Outgoing), nft.Jump(leave))
	c.Add("endpoints with an ingress policy", policyOf(plan.Incoming), nft.Jump(enter))
	c.Add("the elements are still of "+g.String(), g.counts(), nft.Decide(nft.Accept))
	r.judge(leave, g, plan.Outgoing, false)
	r.judge(enter, g, plan.Incoming, tags)
}

// judge adds the chain in which the first packet of a connection is judged in
// one direction. It returns for what is allowed, and drops the rest, but where the
// elements are no longer of the generation. tags says whether the tag that came with it
// is asked about.
func (r *ruleset) judge(name string, g generation, d plan.Direction, tags bool) {
	c := r.Chain(name)
	direction, anyPeer := g.chain(string(d)), g.chain(string(d)+"-any")
	for _, is4 := range interval.Families {
		c.Add("an endpoint to itself", nft.IsFamily(is4), nft.InterfaceName(), nft.AddressInto(is4, false, 2),
			[]expr.Any{&expr.Lookup{SourceRegister: 1, SetName: ownAddresses + suffix(is4)}}, nft.Decide(allowed))
	}
	for _, is4 := range interval.Families {
		c.Add("what its policy says", nft.IsFamily(is4), nft.Decide(nft.GoTo(direction+suffix(is4))))
		ask := r.Chain(direction + suffix(is4))
		from := func(c *nft.Chain, comment string, class []expr.Any) {
			r.ask(c, comment, g, d, append(blankKey(), class...))
			c.Add(comment+" is known", class, nft.Decide(nft.GoTo(anyPeer)))
		}
		address := nft.AddressInto(is4, d == plan.Incoming, registerLookup)
		from(ask, "the address", classOf(classesOfAddresses+suffix(is4), address))
		prefixes, rest := classesOfPrefixes+suffix(is4), direction+"-of-no-prefix"+suffix(is4)
		for side := range 2 {
			name := direction + "-" + setOn(prefixes, side)
			ask.Add("the prefixes are on side "+strconv.Itoa(side), onSide(prefixes, side), nft.Decide(nft.GoTo(name)))
			from(r.Chain(name), "the longest prefix", classOf(setOn(prefixes, side), address))
			r.Chain(name).Add("of no prefix", nft.Decide(nft.GoTo(rest)))
		}
		ask.Add("they change", nft.Decide(nft.GoTo(g.denied(d))))
		ask = r.Chain(rest)
		from(ask, "the endpoint's own tag", classOf(tagsOfEndpoints, otherInterface(d)))
		if tags {
			for side := range 2 {
				name := believedPrefix + suffix(is4)
				from := slices.Concat(onSide(name, side), believed(is4, side))
				// Which tag came with it only a connection knows, and that of nobody may be
				// allowed more. What is lost is TCP that its receiver discards, too, ICMP
				// errors about what nobody knows of, and what somebody's rules keep from
				// connection tracking; what the tables know passes.
				ask.Add("a tag that no connection keeps", from, nft.InState(expr.CtStateBitINVALID|expr.CtStateBitUNTRACKED), nft.Decide(nft.GoTo(g.denied(d))))
				ask.Add("the tag that came with it", from, labelled(), nft.Decide(nft.GoTo(direction+"-tagged")))
				// It began before tags were kept, which is no tag of nobody. The sweeper
				// has it begin anew.
				ask.Add("a connection without a tag", from, nft.Decide(nft.GoTo(g.denied(d))))
			}
		}
		r.ask(ask, "no class", g, d, append(blankKey(), nft.Literal(registerClass, classKey(0))...))
		ask.Add("any peer", nft.Decide(nft.GoTo(anyPeer)))
	}
	if tags {
		tagged := r.Chain(direction + "-tagged")
		r.ask(tagged, "the tag that came with it", g, d, keyOfLabel())
		tagged.Add("any peer", nft.Decide(nft.GoTo(anyPeer)))
	}
	last := r.Chain(anyPeer)
	last.Add("any peer", policyOf(d), nft.Literal(registerClass, classKey(plan.AnyPeer)), verdictBy(profilesOfPeers, g, d))
	last.Add("nothing is said of it", nft.Decide(nft.GoTo(g.denied(d))))
	c.Add("of no family", nft.Decide(nft.GoTo(g.denied(d))))
	r.Chain(g.denied(d)).Add("by elements that are still of "+g.String(), g.counts(), nft.Decide(nft.GoTo(deniedChain(d))))
}

// denied is the chain of what a direction's policy does not allow, by what may be
// elements of more than one generation.
func (g generation) denied(d plan.Direction) string { return g.chain(deniedChain(d)) }

// denied adds the chains that drop what a direction's policy does not allow.
func (r *ruleset) denied() {
	for _, d := range directions {
		c := r.Chain(deniedChain(d))
		c.Add("tell who follows", r.tell(string(d)))
		c.Add("nothing allows it", nft.Count(), nft.Decide(nft.Verdict{Kind: expr.VerdictDrop}))
	}
}

// deniedChain is the chain that drops what a direction's policy does not allow.
func deniedChain(d plan.Direction) string { return string(d) + "-denied" }

// allowed is the verdict of an element that allows. One that denies goes on with the
// rule, which then denies.
var (
	allowed = nft.Verdict{Kind: expr.VerdictReturn}
	denied  = nft.Verdict{Kind: expr.VerdictContinue}
)

// ask adds the rules that look for the verdict of a class, in a generation. key fills the registers of
// the key with it, and with nothing where the policy comes.
func (r *ruleset) ask(c *nft.Chain, comment string, g generation, d plan.Direction, key []expr.Any) {
	of := slices.Concat(key, digestOf(d))
	c.Add(comment, of, verdictBy(profilesOfPeers, g, d))
	c.Add(comment+" goes like another", of, verdictBy(profilesOfLikes, g, d))
	c.Add(comment+" has no such port", of, []expr.Any{
		&expr.Lookup{SourceRegister: registerKey, DestRegister: registerDigest, IsDestRegSet: true, SetName: profilesOfPeers},
	}, nft.Decide(nft.GoTo(g.chain(string(d)+"-any"))))
	// The wider class takes the place of the class before the policy comes into the
	// words before it, which are blank for as long.
	wider := slices.Concat(key, []expr.Any{
		&expr.Lookup{SourceRegister: registerKey, DestRegister: registerClass, IsDestRegSet: true, SetName: widerClasses},
	}, digestOf(d))
	c.Add(comment+" is within a wider one", wider, verdictBy(profilesOfPeers, g, d))
	c.Add(comment+" is within one that goes like another", wider, verdictBy(profilesOfLikes, g, d))
}

// refuseEnded adds the chain that refuses what is left of connections that a change
// forbade. Without their entries in connection tracking, a packet of the side that was
// connected to would look like the first of a connection of its own, which may be
// allowed. Of TCP and SCTP what begins one says so. Of datagrams nobody can tell: those
// that may be late answers are refused for a while, and what the side sends then it
// sends of its own accord.
func (r *ruleset) refuseEnded() {
	c := r.Chain(endedChain)
	back := nft.Decide(nft.Verdict{Kind: expr.VerdictReturn})
	flags := []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1}}
	const syn, ack = 0x02, 0x10 // RFC 9293, section 3.1
	c.Add("TCP begins", nft.MetaEqual(expr.MetaKeyL4PROTO, []byte{unix.IPPROTO_TCP}), flags, []expr.Any{
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{syn | ack}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{syn}},
	}, back)
	const initiation = 1 // RFC 9260, section 3.2
	c.Add("SCTP begins", nft.MetaEqual(expr.MetaKeyL4PROTO, []byte{unix.IPPROTO_SCTP}), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 12, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{initiation}},
	}, back)
	for _, is4 := range interval.Families {
		width := uint32(unix.NFT_REG32_01 - unix.NFT_REG32_00)
		if !is4 {
			width *= 4
		}
		protocol := uint32(unix.NFT_REG32_00) + 2*width
		within := func(set string) []expr.Any {
			return slices.Concat(nft.AddressInto(is4, true, unix.NFT_REG32_00), nft.AddressInto(is4, false, unix.NFT_REG32_00+width), []expr.Any{
				&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: protocol},
				&expr.Payload{DestRegister: protocol + 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2},
				&expr.Payload{DestRegister: protocol + 2, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
				&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: set + suffix(is4)},
			})
		}
		refuse := r.count(datapath.Ended, expr.MetaKeyIIFNAME, nft.GoTo(refusedChain))
		c.Add("a late answer", nft.IsFamily(is4), nft.MetaEqual(expr.MetaKeyL4PROTO, []byte{unix.IPPROTO_UDP}), within(latePrefix), refuse)
		c.Add("a connection that was ended", nft.IsFamily(is4), within(endedPrefix), refuse)
	}
	for _, of := range []expr.MetaKey{expr.MetaKeyIIFGROUP, expr.MetaKeyOIFGROUP} {
		c.Add("any of an endpoint's, as too many were ended", nft.MetaEqual(of, nft.HostEndian(r.stamps.Group)), []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Lookup{SourceRegister: 1, SetName: endedAll},
		}, r.count(datapath.Ended, expr.MetaKeyIIFNAME, nft.GoTo(refusedChain)))
	}
	c = r.Chain(refusedChain)
	c.Add("who sends TCP is told", nft.MetaEqual(expr.MetaKeyL4PROTO, []byte{unix.IPPROTO_TCP}), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	c.Add("what nobody can be told", nft.Decide(nft.Verdict{Kind: expr.VerdictDrop}))
}

func typeEnded(is4 bool) nftables.SetDatatype {
	return nftables.MustConcatSetType(nft.AddressType(is4), nft.AddressType(is4), nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeInetService)
}

// maxEnded is how many elements the set of ended connections may have for a family,
// two for each: who may change policies, and has pods to connect from, can have
// connections ended as often as he likes. What is more is refused in another way,
// by setOfAllEnded: nothing of an endpoint's goes on then that is not tracked. Who
// connects anew does not notice it, nor does who is connected. Only tests set it.
var maxEnded uint32 = 1 << 16

func setOfEnded(is4 bool) nft.Set {
	return nft.Set{Key: typeEnded(is4), Concat: true, Timeout: true, Size: maxEnded}
}

var setOfAllEnded = nft.Set{Key: nftables.TypeInetProto, Timeout: true}

// endedKey is a packet's addresses and ports as an element.
func endedKey(from, to netip.AddrPort, protocol plan.Protocol) string {
	b := append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
	b = append(b, byte(protocol), 0, 0, 0)
	b = append(binary.BigEndian.AppendUint16(b, from.Port()), 0, 0)
	return string(append(binary.BigEndian.AppendUint16(b, to.Port()), 0, 0))
}

// readEndedKey reads what endedKey wrote.
func readEndedKey(key string, is4 bool) (from, to netip.AddrPort, protocol plan.Protocol) {
	b, size := []byte(key), 16
	if is4 {
		size = 4
	}
	a, _ := netip.AddrFromSlice(b[:size])
	z, _ := netip.AddrFromSlice(b[size : 2*size])
	b = b[2*size:]
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[4:])), netip.AddrPortFrom(z, binary.BigEndian.Uint16(b[8:])), plan.Protocol(b[0])
}

// policyOf loads the policy of the endpoint that sends, or gets, a packet. A
// packet of no such endpoint matches no rule with it.
func policyOf(d plan.Direction) []expr.Any { return append(blankKey(), digestOf(d)...) }

func blankKey() []expr.Any {
	return []expr.Any{&expr.Immediate{Register: registerKey, Data: make([]byte, 16)}}
}

// digestOf is policyOf where the key's registers are filled.
func digestOf(d plan.Direction) []expr.Any {
	key := expr.MetaKeyIIFNAME
	if d == plan.Incoming {
		key = expr.MetaKeyOIFNAME
	}
	return []expr.Any{
		&expr.Meta{Key: key, Register: registerLookup},
		&expr.Lookup{SourceRegister: registerLookup, DestRegister: registerDigest, IsDestRegSet: true, SetName: policiesPrefix + string(d)},
	}
}

// otherInterface loads the name of the interface of the other side.
func otherInterface(d plan.Direction) []expr.Any {
	key := expr.MetaKeyOIFNAME
	if d == plan.Incoming {
		key = expr.MetaKeyIIFNAME
	}
	return []expr.Any{&expr.Meta{Key: key, Register: registerLookup}}
}

// classOf loads the class that a map has for what was loaded.
func classOf(mapName string, load []expr.Any) []expr.Any {
	return append(slices.Clone(load), &expr.Lookup{SourceRegister: registerLookup, DestRegister: registerClass, IsDestRegSet: true, SetName: mapName})
}

// verdictBy ends a rule with the verdict of the profile that a map has for the
// policy and class that were loaded, for the packet's protocol and destination
// port. For protocols
// without ports those two bytes are something else, and profiles have the same
// for all that they can be. A packet too short to have them matches nothing.
func verdictBy(profiles string, g generation, d plan.Direction) []expr.Any {
	return append([]expr.Any{
		&expr.Lookup{SourceRegister: registerKey, DestRegister: registerDigest, IsDestRegSet: true, SetName: profiles},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: registerProtocol},
		&expr.Payload{DestRegister: registerPort, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: registerKey, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: profileVerdicts},
	}, nft.Decide(nft.GoTo(g.denied(d)))...)
}
