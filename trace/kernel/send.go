package kernel

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/trace"
)

// Probe is a packet that is ready to be sent. It must be closed.
type Probe struct {
	watch  trace.Watch
	socket int
}

// Prepare makes a probe in the network namespace at a path, or in that of the
// process where the path is empty, and returns it with the Watch in which its
// own port is. Nothing is sent yet. From a node itself the source is what its
// kernel chooses.
func Prepare(path string, w trace.Watch) (*Probe, trace.Watch, error) {
	p := &Probe{watch: w, socket: -1}
	prepare := p.prepare
	var err error
	if path == "" {
		err = prepare()
	} else {
		err = netns.Visit(path, prepare)
	}
	if err != nil {
		p.Close()
		return nil, w, fmt.Errorf("make the probe: %w", err)
	}
	return p, p.watch, nil
}

// Close lets go of the probe. Of a TCP connection that was made the other side
// learns by a reset.
func (p *Probe) Close() {
	if p.socket >= 0 {
		unix.Close(p.socket)
		p.socket = -1
	}
}

func (p *Probe) prepare() (err error) {
	w := &p.watch
	family := unix.AF_INET
	if w.Source.Is6() {
		family = unix.AF_INET6
	}
	if w.Host {
		if w.Source, err = chosenSource(family, w.Destination); err != nil {
			return err
		}
	}
	kind, protocol := unix.SOCK_RAW, int(w.Protocol)
	switch w.Protocol {
	case plan.TCP:
		kind = unix.SOCK_STREAM
	case plan.UDP:
		kind = unix.SOCK_DGRAM
	}
	if p.socket, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol); err != nil {
		return os.NewSyscallError("socket", err)
	}
	if w.Protocol == plan.TCP {
		// The end is a reset: no connection is left behind on either side.
		if err := unix.SetsockoptLinger(p.socket, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	if err := allowBroadcast(p.socket, w.Protocol); err != nil {
		return err
	}
	if w.Protocol == plan.ICMP || w.Protocol == plan.ICMPv6 {
		var id [2]byte
		if _, err := rand.Read(id[:]); err != nil {
			return err
		}
		w.SourcePort = max(1, binary.BigEndian.Uint16(id[:]))
	}
	if err := unix.Bind(p.socket, sockaddr(w.Source, 0)); err != nil {
		return fmt.Errorf("use %s as the source: %w", w.Source, err)
	}
	if !w.Protocol.HasPorts() {
		return nil
	}
	own, err := unix.Getsockname(p.socket)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	switch own := own.(type) {
	case *unix.SockaddrInet4:
		w.SourcePort = uint16(own.Port)
	case *unix.SockaddrInet6:
		w.SourcePort = uint16(own.Port)
	}
	return nil
}

// chosenSource is the address that the kernel would send from.
func chosenSource(family int, to netip.Addr) (netip.Addr, error) {
	s, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return netip.Addr{}, os.NewSyscallError("socket", err)
	}
	defer unix.Close(s)
	if err := allowBroadcast(s, plan.UDP); err != nil {
		return netip.Addr{}, err
	}
	if err := unix.Connect(s, sockaddr(to, 9)); err != nil {
		return netip.Addr{}, fmt.Errorf("find the way to %s: %w", to, err)
	}
	own, err := unix.Getsockname(s)
	if err != nil {
		return netip.Addr{}, os.NewSyscallError("getsockname", err)
	}
	switch own := own.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(own.Addr), nil
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(own.Addr), nil
	}
	return netip.Addr{}, fmt.Errorf("the way to %s has a source that is no address", to)
}

func sockaddr(a netip.Addr, port uint16) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: int(port), Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Port: int(port), Addr: a.As16()}
}

// allowBroadcast has the kernel take broadcast addresses as destinations, which it
// refuses by default.
func allowBroadcast(socket int, protocol plan.Protocol) error {
	if protocol == plan.TCP {
		return nil
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_BROADCAST, 1))
}

// Send sends the probe and returns what came back within the time, or that it
// could not be sent.
func (p *Probe) Send(wait time.Duration) trace.Event {
	e := trace.Event{Kind: trace.Answered, Answer: trace.Silence, Text: fmt.Sprintf("nothing came back in %s", wait)}
	err := unix.Connect(p.socket, sockaddr(p.watch.Destination, p.watch.Port))
	if err == nil || errors.Is(err, unix.EINPROGRESS) {
		err = p.send()
	}
	if err != nil && !errors.Is(err, unix.ECONNREFUSED) {
		// What the network says comes later: this machine's own kernel refuses.
		return trace.Event{Kind: trace.Unsent, Time: time.Now(), Text: fmt.Sprintf("the kernel of who sends refuses: %v", err)}
	}
	deadline := time.Now().Add(wait)
	for err == nil {
		left := time.Until(deadline)
		if left <= 0 {
			break
		}
		events := int16(unix.POLLIN)
		if p.watch.Protocol == plan.TCP {
			events = unix.POLLOUT
		}
		poll := []unix.PollFd{{Fd: int32(p.socket), Events: events}}
		n, failed := unix.Poll(poll, int(left.Milliseconds())+1)
		switch {
		case errors.Is(failed, unix.EINTR):
			continue
		case failed != nil:
			err = failed
			continue
		case n == 0:
			continue
		}
		var done bool
		if done, err = p.receive(); done {
			e.Answer, e.Text = trace.Accepted, accepted(p.watch.Protocol)
			break
		}
	}
	if err != nil {
		if e.Answer, e.Text = answerOf(err); e.Answer == "" {
			e.Kind = trace.Unsent
		}
	}
	e.Time = time.Now()
	return e
}

// send sends what connecting has not.
func (p *Probe) send() error {
	switch p.watch.Protocol {
	case plan.TCP:
		return nil
	case plan.UDP:
		return unix.Send(p.socket, datagram(p.watch.Port), 0)
	}
	// RFC 792 and RFC 4443, section 4.1: type, code, checksum, identifier,
	// sequence number. The kernel fills in the checksum of ICMPv6.
	b := []byte{echoType(p.watch.Protocol, false), 0, 0, 0, byte(p.watch.SourcePort >> 8), byte(p.watch.SourcePort), 0, 1}
	if p.watch.Protocol == plan.ICMP {
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	}
	return unix.Send(p.socket, b, 0)
}

// datagram is what a datagram to a port says: nothing, and where names are asked for as much as the shortest question
// has, as what is shorter may be dropped for that alone. It says that it is an answer (RFC 1035, section 4.1.1, QR), which
// no name server answers.
func datagram(port uint16) []byte {
	if port != 53 {
		return nil
	}
	return []byte{2: 1 << 7, 12 + 5 - 1: 0}
}

// checksum is that of RFC 1071 of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// receive reads what came back, and reports whether it is an answer.
func (p *Probe) receive() (bool, error) {
	if p.watch.Protocol == plan.TCP {
		code, err := unix.GetsockoptInt(p.socket, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		return err == nil, err
	}
	b := make([]byte, 1500)
	n, err := unix.Read(p.socket, b)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return false, nil
	case err != nil || p.watch.Protocol == plan.UDP:
		return err == nil, err
	}
	b = b[:n]
	if p.watch.Protocol == plan.ICMP { // its raw sockets get the IP header, too
		if n < header4 || n < int(b[0]&0xf)*4 {
			return false, nil
		}
		b = b[int(b[0]&0xf)*4:]
	}
	return len(b) >= 8 && b[0] == echoType(p.watch.Protocol, true) && binary.BigEndian.Uint16(b[4:]) == p.watch.SourcePort, nil
}

func accepted(p plan.Protocol) string {
	switch p {
	case plan.TCP:
		return "the connection was accepted, and reset at once"
	case plan.UDP:
		return "a datagram came back"
	}
	return "an echo reply came back"
}

// answerOf says what an error of the probe's socket tells of the network; the
// answer is empty where it tells of this machine alone.
func answerOf(err error) (trace.Answer, string) {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return trace.Refused, "refused: nobody listens there"
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EPROTO), errors.Is(err, unix.ENOPROTOOPT):
		return trace.Unreachable, fmt.Sprintf("unreachable: %v", err)
	}
	if errors.Is(err, unix.ETIMEDOUT) {
		return trace.Silence, err.Error()
	}
	return "", fmt.Sprintf("the probe cannot be sent: %v", err)
}
