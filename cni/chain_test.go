package cni

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestChain has pods that came under an agent which left limits to the plug-in bandwidth leave
// under one that does not: what bandwidth made goes with them.
func TestChain(t *testing.T) {
	needRoot(t)
	if _, err := os.Stat(filepath.Join(otherPlugins, "bandwidth")); err != nil {
		t.Skip("needs bandwidth in " + otherPlugins + " (Debian: containernetworking-plugins)")
	}
	n := newNode(t, settings{Pools: dualStack})
	i := Install{BinDir: otherPlugins, ConfFile: filepath.Join(t.TempDir(), "weft.conflist")}
	conf := []byte(`{"cniVersion":"1.0.0","name":"weft","plugins":[{"type":"weft-cni","socket":"` + n.socket() + `"},{"type":"bandwidth","capabilities":{"bandwidth":true}}]}`)
	if err := os.WriteFile(i.ConfFile, conf, 0o644); err != nil {
		t.Fatal(err)
	}
	r := newRuntime(t, n, conf, i.BinDir)
	rt := pod("c1", newNetNS(t))
	rt.CapabilityArgs = map[string]any{
		"bandwidth": map[string]any{"ingressRate": 80_000_000, "ingressBurst": 8_000_000, "egressRate": 80_000_000, "egressBurst": 8_000_000},
	}
	if _, err := r.add(t.Context(), rt); err != nil {
		t.Fatal(err)
	}
	detours := func() (names []string) {
		n.in(func() error {
			links, err := netlink.LinkList()
			for _, l := range links {
				if l.Type() == "ifb" {
					names = append(names, l.Attrs().Name)
				}
			}
			return err
		})
		return names
	}
	if len(detours()) != 1 {
		t.Errorf("bandwidth made the devices %v, and not one", detours())
	}

	i.Followed = true
	if err := i.Write(n.socket()); err != nil {
		t.Fatal(err)
	}
	conf, err := os.ReadFile(i.ConfFile)
	if err != nil {
		t.Fatal(err)
	}
	later := newRuntime(t, n, conf, i.BinDir)
	limited := pod("c2", newNetNS(t))
	limited.CapabilityArgs = rt.CapabilityArgs
	if _, err := later.add(t.Context(), limited); err != nil {
		t.Fatal(err)
	}
	if err := later.check(t.Context(), limited); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if len(detours()) != 1 {
		t.Errorf("bandwidth limited what it is there no more for: %v", detours())
	}
	if err := later.del(t.Context(), limited); err != nil {
		t.Error(err)
	}
	if err := later.del(t.Context(), rt); err != nil {
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
