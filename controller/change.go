package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/change"
	"github.com/weftnet/weft/registry"
)

const (
	// changePause is the least time between two looks at how far a change of the
	// plug-in is: nodes report at once.
	changePause = 500 * time.Millisecond
	// firstRecheck and lastRecheck bound the time after which what speaks against a
	// change is asked anew, which no watch tells.
	firstRecheck, lastRecheck = 2 * time.Second, time.Minute
	// changeTimeout bounds a look at the registry.
	changeTimeout = 30 * time.Second
)

// changer keeps the part of the ClusterConfig's status that says which plug-ins nodes
// use. What package change decides it carries out.
type changer struct {
	*Controller
	objects *registry.Cache
	// known is what speaks against a change, of is which change that was asked of, due
	// when it is to be asked anew, after how long a time, and asked says that it
	// matters.
	known   change.Objections
	of      string
	due     time.Time
	recheck time.Duration
	asked   bool
}

// run works until ctx ends. The cache follows changedKinds.
func (c *changer) run(ctx context.Context) {
	changes, cancel := c.objects.Subscribe()
	defer cancel()
	failed, state := "", ""
	retry.Loop{Changed: changes, Pause: changePause, Backoff: backoff}.Run(ctx, func(ctx context.Context) (next time.Duration, err error) {
		config, err := c.round(ctx)
		if err != nil {
			if ctx.Err() == nil && failed != err.Error() {
				failed = err.Error()
				c.Log.Warn("cannot say which plug-ins nodes use; trying again", "error", err)
			}
			return 0, err
		}
		failed = ""
		if config != nil {
			at := meta.FindStatusCondition(config.Status.Conditions, api.PluginChanged)
			if now := api.Effective(config).Spec.Plugin + " " + at.Reason; now != state {
				state = now
				c.Log.Info("the cluster's plug-in", "plugin", api.Effective(config).Spec.Plugin, "state", at.Reason, "message", at.Message)
			}
		}
		if c.asked {
			next = max(time.Until(c.due), 1)
		}
		return next, nil
	})
}

// changedKinds are those that the mix of plug-ins follows from.
var changedKinds = []*registry.Kind{api.ClusterConfigKind, api.Node}

// round looks whether something is to be written, and if so decides anew by what the
// registry says at that moment. It returns the configuration as it is now, nil where
// there is none.
func (c *changer) round(ctx context.Context) (*api.ClusterConfig, error) {
	config := registry.GetAs[*api.ClusterConfig](c.objects, api.ClusterConfigKind, registry.Key{Name: api.DefaultName})
	if config == nil {
		return nil, nil
	}
	now := time.Now()
	c.asked = false
	stale := false
	cluster := change.Cluster{Config: config, Nodes: slices.Collect(registry.Each[*corev1.Node](c.objects, api.Node)),
		Unknown: c.unknown, Now: metav1.NewTime(now)}
	cluster.Against = func(from, to string, mix []string) (change.Objections, error) {
		c.asked, stale = true, c.of != nameOf(from, to, mix) || !now.Before(c.due)
		return c.known, nil
	}
	status, err := change.Next(cluster)
	if c.asked && (status.Plugin != config.Status.Plugin || status.PreparedPlugin != config.Status.PreparedPlugin) {
		// Nodes are to go by it, so it must be true now: what made the last one ready is
		// often what speaks against the change.
		c.due, stale = now, true
	}
	if err != nil || !stale && equality.Semantic.DeepEqual(status, config.Status) {
		return config, err
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	cluster.Against = func(from, to string, mix []string) (_ change.Objections, err error) {
		c.asked = true
		name := nameOf(from, to, mix)
		if name == c.of && now.Before(c.due) {
			return c.known, nil
		}
		c.recheck = min(2*c.recheck, lastRecheck)
		if name != c.of {
			c.recheck = firstRecheck
		}
		if c.known, err = c.against(ctx, config, from, to, mix); err == nil {
			c.of, c.due = name, now.Add(c.recheck)
		}
		return c.known, err
	}
	config, err = change.Step(ctx, c.Registry, cluster)
	if errors.Is(err, registry.ErrNotFound) {
		return nil, nil
	}
	return config, err
}

func nameOf(from, to string, mix []string) string { return fmt.Sprint(from, to, mix) }

func (c *changer) unknown(name string) error {
	_, err := c.Plugin(name)
	return err
}

// against reads what speaks against a change from the registry.
func (c *changer) against(ctx context.Context, config *api.ClusterConfig, from, to string, mix []string) (change.Objections, error) {
	of := change.Change{}
	var err error
	if of.To, err = c.Plugin(to); err != nil {
		return change.Objections{}, err
	}
	for _, name := range mix {
		// Of what this controller does not know nobody knows anything.
		if p, err := c.Plugin(name); err == nil {
			of.Mix = append(of.Mix, p)
			if name == from {
				of.From = p
			}
		}
	}
	objects := map[*registry.Kind][]registry.Object{}
	for _, k := range of.Kinds() {
		if objects[k], _, err = c.Registry.List(ctx, k); err != nil {
			return change.Objections{}, err
		}
	}
	return of.Against(api.Effective(config), registry.NewSnapshot(objects)), nil
}

// mixOf returns the plug-ins that the cluster uses, as far as there are such.
func (c *Controller) mixOf(config *api.ClusterConfig) (mix []plugin.Plugin) {
	for _, name := range api.PluginMix(config) {
		if p, err := c.Plugin(name); err == nil {
			mix = append(mix, p)
		}
	}
	return mix
}
