package agent

import (
	"testing"

	"github.com/weftnet/weft/cni"
	"github.com/weftnet/weft/plan"
)

func TestTunnelsPortIsTaken(t *testing.T) {
	tunnels := []plan.Tunnel{{Port: 8472}}
	for _, c := range []struct {
		tunnels []plan.Tunnel
		port    cni.Port
		taken   bool
	}{
		{tunnels, cni.Port{HostPort: 8472, Protocol: "udp"}, true},
		{tunnels, cni.Port{HostPort: 8472, Protocol: "UDP"}, true},
		{tunnels, cni.Port{HostPort: 8472, Protocol: "tcp"}, false},
		{tunnels, cni.Port{HostPort: 4789, ContainerPort: 8472, Protocol: "udp"}, false},
		{nil, cni.Port{HostPort: 8472, Protocol: "udp"}, false},
	} {
		if got := tunnelHas(c.tunnels, c.port); (got != "") != c.taken {
			t.Errorf("%+v with tunnels %v: %q", c.port, c.tunnels, got)
		}
	}
}
