package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// faultTally is what a run comes to.
type faultTally struct {
	// Asked is how often something was asked each way, Fates what became of what failed.
	Asked map[way]int
	Fates map[way]map[fate]int
	// Unexcused are the failures that were not to be: all where nothing was to be known, those that
	// began once it was known where it was, and over held connections those to backends that live.
	Unexcused map[way]int
	// Settled is how long after the write the last new connection was begun that failed, or that
	// came to a backend which was to get none.
	Settled time.Duration
	// Ended are held connections whose backend went: those that were told so, the longest that
	// this took from when it happened, and those that wait still.
	Told, Hang int
	ToldIn     time.Duration
	// Longest is the longest time that an answer took of a backend that lives.
	Longest time.Duration
}

// tally counts what became of load.
func (r faultRun) tally() faultTally {
	t := faultTally{Asked: make(map[way]int), Fates: make(map[way]map[fate]int), Unexcused: make(map[way]int)}
	for _, l := range r.Loaded {
		for w, n := range l.Asked {
			t.Asked[w] += n
		}
		for _, f := range l.Failures {
			t.add(r, f)
		}
		for by, wait := range l.Waits {
			if !slices.Contains(r.Gone, by) {
				t.Longest = max(t.Longest, wait)
			}
		}
		for by, begun := range l.Last {
			if slices.Contains(r.Parted, by) {
				t.Settled = max(t.Settled, begun-r.Known)
				if begun > r.Known+knownAfter {
					t.Unexcused[opened]++
				}
			}
		}
	}
	return t
}

// add counts a failure.
func (t *faultTally) add(r faultRun, f failure) {
	if t.Fates[f.Way] == nil {
		t.Fates[f.Way] = make(map[fate]int)
	}
	t.Fates[f.Way][f.Fate]++
	toldOf := len(r.Gone) > 0
	switch {
	case f.Fate == late:
		return
	case f.Way == held && slices.Contains(r.Gone, f.By):
		if f.Fate == hangs {
			t.Hang++
		} else {
			t.Told++
			t.ToldIn = max(t.ToldIn, f.Ended-r.Happened)
		}
		return
	case f.Way == held, !toldOf, f.Begun > r.Known+knownAfter:
		t.Unexcused[f.Way]++
	}
	if f.Way == opened && toldOf {
		t.Settled = max(t.Settled, f.Begun-r.Known)
	}
}

// isWefts reports whether a run is judged.
func (r faultRun) isWefts() bool {
	return r.By == byWeft || r.Fault == faultRemoved || r.Fault == faultBrought
}

// name is that of its row.
func (r faultRun) name() string {
	name := r.Fault
	if r.Times > 0 {
		name += fmt.Sprintf(" (%d times)", r.Times)
	}
	return name + ": " + r.By
}

// none judges what is to be none, where it is judged.
func (r *report) none(run faultRun, n int) []string {
	if !run.isWefts() {
		return []string{fmt.Sprint(n), "", ""}
	}
	return []string{fmt.Sprint(n), "0", r.judged(atMost(n, 0))}
}

// faults writes what broke.
func (r *report) faults(all []faultRun, s faultSettings) {
	if len(all) == 0 {
		return
	}
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b faultRun) int { return faultNumber(a.Fault) - faultNumber(b.Fault) })
	r.line("\n## What breaks under faults\n")
	r.line("Four nodes with two backends each, and pods of two of them that ask: %d connections a second that are", s.Connections)
	r.line("opened for one request, %d that stay open with a request each %v, %d UDP sockets that do the same, and %d", heldConnections, askHeldEvery, keptSockets, freshDatagrams)
	r.line("datagrams a second of sockets of their own; half of each by the address of the cluster, a quarter each by the")
	r.line("NodePort of the own and of another node. The clusters differ in who does Services: Weft, or kube-proxy itself beside a")
	r.line("real API server. Load begins %v before a fault, ends %v after it, and %v of rest are between two. What it is that happens:", s.Window, s.Window, s.Quiet)
	r.line("")
	for _, text := range []string{
		faultNone + ": nothing happens, so that one sees what the machine does by itself.",
		faultKilled + ": two pods are gone at once; the EndpointSlices leave them out " + unnoticed.String() + " later.",
		faultDrained + ": two are said to be terminating and serving; " + s.Window.String() + " later their clients part with them, then the EndpointSlices leave them out, and they end.",
		faultProxy + ": SIGKILL, on one node after the other, and a start " + deadFor.String() + " later.",
		faultLost + ": its links are cut; the EndpointSlices leave out its backends " + unnoticed.String() + " later. Nobody asks it by its own NodePort.",
		faultAway + ": it is killed, and starts again " + s.Away.String() + " later (for Weft: the controller, with the etcd that is in it).",
		faultUntold + ": two processes are killed. Nobody can know of it, as no EndpointSlice says so: connections to them are refused until the API server is back and the EndpointSlices leave them out.",
		faultRemoved[:strings.Index(faultRemoved, ",")] + " and restored: Services go from kube-proxy to Weft on running nodes, and back, as `weft kube-proxy` does it.",
	} {
		r.line("- %s", text)
	}
	r.line("\nWhat is to be known is known %v after the write that says so, for everybody.\n", knownAfter)

	if spoilt := slices.ContainsFunc(all, func(run faultRun) bool { return run.Fault == faultNone && len(run.tally().Unexcused) > 0 }); spoilt {
		r.line("**Something failed while nothing happened: the machine had too much else to do, and what is below says little.**\n")
	}
	r.line("### Connections that are opened\n")
	r.line("Late are answers that took more than %v. Failed are those refused, timed out (%v) and reset: all where nothing is to be known,", lateAfter, openedPatience)
	r.line("and else those that began once it was known. Settled is when the last was begun that failed, after the write; of backends that")
	r.line("drain, the last that came to one.")
	r.head("", "opened", "refused", "timed out", "reset", "late", "settled", "failed though known", "target", "")
	for _, run := range all {
		t := run.tally()
		settled := ""
		if t.Settled > 0 {
			settled = duration(t.Settled)
		}
		f := t.Fates[opened]
		r.row(append([]string{run.name(), fmt.Sprint(t.Asked[opened]), fmt.Sprint(f[refused]), fmt.Sprint(f[timedOut]), fmt.Sprint(f[broken]), fmt.Sprint(f[late]), settled},
			r.none(run, t.Unexcused[opened])...)...)
	}

	r.line("\n### Connections that stay open\n")
	r.line("Those to backends that went end in one of two ways: their clients are told, or wait until they give up, which nobody did")
	r.line("here. Longest is the longest time that an answer of a backend took that lives.")
	r.head("", "made", "told of its end", "within", "wait still", "longest", "broken though the backend lives", "target", "")
	for _, run := range all {
		t := run.tally()
		within := ""
		if t.Told > 0 {
			within = duration(t.ToldIn)
		}
		r.row(append([]string{run.name(), fmt.Sprint(t.Asked[held]), fmt.Sprint(t.Told), within, fmt.Sprint(t.Hang), duration(t.Longest)}, r.none(run, t.Unexcused[held])...)...)
	}

	r.line("\n### Datagrams\n")
	r.line("Unanswered are those without an answer within %v, told those of which it was said that nobody is there.", lostAfter)
	r.head("", "of sockets that stay", "unanswered", "told", "of sockets of their own", "unanswered", "told", "failed though known", "target", "")
	for _, run := range all {
		t := run.tally()
		cells := []string{run.name()}
		for _, w := range []way{kept, fresh} {
			f := t.Fates[w]
			cells = append(cells, fmt.Sprint(t.Asked[w]), fmt.Sprint(f[timedOut]), fmt.Sprint(f[refused]+f[broken]))
		}
		r.row(append(cells, r.none(run, t.Unexcused[kept]+t.Unexcused[fresh])...)...)
	}
}

func faultNumber(name string) int {
	return slices.IndexFunc(faults, func(f fault) bool { return f.name == name })
}
