package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/weftnet/weft/api"
)

// What breaks when something fails is counted, under the same load, in clusters that differ in
// who does Services alone. Each fault begins in a whole cluster, with load that was made for it.

// How much is asked in a second, or at a time, by both clients together.
const (
	heldConnections = 100
	keptSockets     = 20
	freshDatagrams  = 200
)

const (
	// unnoticed is for how long nobody knows of a backend or a node that has gone.
	unnoticed = 3 * time.Second
	// knownAfter is how long after the return of the write what was written counts as known.
	// kube-proxy gathers changes for a second.
	knownAfter = 2 * time.Second
	// deadFor is for how long who does Services is not there, each time that he is killed.
	deadFor = 500 * time.Millisecond
	// settlingFor is how long kube-proxy runs before Services are left to it: as weft
	// kube-proxy restore has it.
	settlingFor = 10 * time.Second
)

// faultSettings say how much load there is while something fails, for how long before and after
// it, how long nothing fails between two, and how long the API server is away.
type faultSettings struct {
	Connections         int
	Window, Quiet, Away time.Duration
}

// faultRun is what became of load while something failed.
type faultRun struct {
	Fault, By string
	// Happened is when it began, and Known when what was to be known of it had been written; 0
	// where there is nothing to be known, and everything is to go on.
	Happened, Known time.Duration
	// Gone are backends that went meanwhile, Parted those whose clients parted with them before.
	Gone, Parted []string
	// Times says how often it happened, where it did more than once.
	Times  int
	Loaded []*loaded
}

// fault is something that fails.
type fault struct {
	name string
	// only says for whom it is, nil for all.
	only func(w *faultWorld) bool
	// happen has it happen and end. It fills in the run.
	happen func(s settings, ctx context.Context, w *faultWorld, r *faultRun) error
	// mend brings back what it left, nil where nothing stays.
	mend func(ctx context.Context, w *faultWorld, r *faultRun) error
}

// The faults.
const (
	faultNone    = "nothing"
	faultKilled  = "backends killed"
	faultDrained = "backends drained"
	faultProxy   = "who does Services killed, again and again"
	faultLost    = "a node lost"
	faultAway    = "the API server away"
	faultUntold  = "backends killed while it is away"
	faultRemoved = "kube-proxy removed, by Weft"
	faultBrought = "kube-proxy restored, by Weft"
)

var faults = []fault{
	{name: faultNone, happen: func(s settings, ctx context.Context, _ *faultWorld, _ *faultRun) error { return rested(ctx, s.Window) }},
	// Before any backend dies, as kube-proxy leaves connections to the dead in the kernel's table.
	{name: faultRemoved, only: (*faultWorld).hasKubeProxy, happen: settings.kubeProxyRemoved},
	{name: faultBrought, only: (*faultWorld).hasKubeProxy, happen: settings.kubeProxyRestored},
	{name: faultKilled, happen: settings.backendsKilled},
	{name: faultDrained, happen: settings.backendsDrained},
	{name: faultProxy, happen: settings.proxyKilled},
	{name: faultLost, happen: settings.nodeLost, mend: func(_ context.Context, w *faultWorld, r *faultRun) error {
		for _, b := range w.backends {
			if slices.Contains(r.Gone, b.name) {
				b.state = ready
			}
		}
		return w.cut(faultNodes-1, false)
	}},
	{name: faultAway, happen: func(s settings, ctx context.Context, w *faultWorld, r *faultRun) error {
		return s.withoutAPI(ctx, w, r, s.Away)
	}},
	{name: faultUntold, happen: settings.killedUntold, mend: func(ctx context.Context, w *faultWorld, r *faultRun) error {
		return w.end(ctx, w.named(r.Gone))
	}},
}

func (w *faultWorld) hasKubeProxy() bool { return w.kube != nil }

func (w *faultWorld) named(names []string) (some []*faultBackend) {
	for _, b := range w.backends {
		if slices.Contains(names, b.name) {
			some = append(some, b)
		}
	}
	return some
}

// faultBench has everything fail in all clusters, one after the other.
func (s settings) faultBench(ctx context.Context) (all []faultRun, err error) {
	who := []string{byWeft}
	if s.kubeProxy {
		who = append(who, byKubeProxy...)
	}
	for _, by := range who {
		runs, err := s.faultsOf(ctx, by)
		if err != nil {
			return nil, fmt.Errorf("faults, Services by %s: %w", by, err)
		}
		all = append(all, runs...)
	}
	return all, nil
}

func (s settings) faultsOf(ctx context.Context, by string) (runs []faultRun, err error) {
	say("faults: a cluster with Services by %s", by)
	w, err := s.newFaultWorld(ctx, by)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for _, f := range faults {
		if f.only != nil && !f.only(w) {
			continue
		}
		if err := rested(ctx, s.Quiet); err != nil {
			return nil, err
		}
		say("faults: %s, Services by %s", f.name, by)
		r := faultRun{Fault: f.name, By: by}
		if err := s.underLoad(ctx, w, f, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		runs = append(runs, r)
		if f.mend != nil {
			err = f.mend(ctx, w, &r)
		}
		if err = errors.Join(err, w.whole(ctx)); err != nil {
			return nil, fmt.Errorf("after %s: %w", f.name, err)
		}
	}
	return runs, nil
}

// rested waits, unless all is to end.
func rested(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// underLoad has a fault happen under load.
func (s settings) underLoad(ctx context.Context, w *faultWorld, f fault, r *faultRun) (err error) {
	n := len(w.clients)
	for i, c := range w.clients {
		what := loading{Fronts: w.fronts[i], Opened: s.Connections / n, Held: heldConnections / n, Kept: keptSockets / n, Fresh: freshDatagrams / n}
		if _, err := c.do(request{Do: doBegin, Load: what}); err != nil {
			return err
		}
	}
	if err = rested(ctx, s.Window); err == nil {
		r.Happened = clock()
		err = f.happen(s, ctx, w, r)
	}
	if err == nil {
		err = rested(ctx, s.Window)
	}
	for _, c := range w.clients {
		answer, e := c.ask(request{Do: doEndLoad})
		err, r.Loaded = errors.Join(err, e), append(r.Loaded, answer.Loaded)
	}
	return err
}

// unlist takes backends out of what the Service's EndpointSlices list.
func (w *faultWorld) unlist(ctx context.Context, r *faultRun, gone []*faultBackend) (err error) {
	for _, b := range gone {
		b.state = unlisted
	}
	r.Gone = backendNames(gone)
	r.Known, err = w.tell(ctx)
	return err
}

// backendsKilled ends backends, one beside a client and one elsewhere, of which nobody knows for
// a while.
func (s settings) backendsKilled(ctx context.Context, w *faultWorld, r *faultRun) error {
	gone := w.oneOf(1, 2)
	if err := w.end(ctx, gone); err != nil {
		return err
	}
	if err := rested(ctx, unnoticed); err != nil {
		return err
	}
	return w.unlist(ctx, r, gone)
}

// backendsDrained has backends end as Kubernetes does it: they are said to end, keep the
// connections that they have until their clients part with them, and go.
func (s settings) backendsDrained(ctx context.Context, w *faultWorld, r *faultRun) (err error) {
	gone := w.oneOf(1, 2)
	for _, b := range gone {
		b.state = draining
	}
	r.Parted = backendNames(gone)
	if r.Known, err = w.tell(ctx); err != nil {
		return err
	}
	known := r.Known
	if err := rested(ctx, s.Window); err != nil {
		return err
	}
	for _, c := range w.clients {
		if _, err := c.do(request{Do: doPart, Load: loading{Names: r.Parted}}); err != nil {
			return err
		}
	}
	if err := rested(ctx, max(s.Window/2, 10*askHeldEvery)); err != nil {
		return err
	}
	if err := w.unlist(ctx, r, gone); err != nil {
		return err
	}
	// As a kubelet does, which writes that a container has ended before it takes its network away.
	if err := rested(ctx, knownAfter); err != nil {
		return err
	}
	r.Known, r.Gone = known, nil
	return w.end(ctx, gone)
}

// proxyKilled kills who does Services on one node after the other, and starts him again.
func (s settings) proxyKilled(ctx context.Context, w *faultWorld, r *faultRun) error {
	for start := time.Now(); time.Since(start) < 2*s.Window; {
		for _, n := range w.nodes {
			if err := syscall.Kill(n.pid(), syscall.SIGKILL); err != nil {
				return fmt.Errorf("kill who does Services on %s: %w", n.itself.name, err)
			}
			r.Times++
			if err := rested(ctx, deadFor); err != nil {
				return err
			}
			if err := n.start(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// nodeLost cuts the links of a node, of which nobody knows for a while.
func (s settings) nodeLost(ctx context.Context, w *faultWorld, r *faultRun) error {
	if err := w.cut(faultNodes-1, true); err != nil {
		return err
	}
	if err := rested(ctx, unnoticed); err != nil {
		return err
	}
	var gone []*faultBackend
	for _, b := range w.backends {
		if b.node == w.cluster.lab.Nodes()[faultNodes-1] {
			gone = append(gone, b)
		}
	}
	return w.unlist(ctx, r, gone)
}

// withoutAPI takes the API server away for a while.
func (s settings) withoutAPI(ctx context.Context, w *faultWorld, r *faultRun, d time.Duration) error {
	if err := w.away(); err != nil {
		return err
	}
	return errors.Join(rested(ctx, d), w.back(ctx))
}

// killedUntold kills backends while the API server is away, so that nobody is told before it is
// back.
func (s settings) killedUntold(ctx context.Context, w *faultWorld, r *faultRun) error {
	if err := w.away(); err != nil {
		return err
	}
	gone := w.oneOf(1, 2)
	if err := errors.Join(rested(ctx, s.Window/2), w.kill(gone), rested(ctx, s.Window), w.back(ctx)); err != nil {
		return err
	}
	return w.unlist(ctx, r, gone)
}

// kubeProxyRemoved does what weft kube-proxy remove does, where kube-proxy is no DaemonSet.
func (s settings) kubeProxyRemoved(ctx context.Context, w *faultWorld, r *faultRun) error {
	if err := w.leaveTo(ctx, api.WeftProxy); err != nil {
		return err
	}
	return w.removeKubeProxy()
}

// kubeProxyRestored does what weft kube-proxy restore does.
func (s settings) kubeProxyRestored(ctx context.Context, w *faultWorld, r *faultRun) error {
	for _, n := range w.nodes {
		if err := n.start(ctx); err != nil {
			return err
		}
	}
	if err := rested(ctx, settlingFor); err != nil {
		return err
	}
	return w.leaveTo(ctx, api.KubeProxy)
}
