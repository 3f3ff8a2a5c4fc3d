package traffic

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Server answers requests. What it understands is a line of text: a number,
// which it answers with an [Answer]; "give N", which it answers with N bytes;
// and "take N" with N bytes behind it, which it answers with that line once it
// has them. Over UDP there are numbers only.
type Server struct {
	// Name is who answers, without blanks.
	Name string
	// Port is for TCP and UDP, of both families; HTTP, where it is not 0, is
	// where GET is answered with status 200 and an Answer.
	Port, HTTP uint16
}

const (
	maxLine = 64      // bytes of a request
	maxBulk = 1 << 40 // bytes of "give" and "take"
)

// Run serves until ctx ends. Once it takes connections on Port, or answers on
// HTTP, it serves in all other ways, too: a probe asks in one of them.
func (s Server) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends what is waited for
	// A socket for each address: an answer must come from the address that
	// was asked, and one for all addresses would choose another.
	udp, err := listenUDP(s.Port)
	if err != nil {
		return err
	}
	for _, c := range udp {
		context.AfterFunc(ctx, func() { c.Close() })
		wg.Go(func() { s.serveUDP(c) })
	}
	var web net.Listener
	if s.HTTP != 0 {
		if web, err = net.Listen("tcp", fmt.Sprintf(":%d", s.HTTP)); err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { web.Close() })
	}
	tcp, err := net.Listen("tcp", fmt.Sprintf(":%d", s.Port))
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { tcp.Close() })
	if web != nil {
		h := &http.Server{Handler: http.HandlerFunc(s.serveHTTP), ReadTimeout: 10 * time.Second}
		context.AfterFunc(ctx, func() { h.Close() })
		wg.Go(func() { h.Serve(web) })
	}
	for {
		c, err := tcp.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil: // out of files, as a rule
			time.Sleep(10 * time.Millisecond)
			continue
		}
		wg.Go(func() {
			defer context.AfterFunc(ctx, func() { c.Close() })()
			s.serveTCP(c)
		})
	}
}

// listenUDP returns a socket for each address of this host.
func listenUDP(port uint16) ([]*net.UDPConn, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var sockets []*net.UDPConn
	for _, a := range addresses {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil || prefix.Addr().IsLinkLocalUnicast() {
			continue
		}
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(prefix.Addr(), port)))
		if err != nil {
			for _, c := range sockets {
				c.Close()
			}
			return nil, err
		}
		sockets = append(sockets, c)
	}
	return sockets, nil
}

func (s Server) serveUDP(c *net.UDPConn) {
	buf := make([]byte, maxLine)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if number, e := strconv.ParseUint(strings.TrimSpace(string(buf[:n])), 10, 64); err == nil && e == nil {
			c.WriteToUDPAddrPort([]byte(s.answer(number, from)), from)
		}
	}
}

func (s Server) answer(number uint64, from netip.AddrPort) string {
	return Answer{Number: number, Seen: unmapped(from), By: s.Name}.String()
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func (s Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprintln(w, s.answer(0, from))
}

// serveTCP answers the requests of a connection until it ends or says
// something that is not one.
func (s Server) serveTCP(c net.Conn) error {
	defer c.Close()
	from, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return err
	}
	in := bufio.NewReaderSize(c, maxLine)
	for {
		line, err := in.ReadSlice('\n') // a longer line is an error
		if err != nil {
			return err
		}
		text := strings.TrimSpace(string(line))
		if number, err := strconv.ParseUint(text, 10, 64); err == nil {
			if _, err := io.WriteString(c, s.answer(number, from)+"\n"); err != nil {
				return err
			}
			continue
		}
		verb, rest, _ := strings.Cut(text, " ")
		n, err := strconv.ParseInt(rest, 10, 64)
		switch {
		case err != nil || n < 0 || n > maxBulk:
			return fmt.Errorf("request %q: it is neither a number nor give or take with one", text)
		case verb == "give":
			_, err = io.CopyN(c, zeros{}, n)
		case verb == "take":
			if _, err = io.CopyN(io.Discard, in, n); err == nil {
				_, err = fmt.Fprintln(c, text)
			}
		default:
			err = fmt.Errorf("request %q: it is neither a number nor give or take with one", text)
		}
		if err != nil {
			return err
		}
	}
}

// zeros is an endless Reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
