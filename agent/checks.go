package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
	"github.com/weftnet/weft/service/health"
)

// answerChecks answers those who ask the node about Services, until ctx ends, where the choice
// has them. found says that the node has what an agent before had loaded. read is to be told
// what there is, and loaded what the data plane has of it.
func (a *agent) answerChecks(ctx context.Context, wg *sync.WaitGroup, what plugin.Choice, found bool) (read func(registry.Objects), loaded func(*plugin.Applied)) {
	if !a.AnswerChecks || slices.Contains(what.Without, plugin.Services) {
		return func(registry.Objects) {}, func(*plugin.Applied) {} // kube-proxy answers
	}
	var leaving atomic.Bool
	server := &health.Server{Log: a.Log, Problem: a.problem("services"), Metrics: promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{}),
		State: func() health.State {
			s := health.State{Found: found, Leaving: leaving.Load()}
			if running := a.running(); running != nil {
				s.Updated, s.Since = running.Progress()
				able := running.Last().Able
				s.Unable = able != nil && !able.Services
			}
			return s
		}}
	wg.Go(func() { server.Run(ctx) })
	read = func(now registry.Objects) {
		node := registry.GetAs[*corev1.Node](now, api.Node, registry.Key{Name: a.Node})
		leaving.Store(node == nil || api.IsLeaving(node))
	}
	checker := service.Checker{Grants: a.Registry.Serves(service.GrantKind)}
	var triggers service.Triggers
	return read, func(done *plugin.Applied) {
		for _, at := range triggers.New(done.Input.Objects) {
			a.metrics.programmed.Observe(time.Since(at).Seconds())
		}
		checks, _ := checker.Checks(done.Input.Objects, a.Node) // what is wrong the cluster's work tells, as all nodes find the same
		if len(checks) > 0 {
			serves := servesFromOutside(done.Plan)
			for i, c := range checks {
				if !serves(c) {
					checks[i].Local = 0
				}
			}
		}
		server.Update(checks)
		text := hidden(done.Plan, checks)
		a.mu.Lock()
		changed := a.hidden != text
		a.hidden = text
		a.mu.Unlock()
		if changed {
			a.node.Kick()
		}
	}
}

// hidden says of the ports at which the node is asked about Services which ones a pod has, so that
// it answers in the node's place.
func hidden(p *plan.Plan, checks []service.Check) string {
	var found []string
	look := func(address netip.Addr, port uint16) {
		k := plan.ServiceKey{Network: plan.DefaultNetwork, Address: address, Protocol: plan.TCP, Port: port}
		for _, k.From = range []plan.Scope{plan.Anywhere, plan.Inside, plan.Outside} {
			if svc, ok := p.Services.Get(k); ok && strings.HasPrefix(svc.Origin, api.Pod.Kind+" ") {
				found = append(found, fmt.Sprintf("%s (%s)", netip.AddrPortFrom(address, port), svc.Origin))
			}
		}
	}
	for _, a := range p.Local.Addresses {
		look(a, service.NodeCheckPort)
		for _, c := range checks {
			look(a, c.Port)
		}
	}
	look(netip.AddrFrom4([4]byte{127, 0, 0, 1}), service.LocalCheckPort)
	if len(found) == 0 {
		return ""
	}
	return fmt.Sprintf("who asks the node about Services is answered by pods, which have these ports as hostPorts: %s; give them others", printable.Few(found, 0))
}

// servesFromOutside returns what reports whether a plan hands what comes from outside to endpoints
// of the node, at the ports of nodes of a Service that has some: the Service may have too much for
// a node, or a pod may have its port.
func servesFromOutside(p *plan.Plan) func(service.Check) bool {
	type reached struct{ atNode, anywhere bool }
	sets := make(map[string]reached)
	for k, svc := range p.Services.All() {
		if of, _, _ := strings.Cut(svc.Set, ":"); k.From != plan.Inside && strings.HasSuffix(of, service.LocalSuffix) && hasBackend(p, svc.Set) {
			r := sets[of]
			r.anywhere = true
			r.atNode = r.atNode || slices.Contains(p.Local.Addresses, k.Address)
			sets[of] = r
		}
	}
	return func(c service.Check) bool {
		r := sets[service.LocalSet(c.Service)]
		return r.atNode || r.anywhere && !c.NodePorts
	}
}

func hasBackend(p *plan.Plan, set string) bool {
	for _, b := range p.BackendsOf(plan.DefaultNetwork, set) {
		if b.Weight > 0 {
			return true
		}
	}
	return false
}
