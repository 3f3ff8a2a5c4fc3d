package linux

import (
	"net/netip"
	"testing"
	"time"

	"github.com/weftnet/weft/datapath/judge"
	"github.com/weftnet/weft/plan"
)

// TestDepartures has a backend leave its Service, be back and leave again, and looks when connections to
// it end.
func TestDepartures(t *testing.T) {
	const front = "node node1 addresses 172.30.0.2\nservice default 10.3.0.1 tcp 80 to web\nservice default 10.3.0.1 udp 80 to web\n"
	out, in := mustParse(t, front), mustParse(t, front+"backend default web 10.1.2.2:8080\n")
	at := netip.MustParseAddrPort
	stream := judge.Connection{Network: plan.DefaultNetwork, Protocol: plan.TCP, Served: true, Source: at("172.30.0.2:4000"), Destination: at("10.1.2.2:8080"), Dialled: at("10.3.0.1:80")}
	datagrams := stream
	datagrams.Protocol = plan.UDP
	start := time.Unix(1000, 0)
	after := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	var d departures
	ends := func(what string, now int, want time.Time) {
		t.Helper()
		j := judge.NewJury(out, nil)
		d.forget(after(now))
		if got := d.endsAt(j, stream, after(now)); !got.Equal(want) {
			t.Errorf("%s: a connection ends %s after the start; expected %s", what, got.Sub(start), want.Sub(start))
		}
		if got := d.endsAt(j, datagrams, after(now)); got.After(after(now)) {
			t.Errorf("%s: datagrams end %s after the start, and it is %s", what, got.Sub(start), after(now).Sub(start))
		}
	}
	d.begin(start)
	ends("nobody knows when it left", 1, start.Add(absence))
	d.note(in.Diff(out).Backends, after(10))
	ends("it left", 11, after(10).Add(absence))
	d.note(out.Diff(in).Backends, after(11))
	d.note(in.Diff(out).Backends, after(12))
	ends("it was back, and left again", 12, after(12).Add(absence))
	ends("it is out for long", 60, start.Add(absence))
	if len(d.left) > 0 {
		t.Errorf("%d departures are remembered for too long", len(d.left))
	}
}
