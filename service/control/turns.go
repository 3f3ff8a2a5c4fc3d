package control

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/registry"
)

// turns has namespaces take turns, of one call each, so that none waits for all that is to be done for
// another. What is for no namespace has its turn, too.
type turns struct {
	// beaten is how long a namespace waits of which all was overtaken that a round tried.
	beaten retry.Backoff
	// line are those for which something is left to be done, in the order of their turns.
	line []string
	// of is by namespace how its calls went.
	of map[string]*course
}

// course is how the calls for a namespace went.
type course struct {
	// past is how many of its first calls come last in the next round, as they have failed since all was tried. So
	// what is never done keeps nothing else of the namespace from being done.
	past int
	// overtaken is how many calls of the last round somebody else was before, and others how many were done or
	// failed in another way.
	overtaken, others int
	// until is when something is to be done again, and beaten how long it waits the next time. Where all was
	// changed meanwhile, that may be what the rounds themselves do: each is to be later than the one before.
	until  time.Time
	beaten retry.Backoff
}

// each yields what a round is to do, until all is done or the time is over. Those go on that the round before came
// to an end with, and who has come since is behind them. Nothing is done for who waits, as all of it was overtaken.
func (t *turns) each(calls []call, most time.Duration) iter.Seq[call] {
	return func(yield func(call) bool) {
		began := time.Now()
		due := make(map[string][]call)
		for _, c := range calls {
			due[c.Namespace] = append(due[c.Namespace], c)
		}
		if t.of == nil {
			t.of = make(map[string]*course)
		}
		for namespace, is := range t.of {
			is.overtaken, is.others = 0, 0
			own := due[namespace]
			switch {
			case len(own) == 0:
				delete(t.of, namespace)
			case began.Before(is.until):
				delete(due, namespace)
			case is.past < len(own):
				due[namespace] = slices.Concat(own[is.past:], own[:is.past])
			default:
				is.past = 0
			}
		}
		waits := make(map[string]bool)
		t.line = slices.DeleteFunc(t.line, func(namespace string) bool {
			waits[namespace] = true
			return len(due[namespace]) == 0
		})
		for _, c := range calls {
			if !waits[c.Namespace] && len(due[c.Namespace]) > 0 {
				waits[c.Namespace] = true
				t.line = append(t.line, c.Namespace)
			}
		}
		for len(t.line) > 0 && time.Now().Before(began.Add(most)) {
			namespace := t.line[0]
			next := due[namespace][0]
			t.line, due[namespace] = t.line[1:], due[namespace][1:]
			if len(due[namespace]) > 0 {
				t.line = append(t.line, namespace)
			}
			if !yield(call{Namespace: namespace, Do: func(ctx context.Context, r registry.Registry) error {
				err := next.Do(ctx, r)
				t.note(namespace, err)
				return err
			}}) {
				return
			}
		}
	}
}

// note takes note of how a call for a namespace went.
func (t *turns) note(namespace string, err error) {
	is := t.of[namespace]
	if is == nil {
		is = &course{beaten: t.beaten}
		t.of[namespace] = is
	}
	if err != nil {
		is.past++
	}
	if err != nil && overtaken(err) {
		is.overtaken++
	} else {
		is.others++
	}
}

// again returns behind which time there is to be another round, though nothing changes: 0 where the last one has
// done all.
func (t *turns) again() (behind time.Duration) {
	now := time.Now()
	if len(t.line) > 0 {
		behind = roundTime
	}
	for _, is := range t.of {
		switch {
		case is.others > 0:
			is.beaten.Reset()
		case is.overtaken > 0:
			is.until = now.Add(is.beaten.Next())
		}
		if left := is.until.Sub(now); left > 0 && (behind == 0 || left < behind) {
			behind = left
		}
	}
	return behind
}
