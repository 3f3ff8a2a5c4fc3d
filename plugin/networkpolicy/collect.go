package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/derived"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

const (
	// DefaultKeepTags is how long a Tag that nobody uses is kept for pods that
	// come back, as they do when they are moved to another node.
	DefaultKeepTags = 10 * time.Minute
	// idle is how long something must look unused before anything is written
	// about it: an agent makes a Tag before it says who has it, and a NodePods
	// before its Node may be there.
	idle = time.Minute
)

// collectorKinds are what the collector reads.
var collectorKinds = []*registry.Kind{api.TagKind, api.NodePodsKind, api.NodeReportKind, api.Node}

// collector decides what to do about Tags that nobody uses, and about what nodes
// that are gone have left behind.
type collector struct {
	keep time.Duration
	// since is when something was first seen unused.
	since map[any]time.Time
	tags  derived.List[*tag]
	nodes derived.List[*node]
}

// seenMark is a mark that was seen on a Tag.
type seenMark struct {
	tag plan.Tag
	at  int64
}

// collection is what is to be done.
type collection struct {
	// mark, clear and remove are Tags that are to get the mark of being unused,
	// to lose it, and to go.
	mark, clear, remove []*api.Tag
	// gone are the names of nodes that seem to be gone, in alphabetical order.
	gone []string
	// next is when to look again though nothing changed; zero for never.
	next time.Time
	// total and unused are how many Tags there are, and how many of them nobody
	// uses.
	total, unused int
}

// decide says what is to be done. Whatever was done before and however little of
// it, it says what is left to do.
func (c *collector) decide(objects registry.Objects, now time.Time) collection {
	c.tags.Update(objects.All(api.TagKind), readTag, compareTags)
	c.nodes.Update(objects.All(api.NodePodsKind), readNodePods, compareNodes)
	used := usedTags(c.nodes.All())
	before := c.since
	c.since = map[any]time.Time{}
	var d collection
	at := func(t time.Time) {
		if d.next.IsZero() || t.Before(d.next) {
			d.next = t
		}
	}
	unused := func(what any) bool {
		since, known := before[what]
		if !known {
			since = now
		}
		c.since[what] = since
		if ripe := since.Add(idle); ripe.After(now) {
			at(ripe)
			return false
		}
		return true
	}
	for _, t := range c.tags.All() {
		number, err := tagNumber(t.object.Name)
		if err != nil {
			continue // nobody can use it, and it is not Weft's
		}
		d.total++
		mark := t.object.Spec.UnusedSince
		switch {
		case used[number]:
			if mark != nil {
				d.clear = append(d.clear, t.object)
			}
			continue
		case mark == nil:
			if unused(number) {
				d.mark = append(d.mark, t.object)
			}
		default:
			// Who wrote the mark may have decided to long before, so that it is to
			// be seen for a while, too: by then whoever found the Tag without it
			// has said who uses it, or given up.
			seen := unused(seenMark{number, mark.Unix()})
			if over := mark.Add(c.keep); over.After(now) {
				at(over)
			} else if seen {
				d.remove = append(d.remove, t.object)
			}
		}
		d.unused++
	}
	left := map[string]bool{}
	for _, k := range []*registry.Kind{api.NodePodsKind, api.NodeReportKind} {
		for o := range objects.All(k) {
			if name := o.GetName(); objects.Get(api.Node, registry.Key{Name: name}) == nil && !left[name] {
				left[name] = true
				if unused(name) {
					d.gone = append(d.gone, name)
				}
			}
		}
	}
	slices.Sort(d.gone)
	return d
}

func usedTags(nodes []*node) map[plan.Tag]bool {
	used := map[plan.Tag]bool{}
	for _, n := range nodes {
		for _, p := range n.Pods {
			used[p.Tag] = true
		}
	}
	return used
}

// carryOut does what was decided. What somebody else did meanwhile is no error:
// what is left is decided again.
func (d collection) carryOut(ctx context.Context, r registry.Registry, now time.Time) error {
	var failed []error
	did := func(err error) bool {
		if err == nil || errors.Is(err, registry.ErrConflict) || errors.Is(err, registry.ErrNotFound) {
			return true
		}
		failed = append(failed, err)
		return ctx.Err() == nil && !errors.Is(err, registry.ErrUnavailable)
	}
	mark := func(o *api.Tag, since *metav1.Time) error {
		o = o.DeepCopyObject().(*api.Tag)
		o.Spec.UnusedSince = since
		return call(ctx, func(ctx context.Context) error {
			_, err := r.Update(ctx, api.TagKind, o)
			return err
		})
	}
	remove := func(k *registry.Kind, name, version string) error {
		return call(ctx, func(ctx context.Context) error { return r.Delete(ctx, k, registry.Key{Name: name}, version) })
	}
	for _, o := range d.clear {
		if !did(mark(o, nil)) {
			return errors.Join(failed...)
		}
	}
	for _, o := range d.mark {
		// The time is kept in whole seconds.
		if !did(mark(o, &metav1.Time{Time: now.Truncate(time.Second)})) {
			return errors.Join(failed...)
		}
	}
	if len(d.remove) > 0 {
		// What the controller follows may be behind; who uses what, it must know
		// now. An agent that takes the Tag into use later changes it first.
		var used map[plan.Tag]bool
		err := call(ctx, func(ctx context.Context) error {
			list, _, err := r.List(ctx, api.NodePodsKind)
			var nodes []*node
			for _, o := range list {
				if n := readNodePods(o, nil); n != nil {
					nodes = append(nodes, n)
				}
			}
			used = usedTags(nodes)
			return err
		})
		if err != nil {
			return errors.Join(append(failed, err)...)
		}
		for _, o := range d.remove {
			if n, err := tagNumber(o.Name); err != nil || used[n] {
				continue
			}
			if !did(remove(api.TagKind, o.Name, o.ResourceVersion)) {
				return errors.Join(failed...)
			}
		}
	}
	for _, name := range d.gone {
		// The same holds here.
		err := call(ctx, func(ctx context.Context) error {
			_, err := r.Get(ctx, api.Node, registry.Key{Name: name})
			return err
		})
		if err == nil {
			continue
		}
		if !errors.Is(err, registry.ErrNotFound) {
			failed = append(failed, fmt.Errorf("it cannot be told whether a node is gone: %w", err))
			break
		}
		// An agent that is there after all sees that the pods are gone, and says
		// both again.
		if !did(remove(api.NodeReportKind, name, "")) || !did(remove(api.NodePodsKind, name, "")) {
			break
		}
	}
	return errors.Join(failed...)
}

// call bounds a call to the registry.
func call(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return do(ctx)
}
