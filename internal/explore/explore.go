// Package explore visits every state that a small system can get into, and
// finds the shortest way to one that must not be.
//
// Random tests of programs that act at once find what is likely. What needs
// three unlikely moments in a row they find in one of some thousand runs, or
// never. Explore tries all orders of all calls instead, of a system so small
// that they can be counted: two or three controllers, two subnets, three nodes.
//
// It drives the real code and no model of it. A Store is a registry whose whole
// content is a value: it is cloned, compared and kept. A Process is a program
// that works with it, stopped between two of its calls; it is a value, too,
// because a program that was told the same does the same, so what it was told
// is all that has to be kept. A state of the system is a Store, some Processes,
// and what a test adds to tell right from wrong. Text gives states that differ
// in nothing that matters the same key, so that each is visited once: versions
// and UIDs count by what they are equal to, times by how long ago they are.
//
// Start reading at Model.
package explore

import (
	"crypto/sha256"
	"fmt"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
)

// Long reports whether there is time for very many states: the environment
// variable WEFT_EXPLORE is "long", as make test-long sets it.
func Long() bool { return os.Getenv("WEFT_EXPLORE") == "long" }

// Model is a system to visit all states of. S is a state: a value that nothing
// changes once it is made.
type Model[S any] struct {
	// Start is the state that all others follow from.
	Start S
	// Next calls yield with every state that may follow s at once, and what
	// happened in between, in words. It is a function of s: called again, it
	// yields the same in the same order.
	Next func(s S, yield func(event string, next S))
	// Key returns what tells a state from others. States with the same key must
	// have the same future.
	Key func(s S) []byte
	// Check returns what is wrong with a state, or nil.
	Check func(s S) error
	// Limit is how many states are visited at most; 0 means all. With a limit,
	// visiting ends as well when states take more than 4 GiB of memory.
	Limit int
}

// Who explores shares a machine with others. mostLive is how much memory, in bytes,
// what is kept may take where not all states need to be visited, and memoryLimit how
// much Go may take with what it has not collected yet.
const (
	mostLive    = 4 << 30
	memoryLimit = 6 << 30
)

// live is how much of the heap was in use at the end of the last collection, in bytes.
func live() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// Report is what came of visiting.
type Report struct {
	// States is how many different states were visited, Events how many times
	// one followed from another.
	States, Events int
	// Depth is how many events the farthest state is away from the start.
	Depth int
	// Complete says that there are no other states. It is false if the limit
	// was reached or something is wrong.
	Complete bool
	// Story is what happened before something was wrong: no other story that
	// ends so has fewer events. Wrong says what it is, nil if all is right.
	Story []string
	Wrong error
}

// String returns the story, or how much was visited.
func (r Report) String() string {
	visited := fmt.Sprintf("%d states, %d events, at most %d of them in a row", r.States, r.Events, r.Depth)
	switch {
	case r.Wrong != nil:
		var b strings.Builder
		fmt.Fprintf(&b, "%v\nafter %d events (%s visited):\n", r.Wrong, len(r.Story), visited)
		for i, event := range r.Story {
			fmt.Fprintf(&b, "%4d. %s\n", i+1, event)
		}
		return b.String()
	case !r.Complete:
		return visited + ", and there are more"
	}
	return visited + ", which is all"
}

// visit is how a state was reached first.
type visit struct {
	from  int32 // the visit of the state before, by its number
	event int32 // the number of the event, as Next yields them
}

// Run visits states, those first that are fewer events away, until all are
// visited, the limit is reached, or one is wrong.
func (m Model[S]) Run() Report {
	type waiting struct {
		state  S
		number int32
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // until it meets the limit
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(memoryLimit))
	seen := map[[16]byte]struct{}{}
	var visits []visit
	var report Report
	full := false
	add := func(s S, v visit) (waiting, bool) {
		sum := sha256.Sum256(m.Key(s))
		key := [16]byte(sum[:16])
		if _, ok := seen[key]; ok {
			return waiting{}, false
		}
		seen[key] = struct{}{}
		visits = append(visits, v)
		const often = 1 << 12
		full = m.Limit > 0 && (len(visits) >= m.Limit || len(visits)%often == 0 && live() > mostLive)
		number := int32(len(visits) - 1)
		if err := m.Check(s); err != nil && report.Wrong == nil {
			report.Wrong = err
			report.Story = m.story(visits, number)
		}
		return waiting{s, number}, true
	}
	first, _ := add(m.Start, visit{from: -1})
	layer := []waiting{first}
	for report.Wrong == nil && len(layer) > 0 {
		var next []waiting
		for i, w := range layer {
			event := int32(0)
			m.Next(w.state, func(_ string, s S) {
				report.Events++
				if report.Wrong == nil && !full {
					if n, ok := add(s, visit{w.number, event}); ok {
						next = append(next, n)
					}
				}
				event++
			})
			layer[i] = waiting{} // it may be collected
			if report.Wrong != nil || full {
				break
			}
		}
		if len(next) > 0 {
			report.Depth++
		}
		layer = next
		if full {
			break
		}
	}
	report.States = len(visits)
	report.Complete = report.Wrong == nil && !full
	return report
}

// story tells how a state was reached.
func (m Model[S]) story(visits []visit, number int32) []string {
	var events []int32
	for ; visits[number].from >= 0; number = visits[number].from {
		events = append(events, visits[number].event)
	}
	slices.Reverse(events)
	var story []string
	s := m.Start
	for _, e := range events {
		n := int32(0)
		var then S
		m.Next(s, func(event string, next S) {
			if n == e {
				story, then = append(story, event), next
			}
			n++
		})
		s = then
	}
	return story
}
