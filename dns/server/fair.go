package server

import (
	"net/netip"
	"sync"
)

// fair is a queue that gives each client its turn, however much others have put into it. What
// does not fit is dropped as it comes. While the queue is full that is what comes of clients that have
// few waiting already, or more: who asks for both kinds of addresses at once has room.
type fair[T any] struct {
	// each is how many items of one client wait at most, and all how many of all; beyond that
	// a client that has few waiting may have one more, up to twice of all.
	each, all int

	mu      sync.Mutex
	more    sync.Cond
	clients map[netip.Addr]*lane[T]
	// turns are the clients that have something waiting, the next one first.
	turns line[*lane[T]]
	// spare are lanes that nobody needs, to be used again: most clients have one item waiting, if
	// any.
	spare   []*lane[T]
	waiting int
	closed  bool
}

// lane is what waits of one client.
type lane[T any] struct {
	client netip.Addr
	line[T]
}

// line are items in order, of which the first taken are no more.
type line[T any] struct {
	items []T
	taken int
}

func (l *line[T]) waiting() int { return len(l.items) - l.taken }

// next returns the first item, of which there is one.
func (l *line[T]) next() T { return l.items[l.taken] }

// add puts an item behind the others. What was taken makes room before more is made.
func (l *line[T]) add(item T) {
	if len(l.items) == cap(l.items) && l.taken > 0 && l.taken >= l.waiting() {
		n := copy(l.items, l.items[l.taken:])
		clear(l.items[n:])
		l.items, l.taken = l.items[:n], 0
	}
	l.items = append(l.items, item)
}

// take takes the first item out, of which there is one.
func (l *line[T]) take() (item T) {
	var zero T
	item, l.items[l.taken] = l.items[l.taken], zero
	if l.taken++; l.waiting() == 0 {
		l.items, l.taken = l.items[:0], 0
	}
	return item
}

// maxSpare is how many lanes are kept, and maxRoom for how many items such a one has room.
const maxSpare, maxRoom = 64, 16

func newFair[T any](each, all int) *fair[T] {
	f := &fair[T]{each: each, all: all, clients: map[netip.Addr]*lane[T]{}}
	f.more.L = &f.mu
	return f
}

// push puts an item of a client in, and reports whether there was room.
func (f *fair[T]) push(client netip.Addr, item T) bool {
	return f.put(client, false, func() T { return item })
}

// pushNew is push of an item that is made only if there is room.
func (f *fair[T]) pushNew(client netip.Addr, item func() T) bool { return f.put(client, false, item) }

// pushAnyway puts an item in though there is no room. It reports false once the queue is closed.
func (f *fair[T]) pushAnyway(client netip.Addr, item T) bool {
	return f.put(client, true, func() T { return item })
}

func (f *fair[T]) put(client netip.Addr, anyway bool, item func() T) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.clients[client]
	full := f.waiting >= 2*f.all || l != nil && (l.waiting() >= f.each || f.waiting >= f.all && l.waiting() >= few)
	switch {
	case f.closed, full && !anyway:
		return false
	case l == nil:
		if n := len(f.spare); n > 0 {
			l, f.spare = f.spare[n-1], f.spare[:n-1]
		} else {
			l = &lane[T]{}
		}
		l.client = client
		f.clients[client] = l
		f.turns.add(l)
	}
	l.add(item())
	f.waiting++
	f.more.Signal()
	return true
}

// pop waits for an item, and takes out that of the client whose turn it is. It reports false
// once the queue is closed and empty.
func (f *fair[T]) pop() (item T, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.waiting == 0 {
		if f.closed {
			return item, false
		}
		f.more.Wait()
	}
	l := f.turns.take()
	item = l.take()
	f.waiting--
	if l.waiting() > 0 {
		f.turns.add(l)
		return item, true
	}
	delete(f.clients, l.client)
	if len(f.spare) < maxSpare && cap(l.items) <= maxRoom {
		f.spare = append(f.spare, l)
	}
	return item, true
}

// close has pop end once it has returned all there is.
func (f *fair[T]) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.more.Broadcast()
}

// share counts what each client has under way, and all together.
type share struct {
	// each is how many one client has at most, and all how many all have; beyond that a client
	// that has few may have one more, up to twice of all.
	each, all int
	// in, if it is set, are those of this share and of others.
	in *together

	mu      sync.Mutex
	clients map[netip.Addr]int
	total   int
}

// few is what a client needs that asks for one name: for both kinds of addresses at once.
const few = 2

func newShare(each, all int) *share {
	return &share{each: each, all: all, clients: map[netip.Addr]int{}}
}

// take counts one more of a client, unless that is too many.
func (s *share) take(client netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	has := s.clients[client]
	if has >= s.each || s.total >= s.all && has >= few || s.total >= 2*s.all {
		return false
	}
	if s.in != nil && !s.in.take(s.total < s.in.few && has < few) {
		return false
	}
	s.total++
	s.clients[client]++
	return true
}

// give says that one is over.
func (s *share) give(client netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.in != nil {
		s.in.give()
	}
	if s.clients[client]--; s.clients[client] == 0 {
		delete(s.clients, client)
	}
}

func (s *share) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// together counts what several shares have.
type together struct {
	// all is how many they have at most. Beyond that a share that has less than few may have one more, of a
	// client that has few, as long as there are less than most.
	all, few, most int

	mu    sync.Mutex
	total int
}

// take counts one more of a share, unless that is too many; little says that it has little.
func (t *together) take(little bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.total >= t.all && !little || t.total >= t.most {
		return false
	}
	t.total++
	return true
}

// give says that one is over.
func (t *together) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total--
}

func (t *together) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}
