package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
)

// When a change is in force is asked of packets: one socket sends a datagram
// each millisecond, each the first of a connection of its own, and another
// says which of them got through.

const (
	probeInterval = time.Millisecond
	// probeGrace is how long a datagram may be on its way.
	probeGrace = 20 * time.Millisecond
	// probeSteady is how many in a row must fare alike.
	probeSteady  = 10
	probeTimeout = 15 * time.Second
)

// probe sends from one network namespace, and listens in another.
type probe struct {
	sender, listener int
	to               netip.Addr
	port             uint16
	// arrives is where datagrams go that get through, where that is not what they are sent to.
	arrives   netip.Addr
	source    uint16
	stop      chan struct{}
	listening sync.WaitGroup

	mu         sync.Mutex
	generation uint32 // tells the datagrams of a trial from those before
	begin      time.Time
	trial      trial
}

// trial is what became of the datagrams of one change, in the order in which
// they were sent.
type trial struct {
	sent    []time.Duration // since the trial began
	arrived []bool
}

// flip returns when the first datagram was sent from which on all fared as
// wanted, of those sent before a moment. It is not known until there are steady
// of them.
func (t trial) flip(wanted bool, before time.Duration, steady int) (time.Duration, bool) {
	run, first := 0, time.Duration(0)
	for i, sent := range t.sent {
		switch {
		case sent >= before:
			return first, run >= steady
		case t.arrived[i] != wanted:
			run = 0
			continue
		case run == 0:
			first = sent
		}
		run++
	}
	return first, run >= steady
}

// newProbe sends from the network namespace at one path, and listens at an
// interface of that at another, for what comes in and what goes out.
func newProbe(sender, listener, link string, to netip.Addr, port uint16) (*probe, error) {
	p := &probe{sender: -1, listener: -1, to: to, port: port, stop: make(chan struct{})}
	err := netns.Do(sender, func() (err error) {
		p.sender, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
		return err
	})
	if err == nil {
		err = netns.Do(listener, func() error { return p.listen(link) })
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("make a probe to %s: %w", to, err)
	}
	p.listening.Go(p.receive)
	return p, nil
}

func (p *probe) listen(name string) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	if p.listener, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all)); err != nil {
		return err
	}
	timeout := unix.NsecToTimeval(int64(100 * time.Millisecond))
	if err := unix.SetsockoptTimeval(p.listener, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return err
	}
	return unix.Bind(p.listener, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index})
}

func (p *probe) close() {
	close(p.stop)
	p.listening.Wait()
	for _, fd := range []int{p.sender, p.listener} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// aim has the probe ask about another address.
func (p *probe) aim(to netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = to
}

// datagram is a UDP header and what tells datagrams apart. UDP over IPv4 does
// without a checksum (RFC 768).
func datagram(source, port uint16, generation, number uint32) []byte {
	const length = 16
	b := binary.BigEndian.AppendUint16(nil, source)
	b = binary.BigEndian.AppendUint16(b, port)
	b = binary.BigEndian.AppendUint16(b, length)
	b = binary.BigEndian.AppendUint16(b, 0)
	b = binary.BigEndian.AppendUint32(b, generation)
	return binary.BigEndian.AppendUint32(b, number)
}

// parseDatagram reads a packet from its IPv4 header (RFC 791) on.
func parseDatagram(b []byte) (to netip.AddrPort, generation, number uint32, ok bool) {
	if len(b) < 20 || b[0]>>4 != 4 || b[9] != unix.IPPROTO_UDP {
		return
	}
	to4 := netip.AddrFrom4([4]byte(b[16:20]))
	header := int(b[0]&0xf) * 4
	if header < 20 || len(b) < header+16 {
		return
	}
	b = b[header:]
	return netip.AddrPortFrom(to4, binary.BigEndian.Uint16(b[2:])), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:]), true
}

func (p *probe) receive() {
	b := make([]byte, 2048)
	for {
		select {
		case <-p.stop:
			return
		default:
		}
		n, err := read(p.listener, b)
		if err != nil {
			continue // nothing came
		}
		to, generation, number, ok := parseDatagram(b[:n])
		p.mu.Lock()
		at := p.arrives
		if !at.IsValid() {
			at = p.to
		}
		if ok && to == netip.AddrPortFrom(at, p.port) && generation == p.generation && int(number) < len(p.trial.arrived) {
			p.trial.arrived[number] = true
		}
		p.mu.Unlock()
	}
}

// sendEach sends until the channel is closed.
func (p *probe) sendEach(done <-chan struct{}) error {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return nil
		case <-tick.C:
		}
		// A port that was used half a minute ago is not known any more.
		p.source = max(1024, (p.source+1)%65000)
		p.mu.Lock()
		b := datagram(p.source, p.port, p.generation, uint32(len(p.trial.sent)))
		p.trial.sent = append(p.trial.sent, time.Since(p.begin))
		p.trial.arrived = append(p.trial.arrived, false)
		p.mu.Unlock()
		_, err := again(func() (int, error) { return 0, unix.Sendto(p.sender, b, 0, &unix.SockaddrInet4{Addr: p.to.As4()}) })
		// A full queue loses datagrams as a wire does, and so does a reject.
		if err != nil && err != unix.ENOBUFS && err != unix.EPERM && err != unix.ECONNREFUSED {
			return fmt.Errorf("send to %s: %w", p.to, err)
		}
	}
}

// time makes a change that is to let datagrams through, or to stop them, and
// returns how long after its return the first datagram was sent from which on
// all fared so.
func (p *probe) time(ctx context.Context, wanted bool, change func() error) (took time.Duration, err error) {
	p.mu.Lock()
	p.generation++
	p.begin, p.trial = time.Now(), trial{}
	p.mu.Unlock()
	done, sending := make(chan struct{}), make(chan error, 1)
	go func() { sending <- p.sendEach(done) }()
	defer func() {
		close(done)
		err = errors.Join(err, <-sending)
	}()
	if _, err := p.await(ctx, !wanted); err != nil {
		return 0, fmt.Errorf("before the change: %w", err)
	}
	if err := change(); err != nil {
		return 0, err
	}
	changed := time.Since(p.begin)
	at, err := p.await(ctx, wanted)
	return max(0, at-changed), err
}

// errNeverCame says that what was waited for did not come in probeTimeout.
var errNeverCame = errors.New("it did not come in time")

// await waits until all datagrams fare so, which is errNeverCame where they do not.
func (p *probe) await(ctx context.Context, wanted bool) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, errNeverCame)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		p.mu.Lock()
		at, ok := p.trial.flip(wanted, time.Since(p.begin)-probeGrace, probeSteady)
		p.mu.Unlock()
		if ok {
			return at, nil
		}
		select {
		case <-ctx.Done():
			if cause := context.Cause(ctx); cause != errNeverCame {
				return 0, cause
			}
			verb := "are dropped"
			if !wanted {
				verb = "get through"
			}
			return 0, fmt.Errorf("datagrams to %s port %d still %s after %v: %w", p.to, p.port, verb, probeTimeout, errNeverCame)
		case <-tick.C:
		}
	}
}
