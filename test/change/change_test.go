package change

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/await"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/plugin/openshift"
	"github.com/weftnet/weft/registry"
)

// How much is sent between the pods that are there all the time, six on three nodes, and
// to and from those that come and go.
const (
	baseRate, baseHeld = 1800, 7 // 210 connections, each used five times a second
	moreRate, moreHeld = 150, 1
)

// hold is how long traffic goes on where a state is to be lived in.
const hold = 2 * time.Second

// otherRange is what flannel gives subnets from where that is not to be openshift's.
const otherRange = "10.5.0.0/16"

// pair is a change and back.
type pair struct {
	from, to string
	// same says that both give subnets of one range.
	same bool
}

func (p pair) String() string {
	ranges := " other range"
	switch {
	case base(p.from) == base(p.to):
		ranges = ""
	case p.same:
		ranges = " same range"
	}
	return p.from + " to " + p.to + ranges
}

// few has each kind of change once: of the family of addresses with other ranges and
// with the same, between two with policies, and to one without.
var few = []pair{
	{from: "openshift-networkpolicy", to: "flannel-networkpolicy"},
	{from: "flannel", to: "openshift-subnet", same: true},
	{from: "openshift-networkpolicy", to: "openshift-subnet"},
}

func allPairs() (all []pair) {
	names := []string{"openshift-subnet", "openshift-networkpolicy", "flannel", "flannel-networkpolicy"}
	for _, from := range names {
		for _, to := range names {
			if from == to {
				continue
			}
			all = append(all, pair{from: from, to: to})
			if base(from) != base(to) {
				all = append(all, pair{from: from, to: to, same: true})
			}
		}
	}
	return all
}

// TestChanges changes the plug-in and back under traffic, with pods that come meanwhile.
func TestChanges(t *testing.T) {
	pairs := few
	if *matrix {
		pairs = allPairs()
	}
	for _, p := range pairs {
		t.Run(p.String(), func(t *testing.T) { p.run(t) })
	}
}

func (p pair) run(t *testing.T) {
	network := otherRange
	if p.same {
		network = openshift.DefaultCIDR
	}
	o := lab.Options{Plugin: p.from}
	if base(p.from) == flannel.Name {
		o.Objects = []lab.Object{flannelObject(network)}
	}
	c := up(t, o)
	old := slices.Concat(c.onEach("a", talker), c.onEach("b", talker))
	c.among(old)
	var strangers []pod
	if hasPolicies(p.from) && hasPolicies(p.to) {
		strangers = c.onEach("stranger", stranger)
		c.reach(strangers, old) // nothing but the policy keeps them out
		c.letTalkersIn()
		c.denied(strangers, old)
	}
	always, more := &traffics{c: c}, &traffics{c: c}
	always.load(old, old, baseRate, baseHeld)
	always.knocks(strangers, old)
	time.Sleep(hold)

	if base(p.to) == flannel.Name && base(p.from) != flannel.Name {
		c.configureFlannel(network)
	}
	there := c.change(p.from, p.to, "new", old, strangers, more)
	time.Sleep(hold)
	back := c.change(p.to, p.from, "late", slices.Concat(old, there), strangers, more)
	time.Sleep(hold)

	c.unchanged()
	more.finish() // a connection breaks with its pod
	c.remove(slices.Concat(there, back)...)
	c.settled(p.from)
	c.well()
	time.Sleep(hold)
	c.among(old)
	c.unchanged()
	always.finish()
}

func flannelObject(network string) lab.Object {
	config := &flannel.Config{Spec: json.RawMessage(flannelConfig(network))}
	config.Name = flannel.ConfigName
	return lab.Object{Kind: flannel.ConfigKind, Object: config}
}

// denied waits until pods reach none of others.
func (c *cluster) denied(from, to []pod) {
	c.Helper()
	for _, f := range from {
		await.NoError(c, patience, "pod "+f.name+" reaches nobody", func() error {
			var out bytes.Buffer
			err := c.lab.Exec("", f.name, lab.Command{Args: append([]string{self, "knock"}, addresses(to)...), Stdout: &out, Stderr: &out})
			if err != nil {
				return fmt.Errorf("%w: %s", err, &out)
			}
			return nil
		})
	}
}

// change has the cluster change to another plug-in while pods come, and returns those,
// which are of a name. Old ones and they reach each other, and strangers, who are denied
// if there are any, do not reach them.
func (c *cluster) change(from, to, name string, old, strangers []pod, all *traffics) (fresh []pod) {
	c.Helper()
	if hasPolicies(from) && !hasPolicies(to) {
		c.refused(from, to)
	}
	done := make(chan outcome, 1)
	go func() { done <- c.weft("plugin", "change", to, "--wait") }()
	fresh = c.onEach(name+"-amid", talker)
	(<-done).want(c, 0, "Done: new pods get addresses of "+to)
	fresh = append(fresh, c.onEach(name, talker)...)
	if base(from) != base(to) {
		for _, p := range fresh[len(c.lab.Nodes()):] {
			c.isOf(p, to)
		}
	}
	c.among(old, fresh)
	all.load(old, fresh, moreRate, moreHeld)
	all.load(fresh, old, moreRate, moreHeld)
	if len(strangers) > 0 {
		c.denied(strangers, fresh)
		all.knocks(strangers, fresh)
	}
	return fresh
}

// isOf wants a pod to have an address of the subnet that its node has of a plug-in.
func (c *cluster) isOf(p pod, plugin string) {
	c.Helper()
	var subnets []netip.Prefix
	c.write(func(ctx context.Context, r registry.Registry) (err error) {
		subnets, err = subnetsOf(ctx, r, p.node, base(plugin))
		return err
	})
	if !slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Contains(p.address) }) {
		c.Errorf("pod %s has the address %s, and its %s has of %s %s", p.name, p.address, p.node, plugin, subnets)
	}
}

// subnetsOf returns the subnets that a node of a lab has of a plug-in.
func subnetsOf(ctx context.Context, r registry.Registry, node, plugin string) (subnets []netip.Prefix, err error) {
	o, err := r.Get(ctx, api.Node, registry.Key{Name: node})
	if err != nil {
		return nil, err
	}
	own := api.NodeAddresses(o.(*corev1.Node))
	if plugin != flannel.Name {
		hs, err := r.Get(ctx, api.HostSubnet, registry.Key{Name: node})
		if err != nil {
			return nil, err
		}
		s, err := netip.ParsePrefix(hs.(*networkv1.HostSubnet).Subnet)
		return []netip.Prefix{s}, err
	}
	leases, _, err := r.List(ctx, flannel.LeaseKind)
	for _, l := range leases {
		var attributes struct{ PublicIP netip.Addr }
		if err := json.Unmarshal(l.(*flannel.Lease).Spec, &attributes); err != nil {
			return nil, fmt.Errorf("lease %s: %w", l.GetName(), err)
		}
		if s, err := netip.ParsePrefix(strings.Replace(l.GetName(), "-", "/", 1)); err != nil {
			return nil, err
		} else if slices.Contains(own, attributes.PublicIP) {
			subnets = append(subnets, s)
		}
	}
	return subnets, err
}

// refused has a change be refused that would leave a policy without effect.
func (c *cluster) refused(from, to string) {
	c.Helper()
	before, err := c.pluginStatus()
	if err != nil {
		c.Fatal(err)
	}
	c.letTalkersIn()
	says := []string{"refused: ", lab.DefaultNamespace + "/" + policyName, "nothing was changed",
		fmt.Sprintf("which %s enforces, would be without effect under %s", from, to)}
	c.weft("plugin", "change", to, "--dry-run").want(c, 1, says...)
	c.weft("plugin", "change", to, "--wait").want(c, 1, says...)
	after, err := c.pluginStatus()
	if err != nil {
		c.Fatal(err)
	}
	if after.Used != before.Used || !slices.Equal(after.Mix, before.Mix) {
		c.Fatalf("what was refused made %+v of %+v", after, before)
	}
	c.write(func(ctx context.Context, r registry.Registry) error {
		return r.Delete(ctx, api.NetworkPolicy, registry.Key{Namespace: lab.DefaultNamespace, Name: policyName}, "")
	})
}
