package cluster

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/weftnet/weft/lab"
)

// wantReady waits until the agent says that pods can be networked.
func (a *loneAgent) wantReady() {
	a.t.Helper()
	eventually(a.t, func() error {
		if ok, said := ask(a.t, a.runDir, "/readyz"); !ok {
			return fmt.Errorf("the agent is not ready: %s", said)
		}
		return nil
	})
}

// TestNodeWithoutIPv6 has nodes on which IPv6 is turned off, as on many
// servers. Where nobody asked for IPv6, nothing is said of it; where somebody
// did, that is said, and what there is of IPv4 works.
func TestNodeWithoutIPv6(t *testing.T) {
	const noIPv6 = "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1\n"
	for name, ipv6 := range map[string]bool{"in a cluster without": false, "in a cluster with": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := up(t, lab.Options{Nodes: 1, IPv6: ipv6})
			a := startAgent(t, noIPv6+oneAddress, "--node-name", "old", "--etcd-endpoints", c.lab.Endpoint())
			a.wantReady()
			if ipv6 {
				c.wantProblem(" on this node: IPv6 is turned off: set net.ipv6.conf.all.disable_ipv6 to 0")
			} else {
				c.weft("", "status").want(t, 0)
			}
			if strings.Contains(a.log.String(), "level=ERROR") || strings.Count(a.log.String(), "IPv6") > 3 {
				t.Errorf("the agent's log:\n%s", a.log)
			}
		})
	}
}

// TestWhatOthersChange has another program take away what is Weft's, on a node
// whose agent looks for that by itself but once an hour. It is put right at
// once; one that does so again and again is named.
func TestWhatOthersChange(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 1})
	a := startAgent(t, oneAddress, "--node-name", "stirred", "--etcd-endpoints", c.lab.Endpoint(), "--repair-every", "1h")
	a.wantReady()
	c.weft("", "status").want(t, 0)
	do := func(command string) { run(t, nsenter(a.pid, "sh", "-ec", command), "").want(t, 0) }
	state := func() string {
		r := run(t, nsenter(a.pid, "sh", "-ec", `nft -s list table inet weft | grep -v packets
ip route show table all proto 87
ip -br link show dev weft-vxlan
ip -br addr show dev weft0`), "")
		return r.stdout
	}
	before := state()
	for _, what := range []string{"nft flush ruleset", "nft delete table inet weft", "ip route flush proto 87", "ip link set weft-vxlan down",
		"ip link del weft-vxlan", "ip addr flush dev weft0", "ip link del weft0"} {
		do(what)
		eventually(t, func() error {
			if now := state(); now != before {
				return fmt.Errorf("after %q the node has\n%s\nand not\n%s", what, now, before)
			}
			return nil
		})
	}
	for range 40 {
		do("nft delete table inet weft || true; sleep 0.1")
	}
	c.wantProblem("repair: others keep changing what is Weft's, the last time nftables table inet weft, by nft (process ")
}

// TestVirtualAddress has a virtual address come and go on the uplink, and a
// better default route by another: neither becomes the node's own address,
// while it runs or when it starts anew.
func TestVirtualAddress(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 1})
	const setup = `ip link set lo up
ip link add eth0 type veth peer name peer0
ip addr add 172.30.0.100/32 dev eth0
ip addr add 172.30.0.99/16 dev eth0
ip link set eth0 up
ip link set peer0 up
ip route add default via 172.30.0.1 metric 100
`
	a := startAgent(t, setup, "--node-name", "virtual", "--etcd-endpoints", c.lab.Endpoint())
	a.wantReady()
	own := func() {
		t.Helper()
		c.weft("", "get", "node", "virtual", "-o", "yaml").want(t, 0, "address: 172.30.0.99")
		if s := run(t, nsenter(a.pid, "ip", "-d", "link", "show", "weft-vxlan"), ""); !strings.Contains(s.stdout, "local 172.30.0.99") {
			t.Errorf("the tunnel is\n%s", s.stdout)
		}
	}
	own()
	do := func(command string) { run(t, nsenter(a.pid, "sh", "-ec", command), "").want(t, 0) }
	do(`ip addr del 172.30.0.100/32 dev eth0; ip addr add 172.30.0.101/32 dev eth0
ip link add eth1 type veth peer name peer1; ip addr add 172.31.0.99/16 dev eth1; ip link set eth1 up; ip link set peer1 up
ip route add default via 172.31.0.1 metric 1
ip link add mark type veth peer name peer2; ip link set mark up`)
	// What the agent sees last, it sees with all of that.
	do("ip link set eth0 mtu 1400")
	eventually(t, func() error {
		if s := run(t, nsenter(a.pid, "ip", "link", "show", "weft-vxlan"), ""); !strings.Contains(s.stdout, "mtu 1350") {
			return fmt.Errorf("the tunnel is\n%s", s.stdout)
		}
		return nil
	})
	eventually(t, func() error {
		if !strings.Contains(a.log.String(), "mtu=1400") {
			return fmt.Errorf("the agent has not looked yet:\n%s", a.log)
		}
		return nil
	})
	own()
}

// TestAnothersFirewall has a firewall on a node that drops what is forwarded,
// as docker sets it. It is said, and what is said to do about it helps at once.
func TestAnothersFirewall(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("iptables"); err != nil {
		t.Skip("needs iptables")
	}
	c := up(t, lab.Options{Nodes: 1})
	a := startAgent(t, "iptables -P FORWARD DROP\n"+oneAddress, "--node-name", "docked", "--etcd-endpoints", c.lab.Endpoint(), "--repair-every", "1h")
	a.wantReady()
	c.wantProblem("obstacle: chain FORWARD of nftables table ip filter drops what pods send and get; let it through: iptables -I FORWARD -i weft+ -j ACCEPT")
	run(t, nsenter(a.pid, "sh", "-ec", "iptables -I FORWARD -i weft+ -j ACCEPT; iptables -I FORWARD -o weft+ -j ACCEPT"), "").want(t, 0)
	c.eventually(func() error {
		if s := c.weft("", "status"); s.code != 0 {
			return fmt.Errorf("weft status ends with %d:\n%s", s.code, s.stdout)
		}
		return nil
	})
}
