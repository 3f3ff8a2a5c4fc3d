package server_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/weftnet/weft/announce/wire"
	"github.com/weftnet/weft/internal/await"
)

// TestOwnersMeet has two nodes own addresses that are cut off from each other, until they have told the link of these, and then not any more. They
// are of two clusters, or of one where a switch drops heartbeats. The one with the lower Ethernet address keeps them.
func TestOwnersMeet(t *testing.T) {
	both := []netip.Addr{four, six}
	for name, repeat := range map[string]time.Duration{
		"of two clusters":    time.Hour, // they hear of each other at once
		"without heartbeats": 5 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			link, _, all := nodes(t, 2)
			for i, n := range all {
				n.must("ip", "link", "set", "eth0", "address", fmt.Sprintf("02:00:00:00:00:%02x", 2-i))
				n.repeat = repeat
			}
			if repeat < time.Hour {
				link.must("nft", "add table bridge x; add chain bridge x f { type filter hook forward priority 0; }; add rule bridge x f ether type 0x88b5 drop")
			}
			link.must("ip", "link", "set", "to1", "nomaster")
			for _, n := range all {
				now := standing([]*node{n}, n, false, both...)
				now.Marks = map[string]wire.Mark{n.name: wire.MarkOf(n.name)}
				n.start(now)
			}
			for _, n := range all {
				await.NoError(t, patience, n.name+" owns both", func() error {
					if owned := n.Answered(); !slices.Equal(owned, both) {
						return fmt.Errorf("it owns %v", owned)
					}
					return nil
				})
			}
			time.Sleep(4 * time.Second) // until the link was told
			link.must("ip", "link", "set", "to1", "master", "br0")
			for _, a := range both {
				if n := owner(t, all, a); n != all[1] {
					t.Errorf("%s has %s", n.name, a)
				}
			}
			all[0].says("somebody else has", "02:00:00:00:00:01")
		})
	}
}
