package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/lab"
)

// An attacker's hand is a process where he is, with what he may do. It follows
// orders that come over its standard input, a line of JSON each, and answers
// with what came of it.

// order is one thing to do.
type order struct {
	Do string
	// Device and Frames: send these frames on an interface (frames), again and
	// again from the moment that it is there (flood), Count times.
	Device string   `json:",omitempty"`
	Frames [][]byte `json:",omitempty"`
	Count  int      `json:",omitempty"`
	// Up: bring the interface up oneself (flood).
	Up bool `json:",omitempty"`
	// From, To, Data: a datagram (udp), Count of them from different ports
	// (flows), a connection and its answer (tcp). Count connections that the other
	// side never hears the end of (desert), and who takes as many (listen).
	From netip.AddrPort `json:",omitzero"`
	To   netip.AddrPort `json:",omitzero"`
	Data []byte         `json:",omitempty"`
	// Path: connect to a Unix socket, send Data, and read the answer (unix);
	// or do so Count times, and hold the connections (hold).
	Path string `json:",omitempty"`
	// Args: a command to run (run).
	Args []string `json:",omitempty"`
	// Wait bounds how long it may take; a second if 0.
	Wait time.Duration `json:",omitempty"`
}

// reply is what came of an order.
type reply struct {
	Error  string `json:",omitempty"`
	Output string `json:",omitempty"`
	// Done counts what was sent.
	Done int `json:",omitempty"`
}

// runProgram runs what this binary is beside tests, and reports whether it is
// asked for that.
func runProgram(args []string) bool {
	var err error
	switch args[0] {
	case "hand": // PRIVILEGES SELF
		var p privileges
		if p, err = parsePrivileges(args[1]); err == nil {
			self = args[2]
			err = p.become("hand-with-privileges")
		}
	case "hand-with-privileges":
		err = followOrders(os.Stdin, os.Stdout)
	case "runtime":
		err = runtime(args[1:])
	default:
		return false
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func followOrders(in io.Reader, out io.Writer) error {
	may, err := own()
	if err != nil {
		return err
	}
	answers := json.NewEncoder(out)
	if err := answers.Encode(reply{Output: may}); err != nil {
		return err
	}
	for orders := json.NewDecoder(in); ; {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		r, err := o.follow()
		if err != nil {
			r.Error = err.Error()
		}
		if err := answers.Encode(r); err != nil {
			return err
		}
	}
}

func (o order) follow() (r reply, err error) {
	if o.Wait == 0 {
		o.Wait = time.Second
	}
	switch o.Do {
	case "frames":
		r.Done, err = sendFrames(o.Device, o.Frames)
	case "flood":
		r.Done, err = o.flood()
	case "udp":
		err = o.udp(o.From)
	case "flows":
		r.Done, err = o.flows()
	case "tcp":
		r.Output, err = o.converse("tcp", o.To.String())
	case "desert":
		r.Done, err = o.desert()
	case "listen":
		err = o.listen()
	case "hold":
		r.Done, err = o.hold()
	case "unix":
		r.Output, err = o.converse("unix", o.Path)
	case "run":
		ctx, cancel := context.WithTimeout(context.Background(), max(o.Wait, patience))
		defer cancel()
		var b []byte
		b, err = exec.CommandContext(ctx, o.Args[0], o.Args[1:]...).CombinedOutput()
		r.Output = string(b)
		if err != nil {
			err = fmt.Errorf("%s: %w: %s", strings.Join(o.Args, " "), err, b)
		}
	default:
		err = fmt.Errorf("unknown order %q", o.Do)
	}
	return r, err
}

// packetSocket is one for as long as the hand lives: to close one takes the
// kernel longer than all else.
var packetSocket = sync.OnceValues(func() (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		err = fmt.Errorf("open a packet socket: %w", err)
	}
	return fd, err
})

// sendFrames sends frames as they are, on an interface.
func sendFrames(device string, frames [][]byte) (sent int, err error) {
	fd, err := packetSocket()
	if err != nil {
		return 0, err
	}
	link, err := net.InterfaceByName(device)
	if err != nil {
		return 0, err
	}
	for _, f := range frames {
		if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: link.Index, Halen: 6}); err != nil {
			return sent, fmt.Errorf("send a frame on %s: %w", device, err)
		}
		sent++
	}
	return sent, nil
}

// flood sends frames on an interface from the moment that it can, whoever made
// it and however far he is.
func (o order) flood() (sent int, err error) {
	for deadline := time.Now().Add(o.Wait); sent < o.Count && time.Now().Before(deadline); {
		if o.Up {
			if link, err := netlink.LinkByName(o.Device); err == nil {
				_ = netlink.LinkSetUp(link) // it may be half made
			}
		}
		var n int
		n, err = sendFrames(o.Device, o.Frames)
		sent += n
	}
	if sent == 0 {
		return 0, err
	}
	return sent, nil
}

// udp sends a datagram.
func (o order) udp(from netip.AddrPort) error {
	d := net.Dialer{Timeout: o.Wait}
	if from.IsValid() {
		d.LocalAddr = net.UDPAddrFromAddrPort(from)
	}
	d.Control = func(_, _ string, c syscall.RawConn) (err error) {
		// Broadcasts are the sender's to allow.
		e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1) })
		return errors.Join(e, err)
	}
	conn, err := d.Dial("udp", o.To.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write(o.Data)
	return err
}

// flows sends datagrams that are a connection each to whoever tracks them, to
// different ports of one address.
func (o order) flows() (sent int, err error) {
	conn, err := net.ListenPacket("udp", "")
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	for i := range o.Count {
		to := netip.AddrPortFrom(o.To.Addr(), o.To.Port()+uint16(i))
		if _, err := conn.WriteTo(o.Data, net.UDPAddrFromAddrPort(to)); err == nil {
			sent++
		}
	}
	if sent == 0 {
		return 0, errors.New("nothing could be sent")
	}
	return sent, nil
}

// streamSocket returns a TCP socket of the family of an address, and the address.
func streamSocket(a netip.AddrPort) (fd int, to unix.Sockaddr, err error) {
	family := unix.AF_INET6
	to = &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	if a.Addr().Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	return fd, to, err
}

// desert connects and resets the connection with a packet that gets to the own
// node and no farther, so that only that forgets it. It ends with the first that
// is not answered in time.
func (o order) desert() (done int, err error) {
	level, option := unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	if o.To.Addr().Is4() {
		level, option = unix.IPPROTO_IP, unix.IP_TTL
	}
	one := func() (answered bool, err error) {
		fd, to, err := streamSocket(o.To)
		if err != nil {
			return false, err
		}
		defer unix.Close(fd)
		if err := unix.Connect(fd, to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return false, err
		}
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(poll, int(o.Wait.Milliseconds()))
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Poll(poll, int(o.Wait.Milliseconds()))
		}
		if n == 0 || err != nil {
			return false, err
		}
		if code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
			return false, errors.Join(err, unix.Errno(code))
		}
		return true, errors.Join(unix.SetsockoptInt(fd, level, option, 1),
			unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
	}
	for ; done < o.Count; done++ {
		if answered, err := one(); err != nil {
			return done, fmt.Errorf("connect to %s: %w", o.To, err)
		} else if !answered {
			break
		}
	}
	return done, nil
}

// listen listens for Count connections, and accepts none: they stay for as long
// as the hand lives.
func (o order) listen() error {
	fd, at, err := streamSocket(o.To)
	if err == nil {
		err = unix.Bind(fd, at)
	}
	if err == nil {
		err = unix.Listen(fd, o.Count)
	}
	if err != nil {
		return fmt.Errorf("listen on %s: %w", o.To, err)
	}
	return nil
}

// held are connections that are never closed.
var held []net.Conn

// hold opens connections and leaves them be. It tells how many were not refused
// at once, which is the right of who has too many.
func (o order) hold() (open int, err error) {
	for range o.Count {
		conn, err := net.DialTimeout("unix", o.Path, o.Wait)
		if err != nil {
			return open, err
		}
		held = append(held, conn)
		switch _, err := conn.Write(o.Data); {
		case err == nil:
			open++
		case !errors.Is(err, syscall.EPIPE):
			return open, err
		}
	}
	return open, nil
}

// converse opens a connection, sends and returns what comes back first.
func (o order) converse(network, address string) (string, error) {
	conn, err := net.DialTimeout(network, address, o.Wait)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(o.Wait))
	if len(o.Data) > 0 {
		if _, err := conn.Write(o.Data); err != nil {
			return "", err
		}
	}
	b := make([]byte, 64<<10)
	n, err := conn.Read(b)
	return string(b[:n]), err
}

// hand is the end of a hand that gives it orders.
type hand struct {
	where string
	in    io.WriteCloser
	out   *json.Decoder
	done  chan error
	// errors is what it prints beside its answers.
	errors *strings.Builder
}

// command is how a hand is started.
func (p privileges) command() []string { return []string{self, "hand", p.String(), self} }

// newHand starts a hand by execute, which runs a command where the attacker is
// until it ends, and makes sure that it has his privileges and no others.
func newHand(t testing.TB, where string, p privileges, execute func(lab.Command) error) *hand {
	t.Helper()
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	h := &hand{where: where, in: inWrite, out: json.NewDecoder(outRead), done: make(chan error, 1), errors: new(strings.Builder)}
	go func() {
		err := execute(lab.Command{Args: p.command(), Stdin: inRead, Stdout: outWrite, Stderr: h.errors})
		inRead.Close()
		outWrite.Close()
		h.done <- err
	}()
	t.Cleanup(func() { h.end(); outRead.Close() })
	var first reply
	if err := h.out.Decode(&first); err != nil {
		t.Fatalf("a hand %s: %v: %v: %s", where, err, <-h.done, h.errors)
	}
	if p.uid >= 0 && first.Output != p.want() {
		t.Fatalf("a hand %s has other privileges than it should: %s instead of %s", where, first.Output, p.want())
	}
	return h
}

func (h *hand) end() {
	h.in.Close()
	h.done <- <-h.done
}

// order has something done.
func (h *hand) order(o order) (reply, error) {
	if err := json.NewEncoder(h.in).Encode(o); err != nil {
		return reply{}, fmt.Errorf("a hand %s: %w", h.where, err)
	}
	var r reply
	if err := h.out.Decode(&r); err != nil {
		return reply{}, fmt.Errorf("a hand %s: %w", h.where, err)
	}
	if r.Error != "" {
		return r, errors.New(r.Error)
	}
	return r, nil
}

// must has something done that the attacker is able to do.
func (t *trial) must(h *hand, o order) reply {
	t.Helper()
	r, err := h.order(o)
	if err != nil {
		t.Fatalf("%s: %s: %v", h.where, o.Do, err)
	}
	return r
}

// frames sends frames on eth0.
func (t *trial) frames(h *hand, frames ...[]byte) {
	t.Helper()
	t.must(h, order{Do: "frames", Device: "eth0", Frames: frames})
}

// run runs a command.
func (t *trial) run(h *hand, args ...string) string {
	t.Helper()
	return t.must(h, order{Do: "run", Args: args}).Output
}

// sh runs a script.
func (t *trial) sh(h *hand, script string) string {
	t.Helper()
	return t.run(h, "sh", "-ec", script)
}
