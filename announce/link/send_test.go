package link

import (
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/announce/wire"
)

// TestAFullQueue has an interface take no frames: who sends is told, and goes on.
func TestAFullQueue(t *testing.T) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	for frame := make([]byte, 4096); ; {
		if _, err := unix.Write(ends[1], frame); err == unix.EAGAIN {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	socket := os.NewFile(uintptr(ends[1]), "pipe")
	defer socket.Close()
	p := &Port{name: "eth0", sockets: map[uint16]*os.File{wire.EtherARP: socket}}
	p.state.Store(&State{})
	for range 4096 {
		if err := p.Announce(netip.MustParseAddr("192.0.2.7")); err == nil {
			t.Fatal("a frame is sent, and nobody takes it")
		}
	}
	for buffer := make([]byte, 4096); ; {
		if _, err := unix.Read(ends[0], buffer); err == unix.EAGAIN {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	p.full.Store(0) // as when some time has passed
	if err := p.Announce(netip.MustParseAddr("192.0.2.7")); err != nil {
		t.Errorf("frames are taken again: %v", err)
	}
}

// TestAPortThatIsNotVouchedFor has a port be asked while whoever opened it vouches for it, and then no longer, as
// while its process is stopped: what was asked then stays without an answer.
func TestAPortThatIsNotVouchedFor(t *testing.T) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	socket := os.NewFile(uintptr(ends[1]), "pipe")
	defer socket.Close()
	a := netip.MustParseAddr("192.0.2.7")
	p := &Port{name: "eth0", log: slog.New(slog.DiscardHandler), sockets: map[uint16]*os.File{wire.EtherARP: socket}}
	p.state.Store(&State{MAC: wire.MAC{2, 0, 0, 0, 0, 1}})
	p.answers.Store(&map[netip.Addr]bool{a: true})
	p.watches.Store(&map[netip.Addr]bool{})
	for _, c := range []struct {
		until   time.Duration
		answers bool
	}{{time.Hour, true}, {-time.Second, false}, {time.Hour, true}} {
		p.Vouch(time.Now().Add(c.until))
		p.hear(wire.EtherARP, wire.ProbeARP(wire.MAC{2, 0, 0, 0, 0, 2}, a))
		n, _ := unix.Read(ends[0], make([]byte, 4096))
		if (n > 0) != c.answers {
			t.Errorf("with %s until it is not vouched for, it sends %d bytes", c.until, n)
		}
	}
}

// TestWhoAsks has another host ask for an address that the node asks for itself, and for one that it answers for.
func TestWhoAsks(t *testing.T) {
	for _, a := range []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")} {
		p := &Port{log: slog.New(slog.DiscardHandler), events: make(chan Event, maxWaiting)}
		p.state.Store(&State{MAC: wire.MAC{2, 0, 0, 0, 0, 1}, MTU: 1500})
		other := wire.MAC{2, 0, 0, 0, 0, 2}
		kind, frame := uint16(wire.EtherARP), wire.ProbeARP
		if a.Is6() {
			kind, frame = wire.EtherIPv6, wire.ProbeNeighbour
		}
		p.answers.Store(&map[netip.Addr]bool{})
		p.watches.Store(&map[netip.Addr]bool{a: true})
		p.hear(kind, frame(other, a.Next()))
		p.hear(kind, frame(other, a))
		for want := (Event{From: other, Conflict: a, Asks: true}); ; {
			select {
			case e := <-p.Events():
				if e != want {
					t.Errorf("of who asks for %s it tells %+v", a, e)
				}
			default:
				t.Fatalf("of who asks for %s it tells nothing", a)
			}
			break
		}
	}
}

// TestWhatNobodyHeeds has heartbeats come that are of no use, and more of them than may wait: one that is heeded is
// delivered all the same.
func TestWhatNobodyHeeds(t *testing.T) {
	p := &Port{events: make(chan Event, maxWaiting)}
	p.state.Store(&State{MAC: wire.MAC{2, 0, 0, 0, 0, 1}, MTU: 1500})
	say := func(node string) {
		h := wire.Heartbeat{Node: node, Claims: []wire.Claim{{Address: netip.MustParseAddr("192.0.2.100"), State: wire.Owns}}}
		for _, f := range wire.Frames(wire.MAC{2, 0, 0, 0, 0, 2}, h, 1500) {
			p.hear(wire.EtherHeartbeat, f)
		}
	}
	say("anybody")
	p.Heed(func(h wire.Heartbeat) bool { return h.Node == "node2" })
	for range maxWaiting {
		say("node3")
	}
	say("node2")
	for _, want := range []string{"anybody", "node2"} {
		select {
		case e := <-p.Events():
			if e.Heartbeat.Node != want {
				t.Errorf("it delivers what %s says, want %s", e.Heartbeat.Node, want)
			}
		default:
			t.Fatalf("it does not deliver what %s says", want)
		}
	}
}
