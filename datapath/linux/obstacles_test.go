package linux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/sysctl"
)

// TestObstacles has the rules of other programs that drop what is forwarded, or
// the tunnel packets of other nodes, as docker, ufw and firewalld write them. It
// is said which chain that is and how to let them through; what is said is done,
// and it is no obstacle any more. Rules that let pods through are none.
func TestObstacles(t *testing.T) {
	const ufwInput = `iptables -P INPUT DROP
iptables -N ufw-before-input
iptables -N ufw-not-local
iptables -N ufw-user-input
iptables -N ufw-after-input
iptables -A INPUT -j ufw-before-input
iptables -A INPUT -j ufw-after-input
iptables -A ufw-before-input -i lo -j ACCEPT
iptables -A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables -A ufw-before-input -m conntrack --ctstate INVALID -j DROP
iptables -A ufw-before-input -p icmp --icmp-type echo-request -j ACCEPT
iptables -A ufw-before-input -p udp --sport 67 --dport 68 -j ACCEPT
iptables -A ufw-before-input -j ufw-not-local
iptables -A ufw-before-input -d 224.0.0.251/32 -p udp --dport 5353 -j ACCEPT
iptables -A ufw-before-input -j ufw-user-input
iptables -A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN
iptables -A ufw-not-local -m addrtype --dst-type MULTICAST -j RETURN
iptables -A ufw-not-local -m limit --limit 3/min -j LOG
iptables -A ufw-not-local -j DROP
iptables -A ufw-user-input -p tcp --dport 22 -j ACCEPT
iptables -A ufw-after-input -m addrtype --dst-type BROADCAST -j DROP
`
	// input is a table of somebody's with a chain at that hook.
	input := func(policy, rules string) string {
		return "nft -f - <<X\ntable inet mine {\n\tset nodes { type ipv4_addr; flags interval; elements = { 172.30.0.0/29, 192.168.7.0/24 }; }\n" +
			"\tset strangers { type ipv4_addr; flags interval; elements = { 172.30.0.0-172.30.0.2, 172.30.0.5-172.30.0.99 }; }\n\tchain other {\n\t}\n" +
			"\tchain in {\n\t\ttype filter hook input priority 0; policy " + policy + ";\n" + rules + "\n\t}\n}\nX"
	}
	const accepts, rule = "udp dport 8472 accept", "nft insert rule inet mine in udp dport 8472 accept"
	const docker = `iptables -P FORWARD DROP
iptables -N DOCKER-USER
iptables -N DOCKER-FORWARD
iptables -A FORWARD -j DOCKER-USER
iptables -A FORWARD -j DOCKER-FORWARD
iptables -A DOCKER-FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables -A DOCKER-FORWARD -i docker0 -j ACCEPT
`
	for _, c := range []struct {
		name, rules, tool string
		want              string
		unclear           bool // it is not said, as it cannot be followed, but they are dropped
	}{
		{"nobody's", "", "nft", "", false},
		{"docker", docker, "iptables", "iptables -I FORWARD -i weft+ -j ACCEPT", false},
		{"docker, and who let pods through", docker + "iptables -I DOCKER-USER -i weft+ -j ACCEPT\n", "iptables", "", false},
		{"ufw", `iptables -P FORWARD DROP
iptables -N ufw-before-forward
iptables -N ufw-reject-forward
iptables -A FORWARD -j ufw-before-forward
iptables -A FORWARD -j ufw-reject-forward
iptables -A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables -A ufw-before-forward -p icmp --icmp-type echo-request -j ACCEPT
`, "iptables", "iptables -I FORWARD -i weft+ -j ACCEPT", false},
		{"a chain that ends with a rejection", `iptables -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables -A FORWARD -j REJECT --reject-with icmp-host-prohibited
`, "iptables", "iptables -I FORWARD -i weft+ -j ACCEPT", false},
		{"firewalld", `nft -f - <<X
table inet firewalld {
	chain filter_FORWARD {
		type filter hook forward priority 10; policy accept;
		ct state established,related accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		jump filter_FORWARD_ZONES
		reject with icmpx admin-prohibited
	}
	chain filter_FORWARD_ZONES {
		iifname "eth0" accept
	}
}
X`, "nft", "firewall-cmd --permanent --zone=trusted --add-interface=weft+", false},
		{"firewalld, of another version", `nft -f - <<X
table inet firewalld {
	chain filter_FORWARD {
		type filter hook forward priority 10; policy accept;
		ct state established,related accept
		iifname "lo" accept
		reject with icmpx admin-prohibited
	}
}
X`, "nft", "firewall-cmd --permanent --zone=trusted --add-interface=weft+", false},
		{"one's own", `nft -f - <<X
table inet mine {
	chain onward {
		type filter hook forward priority 0; policy drop;
		tcp dport 22 drop
	}
}
X`, "nft", "nft insert rule inet mine onward iifname 'weft*' accept", false},
		{"a rule that might accept", `nft -f - <<X
table inet mine {
	chain onward {
		type filter hook forward priority 0; policy drop;
		ip saddr 10.0.0.0/8 accept
	}
}
X`, "nft", "", false},
		{"who accepts new connections to the tunnel's port", `iptables -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables -A INPUT -p udp --dport 8472 -m state --state NEW -j ACCEPT
iptables -A INPUT -j REJECT
`, "iptables", "iptables -I INPUT -p udp --dport 8472 -j ACCEPT", false},
		{"who accepts the tunnel's port", `iptables -P INPUT DROP
iptables -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables -A INPUT -p udp --dport 8472 -j ACCEPT
`, "iptables", "", false},
		{"who accepts untracked packets to the tunnel's port", `iptables -P INPUT DROP
iptables -A INPUT -p udp --dport 8000:9000 -m conntrack --ctstate NEW,UNTRACKED -j ACCEPT
`, "iptables", "", false},
		{"who accepts the other nodes", "iptables -P INPUT DROP\niptables -A INPUT -s 172.30.0.0/24 -j ACCEPT", "iptables", "", false},
		{"who accepts one of the other nodes", "iptables -P INPUT DROP\niptables -A INPUT -s 172.30.0.3 -j ACCEPT", "iptables", "", true},
		{"who accepts another network", "iptables -P INPUT DROP\niptables -A INPUT -s 192.168.0.0/16 -j ACCEPT", "iptables", "iptables -I INPUT -p udp --dport 8472 -j ACCEPT", false},
		{"who accepts the tunnel's port among others", "iptables -P INPUT DROP\niptables -A INPUT -p udp -m multiport --dports 53,8472 -j ACCEPT", "iptables", "", false},
		{"who drops IPv6 alone", "ip6tables -P INPUT DROP", "ip6tables", "", false},
		{"ufw's input", ufwInput, "iptables", "iptables -I INPUT -p udp --dport 8472 -j ACCEPT", false},
		{"ufw's input, and who let the tunnel through", ufwInput + "iptables -A ufw-user-input -p udp --dport 8472 -j ACCEPT\n", "iptables", "", false},
		{"firewalld's input", `nft -f - <<X
table inet firewalld {
	chain filter_INPUT {
		type filter hook input priority 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		jump filter_INPUT_ZONES
		reject with icmpx admin-prohibited
	}
	chain filter_INPUT_ZONES {
		iifname "other" goto filter_IN_trusted
		goto filter_IN_public
	}
	chain filter_IN_trusted {
		accept
	}
	chain filter_IN_public {
		jump filter_IN_public_allow
		meta l4proto { icmp, ipv6-icmp } accept
		reject with icmpx admin-prohibited
	}
	chain filter_IN_public_allow {
		tcp dport 22 ct state { new, untracked } accept
		ip6 daddr fe80::/64 udp dport 546 ct state { new, untracked } accept
	}
}
X`, "nft", "firewall-cmd --permanent --add-port=8472/udp", false},
		{"a map of states", input("drop", "ct state vmap { established : accept, related : accept, invalid : drop }\niif lo accept\nct state new udp dport 8472 accept"), "nft", rule, false},
		{"a map of states that has untracked", input("drop", "ct state vmap { established : accept, untracked : jump other }\n"+accepts), "nft", "", false},
		{"a set of states", input("drop", "ct state { new, untracked } udp dport { 100-200, 8472 } accept"), "nft", "", false},
		{"a set without the tunnel's port", input("drop", "udp dport { 100-8471, 8473-9000 } accept"), "nft", rule, false},
		{"a port that is another", input("drop", "udp dport != 1-9000 accept"), "nft", rule, false},
		{"the other nodes, from a set", input("drop", "ip saddr @nodes accept"), "nft", "", false},
		{"others than the nodes, from a set", input("drop", "ip saddr @strangers accept"), "nft", rule, false},
		{"the interface that leads to the nodes", input("drop", "iifname \"eth*\" accept"), "nft", "", false},
		{"another interface", input("drop", "iifname { lo, weftaaa } accept"), "nft", rule, false},
		{"what is the node's own", input("drop", "fib daddr type != local drop\nfib daddr type local accept"), "nft", "", false},
		{"what is not tracked is dropped", input("accept", "ct state untracked drop\n"+accepts), "nft", rule, false},
		{"what is tracked is dropped", input("accept", "ct state != untracked drop"), "nft", "", false},
		{"a concatenation, which is not followed", input("drop", "meta l4proto . th dport { udp . 8472 } accept"), "nft", "", false},
		{"a mark, which anybody may have set", input("drop", "meta mark 7 accept"), "nft", "", true},
		{"a mark that is set, and a counter", "nft add table inet mine; nft add counter inet mine drops\n" + input("accept", "ct state untracked meta mark set 7 counter name drops drop"), "nft", rule, false},
		{"a limit", input("drop", "limit rate 100/second accept"), "nft", "", false},
		{"a chain that returns to where another goes on", input("drop", "meta mark 7 goto other\ndrop"), "nft", "", true},
		{"docker, of iptables-legacy", strings.ReplaceAll(docker, "iptables ", "iptables-legacy "), "iptables-legacy", "iptables-legacy -I FORWARD -i weft+ -j ACCEPT", false},
		{"docker, of iptables-legacy, and who let pods through", strings.ReplaceAll(docker+"iptables -I DOCKER-USER -i weft+ -j ACCEPT\n", "iptables ", "iptables-legacy "), "iptables-legacy", "", false},
		{"ufw's input, of iptables-legacy", strings.ReplaceAll(ufwInput, "iptables ", "iptables-legacy "), "iptables-legacy", "iptables-legacy -I INPUT -p udp --dport 8472 -j ACCEPT", false},
		{"ufw's input, of iptables-legacy, and who let the tunnel through", strings.ReplaceAll(ufwInput+"iptables -A ufw-user-input -p udp --dport 8472 -j ACCEPT\n", "iptables ", "iptables-legacy "), "iptables-legacy", "", false},
		{"iptables-legacy, new connections to the tunnel's port", `iptables-legacy -P INPUT DROP
iptables-legacy -A INPUT -p udp --dport 8472 -m state --state NEW -j ACCEPT
`, "iptables-legacy", "iptables-legacy -I INPUT -p udp --dport 8472 -j ACCEPT", false},
		{"iptables-legacy, a chain that returns and what is without a target", `iptables-legacy -N other
iptables-legacy -A other -p tcp -j REJECT
iptables-legacy -A INPUT -p udp --dport 8472
iptables-legacy -A INPUT -g other
iptables-legacy -A INPUT -j DROP
`, "iptables-legacy", "", false},
		{"iptables-legacy, a chain that returns to the policy", `iptables-legacy -P INPUT DROP
iptables-legacy -A INPUT ! -i lo ! -s 192.168.0.0/16 -j RETURN
iptables-legacy -A INPUT -j ACCEPT
`, "iptables-legacy", "iptables-legacy -I INPUT -p udp --dport 8472 -j ACCEPT", false},
		{"iptables-legacy, the interface", `iptables-legacy -P INPUT DROP
iptables-legacy -A INPUT -i eth+ -d 172.30.0.2 ! -p tcp -j ACCEPT
`, "iptables-legacy", "", false},
		{"iptables-legacy, a part that is not followed", `iptables-legacy -P INPUT DROP
iptables-legacy -A INPUT -p udp -m multiport --dports 53,8472 -j ACCEPT
`, "iptables-legacy", "", false},
		{"ip6tables-legacy, which is not about what is IPv4", "ip6tables-legacy -P INPUT DROP; ip6tables-legacy -P FORWARD DROP", "ip6tables-legacy", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := exec.LookPath(c.tool); err != nil {
				t.Skipf("needs %s", c.tool)
			}
			b := newBench(t)
			b.mustApply(mustParse(t, tunnelPlan))
			shell := func(script string) {
				t.Helper()
				b.do(func() error {
					if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
						return errors.New(string(out))
					}
					return nil
				})
			}
			shell(c.rules)
			found, err := b.Obstacles()
			if err != nil || (len(found) > 0) != (c.want != "") || !strings.Contains(strings.Join(found, "\n"), c.want) {
				t.Fatalf("the obstacles are %q, %v; expected %q", found, err, c.want)
			}
			if arrives := tunnelPacketArrives(b); arrives != (!strings.Contains(c.want, "8472") && !c.unclear) {
				t.Errorf("a tunnel packet arrives: %v, and the obstacles are %q", arrives, found)
			}
			if c.want == "" || strings.HasPrefix(c.want, "firewall-cmd") {
				return
			}
			_, mend, _ := strings.Cut(found[0], " through: ")
			shell(mend)
			if !tunnelPacketArrives(b) {
				t.Errorf("after %s a tunnel packet does not arrive", mend)
			}
			if found, err := b.Obstacles(); err != nil || len(found) > 0 {
				t.Errorf("after %s there is still %q, %v", mend, found, err)
			}
		})
	}
}

// TestObstaclesAtAnyHook has others drop packets wherever these come by. What is
// said to let them through does, and what drops others' packets is no obstacle.
func TestObstaclesAtAnyHook(t *testing.T) {
	chain := func(family, hook, rules string) string {
		return fmt.Sprintf("nft -f - <<X\ntable %s mine {\n\tset remote { type ipv4_addr; flags interval; elements = { 10.1.2.0/23, 192.168.0.0/16 }; }\n"+
			"\tset far { type ipv4_addr; flags interval; elements = { 192.168.0.0/16 }; }\n\tchain drops {\n\t\tdrop\n\t}\n\tchain c {\n\t\ttype %s;\n\t\t%s\n\t}\n}\nX", family, hook, rules)
	}
	const sent, got, both, in, out = "drops what pods send to other nodes; let it through: ", "drops what pods get from other nodes; let it through: ",
		"drops what pods send and get; let it through: ", "drops the tunnel packets that come from other nodes (UDP port 8472); let them through: ",
		"drops the tunnel packets to other nodes (UDP port 8472"
	const insert = "nft insert rule inet mine c "
	for _, c := range []struct {
		name, rules string
		want        []string
	}{
		{"prerouting, what comes out of the tunnel", chain("inet", "filter hook prerouting priority -500", "iifname weft-vxlan drop"),
			[]string{"chain c of nftables table inet mine " + got + insert + "iifname 'weft*' accept"}},
		{"prerouting, what comes from pods", chain("inet", "filter hook prerouting priority 0", "iifname != { lo, eth0, weft-vxlan } ct state new drop"), []string{sent}},
		{"prerouting, before connections are tracked", chain("inet", "filter hook prerouting priority -250", "iifname weft* ct state invalid drop"), []string{both + insert + "iifname 'weft*' accept"}},
		{"prerouting, tunnel packets before they are untracked", chain("inet", "filter hook prerouting priority -500", "udp dport 8472 ct state untracked drop"), nil},
		{"prerouting, tunnel packets", chain("ip", "filter hook prerouting priority -299", "udp dport 8000-9000 ct state untracked drop"), []string{in + "nft insert rule ip mine c udp dport 8472 accept"}},
		{"prerouting, of no known outgoing device", chain("inet", "filter hook prerouting priority 0", "oifname != docker0 drop"), []string{both, in}},
		{"prerouting, of another network", chain("inet", "filter hook prerouting priority 0", "ip saddr != 10.0.0.0/8 ip daddr 10.1.0.0/16 drop"), nil},
		{"prerouting, of pods' networks", chain("inet", "filter hook prerouting priority 0", "ip saddr 10.0.0.0/8 ip daddr 10.1.0.0/16 drop"), []string{both}},
		{"prerouting, of pods' networks, from a set", chain("inet", "filter hook prerouting priority 0", "ip daddr @remote jump drops"), []string{sent}},
		{"prerouting, of others' networks, from a set", chain("inet", "filter hook prerouting priority 0", "ip daddr @far drop"), nil},
		{"prerouting, by a mark that anybody may have set", chain("inet", "filter hook prerouting priority 0", "meta mark 7 drop"), nil},
		{"input, by a limit", chain("inet", "filter hook input priority 0", "limit rate over 10/second drop"), nil},
		{"output, what is not tracked", chain("inet", "filter hook output priority 0", "ct state untracked udp dport 8472 drop"),
			[]string{out + ", in connection tracking's state untracked); let them through: " + insert + "udp dport 8472 accept"}},
		{"output, by a policy", chain("ip", "filter hook output priority 0; policy drop", "ct state established,new accept"), []string{out}},
		{"output, that decides the route", chain("ip", "route hook output priority 0", "oifname eth0 udp dport 8472 drop"), []string{out}},
		{"output, to others", chain("ip", "filter hook output priority 0", "ip daddr 192.168.0.0/16 drop"), nil},
		{"postrouting", chain("inet", "filter hook postrouting priority 0", "oifname weft-vxlan drop"), []string{sent + insert + "oifname 'weft*' accept"}},
		{"postrouting, of the tunnel", chain("inet", "filter hook postrouting priority 0", "oifname eth0 udp dport 8472 drop"), []string{out}},
		{"translation", chain("ip", "nat hook prerouting priority 0", "iifname weft* drop"), []string{both}},
		{"translation of what goes elsewhere", chain("ip", "nat hook postrouting priority 100", "masquerade\n\t\tdrop"), nil},
		{"a device, of the tunnel", chain("netdev", "filter hook ingress device eth0 priority 0", "udp dport 8472 drop"),
			[]string{"chain c of nftables table netdev mine " + in + "nft insert rule netdev mine c udp dport 8472 accept"}},
		{"a device, of ARP and of another port", chain("netdev", "filter hook ingress device eth0 priority 0", "udp dport 4789 drop\n\t\tether type arp drop"), nil},
		{"a device of pods", chain("netdev", "filter hook ingress device weftaaa priority 0", "meta protocol ip drop"), []string{sent + "nft insert rule netdev mine c iifname 'weft*' accept"}},
		{"a device, the tunnel's own", chain("netdev", "filter hook egress device weft-vxlan priority 0; policy drop", ""), []string{sent + "nft insert rule netdev mine c oifname 'weft*' accept"}},
		{"a device, as the packets leave", chain("netdev", "filter hook egress device eth0 priority 0", "meta l4proto udp drop"), []string{out + "); let them through: nft insert rule netdev mine c udp dport 8472 accept"}},
		{"a device, of IP", chain("inet", "filter hook ingress device weft-vxlan priority 0", "meta nfproto ipv4 drop"), []string{got}},
		{"another device", chain("netdev", "filter hook ingress device lo priority 0; policy drop", ""), nil},
		{"a bridge's", chain("bridge", "filter hook forward priority 0; policy drop", ""), nil},
		{"iptables' raw table", "iptables -t raw -A PREROUTING -i weft-vxlan -j DROP", []string{got + "iptables -t raw -I PREROUTING -i weft+ -j ACCEPT"}},
		{"iptables' mangle table", "iptables -t mangle -A POSTROUTING -p udp --dport 8472 -j DROP", []string{out + "); let them through: iptables -t mangle -I POSTROUTING -p udp --dport 8472 -j ACCEPT"}},
		{"iptables-legacy's raw table", "iptables-legacy -t raw -A PREROUTING -i weft-vxlan -j DROP", []string{got + "iptables-legacy -t raw -I PREROUTING -i weft+ -j ACCEPT"}},
		{"iptables-legacy's output", "iptables-legacy -P OUTPUT DROP", []string{out + ", in connection tracking's state untracked); let them through: iptables-legacy -I OUTPUT -p udp --dport 8472 -j ACCEPT"}},
		{"kube-proxy", `iptables -t nat -N KUBE-SERVICES
iptables -t nat -A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
iptables -t nat -A KUBE-SERVICES ! -s 10.1.0.0/16 -d 10.96.0.1/32 -p tcp --dport 443 -j MARK --set-xmark 0x4000/0x4000
iptables -t nat -A POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
iptables -t nat -A POSTROUTING -j MASQUERADE --random-fully
iptables -N KUBE-FIREWALL
iptables -A OUTPUT -j KUBE-FIREWALL
iptables -A INPUT -j KUBE-FIREWALL
iptables -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
iptables -A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
iptables -A FORWARD -m conntrack --ctstate INVALID -j DROP
`, nil},
		{"docker's direct routing", "iptables -t raw -A PREROUTING -d 172.17.0.2/32 ! -i docker0 -j DROP", nil},
		{"firewalld's filter of sources", chain("inet", "filter hook prerouting priority -290", "meta nfproto ipv4 fib saddr . mark . iif oif missing drop"), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			tool, _, _ := strings.Cut(c.rules, " ")
			if _, err := exec.LookPath(tool); err != nil {
				t.Skipf("needs %s", tool)
			}
			b := newBench(t)
			b.mustApply(mustParse(t, tunnelPlan))
			shell := func(script string) {
				t.Helper()
				b.do(func() error {
					if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
						return errors.New(string(out))
					}
					return nil
				})
			}
			shell(c.rules)
			found, err := b.Obstacles()
			if err != nil || len(found) != len(c.want) {
				t.Fatalf("the obstacles are %q, %v; expected %q", found, err, c.want)
			}
			for _, want := range c.want {
				if !slices.ContainsFunc(found, func(line string) bool { return strings.Contains(line, want) }) {
					t.Errorf("the obstacles are %q; expected %q", found, want)
				}
			}
			for _, line := range found {
				_, mend, _ := strings.Cut(line, " through: ")
				shell(mend)
			}
			if found, err := b.Obstacles(); err != nil || len(found) > 0 {
				t.Errorf("after what is said to be done there is still %q, %v", found, err)
			}
		})
	}
}

// TestStrictFilter has the kernel drop what came by another way than it would be
// answered, which is said until it does not any more.
func TestStrictFilter(t *testing.T) {
	b := newBench(t)
	b.mustApply(mustParse(t, tunnelPlan))
	for value, want := range map[string]bool{"0": false, "1": true, "2": false} {
		b.do(func() error { return sysctl.Set("ipv4/conf/all/rp_filter", value) })
		found, err := b.Obstacles()
		if err != nil || strings.Contains(strings.Join(found, "\n"), "net.ipv4.conf.all.rp_filter is 1") != want {
			t.Errorf("with rp_filter %s the obstacles are %q, %v", value, found, err)
		}
	}
}

// tunnelPacketArrives sends a tunnel packet of node3 to the node, and looks
// whether it passes all rules at the input hook.
func tunnelPacketArrives(b *bench) (arrives bool) {
	b.t.Helper()
	const counted = "nft add table inet counting; nft add chain inet counting last '{ type filter hook input priority 1000; }'; nft add chain inet counting first '{ type filter hook prerouting priority -500; }'; " +
		"for c in first last; do nft flush chain inet counting $c; nft add rule inet counting $c udp dport 8472 counter; done"
	b.do(func() error {
		if out, err := exec.Command("sh", "-ec", "ip link show wire0 || ip link add wire0 master eth0 up type veth peer name wire1; ip link set wire1 up; "+counted).CombinedOutput(); err != nil {
			return errors.New(string(out))
		}
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		wire, err := net.InterfaceByName("wire1")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		// The port of a bridge forwards nothing before it is up.
		comes := func(chain string) bool {
			out, err := exec.Command("nft", "list", "chain", "inet", "counting", chain).CombinedOutput()
			return err == nil && strings.Contains(string(out), "packets ") && !strings.Contains(string(out), "packets 0 ")
		}
		for began := time.Now(); !comes("first"); time.Sleep(time.Millisecond) {
			if time.Since(began) > 10*time.Second {
				return errors.New("the packet does not come to the node")
			}
			if err := unix.Sendto(fd, tunnelPacket(eth0.HardwareAddr), 0, &unix.SockaddrLinklayer{Ifindex: wire.Index}); err != nil {
				return err
			}
		}
		arrives = comes("last")
		return nil
	})
	return arrives
}

// tunnelPacket is one that node3 of tunnelPlan sends to the node with an
// endpoint's packet in it.
func tunnelPacket(to net.HardwareAddr) []byte {
	node3, node1 := netip.MustParseAddr("172.30.0.4"), netip.MustParseAddr("172.30.0.2")
	inner := datagramOf(netip.MustParseAddr("10.1.3.5"), netip.MustParseAddr("10.1.1.2"), 4000, 4000, []byte("hello"))
	frame := func(to net.HardwareAddr, packet []byte) []byte {
		return append(append(append(bytes.Clone(to), 0x0a, 0x58, 0xac, 0x1e, 0x00, 0x04), 0x08, 0x00), packet...)
	}
	vxlan := append([]byte{8, 0, 0, 0, 0, 0, 1, 0}, frame(net.HardwareAddr{0x0a, 0x58, 0xac, 0x1e, 0x00, 0x02}, inner)...)
	return frame(to, datagramOf(node3, node1, 5000, 8472, vxlan))
}

// datagramOf is an IPv4 packet with UDP and no checksum of that.
func datagramOf(from, to netip.Addr, fromPort, port uint16, data []byte) []byte {
	b := []byte{0x45, 0}
	b = binary.BigEndian.AppendUint16(b, uint16(28+len(data)))
	b = append(b, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0)
	b = append(append(b, from.AsSlice()...), to.AsSlice()...)
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum+sum>>16))
	b = binary.BigEndian.AppendUint16(b, fromPort)
	b = binary.BigEndian.AppendUint16(b, port)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(data)))
	return append(append(b, 0, 0), data...)
}

// TestObstaclesOfIPv6 has iptables-legacy, of IPv6, drop what is forwarded and
// tunnel packets.
func TestObstaclesOfIPv6(t *testing.T) {
	if _, err := exec.LookPath("ip6tables-legacy"); err != nil {
		t.Skip("needs ip6tables-legacy")
	}
	b := newBench(t)
	b.do(func() error {
		return errors.Join(sysctl.Set("ipv6/conf/all/disable_ipv6", "0"),
			netlink.AddrAdd(mustLink(t, "eth0"), &netlink.Addr{IPNet: ipNet(netip.MustParsePrefix("fd01::2/64")), Flags: unix.IFA_F_NODAD}))
	})
	b.mustApply(mustParse(t, `node node1 addresses fd01::2 mtu 1430
pool default fd00:1::/64 gateway fd00:1::1 tunnel vxlan
tunnel vxlan port 8472 vtep fd01::2 mac 0a:58:ac:1e:00:02
network default in vxlan vni 1
peer node2 ends vxlan@fd01::3@0a:58:ac:1e:00:03
route default fd00:2::/64 tunnel node2
`))
	for _, c := range []struct {
		command string
		want    []string
	}{
		{"true", nil},
		{"ip6tables-legacy -P INPUT DROP", []string{"ip6tables-legacy -I INPUT -p udp --dport 8472 -j ACCEPT"}},
		{"ip6tables-legacy -A INPUT -s fd01::/64 -p udp --dport 8472 -j ACCEPT", nil},
		{"ip6tables-legacy -A FORWARD -j REJECT", []string{"ip6tables-legacy -I FORWARD -i weft+ -j ACCEPT"}},
		{"ip6tables-legacy -I FORWARD -g other", nil},
	} {
		b.do(func() error {
			if out, err := exec.Command("sh", "-ec", "ip6tables-legacy -N other 2>/dev/null || true; "+c.command).CombinedOutput(); err != nil {
				return errors.New(string(out))
			}
			return nil
		})
		found, err := b.Obstacles()
		if err != nil || len(found) != len(c.want) || len(found) > 0 && !strings.Contains(found[0], c.want[0]) {
			t.Errorf("after %s the obstacles are %q, %v; expected %q", c.command, found, err, c.want)
		}
	}
}

// TestAstray has others' routing rules and routes take what pods send and get.
// The kernel is asked whether they do; it is said which of them, and how to be
// rid of it; what is said is done, and the kernel routes as Weft wants.
func TestAstray(t *testing.T) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip")
	}
	const (
		onward  = "ip route get 10.1.2.7 from 10.1.1.2 iif weftaaa"
		udp     = onward + " ipproto udp"
		peer    = "ip route get 10.1.2.0 from 10.1.1.2 iif weftaaa"
		direct  = "ip route get 10.1.3.9 from 10.1.1.2 iif weftaaa"
		near    = "ip route get 10.1.1.3 from 10.1.1.2 iif weftaaa"
		inward  = "ip route get 10.1.1.2 from 10.1.2.7 iif weft-vxlan"
		node    = "ip route get 172.30.0.3 from 10.1.1.2 iif weftaaa"
		local   = "ip route get 10.1.1.2"
		onward6 = "ip route get fd00:2::7 from fd00:1::2 iif weftaaa"
		inward6 = "ip route get fd00:1::2 from fd00:2::7 iif weft-vxlan"
		outer   = "ip route get 172.30.0.3 from 172.30.0.2 ipproto udp"
	)
	leads := map[string]string{onward: "weft-vxlan", udp: "weft-vxlan", peer: "weft-vxlan", direct: "eth0", near: "weftbbb", inward: "weftaaa", node: "weft-vxlan", local: "weftaaa",
		onward6: "weft-vxlan", inward6: "weftaaa", outer: "eth0"}
	for _, c := range []struct{ do, wrong, want string }{
		// Rules that drop.
		{"ip rule add priority 100 from 10.1.1.0/24 blackhole", onward, "ip rule del priority 100 from 10.1.1.0/24 blackhole"},
		{"ip rule add priority 100 to 10.1.1.0/24 unreachable", inward, "ip rule del priority 100 from all to 10.1.1.0/24 unreachable"},
		{"ip rule add priority 100 to 10.1.2.7 prohibit", onward, "ip rule del priority 100 from all to 10.1.2.7/32 prohibit"},
		{"ip rule add priority 100 from 10.1.2.7 blackhole", inward, "ip rule del priority 100 from 10.1.2.7/32 blackhole"},
		{"ip rule add priority 100 iif weftaaa blackhole", onward, "ip rule del priority 100 from all iif weftaaa blackhole"},
		{"ip rule add priority 100 iif lo to 10.1.1.2 blackhole", local, "ip rule del priority 100 from all to 10.1.1.2/32 iif lo blackhole"},
		{"ip rule add priority 100 not from 10.9.0.0/16 blackhole", onward, "ip rule del priority 100 not from 10.9.0.0/16 blackhole"},
		{"ip rule add priority 100 from 10.1.1.0/24 ipproto udp blackhole", udp, "ip rule del priority 100 from 10.1.1.0/24 ipproto 17 blackhole"},
		{"ip rule add priority 100 not fwmark 7 lookup 100; ip route add unreachable default table 100", onward, "ip rule del priority 100 not from all fwmark 0x7/0xffffffff lookup 100"},
		{"ip rule add priority 200 to 10.1.1.0/24 blackhole; ip rule add priority 100 goto 200", inward, "ip rule del priority 200 from all to 10.1.1.0/24 blackhole"},
		{"ip -6 rule add priority 100 from fd00:1::/64 unreachable", onward6, "ip -6 rule del priority 100 from fd00:1::/64 unreachable"},
		{"ip rule del priority 32766", onward, "ip rule add priority 32766 lookup main"},
		{"ip rule del priority 32766; ip route add default dev eth0 table default", onward, "ip rule add priority 32766 lookup main"},
		// Rules that have others' tables asked.
		{"ip rule add priority 100 from 10.1.1.0/24 lookup 100; ip route add default via 172.30.0.9 table 100", onward, "ip rule del priority 100 from 10.1.1.0/24 lookup 100"},
		{"ip rule add priority 100 lookup 100; ip route add blackhole 10.1.2.7 table 100", onward, "ip route del blackhole 10.1.2.7/32 table 100"},
		{"ip rule add priority 100 to 172.30.0.0/16 lookup main", node, "ip rule del priority 100 from all to 172.30.0.0/16 lookup main"},
		{"ip rule add priority 100 to 172.30.0.0/24 lookup main; ip route add 172.30.0.3 dev eth0 proto kernel", node, "ip rule del priority 100 from all to 172.30.0.0/24 lookup main"},
		{"ip rule add priority 100 lookup main; ip rule del priority 32766", node, "ip rule add priority 32766 lookup main; ip rule del priority 100 from all lookup main"},
		// Routes.
		{"ip route add blackhole 10.1.2.7", onward, "ip route del blackhole 10.1.2.7/32 table main"},
		{"ip route add unreachable 10.1.2.0/25", onward, "ip route del unreachable 10.1.2.0/25 table main"},
		{"ip route add prohibit 10.1.3.9", direct, "ip route del prohibit 10.1.3.9/32 table main"},
		{"ip route add 10.1.2.7 dev eth0", onward, "ip route del 10.1.2.7/32 dev eth0 table main"},
		{"ip route add 10.1.2.7 dev lo", onward, "ip route del 10.1.2.7/32 dev lo table main"},
		{"ip route add 10.1.2.7 via 172.30.0.9 metric 5", onward, "ip route del 10.1.2.7/32 via 172.30.0.9 dev eth0 table main metric 5"},
		{"ip nexthop add id 7 blackhole; ip route add 10.1.2.7 nhid 7", onward, "ip route del 10.1.2.7/32 nhid 7 table main"},
		{"ip nexthop add id 8 dev eth0; ip route add 10.1.2.7 nhid 8", onward, "ip route del 10.1.2.7/32 nhid 8 table main"},
		{"ip route prepend blackhole 10.1.2.0/24", peer, "ip route del blackhole 10.1.2.0/24 table main"},
		{"ip route prepend 10.1.1.3 dev eth0", near, "ip route del 10.1.1.3/32 dev eth0 table main"},
		{"ip route add local 10.1.2.7 dev lo table local", onward, "ip route del local 10.1.2.7/32 dev lo table local"},
		{"ip route add local 10.0.0.0/8 dev lo", onward, "ip route del local 10.0.0.0/8 dev lo table local"},
		{"ip route add local 10.1.0.0/16 dev lo; ip rule add priority 50 lookup local; ip rule del priority 0", onward, "ip route del local 10.1.0.0/16 dev lo table local"},
		{"ip -6 route add local fd00::/16 dev lo", inward6, "ip -6 route del local fd00::/16 dev lo table local metric 1024"},
		{"ip addr add 10.1.0.9/16 dev lo", inward, "ip addr del 10.1.0.9/16 dev lo"},
		{"ip addr add 172.30.0.3/32 dev lo", outer, "ip addr del 172.30.0.3/32 dev lo"},
		{"ip addr add 10.1.1.2/31 dev eth0", inward, "ip addr del 10.1.1.2/31 dev eth0"},
		{"ip -6 route add blackhole fd00:2::7", onward6, "ip -6 route del blackhole fd00:2::7/128 table main metric 1024"},
		{"ip -6 route add blackhole fd00:1::2 metric 1", inward6, "ip -6 route del blackhole fd00:1::2/128 table main metric 1"},
		{"ip -6 route add fd00:2::7 dev eth0", onward6, "ip -6 route del fd00:2::7/128 dev eth0 table main metric 1024"},
		{"ip route add blackhole 172.30.0.3", outer, "ip route del blackhole 172.30.0.3/32 table main"},
		{"ip rule add priority 100 from 172.30.0.2 to 172.30.0.3 prohibit", outer, "ip rule del priority 100 from 172.30.0.2/32 to 172.30.0.3/32 prohibit"},
		// What takes nothing.
		{"ip route add blackhole 10.7.0.0/16", "", ""},
		{"ip route add blackhole 10.1.2.7 table 100", "", ""},
		{"ip route add blackhole default metric 9", "", ""},
		{"ip route add blackhole 10.1.2.0/24 metric 9", "", ""},
		{"ip route add 10.1.2.7 via 10.1.2.0 dev weft-vxlan onlink", "", ""},
		{"ip rule add priority 100 fwmark 7 blackhole", "", ""},
		{"ip rule add priority 100 dport 25 ipproto tcp blackhole", "", ""},
		{"ip rule add priority 100 iif eth0 to 192.0.2.0/24 blackhole", "", ""},
		{"ip rule add priority 8900 lookup main suppress_prefixlength 0; ip rule add priority 9000 lookup 100; ip route add default dev eth0 table 100", "", ""},
		{"ip rule add priority 100 lookup 100; ip route add throw 10.1.0.0/16 table 100", "", ""},
		{"ip rule add priority 200 nop; ip rule add priority 100 goto 200; ip rule add priority 150 blackhole", "", ""},
		{"ip addr add 172.30.0.77/24 dev eth0", "", ""},
		{"ip addr add 172.30.0.50/32 dev lo; ip addr add 10.96.0.1/32 dev lo; ip route add local 192.0.2.0/24 dev lo", "", ""},
		{"ip rule add priority 50 lookup local; ip rule del priority 0", "", ""},
		{"ip route add unreachable default metric 9999", "", ""},
	} {
		t.Run(c.do, func(t *testing.T) {
			b := newBench(t)
			b.do(func() error {
				return errors.Join(sysctl.Set("ipv6/conf/all/disable_ipv6", "0"), b.down("weftbbb", "pod2"), netlink.LinkSetUp(mustLink(t, "lo")))
			})
			b.mustApply(mustParse(t, strings.Replace(dualPlan, "default ::/0 gateway\n", "default ::/0 gateway\nroute default 172.30.0.3/32 tunnel node2 endpoints-only\n", 1)+
				secondEndpoint+"peer 172.30.0.4 addresses 172.30.0.4\nroute default 10.1.3.0/24 nexthop 172.30.0.4\n"))
			run := func(command string) (out string, err error) {
				b.do(func() error {
					said, failure := exec.Command("sh", "-ec", command).CombinedOutput()
					out, err = string(said), failure
					return nil
				})
				return out, err
			}
			right := func(question string) bool {
				out, err := run(question)
				return err == nil && strings.Contains(out, " dev "+leads[question]+" ")
			}
			for question := range leads {
				if !right(question) {
					out, err := run(question)
					t.Fatalf("%s: %s, %v; expected that it leads to %s", question, out, err, leads[question])
				}
			}
			if found, err := b.Obstacles(); err != nil || len(found) > 0 {
				t.Fatalf("of a node of its own it is said %q, %v", found, err)
			}
			if out, err := run(c.do); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if c.wrong != "" && right(c.wrong) {
				t.Errorf("the kernel says that all is right: %s", c.wrong)
			}
			found, err := b.Obstacles()
			if err != nil || (len(found) > 0) != (c.want != "") || !strings.HasSuffix(strings.Join(found, "\n"), c.want) {
				t.Errorf("the obstacles are %q, %v; expected %q", found, err, c.want)
			}
			if len(found) > 0 {
				_, mend, _ := strings.Cut(found[0], ": ")
				if out, err := run(mend); err != nil {
					t.Errorf("%s: %v: %s", mend, err, out)
				}
				if found, err := b.Obstacles(); err != nil || len(found) > 0 {
					t.Errorf("after %s there is still %q, %v", mend, found, err)
				}
				if c.wrong != "" && !right(c.wrong) {
					t.Errorf("after %s the kernel still says that %s is wrong", mend, c.wrong)
				}
			}
		})
	}
}

// TestOthers has others change what is theirs, which is told, and what a pod and a plan
// bring, which is not.
func TestOthers(t *testing.T) {
	b := newBench(t)
	const near = "route default 172.30.0.3/32 tunnel node2 endpoints-only\n"
	few, more := mustParse(t, policedPlan+near), mustParse(t, policedPlan+near+secondEndpoint+"route default 10.1.4.0/24 tunnel node2\n")
	b.mustApply(few)
	told := make(chan struct{}, 1000)
	b.followOthers(func() { told <- struct{}{} })
	quiet := func(after string) {
		t.Helper()
		select {
		case <-told:
			t.Errorf("after %s it is told that others changed something", after)
		case <-time.After(500 * time.Millisecond):
		}
	}
	for range 3 {
		b.do(func() error { return b.down("weftbbb", "weftpod2") })
		b.mustApply(more)
		b.do(func() error { return netlink.LinkDel(mustLink(t, "weftbbb")) })
		b.mustApply(few)
	}
	quiet("changes of the plan")
	for _, change := range []string{
		"ip link add others0 type bridge",
		"ip link del others0",
		"ip route add unreachable 198.51.100.0/24 metric 7",
		"ip route del unreachable 198.51.100.0/24 metric 7",
		"ip -6 route add unreachable 2001:db8:7::/64 metric 7",
		"ip rule add to 198.51.100.0/24 lookup 77",
		"nft add table inet wefts",
		"nft add table ip weft-polic",
		"nft add chain inet wefts in '{ type filter hook input priority 0; }'",
		"nft add rule inet wefts in udp dport 8472 drop",
		"nft delete table inet wefts",
	} {
		b.do(func() error {
			out, err := exec.Command("sh", "-c", change).CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%s: %w: %s", change, err, out)
			}
			return err
		})
		select {
		case <-told:
		case <-time.After(10 * time.Second):
			t.Errorf("%s: it is not told that others changed something", change)
		}
		time.Sleep(150 * time.Millisecond)
		for len(told) > 0 {
			<-told
		}
	}
	// More than anybody can follow is told seldom, and ends.
	b.do(func() error {
		return exec.Command("sh", "-c", "for i in $(seq 3000); do echo route add unreachable 198.51.$((i/250)).$((i%250))/32 metric 7; done | ip -batch -").Run()
	})
	time.Sleep(time.Second)
	if n := len(told); n == 0 || n > 15 {
		t.Errorf("3000 changes were told in %d calls", n)
	}
	for len(told) > 0 {
		<-told
	}
	quiet("all that was told")
}
