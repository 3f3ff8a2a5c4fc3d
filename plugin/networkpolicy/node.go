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

	"github.com/weftnet/weft/api"
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
)

// runner is one run of RunNode: it tells others of the node's pods, and which
// policies are in force for them.
type runner struct {
	plugin.NodeEnv
	// now is the node as the agent knows it, applied as the data plane does it.
	now     view
	tags    tags
	applied view
	// made are the Tags that this run got from the registry, which what the
	// agent follows may not show yet.
	made map[plan.Tag]madeTag
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
	// failing is since when something has failed, logged what was said of it.
	failing time.Time
	logged  string
}

// outline is what the node as the agent knows it has of the same object, as a
// rule, which need not be there twice.
func (r *runner) outline(o registry.Object, before *translated) *translated {
	for i := range r.now.policies.kinds {
		if t := r.now.policies.kinds[i].of(o); t != nil {
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
	return &runner{NodeEnv: env, made: map[plan.Tag]madeTag{}}
}

func (r *runner) run(ctx context.Context) error {
	return loop(ctx, r.Changed, 0, r.failed, func(ctx context.Context) (time.Duration, error) {
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
		h := hash(l.Identity)
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
// that can get no Tag it goes on saying what it says, and the error says why.
func (r *runner) tagged(ctx context.Context, in plugin.Input) ([]api.TaggedPods, error) {
	byTag := map[plan.Tag][]netip.Addr{}
	var failed error
	for _, k := range kindred(r.now.locals.list) {
		t, err := r.tagOf(ctx, k.identity)
		if err == nil {
			byTag[t] = append(byTag[t], k.addresses...)
			continue
		}
		failed = fmt.Errorf("pods of namespace %s cannot get a Tag, and so other nodes' policies do not know what they are: %w", k.identity.Namespace, err)
		if errors.Is(err, registry.ErrUnavailable) || ctx.Err() != nil {
			return nil, failed
		}
		if said := own(in); said != nil {
			for _, p := range readNodePods(said, nil).Pods {
				for _, a := range p.Addresses {
					if slices.Contains(k.addresses, a) {
						byTag[p.Tag] = append(byTag[p.Tag], a)
					}
				}
			}
		}
	}
	return format(byTag), failed
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
		o, err = allocate(ctx, r.Registry, id)
	}
	if err != nil {
		return 0, err
	}
	made := readTag(o, nil)
	if made.group == nil {
		return 0, fmt.Errorf("tag %s: %w", o.Name, made.problem)
	}
	r.made[made.group.Tag] = madeTag{made.group, now.Add(catchUp)}
	return made.group.Tag, nil
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
	made, err := false, registry.ErrNotFound
	if have != nil {
		// What the agent follows is the newest as a rule, which spares a question.
		next := have.DeepCopyObject().(*api.NodePods)
		next.Pods = want
		_, err = r.Registry.Update(ctx, api.NodePodsKind, next)
	}
	if errors.Is(err, registry.ErrConflict) || errors.Is(err, registry.ErrNotFound) {
		made, err = put(ctx, r.Registry, api.NodePodsKind, in.Node.Name, func(n *api.NodePods) { n.Pods = want })
	}
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
			n.Enforced, n.Problems = want.Enforced, want.Problems
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
