package main

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/google/nftables"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/registry"
)

// policyTable is where the linux data plane has policies.
const policyTable = "weft-policy"

// squareResult is what a policy costs a node that lets some pods talk to as many
// of the node's own.
type squareResult struct {
	Side                        int
	Classes, Verdicts, Elements int
}

// policySquares puts pods on a node that a policy protects, as many elsewhere
// that it lets in, and counts.
func (s settings) policySquares(ctx context.Context, dir string) (results []squareResult, err error) {
	say("policy: one policy between many pods")
	c, err := bringUp(ctx, s.weft, 1, policyPlugin, wideNetwork())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	node := c.lab.Nodes()[0]
	reg, err := c.lab.Registry()
	if err != nil {
		return nil, err
	}
	defer reg.Close()
	a, err := c.attacher(node, s.weft, filepath.Join(dir, "square"))
	if err != nil {
		return nil, err
	}
	subnets, err := addNodes(ctx, reg, 1, 1)
	if err != nil {
		return nil, err
	}
	if err := create(ctx, reg, api.Namespace, worldNamespaceObjects()[:1]); err != nil {
		return nil, err
	}
	if err := create(ctx, reg, api.TagKind, worldTags()[:roles]); err != nil {
		return nil, err
	}
	policy := newPolicy(namespaceName(0), "db-from-api", apps(db), from(tcp(5432), networkingv1.NetworkPolicyPeer{PodSelector: apps(front)}), nil)
	if err := create(ctx, reg, api.NetworkPolicy, []registry.Object{policy}); err != nil {
		return nil, err
	}
	others := &api.NodePods{}
	others.Name = nodeName(1)
	if _, err := reg.Create(ctx, api.NodePodsKind, others); err != nil {
		return nil, err
	}
	const step, most = 100, 200
	for side := step; side <= most; side += step {
		pods, _, e := addPods(ctx, reg, a, node, side-step, slices.Repeat([]fictive{{0, db}}, step))
		defer func() { err = errors.Join(err, closeAll(pods)) }()
		if e != nil {
			return nil, e
		}
		_, err = registry.Modify(ctx, reg, api.NodePodsKind, registry.KeyOf(others), func(n *api.NodePods) error {
			for i := range step {
				addTagged(n, fictive{0, front}.tag(), slotAddress(subnets[1], side-step+i))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		m, err := c.awaitMetrics(ctx, node, "all pods and peers", func(m metrics) bool {
			return int(m[planEntries("endpoints")]) >= side && int(m[planEntries("classes")]) >= side
		})
		if err != nil {
			return nil, err
		}
		r := squareResult{Side: side, Classes: int(m[planEntries("classes")]), Verdicts: int(m[planEntries("verdicts")])}
		if r.Elements, err = countElements(c.network(node), policyTable); err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	return results, nil
}

// countElements counts what the sets and maps of an nftables table hold, a range
// once.
func countElements(network, table string) (n int, err error) {
	err = netns.Do(network, func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		sets, err := conn.GetSets(&nftables.Table{Family: nftables.TableFamilyINet, Name: table})
		if err != nil {
			return err
		}
		for _, s := range sets {
			elements, err := conn.GetSetElements(s)
			if err != nil {
				return err
			}
			for _, e := range elements {
				if !e.IntervalEnd {
					n++
				}
			}
		}
		return nil
	})
	return n, err
}
