package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/registry"
)

// TestAddressChange gives a node another address while pods talk: all that
// names the address follows, pods keep theirs and their connections.
func TestAddressChange(t *testing.T) {
	hostGW := lab.Options{Plugin: "flannel", Objects: []lab.Object{flannelConfig(`{"Network": "10.5.0.0/16", "Backend": {"Type": "host-gw"}}`)}}
	for name, o := range map[string]lab.Options{
		"openshift-subnet": {Plugin: "openshift-subnet"},
		"flannel vxlan":    {Plugin: "flannel"},
		"flannel host-gw":  hostGW,
	} {
		o.Nodes = 2
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changeAddress(t, o)
		})
	}
}

func changeAddress(t *testing.T, o lab.Options) {
	c := up(t, o)
	const before, after = "172.30.0.11", "172.30.7.11"
	moving, staying := c.run("moving", "node1")[0], c.run("staying", "node2")[0]
	server := c.run("echo", "node2", self, "echo")[0]
	c.listens("echo")
	c.mustSee("pod/moving", staying, moving)
	c.mustSee("pod/staying", moving, staying)
	conversation := c.converse("pod/moving", server)
	conversation.exchange('a')

	c.mustExec("node/node1", "sh", "-ec", "ip addr del "+before+"/16 dev eth0; ip addr add "+after+"/16 dev eth0; ip route replace default via 172.30.0.1")

	r := c.registry()
	c.eventually(func() error {
		node, err := get[*corev1.Node](c, r, api.Node, "node1")
		if err != nil {
			return err
		}
		if got, want := api.NodeAddresses(node), []netip.Addr{netip.MustParseAddr(after)}; !slices.Equal(got, want) {
			return fmt.Errorf("Node node1 has the addresses %v", got)
		}
		return c.published(r, o.Plugin, before, after)
	})
	conversation.exchange('b')
	c.mustSee("pod/moving", staying, moving)
	c.mustSee("pod/staying", moving, staying)
	if _, _, err := c.reach("node/node2", moving); err != nil {
		t.Error(err)
	}
	c.mustSee("pod/moving", lab.Outside, netip.MustParseAddr(after))
	conversation.end()
	for _, node := range c.lab.Nodes() {
		c.eventually(func() error {
			_, plan := ask(t, c.runDir(node), "/plan")
			if text := c.holds(node) + plan; containsAddress(text, before) {
				return fmt.Errorf("%s still has %s:\n%s", node, before, text)
			}
			return nil
		})
	}
	c.eventually(func() error {
		if s := c.weft("", "status"); s.code != 0 {
			return fmt.Errorf("weft status ends with %d:\n%s%s", s.code, s.stdout, s.stderr)
		}
		return nil
	})
}

// published says whether the plug-in's object names the address that node1
// has after the change.
func (c *cluster) published(r registry.Registry, plugin, before, after string) error {
	if plugin == "openshift-subnet" {
		hs, err := get[*networkv1.HostSubnet](c, r, api.HostSubnet, "node1")
		if err == nil && hs.HostIP != after {
			err = fmt.Errorf("HostSubnet node1 has the hostIP %s", hs.HostIP)
		}
		return err
	}
	leases, _, err := r.List(c.Context(), flannel.LeaseKind)
	if err != nil {
		return err
	}
	var have []string
	for _, o := range leases {
		a, err := flannel.ParseAttributes(o.(*flannel.Lease).Spec)
		if err != nil {
			return err
		}
		have = append(have, a.PublicIP.String())
	}
	if len(have) != len(c.lab.Nodes()) || !slices.Contains(have, after) || slices.Contains(have, before) {
		return fmt.Errorf("the leases are those of %v", have)
	}
	return nil
}

func containsAddress(text, address string) bool {
	return slices.ContainsFunc(strings.FieldsFunc(text, func(r rune) bool { return !strings.ContainsRune("0123456789abcdef.:", r) }),
		func(word string) bool { return word == address })
}

// TestNodeHasAddressOfPod gives a node the next free address of its pods' subnet: the pod
// that starts at once gets another, and is reached. What the node gets later, while a pod
// has it, the node tells.
func TestNodeHasAddressOfPod(t *testing.T) {
	c := up(t, lab.Options{Plugin: "openshift-subnet", Nodes: 1})
	first := c.run("first", "node1")[0]
	next := first.Next()
	c.mustExec("node/node1", "ip", "address", "add", next.String()+"/32", "dev", "lo")
	second := c.run("second", "node1")[0]
	if second == next {
		t.Fatalf("the node has %s, and so has the pod", next)
	}
	c.mustSee("pod/first", second, first)
	c.mustExec("node/node1", "ip", "address", "add", second.String()+"/32", "dev", "lo")
	c.eventually(func() error {
		if said := c.weft("", "status"); said.code == 0 || !strings.Contains(said.stdout, second.String()) {
			return fmt.Errorf("status does not name %s: %s", second, said.stdout)
		}
		return nil
	})
}
