package agent

import (
	"testing"

	"github.com/weftnet/weft/cni"
	"github.com/weftnet/weft/plan"
)

func TestTunnelsPortIsTaken(t *testing.T) {
	tunnel := plan.Tunnel{Port: 8472}
	for _, c := range []struct {
		tunnel plan.Tunnel
		port   cni.Port
		taken  bool
	}{
		{tunnel, cni.Port{HostPort: 8472, Protocol: "udp"}, true},
		{tunnel, cni.Port{HostPort: 8472, Protocol: "UDP"}, true},
		{tunnel, cni.Port{HostPort: 8472, Protocol: "tcp"}, false},
		{tunnel, cni.Port{HostPort: 4789, ContainerPort: 8472, Protocol: "udp"}, false},
		{plan.Tunnel{}, cni.Port{HostPort: 8472, Protocol: "udp"}, false},
	} {
		if got := tunnelHas(c.tunnel, c.port); (got != "") != c.taken {
			t.Errorf("%+v with a tunnel at %d: %q", c.port, c.tunnel.Port, got)
		}
	}
}
