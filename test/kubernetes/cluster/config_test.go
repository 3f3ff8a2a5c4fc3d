package cluster

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/internal/golden"
)

func prefixes(s ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func TestZones(t *testing.T) {
	for zones, want := range map[int]string{
		0: "[zone-node1 zone-node2 zone-node3]",
		1: "[zone-node1 zone-node1 zone-node1]",
		2: "[zone-node1 zone-node2 zone-node1]",
	} {
		c, err := Config{Bin: "/bin", Zones: zones}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range c.nodes() {
			got = append(got, c.zone(n))
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%d zones: %v, want %s", zones, got, want)
		}
	}
}

// What an administrator would have put on each node, and would have typed.
func TestNodes(t *testing.T) {
	for name, config := range map[string]Config{
		"default": {},
		"bridge":  {Nodes: 2, Network: Bridge, Proxy: "iptables", Flags: map[string][]string{kubelet: {"--v=4"}}},
		"ipv6":    {Nodes: 1, Network: Bridge, Proxy: NoProxy, PodCIDRs: prefixes("fd00:10:244::/56"), ServiceCIDRs: prefixes("fd00:10:96::/112")},
	} {
		t.Run(name, func(t *testing.T) {
			config.Bin = "/bin"
			config, err := config.withDefaults()
			if err != nil {
				t.Fatal(err)
			}
			nodes := config.nodes()
			if len(nodes) != config.Nodes {
				t.Fatalf("%d nodes", len(nodes))
			}
			n := nodes[len(nodes)-1]
			var got txtar.Archive
			for _, program := range config.programs() {
				line := program + " " + strings.Join(config.arguments(program, n), " ") + "\n"
				got.Files = append(got.Files, txtar.File{Name: program, Data: []byte(line)})
			}
			files := config.files(n, credentials{ca: []byte("(CA)\n"), kubeletCert: []byte("(certificate)\n"),
				kubeletKey: []byte("(key)\n"), kubeletKubeconfig: []byte("(kubelet's)\n"), proxyKubeconfig: []byte("(kube-proxy's)\n")})
			for _, path := range slices.Sorted(maps.Keys(files)) {
				got.Files = append(got.Files, txtar.File{Name: path, Data: []byte(files[path])})
				if ext := filepath.Ext(path); ext == ".yaml" || ext == ".conflist" {
					if err := yaml.Unmarshal([]byte(files[path]), new(map[string]any)); err != nil {
						t.Errorf("%s: %v", path, err)
					}
				}
			}
			golden.File(t, filepath.Join("testdata", name+".txtar"), txtar.Format(&got))
		})
	}
}

func TestAddresses(t *testing.T) {
	c, err := Config{Bin: "/bin", Nodes: maxNodes}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]string)
	for _, n := range c.nodes() {
		for _, a := range n.Addresses {
			if !underlay4.Contains(a) && !underlay6.Contains(a) {
				t.Errorf("%s is not on the underlay", a)
			}
			if other, taken := seen[a.String()]; taken {
				t.Errorf("%s and %s have %s", n.Name, other, a)
			}
			seen[a.String()] = n.Name
		}
		for i, p := range n.PodCIDRs {
			if !c.PodCIDRs[i].Contains(p.Addr()) || p != p.Masked() {
				t.Errorf("%s of %s is not within %s", p, n.Name, c.PodCIDRs[i])
			}
			if other, taken := seen[p.String()]; taken {
				t.Errorf("%s and %s have %s", n.Name, other, p)
			}
			seen[p.String()] = n.Name
		}
	}
	if got, want := fmt.Sprint(c.nodes()[1]), "{node2 [172.30.0.12 fd30::12] [10.244.2.0/24 fd00:10:244:2::/64] 12}"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := c.clusterDNS().String(); got != "10.96.0.10" {
		t.Errorf("name server %s", got)
	}
	if dns := c.dns(); !strings.Contains(dns, `clusterIP: "10.96.0.10"`) {
		t.Errorf("the name server's manifest does not say its address:\n%s", dns)
	}
}

func TestConfigsThatCannotBe(t *testing.T) {
	for want, c := range map[string]Config{
		"directory of programs":             {},
		`cluster name "a/b"`:                {Bin: "/bin", Name: "a/b"},
		`cluster name "-a"`:                 {Bin: "/bin", Name: "-a"},
		"bin: use an absolute path":         {Bin: "bin"},
		"/a,b: use an absolute path":        {Bin: "/bin", Dir: "/a,b"},
		"x.tar: use an absolute path":       {Bin: "/bin", Images: []string{"x.tar"}},
		"51 nodes":                          {Bin: "/bin", Nodes: 51},
		"-1 nodes":                          {Bin: "/bin", Nodes: -1},
		"4 zones":                           {Bin: "/bin", Zones: 4},
		`network "ring"`:                    {Bin: "/bin", Network: "ring"},
		`kube-proxy mode "ipvs"`:            {Bin: "/bin", Proxy: "ipvs"},
		"MTU 68":                            {Bin: "/bin", MTU: 68},
		"use a /18 or larger":               {Bin: "/bin", PodCIDRs: prefixes("10.0.0.0/20", "fd00::/56")},
		"10.0.0.1/16 is not the prefix":     {Bin: "/bin", PodCIDRs: prefixes("10.0.0.1/16", "fd00::/56")},
		"give both the same families":       {Bin: "/bin", PodCIDRs: prefixes("10.0.0.0/16")},
		"[fd00::/56] and Services in [10.9": {Bin: "/bin", PodCIDRs: prefixes("fd00::/56"), ServiceCIDRs: prefixes("10.96.0.0/16")},
	} {
		if _, err := c.withDefaults(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}
