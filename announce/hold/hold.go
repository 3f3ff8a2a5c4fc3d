// Package hold gives the node addresses itself, those of VirtualAddresses, for as long as it
// answers for them: on the loopback interface, as whatever link they come by they are the
// node's. What it makes it finds again by its stamps, the number of Weft's routing protocol on
// an address and the name of a table of nftables, and it touches nothing else.
//
// The kernel would answer itself who asks for such an address of IPv4 (ARP), and would ask for
// others by it, from which these learn where it is; also when the agent is dead and another node
// has the address. So the table, of the family arp, drops these questions, and takes the address
// out of those of the node itself, which then are as a probe's. It does so before the first
// address is there until behind the last. Package link sees questions before, and answers. Of
// IPv6 the kernel does neither for an address that is on another interface.
package hold

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Table is the table of nftables, of the family arp.
const Table = "weft-announce"

// stamp is what the kernel keeps with an address (IFA_PROTO), the number of Weft's routing
// protocol; Linux 5.18 and later do. attribute is that of rtnetlink.
const (
	stamp     = 87
	attribute = 11
	loopback  = 1
)

// perMessage is how many elements of a set one message of netlink has at most.
const perMessage = 500

// Holder gives addresses to the node. Its methods are to be called in the network namespace in
// which it was opened. It must be closed.
type Holder struct {
	nft *nftables.Conn
	// quiet are the addresses that the table was given; nil while that is not known.
	quiet map[netip.Addr]bool
}

// Open returns the holder of the network namespace that the caller is in.
func Open() (*Holder, error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open netlink of nftables: %w", err)
	}
	return &Holder{nft: conn}, nil
}

// Close ends the use of the kernel. What the node has stays.
func (h *Holder) Close() { h.nft.CloseLasting() }

// Held returns what the node has by this package, whichever process gave it.
func (*Holder) Held() (map[netip.Addr]bool, error) {
	held := make(map[netip.Addr]bool)
	messages, err := list()
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	for _, m := range messages {
		if len(m) < unix.SizeofIfAddrmsg || nl.DeserializeIfAddrmsg(m).Index != loopback {
			continue
		}
		attributes, err := nl.ParseRouteAttr(m[unix.SizeofIfAddrmsg:])
		if err != nil {
			continue
		}
		var a netip.Addr
		ours := false
		for _, at := range attributes {
			switch at.Attr.Type {
			case unix.IFA_ADDRESS:
				a, _ = netip.AddrFromSlice(at.Value)
			case attribute:
				ours = len(at.Value) == 1 && at.Value[0] == stamp
			}
		}
		if ours && a.IsValid() {
			held[a] = true
		}
	}
	return held, nil
}

// mostLists is how often the node's addresses are listed before it counts as an error that others change them meanwhile.
const mostLists = 20

// list returns the node's addresses of all interfaces, as the kernel says them. It repeats a list during which some
// interface's addresses changed, as those of pods do all the time: that may lack any of the others.
func list() (messages [][]byte, err error) {
	for range mostLists {
		request := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		request.AddData(&nl.IfAddrmsg{})
		messages, err = request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
		if !errors.Is(err, nl.ErrDumpInterrupted) {
			break
		}
	}
	return messages, err
}

// Set gives the node these addresses and takes from it all others that it has by this package.
// It goes as far as it can, and errors name the addresses that it cannot give or take.
func (h *Holder) Set(wanted map[netip.Addr]bool) error {
	held, err := h.Held()
	if err != nil {
		return err
	}
	var errs []error
	// What is to go goes first, whatever becomes of the table, which has it until it is gone.
	for _, a := range slices.SortedFunc(maps.Keys(held), netip.Addr.Compare) {
		if wanted[a] {
			continue
		}
		if err := change(unix.RTM_DELADDR, 0, a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("take the address %s from the node: %w", a, err))
			continue
		}
		delete(held, a)
	}
	both := maps.Clone(held)
	maps.Copy(both, wanted)
	if err := h.quieten(both); err != nil {
		return errors.Join(append(errs, err)...)
	}
	var given []netip.Addr
	for _, a := range slices.SortedFunc(maps.Keys(wanted), netip.Addr.Compare) {
		if held[a] {
			continue
		}
		switch err := change(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, a); {
		case err == nil:
			given = append(given, a)
		case errors.Is(err, unix.EEXIST):
			errs = append(errs, fmt.Errorf("the address %s is on the loopback interface already, and is not Weft's: take it away", a))
		default:
			errs = append(errs, fmt.Errorf("give the node the address %s: %w", a, err))
		}
	}
	return errors.Join(append(errs, h.verify(given))...)
}

// Remove takes away all that the package has given to the node of the caller's network namespace,
// and returns which addresses these were.
func Remove() (held []netip.Addr, err error) {
	h, err := Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	had, err := h.Held()
	if err != nil {
		return nil, err
	}
	if len(had) == 0 {
		// One that was killed may have left the table.
		if !h.there() {
			return nil, nil
		}
	}
	return slices.SortedFunc(maps.Keys(had), netip.Addr.Compare), h.Set(nil)
}

// verify takes back what was given and is not found again.
func (h *Holder) verify(given []netip.Addr) error {
	if len(given) == 0 {
		return nil
	}
	held, err := h.Held()
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range given {
		if !held[a] {
			errs = append(errs, fmt.Errorf("give the node the address %s: the kernel does not keep whose it is, as Linux 5.18 and later do", a), change(unix.RTM_DELADDR, 0, a))
		}
	}
	return errors.Join(errs...)
}

// change adds or removes an address of the loopback interface.
func change(what, flags int, a netip.Addr) error {
	message := &nl.IfAddrmsg{}
	message.Family, message.Prefixlen, message.Index = unix.AF_INET, uint8(a.BitLen()), loopback
	message.Scope = unix.RT_SCOPE_HOST
	if a.Is6() {
		message.Family = unix.AF_INET6
	}
	request := nl.NewNetlinkRequest(what, flags|unix.NLM_F_ACK)
	request.AddData(message)
	request.AddData(nl.NewRtAttr(unix.IFA_LOCAL, a.AsSlice()))
	request.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, a.AsSlice()))
	if what == unix.RTM_NEWADDR {
		// The node is not to speak to others by it of its own accord, so it counts as deprecated
		// (RFC 4862, section 5.5.4) for as long as it is there.
		lifetime := make([]byte, 16)
		binary.NativeEndian.PutUint32(lifetime[4:], math.MaxUint32)
		flags := binary.NativeEndian.AppendUint32(nil, unix.IFA_F_NODAD)
		request.AddData(nl.NewRtAttr(unix.IFA_CACHEINFO, lifetime))
		request.AddData(nl.NewRtAttr(unix.IFA_FLAGS, flags))
		request.AddData(nl.NewRtAttr(attribute, []byte{stamp}))
	}
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// Where the kernel's packet filter finds the addresses of IPv4 in a packet of ARP on Ethernet:
// the sender's, and the one that is asked for.
const (
	senderOffset  = 14
	targetOffset  = 24
	addressLength = 4
)

// The hooks of the family arp (linux/netfilter_arp.h), which have other numbers than those of
// the same names elsewhere.
const (
	arpIn  = 0
	arpOut = 1
)

// there reports whether the table is there, which others may take away, as "nft flush ruleset"
// does, and which a kernel without its family has not.
func (h *Holder) there() bool {
	tables, err := h.nft.ListTablesOfFamily(nftables.TableFamilyARP)
	return err == nil && slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == Table })
}

// quieten has the kernel answer no ARP for these addresses, and for all others as it does.
func (h *Holder) quieten(addresses map[netip.Addr]bool) error {
	four := make(map[netip.Addr]bool)
	for a := range addresses {
		if a.Is4() {
			four[a] = true
		}
	}
	there := h.there()
	if there == (len(four) > 0) && (!there || h.quiet != nil && maps.Equal(h.quiet, four)) {
		h.quiet = four
		return nil
	}
	h.quiet = nil
	table := &nftables.Table{Family: nftables.TableFamilyARP, Name: Table}
	h.nft.AddTable(table) // so that there is one to delete
	h.nft.DelTable(table)
	if len(four) > 0 {
		h.nft.AddTable(table)
		set := &nftables.Set{Table: table, Name: "held", KeyType: nftables.TypeIPAddr}
		var elements []nftables.SetElement
		for _, a := range slices.SortedFunc(maps.Keys(four), netip.Addr.Compare) {
			elements = append(elements, nftables.SetElement{Key: a.AsSlice()})
		}
		err := h.nft.AddSet(set, nil)
		for some := range slices.Chunk(elements, perMessage) {
			err = errors.Join(err, h.nft.SetAddElements(set, some))
		}
		if err != nil {
			return fmt.Errorf("keep the kernel from answering for VirtualAddresses: %w", err)
		}
		for _, c := range []struct {
			name         string
			hook, offset uint32
			then         []expr.Any
		}{
			{"asked", arpIn, targetOffset, []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}},
			{"asking", arpOut, senderOffset, []expr.Any{
				&expr.Immediate{Register: 1, Data: make([]byte, addressLength)},
				&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: senderOffset, Len: addressLength},
			}},
		} {
			chain := h.nft.AddChain(&nftables.Chain{Table: table, Name: c.name, Type: nftables.ChainTypeFilter,
				Hooknum: nftables.ChainHookRef(nftables.ChainHook(c.hook)), Priority: nftables.ChainPriorityFilter})
			h.nft.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append([]expr.Any{
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: c.offset, Len: addressLength},
				&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID},
			}, c.then...)})
		}
	}
	if err := h.nft.Flush(); err != nil {
		return fmt.Errorf("keep the kernel from answering for VirtualAddresses (nftables, table arp %s): %w", Table, err)
	}
	h.quiet = four
	return nil
}
