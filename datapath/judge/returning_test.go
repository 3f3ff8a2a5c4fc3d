package judge

import (
	"net/netip"
	"testing"

	"github.com/weftnet/weft/plan"
)

// A connection may wait for its backend where nothing else is in its way.
func TestMayReturn(t *testing.T) {
	const node = "node node1 addresses 172.30.0.2\npool default 10.1.1.0/24 gateway 10.1.1.1\n"
	const front = "service default 10.3.0.1 tcp 80 to web\n"
	at := netip.MustParseAddrPort
	stream := Connection{Network: plan.DefaultNetwork, Protocol: plan.TCP, Source: at("172.30.0.2:4000"), Dialled: at("10.3.0.1:80"), Destination: at("10.1.2.2:8080"), Served: true}
	datagrams := stream
	datagrams.Protocol = plan.UDP
	unanswered := stream
	unanswered.Unanswered = true
	over := stream
	over.Over = true
	others := stream
	others.Served = false
	here := stream
	here.Destination = at("10.1.1.2:8080")
	for _, c := range []struct {
		what, plan string
		connection Connection
		want       bool
	}{
		{"its backend is out", front, stream, true},
		{"another is there", front + "backend default web 10.1.2.3:8080\n", stream, true},
		{"it is one of datagrams", "service default 10.3.0.1 udp 80 to web\n", datagrams, false},
		{"nobody has answered yet", front, unanswered, false},
		{"both sides have parted with it", front, over, false},
		{"another program translated it", front, others, false},
		{"there is no frontend", "", stream, false},
		{"the frontend has no set", "service default 10.3.0.1 tcp 80\n", stream, false},
		{"the frontend is for others", "service default 10.3.0.1 tcp 80 from outside to web\n", stream, false},
		{"its client is none of those whom it is for", "service default 10.3.0.1 tcp 80 to web sources few\nsource default few 198.51.100.0/24\n", stream, false},
		{"its client is one of them", "service default 10.3.0.1 tcp 80 to web sources few\nsource default few 172.30.0.0/24\n", stream, true},
		{"the node itself answers now", "service default 10.3.0.1 tcp 80 from inside here\n", stream, false},
		{"its backend is an endpoint of the node that is gone", front, here, false},
		{"its backend is an endpoint of the node", front + "endpoint web network default addresses 10.1.1.2 mac 0a:58:0a:01:01:02\n", here, true},
	} {
		p, err := plan.Parse(node + c.plan)
		if err != nil {
			t.Fatal(err)
		}
		if got := NewJury(p, nil).MayReturn(c.connection); got != c.want {
			t.Errorf("%s: it may return is %t", c.what, got)
		}
	}
}
