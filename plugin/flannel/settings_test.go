package flannel

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseSettings(t *testing.T) {
	v4 := func(network string, bits int, min, max string) Range {
		return Range{netip.MustParsePrefix(network), bits, netip.MustParseAddr(min), netip.MustParseAddr(max)}
	}
	for value, want := range map[string]Settings{
		`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`: {
			V4: v4("10.5.0.0/16", 24, "10.5.1.0", "10.5.255.0"), Backend: "vxlan", VNI: 1, Port: 8472},
		`{"network":"10.5.3.7/24","backend":{"type":"Host-GW"}}`: {
			V4: v4("10.5.3.0/24", 26, "10.5.3.64", "10.5.3.192"), Backend: "host-gw"},
		`{"Network":"10.0.0.0/8","SubnetLen":20,"SubnetMin":"10.10.0.0","SubnetMax":"10.99.0.0","Backend":{"Type":"vxlan","VNI":4096,"Port":4789,"DirectRouting":true,"MTU":9000},"EnableNFTables":true,"Later":1}`: {
			V4: v4("10.0.0.0/8", 20, "10.10.0.0", "10.99.0.0"), Backend: "vxlan", VNI: 4096, Port: 4789, DirectRouting: true, MTU: 9000},
		`{"Network":"10.5.0.0/28","Backend":{"Type":"host-gw"}}`: {
			V4: v4("10.5.0.0/28", 30, "10.5.0.4", "10.5.0.12"), Backend: "host-gw"},
		`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"host-gw"}}`: {
			V6: v4("fd00:5::/48", 64, "fd00:5:0:1::", "fd00:5:0:ffff::"), Backend: "host-gw"},
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/120","Backend":{"Type":"host-gw"}}`: {
			V4: v4("10.5.0.0/16", 24, "10.5.1.0", "10.5.255.0"), V6: v4("fd00:5::/120", 122, "fd00:5::40", "fd00:5::c0"), Backend: "host-gw"},
	} {
		got, err := ParseSettings([]byte(value))
		if err != nil {
			t.Errorf("%s: %v", value, err)
		} else if d := cmp.Diff(want, got, compareAddr, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
			t.Errorf("%s: %s", value, d)
		}
	}
}

// Each mistake is answered with the field, the value and what to do.
func TestSettingsThatAreWrong(t *testing.T) {
	for value, want := range map[string]string{
		`elephant`:                  `not JSON such as {"Network":`,
		`"elephant"`:                `a JSON string instead of an object such as {"Network":`,
		`{}`:                        `Network: "" is not a prefix such as 10.5.0.0/16`,
		`{"Network":"10.5.0.0"}`:    `Network: "10.5.0.0" is not a prefix`,
		`{"Network":"fd00::/48"}`:   `Network: "fd00::/48" is not a prefix`,
		`{"Network":"10.5.0.0/29"}`: `Network: 10.5.0.0/29 is too small; use /28 or shorter`,
		`{"Network":"0.0.0.0/0"}`:   `Network: 0.0.0.0/0 overlaps with 0.0.0.0/8, which pods cannot use`,
		`{"Network":"224.0.0.0/8"}`: `Network: 224.0.0.0/8 overlaps with 224.0.0.0/4`,
		`{"Network":17}`:            `Network: a JSON number is not of the type it needs, string`,
		`{"Network":"10.5.0.0/16"}`: `no Backend is given`,
		`{"Network":"10.5.0.0/16","SubnetLen":31,"Backend":{"Type":"vxlan"}}`:                                `SubnetLen: 31 does not suit Network 10.5.0.0/16; use 18 to 30`,
		`{"Network":"10.5.0.0/16","SubnetLen":17,"Backend":{"Type":"vxlan"}}`:                                `SubnetLen: 17 does not suit`,
		`{"Network":"10.5.0.0/16","SubnetLen":-1,"Backend":{"Type":"vxlan"}}`:                                `SubnetLen: -1 does not suit`,
		`{"Network":"10.5.0.0/16","SubnetMin":"10.6.0.0","Backend":{"Type":"vxlan"}}`:                        `SubnetMin: "10.6.0.0" is not an address in Network 10.5.0.0/16`,
		`{"Network":"10.5.0.0/16","SubnetMax":"10.5.7.9","Backend":{"Type":"vxlan"}}`:                        `SubnetMax: 10.5.7.9 is not the start of a /24; use 10.5.7.0`,
		`{"Network":"10.5.0.0/16","SubnetMin":"10.5.9.0","SubnetMax":"10.5.7.0","Backend":{"Type":"vxlan"}}`: `SubnetMax: 10.5.7.0 is below SubnetMin 10.5.9.0`,
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"Backend":{"Type":"vxlan"}}`:                             `IPv6Network: "" is not a prefix such as fd00:5::/48`,
		`{"EnableIPv4":false}`: `EnableIPv4 and EnableIPv6 are both false`,
		`{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard"}}`:            `Backend.Type: "wireguard" is not supported; use {"Type":"vxlan"} or {"Type":"host-gw"}`,
		`{"Network":"10.5.0.0/16","Backend":{}}`:                              `Backend.Type: "" is not supported`,
		`{"Network":"10.5.0.0/16","Backend":"vxlan"}`:                         `Backend: a JSON string instead of an object`,
		`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":16777216}}`: `Backend.VNI: 16777216 is not a number from 0 to 16777215`,
		`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","Port":70000}}`:   `Backend.Port: 70000 is not a number from 1 to 65535`,
		`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","MTU":100}}`:      `Backend.MTU: 100 is not a number of bytes`,
		`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","GBP":true}}`:     `Backend.GBP: true is not supported`,
	} {
		_, err := ParseSettings([]byte(value))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", value, err, want)
		}
	}
}

// What has no effect is said, and is no reason to refuse.
func TestSettingsWithoutEffect(t *testing.T) {
	s, err := ParseSettings([]byte(`{"Network":"10.5.0.0/16","IPv6Network":"fd00::/48","Backend":{"Type":"vxlan","Learning":true}}`))
	if err != nil || len(s.Ignored) != 2 {
		t.Errorf("%v, %v", s.Ignored, err)
	}
}

// Whatever the configuration, its first and last subnets are in its network
// and are ones that it allows.
func FuzzParseSettings(f *testing.F) {
	f.Add([]byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":1,"Port":8472,"DirectRouting":true}}`))
	f.Add([]byte(`{"Network":"255.255.255.0/24","SubnetLen":27,"SubnetMin":"255.255.255.32","Backend":{"Type":"host-gw"}}`))
	f.Add([]byte(`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48","IPv6SubnetLen":56,"Backend":{"Type":"vxlan"}}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		s, err := ParseSettings(value)
		if err != nil {
			return
		}
		for _, r := range []Range{s.V4, s.V6} {
			if r.IsZero() {
				continue
			}
			for _, a := range []netip.Addr{r.Min, r.Max} {
				if p := netip.PrefixFrom(a, r.Bits); !r.Allows(p) || !r.holds(p) || p != p.Masked() {
					t.Errorf("%s: %s is not one of %v", value, p, r)
				}
			}
		}
	})
}
