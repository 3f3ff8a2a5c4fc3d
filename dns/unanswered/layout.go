package unanswered

import (
	"cmp"
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A memory begins with a page that says how it is laid out. Behind it are pages, each of them a slot
// into which the kernel can write a query, and then the slots for most queries, which are small.
// A slot begins with a label. Numbers are in the order of the machine's bytes, as kernels write them.
const (
	pageSize, slotSize = 4096, 512
	// pages is how many slots have a page: one for each socket that is read, and some for large
	// queries.
	pages = 128
	// labelSize is where the data of a small query begins, messageAt where in a page what the kernel
	// is to do is, nameAt where it puts the client's address, and dataAt where the query.
	labelSize, messageAt, nameAt, dataAt = 80, 128, 224, 256
	// room is how long a query may be, and slotRoom how long a small one may, in bytes. A
	// resolver's have 282 at most, and some options.
	room, slotRoom = pageSize - dataAt, slotSize - labelSize
)

// version is what the first page says.
const version = "weft-dns unanswered 1\n"

// layout says how many slots of each kind a memory has. Slots have numbers, those with a page first.
type layout struct{ pages, small int }

// layoutOf returns the layout of a memory with a size in bytes, and whether there is one.
func layoutOf(size int) (layout, bool) {
	l := layout{pages, (size - (1+pages)*pageSize) / slotSize}
	return l, l.small > 0 && l.slots() < 1<<16
}

func (l layout) slots() int { return l.pages + l.small }

// at returns where a slot begins, and its size.
func (l layout) at(i int) (at, size int) {
	if i < l.pages {
		return (1 + i) * pageSize, pageSize
	}
	return (1+l.pages)*pageSize + (i-l.pages)*slotSize, slotSize
}

// slot returns a slot of a memory.
func (l layout) slot(memory []byte, i int) []byte {
	at, size := l.at(i)
	return memory[at : at+size : at+size]
}

// What a slot is there for. Every other number stands for free, too.
const (
	// free holds nothing.
	free = 0
	// reading is where the kernel is to write a query. It holds one as soon as the kernel has said how
	// long that is, which it does last.
	reading = 1
	// held holds a query, of which the label says everything.
	held = 2
)

// label is what a slot says of its query, beside what the slot is there for.
type label struct {
	// begun is how often somebody began to answer it.
	begun uint32
	// number is the same in two slots alone if one process has copied the query from one into the
	// other.
	number uint64
	// read is when the query was read (CLOCK_MONOTONIC).
	read time.Duration
	// at is to where it was sent, and from is the client.
	at, from netip.AddrPort
	length   int
}

// Where in a label what is.
const (
	stateAt, begunAt, numberAt, readAt, atAt, fromAt = 0, 4, 8, 16, 24, 40
	atPortAt, fromPortAt, zoneAt, lengthAt, sixAt    = 56, 58, 60, 64, 68
)

var order = binary.NativeEndian

// put writes a label into a slot.
func (l *label) put(slot []byte) {
	order.PutUint32(slot[begunAt:], l.begun)
	order.PutUint64(slot[numberAt:], l.number)
	order.PutUint64(slot[readAt:], uint64(l.read))
	at, from := l.at.Addr().As16(), l.from.Addr().As16()
	copy(slot[atAt:], at[:])
	copy(slot[fromAt:], from[:])
	order.PutUint16(slot[atPortAt:], l.at.Port())
	order.PutUint16(slot[fromPortAt:], l.from.Port())
	zone, _ := strconv.ParseUint(l.from.Addr().Zone(), 10, 32)
	order.PutUint32(slot[zoneAt:], uint32(zone))
	order.PutUint32(slot[lengthAt:], uint32(l.length))
	slot[sixAt] = 0
	if l.at.Addr().Is6() {
		slot[sixAt] = 1
	}
}

// get reads the label of a slot, whatever is there.
func (l *label) get(slot []byte) {
	address := func(at, port int, zone uint32) netip.AddrPort {
		a := netip.AddrFrom16([16]byte(slot[at:]))
		if slot[sixAt] == 0 {
			a = a.Unmap()
		}
		return netip.AddrPortFrom(ofLink(a, zone), order.Uint16(slot[port:]))
	}
	*l = label{begun: order.Uint32(slot[begunAt:]), number: order.Uint64(slot[numberAt:]), read: time.Duration(order.Uint64(slot[readAt:])),
		at: address(atAt, atPortAt, 0), from: address(fromAt, fromPortAt, order.Uint32(slot[zoneAt:])),
		length: int(order.Uint32(slot[lengthAt:]))}
}

// ofLink returns an address of a link, if a zone says of which.
func ofLink(a netip.Addr, zone uint32) netip.Addr {
	if zone == 0 || !a.Is6() {
		return a
	}
	return a.WithZone(strconv.FormatUint(uint64(zone), 10))
}

// source returns the address that the kernel wrote into a page as the client's; none if it is none.
func source(page []byte) netip.AddrPort {
	name := page[nameAt:dataAt]
	port := binary.BigEndian.Uint16(name[2:])
	switch order.Uint16(name) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(name[4:])), port)
	case unix.AF_INET6:
		return netip.AddrPortFrom(ofLink(netip.AddrFrom16([16]byte(name[8:])), order.Uint32(name[24:])), port)
	}
	return netip.AddrPort{}
}

// span is a part of a memory, from one byte to before another.
type span struct{ from, to int }

// found is a slot with a query.
type found struct {
	slot int
	// copied says that the query may be in another slot as well.
	copied bool
	label
}

// left returns which queries a memory holds, the first that was read first, whatever the memory has in
// it. All there is beyond the used parts is zero, and is not looked at, as a look takes memory.
func (l layout) left(memory []byte, used []span, now time.Duration) (all []found) {
	for i := range l.within(used) {
		slot := l.slot(memory, i)
		f, most := found{slot: i}, slotRoom
		f.get(slot)
		if i < l.pages {
			most = room
		}
		switch state := order.Uint32(slot[stateAt:]); {
		case state == held:
		case state == reading && i < l.pages:
			f.begun, f.from, f.length, f.copied = 0, source(slot), int(order.Uint32(slot[messageAt+lengthIn:])), true
		default:
			continue
		}
		if f.length <= 0 || f.length > most || f.read < 0 || f.read > now || f.at.Port() == 0 || f.from.Port() == 0 || f.at.Addr().Is4() != f.from.Addr().Is4() {
			continue
		}
		all = append(all, f)
	}
	// Of two with one number that comes first from which the other was copied.
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(a.number, b.number) })
	once := all[:0]
	for i, f := range all {
		if !f.copied || i+1 == len(all) || all[i+1].number != f.number {
			once = append(once, f)
		}
	}
	return once
}

// within returns the slots that begin in parts of a memory.
func (l layout) within(used []span) iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, s := range used {
			for i := l.first(s.from); i < l.slots(); i++ {
				if at, _ := l.at(i); at >= s.to {
					break
				}
				if !yield(i) {
					return
				}
			}
		}
	}
}

// first returns the first slot that begins at a place in a memory or behind it.
func (l layout) first(at int) int {
	if at <= (1+l.pages)*pageSize {
		return max((at+pageSize-1)/pageSize-1, 0)
	}
	return l.pages + (at-(1+l.pages)*pageSize+slotSize-1)/slotSize
}
