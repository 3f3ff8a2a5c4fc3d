package change

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// Step reads the ClusterConfig and then the Nodes, and gives the former the status that
// follows. cluster says all that Next goes by but these, anew for each ClusterConfig that
// was read: where somebody else has written it meanwhile, what was read before may not be
// so any more. It fails with registry.ErrNotFound where there is no ClusterConfig.
func Step(ctx context.Context, r registry.Registry, cluster func(*api.ClusterConfig) Cluster) (*api.ClusterConfig, error) {
	return registry.Modify(ctx, r, api.ClusterConfigKind, registry.Key{Name: api.DefaultName}, func(config *api.ClusterConfig) error {
		objects, _, err := r.List(ctx, api.Node)
		if err != nil {
			return err
		}
		c := cluster(config)
		c.Config, c.Nodes = config, nil
		for _, o := range objects {
			c.Nodes = append(c.Nodes, o.(*corev1.Node))
		}
		config.Status = Next(c)
		return nil
	})
}
