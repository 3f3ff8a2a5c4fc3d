package cni

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/internal/sysctl"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/podlink"
)

// shimDir holds weft-cni.
var shimDir string

// serverVariable tells this binary to be the server of a node, with the
// settings that it holds.
const serverVariable = "WEFT_TEST_CNI_SERVER"

func TestMain(m *testing.M) {
	if settings := os.Getenv(serverVariable); settings != "" {
		serveNode(settings)
		return
	}
	flag.Parse()
	dir, err := os.MkdirTemp("", "weft-cni")
	if err == nil {
		build := exec.Command("go", "build", "-buildvcs=false", "-o", dir, "github.com/weftnet/weft/cmd/weft-cni")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build weft-cni:", err)
		os.Exit(1)
	}
	shimDir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// settings are those of a node's server.
type settings struct {
	Dir   string
	Pools []netip.Prefix
	// Networks are the pools of other networks than the default one, by name.
	Networks    map[string][]netip.Prefix
	MaxInFlight int
	// RetryWindow is Config.RetryWindow in milliseconds.
	RetryWindow int
}

// hostRoutes is the agent's side of a node: its data plane is a route and a
// neighbour for each pod, whose interface it brings up. That of a pod which is an endpoint no
// more it sets down. As others do, it looks at what differs from what it was told last. Files
// in the node's directory make it fail.
type hostRoutes struct {
	settings
	server *Server
	mu     sync.Mutex
	known  map[string]hostRoute // by interface
}

// hostRoute is an endpoint as it was told of, and the index of its interface.
type hostRoute struct {
	told  string
	index int
}

// wish returns what a file says that the test may have written.
func (n *hostRoutes) wish(name string) error {
	text, err := os.ReadFile(filepath.Join(n.Dir, name))
	if err != nil {
		return nil
	}
	return errors.New(strings.TrimSpace(string(text)))
}

func (n *hostRoutes) Ready() error {
	if err := n.wish("changing"); err != nil {
		return fmt.Errorf("%w: %w", ErrChanging, err)
	}
	return n.wish("not-ready")
}

func (n *hostRoutes) MTU() int { return 1450 }

func (n *hostRoutes) Admit(_, _, _ string) error { return n.wish("pod-invalid") }

func (n *hostRoutes) Pools() []plan.Pool {
	var pools []plan.Pool
	for _, network := range n.Networks() {
		for _, p := range n.Prefixes(network) {
			pools = append(pools, plan.Pool{Network: network, Prefix: p, Gateway: p.Addr().Next()})
		}
	}
	return pools
}

func (n *hostRoutes) Has(netip.Addr) bool { return false }

func (n *hostRoutes) Networks() []string {
	return append([]string{plan.DefaultNetwork}, slices.Sorted(maps.Keys(n.settings.Networks))...)
}

func (n *hostRoutes) Prefixes(network string) []netip.Prefix {
	if network == plan.DefaultNetwork {
		return n.settings.Pools
	}
	return n.settings.Networks[network]
}

// routeProtocol marks the routes of the test's data plane.
const routeProtocol = 87

func (n *hostRoutes) Publish(ctx context.Context, interfaces ...string) error {
	for n.wish("publish-hangs") != nil {
		if !retry.Sleep(ctx, msec(2)) {
			return ctx.Err()
		}
	}
	if n.wish("publish-changing") != nil {
		return ErrChanging
	}
	if err := n.wish("publish-fails"); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	endpoints, known := n.server.Endpoints(), n.known
	n.known = map[string]hostRoute{}
	for name, route := range known {
		if !slices.ContainsFunc(endpoints, func(e plugin.Endpoint) bool { return e.Interface == name }) {
			errs = append(errs, release(route.index))
		}
	}
	for _, e := range endpoints {
		route := known[e.Interface]
		if told := fmt.Sprint(e); route.told != told { // else it has its routes, which go with it
			index, err := n.takeUp(e)
			if err != nil {
				if slices.Contains(interfaces, e.Interface) {
					errs = append(errs, err)
				}
				continue // it is looked at again
			}
			route = hostRoute{told, index}
		}
		n.known[e.Interface] = route
	}
	return errors.Join(errs...)
}

// release sets down an interface that may be gone.
func release(index int) error {
	link, err := netlink.LinkByIndex(index)
	if err == nil {
		err = netlink.LinkSetDown(link)
	}
	if errors.As(err, new(netlink.LinkNotFoundError)) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// firstTable is the routing table of the first network behind the default one.
const firstTable = 1000

// takeUp brings an endpoint's interface up, makes the ways to it, and returns its index.
// Each network but the default one has a routing table, which what its interfaces send goes by.
func (n *hostRoutes) takeUp(e plugin.Endpoint) (index int, err error) {
	link, err := netlink.LinkByName(e.Interface)
	if err != nil {
		return 0, err
	}
	errs, table := []error{netlink.LinkSetUp(link)}, 0
	if i := slices.Index(n.Networks(), e.Network); i > 0 {
		table = firstTable + i
		// A source is looked for in the default network's table.
		errs = append(errs, sysctl.Set("ipv4/conf/all/rp_filter", "0"), sysctl.Set("ipv4/conf/"+e.Interface+"/rp_filter", "0"))
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			rule := netlink.NewRule()
			rule.Family, rule.IifName, rule.Table = family, e.Interface, table
			if err := netlink.RuleAdd(rule); !errors.Is(err, unix.EEXIST) {
				errs = append(errs, err)
			}
		}
	}
	for _, a := range e.Addresses {
		errs = append(errs, netlink.RouteReplace(&netlink.Route{Table: table, LinkIndex: link.Attrs().Index, Protocol: routeProtocol, Scope: netlink.SCOPE_LINK,
			Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
				IP: a.AsSlice(), HardwareAddr: e.MAC[:]}))
	}
	return link.Attrs().Index, errors.Join(errs...)
}

// serveNode is the server's process.
func serveNode(text string) {
	var s settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	journal, err := ipam.Open(filepath.Join(s.Dir, "journal"))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer journal.Close()
	l, err := Listen(filepath.Join(s.Dir, "agent.sock"))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	node := &hostRoutes{settings: s}
	node.server = NewServer(Config{Journal: journal, Node: node, Taken: taken, Log: log, MaxInFlight: s.MaxInFlight,
		RetryWindow: msec(s.RetryWindow)})
	node.server.Endpoints() // What the last server left is looked through now.
	fmt.Println("listening")
	if err := node.server.Serve(ctx, l); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// testNode is a node: a network namespace and a server in it.
// taken is what a node says that has its tunnel at port 4789.
func taken(p ipam.Port) string {
	if p.Node == 4789 && p.Protocol == plan.UDP {
		return "by the tunnel"
	}
	return ""
}

type testNode struct {
	t testing.TB
	settings
	ns  string
	cmd *exec.Cmd
	log lockedBuffer
	// hidden are paths and what is printed instead, one after the other.
	hidden []string
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func needRoot(t testing.TB) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// newNode makes a node and starts its server.
func newNode(t testing.TB, s settings) *testNode {
	t.Helper()
	needRoot(t)
	dir, err := os.MkdirTemp("", "weft")
	if err != nil {
		t.Fatal(err)
	}
	s.Dir = dir
	n := &testNode{t: t, settings: s, ns: newNetNS(t)}
	t.Cleanup(func() {
		n.kill()
		if strings.Contains(n.log.String(), "DATA RACE") {
			t.Error("the server has a data race")
		}
		if t.Failed() {
			t.Logf("the server's log:\n%s", n.log.String())
		}
		os.RemoveAll(dir)
	})
	n.in(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for _, p := range s.Pools {
			gw := p.Addr().Next()
			addr := &netlink.Addr{IPNet: &net.IPNet{IP: gw.AsSlice(), Mask: net.CIDRMask(gw.BitLen(), gw.BitLen())}}
			if gw.Is6() {
				addr.Flags = unix.IFA_F_NODAD // else it is not to be used for a moment
			}
			if err := netlink.AddrAdd(lo, addr); err != nil {
				return err
			}
		}
		return errors.Join(netlink.LinkSetUp(lo), sysctl.Set("ipv4/ip_forward", "1"), sysctl.Set("ipv6/conf/all/forwarding", "1"))
	})
	n.start()
	return n
}

// start starts the server and returns when it listens.
func (n *testNode) start() {
	n.t.Helper()
	text, err := json.Marshal(n.settings)
	if err != nil {
		n.t.Fatal(err)
	}
	n.cmd = exec.Command("/proc/self/exe")
	n.cmd.Env = append(os.Environ(), serverVariable+"="+string(text))
	n.cmd.Stderr = &n.log
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	n.in(n.cmd.Start)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "listening\n" {
		n.t.Fatalf("the server does not start: %s %v", line, err)
	}
}

// kill ends the server with SIGKILL.
func (n *testNode) kill() {
	if n.cmd != nil {
		n.cmd.Process.Kill()
		n.cmd.Wait()
		n.cmd = nil
	}
}

// stop ends the server as an upgrade does.
func (n *testNode) stop() {
	n.t.Helper()
	if err := errors.Join(n.cmd.Process.Signal(syscall.SIGTERM), n.cmd.Wait()); err != nil {
		n.t.Error(err)
	}
	n.cmd = nil
}

// in runs f in the node's network namespace.
func (n *testNode) in(f func() error) {
	n.t.Helper()
	if err := netns.Do(n.ns, f); err != nil {
		n.t.Fatal(err)
	}
}

func (n *testNode) socket() string { return filepath.Join(n.Dir, "agent.sock") }

// wish makes the node's side fail in a way; see hostRoutes.
func (n *testNode) wish(name, text string) {
	n.t.Helper()
	path := filepath.Join(n.Dir, name)
	err := os.Remove(path)
	if text != "" {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// links returns the host ends on the node.
func (n *testNode) links() (ends []podlink.HostEnd) {
	n.t.Helper()
	n.in(func() (err error) {
		ends, err = podlink.List()
		return err
	})
	return ends
}

// records returns what a dead server's journal holds.
func (n *testNode) records() []ipam.Attachment {
	n.t.Helper()
	j, err := ipam.Open(filepath.Join(n.Dir, "journal"))
	if err != nil {
		n.t.Fatal(err)
	}
	defer j.Close()
	if j.Damage() != nil {
		n.t.Fatal(j.Damage())
	}
	return j.All()
}

// newNetNS makes a network namespace that lives as long as the test, and
// returns a path to it.
func newNetNS(t testing.TB) string {
	t.Helper()
	f := makeNetNS(t)
	t.Cleanup(func() { f.Close() })
	return nsPath(f)
}

func nsPath(f *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) }

func makeNetNS(t testing.TB) *os.File {
	t.Helper()
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
	return m.f
}

// shim is a run of weft-cni.
type shim struct {
	command, container, ifname, netns, args string
	stdin                                   string
}

// run runs weft-cni until ctx ends and returns what it printed and its exit
// status.
func (s shim) run(ctx context.Context) (stdout string, code int, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(shimDir, ShimName))
	cmd.Env = []string{"CNI_COMMAND=" + s.command, "CNI_CONTAINERID=" + s.container, "CNI_IFNAME=" + s.ifname,
		"CNI_NETNS=" + s.netns, "CNI_ARGS=" + s.args, "CNI_PATH=" + shimDir}
	cmd.Stdin = strings.NewReader(s.stdin)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(out), exit.ExitCode(), nil
	}
	return string(out), 0, err
}

// conf is a network configuration that leads to the node's server.
func (n *testNode) conf(version string) string {
	return fmt.Sprintf(`{"cniVersion": %q, "name": "weft", "type": "weft-cni", "socket": %q}`, version, n.socket())
}
