package explore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/registry"
)

// Store is a registry as a value: what it holds, and the time. It keeps objects
// as an etcd does, in their encoded form, and does what registry.Registry says
// of reading and writing. There is nobody in it who watches or holds a lease.
//
// The zero Store is empty. Clone it to have another that goes its own way.
type Store struct {
	// Now is the time. Advance changes it.
	Now time.Time

	items map[string]*item // by path; items do not change
	last  int64            // the last revision or UID that was given out
}

// item is a stored object.
type item struct {
	kind    *registry.Kind
	path    string
	object  registry.Object
	expires time.Time // zero for one that stays
	created int64     // when there was nothing at the path before
	text    Text
}

func (i *item) result(err error) (registry.Object, error) {
	if err != nil {
		return nil, err
	}
	return copyOf(i.object), nil
}

// Clone returns a Store with the same content.
func (s *Store) Clone() *Store {
	out := *s
	out.items = maps.Clone(s.items)
	return &out
}

// Advance lets time pass, and what lives no longer than that go.
func (s *Store) Advance(d time.Duration) {
	s.Now = s.Now.Add(d)
	maps.DeleteFunc(s.items, func(_ string, i *item) bool { return !i.expires.IsZero() && !i.expires.After(s.Now) })
}

func (s *Store) find(k *registry.Kind, key registry.Key) (string, *item, error) {
	path, ok := k.Path("", key)
	if at := s.items[path]; ok && at != nil {
		return path, at, nil
	}
	return path, nil, k.Errorf(key, registry.ErrNotFound, nil)
}

// Get returns an object, or registry.ErrNotFound.
func (s *Store) Get(k *registry.Kind, key registry.Key) (registry.Object, error) {
	i, err := s.get(k, key)
	return i.result(err)
}

func (s *Store) get(k *registry.Kind, key registry.Key) (*item, error) {
	_, at, err := s.find(k, key)
	return at, err
}

func copyOf(o registry.Object) registry.Object { return o.DeepCopyObject().(registry.Object) }

// List returns the objects of a kind, in key order.
func (s *Store) List(k *registry.Kind) []registry.Object {
	objects := objectsOf(s.list(k))
	for i, o := range objects {
		objects[i] = copyOf(o)
	}
	return objects
}

func (s *Store) list(k *registry.Kind) []*item {
	var items []*item
	for _, i := range s.items {
		if i.kind == k {
			items = append(items, i)
		}
	}
	slices.SortFunc(items, func(a, b *item) int { return registry.KeyOf(a.object).Compare(registry.KeyOf(b.object)) })
	return items
}

func objectsOf(items []*item) []registry.Object {
	objects := make([]registry.Object, len(items))
	for n, i := range items {
		objects[n] = i.object
	}
	return objects
}

// Snapshot returns the objects of some kinds. They must not be changed.
func (s *Store) Snapshot(kinds ...*registry.Kind) registry.Snapshot {
	out := registry.Snapshot{}
	for _, k := range kinds {
		out[k] = objectsOf(s.list(k))
	}
	return out
}

// Create stores a new object, as registry.Registry does.
func (s *Store) Create(k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	i, err := s.create(k, o, opts...)
	return i.result(err)
}

func (s *Store) create(k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (*item, error) {
	o, options, err := k.Admit(o, opts...)
	if err != nil {
		return nil, err
	}
	path, at, _ := s.find(k, registry.KeyOf(o))
	if at != nil {
		return nil, k.Errorf(registry.KeyOf(o), registry.ErrExists, nil)
	}
	s.last++
	if o.GetUID() == "" {
		o.SetUID(types.UID("uid-" + strconv.FormatInt(s.last, 10)))
	}
	if created := o.GetCreationTimestamp(); created.IsZero() {
		o.SetCreationTimestamp(metav1.NewTime(s.Now))
	}
	return s.put(k, path, o, options)
}

// Update replaces an object, as registry.Registry does.
func (s *Store) Update(k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	i, err := s.update(k, o, opts...)
	return i.result(err)
}

func (s *Store) update(k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (*item, error) {
	o, options, err := k.AdmitUpdate(o, func() (registry.Object, error) { return s.Get(k, registry.KeyOf(o)) }, opts...)
	if err != nil {
		return nil, err
	}
	key := registry.KeyOf(o)
	if o.GetResourceVersion() == "" {
		return nil, k.Errorf(key, registry.ErrInvalid, registry.ErrNoVersion)
	}
	path, at, err := s.find(k, key)
	if err != nil {
		return nil, err
	}
	if at.object.GetResourceVersion() != o.GetResourceVersion() {
		return nil, k.Errorf(key, registry.ErrConflict, nil)
	}
	registry.KeepIdentity(o, at.object)
	return s.put(k, path, o, options)
}

func (s *Store) put(k *registry.Kind, path string, o registry.Object, options registry.WriteOptions) (*item, error) {
	value, err := k.Encode(o)
	if err != nil {
		return nil, err
	}
	s.last++
	at := &item{kind: k, path: path, created: s.last, text: textOf(value)}
	if before := s.items[path]; before != nil {
		at.created = before.created
	}
	if k.Layout != nil {
		// The object may say which key is the older.
		at.text.Time(time.Unix(at.created, 0))
	}
	if options.TTL > 0 {
		at.expires = s.Now.Add(options.TTL)
	}
	if at.object, err = k.Decode(registry.KeyOf(o), value, registry.Stored{Expires: options.TTL > 0, Created: at.created}, strconv.FormatInt(s.last, 10)); err != nil {
		return nil, err
	}
	if s.items == nil {
		s.items = map[string]*item{}
	}
	s.items[path] = at
	return at, nil
}

// Delete removes an object, as registry.Registry does.
func (s *Store) Delete(k *registry.Kind, key registry.Key, resourceVersion string) error {
	path, at, err := s.find(k, key)
	if err != nil {
		return err
	}
	if resourceVersion != "" && resourceVersion != at.object.GetResourceVersion() {
		return k.Errorf(key, registry.ErrConflict, nil)
	}
	s.last++
	delete(s.items, path)
	return nil
}

// Version is another number after each write.
func (s *Store) Version() int64 { return s.last }

// Current reports whether the Store holds an object in this version.
func (s *Store) Current(k *registry.Kind, o registry.Object) bool {
	_, at, err := s.find(k, registry.KeyOf(o))
	return err == nil && at.object.GetResourceVersion() == o.GetResourceVersion()
}

// Put adds all that the Store holds to a text.
func (s *Store) Put(t *Text) {
	for _, path := range slices.Sorted(maps.Keys(s.items)) {
		i := s.items[path]
		t.Say(path, " ")
		if !i.expires.IsZero() {
			t.Time(i.expires)
		}
		t.Add(i.text)
		t.Say("\n")
	}
}

// Registry returns the Store as the programs under test see it. Watching and
// leases it has not.
func (s *Store) Registry() registry.Registry { return &direct{s} }

type direct struct{ store *Store }

var errNotServed = errors.New("explore: the registry has no watches and no leases")

func (d *direct) Serves(*registry.Kind) bool { return true }

func (d *direct) Get(_ context.Context, k *registry.Kind, key registry.Key) (registry.Object, error) {
	return d.store.Get(k, key)
}

func (d *direct) List(_ context.Context, k *registry.Kind) ([]registry.Object, registry.Revision, error) {
	return d.store.List(k), registry.Revision(strconv.FormatInt(d.store.last, 10)), nil
}

func (d *direct) Watch(context.Context, *registry.Kind, registry.Revision) (registry.Watch, error) {
	return nil, errNotServed
}

func (d *direct) Create(_ context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	return d.store.Create(k, o, opts...)
}

func (d *direct) Update(_ context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	return d.store.Update(k, o, opts...)
}

func (d *direct) Delete(_ context.Context, k *registry.Kind, key registry.Key, resourceVersion string) error {
	return d.store.Delete(k, key, resourceVersion)
}

func (d *direct) Acquire(context.Context, string, string, time.Duration) (registry.Lease, error) {
	return nil, errNotServed
}

func (d *direct) Holder(context.Context, string) (string, error) { return "", errNotServed }

func (d *direct) Holders(context.Context, string) (map[string]string, error) {
	return nil, errNotServed
}

func (d *direct) Close() error { return nil }

// describe says what a call was about and what came of it, for a story.
func describe(verb string, k *registry.Kind, name string, err error) string {
	words := []string{verb, k.Plural}
	if name != "" {
		words = []string{verb, k.Singular, name}
	}
	outcome := ""
	switch {
	case errors.Is(err, registry.ErrConflict):
		outcome = ": it changed meanwhile"
	case errors.Is(err, registry.ErrExists):
		outcome = ": it exists"
	case errors.Is(err, registry.ErrNotFound):
		outcome = ": it is not there"
	case err != nil:
		outcome = fmt.Sprintf(": %v", err)
	}
	return strings.Join(words, " ") + outcome
}

// PerContent returns check, which is asked once only about stores that hold the
// same. horizon is as in Text.Key.
func PerContent(horizon time.Duration, check func(*Store) error) func(*Store) error {
	known := make(map[string]error)
	return func(s *Store) error {
		var held Text
		s.Put(&held)
		key := string(held.Key(s.Now, horizon))
		err, ok := known[key]
		if !ok {
			err = check(s)
			known[key] = err
		}
		return err
	}
}
