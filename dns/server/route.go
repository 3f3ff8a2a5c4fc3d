package server

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"
)

const (
	// lookAgain is how often the node's resolv.conf is read.
	lookAgain = 5 * time.Second
	// Between two probes of a server: one that brings queries back, one that did not, and one that said
	// nothing or nothing that helps, or that is asked for names of a domain that is troubled. Others are not
	// probed sooner for that: a pod can trouble a domain for as long as it likes.
	probeLooping, probeFine, probeSilent = 10 * time.Second, 5 * time.Minute, 10 * time.Second
	// maxProbes is how many are under way at once.
	maxProbes = 8
)

// route decides who is asked for names outside, again and again. It calls decided when it has.
func (s *Server) route(ctx context.Context, decided func()) {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	var (
		resolv   resolvFile
		all      = standings{}
		outcomes = make(chan outcome, maxProbes)
		now      *ways
		read     []netip.AddrPort
	)
	for {
		data, err := os.ReadFile(s.c.Resolv)
		if err == nil && resolv.take(data) {
			s.search(resolv.searches)
		}
		set, own := s.settings.Load(), s.own()
		w, problems := choose(set, s.c.Resolv, resolv.servers, own, func(s server) bool { return all.of(s).loops })
		if err != nil && (set == nil || len(set.Upstreams) == 0) {
			problems = append(problems, fmt.Sprintf("which servers the node asks is not known: %v", err))
		}
		if resolv.gone && err == nil && (set == nil || len(set.Upstreams) == 0) {
			problems = append(problems, fmt.Sprintf("%s names no server any more: those that it named before are asked still", s.c.Resolv))
		}
		if now == nil || !now.equal(&w) {
			if err := s.take(&w); err != nil {
				problems = append(problems, fmt.Sprintf("who is to be asked for names outside of the cluster cannot be taken over: %v", err))
			} else {
				s.log.Info("asking others for names outside of the cluster", "servers", w.rest, "domains", w.stubs)
				now = &w
			}
		}
		pods, failing, troubled := s.outside.Load().router.said()
		all.hear(pods, time.Now())
		problems = append(problems, w.unheard(all)...)
		problems = append(problems, w.passedOver(all, time.Now())...)
		problems = append(problems, w.unhelped(all, failing, time.Now())...)
		s.mu.Lock()
		if !slices.Equal(s.ways, problems) {
			s.ways = problems
			say(s.told)
		}
		s.mu.Unlock()
		decided()

		// A probe can come back to sockets that are there alone.
		if reading := s.reading(); !slices.Equal(read, reading) {
			read = reading
			for _, one := range all {
				one.probed = time.Time{}
			}
		}
		candidates, _ := choose(set, s.c.Resolv, resolv.servers, own, func(server) bool { return false })
		servers := candidates.servers()
		all.keep(servers)
		if len(read) == 0 {
			servers = nil
		}
		for _, of := range all.due(servers, time.Now(), troubled) {
			one := all[of]
			one.under, one.doubted, one.probed = true, false, time.Now()
			go func() {
				came, heard, helped := s.probes.loops(ctx, of)
				outcomes <- outcome{of, came, heard, helped}
			}()
		}

		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		case <-tick.C:
		case o := <-outcomes:
			all.take(o)
		}
	}
}

// search has the domains be known in which the node, and behind those of the cluster its pods,
// look for a name.
func (s *Server) search(domains []string) {
	s.applying.Lock()
	defer s.applying.Unlock()
	if slices.Equal(s.searches, domains) {
		return
	}
	s.searches = domains
	if set := s.settings.Load(); set != nil {
		s.setZone(set)
	}
}

// own returns where this server itself is.
func (s *Server) own() (at []netip.AddrPort) {
	if set := s.settings.Load(); set != nil {
		for _, a := range set.Addresses {
			at = append(at, netip.AddrPortFrom(a.Unmap(), 53))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.AppendSeq(at, maps.Keys(s.pairs))
}

// take has queries take other ways from now on. What was remembered stays, unless it is to be
// remembered for another time, or settings name others by now: what these say may be something else.
// A server of theirs that is not asked for a while, and other servers of the node, are no reason.
func (s *Server) take(w *ways) error {
	o := s.outside.Load()
	if o.stale == w.stale && sameStubs(o.named, w.named) {
		return o.use(w)
	}
	next, err := newOutside(w.stale)
	if err != nil {
		return err
	}
	next.rooms = o.rooms // who waits there waits still
	next.router.told = o.router.told
	if err := next.use(w); err != nil {
		return err
	}
	next.named = w.named
	s.outside.Store(next)
	stop(*o.router.to.Load())
	return nil
}
