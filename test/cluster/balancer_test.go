package cluster

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
)

// claims prints who says on an interface that he has one of some addresses, a line each: the
// address, an Ethernet address, and "answers" or, where nobody asked, "tells". It has the kernel
// ask again and again, until its standard input ends.
func claims(args []string) error {
	link, err := net.InterfaceByName(args[0])
	if err != nil {
		return err
	}
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in the network's order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}); err != nil {
		return err
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	asked := make(map[netip.Addr]bool)
	for _, a := range args[1:] {
		address := netip.MustParseAddr(a)
		asked[address] = true
		go func() {
			for ; ; time.Sleep(100 * time.Millisecond) {
				// What the kernel knows it does not ask for.
				_ = netlink.NeighDel(&netlink.Neigh{LinkIndex: link.Index, IP: address.AsSlice()})
				if c, err := net.Dial("udp", netip.AddrPortFrom(address, 9).String()); err == nil {
					c.Write(nil)
					c.Close()
				}
			}
		}()
	}
	for b := make([]byte, 1<<16); ; {
		n, _, err := unix.Recvfrom(fd, b, 0)
		if err != nil {
			return err
		}
		if of, how := claimIn(b[:n]); asked[of] {
			fmt.Println(of, net.HardwareAddr(b[6:12]), how)
		}
	}
}

// claimIn returns which address the sender of a frame says he has, by ARP (RFC 826) or by neighbour
// discovery (RFC 4861, section 4.4).
func claimIn(frame []byte) (of netip.Addr, how string) {
	const arp, internet6, answer, advertisement, solicited = 0x0806, 0x86dd, 2, 136, 0x40
	if len(frame) < 42 {
		return of, ""
	}
	switch kind := int(frame[12])<<8 | int(frame[13]); {
	case kind == arp:
		of = netip.AddrFrom4([4]byte(frame[28:]))
		if how = "tells"; frame[21] == answer && of != netip.AddrFrom4([4]byte(frame[38:])) {
			how = "answers"
		}
	case kind == internet6 && len(frame) >= 78 && frame[20] == unix.IPPROTO_ICMPV6 && frame[54] == advertisement:
		of = netip.AddrFrom16([16]byte(frame[62:]))
		if how = "tells"; frame[58]&solicited != 0 {
			how = "answers"
		}
	}
	return of, how
}

// claim is what claims prints.
type claim struct {
	of   netip.Addr
	node string
	how  string
}

// claimWatch knows all claims of some addresses on the nodes' link, in order.
type claimWatch struct {
	c    *cluster
	mu   sync.Mutex
	seen []claim
}

// watchClaims has what is outside of the cluster ask for addresses until the test ends.
func (c *cluster) watchClaims(addresses ...netip.Addr) *claimWatch {
	c.Helper()
	w := &claimWatch{c: c}
	nodes := make(map[string]string)
	for _, node := range c.lab.Nodes() {
		mac := strings.TrimSpace(c.mustExec(place("node/"+node), "cat", "/sys/class/net/eth0/address"))
		nodes[mac] = node
	}
	args := []string{self, "claims", "br0"}
	for _, a := range addresses {
		args = append(args, a.String())
	}
	in, hold := io.Pipe()
	out, print := io.Pipe()
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.execute("outside", lab.Command{Args: args, Stdin: in, Stdout: print, Stderr: print}); err != nil {
			c.Error(err)
		}
		print.Close()
	})
	running.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			words := strings.Fields(lines.Text())
			if len(words) != 3 || nodes[words[1]] == "" {
				c.Errorf("outside hears %q", lines.Text())
				continue
			}
			w.mu.Lock()
			w.seen = append(w.seen, claim{netip.MustParseAddr(words[0]), nodes[words[1]], words[2]})
			w.mu.Unlock()
		}
	})
	c.Cleanup(func() {
		hold.Close()
		running.Wait()
	})
	return w
}

// of returns the claims of an address of a kind, in order.
func (w *claimWatch) of(a netip.Addr, how string) (nodes []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.seen {
		if s.of == a && s.how == how {
			nodes = append(nodes, s.node)
		}
	}
	return nodes
}

// taken waits until another node than some answers for an address, which may not do so any more from
// then on, and returns it.
func (w *claimWatch) taken(a netip.Addr, not ...string) (node string) {
	w.c.Helper()
	var answered int
	w.c.eventually(func() error {
		nodes := w.of(a, "answers")
		if answered = len(nodes); answered == 0 || slices.Contains(not, nodes[answered-1]) {
			return fmt.Errorf("for %s answered last: %v", a, nodes[max(0, answered-5):])
		}
		node = nodes[answered-1]
		return nil
	})
	w.c.Cleanup(func() {
		nodes := w.of(a, "answers")
		turns := slices.Compact(slices.Clone(nodes))
		if i := slices.IndexFunc(nodes[answered:], func(n string) bool { return slices.Contains(not, n) }); i >= 0 {
			w.c.Errorf("%s answers for %s, which another one has: %v", nodes[answered+i], a, turns)
		}
		for i := 2; i < len(nodes); i++ {
			if nodes[i] == nodes[i-2] && nodes[i] != nodes[i-1] {
				w.c.Errorf("two nodes answer for %s at a time: %v", a, turns)
				break
			}
		}
	})
	return node
}

// told waits until a node has told all on the link that it has an address.
func (w *claimWatch) told(a netip.Addr, node string) {
	w.c.Helper()
	w.c.eventually(func() error {
		if told := w.of(a, "tells"); !slices.Contains(told, node) {
			return fmt.Errorf("%s has %s and tells nobody; of it told %v", node, a, slices.Compact(told))
		}
		return nil
	})
}

const balancerPool = `
apiVersion: weft.network/v1
kind: AddressPool
metadata: {name: public}
spec: {addresses: [172.30.7.10-172.30.7.20, "fd30::7:10-fd30::7:20"]}
`

const balancer = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {type: LoadBalancer, externalTrafficPolicy: %s, ipFamilyPolicy: PreferDualStack, selector: {app: web}, ports: [{port: 80, targetPort: http}]}
`

// balanced makes a Service of type LoadBalancer, and returns its addresses.
func (c *cluster) balanced(policy string) (v4, v6 netip.Addr) {
	c.Helper()
	c.apply(balancerPool + "---" + fmt.Sprintf(balancer, policy))
	c.eventually(func() error {
		svc, err := registryGet[*corev1.Service](c, api.Service, registry.Key{Namespace: "default", Name: "web"})
		if err != nil {
			return err
		}
		for _, i := range svc.Status.LoadBalancer.Ingress {
			if a, err := netip.ParseAddr(i.IP); err == nil && a.Is4() {
				v4 = a
			} else if err == nil {
				v6 = a
			}
		}
		if !v4.IsValid() || !v6.IsValid() {
			return fmt.Errorf("it has the addresses %v", svc.Status.LoadBalancer.Ingress)
		}
		return nil
	})
	return v4, v6
}

// servedAs waits until a client outside is served at an address by a server, under its own address.
func (c *cluster) servedAs(a netip.Addr, server string) {
	c.Helper()
	client := lab.Outside
	if a.Is6() {
		client = lab.Outside6
	}
	c.eventually(func() error {
		got, seen, err := c.fetch("outside", netip.AddrPortFrom(a, 80))
		if err == nil && (got != server || seen != client) {
			err = fmt.Errorf("outside is served by %s at %s, and seen as %s", got, a, seen)
		}
		return err
	})
}

// TestBalancerLocal follows the addresses of a Service with externalTrafficPolicy Local: only nodes
// that have endpoints answer for them, also when one dies or loses its last endpoint.
func TestBalancerLocal(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 3, IPv6: true})
	c.policyPod("web-node1", "node1", "web")
	c.policyPod("web-node2", "node2", "web")
	v4, v6 := c.balanced("Local")
	w := c.watchClaims(v4, v6)
	for _, a := range []netip.Addr{v4, v6} {
		c.servedAs(a, "web-"+w.taken(a))
	}
	const first, second = "node1", "node2"
	if err := c.lab.Delete(t.Context(), "default", "web-"+first); err != nil {
		t.Fatal(err)
	}
	for _, a := range []netip.Addr{v4, v6} {
		w.taken(a, first)
		c.servedAs(a, "web-"+second)
		if slices.Contains(w.of(a, "answers"), "node3") {
			t.Errorf("node3 answered for %s, and has no endpoint", a)
		}
	}
	c.policyPod("web-node3", "node3", "web")
	c.planHas("node3", ":8080@node3 # EndpointSlice default/web-ipv4-1")
	c.planHas("node3", "]:8080@node3 # EndpointSlice default/web-ipv6-1")
	if err := c.lab.Kill(second); err != nil {
		t.Fatal(err)
	}
	for _, a := range []netip.Addr{v4, v6} {
		w.taken(a, first, second)
		c.servedAs(a, "web-node3")
	}
}

// TestBalancerDies has the nodes die one after the other that answer for an address of IPv6: first the
// agent, then the link of the next one. Another node tells all that it has the address, and answers,
// and the dead one does not.
func TestBalancerDies(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 3, IPv6: true})
	for _, node := range c.lab.Nodes() {
		c.policyPod("web-"+node, node, "web")
	}
	_, v6 := c.balanced("Cluster")
	w := c.watchClaims(v6)
	served := func() {
		t.Helper()
		c.eventually(func() error {
			_, _, err := c.fetch("outside", netip.AddrPortFrom(v6, 80))
			return err
		})
	}
	first := w.taken(v6)
	served()
	if err := c.lab.Kill(first); err != nil {
		t.Fatal(err)
	}
	second := w.taken(v6, first)
	w.told(v6, second)
	served()
	c.mustExec(place("node/"+second), "ip", "link", "set", "eth0", "down")
	third := w.taken(v6, first, second)
	w.told(v6, third)
	served()
	t.Logf("%s, %s and %s answered in turn", first, second, third)
}
