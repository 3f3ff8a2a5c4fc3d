package cni

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/cni/protocol"
	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/podlink"
)

// twice is a node whose networks have the very same addresses.
func twice(t *testing.T) (*testNode, func(network string) *containerRuntime) {
	n := newNode(t, settings{Pools: dualStack, Networks: map[string][]netip.Prefix{"red": dualStack}})
	runtimes := map[string]*containerRuntime{}
	return n, func(network string) *containerRuntime {
		if runtimes[network] == nil {
			conf := fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "weft-%s", "plugins": [{"type": "weft-cni", "socket": %q, "network": %q}]}`, network, n.socket(), network)
			runtimes[network] = newRuntime(t, n, conf)
		}
		return runtimes[network]
	}
}

// interfaceIn is a pod's interface in a network.
func interfaceIn(network, container, netns string) *libcni.RuntimeConf {
	rt := pod(container, netns)
	if network != plan.DefaultNetwork {
		rt.IfName = "net1"
	}
	return rt
}

// onDevice has a socket send and receive by one interface alone; "" leaves that to
// the routes.
func onDevice(device string) func(string, string, syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) (err error) {
		if device == "" {
			return nil
		}
		ctlErr := raw.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), device) })
		if ctlErr != nil {
			return ctlErr
		}
		return err
	}
}

// TestSameAddressInTwoNetworks gives two pods an interface in each of two networks,
// which give them the same addresses, and has them speak in each.
func TestSameAddressInTwoNetworks(t *testing.T) {
	n, in := twice(t)
	namespaces := map[string]string{"c1": newNetNS(t), "c2": newNetNS(t)}
	networks := []string{plan.DefaultNetwork, "red"}
	for _, c := range []string{"c1", "c2"} {
		for _, network := range networks {
			rt := interfaceIn(network, c, namespaces[c])
			result, err := in(network).add(t.Context(), rt)
			if err != nil {
				t.Fatal(err)
			}
			want := "10.1.0." + string('1'+c[1]-'0')
			if got := addressOf(result); got != want {
				t.Errorf("%s has %s in network %s, want %s", c, got, network, want)
			}
			var routes []string
			for _, r := range result.Routes {
				routes = append(routes, fmt.Sprint(r.Dst.String(), " via ", r.GW))
			}
			want = "0.0.0.0/0 via 10.1.0.1, ::/0 via fe80::1"
			if network == "red" {
				want = "10.1.0.0/24 via 10.1.0.1, fd00:1::/64 via fe80::1"
			}
			if got := strings.Join(routes, ", "); got != want {
				t.Errorf("%s has in network %s the routes %s, want %s", c, network, got, want)
			}
			if err := in(network).check(t.Context(), rt); err != nil {
				t.Errorf("CHECK of %s in network %s: %v", c, network, err)
			}
		}
	}
	for _, address := range []string{"10.1.0.3", "fd00:1::3"} {
		for device, want := range map[string]string{"eth0": "eth0", "net1": "net1", "": "net1"} {
			if got := speak(t, namespaces["c1"], device, namespaces["c2"], address); got != want {
				t.Errorf("what c1 sends to %s by %q reaches c2 by %q, want %s", address, device, got, want)
			}
		}
	}
	// What the journal said, the interfaces say.
	n.kill()
	before := n.records()
	if err := os.Remove(filepath.Join(n.Dir, "journal")); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.kill()
	for i, a := range n.records() {
		if a.Key != before[i].Key || a.Network != before[i].Network || fmt.Sprint(a.Addresses) != fmt.Sprint(before[i].Addresses) {
			t.Errorf("after the loss of the journal it has %v, before it had %v", a, before[i])
		}
	}
	n.start()
	for _, network := range networks {
		third, err := in(network).add(t.Context(), interfaceIn(network, "c3", newNetNS(t)))
		if err != nil {
			t.Fatal(err)
		}
		if got := addressOf(third); got != "10.1.0.4" {
			t.Errorf("the next in network %s has %s", network, got)
		}
	}

	// The second interface goes, and the first stays whole.
	if err := in("red").del(t.Context(), interfaceIn("red", "c1", namespaces["c1"])); err != nil {
		t.Fatal(err)
	}
	if err := in(plan.DefaultNetwork).check(t.Context(), interfaceIn(plan.DefaultNetwork, "c1", namespaces["c1"])); err != nil {
		t.Error(err)
	}
	if got := speak(t, namespaces["c1"], "", namespaces["c2"], "10.1.0.3"); got != "eth0" {
		t.Errorf("without its second interface c1 reaches c2 by %q", got)
	}
}

// speak has one pod connect to another at an address by a device, and returns that by
// which the other was reached.
func speak(t *testing.T, from, device, to, address string) string {
	t.Helper()
	port := "0"
	for _, at := range []string{"eth0", "net1"} {
		var l net.Listener
		if err := netns.Do(to, func() (err error) {
			l, err = (&net.ListenConfig{Control: onDevice(at)}).Listen(t.Context(), "tcp", net.JoinHostPort(address, port))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, _ = net.SplitHostPort(l.Addr().String())
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprint(conn, at)
				conn.Close()
			}
		}()
	}
	var heard []byte
	if err := netns.Do(from, func() error {
		conn, err := (&net.Dialer{Timeout: 5 * time.Second, Control: onDevice(device)}).Dial("tcp", net.JoinHostPort(address, port))
		if err != nil {
			return err
		}
		defer conn.Close()
		heard, err = io.ReadAll(conn)
		return err
	}); err != nil {
		t.Errorf("%s by %q: %v", address, device, err)
	}
	return string(heard)
}

// TestAnInterfaceInTheWrongNetwork asks CHECK about another network than ADD.
func TestAnInterfaceInTheWrongNetwork(t *testing.T) {
	n, in := twice(t)
	ns := newNetNS(t)
	result, err := in("red").add(t.Context(), interfaceIn("red", "c1", ns))
	if err != nil {
		t.Fatal(err)
	}
	// The only interface of a pod leads to all that there is, whatever its network.
	if got := result.Routes[0].Dst.String(); got != "0.0.0.0/0" {
		t.Errorf("the first route is that to %s", got)
	}
	var prev strings.Builder
	if err := result.PrintTo(&prev); err != nil {
		t.Fatal(err)
	}
	stdin := strings.TrimSuffix(n.conf("1.1.0"), "}") + `, "prevResult": ` + prev.String() + "}"
	out, code, err := shim{command: "CHECK", container: "c1", ifname: "net1", netns: ns, stdin: stdin}.run(t.Context())
	if err != nil || code != 1 || !strings.Contains(out, "net1 is in network red and not in default") {
		t.Errorf("exit status %d, %v: %s", code, err, out)
	}
}

// TestWhichInterfaceHasTheDefaultRoute decides it, whatever others a container has.
func TestWhichInterfaceHasTheDefaultRoute(t *testing.T) {
	has := func(network string, secondary bool) ipam.Attachment {
		return ipam.Attachment{Request: ipam.Request{Key: ipam.Key{ContainerID: "c1", IfName: "in-" + network}, Network: network, Secondary: secondary}}
	}
	for name, test := range map[string]struct {
		others    []ipam.Attachment
		secondary bool
		failure   string
	}{
		"the only one":                      {},
		"behind one that has it":            {others: []ipam.Attachment{has("red", false)}, secondary: true},
		"behind two":                        {others: []ipam.Attachment{has("blue", true), has("red", false)}, secondary: true},
		"the one that had it has gone":      {others: []ipam.Attachment{has("red", true)}},
		"in the network of the first":       {others: []ipam.Attachment{has(plan.DefaultNetwork, false)}, failure: "container c1 has in-default in network default already: it can have one interface in each"},
		"in the network of one of the rest": {others: []ipam.Attachment{has("red", false), has(plan.DefaultNetwork, true)}, failure: "container c1 has in-default in network default already: it can have one interface in each"},
	} {
		secondary, failure := isSecondary(test.others, plan.DefaultNetwork)
		if secondary != test.secondary && failure == nil || (failure != nil) != (test.failure != "") {
			t.Errorf("%s: it is secondary: %v, %v", name, secondary, failure)
		}
		if failure != nil && (failure.Code != protocol.InvalidConfig || !strings.HasSuffix(failure.Details, test.failure)) {
			t.Errorf("%s: %v", name, failure)
		}
	}
}

// TestTheLongestNameOfANetworkFits holds what is taken of a configuration against what
// an interface's alias has room for.
func TestTheLongestNameOfANetworkFits(t *testing.T) {
	of := func(length int) error {
		a := reservedAttachment()
		a.ContainerID, a.IfName = strings.Repeat("c", maxContainerID), strings.Repeat("i", 15)
		a.HostInterface = podlink.HostName(a.ContainerID, a.IfName)
		a.Network = strings.Repeat("n", length)
		a.Addresses = []netip.Addr{netip.MustParseAddr("255.255.255.254"), netip.MustParseAddr("fd11:1111:1111:1111:1111:1111:1111:1111")}
		a.NetNS = "/nonexistent"
		return podlink.Check(linkSpec(a))
	}
	if err := of(maxNetwork); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the longest name: %v", err)
	}
	if err := of(maxNetwork + 1); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a longer name: %v", err)
	}
}
