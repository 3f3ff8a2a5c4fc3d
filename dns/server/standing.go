package server

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

const (
	// maxSilent is how many probes in a row a server may leave without an answer until it is silent.
	maxSilent = 2
	// maxUseless is how many probes in a row a server may answer with nothing that helps until all its
	// answers are taken for such, where those to pods are, too.
	maxUseless = 3
	// partlyTime is for how long nothing is told of a server that helped a pod and no probe. Which names
	// it knows pods need not ask for again before that: it is how long answers are remembered.
	partlyTime = maxAnswer * time.Second
)

// server is one that is asked for names of a domain, "" for all other names.
type server struct {
	at     netip.AddrPort
	domain string
}

// standing is what is known of a server. One that is asked for names of two domains has two of them, as it may
// help with those of one alone.
type standing struct {
	// loops says that it brings queries back.
	loops bool
	// silent says to how many probes in a row it said nothing, and useless to how many nothing that
	// helps, where it has helped no pod since.
	silent, useless int
	// deaf says that probes got no answer of it, and a pod help since, and that no question of a pod was left
	// without an answer after that: probes are what it says nothing to.
	deaf bool
	// passed says that since then pods got no help of it, and did of a server behind it. doubted says that
	// they did since it was probed last.
	passed, doubted bool
	// partly is when a pod got help of it last, if probes before that did not: it knows some names, and others
	// not.
	partly time.Time
	// probed is when it was probed last; under says that it is being probed.
	probed time.Time
	under  bool
}

// outcome is what became of the probe of a server.
type outcome struct {
	of                   server
	loops, heard, helped bool
}

// take takes note of what became of a probe.
func (s *standing) take(o outcome) {
	s.under, s.loops = false, o.loops
	if s.silent++; o.heard || o.loops {
		s.silent = 0
	}
	if o.heard {
		s.useless++
		s.deaf = false
	}
	if o.helped || o.loops {
		s.useless, s.passed, s.partly = 0, false, time.Time{}
	}
}

// hear takes note of what pods got of it.
func (s *standing) hear(got got, now time.Time) {
	s.doubted = s.doubted || got.passed
	switch {
	case got.helped && s.silent > 0:
		s.silent, s.deaf = 0, true
	case !got.helped && got.silent && s.deaf:
		// From here probes count, and they have to find it out anew.
		s.silent, s.deaf = 0, false
	}
	switch {
	case got.helped && s.useless > 0:
		s.useless, s.passed, s.partly = 0, false, now
	case got.helped && !s.partly.IsZero():
		s.partly = now
	case got.passed && s.useless > 0:
		s.passed = true
	}
}

// isSilent reports whether it says nothing, to pods neither.
func (s *standing) isSilent() bool { return s.silent >= maxSilent && !s.deaf }

// refuses reports whether it helps with no name, as far as probes say.
func (s *standing) refuses(now time.Time) bool {
	return s.useless >= maxUseless && (s.partly.IsZero() || now.Sub(s.partly) >= partlyTime)
}

// every says how long after a probe it is probed again, as far as that is known of it alone.
func (s *standing) every() time.Duration {
	switch {
	case s.loops:
		return probeLooping
	case s.silent > 0, s.useless > 0, s.doubted, !s.partly.IsZero():
		return probeSilent
	}
	return probeFine
}

// standings are those of all servers.
type standings map[server]*standing

// of returns the standing of a server, of which nothing may be known yet.
func (all standings) of(s server) *standing {
	if one := all[s]; one != nil {
		return one
	}
	return new(standing)
}

// take takes note of what became of a probe. Two in a row may be for names of two domains: so that a server
// says nothing at all is soon known for all of its domains.
func (all standings) take(o outcome) {
	one := all[o.of]
	one.take(o)
	for s, other := range all {
		if s.at == o.of.at && s != o.of && one.silent > 0 && other.silent > 0 {
			one.silent, other.silent = maxSilent, maxSilent
		}
	}
}

// keep has standings of these servers alone, and of those that are being probed.
func (all standings) keep(these []server) {
	known := map[server]bool{}
	for _, s := range these {
		known[s] = true
		if all[s] == nil {
			all[s] = new(standing)
		}
	}
	maps.DeleteFunc(all, func(s server, one *standing) bool { return !known[s] && !one.under })
}

// hear takes note of what pods got of servers.
func (all standings) hear(pods map[server]got, now time.Time) {
	for s, got := range pods {
		if one := all[s]; one != nil {
			one.hear(got, now)
		}
	}
}

// due returns which of these servers are to be probed now: those whose last probe began long enough
// ago, sooner where their domain is troubled, and of more than may be under way at once those of whom that is
// longest. So each has its turn, however many are silent.
func (all standings) due(these []server, now time.Time, troubled map[string]bool) (due []server) {
	under := 0
	for _, one := range all {
		if one.under {
			under++
		}
	}
	for _, s := range these {
		one := all.of(s)
		every := one.every()
		if troubled[s.domain] {
			every = min(every, probeSilent)
		}
		if !one.under && now.Sub(one.probed) >= every {
			due = append(due, s)
		}
	}
	slices.SortStableFunc(due, func(a, b server) int { return all.of(a).probed.Compare(all.of(b).probed) })
	return due[:min(len(due), max(0, maxProbes-under))]
}
