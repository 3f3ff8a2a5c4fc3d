package conformance

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// strangers checks that a tunnel packet made by hand reaches a pod when a node
// that the plan knows sends it, and when nobody else does: not what is outside
// of the cluster, and not a pod of the node itself.
func (s *suite) strangers(t *testing.T) {
	if !s.able.Tunnels {
		t.Skip("left out: the data plane has no tunnels")
	}
	plans := plantest.Shape{Endpoints: []int{2, 1}, IPv4: true, Tunnel: true, Gateway: true, Masquerade: true}.Plans()
	l := newTopology(t, s.make)
	l.load(plans)
	node1, node2 := l.nodes["node1"], l.nodes["node2"]
	victim, mate := node1.pods["weft0101"], node1.pods["weft0102"]
	const port = 8080
	l.listen(victim.host, service{plan.UDP, port})

	mine, theirs := plans["node1"].Local.Tunnels[0], plans["node2"].Local.Tunnels[0]
	inner := netip.AddrPortFrom(node2.pods["weft0201"].addresses[0], port)
	send := func(from *host, source netip.Addr) <-chan arrival {
		t.Helper()
		word, arrived := l.expect()
		c, err := from.dial("udp", source, netip.AddrPortFrom(mine.VTEP, mine.Port), patience)
		must(t, err)
		defer c.Close()
		_, err = c.Write(encapsulated(vniOf(plans["node1"]), theirs.MAC, mine.MAC, inner, netip.AddrPortFrom(victim.addresses[0], port), word))
		must(t, err)
		return arrived
	}
	refused := map[string]<-chan arrival{
		"the outside":      send(l.out, routers[0].Addr()),
		"a pod":            send(mate.host, mate.addresses[0]),
		"the victim":       send(victim.host, victim.addresses[0]),
		"the node itself":  send(node1.host, mine.VTEP),
		"a pod of another": send(node2.pods["weft0201"].host, inner.Addr()),
	}
	// All take the same way at its end, so that when this has arrived, they
	// would have, too.
	want := arrival{victim.host.name, inner.Addr(), victim.addresses[0]}
	select {
	case got := <-send(node2.host, theirs.VTEP):
		if got != want {
			t.Errorf("what the other node sent arrived at %s from %s; expected at %s from %s", got.receiver, got.source, want.receiver, want.source)
		}
	case <-time.After(patience):
		t.Errorf("what the other node sent did not arrive at %s", want.receiver)
	}
	for name, arrived := range refused {
		select {
		case got := <-arrived:
			t.Errorf("a tunnel packet made by %s arrived at %s from %s", name, got.receiver, got.source)
		default:
		}
	}
}

// vniOf is the network identifier of what a node sends through the tunnel, of an
// endpoint without a tag.
func vniOf(p *plan.Plan) uint32 {
	vni, _ := p.Encode(p.Local.Tunnels[0].Name, plan.DefaultNetwork, 0)
	return vni
}

// encapsulated returns what a UDP datagram to a VTEP carries: the headers of
// VXLAN (RFC 7348, section 5), Ethernet, IPv4 and UDP, and the data.
func encapsulated(vni uint32, from, to plan.MAC, source, destination netip.AddrPort, data string) []byte {
	const etherTypeIPv4 = 0x0800
	order := binary.BigEndian
	b := order.AppendUint32(nil, 0x08<<24) // there is a VNI
	b = order.AppendUint32(b, vni<<8)
	b = append(append(b, to[:]...), from[:]...)
	b = order.AppendUint16(b, etherTypeIPv4)

	length := uint16(8 + len(data))
	ip := order.AppendUint16([]byte{0x45, 0}, 20+length)
	ip = append(ip, 0, 0, 0, 0, 64, 17, 0, 0) // TTL 64, UDP
	ip = append(append(ip, source.Addr().AsSlice()...), destination.Addr().AsSlice()...)
	order.PutUint16(ip[10:], checksum(ip))
	b = append(b, ip...)

	b = order.AppendUint16(b, source.Port())
	b = order.AppendUint16(b, destination.Port())
	b = order.AppendUint16(b, length)
	b = order.AppendUint16(b, 0) // without checksum
	return append(b, data...)
}
