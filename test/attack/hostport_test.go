package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/weftnet/weft/cni"
	"github.com/weftnet/weft/lab"
)

// runtime is what a container runtime does on a node: args are add or del, the
// container, its network namespace, where weft-cni is, and a port of the node
// and one of the container's, or 0 for none. It prints the CNI result.
func runtime(args []string) error {
	conflist, err := cni.Conflist("")
	if err != nil {
		return err
	}
	list, err := libcni.ConfListFromBytes(conflist)
	if err != nil {
		return err
	}
	rt := &libcni.RuntimeConf{ContainerID: args[1], NetNS: args[2], IfName: "eth0"}
	if hostPort, err := strconv.Atoi(args[4]); err != nil {
		return err
	} else if hostPort > 0 {
		containerPort, err := strconv.Atoi(args[5])
		if err != nil {
			return err
		}
		var mappings []map[string]any
		for _, protocol := range []string{"tcp", "udp"} {
			mappings = append(mappings, map[string]any{"hostPort": hostPort, "containerPort": containerPort, "protocol": protocol})
		}
		rt.CapabilityArgs = map[string]any{"portMappings": mappings}
	}
	client := libcni.NewCNIConfigWithCacheDir([]string{args[3]}, "/run/cni-cache", nil)
	switch args[0] {
	case "add":
		result, err := client.AddNetworkList(context.Background(), list, rt)
		if err != nil {
			return err
		}
		return result.PrintTo(os.Stdout)
	case "del":
		return client.DelNetworkList(context.Background(), list, rt)
	}
	return errors.New("add or del")
}

// sandbox makes a network namespace on a node, for the trial, which has no
// network yet.
func (t *trial) sandbox(node string) *machine {
	t.Helper()
	n := t.nodes[node]
	name := fmt.Sprintf("guest-%d", words.Add(1))
	m := &machine{name: name, node: node}
	// Not with "ip netns add", which mounts the directory over itself.
	t.sh(t.owner(n), fmt.Sprintf("touch /run/netns/%[1]s; unshare --net=/run/netns/%[1]s ip link set lo up", name))
	m.execute = func(c lab.Command) error {
		c.Args = append([]string{"nsenter", "--net=/run/netns/" + name}, c.Args...)
		return n.execute(c)
	}
	m.ns = fmt.Sprintf("/proc/%d/root/run/netns/%s", t.lab.PID(node), name)
	t.Cleanup(func() { t.sh(t.owner(n), fmt.Sprintf("umount -l /run/netns/%[1]s; rm /run/netns/%[1]s", name)) })
	m.arriving, m.delivering = arrivals(t.T, name, m.ns), delivered(t.T, name, m.ns)
	return m
}

// attach gives a sandbox its network, with a port of its node's if that is not
// 0, and takes that away when the trial ends.
func (t *trial) attach(m *machine, hostPort, containerPort uint16) error {
	t.Helper()
	call := func(verb string) (string, error) {
		var out, errs bytes.Buffer
		err := t.nodes[m.node].execute(lab.Command{Stdout: &out, Stderr: io.MultiWriter(&errs, &out),
			Args: []string{self, "runtime", verb, m.name, "/run/netns/" + m.name, bin, fmt.Sprint(hostPort), fmt.Sprint(containerPort)}})
		if err != nil {
			err = fmt.Errorf("CNI %s: %w: %s", verb, err, errs.String())
		}
		return out.String(), err
	}
	t.Cleanup(func() {
		if _, err := call("del"); err != nil {
			t.Error(err)
		}
	})
	out, err := call("add")
	if err != nil {
		return err
	}
	var result current.Result
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		return fmt.Errorf("CNI ADD: %w: %s", err, out)
	}
	for _, ip := range result.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		if a = a.Unmap(); a.Is4() {
			m.v4 = a
		} else {
			m.v6 = a
		}
	}
	m.mac, m.gateway = macOf(t.T, m.ns, "eth0"), gatewayOf(t.T, m.ns)
	return nil
}

// hostPortAttacks are those of a pod that has a port of its node's.
var hostPortAttacks = []attack{
	{
		name: "host_port_of_the_tunnel", by: podWithNothing, ip: onlyIPv4,
		left: noTunnel,
		must: "take or read what comes to its node's VTEP by having that port for itself",
		try: func(t *trial) {
			taker, other := t.sandbox("node2"), t.sandbox("node2")
			if err := t.attach(other, 18080, port); err != nil {
				t.Fatal(err)
			}
			t.arrives(other.arriving, "a datagram to another port of the node's", func(word string) {
				t.fromStranger("node2", datagram(t.at(t.stranger, 4711), t.at(t.nodes["node2"], 18080), word))
			})
			tunnel := t.tunnel("node2")
			if err := t.attach(taker, tunnel.Port, 9999); err != nil {
				if !strings.Contains(err.Error(), fmt.Sprint(tunnel.Port)) {
					t.Fatalf("ADD with the tunnel's port fails, and not for that: %v", err)
				}
				t.Logf("refused: %v", err)
				return
			}
			var sent []string
			w := t.watch(t.pods["far"].arriving)
			reached := false
			for source := range uint16(5) {
				word := newWord()
				sent = append(sent, word)
				from := netip.AddrPortFrom(t.outer(t.nodes["node1"]), 40000+source)
				t.fromStranger("node2", datagram(from, tunnelEnd(tunnel), string(t.innerTo("node2", "far", word))))
			}
			w.control("a tunnel packet that the node knows from before", func(word string) {
				t.must(t.owner(t.nodes["node2"]), order{Do: "udp", To: t.at(t.pods["far"], port), Data: []byte(word)})
			})
			for _, word := range sent {
				if taker.arriving.saw(word) != nil {
					t.breach("a tunnel packet arrived at the pod with the port")
				}
				reached = reached || t.pods["far"].arriving.saw(word) != nil
			}
			if !reached {
				t.breach("tunnel packets do not arrive at far any more")
			}
		},
	},
	{
		name: "host_port_and_the_nodes_loopback", by: podWithRaw, ip: onlyIPv4,
		must: "reach what its node serves on 127.0.0.1 only",
		try: func(t *trial) {
			guest := t.sandbox("node1")
			if err := t.attach(guest, 18081, port); err != nil {
				t.Fatal(err)
			}
			node := t.nodes["node1"]
			w := t.watch(node.delivering)
			for _, to := range []string{"127.0.0.1", "127.0.0.53", "127.255.255.254"} {
				to := netip.AddrPortFrom(netip.MustParseAddr(to), port)
				w.forbid("a datagram to "+to.String(), func(word string) { t.send(t.hand(guest), guest, udpPacket(guest.v4, to, word)) })
				w.forbid("a segment to "+to.String(), func(word string) {
					t.send(t.hand(guest), guest, segment(t.at(guest, 4711), to, flagSYN, 1, 0, word))
				})
			}
			w.control("a datagram to the node's address", func(word string) {
				t.send(t.hand(guest), guest, udpPacket(guest.v4, t.at(node, port), word))
			})
		},
	},
}
