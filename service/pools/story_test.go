package pools

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/explore"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/registry"
)

// TestStories shows what becomes of Services: each file has objects, that are applied to what
// there is of the files before, and what there is of Services, pools and grants then. Who is
// annotated with "delete" is deleted, and what a Service has in its status stays unless it is
// annotated with "status".
func TestStories(t *testing.T) {
	golden.Archives(t, "testdata/*.txtar", func(t *testing.T, files []txtar.File) (out []txtar.File) {
		s := &explore.Store{Now: began}
		for _, f := range files {
			if !strings.HasSuffix(f.Name, ".yaml") {
				continue
			}
			apply(t, s, f.Data)
			if err := settle(s); err != nil {
				t.Fatal(err)
			}
			out = append(out, f, txtar.File{Name: strings.TrimSuffix(f.Name, ".yaml") + ".out", Data: []byte(show(s))})
		}
		return out
	})
}

// began is when all begins.
var began = time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)

// apply makes or changes what is given. Time passes between two.
func apply(t *testing.T, s *explore.Store, text []byte) {
	t.Helper()
	decoded, err := api.Decode(text, api.Kinds)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range decoded {
		s.Advance(time.Second)
		o, key := d.Object, registry.KeyOf(d.Object)
		before, err := s.Get(d.Kind, key)
		switch {
		case err != nil:
			_, err = s.Create(d.Kind, o)
		case o.GetAnnotations()["delete"] != "":
			err = s.Delete(d.Kind, key, "")
		default:
			if svc, is := o.(*corev1.Service); is && o.GetAnnotations()["status"] == "" {
				svc.Status = before.(*corev1.Service).Status
			}
			o.SetUID(before.GetUID())
			o.SetCreationTimestamp(before.GetCreationTimestamp())
			o.SetResourceVersion(before.GetResourceVersion())
			_, err = s.Update(d.Kind, o)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// carryOut does calls one after the other. What somebody else did meanwhile is no error.
func carryOut(r registry.Registry, calls []Call) error {
	var failed []error
	for _, c := range calls {
		err := c.Do(context.Background(), r)
		if err != nil && !errors.Is(err, registry.ErrConflict) && !errors.Is(err, registry.ErrNotFound) && !errors.Is(err, registry.ErrExists) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// settle lets one controller work until nothing is left to do.
func settle(s *explore.Store) error {
	for range 10 {
		before := s.Version()
		if err := carryOut(s.Registry(), Calls(s.Snapshot(Kinds...))); err != nil {
			return err
		}
		if s.Version() == before {
			return nil
		}
	}
	return errors.New("the controller finds no end")
}

// show returns what there is, in words.
func show(s *explore.Store) string {
	var b strings.Builder
	objects := s.Snapshot(Kinds...)
	for svc := range registry.Each[*corev1.Service](objects, api.Service) {
		fmt.Fprintf(&b, "service %s", registry.KeyOf(svc))
		for _, i := range svc.Status.LoadBalancer.Ingress {
			fmt.Fprintf(&b, " %s%s", i.IP, i.Hostname)
			if i.IPMode != nil {
				fmt.Fprintf(&b, " (%s)", *i.IPMode)
			}
		}
		b.WriteString("\n")
		for _, c := range svc.Status.Conditions {
			fmt.Fprintf(&b, "  %s %s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	for p := range registry.Each[*api.AddressPool](objects, api.AddressPoolKind) {
		fmt.Fprintf(&b, "pool %s %d of %d\n", p.Name, p.Status.Used, p.Status.Total)
		for _, c := range p.Status.Conditions {
			fmt.Fprintf(&b, "  %s %s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	for g := range registry.Each[*api.AddressGrant](objects, api.AddressGrantKind) {
		fmt.Fprintf(&b, "grant %s of %s to %s\n", g.Name, g.Spec.Pool, g.Spec.Service())
	}
	return b.String()
}
