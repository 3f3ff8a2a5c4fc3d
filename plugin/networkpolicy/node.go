package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/registry"
)

const (
	// gather is for how long changes to the node's pods are gathered after
	// those that others were told of last.
	gather = 100 * time.Millisecond
	// catchUp is how long what the agent follows may take to show what this
	// node wrote; what it does not show then is written again.
	catchUp = 5 * time.Second
	// recheck is how often the node's report is read again, in case that others
	// changed it: agents do not follow reports.
	recheck = 5 * time.Minute
	// patience is how long something may fail before the node's readiness is
	// told of it.
	patience = 10 * time.Second
	// moment is how long policies may be left for later before that is said.
	moment = 2 * time.Second
)

// runner is one run of RunNode: it tells others of the node's pods, and which
// policies are in force for them.
type runner struct {
	plugin.NodeEnv
	// standby says that none are, though others are told of the pods.
	standby bool
	// now is the node as the agent knows it, applied as the data plane does it.
	now     view
	tags    tags
	applied view
	// made are the Tags that this run got from the registry, which what the
	// agent follows may not show yet.
	made map[plan.Tag]madeTag
	// draw returns numbers for new Tags.
	draw func() plan.Tag
	// budgets say, by namespace, how many more Tags the node may make for its
	// pods.
	budgets map[string]*rate.Limiter
	// meant is what the tags stand for that others are to be told of.
	meant map[plan.Tag]*policy.Identity
	// wrote is what others were told of the node's pods last.
	wrote struct {
		pods []api.TaggedPods
		at   time.Time
	}
	// said is the report as it is in the registry, nil where that is not known;
	// read is when it was read.
	said *api.NodeReport
	read time.Time
	// looked is what the report was last made from.
	looked *plugin.Applied
	// waiting is since when policies have been left for later, zero where none are.
	waiting time.Time
	// failing is since when something has failed, logged what was said of it.
	failing time.Time
	logged  string
}

// outline is what the node as the agent knows it has of the same object, as a
// rule, which need not be there twice.
func (r *runner) outline(o registry.Object, before *translated) *translated {
	for i := range r.now.policies.kinds {
		if t := r.now.policies.kinds[i].Of(o); t != nil {
			return t
		}
	}
	return outline(o, before)
}

type madeTag struct {
	group *policy.Group
	until time.Time
}

func newRunner(env plugin.NodeEnv) *runner {
	r := &runner{NodeEnv: env, made: map[plan.Tag]madeTag{}, budgets: map[string]*rate.Limiter{}}
	r.draw = r.tags.draw
	return r
}

func (r *runner) run(ctx context.Context) error {
	return retry.Loop{Changed: r.Changed, AfterError: backoff.First, Backoff: backoff, Told: r.failed}.Run(ctx, func(ctx context.Context) (time.Duration, error) {
		in, complete := r.Input()
		if !complete {
			return 0, nil
		}
		return r.round(ctx, in, r.Applied())
	})
}

// failed says what keeps the work from being done: in the log at once, to the
// node's readiness if it lasts.
func (r *runner) failed(err error) {
	if err == nil {
		if r.logged != "" {
			r.Log.Info("policies: the registry has what it must have of this node's pods again")
		}
		r.failing, r.logged = time.Time{}, ""
		r.Problem("")
		return
	}
	if r.failing.IsZero() {
		r.failing = time.Now()
	}
	if message := err.Error(); message != r.logged {
		r.Log.LogAttrs(context.Background(), slog.LevelWarn, "policies: "+message)
		r.logged = message
	}
	if time.Since(r.failing) >= patience {
		r.Problem(err.Error())
	}
}

// round writes what has to be written, and returns when to look again though
// nothing changed.
func (r *runner) round(ctx context.Context, in plugin.Input, applied *plugin.Applied) (time.Duration, error) {
	r.now.update(in, outline)
	r.tags.update(in.Objects)
	want, failed := r.tagged(ctx, in)
	wait, err := r.writePods(ctx, in, want)
	if r.standby {
		return wait, errors.Join(failed, err)
	}
	again, err2 := r.writeReport(ctx, in.Node.Name, applied)
	return sooner(wait, again), errors.Join(failed, err, err2)
}

// kin are pods that no policy can tell apart.
type kin struct {
	identity  *policy.Identity
	addresses []netip.Addr
}

// kindred returns the node's pods that count, those that no policy can tell
// apart as one, in the order of their interfaces.
func kindred(pods []*policy.Local) []*kin {
	var all []*kin
	byHash := map[uint64][]*kin{}
	for _, l := range pods {
		if !counts(l) {
			continue
		}
		h := bucket(l.Identity)
		i := slices.IndexFunc(byHash[h], func(k *kin) bool { return sameIdentity(k.identity, l.Identity) })
		if i < 0 {
			i = len(byHash[h])
			k := &kin{identity: l.Identity}
			byHash[h] = append(byHash[h], k)
			all = append(all, k)
		}
		byHash[h][i].addresses = append(byHash[h][i].addresses, l.Addresses...)
	}
	return all
}

// tagged returns what the NodePods must say, nil where that is not known. Of pods
// that can get no Tag it goes on saying what it says, but for what is not so any more,
// as they have other labels; the error says why.
func (r *runner) tagged(ctx context.Context, in plugin.Input) ([]api.TaggedPods, error) {
	byTag := map[plan.Tag][]netip.Addr{}
	r.meant = map[plan.Tag]*policy.Identity{}
	var said map[netip.Addr]plan.Tag
	var failed error
	for _, k := range kindred(r.now.locals.list) {
		t, err := r.tagOf(ctx, k.identity)
		if err == nil && r.meant[t] != nil {
			return nil, fmt.Errorf("tag %d stands for other pods of namespace %s by now, which what this node follows does not show yet", t, k.identity.Namespace)
		}
		if err == nil {
			byTag[t] = append(byTag[t], k.addresses...)
			r.meant[t] = k.identity
			continue
		}
		failed = fmt.Errorf("pods of namespace %s cannot get a Tag, and so other nodes' policies do not know what they are: %w", k.identity.Namespace, err)
		if errors.Is(err, registry.ErrUnavailable) || ctx.Err() != nil {
			return nil, failed
		}
		if said == nil {
			said = saidOf(own(in))
		}
		for _, a := range k.addresses {
			n, was := said[a]
			if t := r.tags.numbered(n); was && (t == nil || sameIdentity(&t.group.Identity, k.identity)) {
				byTag[n] = append(byTag[n], a)
				r.meant[n] = k.identity
			}
		}
	}
	return format(byTag), failed
}

// saidOf returns which tags addresses have by a NodePods, which may be nil.
func saidOf(pods *api.NodePods) map[netip.Addr]plan.Tag {
	said := map[netip.Addr]plan.Tag{}
	if pods == nil {
		return said
	}
	for _, p := range readNodePods(pods, nil).Pods {
		for _, a := range p.Addresses {
			said[a] = p.Tag
		}
	}
	return said
}

// announced reports whether the node's NodePods says of its pods what others must know,
// with Tags that there are.
func announced(in plugin.Input) bool {
	var now view
	var known tags
	now.update(in, outline)
	known.update(in.Objects)
	byTag := map[plan.Tag][]netip.Addr{}
	for _, k := range kindred(now.locals.list) {
		if sizeOf(k.identity) > maxIdentity {
			continue // others are not told of it, however long one waits
		}
		t := known.of(k.identity)
		if t == nil {
			return false
		}
		byTag[t.group.Tag] = append(byTag[t.group.Tag], k.addresses...)
	}
	said := own(in)
	return said == nil && len(byTag) == 0 || said != nil && samePods(said.Pods, format(byTag))
}

// own returns the node's NodePods, or nil.
func own(in plugin.Input) *api.NodePods {
	return registry.GetAs[*api.NodePods](in.Objects, api.NodePodsKind, registry.Key{Name: in.Node.Name})
}

// format returns addresses by tag as a NodePods has them.
func format(byTag map[plan.Tag][]netip.Addr) []api.TaggedPods {
	pods := make([]api.TaggedPods, 0, len(byTag))
	for t, addresses := range byTag {
		slices.SortFunc(addresses, netip.Addr.Compare)
		p := api.TaggedPods{Tag: int32(t)}
		for _, a := range slices.Compact(addresses) {
			p.Addresses = append(p.Addresses, a.String())
		}
		pods = append(pods, p)
	}
	slices.SortFunc(pods, func(a, b api.TaggedPods) int { return int(a.Tag) - int(b.Tag) })
	return pods
}

// tagOf returns the tag of pods of an identity, and sees to it that there is a
// Tag for them that the controller leaves alone.
func (r *runner) tagOf(ctx context.Context, id *policy.Identity) (plan.Tag, error) {
	size := sizeOf(id)
	if size > maxIdentity {
		return 0, errTooLarge(size)
	}
	t := r.tags.of(id)
	if t != nil && !t.marked() {
		return t.group.Tag, nil
	}
	now := time.Now()
	for number, made := range r.made {
		if !made.until.After(now) {
			delete(r.made, number)
		} else if sameIdentity(&made.group.Identity, id) {
			return number, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var o *api.Tag
	err := registry.ErrNotFound
	if t != nil {
		o, err = use(ctx, r.Registry, t.object.Name, id)
	}
	if errors.Is(err, registry.ErrNotFound) || errors.Is(err, errTaken) {
		if err := r.spend(id.Namespace, size, now); err != nil {
			return 0, err
		}
		o, err = allocate(ctx, r.Registry, id, r.draw)
	}
	if err != nil {
		return 0, err
	}
	made := readTag(o, nil)
	if made.group == nil {
		return 0, fmt.Errorf("tag %s: %w", o.Name, made.problem)
	}
	r.remember(made)
	return made.group.Tag, nil
}

// Every node of the cluster holds every Tag, and who owns a pod can give it other
// labels at any time. So the pods of one namespace on one node cause no more than
// these: as many as a large namespace needs at once, and then so many a second. One
// counts as several that has more than usualIdentity bytes.
const (
	tagsAtOnce    = 100
	tagsPerSecond = 1
	usualIdentity = 1 << 10
)

// spend takes a Tag of a size from what a namespace may cause, or says that it may not.
func (r *runner) spend(namespace string, size int, now time.Time) error {
	b := r.budgets[namespace]
	if b == nil {
		for other, b := range r.budgets {
			if b.TokensAt(now) >= tagsAtOnce {
				delete(r.budgets, other)
			}
		}
		b = rate.NewLimiter(tagsPerSecond, tagsAtOnce)
		r.budgets[namespace] = b
	}
	if !b.AllowN(now, 1+size/usualIdentity) {
		return fmt.Errorf("they have got new sets of labels more than %d times, and more often than %d a second (one of more than %d bytes counts as several): whoever owns them should not give each its own labels, or change them all the time",
			tagsAtOnce, tagsPerSecond, usualIdentity)
	}
	return nil
}

// writePods tells others of the node's pods: at once, unless it told them a
// moment ago.
func (r *runner) writePods(ctx context.Context, in plugin.Input, want []api.TaggedPods) (time.Duration, error) {
	if want == nil {
		return 0, nil
	}
	have := own(in)
	if have != nil && samePods(have.Pods, want) || have == nil && len(want) == 0 {
		return 0, nil
	}
	now := time.Now()
	next := r.wrote.at.Add(gather)
	if samePods(r.wrote.pods, want) {
		next = r.wrote.at.Add(catchUp) // the agent may be behind this
	}
	if next.After(now) {
		return next.Sub(now), nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// What the agent follows is the newest as a rule, which spares a question.
	made, err := r.tell(ctx, in.Node.Name, have, want)
	if err != nil {
		return 0, fmt.Errorf("other nodes cannot be told of this node's pods: %w", err)
	}
	if made {
		// Whoever removed the old one, as the controller does for a Node that
		// is gone, will have removed the report, too.
		r.said = nil
	}
	r.wrote.pods, r.wrote.at = want, now
	return catchUp, nil
}

// tell writes the NodePods of that name over the one that is there, as far as
// known, and reports whether there was none.
func (r *runner) tell(ctx context.Context, name string, have *api.NodePods, want []api.TaggedPods) (made bool, err error) {
	for {
		next := &api.NodePods{}
		next.Name = name
		if have != nil {
			next = have.DeepCopyObject().(*api.NodePods)
		}
		if err := r.vouch(ctx, want, next.Pods); err != nil {
			return false, err
		}
		next.Pods = want
		if have == nil {
			_, err = r.Registry.Create(ctx, api.NodePodsKind, next)
		} else {
			_, err = r.Registry.Update(ctx, api.NodePodsKind, next)
		}
		if !errors.Is(err, registry.ErrConflict) && !errors.Is(err, registry.ErrNotFound) && !errors.Is(err, registry.ErrExists) {
			return have == nil && err == nil, err
		}
		have = nil
		o, err := r.Registry.Get(ctx, api.NodePodsKind, registry.Key{Name: name})
		switch {
		case err == nil:
			have = o.(*api.NodePods)
		case !errors.Is(err, registry.ErrNotFound):
			return false, err
		}
	}
}

// vouch sees to it that tags which the NodePods as it is does not have yet stand
// for what they are meant to, in the registry and not just in what the agent
// follows, which may be older than the time for which an unused Tag is kept: by
// now its number may stand for other pods. A Tag without a mark is kept for that
// time at least, and the NodePods is written before. The Tags of a NodePods are
// not removed.
func (r *runner) vouch(ctx context.Context, want, said []api.TaggedPods) error {
	for _, p := range want {
		t := plan.Tag(p.Tag)
		made := r.made[t]
		known := made.until.After(time.Now()) && sameIdentity(&made.group.Identity, r.meant[t])
		if known || slices.ContainsFunc(said, func(s api.TaggedPods) bool { return s.Tag == p.Tag }) {
			continue
		}
		o, err := use(ctx, r.Registry, tagName(t), r.meant[t])
		if err != nil {
			return fmt.Errorf("tag %d is not that of pods of namespace %s any more: %w", t, r.meant[t].Namespace, err)
		}
		r.remember(readTag(o, nil))
	}
	return nil
}

// remember notes what a Tag stands for in the registry.
func (r *runner) remember(t *tag) {
	r.made[t.group.Tag] = madeTag{t.group, time.Now().Add(catchUp)}
}

func samePods(a, b []api.TaggedPods) bool {
	return slices.EqualFunc(a, b, func(a, b api.TaggedPods) bool { return a.Tag == b.Tag && slices.Equal(a.Addresses, b.Addresses) })
}

// put changes the object of that name, which it makes if there is none. It
// reports whether it did.
func put[T registry.Object](ctx context.Context, r registry.Registry, k *registry.Kind, name string, change func(T)) (made bool, err error) {
	for {
		_, err := registry.Modify(ctx, r, k, registry.Key{Name: name}, func(o T) error { change(o); return nil })
		if !errors.Is(err, registry.ErrNotFound) {
			return false, err
		}
		o := k.New().(T)
		o.SetName(name)
		change(o)
		if _, err = r.Create(ctx, k, o); !errors.Is(err, registry.ErrExists) {
			return err == nil, err
		}
	}
}

// awaits returns how long to say nothing, because what was left for later will be
// done in a moment, as a rule.
func (r *runner) awaits(applied *plugin.Applied, now time.Time) time.Duration {
	if !slices.ContainsFunc(applied.Problems, func(p plugin.Problem) bool { return p.Message == notYet }) {
		r.waiting = time.Time{}
		return 0
	}
	if r.waiting.IsZero() {
		r.waiting = now
	}
	return r.waiting.Add(moment).Sub(now)
}

// writeReport says which policies are in force, and returns when to read again
// what was said.
func (r *runner) writeReport(ctx context.Context, node string, applied *plugin.Applied) (time.Duration, error) {
	now := time.Now()
	if r.said != nil && now.Sub(r.read) >= recheck {
		r.said = nil
	}
	if applied == nil {
		return 0, nil
	}
	if r.said != nil && applied == r.looked {
		return r.read.Add(recheck).Sub(now), nil
	}
	if left := r.awaits(applied, now); left > 0 {
		return left, nil
	}
	r.applied.update(applied.Input, r.outline)
	want := reportOf(&r.applied, applied.Problems)
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	first := r.said == nil
	if first {
		o, err := r.Registry.Get(ctx, api.NodeReportKind, registry.Key{Name: node})
		switch {
		case errors.Is(err, registry.ErrNotFound):
			r.said = &api.NodeReport{}
		case err != nil:
			return 0, fmt.Errorf("it cannot be said which policies are in force: %w", err)
		default:
			r.said = o.(*api.NodeReport)
		}
		// Not all nodes at once.
		r.read = now.Add(-rand.N(recheck / 2))
	}
	if news(r.said, want, first) {
		_, err := put(ctx, r.Registry, api.NodeReportKind, node, func(n *api.NodeReport) {
			n.Enforced, n.Problems, n.Untold = want.Enforced, want.Problems, want.Untold
		})
		if err != nil {
			r.said = nil
			return 0, fmt.Errorf("it cannot be said which policies are in force: %w", err)
		}
		r.said = want
	}
	r.looked = applied
	return r.read.Add(recheck).Sub(now), nil
}
