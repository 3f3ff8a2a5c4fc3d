package cni

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestPredecessors has pods that came under an agent which left ports and limits to other plug-ins
// leave under one that does not: what these made goes with them, and they do nothing for others.
func TestPredecessors(t *testing.T) {
	needRoot(t)
	for _, name := range []string{"portmap", "bandwidth"} {
		if _, err := os.Stat(filepath.Join(otherPlugins, name)); err != nil {
			t.Skip("needs " + name + " in " + otherPlugins + " (Debian: containernetworking-plugins)")
		}
	}
	n := newNode(t, settings{Pools: dualStack})
	i := Install{BinDir: otherPlugins, ConfFile: filepath.Join(t.TempDir(), "weft.conflist")}
	conf := []byte(`{"cniVersion":"1.0.0","name":"weft","plugins":[{"type":"weft-cni","socket":"` + n.socket() + `"},
		{"type":"portmap","capabilities":{"portMappings":true}},{"type":"bandwidth","capabilities":{"bandwidth":true}}]}`)
	if err := os.WriteFile(i.ConfFile, conf, 0o644); err != nil {
		t.Fatal(err)
	}
	r := newRuntime(t, n, conf, i.BinDir)
	rt := pod("c1", newNetNS(t))
	rt.CapabilityArgs = map[string]any{
		"portMappings": []map[string]any{{"hostPort": 18080, "containerPort": 80, "protocol": "tcp"}},
		"bandwidth":    map[string]any{"ingressRate": 80_000_000, "ingressBurst": 8_000_000, "egressRate": 80_000_000, "egressBurst": 8_000_000},
	}
	if _, err := r.add(t.Context(), rt); err != nil {
		t.Fatal(err)
	}
	made := func() (detours, ports int) {
		t.Helper()
		n.in(func() error {
			links, err := netlink.LinkList()
			for _, l := range links {
				if l.Type() == "ifb" {
					detours++
				}
			}
			return err
		})
		n.in(func() error {
			out, err := exec.Command("sh", "-ec", "iptables-save; nft list ruleset").CombinedOutput()
			ports = strings.Count(string(out), "18080")
			return err
		})
		return detours, ports
	}
	detours, ports := made()
	if detours != 1 || ports == 0 {
		t.Errorf("they made %d devices and %d rules", detours, ports)
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
	other := pod("c2", newNetNS(t))
	other.CapabilityArgs = rt.CapabilityArgs
	if _, err := later.add(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if err := later.check(t.Context(), other); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if d, p := made(); d != detours || p != ports {
		t.Errorf("for another pod they made %d devices and %d rules more", d-detours, p-ports)
	}
	if err := later.del(t.Context(), other); err != nil {
		t.Error(err)
	}
	for range 2 { // as a runtime may ask again
		if err := later.del(t.Context(), rt); err != nil {
			t.Error(err)
		}
	}
	if d, p := made(); d != 0 || p != 0 {
		t.Errorf("%d devices and %d rules are left", d, p)
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
