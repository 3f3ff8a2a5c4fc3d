package control

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/registry"
)

// turns has namespaces take turns, of one call each, so that none waits for all that is to be done for
// another. What is for no namespace has its turn, too. Of what is to be done for one, the kinds of work take turns:
// that an endpoint is gone waits for one call of each other kind, however many new Services there are, and however
// many endpoints come and go, Services get what they are to get.
//
// What failed waits before it is tried again, ever longer until it is done, however it failed: where somebody else
// wrote in between, that may be what the rounds themselves do. Nothing else waits for it. But where a call takes
// long, or the registry does not answer it, others cannot be done meanwhile. So then all of its namespace waits,
// and comes behind all other namespaces after that, until a call of it is done again.
type turns struct {
	// line are those for which something is left to be done, in the order of their turns, and last those that come
	// behind all of them.
	line, last []string
	// had are by namespace the kinds of work that had a turn, the last one last.
	had map[string][]string
	// waits are by what waits, or has waited and is not done yet.
	waits map[subject]*wait
	// told, if set, gets how a call fails, once while it fails in one way.
	told func(error)
}

// subject is what a call is about, which is the same in each round; about is empty where it is all of a namespace.
type subject struct{ namespace, about string }

// wait is how long something waits.
type wait struct {
	until   time.Time
	backoff retry.Backoff
	// said is how it failed, as that was told.
	said string
	// apart says that all of its namespace waited with it.
	apart bool
}

// lastApart is how long a namespace waits at most whose calls take long or are not answered.
const lastApart = 2 * time.Minute

// each yields what a round is to do, until all is done or the time is over. Those go on that the round before came
// to an end with, and who has come since is behind them. Where it is broken off with a call, that one does not count
// as failed.
func (t *turns) each(calls []call, most time.Duration) iter.Seq[call] {
	return func(yield func(call) bool) {
		began := time.Now()
		due := t.due(calls, began)
		t.queue(calls, due)
		next := func(line *[]string) bool {
			namespace := (*line)[0]
			c := due[namespace][0]
			*line, due[namespace] = (*line)[1:], due[namespace][1:]
			t.had[namespace] = append(slices.DeleteFunc(t.had[namespace], func(kind string) bool { return kind == c.Kind }), c.Kind)
			var took time.Duration
			var err error
			if !yield(call{Namespace: namespace, Kind: c.Kind, About: c.About, Do: func(ctx context.Context, r registry.Registry) error {
				start := time.Now()
				err = c.Do(ctx, r)
				took = time.Since(start)
				return err
			}}) {
				return false
			}
			if t.note(c, took, err); len(due[namespace]) > 0 && !t.waiting(subject{namespace, ""}, time.Now()) {
				*line = append(*line, namespace)
			}
			return true
		}
		over := func() bool { return time.Since(began) >= most }
		for len(t.line) > 0 && !over() {
			if !next(&t.line) {
				return
			}
		}
		// One of these has its turn in each round, however much there is to be done for others.
		for first := true; len(t.last) > 0 && (first || !over()); first = false {
			if !next(&t.last) {
				return
			}
		}
	}
}

// due returns by namespace what does not wait, in the order in which it is to be done.
func (t *turns) due(calls []call, now time.Time) map[string][]call {
	due, known, had := make(map[string][]call), make(map[subject]*wait), make(map[string][]string)
	for _, c := range calls {
		of, all := subject{c.Namespace, c.About}, subject{c.Namespace, ""}
		for _, s := range []subject{of, all} {
			if t.waits[s] != nil {
				known[s] = t.waits[s]
			}
		}
		if !t.waiting(of, now) && !t.waiting(all, now) {
			due[c.Namespace] = append(due[c.Namespace], c)
		}
		had[c.Namespace] = t.had[c.Namespace]
	}
	// What is not to be done now may be again before long, and waits on.
	for s, w := range t.waits {
		if w.until.After(now) {
			known[s] = w
		}
	}
	t.waits, t.had = known, had
	for namespace, own := range due {
		due[namespace] = t.inOrder(namespace, own)
	}
	return due
}

// inOrder returns what is due of a namespace with its kinds in turns: first that of which it is longest ago that it
// had one. What failed before comes last of its kind, that which waited longest first. What all of the namespace waited
// with comes last of all, as it may again.
func (t *turns) inOrder(namespace string, own []call) (all []call) {
	var apart []call
	var kinds []string
	of := make(map[string][]call)
	failed := func(c call) wait {
		if w := t.waits[subject{c.Namespace, c.About}]; w != nil {
			return *w
		}
		return wait{}
	}
	if len(t.waits) > 0 {
		slices.SortStableFunc(own, func(a, b call) int { return failed(a).until.Compare(failed(b).until) })
	}
	for _, c := range own {
		if failed(c).apart {
			apart = append(apart, c)
			continue
		}
		if of[c.Kind] == nil {
			kinds = append(kinds, c.Kind)
		}
		of[c.Kind] = append(of[c.Kind], c)
	}
	slices.SortStableFunc(kinds, func(a, b string) int {
		return cmp.Compare(slices.Index(t.had[namespace], a), slices.Index(t.had[namespace], b))
	})
	for i := 0; len(all)+len(apart) < len(own); i++ {
		for _, kind := range kinds {
			if i < len(of[kind]) {
				all = append(all, of[kind][i])
			}
		}
	}
	return append(all, apart...)
}

// queue has those stand in line for whom something is due.
func (t *turns) queue(calls []call, due map[string][]call) {
	before := slices.Concat(t.line, t.last)
	t.line, t.last = nil, nil
	stands := make(map[string]bool)
	stand := func(namespace string) {
		if stands[namespace] || len(due[namespace]) == 0 {
			return
		}
		stands[namespace] = true
		if t.waits[subject{namespace, ""}] != nil {
			t.last = append(t.last, namespace)
		} else {
			t.line = append(t.line, namespace)
		}
	}
	for _, namespace := range before {
		stand(namespace)
	}
	for _, c := range calls {
		stand(c.Namespace)
	}
}

// waiting reports whether something waits.
func (t *turns) waiting(s subject, now time.Time) bool {
	w := t.waits[s]
	return w != nil && w.until.After(now)
}

// note takes note of how a call went.
func (t *turns) note(c call, took time.Duration, err error) {
	of, all := subject{c.Namespace, c.About}, subject{c.Namespace, ""}
	// Others have as long as it took, at least.
	apart := took >= roundTime || errors.Is(err, registry.ErrUnavailable)
	if err == nil {
		delete(t.waits, of)
		delete(t.waits, all)
	} else {
		w := t.postpone(of, backoff)
		w.apart = apart
		if text := err.Error(); !overtaken(err) && w.said != text {
			if w.said = text; t.told != nil {
				t.told(err)
			}
		}
	}
	if apart {
		t.postpone(all, retry.Backoff{First: max(took, backoff.First), Last: lastApart})
	}
}

// postpone has something wait: as long as a backoff begins with, at least, and longer each time.
func (t *turns) postpone(s subject, by retry.Backoff) *wait {
	w := t.waits[s]
	if w == nil {
		w = &wait{backoff: by}
		t.waits[s] = w
	}
	w.backoff.First = by.First
	w.until = time.Now().Add(w.backoff.Next())
	return w
}

// again returns behind which time there is to be another round, though nothing changes: 0 where the last one has
// done all.
func (t *turns) again() (behind time.Duration) {
	if len(t.line)+len(t.last) > 0 {
		return roundTime
	}
	for s, w := range t.waits {
		left := time.Until(w.until)
		if all := t.waits[subject{s.namespace, ""}]; all != nil {
			left = max(left, time.Until(all.until))
		}
		left = max(left, pause)
		behind = min(cmp.Or(behind, left), left)
	}
	return behind
}
