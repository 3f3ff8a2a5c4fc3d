package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/internal/await"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/trace"
)

// liveAnswer is what weft why --live says in JSON.
type liveAnswer struct {
	explain.Answer
	Live trace.Report `json:"live"`
}

// live asks with a real packet.
func (c *cluster) live(code int, args ...string) liveAnswer {
	c.Helper()
	said := c.weft("", append([]string{"why", "--live", "-o", "json"}, args...)...)
	var a liveAnswer
	if err := json.Unmarshal([]byte(said.stdout), &a); err != nil || said.code != code {
		c.Fatalf("weft why --live %v ends with %d and says\n%s%s", args, said.code, said.stdout, said.stderr)
	}
	return a
}

// is fails the test unless a live answer is as it should be.
func (a liveAnswer) is(t testing.TB, agree bool, answer trace.Answer, words ...string) {
	t.Helper()
	text := a.Live.String()
	ok := a.Live.Agree == agree && a.Live.Answer == answer
	for _, w := range words {
		ok = ok && strings.Contains(text, w)
	}
	if !ok {
		t.Errorf("agree is to be %t, the answer %q, and the text to have %q:\n%s%s", agree, answer, words, a.Answer.Verbose(), text)
	}
}

// TestLive follows real packets: delivered, refused, denied by a policy, dropped
// by somebody else's table on either node, and lost. Nothing is left behind,
// also by who is killed.
func TestLive(t *testing.T) {
	c := up(t, lab.Options{Nodes: 2, IPv6: true, Plugin: "openshift-networkpolicy"})
	for _, p := range []lab.Pod{{Name: "web", Node: "node1"}, {Name: "near", Node: "node1"}, {Name: "db", Node: "node2", Labels: map[string]string{"app": "db"}}} {
		if _, err := c.lab.Run(c.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	node1, node2 := place("node/node1"), place("node/node2")

	for _, args := range [][]string{{"web", "db"}, {"web", "near"}, {"web", "db", "-6"}, {"web", "db", "--protocol", "udp"}, {"web", "db", "-6", "--protocol", "udp"},
		{"web", "db", "--protocol", "icmp"}, {"web", "near", "-6", "--protocol", "icmp"}, {"node1", "db"}, {"node1", "web", "-6"}, {"web", "web"}, {"web", "127.0.0.1:8080"}} {
		c.live(0, args...).is(t, true, trace.Accepted)
	}
	c.live(0, "web", "db:81").is(t, true, trace.Refused, "delivered to default/db on node2", "and back:")
	c.live(0, "web", "node2:9").is(t, true, trace.Refused, "delivered to node2 itself")
	c.live(0, "web", "node2", "--protocol", "icmp").is(t, true, trace.Accepted, "delivered to node2 itself")
	c.live(0, "web", lab.Outside.String()+":9").is(t, true, trace.Refused, "left node1 with other addresses", "the node's address becomes the source")
	c.live(1, "web", "10.1.200.1:80").is(t, true, trace.Unreachable, "lost within the kernel of node1")

	// Somebody else's table, on the sender's node and on the receiver's.
	for _, node := range []place{node1, node2} {
		c.mustExec(node, "nft", `add table ip other; add chain ip other f { type filter hook forward priority 10; }; add rule ip other f tcp dport 8080 drop comment "not this"`)
		name := strings.TrimPrefix(string(node), "node/")
		c.live(1, "web", "db").is(t, false, trace.Silence,
			"dropped on "+name+` by "not this" of chain f in table ip other (forward)`, "table ip other is not Weft's")
		c.live(0, "web", "db:81").is(t, true, trace.Refused)
		c.mustExec(node, "nft", "delete table ip other")
	}
	c.mustExec(node2, "nft", `add table ip other; add chain ip other f { type filter hook forward priority 10; }; add rule ip other f tcp sport 8080 drop`)
	c.live(1, "web", "db").is(t, false, trace.Silence, "live: delivered to default/db on node2", "and back:",
		`the answer was dropped on node2 by "tcp sport 8080 drop" of chain f in table ip other (forward); table ip other is not Weft's`)
	c.mustExec(node2, "nft", "delete table ip other")

	// In the packet of the tunnel, on either node.
	for _, drop := range []struct {
		node        place
		chain, rule string
		where       string
	}{
		{node1, "{ type filter hook output priority 10; }", "udp dport 4789 drop", "(output)"},
		{node2, "{ type filter hook input priority 10; }", "udp dport 4789 drop", "(input)"},
		{node1, "{ type filter hook egress device eth0 priority 0; }", "udp dport 4789 drop", "(egress)"},
	} {
		table := "inet other"
		if strings.Contains(drop.chain, "egress") {
			table = "netdev other"
		}
		c.mustExec(drop.node, "nft", fmt.Sprintf("add table %s; add chain %[1]s f %s; add rule %[1]s f %[3]s", table, drop.chain, drop.rule))
		name := strings.TrimPrefix(string(drop.node), "node/")
		for _, protocol := range []string{"tcp", "udp", "icmp"} {
			// The exit code is 2 where a node's conditions change with the rule.
			var a liveAnswer
			said := c.weft("", "why", "--live", "-o", "json", "web", "db", "--protocol", protocol)
			if err := json.Unmarshal([]byte(said.stdout), &a); err != nil || said.code == 0 {
				t.Fatalf("it ends with %d: %v: %s%s", said.code, err, said.stdout, said.stderr)
			}
			if want := "dropped on " + name + ` in the tunnel's packet by "udp dport 4789 drop" of chain f in table ` + table + " " + drop.where; a.Live.Outcome != want {
				t.Errorf("it is said, instead of %q:\n%s", want, a.Live)
			}
		}
		c.mustExec(drop.node, "nft", "delete table "+table)
	}

	// By the first rule of all.
	c.mustExec(node2, "nft", "add table ip other; add chain ip other f { type filter hook prerouting priority -500; }; add rule ip other f iifname weft-vxlan drop")
	c.live(1, "web", "db").is(t, false, trace.Silence, `dropped on node2 by "iifname \"weft-vxlan\" drop" of chain f in table ip other (prerouting)`)
	c.mustExec(node2, "nft", "delete table ip other")

	// To where somebody else's table translates it.
	a := c.live(0, "web", "db")
	c.mustExec(node2, "nft", fmt.Sprintf("add table ip other; add chain ip other f { type nat hook prerouting priority -100; }; add rule ip other f ip saddr %s tcp dport 8080 dnat to %s:9999", a.Source.Address, a.Destination.Address))
	c.live(1, "web", "db").is(t, false, trace.Refused, fmt.Sprintf("live: translated on node2 to %s:9999 by ", a.Destination.Address),
		"chain f in table ip other (prerouting), and then passed all rules on its way to", "which is pod default/db's", "interpreter and kernel differ")
	c.mustExec(node2, "nft", "delete table ip other")

	// Lost without a rule that the kernel could trace: by one before the first that it
	// traces, by routing.
	c.mustExec(node2, "nft", `add table netdev cut; add chain netdev cut in { type filter hook ingress device eth0 priority 0; }; add rule netdev cut in udp dport 4789 drop`)
	c.live(1, "web", "db").is(t, false, trace.Silence, "node2  came in through the tunnel", "was not taken out of it: lost before Weft could look, where chain in of table netdev cut (ingress)")
	c.mustExec(node2, "nft", "delete table netdev cut")
	c.live(0, "web", "255.255.255.255:9", "--protocol", "udp").is(t, true, trace.Silence, "delivered to node1 itself")
	hole := " pref 5 to " + a.Destination.Address.String() + " blackhole"
	c.mustExec(node2, "sh", "-c", "ip rule add"+hole)
	c.live(1, "web", "db").is(t, false, trace.Silence, "lost within the kernel of node2")
	c.mustExec(node2, "sh", "-c", "ip rule del"+hole)
	hole = " pref 5 to " + a.Source.Address.String() + " blackhole"
	c.mustExec(node1, "sh", "-c", "ip rule add"+hole)
	c.live(1, "web", "db").is(t, false, trace.Silence, "live: delivered to default/db on node2", "the answer was lost within the kernel of node1, which no rule of nftables did")
	c.mustExec(node1, "sh", "-c", "ip rule del"+hole)

	// To somebody else than whom it was sent to: to the node itself, which has the pod's
	// address, too, and past the tunnel.
	c.mustExec(node2, "ip", "address", "add", a.Destination.Address.String()+"/32", "dev", "lo")
	c.live(1, "web", "db").is(t, false, trace.Refused, "live: delivered to node2 itself", "by the plans: delivered to default/db on node2")
	c.mustExec(node2, "ip", "address", "del", a.Destination.Address.String()+"/32", "dev", "lo")
	c.mustExec(node1, "ip", "route", "add", a.Destination.Address.String(), "via", lab.Outside.String())
	c.live(1, "web", "db").is(t, false, trace.Silence, "live: led past the tunnel: it left node1 on eth0 and not in the tunnel to node2")
	c.mustExec(node1, "ip", "route", "del", a.Destination.Address.String())

	// A node that noticed what dropped its packets says so for a while, and nothing is
	// certain of it meanwhile.
	await.NoError(t, 2*time.Minute, "no node has a problem any more", func() error {
		if said := c.weft("", "status"); said.code != 0 {
			return fmt.Errorf("weft status: %s", said.stdout)
		}
		return nil
	})

	// Policies: the interpreter's denial and the kernel's are the same one.
	c.apply(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}
`)
	c.eventually(func() error {
		if said := c.weft("", "policy", "status", "networkpolicy/closed"); said.code != 0 {
			return fmt.Errorf("the policy is not in force: %s", said.stdout)
		}
		return nil
	})
	denied := c.live(1, "web", "db")
	denied.is(t, true, trace.Silence, "dropped on node2", "table inet weft-policy")
	if denied.Verdict != explain.Denied {
		t.Errorf("the verdict is %s", denied.Verdict)
	}
	for _, n := range []place{node1, node2} {
		c.noTraces(n)
	}

	// Two at once, one of which is denied.
	said := make(chan liveAnswer)
	go func() { said <- c.live(0, "web", "near") }()
	c.live(1, "web", "db").is(t, true, trace.Silence, "table inet weft-policy")
	(<-said).is(t, true, trace.Accepted, "delivered to default/near on node1")

	// Whoever is killed leaves nothing: who asks, an agent, and the pod that sends.
	// What an agent did not say before is not known.
	for _, kill := range []struct {
		end  func(asking *os.Process) error
		node string
		want []string
	}{
		{func(asking *os.Process) error { return asking.Kill() }, "", nil},
		{func(*os.Process) error { return c.lab.Kill("node2") }, "node2", []string{"warning: node node2: "}},
		{func(*os.Process) error { return c.lab.Kill("node1") }, "node1", []string{"error: node node1, which sends: "}},
		{func(*os.Process) error { return c.lab.Delete(t.Context(), "", "web") }, "", nil},
	} {
		asking := exec.Command(bin+"weft", "why", "--live", "web", "db")
		asking.Env = append(os.Environ(), lab.DirVariable+"="+c.dir)
		var out strings.Builder
		asking.Stdout, asking.Stderr = &out, &out
		if err := asking.Start(); err != nil {
			t.Fatal(err)
		}
		c.eventually(func() error {
			if tables := c.mustExec(node2, "nft", "list", "tables"); !strings.Contains(tables, "weft-trace") {
				return errors.New("node2 does not look for a probe yet")
			}
			return nil
		})
		if err := kill.end(asking.Process); err != nil {
			t.Fatal(err)
		}
		asking.Wait()
		for _, n := range []place{node1, node2} {
			c.noTraces(n)
		}
		for _, w := range kill.want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s's agent was killed, and it is not said that %q:\n%s", kill.node, w, out.String())
			}
		}
		if strings.Contains(out.String(), "lost between") {
			t.Errorf("what nobody told is called lost:\n%s", out.String())
		}
		if kill.node != "" {
			if err := c.lab.Start(t.Context(), kill.node); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// noTraces waits until nothing of a probe is on a node.
func (c *cluster) noTraces(node place) {
	c.Helper()
	c.eventually(func() error {
		if tables := c.mustExec(node, "nft", "list", "tables"); strings.Contains(tables, "weft-trace") {
			return fmt.Errorf("%s keeps a table: %s", node, tables)
		}
		return nil
	})
}

// TestLiveNames follows real packets to where nodes answer themselves: at the addresses at which
// pods ask for names, and at their own.
func TestLiveNames(t *testing.T) {
	c := up(t, lab.Options{Nodes: 2, DNS: true, IPv6: true, Plugin: "openshift-networkpolicy"})
	for _, p := range []lab.Pod{{Name: "web", Node: "node1"}, {Name: "shut", Node: "node2", Labels: map[string]string{"app": "shut"}}} {
		if _, err := c.lab.Run(c.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	servers := c.nameServers()
	for _, from := range []string{"web", "node1"} {
		c.eventually(func() error { // once its name server runs
			if a := c.weft("", "why", from, servers[0]+":53"); !strings.Contains(a.stdout, "answered by node1 itself") {
				return fmt.Errorf("from %s: %s%s", from, a.stdout, a.stderr)
			}
			return nil
		})
		for _, server := range servers {
			c.live(0, from, netip.AddrPortFrom(netip.MustParseAddr(server), 53).String()).is(t, true, trace.Accepted, "delivered to node1 itself")
		}
		// What is no question is not answered.
		c.live(0, from, "svc/kube-system/kube-dns:53", "--protocol", "udp").is(t, true, trace.Silence, "delivered to node1 itself")
	}
	for _, own := range []string{"node1:9", "127.0.0.1:9"} {
		c.live(0, "node1", own).is(t, true, trace.Refused, "delivered to node1 itself")
	}
	c.apply("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: nothing, namespace: default}, " +
		"spec: {podSelector: {matchLabels: {app: shut}}, policyTypes: [Egress]}}")
	c.planHas("node2", "NetworkPolicy default/nothing")
	c.live(1, "shut", servers[0]+":53").is(t, true, trace.Silence, "dropped on node2 by", "in table inet weft-policy")
	c.mustExec("node/node1", "nft", `add table ip other; add chain ip other f { type filter hook input priority 10; }; add rule ip other f tcp dport 53 drop`)
	for _, from := range []string{"web", "node1"} {
		c.live(1, from, servers[0]+":53").is(t, false, trace.Silence, `dropped on node1 by "tcp dport 53 drop" of chain f in table ip other (input)`, "table ip other is not Weft's")
	}
}
