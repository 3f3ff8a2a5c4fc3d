// Package link has a node answer for addresses on the link of one of its interfaces, and say and
// hear there what nodes do: it is the thin shell around packages wire and election.
//
// The kernel answers for none of these addresses: those of Services no node has, and of those
// that a node has itself package hold keeps it from answering. So an agent that was killed
// answers no more, and another node takes over, while packets that come to the node by what
// others learned before are still handled there.
package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/announce/wire"
	"github.com/weftnet/weft/internal/retry"
)

// Event is what was heard on a link: a heartbeat, or that somebody else has an address or is about to take it.
type Event struct {
	// From is the Ethernet address of who said it.
	From wire.MAC
	// Heartbeat is nil where it is none.
	Heartbeat *wire.Heartbeat
	// Conflict is the address that somebody has; the zero Addr for a heartbeat. Asks says that he only asks whether anybody has it,
	// as who is about to take it does.
	Conflict netip.Addr
	Asks     bool
}

// buffer is how many bytes of frames wait for a socket to be read, of which the kernel takes twice as many: for an answer for each
// of the 4,096 addresses that a node may ask for, which it counts with 768 to 2,304 bytes.
const buffer = 5 << 20

// longest is the longest frame that is read, in bytes.
const longest = 9216

// again is how long a reader waits after an error, as while the interface is down.
const again = 200 * time.Millisecond

// sendFor is for how long a frame waits for the interface to take it, as while its queue is full.
// Then, and for as long again, all that is sent is lost: who sends has other links as well, and
// what nodes say is repeated.
const sendFor = 50 * time.Millisecond

// Port is an interface of the node in use. It must be closed.
type Port struct {
	name   string
	log    *slog.Logger
	handle *netlink.Handle
	index  int
	state  atomic.Pointer[State]
	// answers and watches are the addresses that the node answers for, and those of which it is
	// to be told who else has them.
	answers, watches atomic.Pointer[map[netip.Addr]bool]
	sockets          map[uint16]*socket
	// vouched is until when the port may answer, nil where that has no end.
	vouched atomic.Pointer[time.Time]
	// heeds is which heartbeats are delivered, nil where all are.
	heeds atomic.Pointer[func(wire.Heartbeat) bool]
	// full is until when frames are not waited for, nil where they are. It has a reading of the clock that nobody sets.
	full atomic.Pointer[time.Time]
	// said counts what was said.
	said    atomic.Uint32
	groups  groups
	waiting *queue
	// wake gets an element when something was heard.
	wake    chan<- struct{}
	stop    context.CancelFunc
	readers sync.WaitGroup
}

// State is how an interface is.
type State struct {
	// Index is its number: one that went and came back has another.
	Index int
	MAC   wire.MAC
	// MTU is in bytes.
	MTU int
	// Up says that frames can be sent and heard.
	Up bool
}

// socket is what frames of one EtherType are sent and heard by.
type socket struct {
	*os.File
	// mu is held from when a frame is read until note was taken of it.
	mu sync.Mutex
	// frame is the one that was read last.
	frame [longest]byte
}

// Open begins to use an interface of the network namespace that the caller is in. When something was heard that can be taken, wake
// gets an element, if it has room for one: several ports may share it.
func Open(name string, log *slog.Logger, wake chan<- struct{}) (*Port, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("interface %s: open netlink: %w", name, err)
	}
	p := &Port{name: name, log: log, handle: handle, sockets: make(map[uint16]*socket), waiting: newQueue(), wake: wake}
	none := make(map[netip.Addr]bool)
	p.answers.Store(&none)
	p.watches.Store(&none)
	s, err := p.Look()
	if err != nil {
		handle.Close()
		return nil, err
	}
	p.index = s.Index
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	for kind, filter := range map[uint16][]unix.SockFilter{wire.EtherHeartbeat: all, wire.EtherARP: all, wire.EtherIPv6: neighbours} {
		file, err := listen(s.Index, kind, filter)
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("interface %s: hear frames of EtherType %#04x: %w", name, kind, err)
		}
		p.sockets[kind] = &socket{File: file}
	}
	for kind, socket := range p.sockets {
		p.readers.Go(func() { p.read(ctx, kind, socket) })
	}
	if err := p.groups.open(); err != nil {
		p.Close()
		return nil, fmt.Errorf("interface %s: join groups of IPv6: %w", name, err)
	}
	return p, nil
}

// Close ends the use of the interface. Nobody is told.
func (p *Port) Close() {
	p.stop()
	for _, s := range p.sockets {
		s.Close()
	}
	p.readers.Wait()
	p.groups.close()
	p.handle.Close()
}

// Look looks at the interface. It fails where there is none of its name, or none of Ethernet.
func (p *Port) Look() (State, error) {
	l, err := p.handle.LinkByName(p.name)
	if err != nil {
		return State{}, fmt.Errorf("interface %s: %w", p.name, err)
	}
	at := l.Attrs()
	if len(at.HardwareAddr) != len(wire.MAC{}) || at.Flags&net.FlagLoopback != 0 {
		return State{}, fmt.Errorf("interface %s is none of Ethernet, on which nodes can answer for addresses", p.name)
	}
	s := State{Index: at.Index, MAC: wire.MAC(at.HardwareAddr), MTU: at.MTU,
		Up: at.Flags&net.FlagUp != 0 && (at.OperState == netlink.OperUp || at.OperState == netlink.OperUnknown)}
	p.state.Store(&s)
	return s, nil
}

// Index is the number of the interface that the port was opened on.
func (p *Port) Index() int { return p.index }

// Take returns all that was heard and not taken before, heartbeats first, and of each address one event at most. All that had come to the
// interface before the call is among it, also what nobody has read yet, but where more than mostRead frames of a kind waited. So is
// each heartbeat that came before an event about an address that is: who that is of is known by then.
func (p *Port) Take() []Event {
	p.readAll(wire.EtherARP)
	p.readAll(wire.EtherIPv6)
	about := p.waiting.takeAbout()
	p.readAll(wire.EtherHeartbeat)
	return append(p.waiting.takeHeartbeats(), about...)
}

// Answer has the node answer for addresses on the link, and for no others; and of those in
// watch it is told who else has them, or asks for them. Neither is changed afterwards. Unable are those for which
// the node may not be asked, and why: it should leave them to others.
func (p *Port) Answer(answer, watch map[netip.Addr]bool) (unable map[netip.Addr]error, err error) {
	p.answers.Store(&answer)
	p.watches.Store(&watch)
	both := answer
	if len(watch) > 0 {
		both = maps.Clone(watch)
		maps.Copy(both, answer)
	}
	return p.groups.set(both, p.index)
}

// Vouch has the port answer until a time and no longer, unless it is called again before. What waited while
// the process was stopped is so not answered for what another node may have by then.
func (p *Port) Vouch(until time.Time) { p.vouched.Store(&until) }

// Heed has the port deliver heartbeats only of which heeds says so, which is called as they come. What nobody heeds
// does not wait, and so takes no room from others.
func (p *Port) Heed(heeds func(wire.Heartbeat) bool) { p.heeds.Store(&heeds) }

// Say sends what the node says to others.
func (p *Port) Say(h wire.Heartbeat) error {
	s := p.state.Load()
	frames := wire.Frames(s.MAC, h, s.MTU)
	// Where the interface takes some frames alone, these are not those of the same addresses each time.
	first := int(p.said.Add(1)) % max(len(frames), 1)
	return p.send(wire.EtherHeartbeat, slices.Concat(frames[first:], frames[:first])...)
}

// Probe asks on the link who has an address.
func (p *Port) Probe(a netip.Addr) error {
	mac := p.state.Load().MAC
	if a.Is4() {
		return p.send(wire.EtherARP, wire.ProbeARP(mac, a))
	}
	return p.send(wire.EtherIPv6, wire.ProbeNeighbour(mac, a))
}

// Announce tells the link that the node has an address.
func (p *Port) Announce(a netip.Addr) error {
	mac := p.state.Load().MAC
	if a.Is4() {
		return p.send(wire.EtherARP, wire.AnnounceARP(mac, a)...)
	}
	return p.send(wire.EtherIPv6, wire.AnnounceNeighbour(mac, a))
}

// send sends frames, each also where another one before it could not be sent, but while the interface takes none.
func (p *Port) send(kind uint16, frames ...[]byte) (failed error) {
	socket := p.sockets[kind]
	for _, f := range frames {
		now := time.Now()
		if full := p.full.Load(); full != nil && now.Before(*full) {
			return fmt.Errorf("interface %s: send a frame of EtherType %#04x: the interface takes none for now", p.name, kind)
		}
		err := socket.SetWriteDeadline(now.Add(sendFor))
		if err == nil {
			_, err = socket.Write(f)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			full := time.Now().Add(sendFor)
			p.full.Store(&full)
		}
		if err != nil {
			failed = fmt.Errorf("interface %s: send a frame of EtherType %#04x: %w", p.name, kind, err)
		}
	}
	return failed
}

// read hears frames of one kind until ctx ends.
func (p *Port) read(ctx context.Context, kind uint16, s *socket) {
	raw, err := s.SyscallConn()
	if err != nil {
		return // it is closed
	}
	for ctx.Err() == nil {
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			failed = p.readOne(kind, s, fd)
			return failed != unix.EAGAIN
		})
		if errors.Join(err, failed) != nil {
			retry.Sleep(ctx, again)
		}
	}
}

// mostRead is how many frames of a kind are read at once: the answers to questions for as many addresses as a node may have.
const mostRead = 4096

// readAll hears all frames of one kind that have come.
func (p *Port) readAll(kind uint16) {
	s := p.sockets[kind]
	raw, err := s.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		for range mostRead {
			if p.readOne(kind, s, fd) == unix.EAGAIN {
				return
			}
		}
	})
}

// readOne hears the next frame of one kind, if one has come. Whoever finds none knows that note was taken of all that came before.
func (p *Port) readOne(kind uint16, s *socket, fd uintptr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := unix.Read(int(fd), s.frame[:])
	if err == nil {
		p.hear(kind, s.frame[:n])
	}
	return err
}

// hear takes note of a frame, and answers it where it is to be answered.
func (p *Port) hear(kind uint16, frame []byte) {
	mine := p.state.Load().MAC
	switch kind {
	case wire.EtherHeartbeat:
		h, from, err := wire.ReadHeartbeat(frame)
		if err != nil || from == mine {
			return
		}
		if heeds := p.heeds.Load(); heeds == nil || (*heeds)(h) {
			p.tell(Event{From: from, Heartbeat: &h})
		}
	case wire.EtherARP:
		a, err := wire.ReadARP(frame)
		if err != nil || a.SenderMAC == mine {
			return
		}
		switch {
		case (*p.watches.Load())[a.Sender]:
			p.tell(Event{From: a.SenderMAC, Conflict: a.Sender})
		case !a.Reply && (*p.answers.Load())[a.Target]:
			p.reply(kind, a.Answer(mine))
		case a.IsProbe() && (*p.watches.Load())[a.Target]:
			p.tell(Event{From: a.SenderMAC, Conflict: a.Target, Asks: true})
		}
	case wire.EtherIPv6:
		n, err := wire.ReadNeighbour(frame)
		if err != nil || n.From == mine {
			return
		}
		switch {
		case n.Advertisement && (*p.watches.Load())[n.Target]:
			p.tell(Event{From: n.From, Conflict: n.Target})
		case !n.Advertisement && (*p.answers.Load())[n.Target]:
			p.reply(kind, n.Answer(mine))
		case n.IsProbe() && (*p.watches.Load())[n.Target]:
			p.tell(Event{From: n.From, Conflict: n.Target, Asks: true})
		}
	}
}

func (p *Port) reply(kind uint16, frame []byte) {
	if until := p.vouched.Load(); until != nil && time.Now().After(*until) {
		return
	}
	if err := p.send(kind, frame); err != nil {
		p.log.Debug("cannot answer on the link", "error", err)
	}
}

// tell has an event be taken.
func (p *Port) tell(e Event) {
	p.waiting.put(e)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// all passes what a filter passes that knows nothing more.
var all = []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: longest}}

// neighbours passes neighbour solicitations and advertisements alone: the kernel asks it of
// each packet of IPv6 that comes.
var neighbours = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 14 + 6}, // what is behind IPv6's header
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_ICMPV6, Jt: 0, Jf: 4},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 14 + 40}, // ICMPv6's type
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 135, Jt: 1, Jf: 0},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 136, Jt: 0, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: longest},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

// What a filter reads of a frame beside its bytes, as linux/filter.h says: whom it is for, and by
// which interface it came.
const (
	aboutFrame  = -0x1000
	whoseFrame  = aboutFrame + 4
	ofInterface = aboutFrame + 8
)

// own returns what comes before a filter so that it sees frames of the interface's own link alone.
// The kernel takes the tag of a VLAN (802.1Q) from a frame before a socket has it, and shows that
// of another link only in these: a frame of a VLAN that has an interface came by that one, and of
// one that has none it is for another host. Frames of VLAN 0, which have a tag for their priority,
// are the link's own.
func own(index int) []unix.SockFilter {
	about := func(what int32) uint32 { return uint32(what) }
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: about(whoseFrame)},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.PACKET_OTHERHOST, Jt: 2, Jf: 0},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: about(ofInterface)},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(index), Jt: 1, Jf: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
}

// priorityControl is the kernel's for what keeps a network going (TC_PRIO_CONTROL in linux/pkt_sched.h).
const priorityControl = 7

// listen opens a socket that hears frames of one EtherType that others send on an interface.
func listen(index int, kind uint16, filter []unix.SockFilter) (*os.File, error) {
	// With protocol 0 it hears nothing before it is bound, and so nothing unfiltered.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	// Who may not have more than the kernel's limit (net.core.rmem_max) has that.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer); err != nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
		if err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	filter = slices.Concat(own(index), filter)
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	}
	if err == nil && kind == wire.EtherHeartbeat {
		// What the interface queues by priority does not wait behind others' bulk.
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, priorityControl)
	}
	if err == nil && kind == wire.EtherHeartbeat {
		group := unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_MULTICAST, Alen: uint16(len(wire.Group))}
		copy(group.Address[:], wire.Group[:])
		err = unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &group)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: kind<<8 | kind>>8, Ifindex: index})
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "link"), nil
}
