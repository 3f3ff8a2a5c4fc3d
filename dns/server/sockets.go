package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/weftnet/weft/dns/answer"
	"github.com/weftnet/weft/dns/keeper"
	"github.com/weftnet/weft/dns/unanswered"
)

const (
	// maxRead is how much of a query is read, in bytes: one more than it may have, so that a longer
	// one is known for such.
	maxRead = answer.MaxQuery + 1
	// maxWaiting is how many queries wait to be looked at, and maxWaitingEach how many of one
	// client. All further ones are dropped: the client sends them again.
	maxWaiting, maxWaitingEach = 2048, 256
	// maxConnections is how many connections there are, and maxConnectionsEach how many of one
	// client, but for what share lets in beyond. All further ones are closed at once.
	maxConnections, maxConnectionsEach = 1024, 64
	// idleTime is how long a connection may be silent, and transferTime how long one message
	// may be on its way.
	idleTime, transferTime = 10 * time.Second, 5 * time.Second
	// readAgain and acceptAgain are when a socket is read, and connections are accepted again,
	// after that failed.
	readAgain, acceptAgain = time.Millisecond, 100 * time.Millisecond
)

// pair are the sockets of one address.
type pair struct {
	at  netip.AddrPort
	udp *net.UDPConn
	tcp *net.TCPListener
	// reader reads udp.
	reader *unanswered.Reader
	// reading is done when neither is read any more, and stopped once reader has nothing any more.
	reading sync.WaitGroup
	stopped sync.Once
}

// adopt makes sockets of those that the keeper handed over. What is read there is held in memory.
func adopt(k keeper.Sockets, m *unanswered.Memory) (*pair, error) {
	defer k.UDP.Close()
	defer k.TCP.Close()
	c, err := net.FilePacketConn(k.UDP)
	if err != nil {
		return nil, fmt.Errorf("the socket for UDP at %s: %w", k.At, err)
	}
	l, err := net.FileListener(k.TCP)
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("the socket for TCP at %s: %w", k.At, err)
	}
	udp, ok := c.(*net.UDPConn)
	tcp, too := l.(*net.TCPListener)
	if !ok || !too {
		c.Close()
		l.Close()
		return nil, fmt.Errorf("the sockets at %s are a %T and a %T", k.At, c, l)
	}
	r, err := m.Reader(udp, k.At, maxRead)
	if err != nil {
		c.Close()
		l.Close()
		return nil, fmt.Errorf("the socket for UDP at %s: %w", k.At, err)
	}
	return &pair{at: k.At, udp: udp, tcp: tcp, reader: r}, nil
}

// read reads both until stop. What the server before has read there, and not answered, goes first.
func (p *pair) read(s *Server) {
	s.takeOver(p)
	p.reading.Go(func() { p.readUDP(s) })
	p.reading.Go(func() { p.accept(s) })
}

// stop ends reading, and returns once it has ended. What nobody has read waits for who has the
// same sockets. Replies can still be sent.
func (p *pair) stop() {
	p.udp.SetReadDeadline(time.Unix(1, 0))
	p.tcp.Close()
	p.reading.Wait()
	p.stopped.Do(p.reader.Close)
}

func (p *pair) readUDP(s *Server) {
	one := func() *packet { return p.packet(p.reader.Hold()) }
	for {
		from, err := p.reader.Read()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(readAgain)
			continue
		}
		// What has no room takes no work.
		if !s.queries.pushNew(from.Addr().Unmap(), one) {
			s.metrics.dropped("queue")
		}
	}
}

// packet returns a query that came by UDP.
func (p *pair) packet(q unanswered.Query) *packet {
	from := q.From
	return &packet{data: q.Data, from: from, began: q.Read, held: q.Held, reply: func(data []byte) {
		// Who does not get it asks again.
		p.udp.WriteToUDPAddrPort(data, from)
	}}
}

func (p *pair) accept(s *Server) {
	for {
		c, err := p.tcp.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptAgain)
			continue
		}
		from := c.RemoteAddr().(*net.TCPAddr).AddrPort()
		client := from.Addr().Unmap()
		if !s.connections.take(client) {
			s.metrics.dropped("connection")
			// A reset takes no memory while it is on its way.
			c.SetLinger(0)
			c.Close()
			continue
		}
		s.conversing.Go(func() {
			defer s.connections.give(client)
			s.converse(c, from)
		})
	}
}

// converse answers the queries of a connection, one after the other.
func (s *Server) converse(c *net.TCPConn, from netip.AddrPort) {
	defer c.Close()
	defer s.forget(c)
	if !s.remember(c) {
		return
	}
	var length [2]byte
	for s.wait(c, idleTime) {
		if _, err := io.ReadFull(c, length[:]); err != nil {
			return
		}
		if !s.wait(c, transferTime) {
			return
		}
		size := int(binary.BigEndian.Uint16(length[:]))
		data := make([]byte, min(size, maxRead))
		if _, err := io.ReadFull(c, data); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, c, int64(size-len(data))); err != nil {
			return
		}
		// It has its turn among all others, however many connections a client has. What is
		// replied is sent here, so that nobody else waits for who does not take it.
		done := make(chan struct{})
		var framed []byte
		one := &packet{data: data, from: from, began: time.Now(), stream: true, done: func() { close(done) }, reply: func(data []byte) {
			framed = append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(data)), uint16(len(data))), data...)
		}}
		if !s.queries.push(one.client(), one) {
			s.metrics.dropped("queue")
			return
		}
		<-done
		c.SetWriteDeadline(time.Now().Add(transferTime))
		if _, err := c.Write(framed); err != nil {
			return
		}
	}
}

// remember keeps a connection, to be ended with the server, and reports whether that goes on.
func (s *Server) remember(c *net.TCPConn) bool {
	s.ending.Lock()
	defer s.ending.Unlock()
	if !s.ended {
		s.open[c] = struct{}{}
	}
	return !s.ended
}

func (s *Server) forget(c *net.TCPConn) {
	s.ending.Lock()
	defer s.ending.Unlock()
	delete(s.open, c)
}

// wait gives a connection time to say something, unless the server is to end.
func (s *Server) wait(c *net.TCPConn, d time.Duration) bool {
	s.ending.Lock()
	defer s.ending.Unlock()
	return !s.ended && c.SetReadDeadline(time.Now().Add(d)) == nil
}

// endConnections has all connections end that wait for a query.
func (s *Server) endConnections() {
	s.ending.Lock()
	defer s.ending.Unlock()
	s.ended = true
	for c := range s.open {
		c.SetReadDeadline(time.Unix(1, 0))
	}
}
