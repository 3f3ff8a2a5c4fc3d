package traffic

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Ask puts one question to each of some servers, all at a time: a URL names
// protocol and address, as tcp://10.244.1.5:7000 or udp://[fd00::5]:7000. A
// question over UDP is asked three times within the timeout.
func Ask(timeout time.Duration, servers ...string) []Reply {
	replies := make([]Reply, len(servers))
	var wg sync.WaitGroup
	for i, to := range servers {
		wg.Go(func() {
			answer, err := askOne(timeout, to)
			replies[i] = Reply{To: to, Seen: answer.Seen.Addr(), By: answer.By}
			if err != nil {
				replies[i].Error = err.Error()
			}
		})
	}
	wg.Wait()
	return replies
}

func askOne(timeout time.Duration, server string) (Answer, error) {
	protocol, to, err := parseServer(server)
	if err != nil {
		return Answer{}, err
	}
	deadline := time.Now().Add(timeout)
	c, err := net.DialTimeout(protocol, to.String(), timeout)
	if err != nil {
		return Answer{}, err
	}
	defer c.Close()
	if protocol == "tcp" {
		c.SetDeadline(deadline)
		return question(c, bufio.NewReader(c), 1)
	}
	for n := uint64(1); ; n++ {
		c.SetDeadline(time.Now().Add(timeout / 3))
		answer, err := questionUDP(c, n)
		if err == nil || n == 3 {
			return answer, err
		}
	}
}

// question asks over a connection whose deadline is set.
func question(c net.Conn, in *bufio.Reader, number uint64) (Answer, error) {
	if _, err := fmt.Fprintln(c, number); err != nil {
		return Answer{}, err
	}
	line, err := in.ReadString('\n')
	if err != nil {
		return Answer{}, err
	}
	return expect(line, number)
}

func questionUDP(c net.Conn, number uint64) (Answer, error) {
	if _, err := fmt.Fprint(c, number); err != nil {
		return Answer{}, err
	}
	buf := make([]byte, 512)
	n, err := c.Read(buf)
	if err != nil {
		return Answer{}, err
	}
	return expect(string(buf[:n]), number)
}

// expect reads the answer to a request.
func expect(line string, number uint64) (Answer, error) {
	a, err := parseAnswer(line)
	if err == nil && a.Number != number {
		err = fmt.Errorf("the answer to request %d has number %d", number, a.Number)
	}
	return a, err
}

// parseServer reads a URL of a server.
func parseServer(server string) (protocol string, to netip.AddrPort, err error) {
	protocol, address, _ := strings.Cut(server, "://")
	if protocol != "tcp" && protocol != "udp" {
		return "", to, fmt.Errorf("server %q: it must begin with tcp:// or udp://", server)
	}
	if to, err = netip.ParseAddrPort(address); err != nil {
		return "", to, fmt.Errorf("server %q: %w", server, err)
	}
	return protocol, to, nil
}

// Bulk is much to move over one connection.
type Bulk struct {
	// To is the server; with Give, bytes come from it.
	To   netip.AddrPort
	Give bool
	// Bytes are moved and timed together, again and again, until they go at no
	// more than Until bit/s, or Most bytes have been moved: what a limit's
	// bucket holds goes at any speed.
	Bytes, Most int64
	Until       float64
	// Timeout is for all of it.
	Timeout time.Duration
}

// Moved is what came of a Bulk.
type Moved struct {
	// Rate is that of the last Bytes, in bit/s.
	Rate float64 `json:"rate"`
	// Before is how many bytes went before them.
	Before int64 `json:"before"`
}

// Move moves the bytes.
func (b Bulk) Move() (Moved, error) {
	c, err := net.DialTimeout("tcp", b.To.String(), b.Timeout)
	if err != nil {
		return Moved{}, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(b.Timeout))
	in := bufio.NewReader(c)
	for m := (Moved{}); ; m.Before += b.Bytes {
		start := time.Now()
		if err := b.once(c, in); err != nil {
			return m, err
		}
		m.Rate = float64(b.Bytes) * 8 / time.Since(start).Seconds()
		if m.Rate <= b.Until || m.Before+b.Bytes >= b.Most {
			return m, nil
		}
	}
}

func (b Bulk) once(c net.Conn, in *bufio.Reader) error {
	if b.Give {
		if _, err := fmt.Fprintf(c, "give %d\n", b.Bytes); err != nil {
			return err
		}
		_, err := io.CopyN(io.Discard, in, b.Bytes)
		return err
	}
	if _, err := fmt.Fprintf(c, "take %d\n", b.Bytes); err != nil {
		return err
	}
	if _, err := io.CopyN(c, zeros{}, b.Bytes); err != nil {
		return err
	}
	_, err := in.ReadString('\n')
	return err
}
