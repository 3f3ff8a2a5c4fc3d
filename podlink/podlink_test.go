package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/plan"
)

// newNetNS makes a network namespace that lives as long as the test, and
// returns a path to it.
func newNetNS(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	type made struct {
		f   *os.File
		err error
	}
	done := make(chan made)
	go func() {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- made{nil, err}
			return
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		done <- made{f, err}
	}()
	m := <-done
	if m.err != nil {
		t.Fatal(m.err)
	}
	t.Cleanup(func() { m.f.Close() })
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), m.f.Fd())
}

// in runs f in a network namespace.
func in(t *testing.T, ns string, f func() error) {
	t.Helper()
	if err := netns.Do(ns, f); err != nil {
		t.Fatal(err)
	}
}

var (
	gateway4 = netip.MustParseAddr("10.1.0.1")
	address4 = netip.MustParseAddr("10.1.0.2")
	address6 = netip.MustParseAddr("fd00::2")
)

var everything = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

func spec(pod string) Spec {
	return Spec{
		ContainerID: "c1", Interface: "eth0", Network: plan.DefaultNetwork, Configuration: "weft", HostInterface: HostName("c1", "eth0"), NetNS: pod,
		Addresses: []netip.Addr{address4, address6}, Gateways: []netip.Addr{gateway4, LinkLocalGateway}, Destinations: everything,
		MAC: plan.MACOf(address4), HostMAC: plan.MACOf(gateway4), MTU: 1400,
	}
}

// ensure makes an interface and does as a data plane would.
func ensure(s Spec) error {
	_, err := Ensure(s)
	if err != nil {
		return err
	}
	link, err := netlink.LinkByName(s.HostInterface)
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetUp(link), Await(s))
}

// TestNothingIsSentBeforeItIsUp has what runs in a pod's namespace send before
// a data plane knows of the pod.
func TestNothingIsSentBeforeItIsUp(t *testing.T) {
	node, pod := newNetNS(t), newNetNS(t)
	s := spec(pod)
	received := func() (packets uint64) {
		in(t, node, func() error {
			link, err := netlink.LinkByName(s.HostInterface)
			if err != nil {
				return err
			}
			packets = link.Attrs().Statistics.RxPackets
			return nil
		})
		return packets
	}
	send := func() error {
		link, err := netlink.LinkByName(s.Interface)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		frame := append(append(append([]byte{}, s.HostMAC[:]...), s.MAC[:]...), make([]byte, 50)...)
		frame[12], frame[13] = 0x88, 0xb5 // for experiments (IEEE 802)
		for range 100 {
			unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index})
		}
		return nil
	}
	in(t, node, func() error { _, err := Ensure(s); return err })
	in(t, pod, send)
	if n := received(); n != 0 {
		t.Errorf("%d packets came through before the data plane brought the interface up", n)
	}
	in(t, node, func() error { return ensure(s) })
	before := received()
	in(t, pod, send)
	if n := received() - before; n < 100 {
		t.Errorf("%d packets of 100 came through once it was up", n)
	}
}

func TestEnsureAndRemove(t *testing.T) {
	node, pod := newNetNS(t), newNetNS(t)
	s := spec(pod)
	var first, second int
	in(t, node, func() (err error) {
		if first, err = Ensure(s); err != nil {
			return err
		}
		second, err = Ensure(s)
		return errors.Join(err, ensure(s), Check(s))
	})
	if first == 0 || first != second {
		t.Errorf("making it again made another: index %d, then %d", first, second)
	}
	in(t, node, func() error {
		ends, err := List()
		if err != nil {
			return err
		}
		want := []HostEnd{{Name: s.HostInterface, Index: first, MTU: 1400, MAC: s.HostMAC, NextHop: true, Alias: "c1/eth0 10.1.0.2,fd00::2 weft -"}}
		if diff := cmp.Diff(want, ends); diff != "" {
			t.Error(diff)
		}
		link, err := netlink.LinkByName(s.HostInterface)
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		if len(addrs) != 1 || addrs[0].IPNet.String() != "fe80::1/64" || addrs[0].Flags&unix.IFA_F_TENTATIVE != 0 {
			t.Errorf("the host end has the addresses %v", addrs)
		}
		merges, err := ethtool(s.HostInterface, ethtoolGetGRO, 0)
		if err == nil && merges != 1 {
			t.Error("the host end does not merge packets")
		}
		return err
	})
	in(t, node, func() error { return errors.Join(Remove(s.HostInterface, 0), Remove(s.HostInterface, 0)) })
	for _, ns := range []string{node, pod} {
		in(t, ns, func() error {
			links, err := netlink.LinkList()
			for _, l := range links {
				if l.Attrs().Name != "lo" {
					t.Errorf("%s is left behind", l.Attrs().Name)
				}
			}
			return err
		})
	}
}

// awaitLocal waits until packets to an address end here. The kernel makes an
// IPv6 address local some time after it was added, on a worker of its own.
func awaitLocal(a netip.Addr) error {
	for end := time.Now().Add(5 * time.Second); ; runtime.Gosched() {
		routes, err := netlink.RouteGet(a.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s is not local: %v, %v", a, routes, err)
		}
	}
}

// TestTraffic sends packets through the pair, from a pod to the node's
// address and back, with nothing but routes added.
func TestTraffic(t *testing.T) {
	node, pod := newNetNS(t), newNetNS(t)
	s := spec(pod)
	var listeners []net.Listener
	in(t, node, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := errors.Join(netlink.LinkSetUp(lo), addAddr(&netlink.Handle{}, lo, gateway4, 32),
			addAddr(&netlink.Handle{}, lo, netip.MustParseAddr("fd00::1"), 128), ensure(s)); err != nil {
			return err
		}
		link, err := netlink.LinkByName(s.HostInterface)
		if err != nil {
			return err
		}
		for _, a := range s.Addresses {
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK,
				Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}); err != nil {
				return err
			}
		}
		for _, a := range []string{"10.1.0.1:0", "[fd00::1]:0"} {
			l, err := net.Listen("tcp", a)
			if err != nil {
				return err
			}
			listeners = append(listeners, l)
		}
		return awaitLocal(netip.MustParseAddr("fd00::1"))
	})
	for i, l := range listeners {
		defer l.Close()
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprint(conn, conn.RemoteAddr().(*net.TCPAddr).IP)
				conn.Close()
			}
		}()
		in(t, pod, func() error {
			conn, err := net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
			if err != nil {
				return err
			}
			defer conn.Close()
			b := make([]byte, 64)
			n, err := conn.Read(b)
			if got, want := string(b[:n]), s.Addresses[i].String(); got != want {
				t.Errorf("the node sees the pod as %s, want %s", got, want)
			}
			return err
		})
	}
}

// TestHalfMade takes away each part that Ensure makes, and has it made again.
func TestHalfMade(t *testing.T) {
	for name, breakIt := range map[string]func(s Spec, host, pod func(func(netlink.Link) error) error) error{
		"alias lost": func(s Spec, host, _ func(func(netlink.Link) error) error) error {
			return host(func(l netlink.Link) error { return netlink.LinkSetAlias(l, "") })
		},
		"host down": func(s Spec, host, _ func(func(netlink.Link) error) error) error { return host(netlink.LinkSetDown) },
		"pod down":  func(s Spec, _, pod func(func(netlink.Link) error) error) error { return pod(netlink.LinkSetDown) },
		"MTU changed": func(s Spec, _, pod func(func(netlink.Link) error) error) error {
			return pod(func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300) })
		},
		"renamed": func(s Spec, _, pod func(func(netlink.Link) error) error) error {
			return pod(func(l netlink.Link) error { return netlink.LinkSetName(l, "other") })
		},
		"addresses lost": func(s Spec, _, pod func(func(netlink.Link) error) error) error {
			return pod(func(l netlink.Link) error {
				addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
				for _, a := range addrs {
					err = errors.Join(err, netlink.AddrDel(l, &a))
				}
				return err
			})
		},
		"the length of an address changed": func(_ Spec, _, pod func(func(netlink.Link) error) error) error {
			return pod(func(l netlink.Link) error { return changeLength(l, address6.String()+"/128") })
		},
		"neighbours lost": func(s Spec, _, pod func(func(netlink.Link) error) error) error {
			return pod(func(l netlink.Link) error {
				neighs, err := netlink.NeighList(l.Attrs().Index, netlink.FAMILY_ALL)
				for _, n := range neighs {
					err = errors.Join(err, netlink.NeighDel(&n))
				}
				return err
			})
		},
		"routes lost": func(s Spec, _, pod func(func(netlink.Link) error) error) error {
			return pod(func(l netlink.Link) error {
				routes, err := netlink.RouteList(l, netlink.FAMILY_ALL)
				for _, r := range routes {
					if r.Gw != nil {
						err = errors.Join(err, netlink.RouteDel(&r))
					}
				}
				return err
			})
		},
		"gone": func(s Spec, host, _ func(func(netlink.Link) error) error) error { return host(netlink.LinkDel) },
	} {
		t.Run(name, func(t *testing.T) {
			node, pod := newNetNS(t), newNetNS(t)
			s := spec(pod)
			on := func(ns, name string) func(func(netlink.Link) error) error {
				return func(f func(netlink.Link) error) error {
					return netns.Do(ns, func() error {
						l, err := netlink.LinkByName(name)
						if err != nil {
							return err
						}
						return f(l)
					})
				}
			}
			in(t, node, func() error { return ensure(s) })
			if err := breakIt(s, on(node, s.HostInterface), on(pod, s.Interface)); err != nil {
				t.Fatal(err)
			}
			in(t, node, func() error {
				if err := Check(s); err == nil && name != "alias lost" {
					t.Error("Check finds nothing wrong")
				}
				if err := ensure(s); err != nil {
					return err
				}
				return Check(s)
			})
		})
	}
}

func TestNameTaken(t *testing.T) {
	node, pod := newNetNS(t), newNetNS(t)
	s := spec(pod)
	in(t, pod, func() error { return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}) })
	in(t, node, func() error {
		err := ensure(s)
		want := "interface eth0 in " + pod + ": the pod's network namespace has an interface of this name already"
		if !errors.Is(err, ErrNameTaken) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		ends, err := List()
		if len(ends) != 0 {
			t.Errorf("%v is left behind", ends)
		}
		return err
	})
	in(t, pod, func() error {
		l, err := netlink.LinkByName("eth0")
		if err == nil && l.Type() != "bridge" {
			t.Error("eth0 was replaced")
		}
		return err
	})
}

func TestPeerElsewhere(t *testing.T) {
	node, pod, other := newNetNS(t), newNetNS(t), newNetNS(t)
	s := spec(pod)
	in(t, node, func() error {
		elsewhere := s
		elsewhere.NetNS = other
		return errors.Join(ensure(elsewhere), ensure(s), Check(s))
	})
	in(t, other, func() error {
		if _, err := netlink.LinkByName("eth0"); !isGone(err) {
			t.Errorf("the old end is still there: %v", err)
		}
		return nil
	})
}

func TestAnothersInterfaceIsLeftAlone(t *testing.T) {
	node, pod, other := newNetNS(t), newNetNS(t), newNetNS(t)
	s := spec(pod)
	in(t, node, func() error {
		theirs := s
		theirs.NetNS, theirs.ContainerID, theirs.HostInterface = other, "c2", HostName("c2", "eth0")
		if err := errors.Join(ensure(theirs), call(theirs.HostInterface, s.HostInterface)); err != nil {
			return err
		}
		if err := ensure(s); err == nil || err.Error() != s.HostInterface+" belongs to interface eth0 of container c2" {
			t.Error(err)
		}
		return errors.Join(call(s.HostInterface, theirs.HostInterface), Check(theirs))
	})
}

// second is another interface of the same container, in a network with the same
// addresses.
func second(first Spec) Spec {
	s := first
	s.Network, s.Interface, s.HostInterface = "red", "net1", HostName(first.ContainerID, "net1")
	s.Destinations = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/64")}
	return s
}

// TestOneInterfaceHasTheDefaultRoute gives a pod two interfaces with the same
// addresses, each in a network of its own.
func TestOneInterfaceHasTheDefaultRoute(t *testing.T) {
	node, pod := newNetNS(t), newNetNS(t)
	first := spec(pod)
	other := second(first)
	in(t, node, func() error {
		for range 2 {
			if err := errors.Join(ensure(first), ensure(other), Check(first), Check(other)); err != nil {
				return err
			}
		}
		ends, err := List()
		for _, end := range ends {
			if want := other.stamp().String(); end.Name == other.HostInterface && (end.Alias != want || want != "c1/net1 10.1.0.2,fd00::2@red weft -") {
				t.Errorf("the alias of the second is %q", end.Alias)
			}
		}
		return err
	})
	in(t, pod, func() error {
		for text, want := range map[string]string{"10.2.0.9": "eth0", "10.1.255.9": "net1", "fd01::9": "eth0", "fd00::9": "net1"} {
			routes, err := netlink.RouteGet(netip.MustParseAddr(text).AsSlice())
			if err != nil || len(routes) != 1 {
				t.Errorf("%s: %v, %v", text, routes, err)
				continue
			}
			if l, err := netlink.LinkByIndex(routes[0].LinkIndex); err != nil || l.Attrs().Name != want {
				t.Errorf("the way to %s is %v and not %s, %v", text, l, want, err)
			}
		}
		return nil
	})
	// One goes, and the other stays whole.
	in(t, node, func() error { return errors.Join(Remove(other.HostInterface, 0), Check(first)) })
}

func TestAnothersRouteIsLeftAlone(t *testing.T) {
	node, pod := newNetNS(t), newNetNS(t)
	s := spec(pod)
	in(t, node, func() error {
		other := second(s)
		if err := errors.Join(ensure(s), ensure(other)); err != nil {
			return err
		}
		third := other
		third.Network, third.Interface, third.HostInterface = "blue", "net2", HostName("c1", "net2")
		third.Gateways = []netip.Addr{netip.MustParseAddr("10.1.0.254")}
		for destination, want := range map[string]string{
			"0.0.0.0/0":   "add the default route via 10.1.0.254: the pod has another default route",
			"10.1.0.0/16": "add the route to 10.1.0.0/16 via 10.1.0.254: the pod has another route to 10.1.0.0/16",
		} {
			third.Destinations = []netip.Prefix{netip.MustParsePrefix(destination)}
			if err := ensure(third); err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Error(err)
			}
		}
		return errors.Join(Check(s), Check(other))
	})
}

func TestSpecsThatCannotBe(t *testing.T) {
	for want, change := range map[string]func(*Spec){
		"a pod's interface needs a network": func(s *Spec) { s.Network = "" },
		`the network "a b" has a space or "@" in its name, which an interface's alias cannot hold`:                      func(s *Spec) { s.Network = "a b" },
		"no gateway [10.1.0.1] leads to ::/0, which is of another family":                                               func(s *Spec) { s.Gateways = s.Gateways[:1] },
		"has 271 bytes, of which Linux keeps 255: give the network \"" + strings.Repeat("n", 246) + "\" a shorter name": func(s *Spec) { s.Network = strings.Repeat("n", 246) },
	} {
		s := spec("/run/netns/a")
		change(&s)
		if err := s.validate(); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestCheckNetNS(t *testing.T) {
	pod := newNetNS(t)
	dir := t.TempDir()
	file, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		path, want string
		is         error
	}{
		{pod, "", nil},
		{filepath.Join(dir, "none"), "open " + filepath.Join(dir, "none") + ": no such file or directory", fs.ErrNotExist},
		{file, file + " is not a network namespace" + notMounted, nil},
		{fifo, fifo + " is not a network namespace", nil},
		{"/proc/self/ns/mnt", "/proc/self/ns/mnt is a namespace, but not a network namespace", nil},
		{"/proc/thread-self/ns/net", "/proc/thread-self/ns/net: this is the node's own network namespace", ErrOwnNetNS},
	} {
		err := CheckNetNS(test.path)
		if got := fmt.Sprint(err); got != test.want && (err != nil || test.want != "") {
			t.Errorf("%s: got %q, want %q", test.path, got, test.want)
		}
		if test.is != nil && !errors.Is(err, test.is) {
			t.Errorf("%s: %v is not %v", test.path, err, test.is)
		}
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]bool{
		HostName("c1", "eth0"): true, "weft0123456789a": true,
		"weft0": false, "weft-vxlan": false, "weft0123456789g": false, "weft0123456789": false, "eth0": false,
	} {
		if got := IsHostName(name); got != want {
			t.Errorf("IsHostName(%q) = %v", name, got)
		}
	}
	if HostName("a", "b") == HostName("a", "c") {
		t.Error("two interfaces of a container have the same name")
	}
}

func TestStampRoundTrip(t *testing.T) {
	for _, s := range []Stamp{
		{ContainerID: "c1", Interface: "eth0", Addresses: []netip.Addr{address4, address6}, Network: plan.DefaultNetwork, Configuration: "weft"},
		{ContainerID: strings.Repeat("c", 128), Interface: "eth0", Addresses: []netip.Addr{address6}, Network: "red"},
		{ContainerID: "c1", Interface: "eth0", Addresses: []netip.Addr{address4}, Network: plan.DefaultNetwork, Configuration: "weft", Owner: &Owner{}},
		{ContainerID: "c1", Interface: "eth0", Addresses: []netip.Addr{address4}, Network: "red", Owner: &Owner{Namespace: "shop", Pod: "web", UID: "u1"}},
		{ContainerID: "c1", Interface: "eth0", Addresses: []netip.Addr{address4}, Network: plan.DefaultNetwork, Configuration: "weft", Owner: &Owner{UID: "u1"}},
		{ContainerID: "c1", Interface: "eth0", Addresses: []netip.Addr{address4}, Network: plan.DefaultNetwork, Configuration: "weft", Owner: &Owner{Namespace: "shop", Pod: "web"}},
	} {
		got, err := ParseStamp(s.String())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(s, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Error(diff)
		}
	}
	long := Stamp{ContainerID: strings.Repeat("c", 128), Interface: "eth0", Addresses: []netip.Addr{address4, address6}, Network: "red", Configuration: strings.Repeat("n", 200)}
	if got := long.String(); len(got) > maxAlias || strings.Contains(got, "n") || !strings.HasSuffix(got, "fd00::2@red") {
		t.Errorf("the configuration's name was not left out of %q", got)
	}
	// Of an owner without room, the UID leads to the rest.
	named := Stamp{ContainerID: strings.Repeat("c", 64), Interface: "eth0", Addresses: []netip.Addr{address4, address6}, Network: plan.DefaultNetwork, Configuration: "weft",
		Owner: &Owner{Namespace: "shop", Pod: strings.Repeat("p", 253), UID: "5f0d8f4a-9c9e-4c0e-8f5e-0d6f1b1d2f3a"}}
	got, err := ParseStamp(named.String())
	if err != nil || got.Configuration != "weft" || got.Owner == nil || *got.Owner != (Owner{UID: named.Owner.UID}) {
		t.Errorf("of %v the alias keeps %v, %v", named.Owner, got, err)
	}
	named.Owner.UID = ""
	if got, err := ParseStamp(named.String()); err != nil || got.Owner != nil {
		t.Errorf("of an owner without room or UID the alias keeps %v, %v", got.Owner, err)
	}
}

// TestStampOfOlderVersions reads aliases from before they named a network: what they
// hold is in the default one.
func TestStampOfOlderVersions(t *testing.T) {
	for alias, want := range map[string]Stamp{
		"c1/eth0 10.1.0.2,fd00::2":                  {Addresses: []netip.Addr{address4, address6}},
		"c1/eth0 10.1.0.2 weft":                     {Addresses: []netip.Addr{address4}, Configuration: "weft"},
		"c1/eth0 10.1.0.2,fd00::2 weft shop/web/u1": {Addresses: []netip.Addr{address4, address6}, Configuration: "weft", Owner: &Owner{"shop", "web", "u1"}},
		"c1/eth0 10.1.0.2 weft -":                   {Addresses: []netip.Addr{address4}, Configuration: "weft", Owner: &Owner{}},
	} {
		want.ContainerID, want.Interface, want.Network = "c1", "eth0", plan.DefaultNetwork
		got, err := ParseStamp(alias)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%q: %s", alias, diff)
		}
		if again := got.String(); again != alias {
			t.Errorf("%q is written as %q", alias, again)
		}
	}
	for _, alias := range []string{"c1/eth0 10.1.0.2@", "c1/eth0 @red", "c1/eth0 10.1.0.2@default", "c1/eth0 10.1.0.2@red@blue"} {
		if s, err := ParseStamp(alias); err == nil {
			t.Errorf("%q is read as %+v", alias, s)
		}
	}
}

func FuzzParseStamp(f *testing.F) {
	f.Add("c1/eth0 10.1.0.2,fd00::2 weft")
	f.Add("c1/eth0 10.1.0.2")
	f.Add("c1/eth0 10.1.0.2 weft shop/web/u1")
	f.Add("c1/eth0 10.1.0.2 - -")
	f.Add("c1/eth0 10.1.0.2,fd00::2@red weft -")
	f.Add("/ ,")
	f.Fuzz(func(t *testing.T, alias string) {
		s, err := ParseStamp(alias)
		if err != nil || len(alias) > maxAlias {
			return
		}
		if again, err := ParseStamp(s.String()); err != nil || again.String() != s.String() {
			t.Errorf("%q reads as %q, which reads as %q, %v", alias, s, again, err)
		}
	})
}

func TestResize(t *testing.T) {
	node, pod, other := newNetNS(t), newNetNS(t), newNetNS(t)
	s := spec(pod)
	in(t, node, func() error {
		if err := ensure(s); err != nil {
			return err
		}
		for _, mtu := range []int{1300, 9000, 9000, 1400} {
			s.MTU = mtu
			if err := errors.Join(Resize(s), Check(s)); err != nil {
				t.Errorf("MTU %d: %v", mtu, err)
			}
		}
		forgotten := s
		forgotten.NetNS = ""
		if err := Resize(forgotten); err == nil || !strings.Contains(err.Error(), "in which network namespace the other end of "+s.HostInterface+" is") {
			t.Errorf("of an interface of which no namespace is known it says %v", err)
		}
		elsewhere := s
		elsewhere.NetNS, elsewhere.MTU = other, 1300
		if err := Resize(elsewhere); err == nil || !strings.Contains(err.Error(), "the other end of "+s.HostInterface+" is not in "+other) {
			t.Errorf("got %v", err)
		}
		return Check(s)
	})
}
