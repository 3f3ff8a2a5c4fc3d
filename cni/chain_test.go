package cni

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
)

// TestChain has plug-ins work after weft-cni, as the configuration does that
// Install writes: Debian's, and those that Weft brings along.
func TestChain(t *testing.T) {
	t.Run("the host's", func(t *testing.T) {
		dir := t.TempDir()
		for _, f := range followers {
			if err := os.Symlink(filepath.Join(otherPlugins, f.Type), filepath.Join(dir, f.Type)); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(dir, f.Type)); err != nil {
				t.Skip("needs portmap and bandwidth in " + otherPlugins + " (Debian: containernetworking-plugins)")
			}
		}
		testChain(t, Install{BinDir: dir}, false)
	})
	t.Run("Weft's", func(t *testing.T) {
		dir := t.TempDir()
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", dir+"/",
			"github.com/containernetworking/plugins/plugins/meta/portmap", "github.com/containernetworking/plugins/plugins/meta/bandwidth")
		build.Dir = filepath.Join("..", "build", "image", "plugins")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the plug-ins: %v\n%s", err, out)
		}
		for _, backend := range []string{"", "iptables", "nftables"} {
			t.Run("backend "+backend, func(t *testing.T) {
				testChain(t, Install{BinDir: t.TempDir(), Plugins: dir, Backend: backend}, true)
			})
		}
	})
}

// testChain tests what an Install installs. checks says that its portmap can
// do CHECK: Debian's (1.1.1) looks for its IPv4 rules in ip6tables too.
func testChain(t *testing.T, i Install, checks bool) {
	needRoot(t)
	n := newNode(t, settings{Pools: dualStack})
	i.ConfFile = filepath.Join(t.TempDir(), "weft.conflist")
	if err := i.Write(n.socket()); err != nil {
		t.Fatal(err)
	}
	conf, err := os.ReadFile(i.ConfFile)
	if err != nil {
		t.Fatal(err)
	}
	r := newRuntime(t, n, conf, i.BinDir)
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
		return errors.Join(address("uplink", "192.0.2.1/24"), address("uplink", "2001:db8::1/64"))
	})
	if err := netns.Do(outside, func() error {
		return errors.Join(address("up", "192.0.2.2/24"), address("up", "2001:db8::2/64"))
	}); err != nil {
		t.Fatal(err)
	}

	rt := pod("c1", ns)
	rt.CapabilityArgs = map[string]any{
		"portMappings": []map[string]any{
			{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, {"hostPort": 8080, "containerPort": 80, "protocol": "udp"}},
		"bandwidth": map[string]any{"ingressRate": 80_000_000, "ingressBurst": 8_000_000, "egressRate": 80_000_000, "egressBurst": 8_000_000},
	}
	result, err := r.add(t.Context(), rt)
	if err != nil {
		t.Fatal(err)
	}
	if checks {
		if err := r.check(t.Context(), rt); err != nil {
			t.Errorf("CHECK: %v", err)
		}
	}
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

	if err := netns.Do(ns, func() error { return tellAddresses(t, ":80") }); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ from, addr, seen string }{
		{outside, "192.0.2.1:8080", "192.0.2.2"},
		{outside, "[2001:db8::1]:8080", "2001:db8::2"},
		// The node, and the pod itself, by the node's address; where the sender
		// is put behind the node, it is behind the pools' gateways.
		{n.ns, "192.0.2.1:8080", "192.0.2.1"},
		{n.ns, "127.0.0.1:8080", "10.1.0.1"},
		{n.ns, "[2001:db8::1]:8080", "2001:db8::1"},
		{ns, "192.0.2.1:8080", "10.1.0.1"},
		{ns, "[2001:db8::1]:8080", "fd00:1::1"},
	} {
		for _, network := range []string{"tcp", "udp"} {
			var seen string
			err := netns.Do(test.from, func() (err error) { seen, err = ask(network, test.addr); return err })
			if err != nil || seen != test.seen {
				t.Errorf("%s %s: the pod behind the mapped port sees %q and not %q, %v", network, test.addr, seen, test.seen, err)
			}
		}
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

// tellAddresses tells whoever asks at an address under which it is seen.
func tellAddresses(t *testing.T, at string) error {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	packets, err := net.ListenPacket("udp", at)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	t.Cleanup(func() { l.Close(); packets.Close() })
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
	go func() {
		for {
			_, from, err := packets.ReadFrom(make([]byte, 1))
			if err != nil {
				return
			}
			packets.WriteTo([]byte(from.(*net.UDPAddr).IP.String()), from)
		}
	}()
	return nil
}

// ask asks what tellAddresses tells.
func ask(network, addr string) (string, error) {
	conn, err := net.DialTimeout(network, addr, 5*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	if network == "udp" {
		if _, err := conn.Write([]byte("?")); err != nil {
			return "", err
		}
	}
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	return string(answer[:n]), err
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
	if addr.IP.To4() == nil {
		addr.Flags = unix.IFA_F_NODAD
	}
	return errors.Join(netlink.AddrAdd(link, addr), netlink.LinkSetUp(link))
}
