// Package unanswered keeps queries that were read from sockets and are not answered yet in memory
// that outlives the process that reads them. So one that is killed, at any line, loses none: the next
// one finds them there.
//
// The kernel itself writes a query into that memory, with who sent it and, last of all, how long it
// is, in the system call that takes it off the socket's queue. There is no moment at which it is in
// neither. It is copied from there to a slot of its size, and that one is free once the query is
// answered. A process that ends in between may leave a query that was answered; who asked is told
// twice then, and hears once.
//
// Each query says how often somebody began to answer it. If it is what ended those, the next one can
// tell.
//
// Whatever the memory has in it, nothing is read beyond a slot, and a query has two addresses of one
// family. Two processes must not have one memory at a time.
package unanswered

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Size is how large a memory should be, in bytes, and Queries for how many small queries it has room then.
	// What was used once takes room alone, and what was used last is used next.
	Size    = 4 << 20
	Queries = (Size - (1+pages)*pageSize) / slotSize
	// maxLarge is how many large queries are held, and maxLargeEach how many of one client. No
	// resolver sends such.
	maxLarge, maxLargeEach = 48, 8
)

// Memory is where queries are held. Its methods may be called by several goroutines.
type Memory struct {
	layout layout
	bytes  []byte
	// base is what CLOCK_MONOTONIC said when the process began to use the memory.
	started time.Time
	base    time.Duration
	number  atomic.Uint64

	mu sync.Mutex
	// pages and small are the slots that are free; the one that became free last is taken first.
	pages, small []uint16
	// large are the clients of those large queries that are held in pages.
	large map[uint16]netip.Addr
}

// Query is one that was read.
type Query struct {
	// At is to where it was sent, and From is the client.
	At, From netip.AddrPort
	// Read is when it was read.
	Read time.Time
	// Data is the query, until it is freed.
	Data []byte
	// Held is where it is held; nowhere where there was no room.
	Held
}

// Held is a query's slot. The zero value is none.
type Held struct {
	m    *Memory
	slot int
}

// Left is a query that another process has read and not answered.
type Left struct {
	Query
	// Begun is how often somebody began to answer it.
	Begun int
}

// Open maps the memory in a file, and returns the queries that another process left there, the first
// first. All of them are the caller's to free. A memory without a file is as good while the process
// lives.
func Open(f *os.File) (*Memory, []Left, error) {
	if f == nil {
		b, err := unix.Mmap(-1, 0, Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return nil, nil, fmt.Errorf("make memory for queries: %w", os.NewSyscallError("mmap", err))
		}
		m, _, err := open(b, nil)
		return m, nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("use the memory for queries: %w", err)
	}
	size := int(info.Size())
	if _, ok := layoutOf(size); !ok {
		return nil, nil, fmt.Errorf("use the memory for queries: it has %d bytes, and %d would do", info.Size(), Size)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("use the memory for queries: %w", os.NewSyscallError("mmap", err))
	}
	m, left, err := open(b, used(int(f.Fd()), size))
	if err == nil && len(left) == 0 {
		// What was once used takes no more room.
		if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(size)); err == nil {
			copy(b, version)
		}
	}
	return m, left, err
}

// used returns which parts of a file are not zero because nobody has written there.
func used(fd, size int) (all []span) {
	for at := 0; at < size; {
		from, err := unix.Seek(fd, int64(at), unix.SEEK_DATA)
		if err == unix.ENXIO {
			break
		}
		to := int64(size)
		if err == nil {
			to, err = unix.Seek(fd, from, unix.SEEK_HOLE)
		}
		if err != nil {
			return []span{{0, size}}
		}
		all = append(all, span{int(from), int(to)})
		at = int(to)
	}
	return all
}

// open returns a memory of bytes, of which some are used, and the queries in it.
func open(b []byte, used []span) (m *Memory, left []Left, err error) {
	l, _ := layoutOf(len(b))
	m = &Memory{layout: l, bytes: b, large: map[uint16]netip.Addr{}}
	// What passes between the two makes what is held seem older, and never yet to come.
	if m.base, err = monotonic(); err != nil {
		return nil, nil, err
	}
	m.started = time.Now()
	var all []found
	if len(used) > 0 && bytes.HasPrefix(b, []byte(version)) {
		now, err := monotonic()
		if err != nil {
			return nil, nil, err
		}
		all = l.left(b, used, now)
	}
	m.adopt(all, used)
	for _, f := range all {
		slot := l.slot(b, f.slot)
		data := labelSize
		if f.slot < l.pages {
			data = dataAt
		}
		left = append(left, Left{Begun: int(f.begun), Query: Query{At: f.at, From: f.from, Read: m.started.Add(f.read - m.base),
			Data: slot[data : data+f.length : data+f.length], Held: Held{m, f.slot}}})
	}
	return m, left, nil
}

// adopt has the slots be held that hold a query, and all others be free.
func (m *Memory) adopt(all []found, used []span) {
	taken := map[int]bool{}
	for _, f := range all {
		slot := m.layout.slot(m.bytes, f.slot)
		f.put(slot)
		atomic.StoreUint32(word(slot, stateAt), held)
		taken[f.slot] = true
		m.number.Store(f.number)
	}
	for i := range m.layout.within(used) {
		if !taken[i] {
			atomic.StoreUint32(word(m.layout.slot(m.bytes, i), stateAt), free)
		}
	}
	copy(m.bytes, version)
	for i := m.layout.slots() - 1; i >= 0; i-- {
		switch {
		case taken[i]:
		case i < m.layout.pages:
			m.pages = append(m.pages, uint16(i))
		default:
			m.small = append(m.small, uint16(i))
		}
	}
}

// now returns CLOCK_MONOTONIC.
func (m *Memory) now() time.Duration { return m.base + time.Since(m.started) }

// take takes a slot that is free, and reports whether there is one.
func (m *Memory) take(of *[]uint16) (slot int, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.takeLocked(of)
}

func (m *Memory) takeLocked(of *[]uint16) (slot int, ok bool) {
	last := len(*of) - 1
	if last < 0 {
		return 0, false
	}
	slot = int((*of)[last])
	*of = (*of)[:last]
	return slot, true
}

// takeLarge takes another page in the place of one that is to hold a large query of a client, unless
// too many do.
func (m *Memory) takeLarge(page int, client netip.Addr) (next int, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	each := 0
	for _, c := range m.large {
		if c == client {
			each++
		}
	}
	if len(m.large) >= maxLarge || each >= maxLargeEach {
		return 0, false
	}
	if next, ok = m.takeLocked(&m.pages); ok {
		m.large[uint16(page)] = client
	}
	return next, ok
}

// Begin says that somebody begins to answer the query.
func (h Held) Begin() {
	if h.m != nil {
		atomic.AddUint32(word(h.m.layout.slot(h.m.bytes, h.slot), begunAt), 1)
	}
}

// Free says that nothing more becomes of the query, whose data are no more. It is called once.
func (h Held) Free() {
	if h.m == nil {
		return
	}
	atomic.StoreUint32(word(h.m.layout.slot(h.m.bytes, h.slot), stateAt), free)
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if h.slot >= h.m.layout.pages {
		h.m.small = append(h.m.small, uint16(h.slot))
		return
	}
	delete(h.m.large, uint16(h.slot))
	h.m.pages = append(h.m.pages, uint16(h.slot))
}
