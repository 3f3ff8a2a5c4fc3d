package change

import (
	"context"
	"slices"
	"testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
)

// TestNodesComeAndGo has a node die, be deleted, and join again while the cluster changes,
// and while the old plug-in is there for old pods only. The pods of the others notice
// nothing, and those of the node that joined reach whatever there is.
func TestNodesComeAndGo(t *testing.T) {
	c := up(t, lab.Options{Plugin: openshiftSubnet})
	c.configureFlannel(flannelConfig(otherRange, ""))
	const third = "node3"
	var old []pod
	for i, name := range []string{"a1", "a2"} {
		old = append(old, c.run(name, i+1, talker))
	}
	c.among(old)
	always := &traffics{c: c}
	always.load(old, old, baseRate, baseHeld)
	stop := func() {
		c.Helper()
		if err := c.lab.StopNode(third); err != nil {
			c.Fatal(err)
		}
	}
	leave := func() {
		c.Helper()
		c.write(func(ctx context.Context, r registry.Registry) error {
			o, err := r.Get(ctx, api.Node, registry.Key{Name: third})
			if err != nil {
				return err
			}
			return r.Delete(ctx, api.Node, registry.Key{Name: third}, o.GetResourceVersion())
		})
	}
	join := func() {
		c.Helper()
		if err := c.lab.StartNode(c.Context(), third); err != nil {
			c.Fatal(err)
		}
	}
	joined := func(name, plugin string, others ...pod) pod {
		c.Helper()
		p := c.run(name, 3, talker)
		c.isOf(p, plugin)
		c.among(old, others, []pod{p})
		return p
	}

	stop()
	c.weft("plugin", "change", flannelPlain).want(c, 0)
	c.status("waits for the node that died", func(s pluginStatus) bool {
		return s.State == api.PluginPreparing && s.Used == openshiftSubnet
	})
	leave()
	c.status("goes on without it", func(s pluginStatus) bool { return s.State == api.PluginRetiring && s.Used == flannelPlain })
	fresh := []pod{c.run("b1", 1, talker), c.run("b2", 2, talker)}
	join()
	late := joined("c3", flannelPlain, fresh...)
	c.unchanged()

	// It dies while it is waited for, and comes back in time.
	c.remove(late)
	stop()
	c.weft("plugin", "change", openshiftSubnet).want(c, 0)
	c.status("waits for the node that died", func(s pluginStatus) bool {
		return s.State == api.PluginSwitching && s.Used == openshiftSubnet && slices.Contains(s.Mix, flannelPlain)
	})
	join()
	c.weft("plugin", "change", openshiftSubnet, "--wait").want(c, 0)
	late = joined("d3", openshiftSubnet, fresh...)
	c.remove(append(fresh, late)...)
	c.settled(openshiftSubnet)
	always.finish()
	c.unchanged()
	c.well()
}
