package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
)

// When a connection is ended, its packets are refused from then on; but who
// waits for one without sending anything would wait for hours. So both sides are
// told: a UDP socket by an ICMP error, a TCP socket by a reset. A reset counts
// only with the number that the other side expects next (RFC 5961, section 3),
// which nobody but the two knows. The endpoint's own kernel tells: asked with a
// segment that is out of its window, it answers with one that has both numbers
// (RFC 9293, section 3.10.7.4).

// Leftover is what the two sides still have of a connection that was ended.
type Leftover struct {
	Protocol       plan.Protocol
	Client, Server Side
}

// Side is a connection as one who has it sees it, before or behind what the
// node translates.
type Side struct{ Own, Other netip.AddrPort }

const (
	// askRounds is how often an endpoint is asked that does not answer, and
	// askPatience how long it may take. Linux answers a socket's stray segments
	// once in half a second (tcp_invalid_ratelimit).
	askRounds   = 3
	askPatience = 600 * time.Millisecond
	// maxAsked is how many endpoints are asked at a time.
	maxAsked = 16
	// maxWaiting is how many lots of leftovers wait their turn. Of those beyond,
	// the sides find out when they next send something.
	maxWaiting = 64
	// maxAnswer is the longest frame that is looked at, in bytes: an answer has
	// no payload.
	maxAnswer = 14 + 60 + 60
)

// Ender tells both sides of connections that they have ended, in the background.
type Ender struct {
	in  func(func() error) error
	log *slog.Logger
	// Endpoints that are asked may take long to answer. What is said of datagrams does not wait
	// for that: by then a socket may have an exchange of its own again, which it would end.
	connections, datagrams chan Lot
	tasks                  sync.WaitGroup
	ctx                    context.Context
	cancel                 context.CancelFunc
}

// Lot are leftovers of one sweep, the plan that forbade the connections, and the network in
// which their addresses mean something.
type Lot struct {
	Plan      *plan.Plan
	Network   string
	Leftovers []Leftover
}

// StartEnder starts one, whose sockets are those of the network namespace that in runs
// functions in.
func StartEnder(in func(func() error) error, log *slog.Logger) *Ender {
	e := &Ender{in: in, log: log, connections: make(chan Lot, maxWaiting), datagrams: make(chan Lot, maxWaiting)}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	for _, queue := range []chan Lot{e.connections, e.datagrams} {
		e.tasks.Go(func() { e.serve(queue) })
	}
	return e
}

// serve tells of the lots of a queue, one after the other.
func (e *Ender) serve(queue <-chan Lot) {
	for {
		select {
		case l := <-queue:
			if err := e.tell(l); err != nil {
				e.log.Warn("not all sides of connections that policies forbid were told that they have ended; they find out when they send", "error", err)
			}
		case <-e.ctx.Done():
			return
		}
	}
}

// Close ends it; what it has not come to is not told.
func (e *Ender) Close() {
	e.cancel()
	e.tasks.Wait()
}

// End has both sides told, and does not wait.
func (e *Ender) End(l Lot) {
	connections, datagrams := l, l
	connections.Leftovers, datagrams.Leftovers = nil, nil
	for _, left := range l.Leftovers {
		to := &connections
		if left.Protocol == plan.UDP {
			to = &datagrams
		}
		to.Leftovers = append(to.Leftovers, left)
	}
	e.enqueue(e.datagrams, datagrams)
	e.enqueue(e.connections, connections)
}

func (e *Ender) enqueue(queue chan<- Lot, l Lot) {
	if len(l.Leftovers) == 0 {
		return
	}
	select {
	case queue <- l:
	default:
		e.log.Warn("too many connections end at a time: some sides find out only when they send", "connections", len(l.Leftovers))
	}
}

// tell tells both sides of each leftover.
func (e *Ender) tell(l Lot) error {
	out, err := e.openRaw()
	if err != nil {
		return err
	}
	defer out.close()
	links := map[netip.Addr]plan.EndpointKey{}
	for k, ep := range l.Plan.Endpoints.All() {
		if ep.Network != l.Network {
			continue
		}
		for _, a := range ep.Addresses {
			links[a] = k
		}
	}
	// Each is asked on the interface of the side that is here.
	asked := map[plan.EndpointKey][]*question{}
	var errs []error
	for _, left := range l.Leftovers {
		switch left.Protocol {
		case plan.UDP:
			for _, s := range []Side{left.Client, left.Server} {
				if router := routerOf(l.Plan, l.Network, s.Own.Addr().Is4()); router.IsValid() {
					errs = append(errs, out.send(prohibited(router, s)))
				}
			}
		case plan.TCP:
			q := &question{local: left.Client, remote: left.Server}
			k, ok := links[q.local.Own.Addr()]
			if !ok {
				q.local, q.remote = q.remote, q.local
				k, ok = links[q.local.Own.Addr()]
			}
			if ok {
				asked[k] = append(asked[k], q)
			}
		}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxAsked)
	for k, questions := range asked {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			endpoint, _ := l.Plan.Endpoints.Get(k)
			if err := e.ask(k.Interface, endpoint.MAC, questions, out); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("%s: %w", endpoint.Name, err))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// routerOf is the node's own address towards its endpoints in a network.
func routerOf(p *plan.Plan, network string, is4 bool) netip.Addr {
	for _, pool := range p.Local.Pools {
		if pool.Network == network && pool.Gateway.Is4() == is4 {
			return pool.Gateway
		}
	}
	return netip.Addr{}
}

// question asks one side of a connection for the numbers of the next segment in
// either direction.
type question struct{ local, remote Side }

// ask asks an endpoint, and resets both sides of what it answers for.
func (e *Ender) ask(interfaceName string, mac plan.MAC, questions []*question, out *rawSockets) error {
	link, err := e.openLink(interfaceName, mac)
	if err != nil || link == nil {
		return err
	}
	defer link.close()
	open := make(map[Side]*question, len(questions))
	for _, q := range questions {
		open[q.local] = q
	}
	for range askRounds {
		for _, q := range open {
			// Most likely no number within the window; if it is in one, the
			// next is in none.
			probe := segment{from: q.local.Other, to: q.local.Own, seq: rand.Uint32(), ack: rand.Uint32(), flags: tcpACK}
			if err := link.send(probe.packet()); err != nil {
				return err
			}
		}
		for deadline := time.Now().Add(askPatience); len(open) > 0 && time.Now().Before(deadline); {
			answer, err := link.receive(time.Until(deadline))
			if err != nil || e.ctx.Err() != nil {
				return err
			}
			if answer == nil {
				break
			}
			s, ok := readSegment(answer)
			if !ok {
				continue
			}
			q := open[Side{s.from, s.to}]
			if q == nil || s.flags&tcpACK == 0 && s.flags&tcpRST == 0 {
				continue
			}
			delete(open, q.local)
			if s.flags&tcpRST != 0 {
				continue // it knows nothing of the connection, and what the other side expects nobody can tell
			}
			next := s.seq + uint32(s.length)
			if s.flags&(tcpSYN|tcpFIN) != 0 {
				next++
			}
			err = errors.Join(
				link.send(segment{from: q.local.Other, to: q.local.Own, seq: s.ack, ack: next, flags: tcpRST | tcpACK}.packet()),
				out.send(segment{from: q.remote.Other, to: q.remote.Own, seq: next, ack: s.ack, flags: tcpRST | tcpACK}.packet()))
			if err != nil {
				return err
			}
		}
		if len(open) == 0 {
			return nil
		}
	}
	return nil // who does not answer is gone
}

// packetLink sends to an endpoint and receives from it past every rule.
type packetLink struct {
	fd    int
	index int
	// header is the Ethernet header without its type.
	header []byte
	buffer []byte
}

// openLink opens an endpoint's interface; nil if it is gone.
func (e *Ender) openLink(name string, mac plan.MAC) (*packetLink, error) {
	l := &packetLink{buffer: make([]byte, maxAnswer)}
	err := e.in(func() error {
		host, err := net.InterfaceByName(name)
		if err != nil {
			return nil // nobody is left to tell
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open a packet socket: %w", err)
		}
		// Nothing gets in before there is a filter.
		filter := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_LEN},
			{Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, Jt: 1, K: maxAnswer},
			{Code: unix.BPF_RET | unix.BPF_K, K: maxAnswer},
			{Code: unix.BPF_RET | unix.BPF_K},
		}
		err = errors.Join(
			unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: host.Index}))
		if err != nil {
			unix.Close(fd)
			return fmt.Errorf("open a packet socket on %s: %w", name, err)
		}
		l.fd, l.index, l.header = fd, host.Index, append(mac[:], host.HardwareAddr...)
		return nil
	})
	if err != nil || l.index == 0 {
		return nil, err
	}
	return l, nil
}

func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

func (l *packetLink) close() { unix.Close(l.fd) }

func (l *packetLink) send(packet []byte) error {
	kind := uint16(unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		kind = unix.ETH_P_IPV6
	}
	frame := append(binary.BigEndian.AppendUint16(append([]byte{}, l.header...), kind), packet...)
	err := unix.Sendto(l.fd, frame, 0, &unix.SockaddrLinklayer{Protocol: networkOrder(kind), Ifindex: l.index})
	if errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOBUFS) {
		return nil // the endpoint is going, or its queue is full
	}
	if err != nil {
		return fmt.Errorf("send to an endpoint: %w", err)
	}
	return nil
}

// receive returns the next packet without its Ethernet header; nil when none
// came in time, or the interface is gone.
func (l *packetLink) receive(patience time.Duration) ([]byte, error) {
	const ethernet = 14
	poll := []unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, int(max(patience, 0).Milliseconds()))
	if errors.Is(err, unix.EINTR) {
		return l.buffer[:0], nil
	}
	if err != nil {
		return nil, fmt.Errorf("wait for an endpoint's answer: %w", err)
	}
	if n == 0 {
		return nil, nil
	}
	length, _, err := unix.Recvfrom(l.fd, l.buffer, unix.MSG_DONTWAIT)
	switch {
	case errors.Is(err, unix.ENETDOWN):
		return nil, nil
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return l.buffer[:0], nil
	case err != nil:
		return nil, fmt.Errorf("hear an endpoint's answer: %w", err)
	case length < ethernet:
		return l.buffer[:0], nil
	}
	return l.buffer[ethernet:length], nil
}

// rawSockets send whole IP packets, from whatever source, as the node's own.
type rawSockets struct{ fd4, fd6 int }

func (e *Ender) openRaw() (*rawSockets, error) {
	s := &rawSockets{fd4: -1, fd6: -1}
	err := e.in(func() (err error) {
		if s.fd4, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW); err != nil {
			return fmt.Errorf("open a raw socket: %w", err)
		}
		// Where there is no IPv6 there is nobody to tell either.
		if s.fd6, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW); err != nil {
			s.fd6 = -1
		}
		return nil
	})
	return s, err
}

func (s *rawSockets) close() {
	for _, fd := range []int{s.fd4, s.fd6} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// send sends a packet to where its header says. A side that cannot be reached
// finds out by itself.
func (s *rawSockets) send(packet []byte) error {
	var err error
	if packet[0]>>4 == 4 {
		err = unix.Sendto(s.fd4, packet, 0, &unix.SockaddrInet4{Addr: [4]byte(packet[16:20])})
	} else if s.fd6 >= 0 {
		err = unix.Sendto(s.fd6, packet, 0, &unix.SockaddrInet6{Addr: [16]byte(packet[24:40])})
	}
	for _, bearable := range []error{unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EPERM, unix.EACCES, unix.EAGAIN, unix.ENOBUFS, unix.EINVAL} {
		if errors.Is(err, bearable) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("tell the side that is not here: %w", err)
	}
	return nil
}
