package cluster

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/weftnet/weft/lab"
)

// A connection that a policy comes to forbid ends for both sides, though both
// only wait for one another.
func TestWhoWaitsIsToldOfTheEnd(t *testing.T) {
	t.Parallel()
	for _, ipv6 := range []bool{false, true} {
		c := up(t, lab.Options{Nodes: 2, Plugin: "openshift-networkpolicy", IPv6: ipv6})
		web, err := c.lab.Run(t.Context(), lab.Pod{Name: "web", Node: "node1", Labels: map[string]string{"app": "web"}, Command: []string{self, "wait", "any"}})
		if err != nil {
			t.Fatal(err)
		}
		c.listens("web")
		to := netip.AddrPortFrom(web[len(web)-1], echoPort).String()
		// What Linux makes of the ICMP errors of both families.
		prohibited := "no route to host"
		if ipv6 {
			prohibited = "permission denied"
		}
		clients := map[string]string{}
		for _, network := range []string{"tcp", "udp"} {
			for _, node := range []string{"node1", "node2"} {
				name := network + "-" + node
				c.policyPod(name, node, "client", self, "wait", network, to)
				clients[name] = map[string]string{"tcp": "connection reset by peer", "udp": prohibited}[network]
			}
		}
		for name := range clients {
			c.says(name, "waiting", 1)
		}
		c.apply(fmt.Sprintf(isolateAll, "web"))
		for name, words := range clients {
			c.says(name, words, 1)
		}
		c.says("web", "connection reset by peer", 2)
	}
}

// listens waits until the server in a pod can be reached. That a pod runs does
// not say so where it runs another command than its default.
func (c *cluster) listens(pod string) {
	c.Helper()
	c.says(pod, listening, 1)
}

// says waits until a pod has said some words so many times.
func (c *cluster) says(pod, words string, times int) {
	c.Helper()
	c.eventually(func() error {
		s, err := c.lab.Status()
		if err != nil {
			return err
		}
		for _, p := range s.Pods {
			if p.Name == pod {
				b, err := os.ReadFile(p.Log)
				if err == nil && strings.Count(string(b), words) < times {
					err = fmt.Errorf("%s says:\n%s", pod, b)
				}
				return err
			}
		}
		return fmt.Errorf("there is no pod %s", pod)
	})
}

// An agent that is killed when it has ended a connection, and not told the two
// sides, leaves that to the next.
func TestTheNextAgentTellsOfTheEnd(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2, Plugin: "openshift-networkpolicy"})
	web := c.policyPod("web", "node1", "web", self, "wait", "any")
	c.listens("web")
	c.policyPod("other", "node1", "other")
	c.policyPod("client", "node2", "client", self, "wait", "tcp", netip.AddrPortFrom(web, echoPort).String())
	c.says("client", "waiting", 1)
	c.apply(fmt.Sprintf(isolateAll, "other")) // there are policies on the node
	c.planHas("node1", "NetworkPolicy default/isolate-other")
	if err := c.lab.Kill("node1"); err != nil {
		t.Fatal(err)
	}
	c.mustExec("node/node1", "sh", "-ec", fmt.Sprintf(`
entry=$(conntrack -L -p tcp --dport %d 2>/dev/null | head -n 1)
field() { echo "$entry" | tr ' ' '\n' | sed -n "s/^$1=//p" | head -n 1; }
there="$(field src) . $(field dst) . tcp . $(field sport) . $(field dport)"
back="$(field dst) . $(field src) . tcp . $(field dport) . $(field sport)"
nft add element inet weft-policy ended-4 "{ $there timeout 3h, $back timeout 3h }"
conntrack -D -p tcp --dport %d`, echoPort, echoPort))
	if err := c.lab.Start(t.Context(), "node1"); err != nil {
		t.Fatal(err)
	}
	c.says("client", "connection reset by peer", 1)
	c.says("web", "connection reset by peer", 1)
}

// wait waits for what never comes over connections: those of ANY, or over
// NETWORK to ADDRESS. When one ends it says why, and stays.
func wait(args []string) error {
	read := func(conn net.Conn) {
		b := make([]byte, 64)
		n, err := conn.Read(b)
		for ; err == nil; n, err = conn.Read(b) {
			fmt.Printf("got %q\n", b[:n])
		}
		fmt.Println(err)
	}
	if len(args) == 2 {
		conn, err := net.DialTimeout(args[0], args[1], fetchTimeout)
		if err == nil {
			_, err = conn.Write([]byte("!"))
		}
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		if err != nil {
			return err
		}
		fmt.Println("waiting")
		read(conn)
		select {}
	}
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", echoPort))
	if err != nil {
		return err
	}
	udp, err := net.ListenPacket("udp", fmt.Sprintf(":%d", echoPort))
	if err != nil {
		return err
	}
	fmt.Println(listening)
	failed := make(chan error, 2)
	go func() {
		for b := make([]byte, 64); ; {
			n, from, err := udp.ReadFrom(b)
			if err == nil {
				_, err = udp.WriteTo(b[:n], from)
			}
			if err != nil {
				failed <- err
				return
			}
		}
	}()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				failed <- err
				return
			}
			if _, err := conn.Write([]byte("!")); err != nil {
				failed <- err
				return
			}
			go read(conn)
		}
	}()
	return <-failed
}
