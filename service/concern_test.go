package service_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan/plantest"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// What is made of a Service, and said of it, does not depend on those that do not concern it.
func TestConcerning(t *testing.T) {
	plantest.CheckMeeting(t, []string{"some are left out", "what it claims another has"}, func(t *rapid.T, meets func(string)) {
		if rapid.Bool().Draw(t, "little room") {
			defer service.SetBudget(rapid.IntRange(1, 12).Draw(t, "frontends"), rapid.IntRange(1, 12).Draw(t, "backends"))()
		}
		w := world{api.Service: {}, api.EndpointSlice: {}, api.Node: {}, service.GrantKind: {}, api.AddressPoolKind: {}, api.AddressGrantKind: {}}
		for range rapid.IntRange(0, 20).Draw(t, "changes") {
			w.change(t)
		}
		for i := 0; len(w[api.Service]) < 3 && i < 300; i++ {
			w.change(t)
		}
		objects := w.spread(map[string]string{"kubernetes": "default", "a": "one",
			"b": rapid.SampledFrom([]string{"one", "two"}).Draw(t, "where b is"), "c": rapid.SampledFrom([]string{"two", "three", "default"}).Draw(t, "where c is")}).snapshot()
		grants := rapid.Bool().Draw(t, "grants")
		for o := range objects.All(api.Service) {
			key := registry.KeyOf(o)
			some := service.Concerning(objects, key)
			all, alone := madeOf(key, objects, grants), madeOf(key, some, grants)
			if all != alone {
				t.Fatalf("of Service %s is made\n%s\nand beside what concerns it\n%s", key, all, alone)
			}
			left := 0
			for range some.All(api.Service) {
				left++
			}
			if left < len(objects[api.Service]) {
				meets("some are left out")
			}
			if strings.Contains(all, " is Service ") && left < len(objects[api.Service]) {
				meets("what it claims another has")
			}
		}
	})
}

// spread returns the world with Services, and what speaks of them, in other namespaces, by their names.
func (w world) spread(namespaces map[string]string) world {
	all := world{}
	for k, of := range w {
		all[k] = map[registry.Key]registry.Object{}
		for _, o := range of {
			o = o.DeepCopyObject().(registry.Object)
			switch o := o.(type) {
			case *corev1.Service:
				o.Namespace = namespaces[o.Name]
			case *discoveryv1.EndpointSlice:
				if namespace := namespaces[o.Labels[discoveryv1.LabelServiceName]]; namespace != "" {
					o.Namespace = namespace
				}
			case *service.Grant:
				o.Spec.Namespace = namespaces[o.Spec.Name]
			case *api.AddressGrant:
				o.Spec.Namespace = namespaces[o.Spec.Name]
			}
			all[k][registry.KeyOf(o)] = o
		}
	}
	return all
}

// madeOf returns what is made of a Service, and said of it.
func madeOf(key registry.Key, objects registry.Objects, grants bool) string {
	c := service.Compiler{Grants: grants}
	tables := c.Compile(objects, node)
	var out strings.Builder
	for k, s := range tables.Services.All() {
		if s.Origin == "Service "+key.String() {
			fmt.Fprintln(&out, k, s)
		}
	}
	for k, b := range tables.Backends.All() {
		set, _, _ := strings.Cut(k.Set, ":")
		if strings.TrimSuffix(set, service.LocalSuffix) == key.String() {
			fmt.Fprintln(&out, k, b)
		}
	}
	for k, s := range tables.Sources.All() {
		if k.Name == key.String() {
			fmt.Fprintln(&out, k, s)
		}
	}
	for _, p := range c.Problems() {
		if p.Service == key {
			fmt.Fprintln(&out, p.Kind.Kind, p.Key, p.Message)
		}
	}
	return out.String()
}
