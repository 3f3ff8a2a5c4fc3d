package registrytest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/registry"
)

// model runs random operations on few names, so that they meet, and holds each
// result against a map.
func model(t *testing.T, s *suite) {
	ctx := t.Context()
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		namespace := fmt.Sprintf("round%d", round)
		stored := map[string]registry.Object{}
		var seen []registry.Object // old states, to write back
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		check := func(err, want error) {
			if !errors.Is(err, want) {
				rt.Fatalf("error %v, want %v", err, want)
			}
		}
		count := 0
		value := func() string { count++; return fmt.Sprint(count) }
		keep := func(o registry.Object) {
			stored[o.GetName()] = o
			seen = append(seen, o)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"create": func(rt *rapid.T) {
				n := name.Draw(rt, "name")
				o, err := s.Registry.Create(ctx, setting, newSetting(namespace, n, value()))
				if stored[n] != nil {
					check(err, registry.ErrExists)
					return
				}
				check(err, nil)
				keep(o)
			},
			"update": func(rt *rapid.T) {
				if len(seen) == 0 {
					rt.Skip("nothing was stored yet")
				}
				base := rapid.SampledFrom(seen).Draw(rt, "base").DeepCopyObject().(*corev1.ConfigMap)
				base.Data["value"] = value()
				o, err := s.Registry.Update(ctx, setting, base)
				switch now := stored[base.Name]; {
				case now == nil:
					check(err, registry.ErrNotFound)
				case now.GetResourceVersion() != base.ResourceVersion:
					check(err, registry.ErrConflict)
				default:
					check(err, nil)
					keep(o)
				}
			},
			"delete": func(rt *rapid.T) {
				n := name.Draw(rt, "name")
				version := ""
				if len(seen) > 0 && rapid.Bool().Draw(rt, "conditional") {
					version = rapid.SampledFrom(seen).Draw(rt, "seen").GetResourceVersion()
				}
				err := s.Registry.Delete(ctx, setting, registry.Key{Namespace: namespace, Name: n}, version)
				switch now := stored[n]; {
				case now == nil:
					check(err, registry.ErrNotFound)
				case version != "" && now.GetResourceVersion() != version:
					check(err, registry.ErrConflict)
				default:
					check(err, nil)
					delete(stored, n)
				}
			},
			"": func(rt *rapid.T) {
				n := name.Draw(rt, "name")
				o, err := s.Registry.Get(ctx, setting, registry.Key{Namespace: namespace, Name: n})
				if stored[n] == nil {
					check(err, registry.ErrNotFound)
				} else if check(err, nil); !sameObject(o, stored[n]) {
					rt.Fatalf("got %+v, want %+v", o, stored[n])
				}
			},
		})
		objects, _, err := s.Registry.List(ctx, setting)
		check(err, nil)
		objects = slices.DeleteFunc(objects, func(o registry.Object) bool { return o.GetNamespace() != namespace })
		want := slices.Sorted(maps.Keys(stored))
		for i, o := range objects {
			if i >= len(want) || o.GetName() != want[i] || !sameObject(o, stored[want[i]]) {
				rt.Fatalf("listed %v, want %v", objects, stored)
			}
			check(s.Registry.Delete(ctx, setting, registry.KeyOf(o), o.GetResourceVersion()), nil)
		}
		if len(objects) != len(want) {
			rt.Fatalf("listed %d objects, want %d", len(objects), len(want))
		}
	})
}

func modify(t *testing.T, s *suite) {
	ctx, key := t.Context(), registry.Key{Namespace: "ns", Name: "counter"}
	created := s.create(t, setting, newSetting("ns", "counter", ""))
	const writers, each = 4, 10
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				if _, err := registry.Modify(ctx, s.Registry, setting, key, func(o *corev1.ConfigMap) error {
					o.Data["value"] += "|"
					return nil
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	o, err := registry.Modify(ctx, s.Registry, setting, key, func(*corev1.ConfigMap) error { return nil })
	if err != nil || len(valueOf(o)) != writers*each {
		t.Fatalf("%v, %v: want %d changes", o, err, writers*each)
	}
	if stored, err := s.Registry.Get(ctx, setting, key); err != nil || stored.GetResourceVersion() != o.ResourceVersion || o.UID != created.GetUID() {
		t.Errorf("a change of nothing wrote: %v, %v", stored, err)
	}
	runs := 0
	_, err = registry.ModifyOnce(ctx, s.Registry, setting, key, func(o *corev1.ConfigMap) error {
		runs++
		_, err := registry.ModifyOnce(ctx, s.Registry, setting, key, func(o *corev1.ConfigMap) error { o.Data["value"] = "faster"; return nil })
		o.Data["value"] = "slower"
		return err
	})
	if wantError(t, err, registry.ErrConflict); runs != 1 {
		t.Errorf("it is changed %d times, not once", runs)
	}
	if o, err := s.Registry.Get(ctx, setting, key); err != nil || valueOf(o) != "faster" {
		t.Errorf("somebody else was faster, and it is %v, %v", o, err)
	}
	enough := errors.New("enough")
	_, err = registry.Modify(ctx, s.Registry, setting, key, func(o *corev1.ConfigMap) error { o.Data = nil; return enough })
	wantError(t, err, enough)
	_, err = registry.Modify(ctx, s.Registry, setting, registry.Key{Namespace: "ns", Name: "none"}, func(*corev1.ConfigMap) error { return nil })
	wantError(t, err, registry.ErrNotFound)
}
