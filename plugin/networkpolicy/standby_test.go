package networkpolicy

import (
	"testing"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
)

// TestStandby has a node load policies that it may not enforce yet. It tells others of its
// pods, which is when it has announced them, and its plan is that of a node without
// policies until nothing is on standby any more.
func TestStandby(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		named := func(name string) (plugin.Plugin, error) {
			return map[string]plugin.Plugin{"flat": flat{}, "policies": On(flat{}, "policies"), "retiring": On(flat{}, "retiring")}[name], nil
		}
		w.apply(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: shop, name: web}, spec: {podSelector: {}}}`)
		m := &machine{world: w, name: "node1"}
		m.start("shop/web", "app=web", "10.1.1.2")
		config := &api.ClusterConfig{Status: api.ClusterConfigStatus{Plugin: "flat", Plugins: []string{"flat", "policies"}, LoadingPlugins: []string{"policies"}}}
		enforces := func() bool {
			t.Helper()
			mixed, err := plugin.MixOf("flat", config, named)
			if err != nil {
				t.Fatal(err)
			}
			p, _ := plugin.CompilerOf(mixed).Compile(m.input())
			return p.Verdicts.Len() > 0
		}
		found, _, err := plugin.ChoiceOf("flat", config).Find(named)
		if err != nil || len(found) != 2 {
			t.Fatal(found, err)
		}
		announced := func(want bool) {
			t.Helper()
			if got := plugin.Announced(found[1], m.input()); got != want {
				t.Errorf("it has announced its pods: %v", got)
			}
		}
		announced(false)
		if enforces() {
			t.Error("policies are in force while their plug-in is loading")
		}
		r := newRunner(m.env(w.registry))
		r.standby = true
		round := func() {
			t.Helper()
			time.Sleep(gather)
			if _, err := r.round(t.Context(), m.input(), &plugin.Applied{Input: m.input()}); err != nil {
				t.Fatal(err)
			}
		}
		round()
		announced(true)
		if n := len(all[*api.NodeReport](w, api.NodeReportKind)); n > 0 {
			t.Error("it says which policies are in force")
		}
		m.start("shop/db", "app=db", "10.1.1.3")
		announced(false)
		round()
		announced(true)
		m.stop("shop/web")
		announced(false)

		config.Status.Plugins = []string{"flat", "policies", "retiring"}
		if !enforces() {
			t.Error("policies are not in force though another plug-in of the mix enforces them")
		}
		config.Status.Plugins, config.Status.LoadingPlugins = []string{"flat", "policies"}, nil
		if !enforces() {
			t.Error("policies are not in force though their plug-in is loaded")
		}
	})
}
