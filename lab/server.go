package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"time"
)

// Serve answers HTTP and UDP on a port, on all addresses of both families,
// until ctx ends. The answer is one line: name, and the client's address and
// port as they arrived. ready is called once both answer.
func Serve(ctx context.Context, name string, port uint16, ready func()) error {
	tcp, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	defer udp.Close()
	return serve(ctx, name, tcp, udp, ready)
}

func serve(ctx context.Context, name string, tcp net.Listener, udp net.PacketConn, ready func()) error {
	answer := func(client string) string {
		if ap, err := netip.ParseAddrPort(client); err == nil {
			client = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()).String()
		}
		return fmt.Sprintf("%s %s\n", name, client)
	}
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 8 << 10,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, answer(r.RemoteAddr)) }),
	}
	failed := make(chan error, 2)
	go func() { failed <- server.Serve(tcp) }()
	go func() { failed <- answerUDP(udp, answer) }()
	ready()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return server.Close()
	}
}

func answerUDP(conn net.PacketConn, answer func(string) string) error {
	own := conn.LocalAddr().(*net.UDPAddr).Port
	buffer := make([]byte, 64<<10)
	for {
		_, client, err := conn.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			continue // an ICMP error that came back for an answer
		}
		// Two such servers would answer each other for ever.
		if client.(*net.UDPAddr).Port != own {
			conn.WriteTo([]byte(answer(client.String())), client)
		}
	}
}

// SayReady tells the lab that a pod's command serves.
func SayReady(fd int) {
	if f := os.NewFile(uintptr(fd), "ready"); f != nil {
		f.Write([]byte{'\n'})
		f.Close()
	}
}

// fetchLimit bounds an answer, in bytes.
const fetchLimit = 1 << 20

// Fetch asks the server at a URL of the form http://HOST:PORT/ or
// udp://HOST:PORT and returns what it answers.
func Fetch(ctx context.Context, address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	switch u.Scheme {
	case "http":
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return "", err
		}
		// A proxy in the environment is not for addresses within the lab.
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		res, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(io.LimitReader(res.Body, fetchLimit))
		if err == nil && res.StatusCode >= 400 {
			err = fmt.Errorf("%s answers %s", address, res.Status)
		}
		return string(body), err
	case "udp":
		return fetchUDP(ctx, u.Host)
	default:
		return "", fmt.Errorf("%q is neither http://HOST:PORT/ nor udp://HOST:PORT", address)
	}
}

// resendAfter is when a datagram counts as lost.
const resendAfter = time.Second

func fetchUDP(ctx context.Context, host string) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", host)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	buffer := make([]byte, 64<<10)
	for {
		if _, err := conn.Write([]byte("hello\n")); err != nil {
			return "", err
		}
		limit := time.Now().Add(resendAfter)
		if end, ok := ctx.Deadline(); ok && end.Before(limit) {
			limit = end
		}
		conn.SetReadDeadline(limit)
		n, err := conn.Read(buffer)
		if err == nil {
			return string(buffer[:n]), nil
		}
		if ctx.Err() != nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return "", fmt.Errorf("udp %s: no answer: %w", host, err)
		}
	}
}
