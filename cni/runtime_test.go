package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"github.com/weftnet/weft/cni/protocol"
	"github.com/weftnet/weft/internal/netns"
)

func msec(n int) time.Duration { return time.Duration(n) * time.Millisecond }

var dualStack = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00:1::/64")}

// otherPlugins is where Debian puts them.
const otherPlugins = "/usr/lib/cni"

// containerRuntime is libcni, which containerd and CRI-O use, on a node.
type containerRuntime struct {
	*libcni.CNIConfig
	node *testNode
	list *libcni.NetworkConfigList
}

func newRuntime(t testing.TB, n *testNode, conflist []byte) *containerRuntime {
	t.Helper()
	list, err := libcni.ConfListFromBytes(conflist)
	if err != nil {
		t.Fatal(err)
	}
	// Left to itself, libcni makes this one later, in each goroutine.
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}}
	return &containerRuntime{libcni.NewCNIConfigWithCacheDir([]string{shimDir, otherPlugins}, t.TempDir(), exec), n, list}
}

// on runs f on the node: what it starts is in its network namespace.
func (r *containerRuntime) on(f func() error) error { return netns.Do(r.node.ns, f) }

func (r *containerRuntime) add(ctx context.Context, rt *libcni.RuntimeConf) (result *types100.Result, err error) {
	err = r.on(func() error {
		res, err := r.AddNetworkList(ctx, r.list, rt)
		if err != nil {
			return err
		}
		result, err = types100.NewResultFromResult(res)
		return err
	})
	return result, err
}

func (r *containerRuntime) del(ctx context.Context, rt *libcni.RuntimeConf) error {
	return r.on(func() error { return r.DelNetworkList(ctx, r.list, rt) })
}

func (r *containerRuntime) check(ctx context.Context, rt *libcni.RuntimeConf) error {
	return r.on(func() error { return r.CheckNetworkList(ctx, r.list, rt) })
}

func conflist(version, socket string) []byte {
	return fmt.Appendf(nil, `{"cniVersion": %q, "name": "weft", "plugins": [{"type": "weft-cni", "socket": %q}]}`, version, socket)
}

func pod(container, netns string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: container, NetNS: netns, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", container}, {"K8S_POD_INFRA_CONTAINER_ID", container}}}
}

// addressOf is the first address of a result.
func addressOf(r *types100.Result) string { return r.IPs[0].Address.IP.String() }

// reach dials a listener on the node at addr from a pod.
func reach(t testing.TB, n *testNode, pod, addr string) string {
	t.Helper()
	var l net.Listener
	n.in(func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(addr, "0")); return err })
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			fmt.Fprint(conn, conn.RemoteAddr().(*net.TCPAddr).IP)
			conn.Close()
		}
	}()
	var seen []byte
	if err := netns.Do(pod, func() error {
		conn, err := net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		seen, err = io.ReadAll(conn)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return string(seen)
}

func TestLifeOfAPodInEachVersion(t *testing.T) {
	for _, version := range protocol.Versions {
		t.Run(version, func(t *testing.T) {
			n := newNode(t, settings{Pools: dualStack})
			r := newRuntime(t, n, conflist(version, n.socket()))
			ns := newNetNS(t)
			rt := pod("c1", ns)
			ctx := t.Context()
			if err := r.on(func() error { return r.GetStatusNetworkList(ctx, r.list) }); err != nil {
				t.Fatal(err)
			}
			result, err := r.add(ctx, rt)
			if err != nil {
				t.Fatal(err)
			}
			// The addresses that the node sees are those the pod was told.
			for i, gw := range []string{"10.1.0.1", "fd00:1::1"} {
				if got, want := reach(t, n, ns, gw), result.IPs[i].Address.IP.String(); got != want {
					t.Errorf("the node sees %s, want %s", got, want)
				}
			}
			if err := r.check(ctx, rt); err != nil && version != "0.3.1" {
				t.Errorf("CHECK: %v", err)
			}
			if err := r.del(ctx, rt); err != nil {
				t.Fatal(err)
			}
			if links := n.links(); len(links) != 0 {
				t.Errorf("left behind: %v", links)
			}
			if err := r.del(ctx, rt); err != nil {
				t.Errorf("a second DEL: %v", err)
			}
			n.kill()
			if all := n.records(); len(all) != 0 {
				t.Errorf("left in the journal: %v", all)
			}
		})
	}
}

func TestResultOfEachVersion(t *testing.T) {
	n := newNode(t, settings{Pools: dualStack})
	for i, test := range []struct{ version, want string }{
		{"0.3.1", `"version":"4"`}, {"0.4.0", `"version":"4"`}, {"1.0.0", ""}, {"1.1.0", `"mtu":1450`},
	} {
		ns := newNetNS(t)
		out, code, err := shim{command: "ADD", container: fmt.Sprintf("c%d", i), ifname: "eth0", netns: ns, stdin: n.conf(test.version)}.run(t.Context())
		if err != nil || code != 0 {
			t.Fatal(out, code, err)
		}
		var compact strings.Builder
		var fields map[string]json.RawMessage
		if err := json.Unmarshal([]byte(out), &fields); err != nil {
			t.Fatal(err)
		}
		if got := string(fields["cniVersion"]); got != fmt.Sprintf("%q", test.version) {
			t.Errorf("the result's version is %s, want %s", got, test.version)
		}
		for _, line := range strings.Fields(out) {
			compact.WriteString(line)
		}
		if !strings.Contains(compact.String(), test.want) {
			t.Errorf("%s: no %s in %s", test.version, test.want, out)
		}
		if test.version != "1.1.0" && strings.Contains(out, "mtu") {
			t.Errorf("%s has no mtu: %s", test.version, out)
		}
	}
}

func TestCheckSeesWhatChanged(t *testing.T) {
	n := newNode(t, settings{Pools: dualStack})
	r := newRuntime(t, n, conflist("1.1.0", n.socket()))
	ns := newNetNS(t)
	rt := pod("c1", ns)
	if _, err := r.add(t.Context(), rt); err != nil {
		t.Fatal(err)
	}
	if err := netns.Do(ns, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr("10.1.0.2/32")
		return errors.Join(err, netlink.AddrDel(link, addr))
	}); err != nil {
		t.Fatal(err)
	}
	err := r.check(t.Context(), rt)
	// Losing its last address takes the IPv4 routes with it.
	want := "the attachment is not as ADD left it; eth0 lacks the address 10.1.0.2/32"
	var failure *types.Error
	if !errors.As(err, &failure) || failure.Code != protocol.CheckFailed || !strings.HasPrefix(failure.Error(), want) {
		t.Errorf("got %v, want %s…", err, want)
	}
}

// TestChain has Debian's plug-ins work after weft-cni, as the configuration
// does that Install writes.
func TestChain(t *testing.T) {
	needRoot(t)
	found, err := findFollowers(t.Context(), otherPlugins)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 2 {
		t.Skip("needs portmap and bandwidth in " + otherPlugins + " (Debian: containernetworking-plugins)")
	}
	n := newNode(t, settings{Pools: dualStack})
	conf, err := Conflist(n.socket(), found...)
	if err != nil {
		t.Fatal(err)
	}
	r := newRuntime(t, n, conf)
	ns, outside := newNetNS(t), newNetNS(t)
	// A client on another machine, one hop away.
	n.in(func() error {
		f, err := os.Open(outside)
		if err != nil {
			return err
		}
		defer f.Close()
		veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "up", PeerNamespace: netlink.NsFd(f.Fd()), PeerTxQLen: -1}
		veth.Name = "uplink"
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return address("uplink", "192.0.2.1/24")
	})
	if err := netns.Do(outside, func() error { return address("up", "192.0.2.2/24") }); err != nil {
		t.Fatal(err)
	}

	rt := pod("c1", ns)
	rt.CapabilityArgs = map[string]any{
		"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}},
		"bandwidth":    map[string]any{"ingressRate": 80_000_000, "ingressBurst": 8_000_000, "egressRate": 80_000_000, "egressBurst": 8_000_000},
	}
	result, err := r.add(t.Context(), rt)
	if err != nil {
		t.Fatal(err)
	}
	// Debian's portmap (1.1.1) looks for its IPv4 rules in ip6tables too, so
	// CHECK is asked of a pod without mapped ports.
	limited := pod("c2", newNetNS(t))
	limited.CapabilityArgs = map[string]any{"bandwidth": rt.CapabilityArgs["bandwidth"]}
	if _, err := r.add(t.Context(), limited); err != nil {
		t.Fatal(err)
	}
	if err := r.check(t.Context(), limited); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if err := r.del(t.Context(), limited); err != nil {
		t.Error(err)
	}
	n.in(func() error {
		link, err := netlink.LinkByName(result.Interfaces[0].Name)
		if err != nil {
			return err
		}
		qdiscs, err := netlink.QdiscList(link)
		if !slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "tbf" }) {
			t.Errorf("bandwidth did not limit %s: %v", result.Interfaces[0].Name, qdiscs)
		}
		return err
	})

	var l net.Listener
	if err := netns.Do(ns, func() (err error) { l, err = net.Listen("tcp4", ":80"); return err }); err != nil {
		t.Fatal(err)
	}
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
	if err := netns.Do(outside, func() error {
		conn, err := net.DialTimeout("tcp", "192.0.2.1:8080", 5*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		seen, err := io.ReadAll(conn)
		if string(seen) != "192.0.2.2" {
			t.Errorf("behind the mapped port the client is seen as %q", seen)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if err := r.del(t.Context(), rt); err != nil {
		t.Error(err)
	}
	n.in(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if name := l.Attrs().Name; name != "lo" && name != "uplink" {
				t.Errorf("%s is left behind", name)
			}
		}
		return err
	})
}

func address(name, prefix string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(link, addr), netlink.LinkSetUp(link))
}

func TestGCKeepsWhatIsNamed(t *testing.T) {
	n := newNode(t, settings{Pools: dualStack})
	r := newRuntime(t, n, conflist("1.1.0", n.socket()))
	for _, c := range []string{"keep", "stale", "unknown"} {
		if _, err := r.add(t.Context(), pod(c, newNetNS(t))); err != nil {
			t.Fatal(err)
		}
	}
	// A runtime that lost what it knew: libcni has no cache of "unknown".
	other := newRuntime(t, n, conflist("1.1.0", n.socket()))
	if err := other.on(func() error {
		return other.GCNetworkList(t.Context(), other.list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "keep", IfName: "eth0"}}})
	}); err != nil {
		t.Fatal(err)
	}
	if links := n.links(); len(links) != 1 || !strings.HasPrefix(links[0].Alias, "keep/eth0 ") {
		t.Errorf("left are %v", links)
	}
}

func TestGCLeavesOtherNetworksAlone(t *testing.T) {
	n := newNode(t, settings{Pools: dualStack})
	r := newRuntime(t, n, conflist("1.1.0", n.socket()))
	if _, err := r.add(t.Context(), pod("c1", newNetNS(t))); err != nil {
		t.Fatal(err)
	}
	stdin := strings.Replace(n.conf("1.1.0"), `"weft"`, `"another"`, 1)
	stdin = strings.TrimSuffix(stdin, "}") + `, "cni.dev/valid-attachments": []}`
	if out, code, err := (shim{command: "GC", stdin: stdin}).run(t.Context()); code != 0 || err != nil {
		t.Fatal(out, err)
	}
	if links := n.links(); len(links) != 1 {
		t.Errorf("left are %v", links)
	}
}

func TestParallelAdds(t *testing.T) {
	const pods = 100
	n := newNode(t, settings{Pools: dualStack})
	r := newRuntime(t, n, conflist("1.1.0", n.socket()))
	namespaces := make([]string, pods)
	for i := range namespaces {
		namespaces[i] = newNetNS(t)
	}
	var mu sync.Mutex
	holders := map[string]string{}
	took := make([]time.Duration, pods)
	var g errgroup.Group
	g.SetLimit(10)
	for i, ns := range namespaces {
		g.Go(func() error {
			rt := pod(fmt.Sprintf("c%d", i), ns)
			began := time.Now()
			result, err := r.add(t.Context(), rt)
			took[i] = time.Since(began)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			for _, ip := range result.IPs {
				if other, ok := holders[ip.Address.String()]; ok {
					t.Errorf("%s is given to %s and %s", ip.Address.String(), other, rt.ContainerID)
				}
				holders[ip.Address.String()] = rt.ContainerID
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(took)
	t.Logf("ADD with 10 in flight: p50 %v, p99 %v", took[pods/2], took[pods*99/100])
	if got := len(n.links()); got != pods {
		t.Errorf("there are %d links", got)
	}
	for _, i := range []int{0, pods - 1} {
		reach(t, n, namespaces[i], "10.1.0.1")
	}
	for i, ns := range namespaces {
		g.Go(func() error { return r.del(t.Context(), pod(fmt.Sprintf("c%d", i), ns)) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if links := n.links(); len(links) != 0 {
		t.Errorf("left behind: %v", links)
	}
}

func TestInstall(t *testing.T) {
	dir := t.TempDir()
	i := Install{ConfFile: filepath.Join(dir, "net.d", "10-weft.conflist"), BinDir: filepath.Join(dir, "bin"), Shim: filepath.Join(shimDir, ShimName)}
	for range 2 {
		if err := i.Write("/run/other.sock"); err != nil {
			t.Fatal(err)
		}
	}
	conf, err := os.ReadFile(i.ConfFile)
	if err != nil {
		t.Fatal(err)
	}
	want := `{
  "cniVersion": "1.1.0",
  "name": "weft",
  "plugins": [
    {
      "socket": "/run/other.sock",
      "type": "weft-cni"
    }
  ]
}
`
	if string(conf) != want {
		t.Errorf("got %s", conf)
	}
	info, err := os.Stat(filepath.Join(i.BinDir, ShimName))
	if err != nil || info.Mode() != 0o755 {
		t.Error(info, err)
	}
	for _, sub := range []string{"net.d", "bin"} {
		if entries, err := os.ReadDir(filepath.Join(dir, sub)); err != nil || len(entries) != 1 {
			t.Errorf("%s holds %v %v", sub, entries, err)
		}
	}
}

func TestConflistSpeaksWhatAllSpeak(t *testing.T) {
	portmap := Follower{Type: "portmap", Capability: "portMappings", Versions: []string{"0.4.0", "1.0.0"}}
	conf, err := Conflist("", portmap)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"cniVersion":"1.0.0","name":"weft","plugins":[{"type":"weft-cni"},{"capabilities":{"portMappings":true},"type":"portmap"}]}`
	if got := strings.Join(strings.Fields(string(conf)), ""); got != want {
		t.Errorf("got %s", got)
	}
	if _, err := Conflist("", Follower{Type: "old", Versions: []string{"0.1.0"}}); err == nil {
		t.Error("a plug-in without a common version was accepted")
	}
}
