package plan

import (
	"net/netip"
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
