package networkpolicy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/derived"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/registry"
)

// tag is a Tag.
type tag struct {
	// group is nil for one that means nothing, and problem says why. It is the
	// same pointer while it means the same.
	group   *policy.Group
	problem error
	object  *api.Tag
}

// marked reports whether the controller found nobody who uses the Tag.
func (t *tag) marked() bool { return t.object.Spec.UnusedSince != nil }

// tags are the Tags, and what stands for whom.
type tags struct {
	derived.List[*tag]
	// groups are the list's, without what means nothing.
	groups     []*policy.Group
	byIdentity map[uint64][]*tag
}

func (t *tags) update(objects registry.Objects) {
	gone, came := t.List.Update(objects.All(api.TagKind), readTag, compareTags)
	if len(gone)+len(came) == 0 {
		return
	}
	if t.byIdentity == nil {
		t.byIdentity = map[uint64][]*tag{}
	}
	for _, g := range gone {
		if g.group == nil {
			continue
		}
		h := bucket(&g.group.Identity)
		t.byIdentity[h] = slices.DeleteFunc(t.byIdentity[h], func(o *tag) bool { return o == g })
		if len(t.byIdentity[h]) == 0 {
			delete(t.byIdentity, h)
		}
	}
	for _, c := range came {
		if c.group != nil {
			h := bucket(&c.group.Identity)
			t.byIdentity[h] = append(t.byIdentity[h], c)
		}
	}
	groups := make([]*policy.Group, 0, len(t.All()))
	for _, g := range t.All() {
		if g.group != nil {
			groups = append(groups, g.group)
		}
	}
	if !slices.Equal(t.groups, groups) {
		t.groups = groups
	}
}

// of returns the Tag to use for pods of an identity: the least that is not
// marked, so that all agents agree; or the least; or nil.
func (t *tags) of(id *policy.Identity) *tag {
	var best *tag
	for _, c := range t.byIdentity[bucket(id)] {
		if sameIdentity(&c.group.Identity, id) && (best == nil ||
			best.marked() && !c.marked() || best.marked() == c.marked() && c.group.Tag < best.group.Tag) {
			best = c
		}
	}
	return best
}

// number is the tag that it says the meaning of, 0 where it means nothing.
func (t *tag) number() plan.Tag {
	if t.group == nil {
		return 0
	}
	return t.group.Tag
}

// numbered returns the Tag of a number, nil for one that is not known or means nothing.
func (t *tags) numbered(n plan.Tag) *tag {
	i, found := slices.BinarySearchFunc(t.All(), n, func(t *tag, n plan.Tag) int { return cmp.Compare(t.number(), n) })
	if !found {
		return nil
	}
	return t.All()[i]
}

// compareTags orders by number, those that mean nothing first.
func compareTags(a, b *tag) int {
	return cmp.Or(cmp.Compare(a.number(), b.number()), strings.Compare(a.object.Name, b.object.Name))
}

var protocols = map[string]plan.Protocol{"TCP": plan.TCP, "UDP": plan.UDP, "SCTP": plan.SCTP}

// readTag reads a Tag.
func readTag(o registry.Object, before *tag) *tag {
	object, ok := o.(*api.Tag)
	if !ok {
		return nil
	}
	t := &tag{object: object}
	g := &policy.Group{Identity: policy.Identity{Namespace: object.Spec.Namespace, Labels: object.Spec.Labels}}
	if g.Tag, t.problem = tagNumber(object.Name); t.problem != nil {
		return t
	}
	if size := sizeOf(&g.Identity); size > maxIdentity {
		t.problem = fmt.Errorf("spec has %d bytes of labels, and %d are the most; delete the Tag", size, maxIdentity)
		return t
	}
	if g.Namespace == "" {
		t.problem = errors.New("spec.namespace is empty; delete the Tag")
		return t
	}
	for i, p := range object.Spec.Ports {
		protocol, known := protocols[p.Protocol]
		if !known || p.Port < 1 || p.Port > 65535 {
			t.problem = fmt.Errorf("spec.ports[%d]: %q %d is no port; delete the Tag", i, p.Protocol, p.Port)
			return t
		}
		g.Ports = append(g.Ports, policy.NamedPort{Name: p.Name, Protocol: protocol, Port: uint16(p.Port)})
	}
	if t.group = g; before != nil && before.group != nil && sameIdentity(&before.group.Identity, &g.Identity) {
		t.group = before.group
	}
	return t
}

// tagNumber returns the tag that an object of that name is about.
func tagNumber(name string) (plan.Tag, error) {
	n, err := strconv.ParseUint(name, 10, 32)
	if err != nil || n < api.MinTag || n > api.MaxTag || strconv.FormatUint(n, 10) != name {
		return 0, fmt.Errorf("its name is no number from %d to %d; delete the Tag", api.MinTag, api.MaxTag)
	}
	return plan.Tag(n), nil
}

func tagName(t plan.Tag) string { return strconv.FormatUint(uint64(t), 10) }

// sameIdentity reports whether no policy can tell two pods apart.
func sameIdentity(a, b *policy.Identity) bool {
	return a.Namespace == b.Namespace && maps.Equal(a.Labels, b.Labels) && slices.Equal(a.Ports, b.Ports)
}

// seed is that of bucket.
var seed = maphash.MakeSeed()

// bucket is the same for identities that are the same, for as long as the process runs.
// Nobody can choose labels so that many of them are in one.
func bucket(id *policy.Identity) uint64 {
	h := maphash.String(seed, id.Namespace)
	for key, value := range id.Labels {
		h += maphash.Comparable(seed, [2]string{key, value})
	}
	for i, p := range id.Ports {
		h += uint64(i+1) * maphash.Comparable(seed, p)
	}
	return h
}

// maxIdentity is how many bytes of labels and ports a Tag has at most, as each node of
// the cluster holds it. Kubernetes lets a pod have a megabyte of labels; few have a
// thousandth of that.
const maxIdentity = 16 << 10

// sizeOf is how many bytes of labels and ports an identity has.
func sizeOf(id *policy.Identity) int {
	n := len(id.Namespace)
	for key, value := range id.Labels {
		n += len(key) + len(value)
	}
	for _, p := range id.Ports {
		n += len(p.Name) + 8
	}
	return n
}

// errTooLarge says that an identity is more than others are told.
func errTooLarge(size int) error {
	return fmt.Errorf("their labels and ports have %d bytes, and %d are the most; use fewer or shorter ones", size, maxIdentity)
}

// hash is the same for identities that are the same, on every node.
func hash(id *policy.Identity) uint64 {
	h := fnv.New64a()
	put := func(words ...string) {
		for _, w := range words {
			h.Write([]byte(w))
			h.Write([]byte{0})
		}
	}
	put(id.Namespace)
	for _, key := range slices.Sorted(maps.Keys(id.Labels)) {
		put(key, id.Labels[key])
	}
	for _, p := range id.Ports {
		put(p.Name, p.Protocol.String(), strconv.Itoa(int(p.Port)))
	}
	return h.Sum64()
}

// specOf is what a Tag says of pods of an identity.
func specOf(id *policy.Identity) api.TagSpec {
	s := api.TagSpec{Namespace: id.Namespace, Labels: id.Labels}
	for _, p := range id.Ports {
		s.Ports = append(s.Ports, api.TagPort{Name: p.Name, Protocol: strings.ToUpper(p.Protocol.String()), Port: int32(p.Port)})
	}
	return s
}

// probes is how many numbers allocate tries.
const probes = 30

// candidate is the number that all agents try first for the same pods, and so find each
// other's Tags. Whoever takes it beforehand, or gives pods labels that lead to it, gains
// nothing, as the others are drawn.
func candidate(id *policy.Identity) plan.Tag {
	const all = api.MaxTag - api.MinTag + 1
	return plan.Tag(api.MinTag + hash(id)%all)
}

// draw returns a number that nobody can tell beforehand, as a rule one that is not known
// to be taken.
func (t *tags) draw() plan.Tag {
	var n plan.Tag
	for range 100 {
		n = api.MinTag + rand.N(plan.Tag(api.MaxTag-api.MinTag+1))
		if t.numbered(n) == nil {
			break
		}
	}
	return n
}

// errTaken says that a number is not to be had.
var errTaken = errors.New("it stands for other pods")

// allocate returns a Tag that stands for pods of an identity, and that is not
// marked. Killed anywhere, it leaves a Tag at most, which the next call finds and
// which the controller collects if nobody needs it.
// draw returns the numbers that it tries behind the first.
func allocate(ctx context.Context, r registry.Registry, id *policy.Identity, draw func() plan.Tag) (*api.Tag, error) {
	for attempt := range probes {
		number := candidate(id)
		if attempt > 0 {
			number = draw()
		}
		o := &api.Tag{ObjectMeta: metav1.ObjectMeta{Name: tagName(number)}, Spec: specOf(id)}
		made, err := r.Create(ctx, api.TagKind, o)
		if err == nil {
			return made.(*api.Tag), nil
		}
		if !errors.Is(err, registry.ErrExists) {
			return nil, err
		}
		t, err := use(ctx, r, o.Name, id)
		switch {
		case err == nil:
			return t, nil
		case errors.Is(err, errTaken) || errors.Is(err, registry.ErrNotFound) || errors.Is(err, registry.ErrInvalid):
			// Gone this moment, or nothing that anybody can read: there are others.
		default:
			return nil, err
		}
	}
	return nil, fmt.Errorf("no Tag for pods of namespace %s: %d numbers that were tried are taken; delete Tags that nobody needs", id.Namespace, probes)
}

// use takes the mark from a Tag, if it has one, and returns it as it is then. It
// fails with errTaken if it does not stand for pods of the identity.
func use(ctx context.Context, r registry.Registry, name string, id *policy.Identity) (*api.Tag, error) {
	return registry.Modify(ctx, r, api.TagKind, registry.Key{Name: name}, func(t *api.Tag) error {
		if read := readTag(t, nil); read == nil || read.group == nil || !sameIdentity(&read.group.Identity, id) {
			return errTaken
		}
		t.Spec.UnusedSince = nil
		return nil
	})
}
