package link_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/announce/link"
	"github.com/weftnet/weft/announce/wire"
	"github.com/weftnet/weft/internal/await"
	"github.com/weftnet/weft/internal/netns"
)

// patience is how long to wait for what should happen.
const patience = 30 * time.Second

// host is a network namespace with an interface eth0 on a link that all hosts of a test share.
type host struct {
	t    *testing.T
	path string
}

// do runs f in the host's network namespace.
func (h host) do(f func() error) {
	h.t.Helper()
	if err := netns.Do(h.path, f); err != nil {
		h.t.Fatal(err)
	}
}

// run runs a command in the host's network namespace.
func (h host) run(command ...string) (out string, err error) {
	err = netns.Do(h.path, func() error {
		b, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		out = string(b)
		return err
	})
	return out, err
}

func (h host) must(command ...string) string {
	h.t.Helper()
	out, err := h.run(command...)
	if err != nil {
		h.t.Fatalf("%s: %v: %s", strings.Join(command, " "), err, out)
	}
	return out
}

// hosts makes a link with hosts on it, 192.0.2.1 and 2001:db8::1 the first.
func hosts(t *testing.T, n int) (all []host) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	dir := t.TempDir()
	makeNamespace := func(name string) host {
		h := host{t, filepath.Join(dir, name)}
		err := netns.Thread(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			if err := os.WriteFile(h.path, nil, 0o600); err != nil {
				return err
			}
			return unix.Mount("/proc/thread-self/ns/net", h.path, "", unix.MS_BIND, "")
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(h.path, unix.MNT_DETACH) })
		return h
	}
	middle := makeNamespace("link")
	middle.must("ip", "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
	middle.must("ip", "link", "set", "br0", "up")
	for i := range n {
		h := makeNamespace(fmt.Sprint("host", i+1))
		ns, err := vnetns.GetFromPath(h.path)
		if err != nil {
			t.Fatal(err)
		}
		middle.do(func() error {
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("to", i+1)}, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns)})
		})
		ns.Close()
		middle.must("ip", "link", "set", fmt.Sprint("to", i+1), "master", "br0", "up")
		h.must("sysctl", "-qw", "net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.eth0.accept_dad=0")
		h.must("ip", "link", "set", "lo", "up")
		h.must("ip", "link", "set", "eth0", "up")
		h.must("ip", "address", "add", fmt.Sprintf("192.0.2.%d/24", i+1), "dev", "eth0")
		h.must("ip", "address", "add", fmt.Sprintf("2001:db8::%d/64", i+1), "dev", "eth0", "nodad")
		all = append(all, h)
	}
	return all
}

// port is one with what was taken from it and is still to be looked at.
type port struct {
	*link.Port
	wake chan struct{}
	all  []link.Event
}

// next returns what was heard next, until a timeout.
func (p *port) next(timeout <-chan time.Time) (e link.Event, is bool) {
	for len(p.all) == 0 {
		select {
		case <-p.wake:
			p.all = p.Take()
		case <-timeout:
			return e, false
		}
	}
	e, p.all = p.all[0], p.all[1:]
	return e, true
}

// open opens the host's port on the link.
func (h host) open() *port {
	h.t.Helper()
	p := &port{wake: make(chan struct{}, 1)}
	h.do(func() (err error) {
		p.Port, err = link.Open("eth0", slog.New(slog.NewTextHandler(io.Discard, nil)), p.wake)
		return err
	})
	h.t.Cleanup(p.Close)
	return p
}

func (h host) mac() string {
	_, after, _ := strings.Cut(h.must("ip", "link", "show", "dev", "eth0"), "link/ether ")
	return strings.Fields(after)[0]
}

// neighbour is the Ethernet address that the host knows of an address, or "".
func (h host) neighbour(a netip.Addr) string {
	out := strings.Fields(h.must("ip", "neigh", "show", a.String(), "dev", "eth0"))
	for i, word := range out {
		if word == "lladdr" && i+1 < len(out) {
			return out[i+1]
		}
	}
	return ""
}

// finds waits until the host finds an address at an Ethernet address, asking anew each time.
func (h host) finds(a netip.Addr, mac string) {
	h.t.Helper()
	await.NoError(h.t, patience, fmt.Sprintf("%s is found at %s", a, mac), func() error {
		h.run("ip", "neigh", "flush", "dev", "eth0")
		h.do(func() error {
			c, err := net.Dial("udp", netip.AddrPortFrom(a, 9).String())
			if err == nil {
				c.Write([]byte("where are you"))
				c.Close()
			}
			return nil
		})
		deadline := time.Now().Add(time.Second)
		for time.Now().Before(deadline) {
			if got := h.neighbour(a); got == mac {
				return nil
			}
			time.Sleep(10 * time.Millisecond)
		}
		return fmt.Errorf("it is found at %q", h.neighbour(a))
	})
}

var (
	four = netip.MustParseAddr("192.0.2.100")
	six  = netip.MustParseAddr("2001:db8::100")
	both = map[netip.Addr]bool{four: true, six: true}
	none = map[netip.Addr]bool{}
)

// answer has a port answer for addresses, and fails where it cannot for some.
func answer(p *port, answer, watch map[netip.Addr]bool) error {
	unable, err := p.Answer(answer, watch)
	for a, why := range unable {
		err = errors.Join(err, fmt.Errorf("%s: %w", a, why))
	}
	return err
}

// event waits for one that is as wanted, and has it brought about again and again: a frame may
// be lost, as before the link's bridge forwards to an interface.
func event(t *testing.T, p *port, what string, bring func() error, wanted func(link.Event) bool) (found link.Event) {
	t.Helper()
	await.NoError(t, patience, what+" is heard", func() error {
		if err := bring(); err != nil {
			return err
		}
		timeout := time.After(time.Second)
		for {
			e, is := p.next(timeout)
			if !is {
				return errors.New("nothing is")
			}
			if wanted(e) {
				found = e
				return nil
			}
		}
	})
	return found
}

// TestAnAddressIsFoundWhereItIsAnswered has the kernel of another host ask for addresses, which
// one node answers for and then another.
func TestAnAddressIsFoundWhereItIsAnswered(t *testing.T) {
	all := hosts(t, 3)
	client, first, second := all[0], all[1], all[2]
	one, two := first.open(), second.open()
	for a := range both {
		it := map[netip.Addr]bool{a: true}
		if err := answer(one, it, it); err != nil {
			t.Fatal(err)
		}
		client.finds(a, first.mac())
		if err := answer(one, none, it); err != nil {
			t.Fatal(err)
		}
		if err := answer(two, it, it); err != nil {
			t.Fatal(err)
		}
		// What the client knows changes by the announcement alone.
		await.NoError(t, patience, fmt.Sprintf("%s is known to have moved", a), func() error {
			if err := two.Announce(a); err != nil {
				return err
			}
			if got := client.neighbour(a); got != second.mac() {
				return fmt.Errorf("it is known at %q", got)
			}
			return nil
		})
		client.finds(a, second.mac())
	}
}

// TestANodeFollowsItsEthernetAddress changes that of the node's interface.
func TestANodeFollowsItsEthernetAddress(t *testing.T) {
	all := hosts(t, 2)
	p := all[1].open()
	if err := answer(p, both, both); err != nil {
		t.Fatal(err)
	}
	all[1].must("ip", "link", "set", "eth0", "address", "02:00:00:00:99:01")
	s, err := p.Look()
	if err != nil || s.MAC.String() != "02:00:00:00:99:01" || !s.Up || s.Index != p.Index() {
		t.Fatalf("the interface is %+v, %v", s, err)
	}
	for a := range both {
		all[0].finds(a, "02:00:00:00:99:01")
	}
	all[1].must("ip", "link", "set", "eth0", "down")
	if s, err := p.Look(); err != nil || s.Up {
		t.Errorf("an interface that is down is %+v, %v", s, err)
	}
	all[1].must("ip", "link", "set", "eth0", "up")
	for a := range both {
		all[0].finds(a, "02:00:00:00:99:01")
	}
	all[1].must("ip", "link", "delete", "eth0")
	if _, err := p.Look(); err == nil {
		t.Error("an interface that is gone is none that is missed")
	}
}

// TestWhoElseHasIt probes for addresses of another host's kernel and of another node, and is
// told who has them.
func TestWhoElseHasIt(t *testing.T) {
	all := hosts(t, 3)
	kernel, node, asker := all[0], all[1], all[2]
	other, p := node.open(), asker.open()
	if err := answer(other, both, both); err != nil {
		t.Fatal(err)
	}
	theirs := map[netip.Addr]string{four: node.mac(), six: node.mac(),
		netip.MustParseAddr("192.0.2.1"): kernel.mac(), netip.MustParseAddr("2001:db8::1"): kernel.mac()}
	watch := make(map[netip.Addr]bool)
	for a := range theirs {
		watch[a] = true
	}
	if err := answer(p, none, watch); err != nil {
		t.Fatal(err)
	}
	for a, mac := range theirs {
		e := event(t, p, "who has "+a.String(), func() error { return p.Probe(a) }, func(e link.Event) bool { return e.Conflict == a })
		if e.From.String() != mac {
			t.Errorf("%s is said to be at %s, and is at %s", a, e.From, mac)
		}
	}
	// Of its own addresses the kernel must have heard nothing that it takes for a conflict.
	if got := kernel.must("ip", "address", "show", "dev", "eth0"); strings.Contains(got, "dadfailed") {
		t.Errorf("a probe was taken for a claim:\n%s", got)
	}
}

// TestKernelsSeeWhoAnswers has another host's kernel check whether it may have an address (RFC
// 4862, section 5.4), which a node answers for.
func TestKernelsSeeWhoAnswers(t *testing.T) {
	all := hosts(t, 2)
	p := all[1].open()
	if err := answer(p, both, both); err != nil {
		t.Fatal(err)
	}
	all[0].must("sysctl", "-qw", "net.ipv6.conf.all.accept_dad=1", "net.ipv6.conf.eth0.accept_dad=1")
	all[0].must("ip", "address", "add", six.String()+"/64", "dev", "eth0")
	await.NoError(t, patience, "the kernel sees that the address is a node's", func() error {
		if out := all[0].must("ip", "address", "show", "dev", "eth0"); !strings.Contains(out, "dadfailed") {
			return fmt.Errorf("it has\n%s", out)
		}
		return nil
	})
	// Who takes one of IPv4 without asking is seen as soon as he asks for others by it.
	all[0].must("ip", "address", "add", four.String()+"/24", "dev", "eth0")
	ask := func() error {
		return netns.Do(all[0].path, func() error {
			c, err := net.DialUDP("udp", &net.UDPAddr{IP: four.AsSlice()}, &net.UDPAddr{IP: net.ParseIP("192.0.2.2"), Port: 9})
			if err == nil {
				_, err = c.Write([]byte("where are you"))
				c.Close()
			}
			return err
		})
	}
	event(t, p, "that somebody took the address of IPv4", ask, func(e link.Event) bool { return e.Conflict == four })
}

func TestHeartbeatsAreHeard(t *testing.T) {
	all := hosts(t, 2)
	one, two := all[0].open(), all[1].open()
	h := wire.Heartbeat{Node: "node1"}
	for i := range 1000 {
		h.Claims = append(h.Claims, wire.Claim{Address: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), State: wire.Claims})
	}
	heard := make(map[netip.Addr]bool)
	event(t, two, "all of a heartbeat", func() error { return one.Say(h) }, func(e link.Event) bool {
		if e.Heartbeat == nil {
			return false
		}
		if e.Heartbeat.Node != "node1" || e.From.String() != all[0].mac() {
			t.Fatalf("from %s came what %s says", e.From, e.Heartbeat.Node)
		}
		for _, c := range e.Heartbeat.Claims {
			heard[c.Address] = true
		}
		return len(heard) == 1000
	})
	for _, e := range one.Take() {
		if e.Heartbeat != nil {
			t.Error("it hears itself")
		}
	}
}

// sends has the host send frames as they are, with the tag of a VLAN (802.1Q) in each.
func (h host) sends(vlan uint16, frames ...[]byte) {
	h.t.Helper()
	h.do(func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, f := range frames {
			tagged := slices.Concat(f[:12], []byte{0x81, 0, 0xe0 | byte(vlan>>8), byte(vlan)}, f[12:])
			if err := unix.Sendto(fd, tagged, 0, &unix.SockaddrLinklayer{Ifindex: eth0.Index}); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestFramesOfOtherVLANs has a host send heartbeats, questions and announcements with tags: what
// has one for its priority alone is of the link, and what is of a VLAN is not.
func TestFramesOfOtherVLANs(t *testing.T) {
	all := hosts(t, 2)
	sender, p := all[0], all[1].open()
	lastFour, lastSix := four.Next(), six.Next()
	if err := answer(p, none, map[netip.Addr]bool{four: true, six: true, lastFour: true, lastSix: true}); err != nil {
		t.Fatal(err)
	}
	from := wire.MAC{2, 0, 0, 0, 0x99, 1}
	heartbeat := wire.Frames(from, wire.Heartbeat{Node: "node1", Claims: []wire.Claim{{Address: four}}}, 1500)
	frames := slices.Concat(heartbeat, wire.AnnounceARP(from, four), [][]byte{wire.AnnounceNeighbour(from, six)})
	// Frames of one sender and one kind come in their order: what is sent last of each tells that all came. What is not to be heard
	// comes first, so that nothing is left of what is.
	last := wire.Frames(from, wire.Heartbeat{Node: "last", Claims: []wire.Claim{{Address: four}}}, 1500)
	last = slices.Concat(last, wire.AnnounceARP(from, lastFour), [][]byte{wire.AnnounceNeighbour(from, lastSix)})
	for _, vlan := range []uint16{42, 0} {
		hears := vlan == 0
		heard, ended := make(map[string]bool), make(map[string]bool)
		event(t, p, "what is sent last", func() error {
			sender.sends(vlan, frames...)
			sender.sends(0, last...)
			return nil
		}, func(e link.Event) bool {
			switch {
			case e.From != from:
			case e.Heartbeat != nil && e.Heartbeat.Node == "last":
				ended["heartbeat"] = true
			case e.Heartbeat != nil:
				heard["heartbeat"] = true
			case e.Conflict == lastFour || e.Conflict == lastSix:
				ended[e.Conflict.String()] = true
			default:
				heard[e.Conflict.String()] = true
			}
			return len(ended) == 3 && (len(heard) == 3 || !hears)
		})
		if !hears && len(heard) > 0 {
			t.Errorf("of VLAN %d it hears %v", vlan, heard)
		}
	}
}

func TestWhatIsNoLink(t *testing.T) {
	h := hosts(t, 1)[0]
	for name, want := range map[string]string{"lo": "none of Ethernet", "eth9": "not found"} {
		h.do(func() error {
			if _, err := link.Open(name, slog.Default(), make(chan struct{}, 1)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
			return nil
		})
	}
}

// Many groups are joined, and left again.
func TestManyAddressesOfIPv6(t *testing.T) {
	h := hosts(t, 1)[0]
	p := h.open()
	many := make(map[netip.Addr]bool)
	for i := range 1000 {
		a := six.As16()
		a[13], a[14], a[15] = 7, byte(i>>8), byte(i)
		many[netip.AddrFrom16(a)] = true
	}
	groups := make(map[string]bool)
	for a := range many {
		groups[wire.SolicitedNode(a).String()] = true
	}
	// What the kernel lists while it changes it may list twice.
	count := func() int {
		in := make(map[string]bool)
		for _, word := range strings.Fields(h.must("ip", "maddress", "show", "dev", "eth0")) {
			if groups[word] {
				in[word] = true
			}
		}
		return len(in)
	}
	if err := answer(p, many, many); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 1000 {
		t.Errorf("the interface is in %d of their groups", n)
	}
	if err := answer(p, none, none); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 0 {
		t.Errorf("the interface stays in %d of their groups", n)
	}
}

// TestTooManyAddressesOfIPv6 has the kernel let the node be in few groups: it says for which
// addresses it may not be asked, and answers for the others.
func TestTooManyAddressesOfIPv6(t *testing.T) {
	h := hosts(t, 1)[0]
	if out, err := h.run("sysctl", "-qw", "net.core.optmem_max=2048"); err != nil {
		t.Skipf("a network namespace has no limit of its own before Linux 6.7: %v: %s", err, out)
	}
	p := h.open()
	if err := answer(p, both, both); err != nil {
		t.Fatal(err)
	}
	many := make(map[netip.Addr]bool)
	for i := range 4096 {
		a := six.As16()
		a[13], a[14], a[15] = 7, byte(i>>8), byte(i)
		many[netip.AddrFrom16(a)] = true
	}
	many[four] = true
	unable, err := p.Answer(many, many)
	if err != nil || len(unable) == 0 || len(unable) > len(many)-100 {
		t.Fatalf("of %d addresses it cannot answer for %d: %v", len(many), len(unable), err)
	}
	for a, why := range unable {
		if !many[a] || a == four || !strings.Contains(why.Error(), "net.core.optmem_max") {
			t.Fatalf("%s: %v", a, why)
		}
		break
	}
	// What it leaves makes room.
	fewer := maps.Clone(both)
	for a := range unable {
		if fewer[a] = true; len(fewer) == 100 {
			break
		}
	}
	if err := answer(p, fewer, fewer); err != nil {
		t.Errorf("now it answers for few: %v", err)
	}
}
