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
	// plug-in is, and at what is to be done for the cluster: nodes report at once.
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
	// forced says that the change that is going on is forced, for which no agent is waited
	// that does not run. That one runs no more no watch tells.
	forced bool
	// wish is the one for which the forced change that is going on waits, empty where none is
	// forced, and impatient when it stops to wait for nodes that are not ready.
	wish      string
	impatient time.Time
	// known is what was found to speak against steps, by the question. Those that no
	// longer matter are not in it.
	known map[string]*answer
}

// answer is what speaks against a step.
type answer struct {
	change.Objections
	// due is when it is to be asked anew, after how long a time.
	due     time.Time
	recheck time.Duration
}

// run works until ctx ends. The cache follows changedKinds.
func (c *changer) run(ctx context.Context) {
	changes, cancel := c.objects.Subscribe()
	defer cancel()
	failed, state := "", ""
	retry.Loop{Changed: changes, Pause: changePause, AfterError: firstRecheck, Backoff: backoff}.Run(ctx, func(ctx context.Context) (next time.Duration, err error) {
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
		if c.forced {
			next = firstRecheck
			if left := time.Until(c.impatient); left > 0 {
				next = min(next, left)
			}
		}
		for _, a := range c.known {
			if left := max(time.Until(a.due), 1); next == 0 || left < next {
				next = left
			}
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
	c.forced = false
	defer func() {
		if !c.forced {
			c.wish = "" // who asks for the same later has not waited yet
		}
	}()
	config := registry.GetAs[*api.ClusterConfig](c.objects, api.ClusterConfigKind, registry.Key{Name: api.DefaultName})
	if config == nil {
		return nil, nil
	}
	now := time.Now()
	cluster := change.Cluster{Config: config, Nodes: slices.Collect(registry.Each[*corev1.Node](c.objects, api.Node)),
		Unknown: c.unknown, Now: metav1.NewTime(now), Away: func() map[string]bool { return c.away(ctx) }}
	cluster.Patient = func() bool { return c.patient(config, now) }
	matters := make(map[string]*answer)
	stale := false
	cluster.Against = func(q change.Question) (change.Objections, error) {
		a := c.known[nameOf(q)]
		if q.Only != "" && (a == nil || !now.Before(a.due)) {
			// Nothing follows from it but what is said: of a cluster that is settled no more
			// is read than this, again and again.
			if o, err := c.against(ctx, config, q); err == nil {
				a = c.answered(q, o, now)
				c.known[nameOf(q)] = a
			}
		}
		if a == nil || !now.Before(a.due) {
			stale = true
			return change.Objections{}, nil
		}
		matters[nameOf(q)] = a
		return a.Objections, nil
	}
	status := change.Next(cluster)
	if !stale && equality.Semantic.DeepEqual(status, config.Status) {
		c.known = matters
		return config, nil
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	var failed error
	config, err := change.Step(ctx, c.Registry, func(config *api.ClusterConfig) change.Cluster {
		matters, failed = make(map[string]*answer), nil
		fresh := make(map[string]*answer)
		cluster := cluster
		cluster.Patient = func() bool { return c.patient(config, now) }
		cluster.Against = func(q change.Question) (change.Objections, error) {
			name := nameOf(q)
			a := fresh[name]
			if a == nil {
				o, err := c.against(ctx, config, q)
				if err != nil {
					failed = err
					return o, err
				}
				a = c.answered(q, o, now)
				fresh[name] = a
			}
			matters[name] = a
			return a.Objections, nil
		}
		// Nodes may have said more than the cache knows, and what made the last of them ready is
		// often what speaks against the change: so what they are to do follows from Against alone.
		cluster.Known = func(q change.Question) (change.Objections, bool) {
			name := nameOf(q)
			a := c.known[name]
			if a == nil || fresh[name] != nil || !now.Before(a.due) {
				return change.Objections{}, false
			}
			matters[name] = a
			return a.Objections, true
		}
		return cluster
	})
	if errors.Is(err, registry.ErrNotFound) {
		return nil, nil
	}
	if err == nil {
		err = failed
	}
	c.known = matters
	return config, err
}

// answered returns an answer that is asked anew after a while, ever less often.
func (c *changer) answered(q change.Question, o change.Objections, now time.Time) *answer {
	a := &answer{Objections: o, recheck: firstRecheck}
	if before := c.known[nameOf(q)]; before != nil {
		a.recheck = min(2*before.recheck, lastRecheck)
	}
	a.due = now.Add(a.recheck)
	return a
}

// patient reports whether a forced change still waits for nodes that are not ready. A
// controller that comes to lead begins to wait anew.
func (c *changer) patient(config *api.ClusterConfig, now time.Time) bool {
	if wish := api.Wish(config); c.wish != wish {
		c.wish, c.impatient = wish, now.Add(change.ForcePatience)
	}
	return now.Before(c.impatient)
}

// away returns the nodes whose agents do not run, among those that the cache knows; none
// where nobody knows.
func (c *changer) away(ctx context.Context) map[string]bool {
	c.forced = true
	held, err := c.Registry.Holders(ctx, api.NodeLease(""))
	if err != nil {
		c.Log.Warn("cannot say which agents run, so a change that is forced waits for all", "error", err)
		return nil
	}
	away := make(map[string]bool)
	for node := range c.objects.All(api.Node) {
		away[node.GetName()] = held[api.NodeLease(node.GetName())] == ""
	}
	return away
}

func nameOf(q change.Question) string { return fmt.Sprintf("%+v", q) }

// against reads what speaks against a step from the registry.
func (c *changer) against(ctx context.Context, config *api.ClusterConfig, q change.Question) (change.Objections, error) {
	of, err := q.Find(c.Plugin)
	if err != nil {
		return change.Objections{}, err
	}
	of.Enforcers = c.Enforcers
	objects := map[*registry.Kind][]registry.Object{}
	for _, k := range of.Kinds() {
		if objects[k], _, err = c.Registry.List(ctx, k); err != nil {
			return change.Objections{}, err
		}
	}
	return of.Against(api.Effective(config), registry.NewSnapshot(objects)), nil
}

// unknown returns why there is no plug-in of a name, nil where there is one.
func (c *Controller) unknown(name string) error {
	_, err := c.Plugin(name)
	return err
}

// workingOf returns the names of the plug-ins for which the cluster has work to do: those of
// the mix, but for what is loading and not asked for. No node may use that, it is about to leave,
// and one Node's word is enough to bring it in where the status was lost. What is made for it
// would stay.
func workingOf(config *api.ClusterConfig) []string {
	wanted, _ := api.AskedPlugin(config)
	return slices.DeleteFunc(api.PluginMix(config), func(name string) bool {
		return name != wanted && slices.Contains(config.Status.LoadingPlugins, name)
	})
}

// pluginsNamed returns the plug-ins of some names, as far as there are such.
func (c *Controller) pluginsNamed(names []string) (all []plugin.Plugin) {
	for _, name := range names {
		if p, err := c.Plugin(name); err == nil {
			all = append(all, p)
		}
	}
	return all
}
