package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/datapath/reconcile"
	"github.com/weftnet/weft/plan"
)

// Frontends that the node itself answers (plan.Service.Here).
//
// What is sent to one is kept from connection tracking, and so from all translation, before
// anything else is asked about it, and so are the answers. A local route has the kernel
// deliver it, where the address is no interface's: no interface gets the address. That route
// delivers all that is sent there, to whichever program listens at all addresses of the
// node; so nothing else gets in than what is for the ports of such frontends. What is for
// other frontends of the address has another destination by then.
//
// The policy table judges what endpoints send as all that they send to the node. As nothing
// is tracked, it does so for each packet. What the node sends to its own endpoints it does not
// judge, answers among it; and nobody but the node sends from there: see arrivals.
//
// All that endpoints ask by UDP waits in one line until somebody reads it, so what one may send there
// has a limit: what others send gets a place in it, too. It goes by datagrams and by bytes, as the line's
// room does. What cannot be a question, as it is too short, gets no place at all.
//
// A frontend comes to be answered here, and ceases to be, so that no packet is lost or gets to
// where it must not. What keeps all else out comes first and goes last, the local route is
// within that, and within it in turn the elements by which packets are told apart, which change in
// one transaction with policies. Those of the frontend among the others stay a moment longer: a packet
// that was tracked is given its backend, too. Where the table is written anew instead, as at a start, what is under
// way in that moment is dropped, and so is what no route delivers yet.
//
// Who asks the node for the link address of such an address on a link of its own gets the node's, as
// the kernel answers for all that it delivers. What he sends then is kept out.

const (
	herePrefix     = "here"       // address, protocol, port of those frontends
	herePortsSet   = "here-ports" // port, of all of them
	hereOpenPrefix = "here-open"  // the same, of what is delivered at the addresses of
	hereOnlyPrefix = "here-only"  // which nothing else is
	hereChain      = "to-here"
	askingSet      = "asking"       // interface -> rate of datagrams
	askingBytesSet = "asking-bytes" // interface -> rate of bytes

	// askRate is how many datagrams an endpoint may send in a second, by UDP, to what the node itself
	// answers, and askBurst how many at once. The kernel counts 768 bytes of a socket's room (an skb's
	// truesize) for each that is small, though it be empty. So a burst takes less than half of the 550
	// that wait where the room is 208 KiB, the usual limit, of which the kernel takes twice; and at that rate
	// nobody need read for 27 ms until one endpoint alone has filled it, as on a node that is busy.
	askRate, askBurst = 20_000, 250
	// askBytesRate and askBytesBurst are the same in bytes, for those that are large: 3,000 packets in a
	// second that are as large as packets are, of which 190 at once. A socket has room for 400 of those
	// where it may take a megabyte.
	askBytesRate, askBytesBurst = 4 << 20, 256 << 10

	// namePort is where what is asked are names, and shortestQuestion how long the shortest is: the headers
	// of UDP (RFC 768) and of a query, and a name that is the root's, its type and its class (RFC 1035).
	namePort         = 53
	shortestQuestion = 8 + 12 + 5
)

// answersHere adds the rules of frontends that the node itself answers.
func (r *ruleset) answersHere() {
	// Behind what judges where packets come from, and before connection tracking.
	before := *nftables.ChainPriorityRaw + 10
	hook := func(name string, kind nftables.ChainType, at *nftables.ChainHook, priority nftables.ChainPriority) *nft.Chain {
		c := r.Chain(name)
		c.Hook = &nft.Hook{Kind: kind, Number: *at, Priority: priority}
		return c
	}
	// No interface is where it came from, and another than the loopback interface where it goes.
	fromNobody := nft.MetaEqual(expr.MetaKeyIIFNAME, make([]byte, unix.IFNAMSIZ))
	leavesNode := nft.MetaNotEqual(expr.MetaKeyOIFNAME, []byte(nft.InterfaceKey("lo")))
	newHopLimit := []expr.Any{
		&expr.Immediate{Register: 1, Data: []byte{254}}, // which nobody has, and nobody on the node looks at
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 7, Len: 1}, // RFC 8200, section 3
	}
	fromNode := nft.MetaEqual(expr.MetaKeyIIFNAME, []byte(nft.InterfaceKey("lo")))
	// One of a packet's two ports, at which the node answers nothing.
	const sourcePort, destinationPort = 0, 2
	otherPort := func(offset uint32) []expr.Any {
		return append([]expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}}, nft.NotInSetOf(1, herePortsSet)...)
	}

	for _, name := range []string{askingSet, askingBytesSet} {
		r.Set(name, nft.Set{Key: nftables.TypeIFName, Timeout: true, Dynamic: true})
	}
	c := hook("here-arriving", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, before)
	// This is asked of every packet, of which most are sent to other ports, so that this comes first.
	r.Set(herePortsSet, nft.Set{Key: nftables.TypeInetService})
	c.Add("what others than endpoints send", nft.MetaNotEqual(expr.MetaKeyIIFGROUP, nft.HostEndian(r.stamps.Group)), nft.Decide(nft.Accept))
	c.Add("to a port at which the node answers nothing", otherPort(destinationPort), nft.Decide(nft.Accept))
	for _, is4 := range interval.Families {
		c.Add("all else that endpoints send", nft.IsFamily(is4), nft.Decide(nft.GoTo(hereChain+suffix(is4))))
	}
	// A route is found before this, and an IPv6 socket that is connected keeps the one that it has
	// found. A chain of this type has another one looked for where the packet's header changes.
	c = hook("here-leaving", nftables.ChainTypeRoute, nftables.ChainHookOutput, before)
	// All else of this costs the node's own connections three look-ups a packet.
	c.Add("TCP between ports at which the node answers nothing", nft.IsProtocol(unix.IPPROTO_TCP), otherPort(sourcePort), otherPort(destinationPort), nft.Decide(nft.Accept))
	for _, is4 := range interval.Families {
		c.Add("answers", nft.IsFamily(is4), nft.Address(is4, true), nft.InSet(hereOnlyPrefix+suffix(is4)), []expr.Any{&expr.Notrack{}}, nft.Decide(nft.Accept))
		c.Add("answers from an address of the node's own", nft.IsFamily(is4), frontendFrom(is4), nft.InSetOf(registerFrontend, herePrefix+suffix(is4)), []expr.Any{&expr.Notrack{}}, nft.Decide(nft.Accept))
	}
	for _, is4 := range interval.Families {
		c.Add("what the node sends", nft.IsFamily(is4), nft.Decide(nft.GoTo(hereChain+suffix(is4))))
	}
	for _, is4 := range interval.Families {
		admitted := hereChain + "-admitted" + suffix(is4)
		r.Chain(hereChain+suffix(is4)).Add("the node itself answers", frontendOf(is4), nft.InSetOf(registerFrontend, herePrefix+suffix(is4)), nft.Decide(nft.GoTo(admitted)))
		c := r.Chain(admitted)
		c.Add("it is for others", isForOthers(plan.Inside, is4), r.drop(datapath.NotForClient))
		asked := slices.Concat(r.isFromEndpoint(), nft.IsProtocol(unix.IPPROTO_UDP))
		c.Add("no question is so short", asked, nft.IsPort(namePort), shorterDatagram(shortestQuestion), r.drop(datapath.NoQuestion))
		c.Add("nobody asks too often", asked, nft.InterfaceName(), above(askingSet, askRate, askBurst), r.drop(datapath.TooMany))
		c.Add("nobody asks too much at a time", asked, nft.InterfaceName(), []expr.Any{
			&expr.Dynset{SrcRegKey: 1, SetName: askingBytesSet, Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{
				&expr.Limit{Type: expr.LimitTypePktBytes, Rate: askBytesRate, Over: true, Unit: expr.LimitTimeSecond, Burst: askBytesBurst},
			}}}, r.drop(datapath.TooMany))
		if !is4 {
			c.Add("a way of before", fromNobody, leavesNode, newHopLimit)
		}
		c.Add("it is delivered here", nft.FibType(false, unix.RTN_LOCAL), []expr.Any{&expr.Notrack{}}, nft.Decide(nft.Accept))
		c.Add("nothing delivers it", r.drop(datapath.NoBackend))
	}

	c = hook("here-inward", nftables.ChainTypeFilter, nftables.ChainHookInput, *nftables.ChainPriorityFilter-10)
	for _, is4 := range interval.Families {
		c.Add("where the node answers, and nobody else", nft.IsFamily(is4), nft.Address(is4, false), nft.InSet(hereOnlyPrefix+suffix(is4)), nft.Decide(nft.GoTo(hereOnlyPrefix+suffix(is4))))
	}
	for _, is4 := range interval.Families {
		c := r.Chain(hereOnlyPrefix + suffix(is4))
		within := nft.InSetOf(registerFrontend, hereOpenPrefix+suffix(is4))
		c.Add("what endpoints send", r.isFromEndpoint(), nft.Untracked(), frontendOf(is4), within, nft.Decide(nft.Accept))
		c.Add("what the node sends", fromNode, nft.Untracked(), frontendOf(is4), within, nft.Decide(nft.Accept))
		c.Add("what it answers itself", fromNode, nft.Untracked(), frontendFrom(is4), within, nft.Decide(nft.Accept))
		// Who does not wait for an answer any more says so, and nobody is to blame.
		errors := nft.InSet(r.icmpErrors())
		if !is4 {
			errors = []expr.Any{&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: []byte{128}}}
		}
		c.Add("errors about answers", nft.IsProtocol(icmpOf(is4)), icmpType(), errors, nft.Count(), nft.Decide(nft.Verdict{Kind: expr.VerdictDrop}))
		c.Add("all else is for nobody", r.drop(datapath.NoBackend))
	}
}

// shorterDatagram matches UDP datagrams that are shorter, with their header, than some bytes.
func shorterDatagram(than uint16) []expr.Any {
	return append(nft.FromTransport(4, 2), &expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: binary.BigEndian.AppendUint16(nil, than)})
}

// frontendFrom loads what a packet is sent from, as frontendOf what it is sent to.
func frontendFrom(is4 bool) []expr.Any {
	w := words4(is4)
	return append(nft.AddressInto(is4, true, registerFrontend),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: registerFrontend + w},
		&expr.Payload{DestRegister: registerFrontend + w + 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2})
}

// hereElements puts what the table has of a frontend that the node itself answers, but for
// what keeps all else out.
func hereElements(k plan.ServiceKey, put putElement) {
	put(herePrefix+suffix(k.Address.Is4()), nft.Element{Key: frontendKey(k)}, nft.Value{})
}

// herePort is a port at which the node itself answers something.
func herePort(port uint16) (set string, e nft.Element, v nft.Value) {
	return herePortsSet, nft.Element{Key: string(binary.BigEndian.AppendUint16(nil, port))}, nft.Value{}
}

// shutElements are what keeps out all else than such a frontend at its address: what is let
// in, and that nothing else is.
func shutElements(k plan.ServiceKey, put putElement) {
	is4 := k.Address.Is4()
	put(hereOpenPrefix+suffix(is4), nft.Element{Key: frontendKey(k)}, nft.Value{})
	put(hereOnlyPrefix+suffix(is4), nft.Element{Key: string(k.Address.AsSlice())}, nft.Value{})
}

// setsOfShut are the sets of these, as they are without elements.
func setsOfShut() map[string]nft.Set {
	all := map[string]nft.Set{}
	for _, is4 := range interval.Families {
		all[hereOpenPrefix+suffix(is4)] = nft.Set{Key: typeFrontend(is4), Concat: true}
		all[hereOnlyPrefix+suffix(is4)] = nft.Set{Key: nft.AddressType(is4)}
	}
	return all
}

// answeredBy yields the frontends of a plan that the node itself answers, at addresses that
// are none of its own.
func answeredBy(p *plan.Plan) iter.Seq[plan.ServiceKey] {
	return func(yield func(plan.ServiceKey) bool) {
		for k, s := range p.Services.All() {
			if s.Here && !p.Owns(k.Network, k.Address) && !yield(k) {
				return
			}
		}
	}
}

// shutBy are the elements of what keeps all else out, by set, for frontends.
func shutBy(frontends iter.Seq[plan.ServiceKey]) map[string]nft.Elements {
	all := map[string]nft.Elements{}
	for set := range setsOfShut() {
		all[set] = nft.Elements{}
	}
	for k := range frontends {
		shutElements(k, func(set string, e nft.Element, v nft.Value) { all[set][e] = v })
	}
	return all
}

// movesHere reports whether changes are about frontends that the node itself answers.
func movesHere(changes plan.Diff) bool {
	return slices.ContainsFunc(changes.Services, func(c plan.Change[plan.ServiceKey, plan.Service]) bool {
		return c.Old != nil && c.Old.Here || c.New != nil && c.New.Here
	})
}

// here has the kernel deliver what is sent to a frontend that the node itself answers.
func (c *compiler) here(k plan.ServiceKey, s plan.Service) {
	if !s.Here || c.plan.Owns(k.Network, k.Address) || c.node.Holding(k.Address) != 0 {
		return
	}
	to := rtnl.Route{Kind: unix.RTN_LOCAL, Source: c.plan.AskedFrom(k.Network, k.Address)}
	if c.node.Holding(to.Source) == 0 && (c.node.Bridge == 0 || !c.ownGateway(to.Source)) {
		to.Source = netip.Addr{} // the kernel takes none that it does not have
	}
	c.putRoute(unix.RT_TABLE_LOCAL, interval.Single(k.Address), to)
}

// meanwhile returns the plan that Services go by on the way from one to another: a frontend
// that the node comes to answer itself has a backend in it, too. It is the other where there is
// none such. One that the node ceases to answer has its backend at once, with the policies that
// judge what is sent there: before, they would judge it by the frontend.
func meanwhile(p, q *plan.Plan, changes plan.Diff) *plan.Plan {
	m := *q
	for _, c := range changes.Services {
		if c.New == nil || !c.New.Here || c.Old != nil && c.Old.Here {
			continue
		}
		k := c.Key
		for _, k.From = range []plan.Scope{plan.Inside, plan.Anywhere} {
			s, ok := p.Services.Get(k)
			if !ok || s.Here || s.Set == "" {
				continue
			}
			s.Here, s.Sources = true, c.New.Sources
			m.Services = m.Services.Set(c.Key, s)
			for k, b := range p.BackendsOf(k.Network, s.Set) {
				if _, stays := m.Backends.Get(k); !stays {
					m.Backends = m.Backends.Set(k, b)
				}
			}
			break
		}
	}
	return &m
}

// comeHere does what must be done before frontends come that the node itself answers: all
// else that is sent to their addresses is kept out, and only then delivered. Where there are no
// Services any more, nothing is delivered any more before they go. What is done is in the delta
// no longer.
func (d *DataPlane) comeHere(p *plan.Plan, delta *rtnl.Delta, c *compiler) error {
	served := p.Services.Len() > 0
	early, rest := delta.Local(served)
	if served {
		there, err := d.services.shut(shutBy(answeredBy(p)), d.record)
		if err != nil || !there {
			return err
		}
	}
	if len(early.Routes) == 0 {
		return nil
	}
	refused, err := d.kernel.Apply(early, func(map[int]bool) error { return nil }, c.blame)
	if err != nil {
		return nil // it is tried once more with all else, and told then
	}
	d.refused = append(d.refused, refused...)
	*delta = rest
	return nil
}

// shut adds elements of what keeps all else out. It returns false where there is no table to
// which to add them.
func (s *services) shut(want map[string]nft.Elements, record func(string, ...any)) (bool, error) {
	for set, like := range setsOfShut() {
		if s.shutNow[set] == nil {
			have, _, err := nft.ReadElements(like.In(s.stamps.ServiceTable, set))
			if errors.Is(err, unix.ENOENT) {
				return false, nil
			} else if err != nil {
				return false, err
			}
			if s.shutNow == nil {
				s.shutNow = map[string]nft.Elements{}
			}
			s.shutNow[set] = have
		}
	}
	changes := map[string]nft.Change{}
	for set, elements := range want {
		var come []reconcile.Change[nft.Element, nft.Value]
		for _, e := range elements.Keys() {
			if _, there := s.shutNow[set][e]; !there {
				come = append(come, reconcile.Change[nft.Element, nft.Value]{Key: e, New: &nft.Value{}})
			}
		}
		if len(come) > 0 {
			changes[set] = nft.Change{Elements: come}
		}
	}
	if err := s.changeShut(changes, record); err != nil {
		return false, fmt.Errorf("keep out all but what the node itself answers: %w", err)
	}
	for set := range changes {
		maps.Copy(s.shutNow[set], want[set])
	}
	return true, nil
}

// changeShut writes changes of what keeps all else out.
func (s *services) changeShut(changes map[string]nft.Change, record func(string, ...any)) error {
	if len(changes) == 0 {
		return nil
	}
	t := nft.NewTable(s.stamps.ServiceTable)
	for set, like := range setsOfShut() {
		t.Set(set, like)
	}
	lines, err := nft.Apply(nft.Edit{Table: t, Changes: changes})
	for _, line := range lines {
		record("%s", line)
	}
	return err
}

// letIn ends what shut has begun, where nothing leads to an address any more.
func (d *DataPlane) letIn(p *plan.Plan) error {
	s := &d.services
	if !s.present {
		return nil
	}
	want, changes := shutBy(answeredBy(p)), map[string]nft.Change{}
	for set, have := range s.shutNow {
		var gone []reconcile.Change[nft.Element, nft.Value]
		for _, e := range have.Keys() {
			if _, stays := want[set][e]; !stays {
				gone = append(gone, reconcile.Change[nft.Element, nft.Value]{Key: e, Old: &nft.Value{}})
			}
		}
		if len(gone) > 0 {
			changes[set] = nft.Change{Elements: gone}
		}
	}
	if err := s.changeShut(changes, d.record); err != nil {
		return fmt.Errorf("let in what was for the node itself alone: %w", err)
	}
	for set := range changes {
		s.shutNow[set] = want[set]
	}
	return nil
}
