package linux

import (
	"net/netip"
	"testing"

	"github.com/weftnet/weft/plan"
)

func TestJury(t *testing.T) {
	p := mustParse(t, `node node1 addresses 172.30.0.2
pool default 10.1.1.0/24 gateway 10.1.1.1
endpoint weftaaa network default addresses 10.1.1.2,fd00::2 tag 10 ingress-policy web
endpoint weftbbb network default addresses 10.1.1.3 tag 11 egress-policy out
endpoint weftccc network default addresses 10.1.1.4 tag 12
tag default 10.1.2.0/24 5
tag default fd00:2::/64 5
verdict out egress to 10 tcp allow
verdict out egress to 5 icmp allow
verdict web ingress from 5 tcp 80 allow
verdict web ingress from 11 tcp 80 allow
verdict web ingress from 12 tcp 80 deny
`)
	j := newJury(p, []netip.Addr{netip.MustParseAddr("192.0.2.1")})
	for _, c := range []struct {
		protocol    plan.Protocol
		source      string
		destination string
		forbidden   bool
		because     string
	}{
		{plan.TCP, "10.1.2.9:4711", "10.1.1.2:80", false, "the prefix's tag may"},
		{plan.TCP, "10.1.2.9:80", "10.1.1.2:81", true, "the source port does not matter"},
		{plan.TCP, "[fd00:2::9]:4711", "[fd00::2]:80", false, "so may it with IPv6"},
		{plan.TCP, "[fd00:3::9]:4711", "[fd00::2]:80", true, "nobody knows it"},
		{plan.TCP, "10.1.1.3:4711", "10.1.1.2:80", false, "both policies allow the endpoints' own tags"},
		{plan.TCP, "10.1.1.3:4711", "10.1.1.2:81", true, "egress does, ingress does not"},
		{plan.TCP, "10.1.1.3:4711", "10.1.1.4:80", true, "ingress does, egress does not"},
		{plan.TCP, "10.1.1.4:4711", "10.1.1.2:80", true, "a verdict denies it"},
		{plan.ICMP, "10.1.1.3:0", "10.1.2.1:0", false, "a verdict without ports"},
		{plan.UDP, "10.1.1.3:53", "10.1.2.1:53", true, "another protocol"},
		{plan.TCP, "172.30.0.2:4711", "10.1.1.2:22", false, "the node's own address"},
		{plan.TCP, "10.1.1.1:4711", "10.1.1.2:22", false, "the gateway is the node's own"},
		{plan.TCP, "192.0.2.1:4711", "10.1.1.2:22", false, "so is what only its interfaces know"},
		{plan.TCP, "10.1.1.3:4711", "172.30.0.2:22", true, "egress to the node"},
		{plan.TCP, "10.1.1.2:4711", "10.1.1.2:22", false, "an endpoint to itself"},
		{plan.TCP, "10.1.1.4:4711", "10.1.2.1:22", false, "no policy"},
		{plan.TCP, "10.9.9.9:1", "10.1.2.1:22", false, "no endpoint"},
	} {
		got := j.forbids(trackedConnection{c.protocol, netip.MustParseAddrPort(c.source), netip.MustParseAddrPort(c.destination)})
		if got != c.forbidden {
			t.Errorf("%s from %s to %s: forbidden is %t (%s)", c.protocol, c.source, c.destination, got, c.because)
		}
	}
}
