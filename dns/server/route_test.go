package server

import (
	"net/netip"
	"testing"
	"time"
)

// TestDue has many servers be silent, so that each probe takes as long as it may: all are probed, and
// each about as often as the others.
func TestDue(t *testing.T) {
	var all []server
	for n := range 100 {
		all = append(all, server{at: netip.AddrPortFrom(pod(n), 53)})
	}
	under, probed, times := map[netip.AddrPort]bool{}, map[netip.AddrPort]time.Time{}, map[netip.AddrPort]int{}
	every := func(netip.AddrPort) time.Duration { return probeSilent }
	now := time.Unix(1_000_000, 0)
	for range 100 {
		these := due(all, under, probed, now, every)
		if len(these) != maxProbes {
			t.Fatalf("%d are probed at once, and may be %d", len(these), maxProbes)
		}
		under[these[0].at] = true
		for _, s := range these {
			probed[s.at] = now
			times[s.at]++
		}
		if more := due(all, under, probed, now, every); len(more) != maxProbes-1 {
			t.Fatalf("beside one that is probed %d others are, and may be %d", len(more), maxProbes-1)
		}
		clear(under)
		now = now.Add(2 * probeTime)
	}
	for _, s := range all {
		// Of those whose last probes began together any may be the first.
		if n, mean := times[s.at], 100*maxProbes/len(all); n < mean-1 || n > mean+1 {
			t.Errorf("%s was probed %d times, and all together %d times on average", s.at, n, mean)
		}
	}
	if these := due(all, nil, probed, now.Add(-time.Hour), every); len(these) > 0 {
		t.Errorf("%v are probed too soon", these)
	}
}
