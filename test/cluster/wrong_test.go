package cluster

import (
	"fmt"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
)

// TestExhaustion runs out of addresses for pods, and of subnets for nodes.
func TestExhaustion(t *testing.T) {
	t.Parallel()
	n := &networkv1.ClusterNetwork{ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.7.0.0/28", HostSubnetLength: 3}}}
	n.Name = api.DefaultName
	c := up(t, lab.Options{Nodes: 2, Objects: []lab.Object{{Kind: api.ClusterNetwork, Object: n}}})
	for i := range 5 { // eight addresses, less the subnet's own two and the gateway's
		c.run(fmt.Sprintf("p%d", i), "node1", "sleep", "1000000")
	}
	before := c.inventory()
	_, err := c.lab.Run(t.Context(), lab.Pod{Name: "one-more", Node: "node1"})
	if err == nil || !strings.Contains(err.Error(), "no address left in the pool 10.7.0.") || !strings.Contains(err.Error(), "5 of its 5 addresses are in use") {
		t.Errorf("the sixth pod in a /29: %v", err)
	}
	if after := c.inventory(); after != before {
		t.Errorf("the failed start left something:\n%s\nbefore it was\n%s", after, before)
	}
	if err := c.lab.Delete(t.Context(), "", "p3"); err != nil {
		t.Fatal(err)
	}
	c.run("one-more", "node1")

	c.apply(nodeObject("one-too-many", "172.30.9.1"))
	c.wantProblem("clusterconfig default: all subnets of 10.7.0.0/28 in subnets of /29 are taken (none of them is quarantined); add a range")
	c.weft("", "get", "node", "one-too-many", "-o", "yaml").want(t, 0, "weft.network/problem: 'no IPv4 subnet: ")
	c.weft("", "get", "clusterconfig", "default", "-o", "yaml").want(t, 0, "RangeExhausted")

	// Ranges that overlap, or hold no subnet, are refused, and the network
	// stays what it is.
	network := c.weft("", "get", "clusternetwork", "default", "-o", "yaml").stdout
	const document = "apiVersion: network.openshift.io/v1\nkind: ClusterNetwork\nmetadata: {name: default}\nclusterNetworks: %s\n"
	for ranges, words := range map[string][]string{
		`[{CIDR: 10.7.0.0/28, hostSubnetLength: 3}, {CIDR: 10.7.0.0/24, hostSubnetLength: 3}]`: {"clusterNetworks[1].CIDR", `"10.7.0.0/24"`, "overlaps with clusterNetworks[0].CIDR 10.7.0.0/28"},
		`[{CIDR: 10.7.0.0/28, hostSubnetLength: 8}]`:                                           {"clusterNetworks[0].hostSubnetLength", "must be between 2 and 4"},
		`[{CIDR: 10.7.0.0, hostSubnetLength: 3}]`:                                              {"clusterNetworks[0].CIDR", `"10.7.0.0"`},
	} {
		c.weft(fmt.Sprintf(document, ranges), "apply", "-f", "-").want(t, 2, append(words, "nothing was changed")...)
	}
	if after := c.weft("", "get", "clusternetwork", "default", "-o", "yaml").stdout; after != network {
		t.Errorf("what was refused changed the ClusterNetwork:\n%s", after)
	}

	// One more range, and all is well.
	c.apply(fmt.Sprintf(document, `[{CIDR: 10.7.0.0/28, hostSubnetLength: 3}, {CIDR: 10.8.0.0/28, hostSubnetLength: 3}]`))
	c.eventually(func() error {
		hs, err := get[*networkv1.HostSubnet](c, c.registry(), api.HostSubnet, "one-too-many")
		if err == nil && !strings.HasPrefix(hs.Subnet, "10.8.0.") {
			err = fmt.Errorf("HostSubnet one-too-many has the subnet %q", hs.Subnet)
		}
		return err
	})
	c.weft("", "delete", "node", "one-too-many").want(t, 0)
	c.eventually(func() error {
		if s := c.weft("", "status"); s.code != 0 {
			return fmt.Errorf("weft status ends with %d:\n%s", s.code, s.stdout)
		}
		return nil
	})
}

// inventory is what the first node and the registry have of pods, as text.
func (c *cluster) inventory() string {
	c.Helper()
	return c.mustExec("node/node1", "sh", "-ec", `ip -o link | grep -o ': weft[^:@ ]*' | sort; ip route show table all proto 87; ls -A /run/netns`) +
		c.weft("", "get", "pods", "-o", "name").stdout
}

// TestUnknownPlugin asks for a plug-in that there is none of.
func TestUnknownPlugin(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2})
	here, there := c.run("here", "node1")[0], c.run("there", "node2")[0]
	const config = "apiVersion: weft.network/v1\nkind: ClusterConfig\nmetadata: {name: default}\nspec: {%s}\n"
	for spec, words := range map[string][]string{
		"plugin: weave":                   {`"weave"`, "flannel, flannel-networkpolicy, openshift-networkpolicy, openshift-subnet"},
		"dataPlane: abacus":               {`"abacus"`, "linux"},
		"vxlanPort: 70000":                {"spec.vxlanPort", "must be between 1 and 65535"},
		"plugin: openshift-subnet, a: 1":  {"a"},
		"plugin: [openshift-subnet, vpp]": {"plugin"},
	} {
		c.weft(fmt.Sprintf(config, spec), "apply", "-f", "-").want(t, 2, words...)
	}
	c.mustSee("pod/here", there, here)
	c.run("another", "node1")
	c.weft("", "status").want(t, 0)

	// Behind apply's back: all keep the network that they have, and it is said why
	// they get no other.
	choose := func(plugin string) {
		_, err := registry.Modify(t.Context(), c.registry(), api.ClusterConfigKind, registry.Key{Name: api.DefaultName},
			func(config *api.ClusterConfig) error { config.Spec.Plugin = plugin; return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	choose("weave")
	const complaint = `plug-in "weave" is unknown: there are flannel, flannel-networkpolicy, openshift-networkpolicy, openshift-subnet`
	c.eventually(func() error {
		if s := c.weft("", "status"); s.code != 1 || !strings.Contains(s.stdout, complaint) {
			return fmt.Errorf("weft status ends with %d:\n%s%s", s.code, s.stdout, s.stderr)
		}
		return nil
	})
	c.mustSee("pod/here", there, here)
	c.mustSee("pod/there", here, there)
	late := c.run("late", "node1")[0]
	c.mustSee("pod/there", late, there)
	for _, node := range c.lab.Nodes() {
		if ok, said := c.ready(node); !ok {
			t.Errorf("%s is not ready: %s", node, said)
		}
	}
	if err := c.lab.Delete(t.Context(), "", "another"); err != nil {
		t.Error(err)
	}
	choose(api.DefaultPlugin)
	c.eventually(func() error {
		if s := c.weft("", "status"); s.code != 0 {
			return fmt.Errorf("weft status ends with %d:\n%s%s", s.code, s.stdout, s.stderr)
		}
		return nil
	})
	c.run("another", "node1")
	c.mustSee("pod/here", there, here)
}

// TestBadFlannelConfig gives flannel a backend that nobody has: through Weft,
// which refuses it, and behind its back.
func TestBadFlannelConfig(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2, Plugin: "flannel"})
	here, there := c.run("here", "node1")[0], c.run("there", "node2")[0]
	const bad = `{"Network": "10.5.0.0/16", "Backend": {"Type": "carrier-pigeon"}}`
	c.weft("apiVersion: weft.network/v1\nkind: FlannelConfig\nmetadata: {name: config}\nspec: "+bad+"\n", "apply", "-f", "-").
		want(t, 2, `"carrier-pigeon"`, "host-gw", "vxlan", "nothing was changed")
	c.weft("", "status").want(t, 0)

	client, err := clientv3.New(clientv3.Config{Endpoints: []string{c.lab.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const key = "/coreos.com/network/config"
	good, err := client.Get(t.Context(), key)
	if err != nil || len(good.Kvs) != 1 {
		t.Fatalf("%v: %v", good, err)
	}
	if _, err := client.Put(t.Context(), key, bad); err != nil {
		t.Fatal(err)
	}
	c.wantProblem("carrier-pigeon")
	c.mustSee("pod/here", there, here)
	c.mustSee("pod/there", here, there)

	// A node that comes new has nothing to go by.
	fresh := startAgent(t, oneAddress, "--node-name", "fresh", "--etcd-endpoints", c.lab.Endpoint())
	fresh.wantUnready("carrier-pigeon")
	// One that was there goes by what it knew.
	if err := c.lab.Kill("node1"); err != nil {
		t.Fatal(err)
	}
	if err := c.lab.Start(t.Context(), "node1"); err != nil {
		t.Fatal(err)
	}
	c.mustSee("pod/here", there, here)
	c.mustSee("pod/there", here, there)

	if _, err := client.Put(t.Context(), key, string(good.Kvs[0].Value)); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if ok, said := ask(t, fresh.runDir, "/readyz"); !ok {
			return fmt.Errorf("the new agent is not ready: %s", said)
		}
		return nil
	})
	c.eventually(func() error {
		if s := c.weft("", "status"); s.code != 0 {
			return fmt.Errorf("weft status ends with %d:\n%s", s.code, s.stdout)
		}
		return nil
	})
}

// TestTwoAgentsOneName starts an agent under the name of another node.
func TestTwoAgentsOneName(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2})
	here, there := c.run("here", "node1")[0], c.run("there", "node2")[0]
	c.mustSee("pod/there", here, there)
	before := c.weft("", "get", "hostsubnets", "-o", "yaml").stdout
	double := startAgent(t, oneAddress, "--node-name", "node1", "--etcd-endpoints", c.lab.Endpoint(), "--lease-ttl", "1s")
	double.wantUnready("another agent, node1 at 172.30.0.11, runs as node node1: give each node a name of its own")
	if after := c.weft("", "get", "hostsubnets", "-o", "yaml").stdout; after != before {
		t.Errorf("the second agent changed the nodes' addresses:\n%s\nbefore it was\n%s", after, before)
	}
	c.mustSee("pod/there", here, there)
	c.mustSee("pod/here", there, here)
	c.eventually(func() error {
		if s := c.weft("", "status"); s.code != 1 || !strings.Contains(s.stdout, "another agent, node1 at 172.30.0.99, wants to be this node, too") {
			return fmt.Errorf("weft status ends with %d:\n%s", s.code, s.stdout)
		}
		return nil
	})
}

// TestWhichAddress starts an agent on a machine that has two addresses and no
// default route.
func TestWhichAddress(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 1})
	a := startAgent(t, `ip link set lo up
for i in 0 1; do
	ip link add eth$i type veth peer name peer$i
	ip addr add 172.3$i.0.99/16 dev eth$i
	ip link set eth$i up
	ip link set peer$i up
done
`, "--node-name", "undecided", "--etcd-endpoints", c.lab.Endpoint())
	a.wantUnready("which address is the node's own? eth0 172.30.0.99, eth1 172.31.0.99", "--node-ip")
	c.weft("", "get", "node", "undecided").want(t, 2, "not found")

	// With a default route it is plain, and the agent sees that by itself.
	run(t, nsenter(a.pid, "ip", "route", "add", "default", "via", "172.31.0.1"), "").want(t, 0)
	eventually(t, func() error {
		if ok, said := ask(t, a.runDir, "/readyz"); !ok {
			return fmt.Errorf("the agent is not ready: %s", said)
		}
		return nil
	})
	c.weft("", "get", "node", "undecided", "-o", "yaml").want(t, 0, "172.31.0.99")
}

// TestNameTaken adds a pod that has an interface of the name already.
func TestNameTaken(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 1})
	s := c.sandbox("node1", "full")
	if _, err := s.exec("ip", "link", "add", "eth0", "type", "bridge"); err != nil {
		t.Fatal(err)
	}
	before := c.inventory()
	if a := s.cni("ADD"); a.Code != 103 || a.Msg != "interface name already taken" || !strings.Contains(a.Details, "/run/netns/full") {
		t.Errorf("ADD: %+v", a)
	}
	if after := c.inventory(); after != before {
		t.Errorf("the failed ADD left something:\n%s\nbefore it was\n%s", after, before)
	}
	if out, err := s.exec("ip", "-br", "link"); err != nil || !strings.Contains(out, "eth0") {
		t.Errorf("the pod's own interface is gone: %v\n%s", err, out)
	}
	if a := s.cni("DEL"); a.Code != 0 {
		t.Errorf("DEL: %+v", a)
	}
	if out, err := s.exec("ip", "-br", "link"); err != nil || !strings.Contains(out, "eth0") {
		t.Errorf("DEL took the pod's own interface: %v\n%s", err, out)
	}
}
