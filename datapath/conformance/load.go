package conformance

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
)

// Traffic that goes on while something changes.

// loadPort is where streams go to, and the first of as many ports as are asked for.
const loadPort = 7000

// pause is between two datagrams of a stream.
const pause = time.Millisecond

// underWay is how many datagrams of a torrent may be on their way at a time.
const underWay = 1000

// sinkBuffer is what a receiver of streams has room for, in bytes, so that a busy
// machine loses none of what the node has let pass.
const sinkBuffer = 32 << 20

// load is streams of datagrams, and what arrived of them.
type load struct {
	t *testing.T
	// silent has nobody answer, so that to who tracks connections each datagram is the
	// first of one.
	silent  bool
	running sync.WaitGroup
	stop    chan struct{}
	stopped sync.Once

	mu      sync.Mutex
	sinks   map[*host]bool
	closers []net.PacketConn
	// streams are by number, which each datagram begins with.
	streams []*stream
}

// stream is numbered datagrams from a host to an address.
type stream struct {
	name string
	sent atomic.Uint64
	// The rest is what arrived, and is held by the load's mutex.
	got      uint64
	receiver string
	// last is when the last came, and gap the longest time without any since the first.
	last time.Time
	gap  time.Duration
	// next is the number of the one that follows the last, and missed the first few
	// that did not come in their turn.
	next   uint64
	missed []uint64
}

// note takes note of the number of a datagram that arrived.
func (s *stream) note(number uint64) {
	for ; s.next < number && len(s.missed) < 5; s.next++ {
		s.missed = append(s.missed, s.next)
	}
	s.next = number + 1
}

func newLoad(t *testing.T) *load {
	l := &load{t: t, stop: make(chan struct{}), sinks: map[*host]bool{}}
	t.Cleanup(func() {
		l.end()
		l.mu.Lock()
		for _, c := range l.closers {
			c.Close()
		}
		l.mu.Unlock()
		l.running.Wait()
	})
	return l
}

// sink has a host take the datagrams to some ports from loadPort on.
func (l *load) sink(h *host, ports int) {
	l.t.Helper()
	l.sinkAt(h, netip.Addr{}, ports)
}

// sinkAt is sink for an address, which need not be the host's: as a program binds to it that the node
// is to have answer there.
func (l *load) sinkAt(h *host, at netip.Addr, ports int) {
	l.t.Helper()
	if l.sinks[h] {
		return
	}
	l.sinks[h] = true
	for port := loadPort; port < loadPort+ports; port++ {
		options := []func(int, string) error{func(fd int, _ string) error {
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, sinkBuffer)
		}}
		address := fmt.Sprintf(":%d", port)
		if at.IsValid() {
			options, address = append(options, transparent), netip.AddrPortFrom(at, uint16(port)).String()
		}
		must(l.t, h.Do(func() error {
			config := net.ListenConfig{Control: control(options...)}
			c, err := config.ListenPacket(context.Background(), "udp4", address)
			if err != nil {
				return err
			}
			l.closers = append(l.closers, c)
			l.running.Go(func() { l.receive(h, c) })
			return nil
		}))
	}
}

func (l *load) receive(h *host, c net.PacketConn) {
	for data := make([]byte, 100); ; {
		n, from, err := c.ReadFrom(data)
		if err != nil {
			return
		}
		if n < 16 {
			continue
		}
		first := false
		l.mu.Lock()
		if i := binary.BigEndian.Uint64(data); i < uint64(len(l.streams)) {
			s, now := l.streams[i], time.Now()
			s.note(binary.BigEndian.Uint64(data[8:]))
			if s.got++; s.got > 1 {
				s.gap = max(s.gap, now.Sub(s.last))
			}
			s.last, s.receiver, first = now, h.name, s.got == 1 && !l.silent
		}
		l.mu.Unlock()
		if first {
			_, _ = c.WriteTo(data[:n], from) // with an answer it is an open connection
		}
	}
}

// stream begins to send datagrams without end. What the sender is told of them, as
// that they are forbidden, does not stop it.
func (l *load) stream(name string, from *host, to netip.AddrPort) *stream {
	l.t.Helper()
	return l.streamFrom(name, from, netip.Addr{}, to)
}

// flood is stream without pauses.
func (l *load) flood(name string, from *host, to netip.AddrPort) *stream {
	l.t.Helper()
	return l.send(name, from, netip.Addr{}, to, func(*stream) {})
}

// torrent is stream without pauses, but for those that it takes the receiver to keep up.
func (l *load) torrent(name string, from *host, to netip.AddrPort) *stream {
	l.t.Helper()
	return l.send(name, from, netip.Addr{}, to, func(s *stream) {
		for ; !l.ended(); time.Sleep(pause / 10) {
			if got, _, _ := l.arrived(s); s.sent.Load() < got+underWay {
				return
			}
		}
	})
}

// streamFrom is stream under an address that need not be the host's.
func (l *load) streamFrom(name string, from *host, source netip.Addr, to netip.AddrPort) *stream {
	l.t.Helper()
	tick := time.NewTicker(pause)
	return l.send(name, from, source, to, func(*stream) { <-tick.C })
}

// send sends datagrams, after each of which it waits.
func (l *load) send(name string, from *host, source netip.Addr, to netip.AddrPort, wait func(*stream)) *stream {
	l.t.Helper()
	s := &stream{name: name}
	l.mu.Lock()
	data := binary.BigEndian.AppendUint64(nil, uint64(len(l.streams)))
	l.streams = append(l.streams, s)
	l.mu.Unlock()
	c, err := from.dial("udp", source, to, patience)
	must(l.t, err)
	l.running.Go(func() {
		defer c.Close()
		for ; !l.ended(); wait(s) {
			if _, err := c.Write(binary.BigEndian.AppendUint64(data, s.sent.Load())); err == nil {
				s.sent.Add(1)
			}
		}
	})
	return s
}

// ended reports whether streams are to stop.
func (l *load) ended() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// end stops all streams, and returns when what was on its way has arrived.
func (l *load) end() {
	l.stopped.Do(func() {
		close(l.stop)
		// A sink whose sockets have nothing waits for good; what is under way on one
		// machine takes no longer than this, and what is late is not counted as lost.
		for before := l.count(); ; {
			time.Sleep(disappointment)
			if now := l.count(); now == before {
				return
			} else {
				before = now
			}
		}
	})
}

func (l *load) count() (n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.streams {
		n += s.got
	}
	return n
}

// arrived returns how many of a stream's datagrams arrived where, and the longest
// time without any.
func (l *load) arrived(s *stream) (got uint64, receiver string, gap time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.got, s.receiver, s.gap
}

// missed returns the numbers of the first few that did not come in their turn.
func (l *load) missed(s *stream) []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.missed
}

// flowing waits until something of a stream has arrived, and its answer is on the way.
func (l *load) flowing(s *stream) {
	l.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(pause) {
		if got, _, _ := l.arrived(s); got > 0 {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("nothing of %s arrives", s.name)
		}
	}
}

// chat is a TCP connection on which lines and their answers go to and fro without
// pause.
type chat struct {
	name  string
	lines atomic.Uint64
	err   atomic.Pointer[error]
}

// chat opens one to a host that listens, as observer does.
func (l *load) chat(o *observer, name string, from, to *host, address netip.Addr) *chat {
	l.t.Helper()
	const port = 8080
	o.listen(to, service{plan.TCP, port})
	c, err := from.dial("tcp", netip.Addr{}, netip.AddrPortFrom(address, port), patience)
	if err != nil {
		l.t.Fatalf("connect %s: %v", name, err)
	}
	k := &chat{name: name}
	l.running.Go(func() {
		defer c.Close()
		for answers := bufio.NewReader(c); ; k.lines.Add(1) {
			select {
			case <-l.stop:
				return
			default:
			}
			err := c.SetDeadline(time.Now().Add(patience))
			if err == nil {
				_, err = fmt.Fprintln(c, "hello")
			}
			if err == nil {
				_, err = answers.ReadString('\n')
			}
			if err != nil {
				k.err.Store(&err)
				return
			}
		}
	})
	return k
}

// alive checks that the connection goes on.
func (k *chat) alive(t *testing.T, after string) {
	t.Helper()
	for before, deadline := k.lines.Load(), time.Now().Add(patience); k.lines.Load() < before+2; time.Sleep(pause) {
		if err := k.err.Load(); err != nil {
			t.Fatalf("%s, after %s: %v", k.name, after, *err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s, after %s: it does not go on", k.name, after)
		}
	}
}
