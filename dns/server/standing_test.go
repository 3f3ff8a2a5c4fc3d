package server

import (
	"slices"
	"testing"
	"time"
)

// TestStanding follows what is known of a server, from one thing that is heard of it to the next. What is
// wanted is whether it refuses, whether others help in its place, and when it is probed again.
func TestStanding(t *testing.T) {
	useless, helped, silence := outcome{heard: true}, outcome{heard: true, helped: true}, outcome{}
	pod, passed, none := got{helped: true}, got{passed: true}, got{silent: true}
	type step struct {
		what any
		want string
	}
	for name, steps := range map[string][]step{
		"it refuses all": {
			{useless, "soon"}, {passed, "passed soon"}, {useless, "passed soon"}, {useless, "refuses passed soon"},
			{time.Minute, "refuses passed soon"}, {helped, "later"},
		},
		"it worked, and refuses all now": {
			{helped, "later"}, {pod, "later"}, {time.Hour, "later"},
			{passed, "soon"}, // it is probed for that
			{useless, "soon"}, {passed, "passed soon"}, {useless, "passed soon"}, {useless, "refuses passed soon"},
		},
		"it refuses probes alone": {
			{useless, "soon"}, {useless, "soon"}, {useless, "refuses soon"},
		},
		"it knows its own names alone": {
			{useless, "soon"}, {passed, "passed soon"}, {useless, "passed soon"}, {pod, "soon"},
			{useless, "soon"}, {useless, "soon"}, {useless, "soon"}, {useless, "soon"}, {passed, "passed soon"},
			{partlyTime - time.Second, "passed soon"}, {pod, "soon"},
			{useless, "soon"}, {useless, "soon"}, {useless, "soon"}, {passed, "passed soon"},
			{partlyTime - time.Second, "passed soon"}, {time.Second, "refuses passed soon"},
		},
		"it knows its own names alone, and then more": {
			{useless, "soon"}, {pod, "soon"}, {helped, "later"}, {useless, "soon"}, {useless, "soon"}, {useless, "refuses soon"},
		},
		"it helps with some names at once and with others not": {
			{useless, "soon"}, {useless, "soon"}, {useless, "refuses soon"}, {got{helped: true, passed: true}, "soon"},
		},
		"it says nothing": {
			{silence, "soon"}, {silence, "silent soon"}, {useless, "soon"}, {helped, "later"},
		},
		"it says nothing to probes alone": {
			{silence, "soon"}, {silence, "silent soon"}, {pod, "later"}, {silence, "soon"}, {silence, "soon"},
			{time.Hour, "soon"}, {silence, "soon"}, {got{helped: true, silent: true}, "later"}, {silence, "soon"}, {silence, "soon"},
		},
		"it says nothing to probes, and then nothing at all": {
			{silence, "soon"}, {pod, "later"}, {silence, "soon"}, {silence, "soon"},
			{none, "later"}, {silence, "soon"}, {silence, "silent soon"}, {none, "silent soon"}, {helped, "later"},
		},
		"a probe is lost, and then it says nothing at all": {
			{silence, "soon"}, {pod, "later"}, {helped, "later"}, {silence, "soon"}, {silence, "silent soon"},
		},
		"it brings queries back": {
			{useless, "soon"}, {outcome{loops: true}, "loops soon"}, {silence, "soon"}, {helped, "later"},
		},
	} {
		var s standing
		now := time.Unix(1_000_000, 0)
		for i, step := range steps {
			switch what := step.what.(type) {
			case outcome:
				s.doubted = false // as the probe began
				s.take(what)
			case got:
				s.hear(what, now)
			case time.Duration:
				now = now.Add(what)
			}
			is := ""
			for _, w := range []struct {
				word string
				is   bool
			}{{"loops ", s.loops}, {"silent ", s.isSilent()}, {"refuses ", s.refuses(now)}, {"passed ", s.passed}, {"later", s.every() == probeFine}, {"soon", s.every() == probeSilent}} {
				if w.is {
					is += w.word
				}
			}
			if is != step.want {
				t.Errorf("%s: after step %d it is %q, and should be %q", name, i+1, is, step.want)
			}
		}
	}
}

// TestStandings: of servers that are asked no more nothing is known, once they are probed no more. What pods
// got of a server for names of one domain says nothing of it for those of another.
func TestStandings(t *testing.T) {
	at := ports("192.0.2.1:53")[0]
	rest, corp := server{at, ""}, server{at, "corp.example"}
	all := standings{}
	all.keep([]server{rest, corp})
	for range maxUseless {
		all[rest].take(outcome{of: rest, heard: true})
		all[corp].take(outcome{of: corp, heard: true})
	}
	now := time.Unix(1_000_000, 0)
	all.hear(map[server]got{corp: {helped: true}, rest: {passed: true}, {at, "none.example"}: {helped: true}}, now)
	if one := all.of(rest); !one.refuses(now) || !one.passed {
		t.Errorf("for names outside it is %+v", one)
	}
	if one := all.of(corp); one.refuses(now) || one.passed {
		t.Errorf("for names of the domain it is %+v", one)
	}
	all[corp].under = true
	all.keep([]server{rest})
	if len(all) != 2 {
		t.Errorf("of %d something is known, and one is being probed", len(all))
	}
	all[corp].take(outcome{of: corp})
	all.keep([]server{rest})
	if len(all) != 1 || all[rest] == nil {
		t.Errorf("known are %v", all)
	}
}

// TestSilentForAll has a server say nothing to probes for names of three domains: that is known of a domain after
// one probe, if one for another was left without an answer as well. Of what it has answered that says nothing.
func TestSilentForAll(t *testing.T) {
	at := ports("192.0.2.1:53", "192.0.2.2:53")
	first, second, third, other := server{at[0], ""}, server{at[0], "corp.example"}, server{at[0], "net.example"}, server{at[1], ""}
	all := standings{}
	all.keep([]server{first, second, third, other})
	for i, step := range []struct {
		outcome
		silent []server
	}{
		{outcome{of: first}, nil},
		{outcome{of: other}, nil},
		{outcome{of: second, heard: true}, nil},
		{outcome{of: third}, []server{first, third}},
		{outcome{of: second}, []server{first, second, third}},
		{outcome{of: third, heard: true}, []server{first, second}},
	} {
		all.take(step.outcome)
		var silent []server
		for _, s := range []server{first, second, third, other} {
			if all[s].isSilent() {
				silent = append(silent, s)
			}
		}
		if !slices.Equal(silent, step.silent) {
			t.Errorf("after step %d these are silent: %v, and should be %v", i+1, silent, step.silent)
		}
	}
}
