package conformance

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/plan"
)

// Namespace is a network namespace without a name: it lives as long as the
// test that made it, or its process.
type Namespace struct{ file *os.File }

// Path is where the namespace can be opened.
func (n Namespace) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd()) }

// Do runs f on a thread in the namespace.
func (n Namespace) Do(f func() error) error { return netns.Do(n.Path(), f) }

// newNamespace makes a namespace in which addresses are usable at once, as
// nobody looks for duplicates.
func newNamespace(t *testing.T) Namespace {
	t.Helper()
	var n Namespace
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends here
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			n.file, err = os.Open("/proc/thread-self/ns/net")
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	t.Cleanup(func() { n.file.Close() })
	must(t, n.Do(func() error {
		for _, name := range []string{"ipv6/conf/all/accept_dad", "ipv6/conf/default/accept_dad"} {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte("0"), 0); err != nil {
				return err
			}
		}
		return setUp("lo")
	}))
	return n
}

// underlayMTU is that of the links between nodes, in bytes.
const underlayMTU = 1500

// What is outside of the cluster: the underlay's router, which also stands for
// every address that is nobody's.
var (
	routers = []netip.Prefix{netip.MustParsePrefix("172.30.0.254/24"), netip.MustParsePrefix("fd01::fe/64")}
	outside = []netip.Prefix{netip.MustParsePrefix("198.51.100.7/32"), netip.MustParsePrefix("2001:db8::7/128")}
)

// outsideName is what the outside is called among hosts.
const outsideName = "outside"

// topology is nodes on one link, pods on nodes, and the outside.
type topology struct {
	t     *testing.T
	make  func(Namespace) (datapath.DataPlane, error)
	out   *host
	nodes map[string]*node
	// podMTU overrides what plans say when not 0.
	podMTU int
	*observer
}

// host is something that sends and receives.
type host struct {
	Namespace
	name      string
	listening map[service]bool
}

type node struct {
	*host
	dataPlane datapath.DataPlane
	plan      *plan.Plan
	pods      map[string]*pod
	// own are the interfaces that were there before the data plane.
	own []string
}

func newTopology(t *testing.T, makeDataPlane func(Namespace) (datapath.DataPlane, error)) *topology {
	t.Helper()
	l := &topology{t: t, make: makeDataPlane, nodes: map[string]*node{}, observer: newObserver(t)}
	l.out = l.newHost(outsideName)
	must(t, l.out.Do(func() error {
		// Without an address of its own the bridge takes one of its ports',
		// and another as ports come.
		mac := plan.MACOf(routers[0].Addr())
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0", MTU: underlayMTU, HardwareAddr: mac[:]}}); err != nil {
			return err
		}
		for _, a := range routers {
			if err := addAddress("br0", a); err != nil {
				return err
			}
		}
		for _, a := range outside {
			if err := addAddress("lo", a); err != nil {
				return err
			}
		}
		if err := setUp("br0"); err != nil {
			return err
		}
		return receiveEverything("br0")
	}))
	return l
}

// receiveEverything makes the namespace take all that comes from an interface
// for its own.
func receiveEverything(from string) error {
	// What is its own must not make it answer ARP for everyone. It stands for many machines,
	// of which one may send to another by way of a node.
	for _, setting := range []string{"arp_ignore", "accept_local"} {
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+from+"/"+setting, []byte("1"), 0); err != nil {
			return err
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for family, all := range map[int]string{netlink.FAMILY_V4: "0.0.0.0/0", netlink.FAMILY_V6: "::/0"} {
		rule := netlink.NewRule()
		rule.Family, rule.Priority, rule.IifName, rule.Table = family, outsideTable, from, outsideTable
		if err := netlink.RuleAdd(rule); err != nil {
			return fmt.Errorf("add a rule: %w", err)
		}
		r := &netlink.Route{Dst: ipNet(netip.MustParsePrefix(all)), Type: unix.RTN_LOCAL, Table: outsideTable, LinkIndex: lo.Attrs().Index, Scope: unix.RT_SCOPE_HOST}
		if err := netlink.RouteAdd(r); err != nil {
			return fmt.Errorf("add a local route: %w", err)
		}
	}
	return nil
}

func (l *topology) newHost(name string) *host {
	return &host{Namespace: newNamespace(l.t), name: name, listening: map[service]bool{}}
}

// addNode makes a node with addresses in the underlay and no data plane yet.
func (l *topology) addNode(name string, addresses []netip.Addr) *node {
	l.t.Helper()
	n := &node{host: l.newHost(name), pods: map[string]*pod{}, own: []string{"lo", "eth0"}}
	must(l.t, l.out.Do(func() error {
		port := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: underlayMTU}, PeerName: "eth0", PeerMTU: underlayMTU,
			PeerNamespace: netlink.NsFd(n.file.Fd())}
		if err := netlink.LinkAdd(port); err != nil {
			return fmt.Errorf("add the link of %s: %w", name, err)
		}
		br, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetMaster(port, br), setUp(name))
	}))
	must(l.t, n.Do(func() error {
		if err := errors.Join(setUp("eth0"), waitUp("eth0")); err != nil {
			return err
		}
		for _, a := range addresses {
			if err := addAddress("eth0", netip.PrefixFrom(a, underlayBits(a))); err != nil {
				return err
			}
		}
		for _, r := range routers {
			if !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return a.Is4() == r.Addr().Is4() }) {
				continue
			}
			if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(everything(r.Addr())), Gw: r.Addr().AsSlice()}); err != nil {
				return fmt.Errorf("add the default route of %s: %w", name, err)
			}
		}
		return nil
	}))
	must(l.t, l.out.Do(func() error { return errors.Join(waitUp(name), waitUp("br0")) }))
	l.nodes[name] = n
	l.start(n)
	return n
}

// start gives a node a data plane, or another instance as after a restart of
// its process.
func (l *topology) start(n *node) {
	l.t.Helper()
	n.close()
	var err error
	if n.dataPlane, err = l.make(n.Namespace); err != nil {
		l.t.Fatalf("make the data plane of %s: %v", n.name, err)
	}
	l.t.Cleanup(n.close)
}

func (n *node) close() {
	if c, ok := n.dataPlane.(interface{ Close() error }); ok {
		c.Close()
		n.dataPlane = nil
	}
}

// load makes the pods that the plans name, makes every node do what its plan
// says, and checks that this left nothing to repair. A node of which plans has
// nothing loses its data plane's work.
func (l *topology) load(plans map[string]*plan.Plan) {
	l.t.Helper()
	for name, p := range plans {
		if _, ok := l.nodes[name]; !ok {
			l.addNode(name, p.Local.Addresses)
		}
	}
	for name, n := range l.nodes {
		p := plans[name]
		if p == nil {
			l.plug(n, &plan.Plan{})
			if n.plan != nil {
				must(l.t, n.dataPlane.Remove(l.t.Context()))
			}
			n.plan = nil
			continue
		}
		l.plug(n, p)
		l.apply(n, p)
	}
	l.routeOutside(plans)
	for _, n := range l.nodes {
		if lines := l.repair(n); len(lines) > 0 {
			l.t.Errorf("%s: after Apply there is something to repair: %q", n.name, lines)
		}
	}
}

func (l *topology) apply(n *node, p *plan.Plan) {
	l.t.Helper()
	if err := n.dataPlane.Apply(l.t.Context(), p); err != nil {
		l.t.Fatalf("apply the plan of %s: %v\n%s", n.name, err, p)
	}
	n.plan = p
}

func (l *topology) repair(n *node) []string {
	l.t.Helper()
	lines, err := n.dataPlane.Repair(l.t.Context())
	if err != nil {
		l.t.Errorf("repair %s: %v", n.name, err)
	}
	return lines
}

// outsideTable says what the outside does with what it gets from nodes.
const outsideTable = 100

// routeOutside makes the outside send what is for nodes' pools to the nodes,
// but lose what a node sends there: it is no way from one node to another.
func (l *topology) routeOutside(plans map[string]*plan.Plan) {
	l.t.Helper()
	must(l.t, l.out.Do(func() error {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: unix.RTPROT_STATIC},
			netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		for _, r := range routes {
			if err := netlink.RouteDel(&netlink.Route{Dst: r.Dst, Table: r.Table, Type: r.Type, Scope: unix.RT_SCOPE_NOWHERE}); err != nil {
				return fmt.Errorf("delete a route of the outside: %w", err)
			}
		}
		for _, a := range frontends(plans) {
			if _, hop := entrance(plans, a); hop.IsValid() && hop != a {
				if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.PrefixFrom(a, a.BitLen())), Gw: hop.AsSlice(), Protocol: unix.RTPROT_STATIC}); err != nil {
					return fmt.Errorf("route %s outside: %w", a, err)
				}
			}
		}
		for _, p := range plans {
			for _, pool := range p.Local.Pools {
				if pool.Network != plan.DefaultNetwork {
					continue // the outside is of the network of nodes
				}
				i := slices.IndexFunc(p.Local.Addresses, func(a netip.Addr) bool { return a.Is4() == pool.Prefix.Addr().Is4() })
				if i < 0 {
					continue
				}
				to := &netlink.Route{Dst: ipNet(pool.Prefix), Gw: p.Local.Addresses[i].AsSlice(), Protocol: unix.RTPROT_STATIC}
				lose := &netlink.Route{Dst: ipNet(pool.Prefix), Type: unix.RTN_BLACKHOLE, Table: outsideTable, Protocol: unix.RTPROT_STATIC}
				if err := errors.Join(netlink.RouteAdd(to), netlink.RouteAdd(lose)); err != nil {
					return fmt.Errorf("route %s outside: %w", pool.Prefix, err)
				}
			}
		}
		return nil
	}))
}

func underlayBits(a netip.Addr) int {
	if a.Is4() {
		return 24
	}
	return 64
}

func everything(like netip.Addr) netip.Prefix {
	p, _ := like.Prefix(0)
	return p
}

// addAddress gives an interface an address and returns when it can be used,
// which the kernel does later for IPv6.
func addAddress(link string, p netip.Prefix) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	routes, done := make(chan netlink.RouteUpdate), make(chan struct{})
	if err := netlink.RouteSubscribe(routes, done); err != nil {
		close(done)
		return err
	}
	// Who sends waits for each update to be taken, and ends behind the last.
	defer func() {
		close(done)
		for range routes {
		}
	}()
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(l, a); err != nil {
		return fmt.Errorf("add address %s to %s: %w", p, link, err)
	}
	timeout := time.After(patience)
	for {
		select {
		case r := <-routes:
			if r.Dst != nil && r.Route.Type == unix.RTN_LOCAL && r.Dst.IP.Equal(p.Addr().AsSlice()) {
				return nil
			}
		case <-timeout:
			return fmt.Errorf("address %s of %s does not become usable", p, link)
		}
	}
}

func setUp(link string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// waitUp returns when an interface carries packets: a veth pair whose ends are
// both up drops them until the kernel has told itself so.
func waitUp(link string) error {
	updates, done := make(chan netlink.LinkUpdate), make(chan struct{})
	defer close(done)
	if err := netlink.LinkSubscribe(updates, done); err != nil {
		return err
	}
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	state := l.Attrs().OperState
	for timeout := time.After(patience); state != netlink.OperUp; {
		select {
		case u := <-updates:
			if u.Link != nil && u.Attrs().Name == link {
				state = u.Attrs().OperState
			}
		case <-timeout:
			return fmt.Errorf("interface %s does not come up", link)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
