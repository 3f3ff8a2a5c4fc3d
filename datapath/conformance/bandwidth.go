package conformance

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/plan"
)

const (
	// limit is what an endpoint may receive or send, in bytes per second, and transfer is what
	// is sent to see that, in bytes.
	limit, transfer = 1_000_000, 1_500_000
	// burst is what may go by at full speed at first, in bytes, a full queue included.
	burst = 256 << 10
)

// bandwidth checks that an endpoint receives and sends no more than it may, also after the
// limit has changed under way and behind a restart, and that connections go on.
func (s *suite) bandwidth(t *testing.T) {
	if !s.able.Bandwidth {
		t.Skip("left out: the data plane limits no bandwidth")
	}
	limited := func(options string) map[string]*plan.Plan {
		p, err := plan.Parse(strings.Replace(servicePlan, "mac 0a:58:0a:01:01:03\n", "mac 0a:58:0a:01:01:03 "+options+"\n", 1))
		must(t, err)
		return map[string]*plan.Plan{"node1": p}
	}
	l := newTopology(t, s.make)
	l.load(limited(""))
	n := l.nodes["node1"]
	for i, direction := range []string{"ingress", "egress"} {
		for family, to := range []netip.AddrPort{netip.MustParseAddrPort("10.1.1.3:9000"), netip.MustParseAddrPort("[fd00:1::3]:9000")} {
			t.Run(fmt.Sprintf("%s of %s", direction, to.Addr()), func(t *testing.T) {
				client, server := l.connect(t, n.pods["client"].host, n.pods["one"].host, to)
				from, into := client, server
				if i == 1 {
					from, into = server, client
				}
				l.apply(n, limited(fmt.Sprintf("%s-rate %d", direction, 2*8*limit))["node1"])
				must(t, move(from, into, 1000))
				plans := limited(fmt.Sprintf("%s-rate %d", direction, 8*limit))
				l.apply(n, plans["node1"])
				if family == 1 {
					l.restart(plans)
				}
				begun := time.Now()
				must(t, move(from, into, transfer))
				if took, least := time.Since(begun), time.Duration(float64(transfer-burst)/limit*float64(time.Second)); took < least {
					t.Errorf("%d bytes took %v; with %d bytes per second it is %v at least", transfer, took, limit, least)
				}
				if done := l.repair(n); len(done) > 0 {
					t.Errorf("nobody disturbed anything, and a repair did %q", done)
				}
				l.apply(n, limited("")["node1"])
				must(t, move(into, from, 1000))
				if done := l.repair(n); len(done) > 0 {
					t.Errorf("the limit is gone, and a repair did %q", done)
				}
			})
		}
	}
}

// connect returns both ends of a connection of TCP.
func (l *topology) connect(t *testing.T, from, at *host, to netip.AddrPort) (client, server net.Conn) {
	t.Helper()
	var listener net.Listener
	must(t, at.Do(func() (err error) {
		listener, err = net.Listen("tcp", to.String())
		return err
	}))
	defer listener.Close()
	client, err := from.dial("tcp", netip.Addr{}, to, patience)
	must(t, err)
	server, err = listener.Accept()
	must(t, err)
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// move sends so many bytes over a connection, and returns once they have arrived.
func move(from, into net.Conn, bytes int64) error {
	late := time.Now().Add(patience + time.Duration(bytes/limit*10)*time.Second)
	if err := errors.Join(from.SetDeadline(late), into.SetDeadline(late)); err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write(make([]byte, bytes))
		sent <- err
	}()
	_, err := io.CopyN(io.Discard, into, bytes)
	return errors.Join(err, <-sent)
}
