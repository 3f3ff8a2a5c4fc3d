package traffic

import (
	"cmp"
	"fmt"
	"maps"
	"sync"
	"time"
)

// tally counts for a report.
type tally struct {
	began time.Time

	mu      sync.Mutex
	ended   time.Time // zero while requests are sent
	flows   map[string]Counts
	slowest map[string]float64
	worst   time.Duration
	errors  []string
}

func newTally() *tally {
	return &tally{began: time.Now(), flows: make(map[string]Counts), slowest: make(map[string]float64)}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// end is to be called when no more requests are sent.
func (t *tally) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = time.Now()
}

// add counts for a flow.
func (t *tally) add(flow string, c Counts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flows[flow] = t.flows[flow].Add(c)
}

// answered counts a request that was answered after some time.
func (t *tally) answered(flow string, after time.Duration) {
	t.add(flow, Counts{Answered: 1})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.worst = max(t.worst, after)
	t.slowest[flow] = max(t.slowest[flow], milliseconds(after))
}

// failed counts what an error did to a flow.
func (t *tally) failed(flow string, c Counts, err error) {
	t.add(flow, c)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.errors) < maxErrors {
		t.errors = append(t.errors, fmt.Sprintf("%s %s: %v", time.Now().UTC().Format(time.TimeOnly), flow, err))
	}
}

// report returns the report of now, and begins to look for the worst anew.
func (t *tally) report() Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	r := Report{Time: now, Sending: cmp.Or(t.ended, now).Sub(t.began), Worst: milliseconds(t.worst),
		Flows: maps.Clone(t.flows), Slowest: maps.Clone(t.slowest), Errors: append([]string(nil), t.errors...)}
	for _, c := range t.flows {
		r.Counts = r.Add(c)
	}
	t.worst = 0
	return r
}
