package server

import (
	"context"
	"net/netip"
	"sync"
)

// slots are few, and waited for. A client that wants many waits for its own, and for no more than
// its share of all: of each as many stand in line as it may have.
type slots struct {
	// each is how many one client has at most, and all has room for those of all.
	each int
	all  chan struct{}

	mu      sync.Mutex
	clients map[netip.Addr]*slotsOf
}

// slotsOf are those of one client.
type slotsOf struct {
	taken chan struct{}
	// wanted is how many it has or waits for.
	wanted int
}

func newSlots(each, all int) *slots {
	return &slots{each: each, all: make(chan struct{}, all), clients: map[netip.Addr]*slotsOf{}}
}

// enter waits for a slot, for as long as ctx lasts; leave gives it back. beside, if it is not nil, are slots
// that not all may have: one of these will do.
func (s *slots) enter(ctx context.Context, client netip.Addr, beside chan struct{}) (leave func(), err error) {
	s.mu.Lock()
	own := s.clients[client]
	if own == nil {
		own = &slotsOf{taken: make(chan struct{}, s.each)}
		s.clients[client] = own
	}
	own.wanted++
	s.mu.Unlock()
	forget := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if own.wanted--; own.wanted == 0 {
			delete(s.clients, client)
		}
	}
	select {
	case own.taken <- struct{}{}:
	case <-ctx.Done():
		forget()
		return nil, ctx.Err()
	}
	of := s.all
	select {
	case of <- struct{}{}:
	case beside <- struct{}{}:
		of = beside
	case <-ctx.Done():
		<-own.taken
		forget()
		return nil, ctx.Err()
	}
	return func() {
		<-of
		<-own.taken
		forget()
	}, nil
}
