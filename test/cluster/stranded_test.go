package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
)

// TestSubnetLostUnderPods deletes the subnet of a node that has pods, while no controller is
// there to give it another, and kills its agent. What the node has stays with the pods until
// the last of them is gone, and the node says why. It gets a subnet from the controller.
func TestSubnetLostUnderPods(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 1, EtcdApart: true})
	here, there := c.run("here", "node1")[0], c.run("there", "node1")[0]
	holds := func() string {
		t.Helper()
		return c.mustExec("node/node1", "sh", "-ec", "ip route show table all; ip rule; ip neigh show nud permanent; ip -brief link; ip -brief address")
	}
	// The node's own interface has its routes once the kernel knows that nobody else has its
	// address (RFC 4862, section 5.4).
	c.eventually(func() error {
		if tentative := c.mustExec("node/node1", "ip", "-6", "address", "show", "tentative"); tentative != "" {
			return fmt.Errorf("there is still %s", tentative)
		}
		return nil
	})
	had := holds()
	check := func() {
		t.Helper()
		c.mustSee("pod/here", there, here)
		if has := holds(); has != had {
			t.Fatalf("the node had\n%s\nand has\n%s", had, has)
		}
	}
	says := func(words string) {
		t.Helper()
		c.eventually(func() error {
			if ok, said := c.ready("node1"); ok || !strings.Contains(said, words) {
				return fmt.Errorf("ready: %t: %s", ok, said)
			}
			return nil
		})
	}
	if err := c.lab.Kill("controller1"); err != nil {
		t.Fatal(err)
	}
	if err := c.registry().Delete(t.Context(), api.HostSubnet, registry.Key{Name: "node1"}, ""); err != nil {
		t.Fatal(err)
	}
	const lost = "by it node node1 has no subnet, and pods live on the network that it has "
	both := fmt.Sprintf("(default/here %s, default/there %s)", here, there)
	says(lost + both)
	check()

	if err := c.lab.Kill("node1"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan error, 1)
	go func() { started <- c.lab.Start(ctx, "node1") }() // returns once pods can be networked
	says(lost + both)
	check()
	c.wantStatus(1, lost+both, "hostsubnet node1: there is none yet")
	if a := c.sandbox("node1", "late").cni("ADD"); a.Code != 11 || !strings.Contains(a.Details, lost) {
		t.Errorf("ADD without a subnet: %+v", a)
	}

	for _, last := range []struct{ pod, says string }{{"here", lost + fmt.Sprintf("(default/there %s)", there)}, {"there", "the node has no subnet yet"}} {
		if err := c.lab.Delete(t.Context(), "", last.pod); err != nil {
			t.Fatal(err)
		}
		says(last.says)
	}
	if out, err := c.exec("node/node1", "ip", "link", "show", "dev", "weft0"); err == nil {
		t.Errorf("the last pod is gone, and the node has\n%s", out)
	}
	if err := c.lab.Start(t.Context(), "controller1"); err != nil {
		t.Fatal(err)
	}
	if err := <-started; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	cancel()
	c.run("here", "node1")
	c.wantStatus(0, "No problems.")
}
