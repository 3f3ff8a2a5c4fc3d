package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
)

// fourSubnets is a cluster network with four subnets for nodes.
func fourSubnets() lab.Object {
	n := &networkv1.ClusterNetwork{ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.1.0.0/22", HostSubnetLength: 8}}}
	n.Name = api.DefaultName
	return lab.Object{Kind: api.ClusterNetwork, Object: n}
}

func nodeObject(name, address string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s}\nstatus: {addresses: [{type: InternalIP, address: %s}]}\n---\n", name, address)
}

// TestNodeLeavesAndReturns deletes a node: the others forget it, nobody gets
// its subnet, and it finds it again.
func TestNodeLeavesAndReturns(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Objects: []lab.Object{fourSubnets()}})
	r := c.registry()
	here, there := c.run("here", "node1")[0], c.run("there", "node2")[0]
	c.mustSee("pod/here", there, here)
	before, err := get[*networkv1.HostSubnet](c, r, api.HostSubnet, "node2")
	if err != nil {
		t.Fatal(err)
	}

	c.weft("", "delete", "node", "node2").want(t, 0)
	for _, node := range []string{"node1", "node3"} {
		c.wantWay(node, before.Subnet, "172.30.0.12", false)
	}
	c.eventually(func() error {
		if _, err := get[*networkv1.HostSubnet](c, r, api.HostSubnet, "node2"); !errors.Is(err, registry.ErrNotFound) {
			return fmt.Errorf("HostSubnet node2 is still there: %v", err)
		}
		return nil
	})
	if _, _, err := c.reach("pod/here", there); err == nil {
		t.Error("a pod of the deleted node is still reached")
	}
	c.weft("", "why", "here", there.String()).want(t, 1, "denied")

	// One subnet is left and one is in quarantine: of two new nodes the
	// second goes without.
	c.apply(nodeObject("other1", "172.30.9.1"))
	c.eventually(func() error {
		hs, err := get[*networkv1.HostSubnet](c, r, api.HostSubnet, "other1")
		if err == nil && (hs.Subnet == "" || hs.Subnet == before.Subnet) {
			err = fmt.Errorf("HostSubnet other1 has the subnet %q", hs.Subnet)
		}
		return err
	})
	c.apply(nodeObject("other2", "172.30.9.2"))
	c.wantProblem("clusterconfig default: all subnets of 10.1.0.0/22 in subnets of /24 are taken (1 of them is quarantined); add a range")
	c.weft("", "delete", "node", "other1", "other2").want(t, 0)

	if err := c.lab.Kill("node2"); err != nil {
		t.Fatal(err)
	}
	if err := c.lab.Start(t.Context(), "node2"); err != nil {
		t.Fatal(err)
	}
	after, err := get[*networkv1.HostSubnet](c, r, api.HostSubnet, "node2")
	if err != nil {
		t.Fatal(err)
	}
	if after.Subnet != before.Subnet {
		t.Errorf("node2 came back with %s instead of %s", after.Subnet, before.Subnet)
	}
	for _, node := range []string{"node1", "node3"} {
		c.wantWay(node, before.Subnet, "172.30.0.12", true)
	}
	c.mustSee("pod/here", there, here)
	c.mustSee("pod/there", here, there)
	c.eventually(func() error {
		if s := c.weft("", "status"); s.code != 0 {
			return fmt.Errorf("weft status ends with %d:\n%s", s.code, s.stdout)
		}
		return nil
	})
}

// TestGhost lets an administrator add an appliance that no agent stands
// behind.
func TestGhost(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2})
	r := c.registry()
	const address = "172.30.0.200"
	c.apply(`apiVersion: network.openshift.io/v1
kind: HostSubnet
metadata:
  name: appliance
  annotations: {pod.network.openshift.io/assign-subnet: "true"}
host: appliance
hostIP: ` + address + "\n")
	var subnet string
	c.eventually(func() error {
		hs, err := get[*networkv1.HostSubnet](c, r, api.HostSubnet, "appliance")
		if err != nil {
			return err
		}
		if subnet = hs.Subnet; subnet == "" {
			return errors.New("the appliance has no subnet yet")
		}
		return nil
	})
	for _, node := range c.lab.Nodes() {
		c.wantWay(node, subnet, address, true)
	}
	c.weft("", "status").want(t, 0)

	// The packets that a node sends are those of an overlay that ends there:
	// the appliance answers to the MAC address made of its own.
	c.mustExec("node/node1", "sh", "-ec", "bridge fdb show | grep -q '0a:58:ac:1e:00:c8 dev weft-vxlan dst "+address+"'")

	c.weft("", "delete", "hostsubnet", "appliance").want(t, 0)
	for _, node := range c.lab.Nodes() {
		c.wantWay(node, subnet, address, false)
	}
	c.weft("", "status").want(t, 0)
}

// wantWay waits until a node has, or has not, a route to a subnet and a tunnel
// to an address.
func (c *cluster) wantWay(node, subnet, address string, want bool) {
	c.Helper()
	c.eventually(func() error {
		text := c.holds(node)
		route, tunnel := strings.Contains(text, subnet+" via "), strings.Contains(text, "dst "+address+" ")
		if route != want || tunnel != want {
			return fmt.Errorf("%s: a route to %s: %t, a tunnel to %s: %t, both should be %t\n%s", node, subnet, route, address, tunnel, want, text)
		}
		return nil
	})
}

// wantProblem waits until weft status says that something is wrong.
func (c *cluster) wantProblem(line string) {
	c.Helper()
	c.eventually(func() error {
		if s := c.weft("", "status"); s.code != 1 || !strings.Contains(s.stdout, line) {
			return fmt.Errorf("weft status ends with %d and lacks %q:\n%s%s", s.code, line, s.stdout, s.stderr)
		}
		return nil
	})
}
