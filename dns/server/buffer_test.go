package server

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weftnet/weft/dns/journal"
	"github.com/weftnet/weft/internal/await"
)

// TestFullBuffer sends more queries than the kernel has room for while nobody reads them: that is
// counted, as nothing else tells of it.
func TestFullBuffer(t *testing.T) {
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	at := c.LocalAddr().(*net.UDPAddr).AddrPort()
	s := &Server{pairs: map[netip.AddrPort]*pair{at: {udp: c}}, outsiders: newShare(1, 1), connections: newShare(1, 1), records: journal.Follow("none", nil)}
	registry := prometheus.NewRegistry()
	if _, err := newMetrics(s, registry); err != nil {
		t.Fatal(err)
	}
	if size, dropped := s.buffers(); size != 128<<10 || dropped != 0 {
		t.Errorf("the buffer has %d bytes, and %d queries were dropped", size, dropped)
	}
	client, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	query, err := new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	const sent = 2000
	for range sent {
		if _, err := client.Write(query); err != nil {
			t.Fatal(err)
		}
	}
	read := uint64(0)
	buf := make([]byte, 512)
	await.NoError(t, time.Minute, "what was not read was dropped", func() error {
		c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		for {
			if _, err := c.Read(buf); err != nil {
				break
			}
			read++
		}
		if _, dropped := s.buffers(); read+dropped != sent || dropped == 0 {
			return errors.New("some are neither")
		}
		return nil
	})
	t.Logf("%d queries waited in %d bytes", read, 128<<10)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			told[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	if told["weft_dns_receive_buffer_bytes"] != 128<<10 || told["weft_dns_unread_total"] != float64(sent-read) {
		t.Errorf("it is told of %v", told)
	}
}
