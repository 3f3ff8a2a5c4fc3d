package agent

import (
	"testing"

	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
)

func TestTunnelsPortIsTaken(t *testing.T) {
	tunnels := []plan.Tunnel{{Port: 8472}}
	for _, c := range []struct {
		tunnels []plan.Tunnel
		port    ipam.Port
		taken   bool
	}{
		{tunnels, ipam.Port{Node: 8472, Protocol: plan.UDP}, true},
		{tunnels, ipam.Port{Node: 8472, Protocol: plan.TCP}, false},
		{tunnels, ipam.Port{Node: 4789, Container: 8472, Protocol: plan.UDP}, false},
		{nil, ipam.Port{Node: 8472, Protocol: plan.UDP}, false},
	} {
		if got := tunnelHas(c.tunnels, c.port); (got != "") != c.taken {
			t.Errorf("%+v with tunnels %v: %q", c.port, c.tunnels, got)
		}
	}
}
