package control

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/weftnet/weft/registry"
)

// turns has namespaces take turns, of one call each, so that none waits for all that is to be done for
// another. What is for no namespace has its turn, too.
type turns struct {
	// line are those for which something is left to be done, in the order of their turns.
	line []string
	// failed is by namespace how many calls failed in the last round. They come last in the next one, so that what is
	// never done keeps nothing else of its namespace from being done.
	failed map[string]int
}

// each yields what a round is to do, until all is done or the time is over. Those go on that the round before came
// to an end with, and who has come since is behind them.
func (t *turns) each(calls []call, most time.Duration) iter.Seq[call] {
	return func(yield func(call) bool) {
		ends := time.Now().Add(most)
		due := make(map[string][]call)
		for _, c := range calls {
			due[c.Namespace] = append(due[c.Namespace], c)
		}
		for namespace, n := range t.failed {
			if own := due[namespace]; n < len(own) {
				due[namespace] = slices.Concat(own[n:], own[:n])
			}
		}
		t.failed = make(map[string]int)
		waits := make(map[string]bool)
		t.line = slices.DeleteFunc(t.line, func(namespace string) bool {
			waits[namespace] = true
			return len(due[namespace]) == 0
		})
		for _, c := range calls {
			if !waits[c.Namespace] {
				waits[c.Namespace] = true
				t.line = append(t.line, c.Namespace)
			}
		}
		for len(t.line) > 0 && time.Now().Before(ends) {
			namespace := t.line[0]
			next := due[namespace][0]
			t.line, due[namespace] = t.line[1:], due[namespace][1:]
			if len(due[namespace]) > 0 {
				t.line = append(t.line, namespace)
			}
			if !yield(call{Namespace: namespace, Do: func(ctx context.Context, r registry.Registry) error {
				err := next.Do(ctx, r)
				if err != nil {
					t.failed[namespace]++
				}
				return err
			}}) {
				return
			}
		}
	}
}

// left reports whether the last round has left something to be done.
func (t *turns) left() bool { return len(t.line) > 0 }
