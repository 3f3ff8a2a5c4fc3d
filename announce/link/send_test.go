package link

import (
	"net/netip"
	"os"
	"testing"

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
