package linux

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/plan"
)

// Stamps.ServiceTable is the table of the Services, Backends and Sources tables. It is
// there as long as there is a frontend.
//
// Whatever there is of Services is elements of maps, under rules that are the same for
// one and for thirty thousand. The first packet of a connection is looked up in these:
//
//	address, protocol, port  -> kind, set      (frontends)
//	set                      -> how many slots (sizes)
//	how many slots, kind     -> chain          (draws)
//	set, slot                -> backend        (slots)
//
// Where it comes from says which of two maps of frontends it is looked up in. The
// number of slots says which chain draws one, as the kernel draws numbers below a constant only. The kind says
// what that chain does besides: whether it remembers the client, and whether it asks first who the
// client is, as a frontend is guarded. Before it is another chain where the node's address is to become the
// source, called "as-node-" and the name of the first. So there are two chains for each number of slots and way in which sets are
// used: remembering clients or not, guarded or not, from a side and of a family. They are there for each that is
// in use, and always for a few small numbers where nobody is remembered. Three elements of draws lead to each two: one to the chain itself, and two to the
// other, for either kind of client that may be masqueraded.
//
// A chain that comes costs a look at all that is in the maps that its rules ask. So of those of draws only the usual ones
// ask any, and the others go on to a chain for all numbers: "drawn" in its name, and where clients are
// remembered first to one that looks for the chain of how long they are (ways). There is one of these for each duration that a frontend
// names, whether it has a backend or not; service.Compiler has who names a new one pay for it. What is done where such a chain could not do all
// is in others, which are the same for all. No element of a large map
// names a chain: the kernel would follow each whenever one is added.
//
// A set is called by a digest of its name. So nothing has to be remembered of what sets
// there are, and what rules remember of clients (affinity) is right behind a restart. Which
// backend has which slot is read from the kernel then, as any order of them is right: who
// has a slot keeps it; see assignSlots.
//
// The kernel translates addresses of a connection's first packet only, in chains that
// cannot refuse one. What these gave no backend two chains behind them ask why: whether there is none,
// or the client is none of whom the frontend is for. So what has its backend is asked nothing more.
//
// Who gets the node's address as source is decided with the backend, and kept in the
// connection's label until the packet leaves. The label also says that the backend is a
// Service's: when that leaves its set, the connection ends; see sweep.go and leaving.go.
//
// A transaction is one step for rules, but not for the lookups of a packet under way. One
// that was given no backend, although its frontend has one, is dropped, and its sender repeats it. So is what
// a connection repeats that began before its frontend was there, until the sweep that follows has the kernel
// forget that connection: what is repeated then is translated as a first packet is. A packet may
// be refused where its frontend has another set between the lookup of the set and that of the set's number
// of slots, twice: when it is translated, and when it is asked why it was not. A client is told then, and has to
// connect once more.

// The sets of the service table. Those of frontends are one for each side and family, the
// rest for each family; see sideOf.
const (
	frontendsPrefix = "frontends" // address, protocol, port -> whose it is, kind, set
	restPrefix      = "rest"      // address -> whose it is, kind of what is no other frontend's
	guardsPrefix    = "guards"    // address, protocol, port -> the list of who may send there
	drawsPrefix     = "draws"     // number of slots, what the kind says of it -> chain
	waysPrefix      = "ways"      // for how long clients are remembered -> chain
	sizesPrefix     = "sizes"     // set -> number of slots
	slotsPrefix     = "slots"     // set, slot -> backend
	servesPrefix    = "serves"    // set, backend, where clients may be remembered to have it
	clientsPrefix   = "clients"   // client, set -> backend
	admittedPrefix  = "admitted"  // list, ranges of addresses
	selvesPrefix    = "selves"    // a backend's address, twice, and its port
)

// The chains to which those of draws lead, of each side and family: those of the unusual ones, and last where not all
// could be done.
const (
	drawnChain        = "drawn"
	rememberedChain   = "remembered"
	guardedChain      = "guarded"
	unrememberedChain = "unremembered"
	uncountedChain    = "uncounted"
)

// bothSides are those from which packets come to frontends.
var bothSides = []plan.Scope{plan.Inside, plan.Outside}

// sideOf is the name of a set or chain of a side and family.
func sideOf(name string, side plan.Scope, is4 bool) string {
	return name + "-" + string(side) + suffix(is4)
}

// Registers of 32 bits; policy.go says why keys are filled before maps give what is in them,
// and why that begins with a word that is not used. No rule asks what is in it: of frontends it says
// whose they are, for who reads the table. An address of the client comes before
// the set's digest, and a backend behind it, so that either makes one key with it. What is
// remembered of a client begins with the digest's last word for the same reason.
const (
	registerOwner    = unix.NFT_REG32_03 // what a map of frontends gives: whose it is, kind, digest
	registerKind     = unix.NFT_REG32_04
	registerSet      = unix.NFT_REG32_05 // four
	registerSetEnd   = unix.NFT_REG32_08 // the last of them
	registerBehind   = unix.NFT_REG32_09 // what is behind them: slot, or backend
	registerChosen   = unix.NFT_REG32_10 // what is remembered of a client: the digest's last word, a backend
	registerSize     = unix.NFT_REG32_03 // the number of slots, before the kind
	registerFrontend = unix.NFT_REG32_09 // a frontend's key, up to six
)

// registerClient is where an address ends right before the set.
func registerClient(is4 bool) uint32 { return registerSet - words4(is4) }

// words4 is how many words of 32 bits an address of a family has.
func words4(is4 bool) uint32 {
	if is4 {
		return 1
	}
	return 4
}

// The kind of a frontend: what becomes of packets without a backend, who is masqueraded,
// whether it is for some clients alone, or for the node itself alone, whether clients are remembered, and, from
// bit 8 on, for how many seconds.
const (
	kindSilent = 1 << iota
	kindMasqueradesEndpoints
	kindMasqueradesStrangers
	kindGuarded
	kindLoopback
	kindRemembers
	kindBits = 8
	// maxRemembered is for how long clients are remembered at most.
	maxRemembered = (1<<(32-kindBits) - 1) * time.Second
)

// servedWord is the one of the label's four words that says what Services made of a
// connection: servedBit that one gave it its backend, masqueradedBit that the node's
// address becomes its source. The other three bytes say which slot was drawn for it.
const (
	servedWord     = 3
	servedBit      = 1
	masqueradedBit = 2
)

// servedIn reports whether a label says that a Service gave the connection its backend.
func servedIn(label []byte) bool {
	return len(label) == labelBytes && label[4*servedWord]&servedBit != 0
}

// Types of keys and data. A digest is an address to nft: concatenations have five parts at
// most.
var (
	typeSet  = nftables.TypeIP6Addr
	typeKind = nftables.MustConcatSetType(nftables.TypeMark, nftables.TypeMark, typeSet)
	typeSize = nftables.MustConcatSetType(nftables.TypeMark, nftables.TypeMark)
	typeDraw = typeSize
	typeSlot = nftables.MustConcatSetType(typeSet, nftables.TypeMark)
	// typeGuard is what may send, with a blank word.
	typeGuard = nftables.MustConcatSetType(nftables.TypeMark, typeSet)
)

func typeFrontend(is4 bool) nftables.SetDatatype {
	return nftables.MustConcatSetType(nft.AddressType(is4), nftables.TypeInetProto, nftables.TypeInetService)
}

// typeRemembered is a backend, with the last word of the digest of its set.
func typeRemembered(is4 bool) nftables.SetDatatype {
	return nftables.MustConcatSetType(nftables.TypeMark, nft.AddressType(is4), nftables.TypeInetService)
}

// typeBackend is the same behind a blank word.
func typeBackend(is4 bool) nftables.SetDatatype {
	return nftables.MustConcatSetType(nftables.TypeMark, nftables.TypeMark, nft.AddressType(is4), nftables.TypeInetService)
}

// maxClients is how many clients are remembered at most, of each family, by all sets
// together. Who comes when there are as many gets any backend. Only tests set it.
var maxClients uint32 = 1 << 18

// way is how long clients are remembered of frontends of a family, to which packets come from a side.
type way struct {
	side     plan.Scope
	remember time.Duration
	is4      bool
}

// name is that of the chain that gives connections the backend of the slot that was drawn, or the one that their clients had.
func (w way) name() string {
	return sideOf(fmt.Sprintf("%s-for-%d", drawnChain, w.remember/time.Second), w.side, w.is4)
}

// durationIn are the bits of a kind by which ways finds the chain.
const durationIn = ^uint32(1<<kindBits - 1)

// elements are by which ways finds the chain.
func (w way) elements(put putElement) {
	put(sideOf(waysPrefix, w.side, w.is4), nft.Element{Key: word(uint32(w.remember/time.Second) << kindBits)}, nft.Value{Verdict: nft.GoTo(w.name())})
}

// draw is what a chain draws a slot among, of sets of a family to which packets come from a side, for frontends
// that remember clients or not, and that are for some clients alone or not. For how long clients are remembered is
// nothing to it: there are as many of these chains as there are numbers of slots, and of those of ways as there are durations, and
// not one for each two of them.
type draw struct {
	side              plan.Scope
	remembers, guards bool
	is4               bool
	slots             uint32
}

// isUsual reports whether the chain is one of those that are always there.
func (d draw) isUsual() bool { return !d.remembers && d.slots <= usualSlots }

// usualSlots is up to how many slots there are chains always, for sets that do not remember clients.
const usualSlots = 3

// usualDraws are those chains.
func usualDraws() (all []draw) {
	for _, is4 := range interval.Families {
		for _, side := range bothSides {
			for n := range uint32(usualSlots) {
				all = append(all, draw{side: side, is4: is4, slots: n + 1}, draw{side: side, guards: true, is4: is4, slots: n + 1})
			}
		}
	}
	return all
}

// name is that of the chain.
func (d draw) name() string {
	what := fmt.Sprintf("one-of-%d", d.slots)
	if d.remembers {
		what += "-remembered"
	}
	if d.guards {
		what += "-guarded"
	}
	return sideOf(what, d.side, d.is4)
}

// asNodeName is the name of the chain that leads to it where the node's address is to become the source.
func (d draw) asNodeName() string { return "as-node-" + d.name() }

// drawnBy are the bits of a kind, with one of the two of masquerading, by which draws finds a chain. What
// others than the node itself send is drawn by kindLoopback as well, for which there is none.
const drawnBy = kindGuarded | kindRemembers

// elements are by which draws finds the chains.
func (d draw) elements(put putElement) {
	var kind uint32
	if d.remembers {
		kind |= kindRemembers
	}
	if d.guards {
		kind |= kindGuarded
	}
	for masquerades, chain := range map[uint32]string{0: d.name(), kindMasqueradesEndpoints: d.asNodeName(), kindMasqueradesStrangers: d.asNodeName()} {
		key := binary.NativeEndian.AppendUint32(nft.HostEndian(d.slots), kind|masquerades)
		put(sideOf(drawsPrefix, d.side, d.is4), nft.Element{Key: string(key)}, nft.Value{Verdict: nft.GoTo(chain)})
	}
}

// serviceRules returns the table's rules, but for chains of draws and of durations, with its sets empty.
func serviceRules(stamps Stamps, p *plan.Plan) *ruleset {
	r := newRuleset(stamps, stamps.ServiceTable)
	for _, is4 := range interval.Families {
		for _, side := range bothSides {
			r.Set(sideOf(frontendsPrefix, side, is4), nft.Set{Key: typeFrontend(is4), Concat: true, Data: typeKind})
			r.Set(sideOf(restPrefix, side, is4), nft.Set{Key: nft.AddressType(is4), Data: typeSize})
			r.Set(sideOf(guardsPrefix, side, is4), nft.Set{Key: typeFrontend(is4), Concat: true, Data: typeGuard})
			r.Set(sideOf(drawsPrefix, side, is4), nft.Set{Key: typeDraw, Concat: true, Verdicts: true})
			r.Set(sideOf(waysPrefix, side, is4), nft.Set{Key: nftables.TypeMark, Verdicts: true})
		}
		r.Set(sizesPrefix+suffix(is4), nft.Set{Key: typeSet, Data: typeSize})
		r.Set(slotsPrefix+suffix(is4), nft.Set{Key: typeSlot, Concat: true, Data: typeBackend(is4)})
		r.Set(servesPrefix+suffix(is4), nft.Set{Key: nftables.MustConcatSetType(typeSet, nft.AddressType(is4), nftables.TypeInetService), Concat: true})
		r.Set(clientsPrefix+suffix(is4), nft.Set{Key: nftables.MustConcatSetType(nft.AddressType(is4), typeSet), Concat: true,
			Data: typeRemembered(is4), Timeout: true, Dynamic: true, Size: maxClients})
		r.Set(admittedPrefix+suffix(is4), nft.Set{Key: typeAdmitted(is4), Interval: true})
		r.Set(selvesPrefix+suffix(is4), nft.Set{Key: nftables.MustConcatSetType(nft.AddressType(is4), nft.AddressType(is4), nftables.TypeInetService), Concat: true})
		r.Set(toPeersPrefix+suffix(is4), nft.Set{Key: nft.AddressType(is4), Interval: true})
		r.Set(herePrefix+suffix(is4), nft.Set{Key: typeFrontend(is4), Concat: true})
	}
	for _, set := range setsOfCounts() {
		r.Set(set.name, set.like)
	}
	for set, like := range setsOfShut() {
		r.Set(set, like)
	}
	r.answersHere()
	r.asks()
	r.translates(p)
	r.draws()
	r.otherwise()
	r.asNode(p)
	return r
}

// sides adds, to a chain of what comes to the node, the ways by where it comes from: from
// endpoints of this node, from those of others, and from elsewhere.
func (r *ruleset) sides(c *nft.Chain, endpoints, peers, strangers string) {
	for _, is4 := range interval.Families {
		c.Add("endpoints", nft.IsFamily(is4), r.isFromEndpoint(), nft.Decide(nft.GoTo(endpoints+suffix(is4))))
	}
	for _, is4 := range interval.Families {
		c.Add("from where a route leads to a peer", nft.IsFamily(is4), nft.Address(is4, true), nft.InSet(toPeersPrefix+suffix(is4)), nft.Decide(nft.GoTo(peers+suffix(is4))))
	}
	for _, is4 := range interval.Families {
		c.Add("all others", nft.IsFamily(is4), nft.Decide(nft.GoTo(strangers+suffix(is4))))
	}
}

// asks adds what refuses connections that were given no backend: those to frontends without one, or
// that are for others than their clients.
func (r *ruleset) asks() {
	beginsNone := []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: nft.HostEndian(expr.CtStateBitNEW), Xor: nft.HostEndian(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: nft.HostEndian(0)},
	}
	behind := *nftables.ChainPriorityNATDest + 10
	served := slices.Concat(isServed(servedBit), nft.Decide(nft.Accept))
	ask := func(side plan.Scope) string { return "ask-" + string(side) }

	c := r.Chain("asked")
	c.Hook = &nft.Hook{Kind: nftables.ChainTypeFilter, Number: *nftables.ChainHookPrerouting, Priority: behind}
	c.Add("replies, and what belongs to connections", nft.Established(), nft.Decide(nft.Accept))
	c.Add("what has its backend", served)
	for _, is4 := range interval.Families {
		// Nobody translates it back: its receiver knows of no connection with the backend,
		// and would reset the one that the backend knows.
		c.Add("what a backend sends that fits no connection", nft.IsFamily(is4), nft.InState(expr.CtStateBitINVALID),
			nft.AddressInto(is4, true, unix.NFT_REG32_00), nft.AddressInto(is4, true, unix.NFT_REG32_00+words4(is4)), []expr.Any{
				&expr.Payload{DestRegister: unix.NFT_REG32_00 + 2*words4(is4), Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2},
			}, nft.InSetOf(unix.NFT_REG32_00, selvesPrefix+suffix(is4)), r.drop(datapath.Unfitting))
	}
	c.Add("what begins no connection", beginsNone, nft.Decide(nft.Accept))
	c.Add("what the node sends itself was asked before", nft.MetaEqual(expr.MetaKeyIIFNAME, []byte(nft.InterfaceKey("lo"))), nft.Decide(nft.Accept))
	// The kernel drops it.
	c.Add("to loopback addresses", nft.IsFamily(true), nft.Address(true, false), nft.IsLoopback4(), nft.Decide(nft.Accept))
	c.Add("to the loopback address", nft.IsFamily(false), nft.Address(false, false), []expr.Any{
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append(make([]byte, 15), 1)}}, nft.Decide(nft.Accept))
	r.sides(c, ask(plan.Inside), ask(plan.Outside), ask(plan.Outside))

	c = r.Chain("node-asked")
	c.Hook = &nft.Hook{Kind: nftables.ChainTypeFilter, Number: *nftables.ChainHookOutput, Priority: behind}
	c.Add("what begins no connection", beginsNone, nft.Decide(nft.Accept))
	c.Add("what has its backend", served)
	for _, is4 := range interval.Families {
		c.Add("the node itself", nft.IsFamily(is4), nft.Decide(nft.GoTo(sideOf("ask", plan.Inside, is4))))
	}

	for _, side := range bothSides {
		for _, is4 := range interval.Families {
			c := r.Chain(sideOf("ask", side, is4))
			rest := sideOf("ask-rest", side, is4)
			frontends := sideOf(frontendsPrefix, side, is4)
			c.Add("to no frontend", frontendOf(is4), nft.NotInSetOf(registerFrontend, frontends), nft.Decide(nft.GoTo(rest)))
			counted := func(name string, o outcome, next []expr.Any) []expr.Any {
				return r.counted(sideOf(name, side, is4), countFrontend(o, side, is4), next)
			}
			c.Add("it is for others", isForOthers(side, is4), counted("for-others", outcomeForOthers, r.drop(datapath.NotForClient)))
			c.Add("there is a backend: it changes", theFrontend(side, is4), nft.InSetOf(registerSet, sizesPrefix+suffix(is4)), nft.Count(), nft.Decide(nft.Verdict{Kind: expr.VerdictDrop}))
			c.Add("nobody is told", theFrontend(side, is4), nft.HasBits(registerKind, kindSilent), counted("silenced", outcomeSilenced, r.drop(datapath.NoBackend)))
			c.Add("there is no backend", frontendOf(is4), nft.InSetOf(registerFrontend, frontends), counted("refused", outcomeRefused, nft.Decide(nft.GoTo("no-backend"))))
			c.Add("too short to have a port", nft.Decide(nft.GoTo(rest)))

			c = r.Chain(rest)
			kind := append(nft.AddressInto(is4, false, registerFrontend), blankKind()...)
			kind = append(kind, &expr.Lookup{SourceRegister: registerFrontend, SetName: sideOf(restPrefix, side, is4), DestRegister: registerOwner, IsDestRegSet: true})
			c.Add("nobody is told", kind, nft.HasBits(registerKind, kindSilent),
				r.counted(sideOf("rest-silenced", side, is4), countRest(outcomeSilenced, side, is4), r.drop(datapath.NoBackend)))
			c.Add("a port that no service has", nft.AddressInto(is4, false, registerFrontend), nft.InSetOf(registerFrontend, sideOf(restPrefix, side, is4)),
				r.counted(sideOf("rest-refused", side, is4), countRest(outcomeRefused, side, is4), nft.Decide(nft.GoTo("no-backend"))))
		}
	}
	refuse := r.Chain("no-backend")
	refuse.Add("count them", nft.Jump(r.counting("refused-"+string(datapath.NoBackend), datapath.NoBackend, expr.MetaKeyIIFNAME, nft.Verdict{Kind: expr.VerdictReturn})))
	refuse.Add("who sends TCP is told", nft.MetaEqual(expr.MetaKeyL4PROTO, []byte{unix.IPPROTO_TCP}), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	refuse.Add("who sends something else, too", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}})
}

// translates adds what gives connections their backends.
func (r *ruleset) translates(p *plan.Plan) {
	c := r.Chain("arriving")
	c.Hook = &nft.Hook{Kind: nftables.ChainTypeNAT, Number: *nftables.ChainHookPrerouting, Priority: *nftables.ChainPriorityNATDest}
	r.sides(c, "endpoints", "peers", "strangers")
	c = r.Chain("leaving")
	c.Hook = &nft.Hook{Kind: nftables.ChainTypeNAT, Number: *nftables.ChainHookOutput, Priority: *nftables.ChainPriorityNATDest}
	for _, is4 := range interval.Families {
		c.Add("the node itself", nft.IsFamily(is4), nft.Decide(nft.GoTo("node"+suffix(is4))))
		for _, from := range []struct {
			name string
			side plan.Scope
			bits uint32
		}{
			{"endpoints", plan.Inside, kindMasqueradesEndpoints | kindLoopback},
			{"peers", plan.Outside, kindMasqueradesEndpoints | kindLoopback},
			{"strangers", plan.Outside, kindMasqueradesStrangers | kindLoopback},
			{"node", plan.Inside, kindMasqueradesStrangers},
		} {
			c := r.Chain(from.name + suffix(is4))
			if from.name == "node" {
				c.Add("what is not answered elsewhere is not to stay the source", theFrontend(from.side, is4), notReached(p, is4), setMasqueraded())
			}
			c.Add("the chain that draws a slot", theFrontend(from.side, is4), blankSize(), []expr.Any{
				&expr.Lookup{SourceRegister: registerSet, SetName: sizesPrefix + suffix(is4), DestRegister: registerSize - 1, IsDestRegSet: true},
				&expr.Bitwise{SourceRegister: registerKind, DestRegister: registerKind, Len: 4, Mask: nft.HostEndian(drawnBy | from.bits), Xor: nft.HostEndian(0)},
				&expr.Lookup{SourceRegister: registerSize, SetName: sideOf(drawsPrefix, from.side, is4), DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true},
			})
		}
	}
}

// asNodeChain returns what leads to the draw where the node's address is to become the source.
func (d draw) asNodeChain() *nft.Chain {
	c := &nft.Chain{}
	c.Add("the node's address is to become the source", setMasqueraded())
	c.Add("the chain that draws a slot", nft.Decide(nft.GoTo(d.name())))
	return c
}

// chain returns that of a draw. Of the usual ones it does all, and of the others it says in the label which slot was drawn, and goes
// on to a chain of all sets: as it asks no map, it costs little to have it come.
func (d draw) chain() *nft.Chain {
	c := &nft.Chain{}
	number := &expr.Numgen{Register: registerBehind, Modulus: d.slots, Type: unix.NFT_NG_RANDOM}
	if !d.isUsual() {
		next := drawnChain
		if d.remembers {
			next = rememberedChain
		}
		if d.guards {
			c.Add("who it is not for goes no further", nft.Jump(sideOf(guardedChain, d.side, d.is4)))
		}
		c.Add("a slot", []expr.Any{number}, setDrawn(registerBehind, 0), nft.Decide(nft.GoTo(sideOf(next, d.side, d.is4))))
		return c
	}
	if d.guards {
		leaveOthers(c, d.side, d.is4)
	}
	drawn := append([]expr.Any{number}, setDrawn(registerBehind, servedBit)...)
	c.Add("the backend of a slot", slotOf(d.side, d.is4, drawn), behindSet(d.is4), countGiven(d.side, d.is4), translate(d.is4))
	c.Add("nothing more can be counted", nft.Decide(nft.GoTo(sideOf(uncountedChain, d.side, d.is4))))
	return c
}

// leaveOthers adds what leaves alone who is none of those whom a guarded frontend is for.
func leaveOthers(c *nft.Chain, side plan.Scope, is4 bool) {
	c.Add("it is for others, as they will be told", isForOthers(side, is4), nft.Decide(nft.Accept))
}

// chain returns that of a way, to which a slot has been drawn. It asks maps that have most
// of what there is of Services, so that the kernel goes through all of that when the chain comes.
func (w way) chain() *nft.Chain {
	c := &nft.Chain{}
	given := append(setServed(), translate(w.is4)...)
	client := nft.AddressInto(w.is4, true, registerClient(w.is4))
	memory := func(operation uint32) []expr.Any {
		return []expr.Any{&expr.Dynset{SrcRegKey: registerClient(w.is4), SrcRegData: registerChosen, SetName: clientsPrefix + suffix(w.is4),
			Operation: operation, Timeout: w.remember}}
	}
	of := slices.Concat(theFrontend(w.side, w.is4), client)
	// The kernel leaves alone what an element says that is there. It only must be given
	// something.
	anything := slices.Concat(blankChosen(w.is4)[:1], nft.AddressInto(w.is4, false, registerChosen+1), nft.PortInto(registerChosen+1+words4(w.is4)))
	c.Add("a client that comes again", of, nft.InSetOf(registerClient(w.is4), clientsPrefix+suffix(w.is4)), anything, memory(unix.NFT_DYNSET_OP_UPDATE))
	// Who has a backend, which is behind the set then.
	had := slices.Concat(of, blankBackend(w.is4), []expr.Any{
		&expr.Lookup{SourceRegister: registerClient(w.is4), SetName: clientsPrefix + suffix(w.is4), DestRegister: registerSetEnd, IsDestRegSet: true},
	}, nft.InSetOf(registerSet, servesPrefix+suffix(w.is4)))
	c.Add("the backend that it had", had, countGiven(w.side, w.is4), given)
	c.Add("and nothing more can be counted", had, given)
	const deletes = 2 // NFT_DYNSET_OP_DELETE
	c.Add("which is none any more", of, anything, memory(deletes))
	remember := append(client, memory(unix.NFT_DYNSET_OP_UPDATE)...)
	c.Add("the backend of the slot", slotOf(w.side, w.is4, drawnSlot()), remember, behindSet(w.is4), countGiven(w.side, w.is4), given)
	// Or it would be given another than the one that is remembered for it.
	c.Add("the backend that is remembered, and nothing more can be counted", had, given)
	c.Add("there are fewer now", slotOf(w.side, w.is4, firstSlot()), remember, behindSet(w.is4), countGiven(w.side, w.is4), given)
	c.Add("nobody more can be remembered", nft.Decide(nft.GoTo(sideOf(unrememberedChain, w.side, w.is4))))
	return c
}

// draws adds what draws of unusual numbers of slots, or of sets that remember clients, lead to.
func (r *ruleset) draws() {
	for _, side := range bothSides {
		for _, is4 := range interval.Families {
			leaveOthers(r.Chain(sideOf(guardedChain, side, is4)), side, is4)

			c := r.Chain(sideOf(drawnChain, side, is4))
			c.Add("the backend of the slot", slotOf(side, is4, drawnSlot()), behindSet(is4), countGiven(side, is4), setServed(), translate(is4))
			c.Add("nothing more can be counted", nft.Decide(nft.GoTo(sideOf(uncountedChain, side, is4))))

			c = r.Chain(sideOf(rememberedChain, side, is4))
			c.Add("the chain for as long as clients are remembered", theFrontend(side, is4), []expr.Any{
				&expr.Bitwise{SourceRegister: registerKind, DestRegister: registerKind, Len: 4, Mask: nft.HostEndian(durationIn), Xor: nft.HostEndian(0)},
				&expr.Lookup{SourceRegister: registerKind, SetName: sideOf(waysPrefix, side, is4), DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true},
			})
			c.Add("they are remembered no more", nft.Decide(nft.GoTo(sideOf(unrememberedChain, side, is4))))
		}
	}
}

// otherwise adds what becomes of a packet where the rules of a draw did not come to their end. It is the same for all
// draws: each rule that asks a map costs something with each element that comes to that, and with each rule that comes
// to ask it.
func (r *ruleset) otherwise() {
	for _, side := range bothSides {
		for _, is4 := range interval.Families {
			given := append(setServed(), translate(is4)...)
			counted := append(behindSet(is4), countGiven(side, is4)...)
			uncounted := sideOf(uncountedChain, side, is4)
			c := r.Chain(sideOf(unrememberedChain, side, is4))
			c.Add("the backend that was drawn", slotOf(side, is4, drawnSlot()), counted, given)
			c.Add("nothing more can be counted", nft.Decide(nft.GoTo(uncounted)))
			c = r.Chain(uncounted)
			c.Add("the backend that was drawn", slotOf(side, is4, drawnSlot()), behindSet(is4), given)
			c.Add("there are fewer now", slotOf(side, is4, firstSlot()), counted, given)
			c.Add("there are fewer now, and nothing more can be counted", slotOf(side, is4, firstSlot()), behindSet(is4), given)
			c.Add("it changes", nft.Count(), nft.Decide(nft.Verdict{Kind: expr.VerdictDrop}))
		}
	}
}

// slotOf loads the backend of a slot, whose number which loads right behind the set, and matches nothing where there
// is no such slot.
func slotOf(side plan.Scope, is4 bool, which []expr.Any) []expr.Any {
	return slices.Concat(theFrontend(side, is4), blankChosen(is4), which, []expr.Any{
		&expr.Lookup{SourceRegister: registerSet, SetName: slotsPrefix + suffix(is4), DestRegister: registerBehind, IsDestRegSet: true},
	})
}

// firstSlot loads the number of a set's first slot.
func firstSlot() []expr.Any {
	return []expr.Any{&expr.Immediate{Register: registerBehind, Data: make([]byte, 4)}}
}

// translate gives a connection the backend right behind the set.
func translate(is4 bool) []expr.Any {
	family := uint32(unix.NFPROTO_IPV6)
	if is4 {
		family = unix.NFPROTO_IPV4
	}
	return []expr.Any{&expr.NAT{Type: expr.NATTypeDestNAT, Family: family, RegAddrMin: registerBehind, RegProtoMin: registerBehind + words4(is4)}}
}

// frontendOf loads what a packet is sent to.
func frontendOf(is4 bool) []expr.Any { return frontendInto(is4, registerFrontend) }

// frontendInto is frontendOf for other registers.
func frontendInto(is4 bool, register uint32) []expr.Any {
	w := words4(is4)
	return append(nft.AddressInto(is4, false, register),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register + w},
		&expr.Payload{DestRegister: register + w + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
}

// theFrontend loads the kind and the set of the frontend that a packet is sent to, and
// matches no other packet.
func theFrontend(side plan.Scope, is4 bool) []expr.Any {
	all := append(blankKind(), blankSet()...)
	all = append(all, frontendOf(is4)...)
	return append(all, &expr.Lookup{SourceRegister: registerFrontend, SetName: sideOf(frontendsPrefix, side, is4), DestRegister: registerOwner, IsDestRegSet: true})
}

// isForOthers matches packets to a frontend whose client is none of those whom it is for.
func isForOthers(side plan.Scope, is4 bool) []expr.Any {
	return slices.Concat(blankSet(), frontendOf(is4), []expr.Any{
		&expr.Lookup{SourceRegister: registerFrontend, SetName: sideOf(guardsPrefix, side, is4), DestRegister: registerKind, IsDestRegSet: true},
	}, nft.AddressInto(is4, true, registerBehind), nft.NotInSetOf(registerSet, admittedPrefix+suffix(is4)))
}

func blankKind() []expr.Any {
	return []expr.Any{&expr.Immediate{Register: registerKind, Data: make([]byte, 4)}}
}

func blankSet() []expr.Any {
	return []expr.Any{&expr.Immediate{Register: registerSet, Data: make([]byte, 16)}}
}

func blankSize() []expr.Any {
	return []expr.Any{&expr.Immediate{Register: registerSize, Data: make([]byte, 4)}}
}

func blankBackend(is4 bool) []expr.Any { return blankAt(registerBehind, is4) }

// blankAt fills the registers of a backend.
func blankAt(register uint32, is4 bool) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: register, Data: make([]byte, 4*words4(is4))},
		&expr.Immediate{Register: register + words4(is4), Data: make([]byte, 4)},
	}
}

// blankChosen fills those of what is remembered of a client.
func blankChosen(is4 bool) []expr.Any {
	return append([]expr.Any{&expr.Immediate{Register: registerChosen, Data: make([]byte, 4)}}, blankAt(registerChosen+1, is4)...)
}

// notReached matches what the node itself does not send from the address at which other nodes'
// endpoints answer it.
func notReached(p *plan.Plan, is4 bool) []expr.Any {
	i := slices.IndexFunc(p.Local.ReachedAt, func(a netip.Addr) bool { return a.Is4() == is4 })
	if i < 0 {
		return nil
	}
	return append(nft.Address(is4, true), &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: p.Local.ReachedAt[i].AsSlice()})
}

// isServed matches what belongs to a connection in whose label one of the bits is set. It looks at one
// word of the label, as one is what the kernel compares fastest.
func isServed(bits uint8) []expr.Any {
	const first = unix.NFT_REG32_00
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyLABELS, Register: first},
		&expr.Bitwise{SourceRegister: first + servedWord, DestRegister: first + servedWord, Len: 4, Mask: []byte{bits, 0, 0, 0}, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: first + servedWord, Data: make([]byte, 4)},
	}
}

// setMasqueraded says, in the label of a connection that begins, that the node's address
// becomes the source.
func setMasqueraded() []expr.Any {
	const first = unix.NFT_REG32_08
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyLABELS, Register: first},
		&expr.Immediate{Register: first + servedWord, Data: []byte{masqueradedBit, 0, 0, 0}},
		&expr.Ct{Key: expr.CtKeyLABELS, Register: first, SourceRegister: true},
	}
}

// setServed says, in its label, that a connection has its backend from a Service.
func setServed() []expr.Any {
	const first = unix.NFT_REG32_00
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyLABELS, Register: first},
		&expr.Bitwise{SourceRegister: first + servedWord, DestRegister: first + servedWord, Len: 4, Mask: []byte{^byte(servedBit), 0xff, 0xff, 0xff}, Xor: []byte{servedBit, 0, 0, 0}},
		&expr.Ct{Key: expr.CtKeyLABELS, Register: first, SourceRegister: true},
	}
}

// setDrawn says, in the label of a connection, the number of the slot that was
// drawn for it, which a register holds, and bits beside that. So rules behind one that does not come to its end know that: the kernel lets
// none read a register that only another one has filled. What the label says already it goes on to say: the kernel adds bits
// to a label, and takes none away.
func setDrawn(register uint32, bits uint8) []expr.Any {
	const first = unix.NFT_REG32_00
	return []expr.Any{
		&expr.Immediate{Register: first, Data: make([]byte, 4*servedWord)},
		&expr.Byteorder{SourceRegister: register, DestRegister: first + servedWord, Op: expr.ByteorderHton, Len: 4, Size: 4},
		&expr.Bitwise{SourceRegister: first + servedWord, DestRegister: first + servedWord, Len: 4, Mask: []byte{0, 0xff, 0xff, 0xff}, Xor: []byte{bits, 0, 0, 0}},
		&expr.Ct{Key: expr.CtKeyLABELS, Register: first, SourceRegister: true},
	}
}

// drawnSlot loads the number of the slot that was drawn to right behind the set. The word that says it is filled before, for
// nft alone: it does not know that a label fills it, and gives up where it cannot tell how long that is.
func drawnSlot() []expr.Any {
	const first = unix.NFT_REG32_00
	return []expr.Any{
		&expr.Immediate{Register: first + servedWord, Data: make([]byte, 4)},
		&expr.Ct{Key: expr.CtKeyLABELS, Register: first},
		&expr.Bitwise{SourceRegister: first + servedWord, DestRegister: first + servedWord, Len: 4, Mask: []byte{0, 0xff, 0xff, 0xff}, Xor: make([]byte, 4)},
		&expr.Byteorder{SourceRegister: first + servedWord, DestRegister: registerBehind, Op: expr.ByteorderNtoh, Len: 4, Size: 4},
	}
}

// asNode adds what makes the node's address the source: that from which the node itself
// sends to the backend. Egress rules come before.
func (r *ruleset) asNode(p *plan.Plan) {
	c := r.Chain("masquerading")
	c.Hook = &nft.Hook{Kind: nftables.ChainTypeNAT, Number: *nftables.ChainHookPostrouting, Priority: *nftables.ChainPriorityNATSource + 1}
	for _, is4 := range interval.Families {
		served := "masquerading" + suffix(is4)
		c.Add("what a Service gave its backend", nft.IsFamily(is4), isServed(servedBit), nft.Decide(nft.GoTo(served)))
		c := r.Chain(served)
		c.Add("as a frontend says", isServed(masqueradedBit), nft.Decide(nft.GoTo("as-node"+suffix(is4))))
		c.Add("who is his own backend", nft.AddressInto(is4, true, unix.NFT_REG32_00), nft.AddressInto(is4, false, unix.NFT_REG32_00+words4(is4)), nft.PortInto(unix.NFT_REG32_00+2*words4(is4)),
			nft.InSetOf(unix.NFT_REG32_00, selvesPrefix+suffix(is4)),
			nft.Decide(nft.GoTo("as-node"+suffix(is4))))
	}
	for _, is4 := range interval.Families {
		c := r.Chain("as-node" + suffix(is4))
		c.Add("the node to itself", nft.MetaEqual(expr.MetaKeyOIFNAME, []byte(nft.InterfaceKey("lo"))), nft.Address(is4, false), nft.SourceNATTo(is4, 1))
		own := "as-node-to-endpoints" + suffix(is4)
		c.Add("to the node's endpoints", r.isToEndpoint(), nft.Decide(nft.GoTo(own)))
		c.Add("to those of others", nft.MetaEqual(expr.MetaKeyOIFNAME, []byte(r.stamps.TunnelPrefix)), nft.Decide(nft.GoTo(own)))
		c.Add("elsewhere", []expr.Any{&expr.Masq{FullyRandom: true}})
		c = r.Chain(own)
		var first netip.Addr
		for _, pool := range p.Local.Pools {
			if pool.Gateway.Is4() != is4 {
				continue
			}
			if !first.IsValid() {
				first = pool.Gateway
			}
			c.Add("to one of "+pool.Prefix.String(), nft.InPrefix(pool.Prefix, false), nft.Masquerade(pool.Gateway))
		}
		if first.IsValid() {
			c.Add("to any other", nft.Masquerade(first))
		}
		c.Add("from no address that they would answer", nft.Count(), nft.Decide(nft.Verdict{Kind: expr.VerdictDrop}))
	}
}
