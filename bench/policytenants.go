package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/policy/worst"
	"github.com/weftnet/weft/registry"
)

const (
	// harmfulPods is how many pods of the hostile tenant are on the node, each under
	// policies that no other is under.
	harmfulPods = 20
	// tenantRounds is how many changes of each kind are timed under each recipe.
	tenantRounds = 100
	// tenantTarget is for the slowest of a hundred.
	tenantTarget = 100 * time.Millisecond
	quietTenant  = "others rest"
)

// harmInterval is how often the hostile tenant changes a policy.
const harmInterval = 50 * time.Millisecond

// tenantResult is how long one tenant waits while another changes its policies all
// the time.
type tenantResult struct {
	Name string
	// Edits is how often the other changed its policies.
	Edits int
	// Revoked is from a policy's end until the node's pods fare accordingly, Started
	// how long a CNI ADD takes. Both are sorted.
	Revoked, Started []time.Duration
}

// hostile is a tenant whose policies cost much.
type hostile struct {
	name    string
	recipes [2]worst.Recipe // by turns
}

// hostiles are those that are tried, after none.
func hostiles() []hostile {
	all := []hostile{{name: quietTenant}}
	add := func(name string, r worst.Recipe) {
		other := r
		other.Seed++
		other.Size -= other.Size / 8 // so that it is another in any case
		all = append(all, hostile{name, [2]worst.Recipe{r, other}})
	}
	add("all but an exception, for a port each", worst.Issue(worstSize))
	for i, r := range worst.Found {
		add(fmt.Sprintf("found by search, %d", i+1), r)
	}
	return all
}

// policyTenants measures how long one tenant's changes take while another does its
// worst, the worst in turns.
func (s settings) policyTenants(ctx context.Context) (results []tenantResult, err error) {
	say("policy: what a tenant's policies do to others")
	dir, err := os.MkdirTemp("", "weft-bench-cni-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c, err := bringUp(ctx, s.weft, 1, policyPlugin, wideNetwork())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	reg, err := c.lab.Registry()
	if err != nil {
		return nil, err
	}
	defer reg.Close()
	t := &tenants{cluster: c, reg: reg, node: c.lab.Nodes()[0]}
	if t.attacher, err = c.attacher(t.node, s.weft, filepath.Join(dir, "tenants")); err != nil {
		return nil, err
	}
	if err := t.populate(ctx); err != nil {
		return nil, err
	}
	all := hostiles()
	results = make([]tenantResult, len(all))
	// Each in turn, a part of the rounds at a time.
	const parts = 5
	for range parts {
		for i, h := range all {
			results[i].Name = h.name
			if err := t.measure(ctx, h, tenantRounds/parts, &results[i]); err != nil {
				return nil, fmt.Errorf("%s: %w", h.name, err)
			}
		}
	}
	for _, r := range results {
		slices.Sort(r.Revoked)
		slices.Sort(r.Started)
	}
	return results, nil
}

// tenants are a node with pods of one that minds its own business, and of another.
type tenants struct {
	*cluster
	attacher attacher
	reg      registry.Registry
	node     string
	client   string
	web      string
	address  netip.Addr
}

const tenantNamespace = "tenant"

// populate makes the pods of both.
func (t *tenants) populate(ctx context.Context) error {
	run := func(p lab.Pod) (path string, a netip.Addr, err error) {
		p.Node, p.Command = t.node, []string{"sleep", "1000000"}
		addresses, err := t.lab.Run(ctx, p)
		if err != nil {
			return "", a, err
		}
		status, err := t.lab.Status()
		if err != nil {
			return "", a, err
		}
		i := slices.IndexFunc(status.Pods, func(s lab.PodStatus) bool { return s.Namespace == p.Namespace && s.Name == p.Name })
		return fmt.Sprintf("/proc/%d/ns/net", status.Pods[i].PID), addresses[0], nil
	}
	var err error
	if t.client, _, err = run(lab.Pod{Namespace: tenantNamespace, Name: "client", Labels: map[string]string{"app": "client"}}); err != nil {
		return err
	}
	if t.web, t.address, err = run(lab.Pod{Namespace: tenantNamespace, Name: "web", Labels: map[string]string{"app": "web"}}); err != nil {
		return err
	}
	apart := policyOf(tenantNamespace, "apart", "app", "web", nil)
	if _, err := t.reg.Create(ctx, api.NetworkPolicy, apart); err != nil {
		return err
	}
	for i := range harmfulPods {
		value := worst.Value(i)
		if _, _, err := run(lab.Pod{Namespace: worst.Namespace, Name: value, Labels: map[string]string{worst.Label: value}}); err != nil {
			return err
		}
		own := policyOf(worst.Namespace, "own-"+value, worst.Label, value, from(tcp(int32(1000+i))))
		if _, err := t.reg.Create(ctx, api.NetworkPolicy, own); err != nil {
			return err
		}
	}
	born := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: tenantNamespace, Name: "born", UID: types.UID(bornUID), Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{NodeName: t.node, Containers: []corev1.Container{{Name: "main", Image: "registry.example/main"}}}}
	_, err = t.reg.Create(ctx, api.Pod, born)
	return err
}

const bornUID = "00000000-0000-4000-8000-000000000001"

func policyOf(namespace, name, label, value string, ingress []networkingv1.NetworkPolicyIngressRule) *networkingv1.NetworkPolicy {
	return newPolicy(namespace, name, matching(label, value), ingress, nil)
}

// measure has a hostile tenant change its policies, and times the other's changes.
func (t *tenants) measure(ctx context.Context, h hostile, rounds int, r *tenantResult) (err error) {
	var edits atomic.Int64
	if h.name != quietTenant {
		hctx, stop := context.WithCancel(ctx)
		var hostile sync.WaitGroup
		var failed error
		hostile.Go(func() { failed = t.harm(hctx, h, &edits) })
		defer func() {
			stop()
			hostile.Wait()
			err = errors.Join(err, failed, t.forget(ctx, h))
			r.Edits += int(edits.Load())
		}()
		time.Sleep(time.Second) // until it is at work
	}
	p, err := newProbe(t.client, t.web, "eth0", t.address, policyPort)
	if err != nil {
		return err
	}
	defer p.close()
	policy := newPolicy(tenantNamespace, "open", matching("app", "web"), from(udp(policyPort)), nil)
	pods, err := newPodNamespaces(1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(pods)) }()
	pods[0].pod, pods[0].uid = registry.Key{Namespace: tenantNamespace, Name: "born"}, bornUID
	for range rounds {
		_, err := p.time(ctx, true, func() error {
			_, err := t.reg.Create(ctx, api.NetworkPolicy, policy.DeepCopy())
			return err
		})
		if err != nil {
			return err
		}
		took, err := p.time(ctx, false, func() error { return t.reg.Delete(ctx, api.NetworkPolicy, registry.KeyOf(policy), "") })
		if err != nil {
			return err
		}
		r.Revoked = append(r.Revoked, took)
		started, err := t.attacher.addAll(ctx, pods, 1)
		if err != nil {
			return err
		}
		r.Started = append(r.Started, started...)
		if _, err := t.attacher.deleteAll(ctx, pods, 1); err != nil {
			return err
		}
		time.Sleep(leastInterval)
	}
	return nil
}

// harm changes the hostile tenant's policies until ctx ends.
func (t *tenants) harm(ctx context.Context, h hostile, edits *atomic.Int64) error {
	tick := time.NewTicker(harmInterval)
	defer tick.Stop()
	for turn := 0; ; turn++ {
		for _, p := range h.recipes[turn%2].Make() {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			made, err := put(ctx, t.reg, p)
			if err != nil && ctx.Err() == nil {
				return err
			}
			if made {
				edits.Add(1)
			}
		}
	}
}

// put writes a policy over the one of its name, if there is one.
func put(ctx context.Context, reg registry.Registry, p *networkingv1.NetworkPolicy) (bool, error) {
	_, err := reg.Create(ctx, api.NetworkPolicy, p.DeepCopy())
	if errors.Is(err, registry.ErrExists) {
		err = modify(ctx, reg, api.NetworkPolicy, registry.KeyOf(p), func(o *networkingv1.NetworkPolicy) { o.Spec = *p.Spec.DeepCopy() })
	}
	return err == nil, err
}

// forget removes a hostile tenant's policies.
func (t *tenants) forget(ctx context.Context, h hostile) error {
	var errs []error
	for _, r := range h.recipes {
		for _, p := range r.Make() {
			if err := t.reg.Delete(ctx, api.NetworkPolicy, registry.KeyOf(p), ""); !errors.Is(err, registry.ErrNotFound) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func (r *report) policyTenants(results []tenantResult) {
	if len(results) == 0 {
		return
	}
	r.line("\n## What a tenant's policies do to others\n")
	r.line("One node. A hostile tenant has %d pods on it, each under a policy of its own beside those that", harmfulPods)
	r.line("cost much, and changes one of these every %v. Another", harmInterval)
	r.line("tenant's policy is deleted, timed until datagrams are dropped, and a pod of its is attached, timed")
	r.line("by the runtime: %d times each, in turns.", len(results[0].Revoked))
	r.head("the other", "changes", "revocation p50", "p99", "longest", "target for p99", "", "ADD p50", "p99", "longest", "target for p99", "")
	for _, t := range results {
		cells := []string{t.Name, fmt.Sprint(t.Edits)}
		for _, times := range [][]time.Duration{t.Revoked, t.Started} {
			p99 := quantile(times, 0.99)
			cells = append(cells, duration(quantile(times, 0.5)), duration(p99), duration(quantile(times, 1)),
				fmt.Sprintf("≤ %v", tenantTarget), r.judged(atMost(p99, tenantTarget)))
		}
		r.row(cells...)
	}
}
