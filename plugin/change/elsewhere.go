package change

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Elsewhere returns what the plug-ins of the mix give that do not stand on the one of a
// name, as the registry has it. Those that named does not find give nothing.
func Elsewhere(ctx context.Context, r registry.Registry, base string, named func(string) (plugin.Plugin, error)) (plugin.Elsewhere, error) {
	var out plugin.Elsewhere
	object, err := r.Get(ctx, api.ClusterConfigKind, registry.Key{Name: api.DefaultName})
	if err != nil {
		return out, err
	}
	config := api.Effective(object)
	if config.Status.Plugin == "" {
		nodes, _, err := r.List(ctx, api.Node)
		if err != nil {
			return out, err
		}
		there := registry.NewSnapshot(map[*registry.Kind][]registry.Object{api.Node: nodes})
		config = Config(object, registry.Each[*corev1.Node](there, api.Node), func(name string) error { _, err := named(name); return err })
	}
	var others []plugin.Plugin
	kinds := []*registry.Kind{api.Node}
	for _, name := range api.PluginMix(config) {
		p, err := named(name)
		if err != nil || plugin.BaseOf(p).Name() == base {
			continue
		}
		others = append(others, p)
		for _, k := range plugin.BaseOf(p).Kinds() {
			if !slices.Contains(kinds, k) {
				kinds = append(kinds, k)
			}
		}
	}
	if len(others) == 0 {
		return out, nil
	}
	objects := map[*registry.Kind][]registry.Object{}
	for _, k := range kinds {
		if objects[k], _, err = r.List(ctx, k); err != nil {
			return out, err
		}
	}
	return given(others, config, registry.NewSnapshot(objects)), nil
}

// given returns what some plug-ins give. One that has given nothing to anybody yet may
// never do so, as flannel where nobody gives Nodes podCIDRs.
func given(plugins []plugin.Plugin, config *api.ClusterConfig, objects registry.Objects) plugin.Elsewhere {
	out := plugin.Elsewhere{Holdings: make(plugin.Holdings)}
	for _, p := range plugins {
		l := landOf(p, config, objects)
		maps.Copy(out.Holdings, l.of)
		out.Ranges = append(out.Ranges, l.ranges...)
		if !l.adopts && len(l.of) > 0 {
			out.Foreign = slices.AppendSeq(append(out.Foreign, l.ranges...), maps.Keys(l.of))
		}
	}
	slices.SortFunc(out.Ranges, netip.Prefix.Compare)
	slices.SortFunc(out.Foreign, netip.Prefix.Compare)
	return out
}
