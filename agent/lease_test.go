package agent

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// leaseTTL is that of the leases in these tests.
const leaseTTL = 10 * time.Second

// slow is a registry that says who holds a lease only once it is let, whatever becomes of
// who asks.
type slow struct {
	*memory.Registry
	let chan struct{}
}

func (s slow) Holder(ctx context.Context, name string) (string, error) {
	holder, err := s.Registry.Holder(ctx, name)
	<-s.let
	return holder, err
}

// holding is an agent that holds the lease of node1, or wants to.
type holding struct {
	mu             sync.Mutex
	rival, problem string
	held           bool
	// late, if set, is what it takes to say of a rival.
	late <-chan struct{}
}

// hold has an agent hold the lease until the test ends.
func hold(t *testing.T, r registry.Registry, late <-chan struct{}) *holding {
	h := &holding{late: late}
	set := func(f func()) {
		h.mu.Lock()
		defer h.mu.Unlock()
		f()
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		holdLease(ctx, r, "node1", "node1 at 172.30.0.11", leaseTTL, slog.New(slog.DiscardHandler),
			func(text string) {
				if text != "" && h.late != nil {
					<-h.late
				}
				set(func() { h.rival = text })
			},
			func(text string) { set(func() { h.problem = text }) },
			func(held bool) { set(func() { h.held = held }) })
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return h
}

// check looks at what the agent says now.
func (h *holding) check(t *testing.T, when string, held bool, rival, problem string) {
	t.Helper()
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	is := func(text, want string) bool { return (text == "") == (want == "") && strings.Contains(text, want) }
	if h.held != held || !is(h.rival, rival) || !is(h.problem, problem) {
		t.Errorf("%s: it holds the lease: %v; it says of a rival: %q, and of the lease: %q", when, h.held, h.rival, h.problem)
	}
}

func acquire(t *testing.T, r registry.Registry) registry.Lease {
	lease, err := r.Acquire(t.Context(), api.NodeLease("node1"), "node1 at 172.30.0.12", leaseTTL)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// TestWhatComesLateMakesNoRival has it be known, or said, that another agent holds the lease
// only after that one has let go, and this one has it.
func TestWhatComesLateMakesNoRival(t *testing.T) {
	for what, start := range map[string]func(*testing.T, *memory.Registry, chan struct{}) *holding{
		"an answer": func(t *testing.T, r *memory.Registry, let chan struct{}) *holding { return hold(t, slow{r, let}, nil) },
		"a word":    func(t *testing.T, r *memory.Registry, let chan struct{}) *holding { return hold(t, r, let) },
	} {
		synctest.Test(t, func(t *testing.T) {
			r, let := memory.New(), make(chan struct{})
			other := acquire(t, r)
			h := start(t, r, let)
			time.Sleep(leaseTTL)
			h.check(t, what+" is on its way", false, "", "")
			if err := other.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			close(let)
			h.check(t, what+" has come", true, "", "")
			time.Sleep(10 * leaseTTL)
			h.check(t, what+" came long ago", true, "", "")
		})
	}
}

// TestWhoHoldsTheLeaseHasNoRival has an agent lose its lease to another one, and then not
// reach the registry. Nothing is left of what it said when it holds the lease again.
func TestWhoHoldsTheLeaseHasNoRival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memory.New()
		h := hold(t, r, nil)
		h.check(t, "at first", true, "", "")

		r.Stop()
		time.Sleep(leaseTTL)
		h.check(t, "without a registry", false, "", "cannot take the lease of node node1")
		r.Start()
		time.Sleep(time.Second)
		h.check(t, "with one again", true, "", "")

		r.Stop()
		time.Sleep(leaseTTL + 500*time.Millisecond)
		h.check(t, "without one again", false, "", "cannot take the lease of node node1")
		r.Start()
		acquire(t, r)
		time.Sleep(leaseTTL)
		h.check(t, "while another has it", false, "another agent, node1 at 172.30.0.12, runs as node node1", "")
		if holder, err := r.Holder(t.Context(), api.RivalLease("node1")); holder != "node1 at 172.30.0.11" {
			t.Errorf("the registry says of the rival: %q, %v", holder, err)
		}
		r.Stop()
		time.Sleep(leaseTTL)
		h.check(t, "while another has it, for all that is known", false, "another agent", "cannot take")
		r.Start()
		time.Sleep(2 * time.Second)
		h.check(t, "after the other", true, "", "")
		time.Sleep(10 * leaseTTL)
		h.check(t, "long after the other", true, "", "")
		if holder, err := r.Holder(t.Context(), api.RivalLease("node1")); holder != "" || err != nil {
			t.Errorf("the registry says of the rival: %q, %v", holder, err)
		}
	})
}
