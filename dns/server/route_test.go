package server

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// TestDue has many servers be silent, so that each probe takes as long as it may: all are probed, and
// each about as often as the others.
func TestDue(t *testing.T) {
	var these []server
	for n := range 100 {
		these = append(these, server{at: netip.AddrPortFrom(pod(n), 53)})
	}
	all, times := standings{}, map[server]int{}
	all.keep(these)
	troubled := map[string]bool{"": true}
	now := time.Unix(1_000_000, 0)
	for range 100 {
		due := all.due(these, now, troubled)
		if len(due) != maxProbes {
			t.Fatalf("%d are probed at once, and may be %d", len(due), maxProbes)
		}
		all[due[0]].under = true
		for _, s := range due {
			all[s].probed = now
			times[s]++
		}
		if more := all.due(these, now, troubled); len(more) != maxProbes-1 {
			t.Fatalf("beside one that is probed %d others are, and may be %d", len(more), maxProbes-1)
		}
		all[due[0]].under = false
		now = now.Add(2 * probeTime)
	}
	for _, s := range these {
		// Of those whose last probes began together any may be the first.
		if n, mean := times[s], 100*maxProbes/len(these); n < mean-1 || n > mean+1 {
			t.Errorf("%s was probed %d times, and all together %d times on average", s.at, n, mean)
		}
	}
	if due := all.due(these, now.Add(-time.Hour), troubled); len(due) > 0 {
		t.Errorf("%v are probed too soon", due)
	}
}

// TestDueOfTroubled has one domain be troubled: servers are probed sooner that are asked for names of it, and
// not for those of others, though they are the same.
func TestDueOfTroubled(t *testing.T) {
	at := netip.AddrPortFrom(pod(1), 53)
	rest, corp, other := server{at: at}, server{at, "corp.example"}, server{at, "other.example"}
	these := []server{rest, corp, other}
	now := time.Unix(1_000_000, 0)
	all := standings{}
	all.keep(these)
	for _, one := range all {
		one.take(outcome{heard: true, helped: true})
		one.probed = now
	}
	for after, want := range map[time.Duration][]server{0: nil, probeSilent: {corp}, probeFine: these} {
		if got := all.due(these, now.Add(after), map[string]bool{"corp.example": true}); !slices.Equal(got, want) {
			t.Errorf("%v after a probe of all these are probed: %v, and should be %v", after, got, want)
		}
	}
}
