package registrytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/weftnet/weft/registry"
)

func crud(t *testing.T, s *suite) {
	ctx, key := t.Context(), registry.Key{Namespace: "ns", Name: "a"}
	_, err := s.Registry.Get(ctx, setting, key)
	wantError(t, err, registry.ErrNotFound)
	if !strings.Contains(err.Error(), "configmap ns/a") {
		t.Errorf("the error does not name the object: %v", err)
	}

	created := s.create(t, setting, newSetting("ns", "a", "1"))
	if since := created.GetCreationTimestamp(); created.GetResourceVersion() == "" || created.GetUID() == "" || since.IsZero() {
		t.Errorf("Create did not fill in the metadata: %+v", created)
	}
	if got := created.GetObjectKind().GroupVersionKind(); got != setting.GroupVersionKind {
		t.Errorf("Create returned a %s", got)
	}
	got, err := s.Registry.Get(ctx, setting, key)
	if err != nil {
		t.Fatal(err)
	}
	if !sameObject(got, created) {
		t.Errorf("Get returned\n%+v\nCreate had\n%+v", got, created)
	}

	got.SetAnnotations(map[string]string{"stays": "1", "goes": "1"})
	annotated, err := s.Registry.Update(ctx, setting, got)
	if err != nil {
		t.Fatal(err)
	}
	annotated.SetAnnotations(map[string]string{"stays": "1"})
	annotated.(*corev1.ConfigMap).Data["value"] = "2"
	updated, err := s.Registry.Update(ctx, setting, annotated)
	if err != nil {
		t.Fatal(err)
	}
	if a := updated.GetAnnotations(); len(a) != 1 || a["stays"] != "1" {
		t.Errorf("after one of two annotations went, Update returned %v", a)
	}
	if valueOf(updated) != "2" || updated.GetResourceVersion() == created.GetResourceVersion() {
		t.Errorf("Update returned %+v", updated)
	}
	if objects, _ := s.list(t, setting); len(objects) != 1 || !sameObject(objects[0], updated) {
		t.Errorf("List returned %v, want %v", objects, updated)
	}
	if err := s.Registry.Delete(ctx, setting, key, ""); err != nil {
		t.Fatal(err)
	}
	wantError(t, s.Registry.Delete(ctx, setting, key, ""), registry.ErrNotFound)
	wantError(t, s.Registry.Delete(ctx, setting, key, updated.GetResourceVersion()), registry.ErrNotFound)
	_, err = s.Registry.Update(ctx, setting, updated)
	wantError(t, err, registry.ErrNotFound)
	if objects, _ := s.list(t, setting); len(objects) != 0 {
		t.Errorf("List returned %v after the deletion", objects)
	}
}

func conflicts(t *testing.T, s *suite) {
	ctx, key := t.Context(), registry.Key{Namespace: "ns", Name: "a"}
	first := s.create(t, setting, newSetting("ns", "a", "1"))
	_, err := s.Registry.Create(ctx, setting, newSetting("ns", "a", "other"))
	wantError(t, err, registry.ErrExists)

	blind := newSetting("ns", "a", "blind")
	_, err = s.Registry.Update(ctx, setting, blind)
	wantError(t, err, registry.ErrInvalid)

	changed := first.DeepCopyObject().(*corev1.ConfigMap)
	changed.Data["value"] = "2"
	second, err := s.Registry.Update(ctx, setting, changed)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Registry.Update(ctx, setting, first)
	wantError(t, err, registry.ErrConflict)
	wantError(t, s.Registry.Delete(ctx, setting, key, first.GetResourceVersion()), registry.ErrConflict)

	// An object of the same name that was made anew is another.
	if err := s.Registry.Delete(ctx, setting, key, second.GetResourceVersion()); err != nil {
		t.Fatal(err)
	}
	s.create(t, setting, newSetting("ns", "a", "anew"))
	_, err = s.Registry.Update(ctx, setting, second)
	wantError(t, err, registry.ErrConflict)

	// Of many who update at once from the same state, one wins.
	base, err := s.Registry.Get(ctx, setting, key)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			mine := base.DeepCopyObject().(*corev1.ConfigMap)
			mine.Data["value"] = fmt.Sprint("writer ", i)
			_, errs[i] = s.Registry.Update(ctx, setting, mine)
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, registry.ErrConflict) {
			t.Errorf("a loser got %v", err)
		}
	}
	if won != 1 {
		t.Errorf("%d of %d concurrent updates won", won, len(errs))
	}
}

// brokenLater has an object break a rule that came after it was stored. Its status may be written,
// and nothing else.
func brokenLater(t *testing.T, s *suite) {
	ctx := t.Context()
	const old = "weft.network/old"
	lax, strict := *volume, *volume
	lax.StatusApart, strict.StatusApart = true, true
	strict.Validate = func(o registry.Object) error {
		var wrong field.ErrorList
		v := o.(*corev1.PersistentVolume)
		if _, is := v.Annotations[old]; is {
			wrong = append(wrong, field.Forbidden(field.NewPath("metadata", "annotations"), "it is old"))
		}
		if v.Status.Reason == "Forbidden" {
			wrong = append(wrong, field.Forbidden(field.NewPath("status", "reason"), "it is no reason"))
		}
		if len(wrong) == 0 {
			return nil
		}
		return wrong.ToAggregate()
	}
	broken := newVolume("broken")
	broken.Annotations = map[string]string{old: ""}
	_, err := s.Registry.Create(ctx, &strict, broken)
	wantError(t, err, registry.ErrInvalid)
	first := s.create(t, &lax, broken).(*corev1.PersistentVolume)

	update := func(from *corev1.PersistentVolume, change func(*corev1.PersistentVolume)) (*corev1.PersistentVolume, error) {
		o := from.DeepCopy()
		change(o)
		after, err := s.Registry.Update(ctx, &strict, o)
		if err != nil {
			return nil, err
		}
		return after.(*corev1.PersistentVolume), nil
	}
	second, err := update(first, func(v *corev1.PersistentVolume) { v.Status.Message, v.UID = "it is old", "" })
	if err != nil {
		t.Fatal(err)
	}
	if o, err := s.Registry.Get(ctx, &strict, registry.KeyOf(first)); err != nil || o.(*corev1.PersistentVolume).Status.Message != "it is old" {
		t.Errorf("its status was written, and is %v: %v", o, err)
	}
	_, err = update(first, func(v *corev1.PersistentVolume) { v.Status.Message = "late" })
	wantError(t, err, registry.ErrConflict)
	_, err = update(second, func(v *corev1.PersistentVolume) { v.Labels = map[string]string{"a": "b"} })
	wantError(t, err, registry.ErrInvalid)
	_, err = update(second, func(v *corev1.PersistentVolume) { v.Status.Reason = "Forbidden" })
	wantError(t, err, registry.ErrInvalid)
	third, err := update(second, func(v *corev1.PersistentVolume) { delete(v.Annotations, old) })
	if err != nil {
		t.Fatal(err)
	}
	_, err = update(third, func(v *corev1.PersistentVolume) { v.Status.Reason = "Forbidden" })
	wantError(t, err, registry.ErrInvalid)
	_, err = update(third, func(v *corev1.PersistentVolume) { v.Annotations = map[string]string{old: ""} })
	wantError(t, err, registry.ErrInvalid)
	if err := s.Registry.Delete(ctx, &strict, registry.KeyOf(first), ""); err != nil {
		t.Fatal(err)
	}
	_, err = update(first, func(v *corev1.PersistentVolume) { v.Status.Message = "gone" })
	wantError(t, err, registry.ErrNotFound)
}

func invalid(t *testing.T, s *suite) {
	ctx := t.Context()
	forbidden := newSetting("ns", "a", "")
	forbidden.Data["forbidden"] = "fruit"
	mistaken := newSetting("ns", "a", "")
	mistaken.APIVersion, mistaken.Kind = "v1", "Secret"
	for name, o := range map[string]registry.Object{
		"forbidden: fruit":   forbidden,
		"Secret":             mistaken,
		"name is empty":      newSetting("ns", "", ""),
		"namespace is empty": newSetting("", "a", ""),
		`"a/b"`:              newSetting("ns", "a/b", ""),
		`".."`:               newSetting("..", "b", ""),
		"PersistentVolume":   &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		"<nil>":              nil,
	} {
		_, err := s.Registry.Create(ctx, setting, o)
		wantError(t, err, registry.ErrInvalid)
		if !strings.Contains(err.Error(), name) {
			t.Errorf("the error does not say %s: %v", name, err)
		}
	}
	_, err := s.Registry.Create(ctx, volume, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}})
	wantError(t, err, registry.ErrInvalid)
	_, err = s.Registry.Create(ctx, setting, newSetting("ns", "a", ""), registry.WithTTL(time.Millisecond))
	wantError(t, err, registry.ErrInvalid)

	stored := s.create(t, setting, newSetting("ns", "a", "1")).(*corev1.ConfigMap)
	stored.Data["forbidden"] = "fruit"
	_, err = s.Registry.Update(ctx, setting, stored)
	wantError(t, err, registry.ErrInvalid)
	delete(stored.Data, "forbidden")
	stored.ResourceVersion = "yesterday"
	if _, err = s.Registry.Update(ctx, setting, stored); err == nil {
		t.Error("Update accepted a resource version that was never given out")
	}
	if objects, _ := s.list(t, setting); len(objects) != 1 || valueOf(objects[0]) != "1" {
		t.Errorf("what was refused left a trace: %v", objects)
	}
	// A key that cannot be is one that there is nothing at.
	_, err = s.Registry.Get(ctx, setting, registry.Key{Name: "a"})
	wantError(t, err, registry.ErrNotFound)
	_, err = s.Registry.Get(ctx, setting, registry.Key{Namespace: "ns/x", Name: "a"})
	wantError(t, err, registry.ErrNotFound)
	wantError(t, s.Registry.Delete(ctx, volume, registry.Key{Namespace: "ns", Name: "a"}, ""), registry.ErrNotFound)
}

func sharing(t *testing.T, s *suite) {
	ctx, key := t.Context(), registry.Key{Namespace: "ns", Name: "a"}
	_, start := s.list(t, setting)
	mine := newSetting("ns", "a", "1")
	created := s.create(t, setting, mine).(*corev1.ConfigMap)
	if mine.ResourceVersion != "" || mine.UID != "" || mine.Kind != "" {
		t.Errorf("Create changed its argument: %+v", mine)
	}
	w := s.watch(t, setting, start)
	mine.Data["value"], created.Data["value"] = "changed", "changed"
	got, err := s.Registry.Get(ctx, setting, key)
	if err != nil {
		t.Fatal(err)
	}
	got.(*corev1.ConfigMap).Data["value"] = "changed"
	objects, _ := s.list(t, setting)
	objects[0].(*corev1.ConfigMap).Data["value"] = "changed"
	next(t, w).Object.(*corev1.ConfigMap).Data["value"] = "changed"
	if got, err = s.Registry.Get(ctx, setting, key); err != nil || valueOf(got) != "1" {
		t.Errorf("got %v, %v: somebody's copy is the stored one", got, err)
	}
}

func identity(t *testing.T, s *suite) {
	created := s.create(t, setting, newSetting("ns", "a", "1"))
	anew := newSetting("ns", "a", "2")
	anew.ResourceVersion = created.GetResourceVersion()
	updated, err := s.Registry.Update(t.Context(), setting, anew)
	if err != nil {
		t.Fatal(err)
	}
	a, b := created.GetCreationTimestamp(), updated.GetCreationTimestamp()
	if updated.GetUID() != created.GetUID() || !a.Equal(&b) {
		t.Errorf("updated %+v, created %+v", updated, created)
	}
	if s.lacks(t, GivenUIDs) {
		return
	}
	given := newSetting("ns", "b", "")
	given.UID = "mine"
	if o := s.create(t, setting, given); o.GetUID() != "mine" {
		t.Errorf("the UID that was given became %q", o.GetUID())
	}
}

func listing(t *testing.T, s *suite) {
	// Path order and key order differ: "a-b/x" sorts before "a/x".
	want := []registry.Key{{Namespace: "a", Name: "x"}, {Namespace: "a", Name: "y"}, {Namespace: "a-b", Name: "x"}, {Namespace: "a.b", Name: "x"}, {Namespace: "b", Name: "a"}}
	if s.lacks(t, AllNames) {
		want = slices.DeleteFunc(want, func(k registry.Key) bool { return strings.Contains(k.Namespace, ".") })
	}
	for _, key := range slices.Backward(want) {
		s.create(t, setting, newSetting(key.Namespace, key.Name, ""))
	}
	// The plural of one kind begins another's; they stay apart.
	longer := *setting
	longer.Plural += "extra"
	if s.lacks(t, AllKinds) {
		_, _, err := s.Registry.List(t.Context(), &longer)
		wantError(t, err, registry.ErrUnavailable)
		if !strings.Contains(err.Error(), longer.Plural) {
			t.Errorf("the error does not name the kind: %v", err)
		}
	} else {
		s.create(t, &longer, newSetting("a", "other", ""))
	}
	objects, _ := s.list(t, setting)
	if got := keys(objects); !slices.Equal(got, want) {
		t.Errorf("listed %v, want %v", got, want)
	}
	if objects, _ := s.list(t, volume); len(objects) != 0 {
		t.Errorf("listed %v of a kind that has none", objects)
	}

	const many = 2001 // several pages, where there are pages
	want = nil
	var wg sync.WaitGroup
	for i := range many {
		want = append(want, registry.Key{Name: fmt.Sprintf("v%04d", i)})
	}
	for part := range slices.Chunk(want, 100) {
		wg.Go(func() {
			for _, key := range part {
				s.create(t, volume, newVolume(key.Name))
			}
		})
	}
	wg.Wait()
	objects, _ = s.list(t, volume)
	if got := keys(objects); !slices.Equal(got, want) {
		t.Errorf("listed %d objects, want %d", len(got), many)
	}
}

func keys(objects []registry.Object) []registry.Key {
	var keys []registry.Key
	for _, o := range objects {
		keys = append(keys, registry.KeyOf(o))
	}
	return keys
}

// foreign returns a kind kept in a form of its own: the value is the bare text.
func foreign(prefix, name string) *registry.Kind {
	return &registry.Kind{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		Plural:           "foreigns", Singular: "foreign",
		New: func() registry.Object { return &corev1.ConfigMap{} },
		Layout: &registry.Layout{
			Prefix: prefix, Name: name,
			Encode: func(o registry.Object) ([]byte, error) {
				v := valueOf(o)
				if v == "unspeakable" {
					return nil, errors.New("data.value: cannot be said")
				}
				return []byte(v), nil
			},
			Decode: func(name string, value []byte, stored registry.Stored) (registry.Object, error) {
				if strings.HasPrefix(string(value), "{") {
					return nil, fmt.Errorf("%q is no plain text", value)
				}
				o := newSetting("", "", string(value))
				if stored.Expires {
					o.Data["expires"] = "yes"
				}
				o.Generation = stored.Created
				return o, nil
			},
		},
	}
}

func layouts(t *testing.T, s *suite) {
	ctx := t.Context()
	many := foreign("/"+t.Name()+"/many/", "")
	only := foreign("/"+t.Name()+"/only", "config")
	if !s.Registry.Serves(many) {
		refusesKind(t, s, many)
		return
	}
	if s.PutValue == nil {
		t.Skip("this registry cannot be given values of others' making")
	}
	_, start := s.list(t, many)
	w, wOnly := s.watch(t, many, start), s.watch(t, only, start)

	s.PutValue(t, many, registry.Key{Name: "10.0.0.0-24"}, "theirs")
	s.create(t, many, newSetting("", "10.0.1.0-24", "ours"))
	s.create(t, many, newSetting("", "lent", "ours"), registry.WithTTL(time.Hour))
	objects, _ := s.list(t, many)
	var got []string
	for _, o := range objects {
		got = append(got, o.GetName()+"="+valueOf(o)+o.(*corev1.ConfigMap).Data["expires"])
		if o.GetResourceVersion() == "" {
			t.Errorf("%s has no resource version", o.GetName())
		}
	}
	if want := []string{"10.0.0.0-24=theirs", "10.0.1.0-24=ours", "lent=oursyes"}; !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	for range objects {
		if e := next(t, w); e.Type != registry.Put {
			t.Errorf("event %+v", e)
		}
	}
	_, err := s.Registry.Create(ctx, many, newSetting("", "x", "unspeakable"))
	wantError(t, err, registry.ErrInvalid)

	// A single object has one name and one key.
	_, err = s.Registry.Create(ctx, only, newSetting("", "another", "1"))
	wantError(t, err, registry.ErrInvalid)
	_, err = s.Registry.Get(ctx, only, registry.Key{Name: "another"})
	wantError(t, err, registry.ErrNotFound)
	s.PutValue(t, only, registry.Key{Name: "config"}, "theirs")
	o, err := s.Registry.Get(ctx, only, registry.Key{Name: "config"})
	if err != nil || valueOf(o) != "theirs" {
		t.Fatalf("got %v, %v", o, err)
	}
	if e := next(t, wOnly); e.Object.GetName() != "config" || valueOf(e.Object) != "theirs" {
		t.Errorf("event %+v", e)
	}
	o.(*corev1.ConfigMap).Data["value"] = "ours"
	if o, err = s.Registry.Update(ctx, only, o); err != nil || valueOf(o) != "ours" {
		t.Fatalf("got %v, %v", o, err)
	}
	if objects, _ := s.list(t, only); len(objects) != 1 || valueOf(objects[0]) != "ours" {
		t.Errorf("listed %v", objects)
	}
	// When a key was made is the registry's to say, and a new value does not
	// change it.
	made := func(name string) int64 {
		o, err := s.Registry.Get(ctx, many, registry.Key{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return o.GetGeneration()
	}
	first, second := made("10.0.0.0-24"), made("10.0.1.0-24")
	if first <= 0 || second <= first {
		t.Errorf("keys were made at %d and %d, and the first is older", first, second)
	}
	o, err = s.Registry.Get(ctx, many, registry.Key{Name: "10.0.0.0-24"})
	if err != nil {
		t.Fatal(err)
	}
	o.SetGeneration(1 << 40)
	if o, err = s.Registry.Update(ctx, many, o); err != nil || o.GetGeneration() != first || made("10.0.0.0-24") != first {
		t.Errorf("a new value changed when the key was made from %d: %v, %v", first, o, err)
	}
	if err := s.Registry.Delete(ctx, many, registry.KeyOf(o), ""); err != nil {
		t.Fatal(err)
	}
	again := s.create(t, many, newSetting("", "10.0.0.0-24", "ours"))
	if again.GetGeneration() <= second || made("10.0.0.0-24") != again.GetGeneration() {
		t.Errorf("a key that came back was made at %d, after one made at %d", again.GetGeneration(), second)
	}
	for _, k := range []*registry.Kind{many, only} {
		objects, _ := s.list(t, k)
		for _, o := range objects {
			if err := s.Registry.Delete(ctx, k, registry.KeyOf(o), o.GetResourceVersion()); err != nil {
				t.Error(err)
			}
		}
	}
}

// refusesKind holds a registry that does not serve a kind to saying so.
func refusesKind(t *testing.T, s *suite, k *registry.Kind) {
	ctx, o := t.Context(), newSetting("", "a", "1")
	for name, call := range map[string]func() error{
		"Get":    func() error { _, err := s.Registry.Get(ctx, k, registry.KeyOf(o)); return err },
		"List":   func() error { _, _, err := s.Registry.List(ctx, k); return err },
		"Watch":  func() error { _, err := s.Registry.Watch(ctx, k, ""); return err },
		"Create": func() error { _, err := s.Registry.Create(ctx, k, o); return err },
		"Update": func() error { _, err := s.Registry.Update(ctx, k, o); return err },
		"Delete": func() error { return s.Registry.Delete(ctx, k, registry.KeyOf(o), "") },
	} {
		if err := call(); !errors.Is(err, registry.ErrInvalid) || !strings.Contains(err.Error(), k.Plural) {
			t.Errorf("%s of a kind that is not served: %v", name, err)
		}
	}
	t.Log("this registry serves no kind with a layout")
}

func undecodable(t *testing.T, s *suite) {
	if s.PutValue == nil {
		t.Skip("this registry cannot be given values of others' making")
	}
	ctx, bad := t.Context(), registry.Key{Namespace: "ns", Name: "bad"}
	_, start := s.list(t, setting)
	w := s.watch(t, setting, start)
	for _, value := range []string{"", "{", "[]", `{"kind":"ConfigMap"}`, `{"apiVersion":"v1","kind":"Secret"}`, "\x00\xff"} {
		s.PutValue(t, setting, bad, value)
		_, err := s.Registry.Get(ctx, setting, bad)
		wantError(t, err, registry.ErrInvalid)
		if !strings.Contains(err.Error(), "ns/bad") {
			t.Errorf("the error does not name the object: %v", err)
		}
	}
	s.create(t, setting, newSetting("ns", "good", "1"))
	if e := next(t, w); e.Object.GetName() != "good" {
		t.Errorf("event %+v", e)
	}
	if objects, _ := s.list(t, setting); len(objects) != 1 {
		t.Errorf("listed %v", objects)
	}
	if !strings.Contains(s.log.String(), "ns/bad") {
		t.Errorf("what was skipped was not reported; log:\n%s", s.log)
	}
	// An object whose value is spoilt is gone for those who watch.
	s.PutValue(t, setting, registry.Key{Namespace: "ns", Name: "good"}, "{")
	if e := next(t, w); e.Type != registry.Deleted || e.Object.GetName() != "good" {
		t.Errorf("event %+v", e)
	}
	// It can be removed, and made anew.
	if err := s.Registry.Delete(ctx, setting, bad, ""); err != nil {
		t.Error(err)
	}
	s.create(t, setting, newSetting("ns", "bad", "2"))
	if e := next(t, w); e.Type != registry.Put || valueOf(e.Object) != "2" {
		t.Errorf("event %+v", e)
	}
}

func contexts(t *testing.T, s *suite) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	key := registry.Key{Namespace: "ns", Name: "a"}
	calls := map[string]func() error{
		"Get":     func() error { _, err := s.Registry.Get(ended, setting, key); return err },
		"List":    func() error { _, _, err := s.Registry.List(ended, setting); return err },
		"Create":  func() error { _, err := s.Registry.Create(ended, setting, newSetting("ns", "a", "")); return err },
		"Delete":  func() error { return s.Registry.Delete(ended, setting, key, "") },
		"Acquire": func() error { _, err := s.Registry.Acquire(ended, "l", "h", time.Second); return err },
		"Holder":  func() error { _, err := s.Registry.Holder(ended, "l"); return err },
		"Watch": func() error {
			w, err := s.Registry.Watch(ended, setting, "")
			if err != nil {
				return err
			}
			for range w.Events() {
				t.Error("an event after the end of the context")
			}
			return w.Err()
		},
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if objects, _ := s.list(t, setting); len(objects) != 0 {
		t.Errorf("a call with an ended context wrote %v", objects)
	}
}

func timeToLive(t *testing.T, s *suite) {
	ctx := t.Context()
	if s.lacks(t, TimeToLive) {
		_, err := s.Registry.Create(ctx, setting, newSetting("ns", "brief", "1"), registry.WithTTL(time.Hour))
		wantError(t, err, registry.ErrInvalid)
		stored := s.create(t, setting, newSetting("ns", "kept", "1"))
		_, err = s.Registry.Update(ctx, setting, stored, registry.WithTTL(time.Hour))
		wantError(t, err, registry.ErrInvalid)
		return
	}
	_, start := s.list(t, setting)
	w := s.watch(t, setting, start)
	s.create(t, setting, newSetting("ns", "brief", "1"), registry.WithTTL(time.Second))
	renewed := s.create(t, setting, newSetting("ns", "renewed", "1"), registry.WithTTL(time.Second))
	renewed, err := s.Registry.Update(ctx, setting, renewed, registry.WithTTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	kept := s.create(t, setting, newSetting("ns", "kept", "1"), registry.WithTTL(time.Second))
	if kept, err = s.Registry.Update(ctx, setting, kept); err != nil {
		t.Fatal(err)
	}
	anew := s.create(t, setting, newSetting("ns", "anew", "1"), registry.WithTTL(time.Second))
	if err := s.Registry.Delete(ctx, setting, registry.KeyOf(anew), ""); err != nil {
		t.Fatal(err)
	}
	s.create(t, setting, newSetting("ns", "anew", "2"))
	// A failed write leaves the time to live as it was.
	_, err = s.Registry.Create(ctx, setting, newSetting("ns", "kept", "2"), registry.WithTTL(time.Second))
	wantError(t, err, registry.ErrExists)

	for {
		e := next(t, w)
		if e.Type == registry.Put || e.Object.GetName() == "anew" {
			continue
		}
		if e.Object.GetName() != "brief" || valueOf(e.Object) != "1" {
			t.Fatalf("event %+v: want that brief has expired", e)
		}
		break
	}
	// All leases of a second began before this one, so when it is over they
	// have all had their chance.
	s.create(t, setting, newSetting("ns", "last", "1"), registry.WithTTL(2*time.Second))
	for {
		e := next(t, w)
		if e.Type == registry.Put {
			continue
		}
		if e.Object.GetName() != "last" {
			t.Fatalf("event %+v: want that last has expired", e)
		}
		break
	}
	for _, want := range []registry.Object{renewed, kept} {
		if got, err := s.Registry.Get(ctx, setting, registry.KeyOf(want)); err != nil || !sameObject(got, want) {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
	}
}
