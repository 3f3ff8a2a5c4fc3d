package link

import (
	"log/slog"
	"net/netip"
	"os"
	"slices"
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
	file := os.NewFile(uintptr(ends[1]), "pipe")
	defer file.Close()
	p := &Port{name: "eth0", sockets: map[uint16]*socket{wire.EtherARP: {File: file}}}
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
	p.full.Store(nil) // as when some time has passed
	if err := p.Announce(netip.MustParseAddr("192.0.2.7")); err != nil {
		t.Errorf("frames are taken again: %v", err)
	}
}

// TestAFrameThatIsNotTaken has an interface not take some of the frames of a heartbeat: it takes the others, and of those of which it
// takes few none is always left out.
func TestAFrameThatIsNotTaken(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	file := os.NewFile(uintptr(ends[1]), "pair")
	defer file.Close()
	p := &Port{name: "eth0", sockets: map[uint16]*socket{wire.EtherHeartbeat: {File: file}}}
	p.state.Store(&State{MAC: wire.MAC{2, 0, 0, 0, 0, 1}, MTU: 1500})
	if err := p.send(wire.EtherHeartbeat, make([]byte, 1<<22), []byte("taken")); err == nil {
		t.Error("a frame is not taken, and that is not said")
	}
	frame := make([]byte, longest)
	if n, _ := unix.Read(ends[0], frame); string(frame[:max(n, 0)]) != "taken" {
		t.Errorf("of a frame behind one that is not taken %d bytes are", n)
	}
	h := wire.Heartbeat{Node: "node1"}
	for a := netip.MustParseAddr("10.0.0.1"); len(h.Claims) < 1000; a = a.Next() {
		h.Claims = append(h.Claims, wire.Claim{Address: a})
	}
	first := make(map[netip.Addr]bool)
	frames := len(wire.Frames(wire.MAC{}, h, 1500))
	for range frames {
		if err := p.Say(h); err != nil {
			t.Fatal(err)
		}
		said := 0
		for {
			n, _ := unix.Read(ends[0], frame)
			if n <= 0 {
				break
			}
			one, _, err := wire.ReadHeartbeat(frame[:n])
			if err != nil {
				t.Fatal(err)
			}
			if said == 0 {
				first[one.Claims[0].Address] = true
			}
			said += len(one.Claims)
		}
		if said != len(h.Claims) {
			t.Errorf("it says %d claims of %d", said, len(h.Claims))
		}
	}
	if len(first) != frames {
		t.Errorf("of %d frames %d come first", frames, len(first))
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
	file := os.NewFile(uintptr(ends[1]), "pipe")
	defer file.Close()
	a := netip.MustParseAddr("192.0.2.7")
	p := &Port{name: "eth0", log: slog.New(slog.DiscardHandler), sockets: map[uint16]*socket{wire.EtherARP: {File: file}}}
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
		p := &Port{log: slog.New(slog.DiscardHandler), waiting: newQueue()}
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
		if all := p.waiting.takeAbout(); !slices.Equal(all, []Event{{From: other, Conflict: a, Asks: true}}) {
			t.Errorf("of who asks for %s it tells %+v", a, all)
		}
	}
}

// TestWhatNobodyHeeds has heartbeats come that are of no use, and more of them than may wait: one that is heeded is
// delivered all the same.
func TestWhatNobodyHeeds(t *testing.T) {
	p := &Port{waiting: newQueue()}
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
	var heard []string
	for _, e := range p.waiting.takeHeartbeats() {
		heard = append(heard, e.Heartbeat.Node)
	}
	if want := []string{"anybody", "node2"}; !slices.Equal(heard, want) {
		t.Errorf("it delivers what %v say, want %v", heard, want)
	}
}

// TestManyAddressesAreTakenByOthers has more heartbeats wait than there is room for, then conflicts about as many addresses as a node
// may have, which come again and again, and then another heartbeat: none of the conflicts is lost, and each comes once.
func TestManyAddressesAreTakenByOthers(t *testing.T) {
	const addresses = 4096
	p := &Port{waiting: newQueue()}
	from := wire.MAC{2, 0, 0, 0, 0, 2}
	p.state.Store(&State{MAC: wire.MAC{2, 0, 0, 0, 0, 1}, MTU: 1500})
	watch, a := make(map[netip.Addr]bool), netip.MustParseAddr("10.0.0.1")
	for ; len(watch) < addresses; a = a.Next() {
		watch[a] = true
	}
	p.watches.Store(&watch)
	p.answers.Store(&map[netip.Addr]bool{})
	for range 2 * maxWaiting {
		for _, f := range wire.Frames(from, wire.Heartbeat{Node: "node2", Claims: []wire.Claim{{Address: a}}}, 1500) {
			p.hear(wire.EtherHeartbeat, f)
		}
	}
	for range 2 {
		for a := range watch {
			p.hear(wire.EtherARP, wire.ProbeARP(from, a)) // of which less is said than by what follows, and comes
			for _, f := range wire.AnnounceARP(from, a) {
				p.hear(wire.EtherARP, f)
			}
			p.hear(wire.EtherARP, wire.ProbeARP(from, a))
		}
	}
	told, heartbeats := make(map[netip.Addr]int), len(p.waiting.takeHeartbeats())
	for _, e := range p.waiting.takeAbout() {
		told[e.Conflict]++
		if e.Asks {
			t.Fatalf("of %s it is said that somebody asks for it, and he has it", e.Conflict)
		}
	}
	if len(told) != addresses || heartbeats != maxWaiting {
		t.Errorf("it tells of %d addresses of %d, and of %d heartbeats", len(told), addresses, heartbeats)
	}
	for a, n := range told {
		if n != 1 {
			t.Fatalf("of %s it tells %d times", a, n)
		}
	}
}

// TestRoomForFrames has a port's socket have room for more frames than the kernel gives it of its own accord.
func TestRoomForFrames(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it opens a packet socket")
	}
	socket, err := listen(1, wire.EtherARP, all)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	raw, err := socket.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	room := 0
	if err := raw.Control(func(fd uintptr) { room, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF) }); err != nil || room < buffer {
		t.Errorf("it has room for %d bytes, want %d: %v", room, buffer, err)
	}
}

// TestAllIsTakenAtOnce has heartbeats and announcements come, of which some were read and others wait in the sockets: who takes all has
// heartbeats first, each kind in the order in which it came, and nothing twice.
func TestAllIsTakenAtOnce(t *testing.T) {
	p := &Port{sockets: make(map[uint16]*socket), waiting: newQueue(), wake: make(chan struct{}, 1)}
	p.state.Store(&State{MAC: wire.MAC{2, 0, 0, 0, 0, 1}, MTU: 1500})
	from, four, six := wire.MAC{2, 0, 0, 0, 0, 2}, netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")
	p.watches.Store(&map[netip.Addr]bool{four: true, four.Next(): true, six: true})
	p.answers.Store(&map[netip.Addr]bool{})
	others := make(map[uint16]int)
	for _, kind := range []uint16{wire.EtherARP, wire.EtherIPv6, wire.EtherHeartbeat} {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(ends[0])
		others[kind] = ends[0]
		p.sockets[kind] = &socket{File: os.NewFile(uintptr(ends[1]), "pair")}
		defer p.sockets[kind].Close()
	}
	send := func(kind uint16, frames ...[]byte) {
		t.Helper()
		for _, f := range frames {
			if _, err := unix.Write(others[kind], f); err != nil {
				t.Fatal(err)
			}
		}
	}
	say := func(node string) [][]byte {
		return wire.Frames(from, wire.Heartbeat{Node: node, Claims: []wire.Claim{{Address: four}}}, 1500)
	}
	for _, f := range wire.AnnounceARP(from, four) {
		p.hear(wire.EtherARP, f)
	}
	p.hear(wire.EtherHeartbeat, say("first")[0])
	send(wire.EtherARP, wire.AnnounceARP(from, four.Next())...)
	send(wire.EtherIPv6, wire.AnnounceNeighbour(from, six))
	send(wire.EtherHeartbeat, say("second")...)
	send(wire.EtherHeartbeat, say("third")...)
	var said []string
	for _, e := range p.Take() {
		if e.Heartbeat != nil {
			said = append(said, e.Heartbeat.Node)
		} else {
			said = append(said, e.Conflict.String())
		}
	}
	if want := []string{"first", "second", "third", "192.0.2.7", "192.0.2.8", "2001:db8::7"}; !slices.Equal(said, want) {
		t.Errorf("at once come %v, want %v", said, want)
	}
	if all := p.Take(); len(all) > 0 || len(p.wake) != 1 {
		t.Errorf("then come %v, and of what came whoever waits was told %d times", all, len(p.wake))
	}
}

// TestAFloodIsReadInParts has frames come without end: who reads them comes to an end.
func TestAFloodIsReadInParts(t *testing.T) {
	file, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	p := &Port{sockets: map[uint16]*socket{wire.EtherARP: {File: file}}}
	p.state.Store(&State{})
	p.readAll(wire.EtherARP)
}
