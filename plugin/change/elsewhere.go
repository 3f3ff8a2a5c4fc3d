package change

import (
	"context"
	"maps"
	"slices"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Elsewhere returns who has which subnets by the plug-ins of the mix that do not stand on
// the one of a name, as the registry has it. Those that named does not find have none.
func Elsewhere(ctx context.Context, r registry.Registry, base string, named func(string) (plugin.Plugin, error)) (plugin.Holdings, error) {
	object, err := r.Get(ctx, api.ClusterConfigKind, registry.Key{Name: api.DefaultName})
	if err != nil {
		return nil, err
	}
	config := api.Effective(object)
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
		return nil, nil
	}
	objects := map[*registry.Kind][]registry.Object{}
	for _, k := range kinds {
		if objects[k], _, err = r.List(ctx, k); err != nil {
			return nil, err
		}
	}
	all := make(plugin.Holdings)
	for _, p := range others {
		maps.Copy(all, landOf(p, config, registry.NewSnapshot(objects)).of)
	}
	return all, nil
}
