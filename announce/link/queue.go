package link

import (
	"net/netip"
	"sync"
)

// maxWaiting is how many heartbeats wait to be taken. What is more is lost: they are repeated.
const maxWaiting = 1024

// queue are events that wait to be taken: heartbeats in their order, and apart from these what was heard of addresses, of
// each of which the last counts alone. So it has room for all of it, however many heartbeats wait, and takes no room from them.
type queue struct {
	mu         sync.Mutex
	heartbeats []Event
	// about are the addresses of which something waits, in the order in which it came first, and what that is.
	about []netip.Addr
	of    map[netip.Addr]Event
}

func newQueue() *queue { return &queue{of: make(map[netip.Addr]Event)} }

// put adds an event, if there is room.
func (q *queue) put(e Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch was, waits := q.of[e.Conflict]; {
	case e.Heartbeat != nil && len(q.heartbeats) >= maxWaiting:
	case e.Heartbeat != nil:
		q.heartbeats = append(q.heartbeats, e)
	case !waits:
		q.about = append(q.about, e.Conflict)
		q.of[e.Conflict] = e
	case was.Asks || !e.Asks: // that somebody has an address says more than that he asks for it
		q.of[e.Conflict] = e
	}
}

// takeHeartbeats removes all heartbeats.
func (q *queue) takeHeartbeats() (all []Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	all, q.heartbeats = q.heartbeats, nil
	return all
}

// takeAbout removes all that was heard of addresses.
func (q *queue) takeAbout() (all []Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, a := range q.about {
		all = append(all, q.of[a])
	}
	q.about = nil
	clear(q.of)
	return all
}
