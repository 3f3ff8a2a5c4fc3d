package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"

	"github.com/weftnet/weft/cni/protocol"
	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/podlink"
)

// eventually waits until something is so that another process brings about.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for began := time.Now(); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Since(began) > 20*time.Second {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// send sends a request as weft-cni does, once.
func (n *testNode) send(req protocol.Request) protocol.Response {
	n.t.Helper()
	conn := n.say(req)
	defer conn.Close()
	var resp protocol.Response
	if err := protocol.Read(conn, &resp); err != nil {
		n.t.Fatal(err)
	}
	return resp
}

// say sends a request and does not wait for the answer.
func (n *testNode) say(req protocol.Request) net.Conn {
	n.t.Helper()
	conn, err := net.Dial("unix", n.socket())
	if err != nil {
		n.t.Fatal(err)
	}
	req.Version, req.Stdin = protocol.Version, []byte(n.conf("1.1.0"))
	// A server with too much to do hangs up, after its answer.
	if err := protocol.Write(conn, &req); err != nil && !errors.Is(err, syscall.EPIPE) {
		n.t.Fatal(err)
	}
	return conn
}

func TestSameRequestAgainHasTheSameAnswer(t *testing.T) {
	n := newNode(t, settings{Pools: dualStack})
	req := protocol.Request{ID: "one", Command: "ADD", ContainerID: "c1", IfName: "eth0", NetNS: newNetNS(t)}
	first := n.send(req)
	if first.Error != nil {
		t.Fatal(first.Error)
	}
	links := n.links()
	second := n.send(req)
	n.kill()
	n.start()
	third := n.send(req)
	for _, again := range []protocol.Response{second, third} {
		if again.Error != nil || string(again.Stdout) != string(first.Stdout) {
			t.Errorf("got %v %s, want %s", again.Error, again.Stdout, first.Stdout)
		}
	}
	if now := n.links(); len(now) != 1 || now[0] != links[0] {
		t.Errorf("the interface was made anew: %v, was %v", now, links)
	}
}

// hang starts an ADD with weft-cni that the data plane does not finish, and
// returns when it has come so far. The function returned waits for its end.
func (n *testNode) hang(ctx context.Context, container, ns string) (wait func() (string, int)) {
	n.t.Helper()
	n.wish("publish-hangs", "yes")
	type outcome struct {
		out  string
		code int
	}
	done := make(chan outcome, 1)
	go func() {
		out, code, _ := shim{command: "ADD", container: container, ifname: "eth0", netns: ns, stdin: n.conf("1.1.0")}.run(ctx)
		done <- outcome{out, code}
	}()
	// The next hop of IPv6 is the last that it gets.
	ipv6 := slices.ContainsFunc(n.Pools, func(p netip.Prefix) bool { return p.Addr().Is6() })
	eventually(n.t, "the interface is made", func() bool {
		links := n.links()
		return len(links) == 1 && links[0].Alias != "" && (links[0].NextHop || !ipv6)
	})
	return func() (string, int) {
		o := <-done
		return o.out, o.code
	}
}

func TestAddThatTheRuntimeGivesUpIsRolledBack(t *testing.T) {
	n := newNode(t, settings{Pools: dualStack})
	ctx, giveUp := context.WithCancel(t.Context())
	wait := n.hang(ctx, "c1", newNetNS(t))
	giveUp()
	wait()
	eventually(t, "the interface is gone", func() bool { return len(n.links()) == 0 })
	// DEL waits for the ADD to end, so the journal is settled after it.
	n.send(protocol.Request{ID: "del", Command: "DEL", ContainerID: "c1", IfName: "eth0"})
	n.kill()
	if all := n.records(); len(all) != 0 {
		t.Errorf("left in the journal: %v", all)
	}
}

func TestAddGoesOnWithTheNextAgent(t *testing.T) {
	n := newNode(t, settings{Pools: dualStack})
	wait := n.hang(t.Context(), "c1", newNetNS(t))
	before := n.links()
	n.kill()
	n.wish("publish-hangs", "")
	n.start()
	out, code := wait()
	if code != 0 || !strings.Contains(out, "10.1.0.2/32") {
		t.Errorf("exit status %d: %s", code, out)
	}
	if after := n.links(); len(after) != 1 || after[0] != before[0] {
		t.Errorf("the interface was made anew: %v, was %v", after, before)
	}
}

// What an agent began with an address that pods get no more, as the node's subnet became
// another's or its plug-in another one, is begun anew by the next.
func TestAddBeginsAnewWithOtherPools(t *testing.T) {
	n := newNode(t, settings{Pools: dualStack})
	wait := n.hang(t.Context(), "c1", newNetNS(t))
	n.kill()
	n.wish("publish-hangs", "")
	n.Pools = []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24"), dualStack[1]}
	n.start()
	out, code := wait()
	if code != 0 || !strings.Contains(out, "10.2.0.2/32") {
		t.Errorf("exit status %d: %s", code, out)
	}
	links := n.links()
	n.kill()
	if all := n.records(); len(links) != 1 || len(all) != 1 || all[0].Phase != ipam.Ready || all[0].HostInterface != links[0].Name {
		t.Errorf("there are interfaces %v, and the journal has %v", links, all)
	}
}

// A data plane that hears of neither must bring up the interface that there is in the
// end, though it has the name and the address of the one before. That one may also have
// gone by itself, before the DEL.
func TestDelAndAddInOneRound(t *testing.T) {
	for _, vanishes := range []bool{false, true} {
		n := newNode(t, settings{Pools: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/30")}})
		ns := newNetNS(t)
		cni := func(command string) string {
			t.Helper()
			out, code, _ := shim{command: command, container: "c1", ifname: "eth0", netns: ns, stdin: n.conf("1.1.0")}.run(t.Context())
			if code != 0 {
				t.Fatalf("%s, the interface vanishes: %v: exit status %d: %s", command, vanishes, code, out)
			}
			return out
		}
		cni("ADD")
		n.wish("publish-hangs", "yes")
		if vanishes {
			link := n.links()[0].Name
			n.in(func() error { return exec.Command("ip", "link", "del", link).Run() })
			time.Sleep(300 * time.Millisecond) // the server has heard of it
		}
		cni("DEL")
		go func() {
			for len(n.links()) == 0 && t.Context().Err() == nil {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(50 * time.Millisecond) // the ADD is where it waits
			n.wish("publish-hangs", "")
		}()
		if out := cni("ADD"); !strings.Contains(out, "10.1.0.2/32") {
			t.Errorf("the interface vanishes: %v: %s", vanishes, out)
		}
		cni("DEL")
	}
}

// The network may give the pod another address when it is another: what was begun
// is undone, and weft-cni asks again.
func TestAddOutlivesAChangeOfTheNetwork(t *testing.T) {
	n := newNode(t, settings{Pools: dualStack})
	wait := n.hang(t.Context(), "c1", newNetNS(t))
	n.wish("publish-changing", "yes")
	n.wish("publish-hangs", "")
	eventually(t, "what was begun is undone", func() bool { return len(n.links()) == 0 })
	n.wish("publish-changing", "")
	if out, code := wait(); code != 0 || !strings.Contains(out, "10.1.0.") {
		t.Errorf("exit status %d: %s", code, out)
	}
	if links := n.links(); len(links) != 1 {
		t.Errorf("there are %v", links)
	}
}

func TestAddOutlivesAnUpgrade(t *testing.T) {
	n := newNode(t, settings{Pools: dualStack})
	wait := n.hang(t.Context(), "c1", newNetNS(t))
	silent, err := net.Dial("unix", n.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	n.stop()
	// What an agent begins and does not finish, it undoes when it may.
	if links, all := n.links(), n.records(); len(links) != 0 || len(all) != 0 {
		t.Errorf("the agent left %v and %v", links, all)
	}
	n.wish("publish-hangs", "")
	n.start()
	if out, code := wait(); code != 0 {
		t.Errorf("exit status %d: %s", code, out)
	}
	if links := n.links(); len(links) != 1 {
		t.Errorf("the node has %v", links)
	}
}

func TestAddThatNobodyAsksForAgainIsRolledBack(t *testing.T) {
	n := newNode(t, settings{Pools: dualStack, RetryWindow: 100})
	ctx, giveUp := context.WithCancel(t.Context())
	wait := n.hang(ctx, "c1", newNetNS(t))
	n.kill()
	giveUp()
	wait()
	n.start()
	eventually(t, "the interface is gone", func() bool { return len(n.links()) == 0 })
	n.send(protocol.Request{ID: "del", Command: "DEL", ContainerID: "c1", IfName: "eth0"})
	n.kill()
	if all := n.records(); len(all) != 0 {
		t.Errorf("left in the journal: %v", all)
	}
}

// A runtime that gives up an ADD and has its DEL answered must not find the
// interface made afterwards, by the ADD that waited all the time.
func TestAddOfADeadClientIsNotBegun(t *testing.T) {
	n := newNode(t, settings{Pools: dualStack})
	ns := newNetNS(t)
	wait := n.hang(t.Context(), "c1", ns)
	queued := n.say(protocol.Request{ID: "two", Command: "ADD", ContainerID: "c1", IfName: "net1", NetNS: ns})
	queued.Close()
	n.wish("publish-hangs", "")
	if out, code := wait(); code != 0 {
		t.Fatal(out)
	}
	// This one waited for the same lock after the other.
	n.send(protocol.Request{ID: "three", Command: "ADD", ContainerID: "c1", IfName: "eth0", NetNS: ns})
	if links := n.links(); len(links) != 1 || !strings.HasPrefix(links[0].Alias, "c1/eth0 ") {
		t.Errorf("the node has %v", links)
	}
}

func TestTooManyRequestsAreRefused(t *testing.T) {
	n := newNode(t, settings{Pools: dualStack, MaxInFlight: 1})
	ctx, giveUp := context.WithCancel(t.Context())
	wait := n.hang(ctx, "c1", newNetNS(t))
	resp := n.send(protocol.Request{ID: "two", Command: "ADD", ContainerID: "c2", IfName: "eth0", NetNS: newNetNS(t)})
	if resp.Error == nil || resp.Error.Code != protocol.TryAgainLater || resp.Error.Details != "the agent works on 1 requests already" {
		t.Errorf("got %v", resp.Error)
	}
	giveUp()
	wait()
}

func TestNonsenseDoesNotHurt(t *testing.T) {
	n := newNode(t, settings{Pools: dualStack})
	for _, nonsense := range []string{"", "\n", "GET / HTTP/1.1\r\n\r\n", "{}\n", `{"version":2}` + "\n", strings.Repeat("x", protocol.MaxMessage+1)} {
		conn, err := net.Dial("unix", n.socket())
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte(nonsense)) // The server may hang up in the middle.
		conn.(*net.UnixConn).CloseWrite()
		var resp protocol.Response
		if err := protocol.Read(conn, &resp); err == nil && (resp.Error == nil || resp.Error.Code != protocol.ProtocolFailure) {
			t.Errorf("%.20q: %v", nonsense, resp)
		}
		conn.Close()
	}
	if resp := n.send(protocol.Request{ID: "one", Command: "STATUS"}); resp.Error != nil {
		t.Error(resp.Error)
	}
}

// TestLostJournal starts an agent after the journal was removed and after it
// was damaged: the pods' interfaces say what it said.
func TestLostJournal(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"removed": os.Remove,
		"damaged": func(path string) error {
			data, err := os.ReadFile(path)
			return errors.Join(err, os.WriteFile(path, []byte(strings.Replace(string(data), `"op":"attach"`, `"op":"xxxxxx"`, 1)), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, settings{Pools: dualStack})
			r := newRuntime(t, n, conflist("1.1.0", n.socket()))
			first := pod("c1", newNetNS(t))
			if _, err := r.add(t.Context(), first); err != nil {
				t.Fatal(err)
			}
			before := n.links()
			n.kill()
			if err := lose(filepath.Join(n.Dir, "journal")); err != nil {
				t.Fatal(err)
			}
			// Something else of that name, of which nothing is known.
			n.in(func() error {
				veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "other", PeerTxQLen: -1}
				veth.Name = "weft0123456789a"
				return netlink.LinkAdd(veth)
			})
			n.start()
			if after := n.links(); len(after) != 1 || after[0] != before[0] {
				t.Errorf("the node has %v, had %v", after, before)
			}
			if err := r.check(t.Context(), first); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			second, err := r.add(t.Context(), pod("c2", newNetNS(t)))
			if err != nil {
				t.Fatal(err)
			}
			if got := addressOf(second); got != "10.1.0.3" {
				t.Errorf("the next pod has %s", got)
			}
			if err := r.del(t.Context(), first); err != nil {
				t.Error(err)
			}
			if links := n.links(); len(links) != 1 {
				t.Errorf("the node has %v", links)
			}
		})
	}
}

// TestNamesThatChangedWhileNoAgentRan gives two pods' interfaces each other's names, and a
// third's one of nobody's. With its journal and without, the next agent takes each for its
// own pod's, gives nobody's address away, and a DEL takes that pod's and no other.
func TestNamesThatChangedWhileNoAgentRan(t *testing.T) {
	for name, lose := range map[string]func(path string) error{"kept": func(string) error { return nil }, "lost": os.Remove} {
		t.Run("the journal is "+name, func(t *testing.T) {
			n := newNode(t, settings{Pools: dualStack})
			r := newRuntime(t, n, conflist("1.1.0", n.socket()))
			pods := map[string]*libcni.RuntimeConf{}
			for _, name := range []string{"a", "b", "c"} {
				pods[name] = pod(name, newNetNS(t))
				if _, err := r.add(t.Context(), pods[name]); err != nil {
					t.Fatal(err)
				}
			}
			before := n.links()
			n.kill()
			if err := lose(filepath.Join(n.Dir, "journal")); err != nil {
				t.Fatal(err)
			}
			host := func(name string) string { return podlink.HostName(name, "eth0") }
			n.in(func() error {
				for _, change := range [][2]string{{host("a"), "tmp"}, {host("b"), host("a")}, {"tmp", host("b")}, {host("c"), "stray"}} {
					link, err := netlink.LinkByName(change[0])
					if err != nil {
						return err
					}
					if err := netlink.LinkSetName(link, change[1]); err != nil {
						return err
					}
				}
				return nil
			})
			n.start()
			if after := n.links(); !slices.Equal(after, before) {
				t.Errorf("the node has %v, had %v", after, before)
			}
			next, err := r.add(t.Context(), pod("d", newNetNS(t)))
			if err != nil {
				t.Fatal(err)
			}
			if got := addressOf(next); got != "10.1.0.5" {
				t.Errorf("the next pod has %s", got)
			}
			for i, name := range []string{"a", "c"} {
				if err := r.del(t.Context(), pods[name]); err != nil {
					t.Error(err)
				}
				if left := n.links(); len(left) != len(before)-i || slices.ContainsFunc(left, func(end podlink.HostEnd) bool { return end.Name == host(name) }) {
					t.Errorf("behind the DEL of %s the node has %v", name, left)
				}
			}
		})
	}
}

// TestLostJournalWhose starts an agent after its journal was removed: whose the
// interfaces are their aliases say, or, for one that an older version made, the
// runtime when it asks for a CHECK.
func TestLostJournalWhose(t *testing.T) {
	n := newNode(t, settings{Pools: dualStack})
	r := newRuntime(t, n, conflist("1.1.0", n.socket()))
	told, old := pod("told", newNetNS(t)), pod("old", newNetNS(t))
	for _, rt := range []*libcni.RuntimeConf{told, old} {
		if _, err := r.add(t.Context(), rt); err != nil {
			t.Fatal(err)
		}
	}
	n.kill()
	n.in(func() error {
		link, err := netlink.LinkByName(podlink.HostName("old", "eth0"))
		if err != nil {
			return err
		}
		return netlink.LinkSetAlias(link, strings.TrimSuffix(link.Attrs().Alias, " default/old/"))
	})
	if err := os.Remove(filepath.Join(n.Dir, "journal")); err != nil {
		t.Fatal(err)
	}
	want := func(name string, pod ipam.PodName, unidentified bool) {
		t.Helper()
		n.kill()
		for _, a := range n.records() {
			if a.ContainerID == name && !a.Unrecorded {
				t.Errorf("of %s the journal says that all is known", name)
			}
			if a.ContainerID == name && (a.PodName != pod || a.Unidentified != unidentified) {
				t.Errorf("of %s the journal says %v, unidentified %v", name, a.PodName, a.Unidentified)
			}
		}
		n.start()
	}
	n.start()
	want("told", ipam.PodName{Namespace: "default", Pod: "told"}, false)
	want("old", ipam.PodName{}, true)
	if err := r.check(t.Context(), old); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	want("old", ipam.PodName{Namespace: "default", Pod: "old"}, false)
}

// nothing is a Node that has nothing to do.
type nothing struct{}

func (nothing) Ready() error                             { return nil }
func (nothing) Pools() []plan.Pool                       { return nil }
func (nothing) Networks() []string                       { return []string{plan.DefaultNetwork} }
func (nothing) Prefixes(string) []netip.Prefix           { return nil }
func (nothing) Admit(_, _, _ string) error               { return nil }
func (nothing) Has(netip.Addr) bool                      { return false }
func (nothing) MTU() int                                 { return 0 }
func (nothing) Publish(context.Context, ...string) error { return nil }

// A client that hung up may not be known to have yet when its turn comes.
func TestNothingIsBegunForAClientThatIsGone(t *testing.T) {
	journal, err := ipam.Open(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	defer journal.Close()
	s := NewServer(Config{Journal: journal, Node: nothing{}, Log: slog.New(slog.DiscardHandler)})
	key := ipam.Key{ContainerID: "c1", IfName: "eth0"}
	if err := journal.Adopt(ipam.Attachment{Request: ipam.Request{Key: key, Network: plan.DefaultNetwork}, Addresses: []netip.Addr{dualStack[0].Addr()}, Phase: ipam.Ready}); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{protocol.Add, protocol.Del, protocol.Check} {
		_, failure := s.do(t.Context(), &call{command: command, key: key}, func() bool { return true })
		if failure == nil || failure.Code != protocol.TryAgainLater || failure.Details != errGone.Error() {
			t.Errorf("%s: got %v", command, failure)
		}
	}
	if _, ok := journal.Get(key); !ok {
		t.Error("a DEL of a client that is gone was done")
	}
}

func TestHungUp(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if hungUp(server) {
		t.Error("a client that waits counts as gone")
	}
	client.Close()
	if !hungUp(server) {
		t.Error("a client that is gone counts as there")
	}
}

// TestEndpointsFollowTheKernel has a pod's namespace vanish.
func TestEndpointsFollowTheKernel(t *testing.T) {
	needRoot(t)
	node, podNS := newNetNS(t), makeNetNS(t)
	journal, err := ipam.Open(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	defer journal.Close()
	pools := []plan.Pool{{Network: plan.DefaultNetwork, Prefix: dualStack[0], Gateway: dualStack[0].Addr().Next()}}
	a, err := journal.Reserve(ipam.Request{Key: ipam.Key{ContainerID: "c1", IfName: "eth0"}, Network: plan.DefaultNetwork, PodName: ipam.PodName{Namespace: "default", Pod: "web", UID: "u1"},
		NetNS: nsPath(podNS), HostInterface: podlink.HostName("c1", "eth0")}, func() []plan.Pool { return pools }, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(Config{Journal: journal, Node: nothing{}, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	watching := make(chan error, 1)
	if err := netns.Do(node, func() error {
		if _, err := podlink.Ensure(linkSpec(a)); err != nil {
			return err
		}
		if got := s.Endpoints(); len(got) != 1 || got[0].Name() != "default/web" || got[0].UID != "u1" || got[0].Interface != a.HostInterface {
			t.Errorf("the endpoints are %v", got)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	go func() { watching <- netns.Do(node, func() error { s.watchLinks(ctx); return nil }) }()
	podNS.Close()
	<-s.changed
	if got := s.Endpoints(); len(got) != 0 {
		t.Errorf("the endpoints are %v", got)
	}
	if _, ok := journal.Get(a.Key); !ok {
		t.Error("the address was freed before DEL")
	}
	cancel()
	if err := <-watching; err != nil {
		t.Error(err)
	}
}

// TestKillsUnderChurn kills the server at random moments while pods come and
// go, some of them with a runtime that loses patience.
func TestKillsUnderChurn(t *testing.T) {
	const kills, workers = 20, 6
	n := newNode(t, settings{Pools: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/28"), netip.MustParsePrefix("fd00:1::/64")}, RetryWindow: 60_000})
	var (
		mu      sync.Mutex
		holders = map[string]string{}
		adds    int
		wg      sync.WaitGroup
	)
	over, stop := context.WithCancel(t.Context())
	defer stop()
	for w := range workers {
		random := rand.New(rand.NewPCG(1, uint64(w)))
		namespaces := [2]string{newNetNS(t), newNetNS(t)}
		wg.Go(func() {
			// Each pod lives until the next one of the worker is there.
			type living struct {
				shim
				addresses []string
			}
			var last living
			del := func(p living) {
				mu.Lock()
				for _, a := range p.addresses {
					delete(holders, a)
				}
				mu.Unlock()
				p.command = "DEL"
				if out, code, err := p.run(t.Context()); code != 0 || err != nil {
					t.Errorf("DEL %s: exit status %d, %v: %s", p.container, code, err, out)
				}
			}
			for i := 0; over.Err() == nil; i++ {
				now := living{shim: shim{command: "ADD", container: fmt.Sprintf("w%d-%d", w, i), ifname: "eth0", netns: namespaces[0], stdin: n.conf("1.1.0")}}
				ctx, cancel := t.Context(), func() {}
				impatient := random.IntN(4) == 0
				if impatient {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(30))*time.Millisecond)
				}
				out, code, err := now.run(ctx)
				cancel()
				if code != 0 || err != nil {
					if !impatient {
						t.Errorf("ADD %s: exit status %d, %v: %s", now.container, code, err, out)
					}
					// Whatever became of it, the runtime has it deleted.
					del(now)
					continue
				}
				var result struct{ IPs []struct{ Address string } }
				if err := json.Unmarshal([]byte(out), &result); err != nil || len(result.IPs) != 2 {
					t.Errorf("ADD %s: %v: %s", now.container, err, out)
				}
				mu.Lock()
				adds++
				for _, ip := range result.IPs {
					if other, ok := holders[ip.Address]; ok {
						t.Errorf("%s is given to %s and %s", ip.Address, other, now.container)
					}
					holders[ip.Address] = now.container
					now.addresses = append(now.addresses, ip.Address)
				}
				mu.Unlock()
				if last.container != "" {
					del(last)
				}
				last, namespaces[0], namespaces[1] = now, namespaces[1], namespaces[0]
			}
			if last.container != "" {
				del(last)
			}
		})
	}
	random := rand.New(rand.NewPCG(2, 0))
	for range kills {
		moment := time.NewTimer(time.Duration(random.IntN(150)) * time.Millisecond)
		<-moment.C
		n.kill()
		n.start()
	}
	stop()
	wg.Wait()
	t.Logf("%d ADDs, %d kills", adds, kills)
	if links := n.links(); len(links) != 0 {
		t.Errorf("left behind: %v", links)
	}
	n.kill()
	if all := n.records(); len(all) != 0 {
		t.Errorf("left in the journal: %v", all)
	}
}
