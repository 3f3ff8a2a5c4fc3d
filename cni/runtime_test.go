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

func newRuntime(t testing.TB, n *testNode, conflist []byte, binDirs ...string) *containerRuntime {
	t.Helper()
	list, err := libcni.ConfListFromBytes(conflist)
	if err != nil {
		t.Fatal(err)
	}
	// Left to itself, libcni makes this one later, in each goroutine.
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}}
	return &containerRuntime{libcni.NewCNIConfigWithCacheDir(append(binDirs, shimDir), t.TempDir(), exec), n, list}
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
