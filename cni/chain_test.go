package cni

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestChain has bandwidth work after weft-cni, as the configuration does that
// Install writes: Debian's, and that which Weft brings along.
func TestChain(t *testing.T) {
	t.Run("the host's", func(t *testing.T) {
		dir := t.TempDir()
		for _, f := range followers {
			if err := os.Symlink(filepath.Join(otherPlugins, f.Type), filepath.Join(dir, f.Type)); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(dir, f.Type)); err != nil {
				t.Skip("needs bandwidth in " + otherPlugins + " (Debian: containernetworking-plugins)")
			}
		}
		testChain(t, Install{BinDir: dir})
	})
	t.Run("Weft's", func(t *testing.T) {
		dir := t.TempDir()
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", dir+"/", "github.com/containernetworking/plugins/plugins/meta/bandwidth")
		build.Dir = filepath.Join("..", "build", "image", "plugins")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the plug-in: %v\n%s", err, out)
		}
		testChain(t, Install{BinDir: t.TempDir(), Plugins: dir})
	})
}

// testChain tests what an Install installs.
func testChain(t *testing.T, i Install) {
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
	rt := pod("c1", newNetNS(t))
	rt.CapabilityArgs = map[string]any{
		"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}},
		"bandwidth":    map[string]any{"ingressRate": 80_000_000, "ingressBurst": 8_000_000, "egressRate": 80_000_000, "egressBurst": 8_000_000},
	}
	result, err := r.add(t.Context(), rt)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.check(t.Context(), rt); err != nil {
		t.Errorf("CHECK: %v", err)
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

	if err := r.del(t.Context(), rt); err != nil {
		t.Error(err)
	}
	n.in(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if name := l.Attrs().Name; name != "lo" {
				t.Errorf("%s is left behind", name)
			}
		}
		return err
	})
}
