package change

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/await"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/plugin/openshift"
	"github.com/weftnet/weft/registry"
)

// leastRate and leastHeld are how many requests a second there must be between nodes at
// least while a cluster changes, and over how many connections that stay open.
const leastRate, leastHeld = 1000, 200

// How much is sent between the pods that are there all the time, six on three nodes, and
// to and from those that come and go.
//
// Of the 36 pairs of pods that are there all the time, a pod with itself among them, 24 are
// of two nodes. So 216 of the 324 connections are between nodes, and two thirds of the
// requests: 1,200 a second, and at least 1,080 where judge finds no fault. Each connection
// is used four times a second.
const (
	baseRate, baseHeld = 1800, 9
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
	// edited says that the ClusterConfig is edited, rather than the command used.
	edited bool
	// backend is how flannel's nodes reach each other: one of backends.
	backend string
}

// backends are what flannel is configured with, by what they are called here. All nodes of a
// lab are on-link with each other, so two of them send without a tunnel.
var backends = map[string]string{
	"":        `{"Type": "vxlan"}`,
	"direct":  `{"Type": "vxlan", "DirectRouting": true}`,
	"host-gw": `{"Type": "host-gw"}`,
}

func (p pair) String() string {
	ranges := " other range"
	switch {
	case base(p.from) == base(p.to):
		ranges = ""
	case p.same:
		ranges = " same range"
	}
	if p.backend != "" {
		ranges += " " + p.backend
	}
	if p.edited {
		ranges += " edited"
	}
	return p.from + " to " + p.to + ranges
}

// flannel is what flannel is configured with.
func (p pair) flannel() string {
	if p.same {
		return flannelConfig(openshift.DefaultCIDR, p.backend)
	}
	return flannelConfig(otherRange, p.backend)
}

// options are those of a lab with the first plug-in.
func (p pair) options() lab.Options {
	o := lab.Options{Plugin: p.from}
	if base(p.from) == flannel.Name {
		o.Objects = []lab.Object{flannelObject(p.flannel())}
	}
	return o
}

// configure gives flannel what it needs where only the second plug-in needs it.
func (p pair) configure(c *cluster) {
	c.Helper()
	if base(p.to) == flannel.Name && base(p.from) != flannel.Name {
		c.configureFlannel(p.flannel())
	}
}

// back is the change back.
func (p pair) back() pair {
	p.from, p.to = p.to, p.from
	return p
}

// policies says whether policies are in force all the time.
func (p pair) policies() bool { return hasPolicies(p.from) && hasPolicies(p.to) }

// few has each kind of change once: of the family of addresses with other ranges and
// with the same, through tunnels and without, between two with policies, and to one
// without; by the command and by an edit.
var few = []pair{
	{from: "openshift-networkpolicy", to: "flannel-networkpolicy"},
	{from: "flannel", to: "openshift-subnet", same: true, edited: true, backend: "host-gw"},
	{from: "openshift-networkpolicy", to: "openshift-subnet"},
}

// allPairs has each pair of plug-ins, with each relation of their ranges, by the command and
// by an edit in turn; with the same range with each backend of flannel.
func allPairs() (all []pair) {
	names := []string{"openshift-networkpolicy", "flannel-networkpolicy", "openshift-subnet", "flannel"}
	for _, from := range names {
		for _, to := range names {
			if from == to {
				continue
			}
			all = append(all, pair{from: from, to: to, edited: len(all)%2 == 1})
			if base(from) == base(to) {
				continue
			}
			for _, backend := range slices.Sorted(maps.Keys(backends)) {
				all = append(all, pair{from: from, to: to, same: true, edited: len(all)%2 == 1, backend: backend})
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
	c := up(t, p.options())
	old := slices.Concat(c.onEach("a", talker), c.onEach("b", talker))
	c.among(old)
	var strangers []pod
	if p.policies() {
		strangers = c.onEach("stranger", stranger)
		c.reach(strangers, old) // nothing but the policy keeps them out
		c.letTalkersIn()
		c.denied(strangers, old)
	}
	always, more := &traffics{c: c}, &traffics{c: c}
	always.load(old, old, baseRate, baseHeld)
	always.knocks(strangers, old)
	if !hasPolicies(p.from) && !hasPolicies(p.to) { // which take other nodes for strangers
		nodes := c.nodesServe(old[0])
		always.load(nodes, old, moreRate, moreHeld)
		always.load(old, nodes, moreRate, moreHeld)
	}
	time.Sleep(hold)

	p.configure(c)
	there := c.change(p, "new", old, strangers, more)
	time.Sleep(hold)
	back := c.change(p.back(), "late", slices.Concat(old, there), strangers, more)
	time.Sleep(hold)

	c.unchanged()
	more.finish() // a connection breaks with its pod
	c.remove(slices.Concat(there, back)...)
	c.settled(p.from)
	c.well()
	time.Sleep(hold)
	c.among(old)
	c.unchanged()
	always.finishFull()
}

func flannelObject(text string) lab.Object {
	config := &flannel.Config{Spec: json.RawMessage(text)}
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

// change has one node, and then the cluster, change to another plug-in while pods come, and
// returns those, which are of a name. Old ones and they reach each other, and strangers, who are denied
// if there are any, do not reach them.
func (c *cluster) change(p pair, name string, old, strangers []pod, all *traffics) (fresh []pod) {
	c.Helper()
	if hasPolicies(p.from) && !hasPolicies(p.to) {
		c.refused(p.from, p.to)
	}
	if one := c.lab.Nodes()[0]; p.edited {
		c.edit(p.to, one)
		c.status("one node uses "+p.to, func(s pluginStatus) bool {
			return s.State == api.PluginWaiting && s.Used == p.from && slices.Contains(s.Mix, p.to)
		})
	} else {
		c.weft("plugin", "change", p.to, "--node", one, "--wait").want(c, 0, "Done: new pods get addresses of "+p.to)
	}
	c.among(old)
	time.Sleep(hold)
	done := make(chan outcome, 1)
	if p.edited {
		c.edit(p.to)
	} else {
		go func() { done <- c.weft("plugin", "change", p.to, "--wait") }()
	}
	fresh = c.onEach(name+"-amid", talker)
	if p.edited {
		c.status("new pods get addresses of "+p.to, func(s pluginStatus) bool {
			return s.Used == p.to && (s.State == api.PluginRetiring || s.State == api.PluginSettled)
		})
	} else {
		(<-done).want(c, 0, "Done: new pods get addresses of "+p.to)
	}
	fresh = append(fresh, c.onEach(name, talker)...)
	if base(p.from) != base(p.to) {
		for _, f := range fresh[len(c.lab.Nodes()):] {
			c.isOf(f, p.to)
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

// edit asks for a plug-in, on some nodes or on all, as whoever edits the ClusterConfig: it
// is read, changed and applied.
func (c *cluster) edit(plugin string, nodes ...string) {
	c.Helper()
	read := c.weft("get", api.ClusterConfigKind.Singular, api.DefaultName, "-o", "yaml")
	read.want(c, 0)
	var config api.ClusterConfig
	if err := yaml.Unmarshal([]byte(read.text), &config); err != nil {
		c.Fatalf("%v in\n%s", err, read.text)
	}
	config.Spec.Plugin, config.Spec.PluginNodes = plugin, nodes
	text, err := yaml.Marshal(&config)
	if err != nil {
		c.Fatal(err)
	}
	file := filepath.Join(c.TempDir(), "clusterconfig.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		c.Fatal(err)
	}
	c.weft("apply", "-f", file).want(c, 0, "configured")
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
