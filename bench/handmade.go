package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/weftnet/weft/internal/netns"
)

// What is built by hand: a bare pair of interfaces, and what an administrator
// gets who follows flannel with ip commands, on the same underlay as the
// lab's: nodes with an interface each on one bridge.

// A placeholder in a script stands for the process number of the worker of
// that name, which is how ip names a namespace.
type placeholders map[string]*worker

const (
	handCluster = "10.244.0.0/16"
	underlayMTU = 1500
	// vxlanCost is what VXLAN over IPv4 takes from the MTU (RFC 7348,
	// section 5: Ethernet, IPv4, UDP and VXLAN headers).
	vxlanCost = 50
)

// handmade is the hand-built namespaces of one kind.
type handmade struct {
	workers placeholders
	err     error
}

func (h *handmade) close() {
	for _, w := range h.workers {
		w.close()
	}
}

// add makes a namespace.
func (h *handmade) add(name string) *worker {
	if h.err != nil {
		return nil
	}
	w, err := newWorker(name, "")
	if err != nil {
		h.err = err
		return nil
	}
	if h.workers == nil {
		h.workers = make(placeholders)
	}
	h.workers[name] = w
	return w
}

// ip runs ip commands, a line each, in a namespace.
func (h *handmade) ip(name, script string) { h.pipe(name, script, "ip", "-batch", "-") }

func (h *handmade) pipe(name, input, program string, args ...string) {
	if h.err == nil {
		h.err = h.workers[name].run(input, program, args...)
	}
}

// forward lets a namespace route.
func (h *handmade) forward(name string) {
	if h.err == nil {
		h.err = netns.Do(h.workers[name].namespace(), func() error {
			return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
		})
	}
}

func (h *handmade) pid(name string) int {
	if h.err != nil {
		return 0
	}
	return h.workers[name].cmd.Process.Pid
}

// barePair connects two namespaces with nothing in between.
func barePair() (h *handmade, p pair) {
	h = new(handmade)
	a, b := h.add("bare a"), h.add("bare b")
	h.ip("bare a", fmt.Sprintf(`link add eth0 mtu %d type veth peer name eth0 mtu %[1]d netns %d
address add 10.243.0.1/24 dev eth0
link set lo up
link set eth0 up
`, underlayMTU, h.pid("bare b")))
	h.ip("bare b", `address add 10.243.0.2/24 dev eth0
link set lo up
link set eth0 up
`)
	return h, pair{a, b, netip.MustParseAddr("10.243.0.2")}
}

// handNode is a node built by hand. Its pods are number.2, number.3, …
type handNode struct {
	name, backend string
	// number is the third byte of its subnet and, plus ten, the last of its
	// address.
	number int
}

func (n handNode) underlay() string { return fmt.Sprintf("172.30.0.%d", 10+n.number) }
func (n handNode) subnet() string   { return fmt.Sprintf("10.244.%d.0/24", n.number) }
func (n handNode) base() string     { return fmt.Sprintf("10.244.%d.0", n.number) }
func (n handNode) gateway() string  { return fmt.Sprintf("10.244.%d.1", n.number) }
func (n handNode) vtepMAC() string  { return fmt.Sprintf("02:00:00:00:00:%02x", n.number) }
func (n handNode) mtu() int {
	if n.backend == "vxlan" {
		return underlayMTU - vxlanCost
	}
	return underlayMTU
}
func (n handNode) pod(i int) string { return fmt.Sprintf("%s pod %d", n.name, i) }
func (n handNode) address(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 244, byte(n.number), byte(1 + i)})
}

// byHand builds two nodes with flannel's backend, and returns a pair of pods
// on the first node and one across.
func byHand(backend string) (h *handmade, same, across pair) {
	h = new(handmade)
	sw := backend + " switch"
	nodes := []handNode{{backend + " node1", backend, 1}, {backend + " node2", backend, 2}}
	h.add(sw)
	h.ip(sw, fmt.Sprintf(`link add br0 mtu %d type bridge
address add 172.30.0.1/16 dev br0
link set lo up
link set br0 up
`, underlayMTU))
	for _, n := range nodes {
		h.add(n.name)
		h.ip(sw, fmt.Sprintf(`link add port%d mtu %d master br0 type veth peer name eth0 mtu %[2]d netns %d
link set port%[1]d up
`, n.number, underlayMTU, h.pid(n.name)))
		h.ip(n.name, fmt.Sprintf(`link set lo up
address add %s/16 dev eth0
link set eth0 up
route add default via 172.30.0.1
link add cni0 mtu %d type bridge
address add %s/24 dev cni0
link set cni0 up
`, n.underlay(), n.mtu(), n.gateway()))
		h.forward(n.name)
		h.pipe(n.name, masquerade(n), "nft", "-f", "-")
	}
	for i, n := range nodes {
		h.reach(n, nodes[1-i])
		h.addPod(n, 1)
	}
	first := nodes[0]
	h.addPod(first, 2)
	from := h.workers[first.pod(1)]
	return h, pair{from, h.workers[first.pod(2)], first.address(2)},
		pair{from, h.workers[nodes[1].pod(1)], nodes[1].address(1)}
}

// reach makes the way from one node to the pods of another.
func (h *handmade) reach(n, peer handNode) {
	if n.backend == "host-gw" {
		h.ip(n.name, fmt.Sprintf("route add %s via %s dev eth0\n", peer.subnet(), peer.underlay()))
		return
	}
	h.ip(n.name, fmt.Sprintf(`link add flannel.1 address %s mtu %d type vxlan id 1 dev eth0 local %s dstport 8472 nolearning
address add %s/32 dev flannel.1
link set flannel.1 up
neighbour add %s lladdr %s dev flannel.1 nud permanent
route add %s via %[5]s dev flannel.1 onlink
`, n.vtepMAC(), n.mtu(), n.underlay(), n.base(), peer.base(), peer.vtepMAC(), peer.subnet()))
	h.pipe(n.name, fmt.Sprintf("fdb append %s dev flannel.1 dst %s\n", peer.vtepMAC(), peer.underlay()), "bridge", "-batch", "-")
}

// masquerade is flannel's table: pods' addresses stay among pods, and what
// leaves the cluster gets the node's. It lets all that is to and from pods
// through.
func masquerade(n handNode) string {
	return fmt.Sprintf(`table ip flannel-ipv4 {
	chain postrtg {
		type nat hook postrouting priority srcnat
		meta mark & 0x4000 == 0x4000 return
		ip saddr %[1]s ip daddr %[2]s return
		ip saddr %[2]s ip daddr %[1]s return
		ip saddr != %[1]s ip daddr %[2]s return
		ip saddr %[2]s ip daddr != 224.0.0.0/4 masquerade fully-random
		ip saddr != %[2]s ip daddr %[2]s masquerade fully-random
	}
	chain forward {
		type filter hook forward priority filter
		ip saddr %[2]s accept
		ip daddr %[2]s accept
	}
}
`, n.subnet(), handCluster)
}

// addPod attaches a pod as the bridge plug-in does with flannel's settings.
func (h *handmade) addPod(n handNode, i int) {
	h.add(n.pod(i))
	h.ip(n.name, fmt.Sprintf(`link add veth%d mtu %d master cni0 type veth peer name eth0 mtu %[2]d netns %d
link set veth%[1]d type bridge_slave hairpin on
link set veth%[1]d up
`, i, n.mtu(), h.pid(n.pod(i))))
	h.ip(n.pod(i), fmt.Sprintf(`link set lo up
address add %s/24 dev eth0
link set eth0 up
route add default via %s
route add %s via %[2]s
`, n.address(i), n.gateway(), handCluster))
}

// done returns what went wrong, after taking everything away again.
func (h *handmade) done() error {
	if h.err != nil {
		h.close()
		return errors.Join(errors.New("build a network by hand"), h.err)
	}
	return nil
}
