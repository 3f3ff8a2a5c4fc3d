package server

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/weftnet/weft/dns/unanswered"
)

const (
	// leftTime is how old a query may be that another server has left. Resolvers ask again after five
	// seconds, most often, and some after ten; a server that hangs is killed after six to eight. An
	// answer for which nobody waits any more harms nobody.
	leftTime = 10 * time.Second
	// maxBegun is how many servers begin to answer a query. If that is what ends them, it ends no more.
	maxBegun = 2
	// maxTold is how many queries that are given up are logged at a start.
	maxTold = 3
)

// What becomes of queries that another server has left.
const (
	takenOver = "taken-over"
	late      = "late"
	givenUp   = "given-up"
)

// useMemory has queries be held in the keeper's memory, and finds those that the server before has
// left there.
func (s *Server) useMemory() error {
	m, all, err := unanswered.Open(s.c.Keeper.Memory)
	if err != nil {
		s.log.Warn("a server that is killed loses the queries that it has read", "error", err)
		if m, all, err = unanswered.Open(nil); err != nil {
			return err
		}
	}
	gone := 0
	left := map[netip.AddrPort][]unanswered.Left{}
	for _, q := range all {
		if q.Begun < maxBegun {
			left[q.At] = append(left[q.At], q)
			continue
		}
		if gone++; gone <= maxTold {
			s.log.Warn(fmt.Sprintf("a query is not answered, as %d servers have ended while they answered it", q.Begun), "client", q.From, "bytes", len(q.Data))
		}
		q.Free()
		s.metrics.left(givenUp)
	}
	if gone > maxTold {
		s.log.Warn("more queries are not answered for the same reason", "queries", gone-maxTold)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory, s.left = m, left
	time.AfterFunc(leftTime, s.forgetLeft)
	return nil
}

// takeOver puts what was left of the queries to an address into the queue. None is refused: it had
// room already. s.mu is held.
func (s *Server) takeOver(p *pair) {
	all := s.left[p.at]
	delete(s.left, p.at)
	number := 0
	for _, q := range all {
		if time.Since(q.Read) > leftTime {
			q.Free()
			s.metrics.left(late)
			continue
		}
		if one := p.packet(q.Query); !s.queries.pushAnyway(one.client(), one) {
			return // The server ends, and the next one finds them.
		}
		number++
		s.metrics.left(takenOver)
	}
	if number > 0 {
		s.log.Info("answering what the server before had read", "address", p.at, "queries", number)
	}
}

// forgetLeft frees what was left of queries to addresses that are not served any more.
func (s *Server) forgetLeft() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, all := range s.left {
		for _, q := range all {
			q.Free()
			s.metrics.left(late)
		}
	}
	clear(s.left)
}
