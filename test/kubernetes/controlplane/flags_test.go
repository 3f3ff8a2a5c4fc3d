package controlplane

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/weftnet/weft/internal/golden"
)

func TestCommandLines(t *testing.T) {
	configs := map[string]Config{
		"loopback": {},
		"cluster": {
			Address: netip.MustParseAddr("172.30.0.10"),
			Flags:   map[Component][]string{APIServer: {"--v=4"}},
		},
		"single-stack": {
			Address:      netip.MustParseAddr("fd30::10"),
			ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("fd00:10:96::/112")},
			PodCIDRs:     []netip.Prefix{netip.MustParsePrefix("fd00:10:244::/56")},
		},
	}
	for name, config := range configs {
		t.Run(name, func(t *testing.T) {
			config.Bin, config.Dir = "/bin", "/dir"
			config, err := config.withDefaults()
			if err != nil {
				t.Fatal(err)
			}
			var got txtar.Archive
			for _, component := range Components() {
				lines := strings.Join(config.arguments(component, usualPorts), "\n") + "\n"
				got.Files = append(got.Files, txtar.File{Name: string(component), Data: []byte(lines)})
			}
			golden.File(t, filepath.Join("testdata", name+".txtar"), txtar.Format(&got))
		})
	}
}

func TestConfigsThatCannotBe(t *testing.T) {
	prefixes := func(s ...string) []netip.Prefix {
		var out []netip.Prefix
		for _, p := range s {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	for want, c := range map[string]Config{
		"directory of programs (Bin)":                  {Dir: "/dir"},
		"one of its own (Dir)":                         {Bin: "/bin"},
		`"kubelet" is not a component`:                 {Bin: "/bin", Dir: "/dir", Components: []Component{Etcd, APIServer, "kubelet"}},
		"does not run without etcd":                    {Bin: "/bin", Dir: "/dir", Components: []Component{APIServer}},
		"PodCIDRs: 10.244.0.1/16 is not the prefix":    {Bin: "/bin", Dir: "/dir", PodCIDRs: prefixes("10.244.0.1/16")},
		"one of each family":                           {Bin: "/bin", Dir: "/dir", ServiceCIDRs: prefixes("10.96.0.0/16", "10.97.0.0/16")},
		"ServiceCIDRs: [10.96.0.0/16 fd00::/64 fd01::": {Bin: "/bin", Dir: "/dir", ServiceCIDRs: prefixes("10.96.0.0/16", "fd00::/64", "fd01::/64")},
	} {
		if _, err := c.withDefaults(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
		if _, err := Start(t.Context(), c); err == nil {
			t.Errorf("started with %s", fmt.Sprint(c))
		}
	}
}
