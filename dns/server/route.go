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
	// Between two probes of a server: one that brings queries back, one that did not, one
	// that did not while more is asked than can be under way, and one that said nothing or nothing that
	// helps, or that is asked for names for which nobody did.
	probeLooping, probeFine, probeBusy, probeSilent = 10 * time.Second, 5 * time.Minute, 10 * time.Second, 10 * time.Second
	// maxProbes is how many are under way at once.
	maxProbes = 8
)

// route decides who is asked for names outside, again and again. It calls decided when it has.
func (s *Server) route(ctx context.Context, decided func()) {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	type outcome struct {
		at                   netip.AddrPort
		loops, heard, helped bool
	}
	var (
		resolv resolvFile
		// loops are servers that bring queries back; probed is when each was probed last, and
		// under which are being probed. silent says to how many probes in a row one said nothing, and
		// useless to how many something that does not help. passed are those of which pods got no help
		// since then, and by another server behind them they did.
		loops    = map[netip.AddrPort]bool{}
		silent   = map[netip.AddrPort]int{}
		useless  = map[netip.AddrPort]int{}
		passed   = map[netip.AddrPort]bool{}
		probed   = map[netip.AddrPort]time.Time{}
		under    = map[netip.AddrPort]bool{}
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
		w, problems := choose(set, s.c.Resolv, resolv.servers, own, loops)
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
		problems = append(problems, w.unheard(silent)...)
		helped, failing := s.outside.Load().router.said()
		w.each(func(domain string, servers []netip.AddrPort) {
			behind := false
			for _, at := range slices.Backward(servers) {
				if helped[domain][at] {
					delete(useless, at)
					behind = true
				} else if behind && useless[at] > 0 {
					passed[at] = true
				}
			}
		})
		maps.DeleteFunc(passed, func(at netip.AddrPort, _ bool) bool { return useless[at] == 0 })
		problems = append(problems, w.passedOver(useless, silent, passed)...)
		problems = append(problems, w.unhelped(useless, silent, failing)...)
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
			clear(probed)
		}
		candidates, _ := choose(set, s.c.Resolv, resolv.servers, own, nil)
		busy, failed := s.busy.Swap(false), s.outside.Load().router.failed.Swap(false)
		every := func(at netip.AddrPort) time.Duration {
			switch {
			case loops[at]:
				return probeLooping
			case busy:
				return probeBusy
			case failed, silent[at] > 0, useless[at] > 0:
				return probeSilent
			}
			return probeFine
		}
		known := map[netip.AddrPort]bool{}
		all := candidates.all()
		for _, c := range all {
			known[c.at] = true
		}
		if len(read) == 0 {
			all = nil
		}
		for _, c := range due(all, under, probed, time.Now(), every) {
			under[c.at], probed[c.at] = true, time.Now()
			go func() {
				came, heard, helped := s.probes.loops(ctx, c)
				outcomes <- outcome{c.at, came, heard, helped}
			}()
		}
		maps.DeleteFunc(probed, func(at netip.AddrPort, _ time.Time) bool { return !known[at] })
		maps.DeleteFunc(loops, func(at netip.AddrPort, _ bool) bool { return !known[at] })
		maps.DeleteFunc(silent, func(at netip.AddrPort, _ int) bool { return !known[at] })
		maps.DeleteFunc(useless, func(at netip.AddrPort, _ int) bool { return !known[at] })

		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		case <-tick.C:
		case o := <-outcomes:
			delete(under, o.at)
			if o.loops {
				loops[o.at] = true
			} else {
				delete(loops, o.at)
			}
			if silent[o.at]++; o.heard || o.loops || !known[o.at] {
				delete(silent, o.at)
			}
			if o.heard {
				useless[o.at]++
			}
			if o.helped || o.loops || !known[o.at] {
				delete(useless, o.at)
			}
		}
	}
}

// due returns which servers are to be probed now: those whose last probe began so long ago as every
// says, and of more than may be under way at once those of whom that is longest. So each has its turn,
// however many are silent.
func due(all []server, under map[netip.AddrPort]bool, probed map[netip.AddrPort]time.Time, now time.Time, every func(netip.AddrPort) time.Duration) (these []server) {
	for _, s := range all {
		if !under[s.at] && now.Sub(probed[s.at]) >= every(s.at) {
			these = append(these, s)
		}
	}
	slices.SortStableFunc(these, func(a, b server) int { return probed[a.at].Compare(probed[b.at]) })
	return these[:min(len(these), max(0, maxProbes-len(under)))]
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
// remembered for another time.
func (s *Server) take(w *ways) error {
	o := s.outside.Load()
	if o.stale == w.stale {
		return o.use(w)
	}
	next, err := newOutside(w.stale)
	if err == nil {
		err = next.use(w)
	}
	if err != nil {
		return err
	}
	s.outside.Store(next)
	stop(*o.router.to.Load())
	return nil
}
