package cli

import (
	"context"
	"io"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// busy is a registry in which somebody writes just before this one does, once.
type busy struct {
	registry.Registry
	meanwhile func()
}

func (b *busy) Update(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	if do := b.meanwhile; do != nil && k.Plural == api.ClusterConfigKind.Plural {
		b.meanwhile = nil
		do()
	}
	return b.Registry.Update(ctx, k, o, opts...)
}

func (b *busy) Ping(context.Context) error { return nil }

// TestChangeAsksAnew has somebody write the configuration just before it is asked for
// another plug-in: what was asked by the one before counts no more.
func TestChangeAsksAnew(t *testing.T) {
	for name, test := range map[string]struct {
		change    changing
		meanwhile func(*testing.T, registry.Registry, *api.ClusterConfig)
		// want is the plug-in that is asked for in the end, err what is said.
		want, err string
	}{
		"a policy is made": {changing{name: "flannel"}, func(t *testing.T, r registry.Registry, c *api.ClusterConfig) {
			c.Spec.MTU = 1400
			policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
			if _, err := r.Create(t.Context(), api.NetworkPolicy, policy); err != nil {
				t.Error(err)
			}
		}, "openshift-networkpolicy", "nothing was changed"},
		"nodes change meanwhile": {changing{changeFlags: changeFlags{abort: true}}, func(_ *testing.T, _ registry.Registry, c *api.ClusterConfig) {
			c.Spec.Plugin, c.Status.Plugin, c.Status.Plugins = "flannel", "flannel", []string{"flannel"}
		}, "flannel", ""},
		"the status is lost": {changing{changeFlags: changeFlags{abort: true}}, func(_ *testing.T, _ registry.Registry, c *api.ClusterConfig) {
			c.Spec.Plugin, c.Status = "flannel", api.ClusterConfigStatus{}
		}, "flannel", "nothing was changed"},
	} {
		t.Run(name, func(t *testing.T) {
			r := memory.New()
			key := registry.Key{Name: api.DefaultName}
			config := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName},
				Spec:   api.ClusterConfigSpec{Plugin: "openshift-networkpolicy"},
				Status: api.ClusterConfigStatus{Plugin: "openshift-networkpolicy", Plugins: []string{"openshift-networkpolicy"}, PluginRevision: 1}}
			if test.change.abort {
				config.Spec.PluginNodes = []string{"node1"}
			}
			if _, err := r.Create(t.Context(), api.ClusterConfigKind, config); err != nil {
				t.Fatal(err)
			}
			test.change.reg = &busy{r, func() {
				if _, err := registry.Modify(t.Context(), r, api.ClusterConfigKind, key, func(c *api.ClusterConfig) error {
					test.meanwhile(t, r, c)
					return nil
				}); err != nil {
					t.Error(err)
				}
			}}
			test.change.out, test.change.errs = io.Discard, io.Discard
			err := test.change.run(t.Context())
			if text := errorText(err); (test.err == "") != (text == "") || !strings.Contains(text, test.err) {
				t.Errorf("it says %q, and not %q", text, test.err)
			}
			o, err := r.Get(t.Context(), api.ClusterConfigKind, key)
			if err != nil {
				t.Fatal(err)
			}
			if got := o.(*api.ClusterConfig).Spec.Plugin; got != test.want {
				t.Errorf("%s is asked for, and not %s", got, test.want)
			}
		})
	}
}

// written is called when something is written.
type written func()

func (w written) Write(b []byte) (int, error) {
	w()
	return len(b), nil
}

// TestInterruptedWait ends the command while it waits: that is no error, and the change goes
// on without it.
func TestInterruptedWait(t *testing.T) {
	r := memory.New()
	config := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: api.ClusterConfigSpec{Plugin: "openshift-subnet"}}
	if _, err := r.Create(t.Context(), api.ClusterConfigKind, config); err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	var errs strings.Builder
	p := changing{changeFlags: changeFlags{wait: true}, name: "flannel", reg: &busy{Registry: r}, out: written(interrupt), errs: &errs}
	err := p.run(ctx)
	if exit, ok := err.(exitError); !ok || exit.code != 1 || exit.message != "" {
		t.Errorf("it ends with %#v", err)
	}
	if want := "\ninterrupted: the change goes on (see: weft plugin status; weft plugin change --abort takes it back)\n"; !strings.HasSuffix(errs.String(), want) {
		t.Errorf("it says %q", errs.String())
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
