package agent

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
	"github.com/weftnet/weft/service/health"
)

// answerChecks answers those who ask the node about Services, until ctx ends, where the choice
// has them. update is to be told what there is before each plan.
func (a *agent) answerChecks(ctx context.Context, wg *sync.WaitGroup, what plugin.Choice) (update func(registry.Objects)) {
	if !a.AnswerChecks || slices.Contains(what.Without, plugin.Services) {
		return func(registry.Objects) {} // kube-proxy answers
	}
	var leaving atomic.Bool
	server := &health.Server{Log: a.Log, Problem: a.problem("services"), Metrics: promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{}),
		State: func() (s health.State) {
			if running := a.running(); running != nil {
				s.Updated, s.Since = running.Progress()
			}
			s.Leaving = leaving.Load()
			return s
		}}
	wg.Go(func() { server.Run(ctx) })
	var checker service.Checker
	return func(now registry.Objects) {
		checks, _ := checker.Checks(now, a.Node) // what is wrong the cluster's work tells, as all nodes find the same
		server.Update(checks)
		node := registry.GetAs[*corev1.Node](now, api.Node, registry.Key{Name: a.Node})
		leaving.Store(node == nil || api.IsLeaving(node))
	}
}
