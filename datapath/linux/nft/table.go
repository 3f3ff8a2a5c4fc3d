// Package nft has nftables tables as values, and reads and writes them.
//
// A Table is what one should hold: chains of rules, which are pieces put together from
// exprs.go, and sets with their elements. A Content is what the kernel holds, in a
// form that can be compared: a rule is known again by a digest in its user data. Read
// returns it, and Write makes it what a Table says, in one transaction. Where only
// elements differ it touches these alone.
//
// Whoever knows a change itself writes that: see Change.
package nft

import (
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	mdlayher "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/interval"
)

// Table is what one nftables table of the family inet should hold. Chains, rules and
// sets are its structure, which changes rarely; elements come and go with pods.
type Table struct {
	Name   string
	Chains map[string]*Chain
	Sets   map[string]*Set
}

// NewTable returns a table without anything, which is not to be there.
func NewTable(name string) *Table {
	return &Table{Name: name, Chains: map[string]*Chain{}, Sets: map[string]*Set{}}
}

// Chain is one that packets meet, or that other chains go to.
type Chain struct {
	// Hook is nil for a chain that others jump to.
	Hook  *Hook
	Rules []filterRule
}

// Hook is where packets meet a chain.
type Hook struct {
	Kind     nftables.ChainType
	Number   nftables.ChainHook
	Priority nftables.ChainPriority
}

type filterRule struct {
	Comment string // for people, at most 120 bytes
	Exprs   []expr.Any
}

// Set is a set, a map to verdicts, or a map to data.
type Set struct {
	Key      nftables.SetDatatype
	Interval bool
	Concat   bool
	Verdicts bool
	// Data is what a map to data maps to.
	Data nftables.SetDatatype
	// Counts makes every element count what it matches.
	Counts bool
	// Timeout makes elements end by themselves. They come while packets do,
	// and are not compared.
	Timeout bool
	// Dynamic makes rules add elements.
	Dynamic bool
	// Lasts is for how long such an element is kept after the last packet; 0 is
	// dynamicTimeout.
	Lasts time.Duration
	// Size is how many elements there may be; 0 is dynamicSize where rules add
	// them, and else no bound.
	Size     uint32
	Elements Elements
}

// Elements are those of one set.
type Elements map[Element]Value

// Element is one key. An interval is two: its first address, and, marked as
// end, the address after its last. In a set of concatenations an interval is
// one, whose last key is given.
type Element struct {
	Key  string
	End  bool
	Last string
}

// Value is what a map has for an element, a verdict or data; the zero value in
// a set that is no map.
type Value struct {
	Verdict Verdict
	Data    string
}

// Verdict is what becomes of a packet.
type Verdict struct {
	Kind  expr.VerdictKind
	Chain string
}

// Accept ends a hook.
var Accept = Verdict{Kind: expr.VerdictAccept}

// GoTo is the verdict that goes to a chain.
func GoTo(chain string) Verdict { return Verdict{expr.VerdictGoto, chain} }

// Empty reports whether the table is not to be there.
func (t *Table) Empty() bool { return len(t.Chains) == 0 }

// Chain returns the chain of a name, which is made where there is none.
func (t *Table) Chain(name string) *Chain {
	c, ok := t.Chains[name]
	if !ok {
		c = &Chain{}
		t.Chains[name] = c
	}
	return c
}

// Add adds a rule of pieces, with a comment for people.
func (c *Chain) Add(comment string, exprs ...[]expr.Any) {
	c.Rules = append(c.Rules, filterRule{comment, slices.Concat(exprs...)})
}

// Set returns the set of a name, which is made where there is none.
func (t *Table) Set(name string, like Set) *Set {
	s, ok := t.Sets[name]
	if !ok {
		s = &like
		s.Elements = Elements{}
		t.Sets[name] = s
	}
	return s
}

// AddressType is that of a family's addresses.
func AddressType(is4 bool) nftables.SetDatatype {
	if is4 {
		return nftables.TypeIPAddr
	}
	return nftables.TypeIP6Addr
}

// AddIntervals adds ranges of addresses.
func (e Elements) AddIntervals(intervals []interval.Range[Value]) {
	for _, i := range intervals {
		e[Element{Key: string(i.First.AsSlice())}] = i.Value
		if after := i.Last.Next(); after.IsValid() {
			e[Element{Key: string(after.AsSlice()), End: true}] = Value{}
		}
	}
}

// ownSockets are the addresses of the sockets by which this process writes
// nftables, of late.
var ownSockets socketSet

// OwnSocket reports whether an address is that of such a socket.
func OwnSocket(address uint32) bool { return ownSockets.has(address) }

// socketSet remembers the last few hundred of sockets.
type socketSet struct {
	mu    sync.Mutex
	order []uint32
}

// add takes note of a socket.
func (s *socketSet) add(c *mdlayher.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var address unix.Sockaddr
	var failure error
	if err := raw.Control(func(fd uintptr) { address, failure = unix.Getsockname(int(fd)) }); err != nil {
		return err
	}
	if a, ok := address.(*unix.SockaddrNetlink); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.order) > 500 {
			s.order = slices.Delete(s.order, 0, 250)
		}
		s.order = append(s.order, a.Pid)
	}
	return failure
}

func (s *socketSet) has(address uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.order, address)
}
