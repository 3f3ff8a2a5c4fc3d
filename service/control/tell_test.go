package control

import (
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

// TestTold shows what is said of Services that nodes cannot do as they are written: each file
// has objects, that are applied to what there is of the files before, and the conditions then.
func TestTold(t *testing.T) {
	golden.Archives(t, "testdata/told/*.txtar", func(t *testing.T, files []txtar.File) (out []txtar.File) {
		s := &explore.Store{Now: time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)}
		var all teller
		for _, f := range files {
			if !strings.HasSuffix(f.Name, ".yaml") {
				continue
			}
			apply(t, s, f.Data)
			for range 2 {
				says := all.decide(s.Snapshot(kinds...))
				for _, say := range says {
					if err := say.write(t.Context(), s.Registry()); err != nil {
						t.Fatal(err)
					}
				}
			}
			if again := all.decide(s.Snapshot(kinds...)); len(again) > 0 {
				t.Errorf("what was said is to be said again: %v", again)
			}
			var b strings.Builder
			for svc := range registry.Each[*corev1.Service](s.Snapshot(kinds...), api.Service) {
				b.WriteString(registry.KeyOf(svc).String() + "\n")
				for _, c := range svc.Status.Conditions {
					b.WriteString("  " + c.Type + " " + string(c.Status) + ": " + c.Message + "\n")
				}
			}
			out = append(out, f, txtar.File{Name: strings.TrimSuffix(f.Name, ".yaml") + ".out", Data: []byte(b.String())})
		}
		return out
	})
}
