package networkpolicy

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Further reasons of the condition Enforced.
const (
	// ReasonNobodyEnforces: the cluster's plug-in enforces no policies of the kind.
	ReasonNobodyEnforces = "NobodyEnforces"
	// ReasonPluginUnknown: nodes keep what they were told before the cluster's
	// configuration named a plug-in that there is not.
	ReasonPluginUnknown = "PluginUnknown"
)

// Unenforced is what runs for the cluster where its plug-in does not enforce all
// kinds of policies. It says so of each policy, in a condition or an Event, so that
// nothing that an enforcing plug-in said before goes on being said.
type Unenforced struct {
	// Plugin is the name of the cluster's plug-in, and Unknown says that there is
	// no such plug-in.
	Plugin  string
	Unknown bool
	// Kinds are those that it does not enforce, and what to do about a policy of each.
	Kinds map[*registry.Kind]Unread
}

// Unread says of a kind of policies that the cluster's plug-in does not read it.
type Unread struct {
	// Never says that no plug-in does.
	Never bool
	// Remedy is what to do about such a policy.
	Remedy string
}

var _ plugin.ClusterRunner = Unenforced{}

// RunCluster implements plugin.ClusterRunner.
func (u Unenforced) RunCluster(ctx context.Context, env plugin.ClusterEnv) error {
	g, ctx := errgroup.WithContext(ctx)
	for k := range u.Kinds {
		// Of a cluster that lacks the definition of one kind, the other's policies
		// are told of all the same.
		c := newCluster(plugin.ClusterEnv{Registry: env.Registry, Log: env.Log})
		cache := registry.NewCache(env.Registry, []*registry.Kind{k}, env.Log)
		g.Go(func() error { cache.Run(ctx); return ctx.Err() })
		g.Go(func() error {
			changes, cancel := cache.Subscribe()
			defer cancel()
			if err := cache.WaitSynced(ctx); err != nil {
				return err
			}
			return retry.Loop{Changed: changes, Pause: slowPause, AfterError: backoff.First, Backoff: backoff, Told: c.failed("status")}.Run(ctx, func(ctx context.Context) (time.Duration, error) {
				d := u.decide(cache.Snapshot(), k, c.now())
				if err := c.write(ctx, d.conditions); err != nil {
					return 0, err
				}
				return 0, c.warn(ctx, d)
			})
		})
	}
	return g.Wait()
}

// decide says what is to be said of the policies of a kind.
func (u Unenforced) decide(objects registry.Objects, k *registry.Kind, now time.Time) judgment {
	var d judgment
	c := metav1.Condition{Type: Enforced, Status: metav1.ConditionFalse, Reason: ReasonNobodyEnforces,
		Message: fmt.Sprintf("nobody enforces it under plug-in %s; %s", u.Plugin, u.Kinds[k].Remedy)}
	if u.Unknown && !u.Kinds[k].Never {
		c.Status, c.Reason = metav1.ConditionUnknown, ReasonPluginUnknown
		c.Message = fmt.Sprintf("there is no plug-in %s: nodes do what they were told before, and no change reaches them", u.Plugin)
	}
	for o := range objects.All(k) {
		if p, ok := o.(*policyv1alpha2.ClusterNetworkPolicy); ok {
			c := c
			c.ObservedGeneration = p.Generation
			if !sameCondition(meta.FindStatusCondition(p.Status.Conditions, Enforced), c) {
				d.conditions = append(d.conditions, judged{p, c})
			}
			continue
		}
		e := warning(k, o, c.Message, now)
		e.Reason = c.Reason
		d.warnings = append(d.warnings, e)
	}
	return d
}
