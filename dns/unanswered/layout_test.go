package unanswered

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// size is that of a memory for tests, which has few small slots.
const size = (1+pages)*pageSize + 8*slotSize

var (
	at, client       = netip.MustParseAddrPort("10.96.0.10:53"), netip.MustParseAddrPort("10.1.0.7:4711")
	at6, client6     = netip.MustParseAddrPort("[fd00::10]:53"), netip.MustParseAddrPort("[fd01::7]:4711")
	onLink6, unknown = netip.MustParseAddrPort("[fe80::7%3]:4711"), netip.AddrPort{}
)

// whole are all bytes of a memory.
func whole(memory []byte) []span { return []span{{0, len(memory)}} }

// landed has a page say what it would if the kernel had written a query.
func landed(page []byte, l label, from netip.AddrPort, length int) {
	l.put(page)
	order.PutUint32(page[stateAt:], reading)
	order.PutUint32(page[messageAt+lengthIn:], uint32(length))
	name := page[nameAt:dataAt]
	a := from.Addr()
	switch {
	case a.Is4():
		order.PutUint16(name, unix.AF_INET)
		copy(name[4:], a.AsSlice())
	case a.Is6():
		order.PutUint16(name, unix.AF_INET6)
		copy(name[8:], a.AsSlice())
		if a.Zone() != "" {
			order.PutUint32(name[24:], 3)
		}
	}
	binary.BigEndian.PutUint16(name[2:], from.Port())
}

// TestLeft says of what is in slots which queries those are.
func TestLeft(t *testing.T) {
	const now = time.Hour
	good := label{number: 7, read: now - time.Second, at: at, from: client, length: 40}
	good6 := label{number: 7, read: now, at: at6, from: onLink6, length: slotRoom, begun: 3}
	with := func(l label, change func(*label)) label { change(&l); return l }
	type in struct {
		slot  int
		state uint32
		label
		// from and length are what the kernel has written.
		from   netip.AddrPort
		length int
	}
	small := func(n int, state uint32, l label) in { return in{slot: pages + n, state: state, label: l} }
	for name, c := range map[string]struct {
		in   []in
		want []int
	}{
		"nothing":                   {nil, nil},
		"a small one":               {[]in{small(0, held, good)}, []int{pages}},
		"by IPv6":                   {[]in{small(7, held, good6)}, []int{pages + 7}},
		"a large one":               {[]in{{slot: 3, state: held, label: with(good, func(l *label) { l.length = room })}}, []int{3}},
		"freed":                     {[]in{small(0, free, good)}, nil},
		"no state":                  {[]in{small(0, 77, good)}, nil},
		"the kernel read one":       {[]in{{0, reading, with(good, func(l *label) { l.length, l.from = 0, unknown }), client, 40}}, []int{0}},
		"the kernel read by IPv6":   {[]in{{5, reading, with(good6, func(l *label) { l.begun = 0 }), onLink6, 40}}, []int{5}},
		"the kernel read none":      {[]in{{0, reading, good, client, 0}}, nil},
		"the kernel read too much":  {[]in{{0, reading, good, client, room + 1}}, nil},
		"no address by the kernel":  {[]in{{0, reading, good, unknown, 40}}, nil},
		"a small one is being read": {[]in{small(0, reading, good)}, nil},
		"copied and not freed": {[]in{{0, reading, good, client, 40}, small(2, held, good),
			{1, reading, with(good, func(l *label) { l.number = 8 }), client, 40}}, []int{pages + 2, 1}},
		"in order": {[]in{small(0, held, with(good, func(l *label) { l.number = 9 })), small(1, held, good), small(2, held, with(good, func(l *label) { l.number = 8 }))},
			[]int{pages + 1, pages + 2, pages}},
		"too long":           {[]in{small(0, held, with(good, func(l *label) { l.length = slotRoom + 1 }))}, nil},
		"too long for all":   {[]in{{slot: 3, state: held, label: with(good, func(l *label) { l.length = room + 1 })}}, nil},
		"empty":              {[]in{small(0, held, with(good, func(l *label) { l.length = 0 }))}, nil},
		"negative":           {[]in{small(0, held, with(good, func(l *label) { l.length = -1 }))}, nil},
		"to come":            {[]in{small(0, held, with(good, func(l *label) { l.read = now + 1 }))}, nil},
		"before there was":   {[]in{small(0, held, with(good, func(l *label) { l.read = -1 }))}, nil},
		"two families":       {[]in{small(0, held, with(good, func(l *label) { l.from = client6 }))}, nil},
		"to no port":         {[]in{small(0, held, with(good, func(l *label) { l.at = netip.AddrPortFrom(at.Addr(), 0) }))}, nil},
		"from no port":       {[]in{small(0, held, with(good, func(l *label) { l.from = netip.AddrPortFrom(client.Addr(), 0) }))}, nil},
		"the last small one": {[]in{small(7, held, good)}, []int{pages + 7}},
	} {
		t.Run(name, func(t *testing.T) {
			memory := make([]byte, size)
			l, _ := layoutOf(size)
			want := map[int]label{}
			for _, in := range c.in {
				slot := l.slot(memory, in.slot)
				if in.state == reading {
					landed(slot, in.label, in.from, in.length)
					in.label.from, in.label.length = in.from, in.length
				} else {
					in.label.put(slot)
				}
				order.PutUint32(slot[stateAt:], in.state)
				want[in.slot] = in.label
			}
			var got []int
			for _, f := range l.left(memory, whole(memory), now) {
				got = append(got, f.slot)
				if f.label != want[f.slot] {
					t.Errorf("slot %d has %+v, and it should be %+v", f.slot, f.label, want[f.slot])
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("there are queries in the slots %d, and they should be in %d", got, c.want)
			}
			if got := l.left(memory, nil, now); len(got) > 0 {
				t.Errorf("where nothing is looked at there is %v", got)
			}
		})
	}
}

// TestLayout has slots begin where the ones before end, and be found by where they begin.
func TestLayout(t *testing.T) {
	l, ok := layoutOf(Size)
	if !ok || l.small != Queries {
		t.Fatalf("there are %d small slots", l.small)
	}
	next := pageSize
	for i := range l.slots() {
		at, size := l.at(i)
		if at != next {
			t.Fatalf("slot %d begins at %d, and the one before ends at %d", i, at, next)
		}
		if got, behind := l.first(at), l.first(at+1); got != i || behind != i+1 {
			t.Fatalf("at %d begins slot %d, and it should be %d; behind that %d", at, got, i, behind)
		}
		next += size
	}
	if next > Size || l.first(0) != 0 || l.first(1) != 0 {
		t.Errorf("the slots end at %d, and the first is %d, %d", next, l.first(0), l.first(1))
	}
	var all []int
	for i := range l.within([]span{{0, pageSize}, {3 * pageSize, 4 * pageSize}, {Size - pageSize, Size}}) {
		all = append(all, i)
	}
	want := []int{2}
	for i := range pageSize / slotSize {
		want = append(want, l.slots()-pageSize/slotSize+i)
	}
	if !slices.Equal(all, want) {
		t.Errorf("the slots are %v, and should be %v", all, want)
	}
	for _, size := range []int{0, 1, pageSize, (1 + pages) * pageSize, 1 << 40} {
		if l, ok := layoutOf(size); ok {
			t.Errorf("%d bytes have %v", size, l)
		}
	}
}

// FuzzMemory has anything in a memory: what is said to be a query is within its slot, and has
// addresses, and each slot is given out once.
func FuzzMemory(f *testing.F) {
	const most = dataAt // of a slot that is not the query itself
	seed := func(slot int, fill func([]byte)) []byte {
		b := make([]byte, 2+most)
		order.PutUint16(b, uint16(slot))
		fill(b[2:])
		return b
	}
	good := label{number: 1, read: 1, at: at, from: client, length: 10}
	one := seed(pages, func(b []byte) { good.put(b); order.PutUint32(b[stateAt:], held) })
	two := seed(0, func(b []byte) { landed(b, good, client, 10) })
	three := seed(1, func(b []byte) { good.put(b); order.PutUint32(b[stateAt:], held) })
	f.Add(slices.Concat(one, two, three))
	f.Add(seed(2, func(b []byte) { landed(b, label{number: 1 << 63, at: at6}, onLink6, room) }))
	f.Fuzz(func(t *testing.T, in []byte) {
		memory := make([]byte, size)
		copy(memory, version)
		l, _ := layoutOf(size)
		for len(in) > 2 {
			slot := l.slot(memory, int(order.Uint16(in))%l.slots())
			n := copy(slot[:most], in[2:])
			in = in[2+n:]
		}
		m, left, err := open(memory, whole(memory))
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range left {
			if len(q.Data) == 0 || len(q.Data) != cap(q.Data) || !q.At.Addr().IsValid() || q.At.Addr().Is4() != q.From.Addr().Is4() || q.At.Port() == 0 || q.From.Port() == 0 {
				t.Fatalf("%+v is no query", q)
			}
			if again, err := netip.ParseAddrPort(fmt.Sprint(q.From)); err != nil || again != q.From && !q.From.Addr().Is4In6() {
				t.Fatalf("the client is %s, %v", q.From, err)
			}
			q.Begin()
			for i := range q.Data {
				q.Data[i] = 0xff
			}
		}
		again, same, err := open(slices.Clone(memory), whole(memory))
		if err != nil || again.layout != m.layout || len(same) != len(left) {
			t.Fatalf("%d queries are left, and then %d, %v", len(left), len(same), err)
		}
		for i, q := range same {
			if q.From != left[i].From || q.At != left[i].At || q.slot != left[i].slot || q.Begun != int(uint32(left[i].Begun)+1) {
				t.Fatalf("%+v is left, and then %+v", left[i], q)
			}
		}
		for _, q := range left {
			q.Free()
		}
		given := map[int]bool{}
		for _, of := range []*[]uint16{&m.pages, &m.small} {
			for i, ok := m.take(of); ok; i, ok = m.take(of) {
				if given[i] {
					t.Fatalf("slot %d is given twice", i)
				}
				given[i] = true
			}
		}
		if len(given) != l.slots() {
			t.Fatalf("%d slots of %d are given", len(given), l.slots())
		}
		if _, left, _ := open(memory, whole(memory)); len(left) > 0 {
			t.Fatalf("%d are left, and all were freed", len(left))
		}
	})
}
