package agent

import (
	"context"
	"fmt"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/internal/retry"
)

// limit holds pods to their share of what the node's pods share, until ctx ends,
// and says how things are.
func (a *agent) limit(ctx context.Context, l datapath.Limiter) {
	problem := a.problem("limits")
	defer problem("")
	for ctx.Err() == nil {
		err := l.Limit(ctx, func(o datapath.Occupancy) {
			a.metrics.connections.Set(float64(o.Connections))
			a.metrics.maxConnections.Set(float64(o.MaxConnections))
			a.metrics.limited.Set(float64(len(o.Over)))
			problem(overcrowded(o))
		})
		if err != nil && ctx.Err() == nil {
			problem(fmt.Sprintf("it is not known whether a pod fills the node's table of connections: %v", err))
			retry.Sleep(ctx, retryAfter)
		}
	}
}

// overcrowded says what is wrong with how full things are; empty where nothing
// is. It tells no numbers that change all the time.
func overcrowded(o datapath.Occupancy) string {
	if len(o.Over) > 0 {
		return fmt.Sprintf("of the %d connections that the node can track %s has begun more than a quarter, and may begin none here until it has less than an eighth: "+
			"see what it does, or raise net.netfilter.nf_conntrack_max", o.MaxConnections, named(o.Over))
	}
	if o.MaxConnections == 0 || o.Connections <= o.MaxConnections/10*9 {
		return ""
	}
	text := fmt.Sprintf("nine tenths of the %d connections that the node can track are in use, and no pod has begun more than a quarter of them: "+
		"many have together, or nodes and machines outside of the cluster, whom Weft does not limit", o.MaxConnections)
	if len(o.Crowded) > 0 {
		text += fmt.Sprintf("; more than a quarter lead to %s: see who uses it", named(o.Crowded))
	}
	return text + "; raise net.netfilter.nf_conntrack_max, or put fewer such pods on the node"
}

// named are the names of those with the most.
func named(shares []datapath.Share) string {
	var names []string
	for _, s := range shares {
		names = append(names, s.Name)
	}
	return printable.Few(names, 0)
}
