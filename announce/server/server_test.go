package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/announce"
	"github.com/weftnet/weft/announce/election"
	"github.com/weftnet/weft/announce/link"
	"github.com/weftnet/weft/announce/server"
	"github.com/weftnet/weft/announce/wire"
	"github.com/weftnet/weft/internal/await"
	"github.com/weftnet/weft/internal/netns"
)

const patience = 60 * time.Second

// node is a network namespace on a link that all share.
type node struct {
	t    *testing.T
	name string
	path string
	*server.Server
	// end ends the server, and returns when it has ended.
	end     func()
	mu      sync.Mutex
	problem string
	// refused is for how long the node leaves alone what somebody else has; 0 for as long as nodes do.
	refused time.Duration
	// repeat is how often the node tells the link of an address again; 0 for as often as nodes do.
	repeat time.Duration
	// took is called as the server's Took, where it is not nil, and changes is how often its Changed was.
	took    func(int)
	changes atomic.Int64
}

func (n *node) run(command ...string) (out string, err error) {
	err = netns.Do(n.path, func() error {
		b, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		out = string(b)
		return err
	})
	return out, err
}

func (n *node) must(command ...string) string {
	n.t.Helper()
	out, err := n.run(command...)
	if err != nil {
		n.t.Fatalf("%s: %s: %v: %s", n.name, strings.Join(command, " "), err, out)
	}
	return out
}

func namespace(t *testing.T, dir, name string) *node {
	t.Helper()
	n := &node{t: t, name: name, path: filepath.Join(dir, name)}
	err := netns.Thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		if err := os.WriteFile(n.path, nil, 0o600); err != nil {
			return err
		}
		return unix.Mount("/proc/thread-self/ns/net", n.path, "", unix.MS_BIND, "")
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(n.path, unix.MNT_DETACH) })
	return n
}

// nodes makes a link with nodes on it, and a client that is none. The first node has 192.0.2.1.
func nodes(t *testing.T, count int) (bridge, client *node, all []*node) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	dir := t.TempDir()
	bridge = namespace(t, dir, "link")
	bridge.must("ip", "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
	bridge.must("ip", "link", "set", "br0", "up")
	for i := range count + 1 {
		n := namespace(t, dir, fmt.Sprint("node", i+1))
		n.plug(bridge, "eth0", fmt.Sprint("to", i+1))
		n.must("ip", "link", "set", "lo", "up")
		n.must("ip", "address", "add", fmt.Sprintf("192.0.2.%d/24", i+1), "dev", "eth0")
		n.must("ip", "address", "add", fmt.Sprintf("2001:db8::%d/64", i+1), "dev", "eth0", "nodad")
		all = append(all, n)
	}
	return bridge, all[count], all[:count]
}

// plug has a node have an interface on the link. The link's end of it is called to.
func (n *node) plug(bridge *node, name, to string) {
	n.t.Helper()
	ns, err := vnetns.GetFromPath(n.path)
	if err != nil {
		n.t.Fatal(err)
	}
	defer ns.Close()
	err = netns.Do(bridge.path, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: to}, PeerName: name, PeerNamespace: netlink.NsFd(ns)})
	})
	if err != nil {
		n.t.Fatal(err)
	}
	bridge.must("ip", "link", "set", to, "master", "br0", "up")
	n.must("ip", "link", "set", name, "up")
}

// mac is the Ethernet address of one of a node's interfaces.
func (n *node) mac(name string) string {
	_, after, _ := strings.Cut(n.must("ip", "link", "show", "dev", name), "link/ether ")
	return strings.Fields(after)[0]
}

// start starts the node's server, for a standing.
func (n *node) start(standing server.Standing) {
	n.t.Helper()
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan struct{})
	n.Server = server.New(n.name, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if n.refused > 0 {
		n.Timing.Refused = n.refused
	}
	if n.repeat > 0 {
		n.Timing.Repeat = n.repeat
	}
	n.Problem = func(text string) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.problem = text
	}
	n.Changed = func() { n.changes.Add(1) }
	if n.took != nil {
		n.Took = n.took
	}
	n.end = func() { end(); <-ended }
	n.t.Cleanup(n.end)
	n.Stand(standing)
	go func() {
		defer close(ended)
		if err := netns.Do(n.path, func() error { return n.Run(ctx) }); err != nil {
			n.t.Error(err)
		}
	}()
}

// standing has all nodes be candidates for addresses.
func standing(all []*node, me *node, virtual bool, addresses ...netip.Addr) server.Standing {
	s := server.Standing{Candidates: make(map[netip.Addr]announce.Candidate), Peers: make(map[string]bool)}
	for _, a := range addresses {
		c := announce.Candidate{Link: "eth0", Virtual: virtual}
		for _, n := range all {
			s.Peers[n.name] = true
			if n != me && election.Score(a, n.name) < election.Score(a, me.name) {
				c.Before = append(c.Before, n.name)
			}
		}
		s.Candidates[a] = c
	}
	return s
}

// port is one of a machine that is no node, with what was taken from it and is still to be looked at.
type port struct {
	*link.Port
	wake chan struct{}
	all  []link.Event
}

// open opens the machine's port on the link.
func (n *node) open() *port {
	n.t.Helper()
	p := &port{wake: make(chan struct{}, 1)}
	err := netns.Do(n.path, func() (err error) {
		p.Port, err = link.Open("eth0", slog.New(slog.DiscardHandler), p.wake)
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(p.Close)
	return p
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

// owner waits until exactly one node answers for an address, and returns it.
func owner(t *testing.T, all []*node, a netip.Addr) (owner *node) {
	t.Helper()
	await.NoError(t, patience, fmt.Sprintf("one node answers for %s", a), func() error {
		var owners []string
		for _, n := range all {
			if n.Server != nil && slices.Contains(n.Answered(), a) {
				owners, owner = append(owners, n.name), n
			}
		}
		if len(owners) != 1 {
			problems := ""
			for _, n := range all {
				n.mu.Lock()
				problems += n.problem
				n.mu.Unlock()
			}
			return fmt.Errorf("%v do (%s)", owners, problems)
		}
		return nil
	})
	return owner
}

var (
	four = netip.MustParseAddr("192.0.2.100")
	six  = netip.MustParseAddr("2001:db8::100")
)

// says is what a program says that listens on a node.
func (n *node) listen(a netip.Addr, port uint16) {
	n.t.Helper()
	err := netns.Do(n.path, func() error {
		l, err := net.Listen("tcp", netip.AddrPortFrom(a, port).String())
		if err != nil {
			return err
		}
		n.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				io.WriteString(c, n.name)
				c.Close()
			}
		}()
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
}

// asks asks who answers at an address.
func (n *node) asks(a netip.Addr, port uint16) (who string, err error) {
	err = netns.Do(n.path, func() error {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(a, port).String(), time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Second))
		b, err := io.ReadAll(c)
		who = string(b)
		return err
	})
	return who, err
}

func (n *node) isAnswered(a netip.Addr, by *node) {
	n.t.Helper()
	await.NoError(n.t, patience, fmt.Sprintf("%s is answered by %s", a, by.name), func() error {
		who, err := n.asks(a, 80)
		if err == nil && who != by.name {
			err = fmt.Errorf("by %s", who)
		}
		return err
	})
}

// TestAVirtualAddressFailsOver has its owner die, restart, and leave.
func TestAVirtualAddressFailsOver(t *testing.T) {
	link, client, all := nodes(t, 3)
	both := []netip.Addr{four, six}
	for _, n := range all {
		n.listen(netip.IPv6Unspecified(), 80) // and so of IPv4
		n.start(standing(all, n, true, both...))
	}
	for _, a := range both {
		client.isAnswered(a, owner(t, all, a))
	}

	t.Log("the link of the owner is cut")
	first := owner(t, all, four)
	port := "to" + strings.TrimPrefix(first.name, "node")
	link.must("ip", "link", "set", port, "nomaster")
	others := slices.DeleteFunc(slices.Clone(all), func(n *node) bool { return n == first })
	for _, a := range both {
		client.isAnswered(a, owner(t, others, a))
	}

	t.Log("it comes back, and both have the address for a moment")
	link.must("ip", "link", "set", port, "master", "br0")
	for _, a := range both {
		client.isAnswered(a, owner(t, all, a))
	}

	t.Log("the owner ends for good")
	second := owner(t, all, four)
	leaving := standing(all, second, true, both...)
	leaving.Leaving = true
	second.Stand(leaving)
	second.end()
	second.Server = nil
	if out := second.must("ip", "address", "show", "dev", "lo"); strings.Contains(out, four.String()) {
		t.Errorf("it keeps the address:\n%s", out)
	}
	for _, a := range both {
		client.isAnswered(a, owner(t, all, a))
	}
}

// TestAKilledOwnerAnswersNoMore has a server end without a word, as one that is killed: the kernel
// of its node still has the address, and must not answer for it.
func TestAKilledOwnerAnswersNoMore(t *testing.T) {
	_, client, all := nodes(t, 2)
	both := []netip.Addr{four, six}
	for _, n := range all {
		n.listen(netip.IPv6Unspecified(), 80) // and so of IPv4
	}
	// What a killed one leaves is what one leaves that pauses.
	dead, other := all[0], all[1]
	dead.start(standing(all, dead, true, both...))
	for _, a := range both {
		client.isAnswered(a, owner(t, all, a))
	}
	dead.end()
	dead.Server = nil
	if out := dead.must("ip", "address", "show", "dev", "lo"); !strings.Contains(out, four.String()) || !strings.Contains(out, six.String()) {
		t.Fatalf("packets that come to a node that pauses find nobody:\n%s", out)
	}
	other.start(standing(all, other, true, both...))
	for _, a := range both {
		owner(t, all, a)
		client.run("ip", "neigh", "flush", "dev", "eth0")
		for range 5 {
			client.run("ip", "neigh", "flush", "dev", "eth0")
			client.isAnswered(a, other)
		}
	}
	dead.start(standing(all, dead, true, both...))
	await.NoError(t, patience, "the node that was dead has the addresses no more", func() error {
		if out := dead.must("ip", "address", "show", "dev", "lo"); strings.Contains(out, four.String()) || strings.Contains(out, six.String()) {
			return fmt.Errorf("it has\n%s", out)
		}
		return nil
	})
	for _, a := range both {
		if n := owner(t, all, a); n != other {
			t.Errorf("%s came back and took %s", n.name, a)
		}
	}
}

// TestSomebodyElseHasTheAddress has a host on the link that is no node have it.
func TestSomebodyElseHasTheAddress(t *testing.T) {
	_, client, all := nodes(t, 1)
	client.must("ip", "address", "add", four.String()+"/24", "dev", "eth0")
	n := all[0]
	n.start(standing(all, n, false, four, six))
	await.NoError(t, patience, "it is said that somebody else has the address", func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if !strings.Contains(n.problem, "somebody else has 192.0.2.100 (") {
			return fmt.Errorf("the problem is %q", n.problem)
		}
		return nil
	})
	owner(t, all, six)
	if slices.Contains(n.Answered(), four) {
		t.Error("it answers for what somebody else has")
	}
	await.NoError(t, patience, "what somebody else has is counted", func() error {
		if candidates, refused := n.Counts(); candidates != 2 || refused != 1 {
			return fmt.Errorf("the node may answer for %d addresses and leaves %d alone, want 2 and 1", candidates, refused)
		}
		return nil
	})
}

// says waits until a node's problem has some words.
func (n *node) says(words ...string) {
	n.t.Helper()
	await.NoError(n.t, patience, fmt.Sprintf("%s says %q", n.name, words), func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, w := range words {
			if !strings.Contains(n.problem, w) {
				return fmt.Errorf("the problem is %q", n.problem)
			}
		}
		return nil
	})
}

// saysNothing waits until a node has no problem.
func (n *node) saysNothing() {
	n.t.Helper()
	await.NoError(n.t, patience, n.name+" says nothing", func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.problem != "" {
			return errors.New(n.problem)
		}
		return nil
	})
}

// TestAnotherClusterOnTheLink has a node of another cluster on the link, which has the name of a peer, and then that of the node
// itself, and takes an address that it would take from a peer: it is nobody's peer or namesake, and the node keeps the address.
func TestAnotherClusterOnTheLink(t *testing.T) {
	_, client, all := nodes(t, 1)
	n := all[0]
	port := client.open()
	now := standing(all, n, false, four)
	now.Peers["node9"] = true
	now.Marks = map[string]wire.Mark{n.name: wire.MarkOf("mine"), "node9": wire.MarkOf("a peer's")}
	c := now.Candidates[four]
	c.Grade = 9
	now.Candidates[four] = c
	n.start(now)
	owner(t, all, four)
	var mark wire.Mark
	for timeout := time.After(patience); mark == (wire.Mark{}); {
		e, is := port.next(timeout)
		if !is {
			t.Fatal("the node says nothing")
		}
		if e.Heartbeat != nil {
			if mark = e.Heartbeat.Mark; mark != now.Marks[n.name] {
				t.Fatalf("the node says that its mark is %x", mark)
			}
		}
	}
	say := func(name string, mark wire.Mark) {
		t.Helper()
		if err := port.Say(wire.Heartbeat{Node: name, Mark: mark, Claims: []wire.Claim{{Address: four, State: wire.Owns}}}); err != nil {
			t.Fatal(err)
		}
	}
	say("node9", wire.MarkOf("another cluster's"))
	n.says("a node of another cluster, or one that was deleted, says that it has 192.0.2.100 ("+client.mac("eth0")+")", "addresses of its own")
	if !slices.Contains(n.Answered(), four) {
		t.Error("another cluster takes the address as a peer would")
	}
	// What is said next is heard before the last.
	say(n.name, wire.MarkOf("another cluster's"))
	say("node9", wire.Mark{}) // as nodes of former versions do
	await.NoError(t, patience, "a peer of a former version takes the address", func() error {
		if slices.Contains(n.Answered(), four) {
			return errors.New("the node has it still")
		}
		return nil
	})
	n.saysNothing()

	t.Log("the other cluster had the address before")
	owner(t, all, four)
	n.end()
	client.must("ip", "address", "add", four.String()+"/24", "dev", "eth0")
	n.refused = time.Hour
	n.start(now)
	n.says("somebody else has 192.0.2.100 (" + client.mac("eth0"))
	await.NoError(t, patience, "it is said of which cluster that one is not", func() error {
		say("node10", wire.MarkOf("another cluster's")) // a name that the cluster does not have
		n.mu.Lock()
		defer n.mu.Unlock()
		if !strings.Contains(n.problem, "somebody else has 192.0.2.100 (a node of another cluster or a deleted one, "+client.mac("eth0")) {
			return fmt.Errorf("the problem is %q", n.problem)
		}
		return nil
	})

	t.Log("that one dies")
	client.must("ip", "address", "del", four.String()+"/24", "dev", "eth0")
	say("node10", wire.MarkOf("another cluster's"))
	owner(t, all, four)
}

// TestTheKernelOfANodeHasTheAddress has a node own one address, while its kernel has another, which
// somebody gave it, and for which it is no candidate: it is named.
func TestTheKernelOfANodeHasTheAddress(t *testing.T) {
	_, _, all := nodes(t, 2)
	other, n := all[0], all[1]
	other.must("ip", "address", "add", four.String()+"/24", "dev", "eth0")
	other.start(standing(all, other, false, six))
	owner(t, all, six)
	n.refused = 5 * time.Second
	n.start(standing(all, n, false, four))
	n.says("somebody else has 192.0.2.100 (" + other.name + ", " + other.mac("eth0") + ")")
	if slices.Contains(n.Answered(), four) {
		t.Error("it answers for what the other's kernel answers for")
	}
	other.must("ip", "address", "del", four.String()+"/24", "dev", "eth0")
	owner(t, all, four)
}

// TestMoreGroupsThanTheKernelHas has the kernel let a node be in fewer groups of IPv6 than it is
// a candidate for addresses: it says so, and another node answers for the rest.
func TestMoreGroupsThanTheKernelHas(t *testing.T) {
	_, _, all := nodes(t, 2)
	n, other := all[0], all[1]
	if out, err := n.run("sysctl", "-qw", "net.core.optmem_max=1024"); err != nil {
		t.Skipf("a network namespace has no limit of its own before Linux 6.7: %v: %s", err, out)
	}
	var many []netip.Addr
	for i := range 500 {
		a := six.As16()
		a[13], a[14], a[15] = 7, byte(i>>8), byte(i)
		many = append(many, netip.AddrFrom16(a))
	}
	n.start(standing(all, n, false, many...))
	n.says("this node cannot answer for 2001:db8::", "net.core.optmem_max")
	await.NoError(t, patience, "it answers for some", func() error {
		if owned := len(n.Answered()); owned == 0 || owned == len(many) {
			return fmt.Errorf("it answers for %d of %d addresses", owned, len(many))
		}
		return nil
	})
	other.start(standing(all, other, false, many...))
	await.NoError(t, patience, "one node answers for each address", func() error {
		one, two := n.Answered(), other.Answered()
		if both := slices.Compact(slices.SortedFunc(slices.Values(slices.Concat(one, two)), netip.Addr.Compare)); len(both) != len(many) || len(one)+len(two) != len(many) || len(one) == 0 {
			return fmt.Errorf("they answer for %d and %d of %d", len(one), len(two), len(many))
		}
		return nil
	})
	n.saysNothing() // it is no problem that another node answers
}

// TestWhatANodeCannotHave has a node own two addresses at once of which it cannot have one, as
// somebody gave it that: it never says that it owns that one, and announces it to nobody.
func TestWhatANodeCannotHave(t *testing.T) {
	_, client, all := nodes(t, 1)
	n := all[0]
	n.must("ip", "address", "add", four.String()+"/32", "dev", "lo")
	port := client.open()
	if _, err := port.Answer(nil, map[netip.Addr]bool{four: true}); err != nil {
		t.Fatal(err)
	}
	other := netip.MustParseAddr("192.0.2.101")
	n.start(standing(all, n, true, four, other))
	timeout := time.After(patience)
	for said := 0; said < 3; {
		e, is := port.next(timeout)
		if !is {
			t.Fatal("it does not say that it owns the other address")
		}
		if e.Conflict == four && !e.Asks {
			t.Fatal("it announces what it cannot have")
		}
		owns := func(a netip.Addr) bool {
			return e.Heartbeat != nil && slices.ContainsFunc(e.Heartbeat.Claims, func(c wire.Claim) bool { return c.Address == a && c.State == wire.Owns })
		}
		if owns(four) {
			t.Fatal("it says that it owns what it cannot have")
		}
		if owns(other) {
			said++
		}
	}
	if !slices.Equal(n.Answered(), []netip.Addr{other}) {
		t.Errorf("it answers for %v", n.Answered())
	}
}

// TestWhatANodeHasIsTakenAway has somebody flush the node's rules, and take its address: the
// server makes both anew.
func TestWhatANodeHasIsTakenAway(t *testing.T) {
	_, _, all := nodes(t, 1)
	n := all[0]
	n.start(standing(all, n, true, four))
	owner(t, all, four)
	for _, command := range []string{"nft flush ruleset", "ip address del " + four.String() + "/32 dev lo"} {
		n.must(strings.Fields(command)...)
		await.NoError(t, patience, "the node has the address again", func() error {
			if out := n.must("ip", "address", "show", "dev", "lo") + n.must("nft", "list", "ruleset"); strings.Count(out, four.String()) < 2 {
				return fmt.Errorf("behind %s it has\n%s", command, out)
			}
			return nil
		})
	}
}

// TestAnInterfaceThatComesAndGoes deletes the node's interface and makes it anew.
func TestAnInterfaceThatComesAndGoes(t *testing.T) {
	link, client, all := nodes(t, 1)
	n := all[0]
	n.listen(netip.IPv4Unspecified(), 80)
	n.start(standing(all, n, true, four))
	client.isAnswered(four, owner(t, all, four))
	n.must("ip", "link", "delete", "eth0")
	await.NoError(t, patience, "it answers no more", func() error {
		if a := n.Answered(); len(a) > 0 {
			return fmt.Errorf("it answers for %v", a)
		}
		return nil
	})
	n.plug(link, "eth0", "to1")
	n.must("ip", "address", "add", "192.0.2.1/24", "dev", "eth0")
	client.isAnswered(four, owner(t, all, four))
}

// TestAnInterfaceIsDown has the other end of the node's link go down, as where a cable is out, and come back. The node
// says why it answers for nothing, also where its interface is down from the start.
func TestAnInterfaceIsDown(t *testing.T) {
	link, _, all := nodes(t, 1)
	n := all[0]
	link.must("ip", "link", "set", "to1", "down")
	n.start(standing(all, n, false, four))
	n.says("interface eth0 is down")
	link.must("ip", "link", "set", "to1", "up")
	owner(t, all, four)
	n.saysNothing()
	link.must("ip", "link", "set", "to1", "down")
	n.says("interface eth0 is down")
	if a := n.Answered(); len(a) > 0 {
		t.Errorf("it answers for %v", a)
	}
}

// TestWhatANodeCannotSay has a node's interface take no frame that has room for all of its addresses: it owns them, and says that
// others do not hear of it.
func TestWhatANodeCannotSay(t *testing.T) {
	_, _, all := nodes(t, 1)
	n := all[0]
	n.must("ip", "link", "set", "eth0", "mtu", "68")
	var many []netip.Addr
	for i := range 20 {
		many = append(many, netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)}))
	}
	n.start(standing(all, n, false, many...))
	n.says("other nodes do not hear for which addresses this node answers", "interface eth0", "message too long")
	if owned := len(n.Answered()); owned != len(many) {
		t.Errorf("it answers for %d of %d addresses", owned, len(many))
	}
	n.must("ip", "link", "set", "eth0", "mtu", "1500")
	n.saysNothing()
}

// TestWhoHasANodesName has a node have two interfaces on one link, by which it hears itself, then leave one of them, and
// then a machine say something under its name. That one is told of, and not the node itself.
func TestWhoHasANodesName(t *testing.T) {
	bridge, client, all := nodes(t, 1)
	n := all[0]
	n.plug(bridge, "eth1", "to1b")
	now := standing(all, n, false, four, six)
	c := now.Candidates[six]
	c.Link = "eth1"
	now.Candidates[six] = c
	port := client.open()
	n.start(now)
	// What comes to the client by either interface comes to the other one, too.
	heard, timeout := make(map[string]int), time.After(patience)
	hear := func(mac string) (h *wire.Heartbeat) {
		t.Helper()
		e, is := port.next(timeout)
		if !is {
			t.Fatalf("of the node these heartbeats are heard: %v", heard)
		}
		if e.Heartbeat != nil {
			heard[e.From.String()]++
			if e.From.String() == mac {
				h = e.Heartbeat
			}
		}
		return h
	}
	for heard[n.mac("eth0")] < 2 || heard[n.mac("eth1")] < 2 {
		hear("")
	}
	now = standing(all, n, false, four, six)
	for a, c := range now.Candidates {
		c.Link = "eth1"
		now.Candidates[a] = c
	}
	n.Stand(now)
	for left := false; !left; {
		h := hear(n.mac("eth0"))
		left = h != nil && slices.ContainsFunc(h.Claims, func(c wire.Claim) bool { return c.State == wire.Leaves })
	}
	if err := port.Say(wire.Heartbeat{Node: n.name, Claims: []wire.Claim{{Address: four, State: wire.Owns}}}); err != nil {
		t.Fatal(err)
	}
	n.says("another machine, " + client.mac("eth0") + ", says under this node's name")
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range []string{"eth0", "eth1"} {
		if strings.Contains(n.problem, n.mac(name)) {
			t.Errorf("the node takes itself for another: %s", n.problem)
		}
	}
}

// TestWhatAKilledOneLeft has a server that was killed leave what keeps the kernel from answering for an address that the node has no more:
// the next one takes it away, also where the node is to have nothing.
func TestWhatAKilledOneLeft(t *testing.T) {
	_, _, all := nodes(t, 1)
	n := all[0]
	n.start(standing(all, n, true, four))
	owner(t, all, four)
	n.end()
	n.must("ip", "address", "del", four.String()+"/32", "dev", "lo")
	if out := n.must("nft", "list", "ruleset"); !strings.Contains(out, four.String()) {
		t.Fatalf("the server that ended has left\n%s", out)
	}
	n.start(standing(all, n, false))
	await.NoError(t, patience, "nothing keeps the kernel from answering", func() error {
		if out := n.must("nft", "list", "ruleset"); out != "" {
			return errors.New(out)
		}
		return nil
	})
}

// TestWhatIsLeft has servers run and end: the kernel has what it had before.
func TestWhatIsLeft(t *testing.T) {
	_, _, all := nodes(t, 1)
	n := all[0]
	state := func() string {
		return n.must("ip", "-o", "address", "show", "dev", "lo") + n.must("nft", "list", "ruleset")
	}
	// That of heartbeats, and that in which those are who may have the address of IPv6.
	groups := []string{"03:77:65:66:74:01", "ff02::1:ff00:100"}
	before := state()
	for range 2 {
		s := standing(all, n, true, four, six)
		s.Leaving = true
		n.problem = "it could not run"
		n.start(s)
		owner(t, all, four)
		owner(t, all, six)
		n.mu.Lock()
		if n.problem != "" {
			t.Errorf("it runs, and the problem is still %q", n.problem)
		}
		n.mu.Unlock()
		for _, group := range groups {
			if out := n.must("ip", "maddress", "show", "dev", "eth0"); !strings.Contains(out, group) {
				t.Errorf("the interface is not in the group %s:\n%s", group, out)
			}
		}
		n.end()
	}
	for _, group := range groups {
		if out := n.must("ip", "maddress", "show", "dev", "eth0"); strings.Contains(out, group) {
			t.Errorf("the interface stays in the group %s:\n%s", group, out)
		}
	}
	if after := state(); after != before {
		t.Errorf("before it was\n%s, and now it is\n%s", before, after)
	}
}
