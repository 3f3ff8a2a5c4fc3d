package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/lab"
)

// runProgram runs what the test binary is in pods and on nodes, and reports
// whether it is asked for something else than tests.
func runProgram(name string, args []string) bool {
	programs := map[string]func([]string) error{"fetch": fetch, "echo": echo, "talk": talk, "serve": serve, "probe": probe, "runtime": runtime,
		"collect": collect, "throw": throwWords, "wait": wait, "drizzle": drizzle, "catch": catch,
		"claims":     claims,
		"namesAsked": namesAsked, "resolve": resolve, "lookups": lookups, "letter": letter, "ask": askLetters}
	f, ok := programs[name]
	if !ok {
		return false
	}
	if err := f(args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// fetchTimeout is when a server counts as out of reach.
const fetchTimeout = 2 * time.Second

// fetch asks servers all at once and prints a line each: the answer, or "-".
// Asked for one that does not answer, it fails.
func fetch(urls []string) error {
	answers := make([]string, len(urls))
	errs := make([]error, len(urls))
	var wg sync.WaitGroup
	for i, u := range urls {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
			defer cancel()
			answers[i], errs[i] = lab.Fetch(ctx, u)
		})
	}
	wg.Wait()
	for i := range urls {
		if errs[i] == nil {
			fmt.Print(answers[i])
		} else {
			fmt.Println("-")
		}
	}
	if len(urls) == 1 {
		return errs[0]
	}
	return nil
}

// serve answers NAME as a pod's server does, at ADDRESSES, until its standard
// input ends. A node has several addresses, and an answer over UDP from another
// one than was asked is lost; so it listens on each.
func serve(args []string) error {
	failed := make(chan error, 1)
	for _, address := range args[1:] {
		listen := net.JoinHostPort(address, strconv.Itoa(lab.ServerPort))
		tcp, err := net.Listen("tcp", listen)
		if err != nil {
			return err
		}
		udp, err := net.ListenPacket("udp", listen)
		if err != nil {
			return err
		}
		go func() {
			failed <- http.Serve(tcp, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprintln(w, args[0], r.RemoteAddr)
			}))
		}()
		go func() {
			for b := make([]byte, 1500); ; {
				_, from, err := udp.ReadFrom(b)
				if err == nil {
					_, err = udp.WriteTo(fmt.Appendln(nil, args[0], from), from)
				}
				if err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	fmt.Println(listening)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		failed <- err
	}()
	return <-failed
}

const echoPort = 7

// listening is what a server says on standard output once it can be reached.
const listening = "listening"

// echo sends back what it gets.
func echo([]string) error {
	return answer(func(conn net.Conn) { io.Copy(conn, conn) })
}

// answer hands over each connection to echoPort, and closes it behind that.
func answer(to func(net.Conn)) error {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", echoPort))
	if err != nil {
		return err
	}
	fmt.Println(listening)
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			to(conn)
		}()
	}
}

// talk sends a byte over one connection for each that it reads, and passes on
// what comes back.
func talk(args []string) error {
	conn, err := net.DialTimeout("tcp", args[0], fetchTimeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	fmt.Print("!")
	b := make([]byte, 1)
	for {
		if _, err := os.Stdin.Read(b); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := conn.SetDeadline(time.Now().Add(2 * patience)); err != nil {
			return err
		}
		if _, err := conn.Write(b); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, b); err != nil {
			return err
		}
		if _, err := os.Stdout.Write(b); err != nil {
			return err
		}
	}
}

// probe sends a UDP packet of a size in bytes, IP header and all, that may not
// be fragmented, to ADDRESS:PORT, and fails unless an answer comes.
func probe(args []string) error {
	to, err := netip.ParseAddrPort(args[0])
	if err != nil {
		return err
	}
	size, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	level, option, value, headers := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO, 20+8
	if to.Addr().Is6() {
		level, option, value, headers = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO, 40+8
	}
	dialer := net.Dialer{Control: func(_, _ string, conn syscall.RawConn) error {
		var failed error
		err := conn.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, option, value) })
		return errors.Join(err, failed)
	}}
	conn, err := dialer.Dial("udp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	answer := make([]byte, 1500)
	for range 3 {
		if _, err = conn.Write(make([]byte, size-headers)); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(fetchTimeout)); err != nil {
			return err
		}
		if _, err = conn.Read(answer); err == nil {
			return nil
		}
	}
	return err
}

func unixDialer(path string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
}

// conversation is an open connection.
type conversation struct {
	t        *testing.T
	in       io.WriteCloser
	out      *os.File
	finished chan error
	errors   *strings.Builder
}

// converse opens a connection from a pod to the echo server at an address.
func (c *cluster) converse(from place, to netip.Addr) *conversation {
	c.Helper()
	return c.converseAt(from, netip.AddrPortFrom(to, echoPort))
}

// converseAt is converse with a server at another port.
func (c *cluster) converseAt(from place, to netip.AddrPort) *conversation {
	c.Helper()
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		c.Fatal(err)
	}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		c.Fatal(err)
	}
	x := &conversation{t: c.T, in: inWrite, out: outRead, finished: make(chan error, 1), errors: new(strings.Builder)}
	go func() {
		x.finished <- c.execute(from, lab.Command{
			Args:  []string{self, "talk", to.String()},
			Stdin: inRead, Stdout: outWrite, Stderr: x.errors,
		})
		inRead.Close()
		outWrite.Close()
	}()
	c.Cleanup(func() { inWrite.Close(); outRead.Close() })
	x.read('!')
	return x
}

// exchange sends a byte and waits for it to come back.
func (x *conversation) exchange(b byte) {
	x.t.Helper()
	if _, err := x.in.Write([]byte{b}); err != nil {
		x.t.Fatal(err)
	}
	x.read(b)
}

func (x *conversation) read(want byte) {
	x.t.Helper()
	if got := x.next(); got != want {
		x.t.Fatalf("%q came back instead of %q", got, want)
	}
}

// next waits for a byte.
func (x *conversation) next() byte {
	x.t.Helper()
	got := make([]byte, 1)
	x.out.SetReadDeadline(time.Now().Add(2 * patience))
	if _, err := io.ReadFull(x.out, got); err != nil {
		x.t.Fatalf("the connection ended: %v: %v: %s", err, <-x.finished, x.errors)
	}
	return got[0]
}

// end closes the connection, which must have lasted.
func (x *conversation) end() {
	x.t.Helper()
	x.in.Close()
	if err := <-x.finished; err != nil {
		x.t.Fatalf("the connection did not survive: %v: %s", err, x.errors)
	}
}
