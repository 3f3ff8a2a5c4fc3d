package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"
	networkv1 "github.com/openshift/api/network/v1"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
)

// policyPlugin is the plug-in that is measured.
const policyPlugin = "openshift-networkpolicy"

// policyResults is what was measured of network policies.
type policyResults struct {
	World    worldResult
	Squares  []squareResult
	Costs    []costResult
	Variants []variant
	Traffic  traffic
}

func (s settings) policy(ctx context.Context) (*policyResults, error) {
	var r policyResults
	dir, err := os.MkdirTemp("", "weft-bench-cni-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if r.World, err = s.policyWorld(ctx, dir); err != nil {
		return nil, err
	}
	if r.Squares, err = s.policySquares(ctx, dir); err != nil {
		return nil, err
	}
	r.Costs = policyCosts()
	r.Variants, r.Traffic, err = s.policyTraffic(ctx)
	return &r, err
}

// create makes objects, many at a time.
func create(ctx context.Context, reg registry.Registry, k *registry.Kind, objects []registry.Object) error {
	calls, ctx := errgroup.WithContext(ctx)
	calls.SetLimit(64)
	for _, o := range objects {
		calls.Go(func() error {
			_, err := reg.Create(ctx, k, o)
			return err
		})
	}
	return calls.Wait()
}

// wideNetwork has room for the large cluster.
func wideNetwork() lab.Object {
	return lab.Object{Kind: api.ClusterNetwork, Object: &networkv1.ClusterNetwork{
		ObjectMeta:      metav1.ObjectMeta{Name: api.DefaultName},
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: worldCIDR, HostSubnetLength: worldHostBits}}}}
}

// addNodes creates nodes that are no more than Nodes, and returns the subnets
// that the controller gives them.
func addNodes(ctx context.Context, reg registry.Registry, first, n int) (map[int]netip.Prefix, error) {
	var nodes []registry.Object
	for i := range n {
		nodes = append(nodes, worldNode(first+i))
	}
	if err := create(ctx, reg, api.Node, nodes); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		list, _, err := reg.List(ctx, api.HostSubnet)
		if err != nil {
			return nil, err
		}
		byName := make(map[string]string, len(list))
		for _, o := range list {
			byName[o.GetName()] = o.(*networkv1.HostSubnet).Subnet
		}
		subnets := make(map[int]netip.Prefix, n)
		for i := range n {
			if p, err := netip.ParsePrefix(byName[nodeName(first+i)]); err == nil {
				subnets[first+i] = p
			}
		}
		if len(subnets) == n {
			return subnets, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d nodes have a HostSubnet: %w", len(subnets), n, ctx.Err())
		case <-tick.C:
		}
	}
}

// addPods attaches pods to a node, and creates their objects. They are those of
// the large cluster, and get numbers from first on.
func addPods(ctx context.Context, reg registry.Registry, a attacher, node string, first int, pods []fictive) (namespaces []podNamespace, addresses []netip.Addr, err error) {
	if namespaces, err = newPodNamespaces(len(pods)); err != nil {
		return nil, nil, err
	}
	for i, f := range pods {
		p := &namespaces[i]
		p.pod = registry.Key{Namespace: namespaceName(f.namespace), Name: fmt.Sprintf("pod%d", first+i)}
		p.uid = fmt.Sprintf("00000000-0000-4000-8000-%012d", first+i)
		if _, err := reg.Create(ctx, api.Pod, worldPod(f, p.pod.Name, p.uid, node)); err != nil {
			return namespaces, nil, err
		}
	}
	var mu sync.Mutex
	byName := make(map[string]netip.Addr)
	_, err = a.each(ctx, namespaces, inFlight, func(ctx context.Context, rt *libcni.RuntimeConf) error {
		r, err := a.cni.AddNetworkList(ctx, a.list, rt)
		if err != nil {
			return err
		}
		result, err := current.NewResultFromResult(r)
		if err != nil {
			return err
		}
		if len(result.IPs) == 0 {
			return errors.New("CNI ADD gave no address")
		}
		address, _ := netip.AddrFromSlice(result.IPs[0].Address.IP)
		mu.Lock()
		defer mu.Unlock()
		byName[rt.NetNS] = address.Unmap()
		return nil
	})
	for _, p := range namespaces {
		addresses = append(addresses, byName[p.path()])
	}
	return namespaces, addresses, err
}

// awaitEnforced waits until nodes say that a policy is in force.
func awaitEnforced(ctx context.Context, reg registry.Registry, version string, nodes ...string) error {
	want, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		waiting := slices.IndexFunc(nodes, func(node string) bool {
			o, err := reg.Get(ctx, api.NodeReportKind, registry.Key{Name: node})
			if err != nil {
				return true
			}
			have, err := strconv.ParseUint(cmp.Or(o.(*api.NodeReport).Enforced[api.NetworkPolicy.Plural], "0"), 10, 64)
			return err != nil || have < want
		})
		if waiting < 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not say that the policies are in force: %w", nodes[waiting], ctx.Err())
		case <-tick.C:
		}
	}
}

// network is the path of the network namespace of a node's agent.
func (c *cluster) network(node string) string {
	return fmt.Sprintf("/proc/%d/ns/net", c.lab.PID(node))
}
