package lab

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/registry"
)

// TestEnvironment tells what pods find in their environment. In which order the Services are
// makes no difference.
func TestEnvironment(t *testing.T) {
	golden.Answers(t, "testdata/environment.txtar", func(t *testing.T, _, text string) string {
		objects, err := api.Decode([]byte(text), []*registry.Kind{api.Pod, api.Service})
		if err != nil {
			t.Fatal(err)
		}
		var p Pod
		var services []*corev1.Service
		for _, o := range objects {
			switch o := o.Object.(type) {
			case *corev1.Pod:
				p = Pod{Namespace: o.Namespace, Name: o.Name, Env: o.Spec.Containers[0].Env, EnableServiceLinks: o.Spec.EnableServiceLinks}
			case *corev1.Service:
				services = append(services, o)
			}
		}
		if err := p.validate(); err != nil {
			t.Fatal(err)
		}
		got := environment(p, services)
		for range 10 {
			rand.Shuffle(len(services), func(i, j int) { services[i], services[j] = services[j], services[i] })
			if again := environment(p, services); !slices.Equal(again, got) {
				t.Errorf("in another order it is %q", again)
			}
		}
		return strings.Join(got, "\n") + "\n"
	})
}
