package server

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weftnet/weft/dns/journal"
	"github.com/weftnet/weft/dns/unanswered"
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
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	m, _, err := unanswered.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Reader(c, at, maxRead)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{pairs: map[netip.AddrPort]*pair{at: {at: at, udp: c, tcp: l, reader: r}}, connections: newShare(1, 1), records: journal.Follow("none", nil)}
	s.asks(t, 0)
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
	if told := metricsOf(t, registry); told["weft_dns_receive_buffer_bytes"] != 128<<10 || told["weft_dns_unread_total"] != float64(sent-read) {
		t.Errorf("it is told of %v", told)
	}
	// A counter does not fall, also where the socket is closed.
	s.close(at)
	if told := metricsOf(t, registry); told["weft_dns_receive_buffer_bytes"] != 0 || told["weft_dns_unread_total"] != float64(sent-read) {
		t.Errorf("once the socket is closed, it is told of %v", told)
	}
}

// metricsOf returns what metrics without labels say.
func metricsOf(t *testing.T, of prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := of.Gather()
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			told[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return told
}

// TestRecordsAge has records that the agent wrote an hour ago be read now: they are an hour old.
func TestRecordsAge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	s := &Server{connections: newShare(1, 1), records: journal.Follow(path, func(journal.Batch) {})}
	s.asks(t, 0)
	registry := prometheus.NewRegistry()
	if _, err := newMetrics(s, registry); err != nil {
		t.Fatal(err)
	}
	if age := metricsOf(t, registry)["weft_dns_records_age_seconds"]; age != -1 {
		t.Errorf("records that are not there are %v seconds old", age)
	}
	j, err := journal.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if err := j.Put(settings(), nil, nil, nil, nil); err != nil {
		t.Fatal(err)
	}
	hour := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, hour, hour); err != nil {
		t.Fatal(err)
	}
	s.records.Look()
	if age := metricsOf(t, registry)["weft_dns_records_age_seconds"]; age < 3600 {
		t.Errorf("records of an hour ago are %v seconds old", age)
	}
}
