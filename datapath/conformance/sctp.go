package conformance

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/plan"
)

// sctp checks that policies tell the ports of SCTP apart, with packets made by
// hand: few kernels have sockets for it.
func (s *suite) sctp(t *testing.T) {
	const allow = "verdict server ingress from c1 sctp 8080 allow\n"
	plans, err := plan.ParseAll(strings.Replace(policyPlans, "verdict ", allow+"verdict ", 1))
	must(t, err)
	if lacks := s.lacks(plans); len(lacks) > 0 {
		t.Skipf("left out: the data plane has no %s", strings.Join(lacks, ", "))
	}
	b := s.newPolicyBench(t)
	b.apply(b.node, plans["node1"])

	raw := func(h *host) (c net.PacketConn) {
		t.Helper()
		must(t, h.Do(func() (err error) {
			c, err = net.ListenPacket("ip4:132", "0.0.0.0")
			return err
		}))
		t.Cleanup(func() { c.Close() })
		return c
	}
	server, far, near := raw(b.server), raw(b.far), raw(b.near)
	to := &net.IPAddr{IP: b.address.AsSlice()}
	for _, c := range []struct {
		from net.PacketConn
		port uint16
	}{{near, 8080}, {far, 8081}, {far, 8079}, {far, 8080}} { // what is allowed comes last
		_, err := c.from.WriteTo(sctpInit(c.port), to)
		must(t, err)
	}
	must(t, server.SetReadDeadline(time.Now().Add(patience)))
	packet := make([]byte, 1500)
	n, from, err := server.ReadFrom(packet)
	if err != nil {
		t.Fatalf("the association that is allowed does not begin: %v", err)
	}
	got := fmt.Sprintf("%s to port %d", from, binary.BigEndian.Uint16(packet[2:]))
	if want := "10.1.2.2 to port 8080"; n < 12 || got != want {
		t.Errorf("what arrives is from %s; expected %s", got, want)
	}
}

// sctpInit returns what begins an association (RFC 9260, section 3.3.2).
func sctpInit(port uint16) []byte {
	order := binary.BigEndian
	b := order.AppendUint16(nil, 4711)
	b = order.AppendUint16(b, port)
	b = append(b, make([]byte, 8)...)     // verification tag, checksum
	b = append(b, 1, 0, 0, 20)            // INIT and its length
	b = order.AppendUint32(b, 1)          // initiate tag
	b = order.AppendUint32(b, 1<<16)      // receiver window
	b = append(b, 0, 1, 0, 1, 0, 0, 0, 1) // streams, first sequence number
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}
