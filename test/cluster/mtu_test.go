package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/weftnet/weft/lab"
)

// TestMTU sends packets of full size that may not be fragmented: they pass,
// and larger ones are not even sent.
func TestMTU(t *testing.T) {
	for name, story := range map[string]struct {
		options lab.Options
		mtu     int
	}{
		"flannel host-gw": {lab.Options{Plugin: "flannel",
			Objects: []lab.Object{flannelConfig(`{"Network": "10.5.0.0/16", "Backend": {"Type": "host-gw"}}`)}}, 1500},
		"jumbo frames, both families": {lab.Options{MTU: 9000, IPv6: true}, 8950},
		"flannel vxlan":               {lab.Options{Plugin: "flannel"}, 1450},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			story.options.Nodes = 2
			c := up(t, story.options)
			here, there := c.run("here", "node1"), c.run("there", "node2")
			near := c.run("near", "node1")
			for _, pod := range []string{"here", "there"} {
				c.wantMTU(pod, story.mtu)
			}
			for i := range here {
				c.probe("here", there[i], story.mtu)
				c.probe("there", here[i], story.mtu)
				c.probe("here", near[i], story.mtu)
			}
		})
	}
	t.Run("openshift-subnet, and as the ClusterConfig says", func(t *testing.T) {
		t.Parallel()
		c := up(t, lab.Options{Nodes: 2})
		here, there := c.run("here", "node1")[0], c.run("there", "node2")[0]
		c.wantMTU("here", 1450)
		c.probe("here", there, 1450)
		c.probe("there", here, 1450)

		const config = "apiVersion: weft.network/v1\nkind: ClusterConfig\nmetadata: {name: default}\nspec: {mtu: %d}\n"
		c.weft(fmt.Sprintf(config, 500), "apply", "-f", "-").want(c, 2, "nothing was changed", "spec.mtu", "must be between 576 and 65535")
		c.apply(fmt.Sprintf(config, 1400))
		for _, node := range c.lab.Nodes() {
			c.planHas(node, " mtu 1400\n")
		}
		// Pods that run take it as well, one that has less in between and one
		// that has more.
		for _, pod := range []string{"here", "there"} {
			c.eventually(func() error { return c.hasMTU(pod, 1400) })
		}
		c.probe("here", there, 1400)
		c.weft("", "status").want(c, 0)
		for _, node := range c.lab.Nodes() {
			c.run("new-"+node, node)
			c.wantMTU("new-"+node, 1400)
		}
		addresses, err := c.lab.Addresses("", "new-node2")
		if err != nil {
			t.Fatal(err)
		}
		c.probe("new-node1", addresses[0], 1400)

		// More than the nodes' network can carry is said, and not done.
		c.apply(fmt.Sprintf(config, 9000))
		c.eventually(func() error {
			s := c.weft("", "status")
			if want := "mtu 9000 is more than node node1 can carry in tunnels; its pods get 1450"; s.code != 1 || !strings.Contains(s.stdout, want) {
				return fmt.Errorf("weft status ends with %d and lacks %q:\n%s", s.code, want, s.stdout)
			}
			return nil
		})
		for _, node := range c.lab.Nodes() {
			c.planHas(node, " mtu 1450\n")
		}
		c.run("last", "node1")
		c.wantMTU("last", 1450)
		c.eventually(func() error { return c.hasMTU("here", 1450) })

		// What somebody does to the node's end of a pod's interface is put right
		// with the next repair: of what the pod sends, it would drop what is larger.
		links := strings.Fields(c.mustExec(place("node/node1"), "sh", "-c", "ip -o link show type veth | sed -n 's/^[0-9]*: \\(weft[^@]*\\)@.*/\\1/p'"))
		if len(links) == 0 {
			t.Fatal("node1 has no pods' interfaces")
		}
		for _, link := range links {
			c.mustExec(place("node/node1"), "ip", "link", "set", link, "mtu", "600")
		}
		// Of this the kernel tells, so that the repair is now.
		c.mustExec(place("node/node1"), "ip", "rule", "flush", "protocol", "87")
		for _, link := range links {
			c.eventually(func() error {
				if out := c.mustExec(place("node/node1"), "ip", "link", "show", link); !strings.Contains(out, " mtu 1450 ") {
					return fmt.Errorf("the MTU of the node's end was not put right: %s", out)
				}
				return nil
			})
		}
		c.probe("here", there, 1450)

		// So do all when the nodes' network changes, and the tunnel, and all
		// when the agent was away meanwhile.
		for _, node := range c.lab.Nodes() {
			c.mustExec(place("node/"+node), "ip", "link", "set", "eth0", "mtu", "1300")
		}
		c.eventually(func() error { return errors.Join(c.hasMTU("here", 1250), c.hasMTU("there", 1250)) })
		c.probe("here", there, 1250)
		if err := c.lab.Kill("node1"); err != nil {
			t.Fatal(err)
		}
		c.mustExec("node/node1", "ip", "link", "set", "eth0", "mtu", "1200")
		if err := c.lab.Start(t.Context(), "node1"); err != nil {
			t.Fatal(err)
		}
		c.eventually(func() error { return errors.Join(c.hasMTU("here", 1150), c.hasMTU("last", 1150)) })

		// The others' pods send what no longer comes to node1, and it is said until
		// all send less.
		c.apply(fmt.Sprintf(config, 0))
		c.eventually(func() error {
			s := c.weft("", "status")
			if want := "mtu: pods of node1 have 1150 bytes, those of node2 1250: "; s.code != 1 || !strings.Contains(s.stdout, want) {
				return fmt.Errorf("weft status ends with %d and lacks %q:\n%s", s.code, want, s.stdout)
			}
			return nil
		})
		c.apply(fmt.Sprintf(config, 1150))
		c.eventually(func() error { return c.hasMTU("there", 1150) })
		c.probe("there", here, 1150)
		c.eventually(func() error {
			if s := c.weft("", "status"); s.code != 0 {
				return fmt.Errorf("weft status ends with %d:\n%s", s.code, s.stdout)
			}
			return nil
		})
	})
}

func (c *cluster) wantMTU(pod string, want int) {
	c.Helper()
	if err := c.hasMTU(pod, want); err != nil {
		c.Error(err)
	}
}

func (c *cluster) hasMTU(pod string, want int) error {
	c.Helper()
	if got := strings.TrimSpace(c.mustExec(place("pod/"+pod), "cat", "/sys/class/net/eth0/mtu")); got != fmt.Sprint(want) {
		return fmt.Errorf("eth0 of pod %s has an MTU of %s, not %d", pod, got, want)
	}
	return nil
}

func (c *cluster) probe(from string, to netip.Addr, size int) {
	c.Helper()
	target := netip.AddrPortFrom(to, lab.ServerPort).String()
	c.mustExec(place("pod/"+from), self, "probe", target, fmt.Sprint(size))
	if out, err := c.exec(place("pod/"+from), self, "probe", target, fmt.Sprint(size+1)); err == nil || !strings.Contains(out, "message too long") {
		c.Errorf("a packet of %d bytes was not refused: %v", size+1, err)
	}
}
