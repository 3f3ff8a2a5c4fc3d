package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// Nodes work out each other's MAC addresses, so that these must never change.
func TestMACOf(t *testing.T) {
	for address, want := range map[string]string{
		"10.1.0.2":         "0a:58:0a:01:00:02",
		"::ffff:10.1.0.2":  "0a:58:0a:01:00:02",
		"255.255.255.255":  "0a:58:ff:ff:ff:ff",
		"fd00:1::2":        "0e:19:05:29:b2:01",
		"fd00:2::2":        "0e:93:51:93:ff:f8",
		"fd00:1:0:0:1::2":  "0e:8e:b3:55:df:26",
		"fd00:1::2%eth0.1": "0e:19:05:29:b2:01",
	} {
		if got := MACOf(netip.MustParseAddr(address)).String(); got != want {
			t.Errorf("MACOf(%s) = %s, want %s", address, got, want)
		}
	}
}

// What is a node's own in a prefix is what it has itself in a pool of that
// prefix, if it has a tunnel.
func TestNodeAddressesIn(t *testing.T) {
	for prefix, want := range map[string]string{
		"10.1.2.0/24":        "[10.1.2.0 10.1.2.1]",
		"10.1.2.9/24":        "[10.1.2.0 10.1.2.1]",
		"10.1.2.4/30":        "[10.1.2.4 10.1.2.5]",
		"10.1.2.4/31":        "[10.1.2.5]",
		"10.1.2.4/32":        "[]",
		"255.255.255.255/32": "[]",
		"fd01:0:0:2::/64":    "[fd01:0:0:2:: fd01:0:0:2::1]",
		"fd01::2/127":        "[fd01::3]",
		"fd01::2/128":        "[]",
	} {
		p := netip.MustParsePrefix(prefix)
		if got := fmt.Sprint(NodeAddressesIn(p)); got != want {
			t.Errorf("in %s: %s, want %s", prefix, got, want)
		}
		if p.IsSingleIP() {
			continue // no pool has this prefix
		}
		l := Local{Pools: []Pool{{Network: DefaultNetwork, Prefix: p, Gateway: GatewayOf(p), Tunnel: "vxlan"}}}
		own := l.PoolAddresses()
		slices.SortFunc(own, netip.Addr.Compare)
		if got := fmt.Sprint(own); got != want {
			t.Errorf("in a pool %s: %s, want %s", prefix, got, want)
		}
	}
}
