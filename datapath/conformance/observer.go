package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
)

// patience bounds the wait for what must come; what comes at once is not
// waited for. It is long so that a busy machine does not look like a fault.
const patience = 5 * time.Second

// disappointment is how long a connection that must not come about is tried.
const disappointment = 300 * time.Millisecond

// wordPrefix begins every word, and makes it as long as a question for a name is at least.
const wordPrefix = "weft-conformance-"

// service is what a host listens on.
type service struct {
	protocol plan.Protocol
	port     uint16
}

// arrival is one packet or connection as its receiver sees it.
type arrival struct {
	receiver            string
	source, destination netip.Addr
}

// observer makes hosts listen and notes what arrives where. Each thing that is
// sent carries a word that no other carries.
type observer struct {
	t        *testing.T
	mu       sync.Mutex
	words    int
	arrivals map[string]chan arrival
	closers  []io.Closer
	running  sync.WaitGroup
}

func newObserver(t *testing.T) *observer {
	o := &observer{t: t, arrivals: map[string]chan arrival{}}
	t.Cleanup(func() {
		o.mu.Lock()
		for _, c := range o.closers {
			c.Close()
		}
		o.mu.Unlock()
		o.running.Wait()
	})
	return o
}

// expect returns a new word, and where its first arrival will be.
func (o *observer) expect() (string, <-chan arrival) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.words++
	word := fmt.Sprintf(wordPrefix+"%d", o.words)
	c := make(chan arrival, 1)
	o.arrivals[word] = c
	return word, c
}

func (o *observer) arrived(word string, a arrival) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.arrivals[word] <- a:
	default: // not the first, or nothing of ours
	}
}

// listen makes a host answer. It may be called again for the same service.
func (o *observer) listen(h *host, s service) {
	o.t.Helper()
	if h.listening[s] || !s.protocol.HasPorts() {
		return
	}
	h.listening[s] = true
	for _, family := range []string{"4", "6"} {
		must(o.t, h.Do(func() error {
			config := net.ListenConfig{Control: control(transparent)}
			address := fmt.Sprintf(":%d", s.port)
			if s.protocol == plan.TCP {
				// Connections must be able to change their subflows' fate to
				// nobody's but their own path.
				config.SetMultipathTCP(false)
				l, err := config.Listen(context.Background(), "tcp"+family, address)
				if err != nil {
					return fmt.Errorf("listen on TCP port %d of %s: %w", s.port, h.name, err)
				}
				o.keep(l, func() { o.serveTCP(h, l) })
				return nil
			}
			c, err := config.ListenPacket(context.Background(), "udp"+family, address)
			if err != nil {
				return fmt.Errorf("listen on UDP port %d of %s: %w", s.port, h.name, err)
			}
			conn := c.(*net.UDPConn)
			o.keep(conn, func() { o.serveUDP(h, conn) })
			return nil
		}))
	}
}

// keep runs f until c is closed at the end of the test.
func (o *observer) keep(c io.Closer, f func()) {
	o.mu.Lock()
	o.closers = append(o.closers, c)
	o.mu.Unlock()
	o.running.Go(f)
}

// serveTCP answers every line with itself.
func (o *observer) serveTCP(h *host, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		o.keep(c, func() {
			defer c.Close()
			for lines := bufio.NewScanner(c); lines.Scan(); {
				o.arrived(lines.Text(), arrival{h.name, addrOf(c.RemoteAddr()), addrOf(c.LocalAddr())})
				if _, err := fmt.Fprintln(c, lines.Text()); err != nil {
					return
				}
			}
		})
	}
}

// serveUDP answers every datagram with its first word, from the address that
// it was sent to.
func (o *observer) serveUDP(h *host, c *net.UDPConn) {
	data, control := make([]byte, 65536), make([]byte, 256)
	for {
		n, cn, _, from, err := c.ReadMsgUDPAddrPort(data, control)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue // an ICMP error that an earlier answer met
		}
		to, answerFrom := destinationOf(control[:cn])
		word, _, _ := strings.Cut(string(data[:n]), " ")
		o.arrived(word, arrival{h.name, from.Addr().Unmap(), to})
		// Whether the answer gets there is what the sender finds out.
		_, _, _ = c.WriteMsgUDPAddrPort([]byte(word), answerFrom, from)
	}
}

// destinationOf returns the address that a datagram was sent to, and the
// control message that makes it the source of the answer.
func destinationOf(control []byte) (netip.Addr, []byte) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return netip.Addr{}, nil
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= 12:
			a := netip.AddrFrom4([4]byte(m.Data[8:12])) // ipi_addr
			return a, unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: a.As4()})
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 16:
			a := netip.AddrFrom16([16]byte(m.Data[:16]))
			return a, unix.PktInfo6(&unix.Inet6Pktinfo{Addr: a.As16()})
		}
	}
	return netip.Addr{}, nil
}

// transparent makes a socket tell where datagrams were sent to, and able to
// use addresses that are not on an interface.
func transparent(fd int, network string) error {
	if strings.HasSuffix(network, "6") {
		return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1))
	}
	return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1),
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1))
}

// dontFragment makes the path decide what is too long, and its answer an
// error of the socket.
func dontFragment(fd int, network string) error {
	if strings.HasSuffix(network, "6") {
		return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1))
	}
	return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO),
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1))
}

func control(options ...func(fd int, network string) error) func(string, string, syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) {
			for _, set := range options {
				err = errors.Join(err, set(int(fd), network))
			}
		}); e != nil {
			return e
		}
		return err
	}
}

// dial opens a socket of a host. An invalid source leaves the choice to the
// kernel.
func (h *host) dial(network string, source netip.Addr, to netip.AddrPort, timeout time.Duration, options ...func(int, string) error) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout, Control: control(append(options, transparent)...)}
	d.SetMultipathTCP(false)
	if source.IsValid() {
		if network == "tcp" {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
		} else {
			d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
		}
	}
	network += map[bool]string{true: "4", false: "6"}[to.Addr().Is4()]
	var c net.Conn
	err := h.Do(func() (err error) {
		c, err = d.Dial(network, to.String())
		return err
	})
	return c, err
}

// ping sends an ICMP echo request and waits for the reply.
func (h *host) ping(source, to netip.Addr, timeout time.Duration) error {
	network, request, reply := "ip4:icmp", byte(8), byte(0) // RFC 792
	if to.Is6() {
		network, request, reply = "ip6:ipv6-icmp", 128, 129 // RFC 4443, section 4
	}
	local := ""
	if source.IsValid() {
		local = source.String()
	}
	var c net.PacketConn
	err := h.Do(func() (err error) {
		c, err = net.ListenPacket(network, local)
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	id := uint16(time.Now().UnixNano() >> 10)
	m := []byte{request, 0, 0, 0, byte(id >> 8), byte(id), 0, 1, 'w', 'e', 'f', 't'}
	if to.Is4() {
		sum := checksum(m)
		m[2], m[3] = byte(sum>>8), byte(sum)
	}
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := c.WriteTo(m, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return err
	}
	for b := make([]byte, 1500); ; {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return err
		}
		// The socket gets the replies to all of the host's requests.
		if n >= 8 && from.String() == to.String() && b[0] == reply && b[4] == m[4] && b[5] == m[5] {
			return nil
		}
	}
}

// checksum is the one of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

func addrOf(a net.Addr) netip.Addr {
	p, _ := netip.ParseAddrPort(a.String())
	return p.Addr().Unmap()
}
