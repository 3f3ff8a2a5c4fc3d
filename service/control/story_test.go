package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/explore"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// TestStories shows what becomes of Services: each file has objects, that are applied to what
// there is of the files before, and what there is of Services and EndpointSlices then. A
// document that ends a name with "-" has that object deleted.
func TestStories(t *testing.T) {
	golden.Archives(t, "testdata/*.txtar", func(t *testing.T, files []txtar.File) (out []txtar.File) {
		s := &explore.Store{Now: time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)}
		for _, f := range files {
			if !strings.HasSuffix(f.Name, ".yaml") {
				continue
			}
			apply(t, s, f.Data)
			settleAll(t, s)
			out = append(out, f, txtar.File{Name: strings.TrimSuffix(f.Name, ".yaml") + ".out", Data: []byte(show(s))})
		}
		return out
	})
}

// apply makes or changes what is given, as weft apply does.
func apply(t *testing.T, s *explore.Store, text []byte) {
	t.Helper()
	decoded, err := api.Decode(text, api.Kinds)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range decoded {
		k := d.Kind
		key := registry.KeyOf(d.Object)
		if d.Object.GetAnnotations()["delete"] != "" {
			if err := s.Delete(k, key, ""); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if before, err := s.Get(k, key); err == nil {
			d.Object.SetUID(before.GetUID())
			d.Object.SetResourceVersion(before.GetResourceVersion())
			_, err = s.Update(k, d.Object)
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		if _, err := s.Create(k, d.Object); err != nil {
			t.Fatal(err)
		}
	}
}

func settleAll(t *testing.T, s *explore.Store) {
	t.Helper()
	for range 10 {
		before := s.Version()
		if err := carryOut(context.Background(), s.Registry(), new(turns).each(decide(s.Snapshot(kinds...)).calls(), time.Hour)); err != nil {
			t.Fatal(err)
		}
		if s.Version() == before {
			return
		}
	}
	t.Fatal("the controller finds no end")
}

// show returns what there is, in words.
func show(s *explore.Store) string {
	var b strings.Builder
	objects := s.Snapshot(kinds...)
	for svc := range registry.Each[*corev1.Service](objects, api.Service) {
		fmt.Fprintf(&b, "service %s %v", registry.KeyOf(svc), svc.Spec.ClusterIPs)
		for _, p := range svc.Spec.Ports {
			fmt.Fprintf(&b, " %s", portName(p))
			if p.NodePort != 0 {
				fmt.Fprintf(&b, ":%d", p.NodePort)
			}
		}
		if svc.Spec.HealthCheckNodePort != 0 {
			fmt.Fprintf(&b, " health:%d", svc.Spec.HealthCheckNodePort)
		}
		b.WriteString("\n")
		for _, c := range svc.Status.Conditions {
			fmt.Fprintf(&b, "  %s %s: %s\n", c.Type, c.Status, c.Message)
		}
	}
	for slice := range registry.Each[*discoveryv1.EndpointSlice](objects, api.EndpointSlice) {
		fmt.Fprintf(&b, "slice %s", registry.KeyOf(slice))
		for _, key := range slices.Sorted(keys(slice.Labels)) {
			fmt.Fprintf(&b, " %s=%s", key[strings.LastIndex(key, "/")+1:], slice.Labels[key])
		}
		b.WriteString("\n")
		for _, p := range slice.Ports {
			fmt.Fprintf(&b, "  port %q %d/%s\n", or(p.Name), or(p.Port), or(p.Protocol))
		}
		for _, e := range slice.Endpoints {
			fmt.Fprintf(&b, "  %s on %s ready %t serving %t terminating %t", e.Addresses[0], or(e.NodeName), or(e.Conditions.Ready), or(e.Conditions.Serving), or(e.Conditions.Terminating))
			if e.Hostname != nil {
				fmt.Fprintf(&b, " hostname %s", *e.Hostname)
			}
			if e.Hints != nil {
				fmt.Fprintf(&b, " hints %v %v", e.Hints.ForNodes, e.Hints.ForZones)
			}
			b.WriteString("\n")
		}
	}
	for g := range registry.Each[*service.Grant](objects, service.GrantKind) {
		fmt.Fprintf(&b, "grant %s to %s %s\n", g.Name, g.Spec.Service(), g.Spec.Port)
	}
	return b.String()
}

func keys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}
