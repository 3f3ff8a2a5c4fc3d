package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// startServer serves on loopback and returns the ports.
func startServer(t *testing.T) (tcpPort, udpPort int) {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- serve(ctx, "web", tcp, udp, func() { close(ready) }) }()
	<-ready
	t.Cleanup(func() {
		cancel()
		<-done
		udp.Close()
	})
	return tcp.Addr().(*net.TCPAddr).Port, udp.LocalAddr().(*net.UDPAddr).Port
}

func TestServerNamesItselfAndTheClient(t *testing.T) {
	tcp, udp := startServer(t)
	for _, url := range []string{fmt.Sprintf("http://127.0.0.1:%d/", tcp), fmt.Sprintf("udp://127.0.0.1:%d", udp)} {
		got, err := Fetch(t.Context(), url)
		if err != nil || !strings.HasPrefix(got, "web 127.0.0.1:") {
			t.Errorf("%s answers %q, %v", url, got, err)
		}
	}
	if _, err := Fetch(t.Context(), "gopher://127.0.0.1/"); err == nil || !strings.Contains(err.Error(), "udp://HOST:PORT") {
		t.Errorf("the error is %v", err)
	}
}

// Two servers that hear each other must not answer each other for ever.
func TestServerDoesNotAnswerItsLike(t *testing.T) {
	_, port := startServer(t)
	server := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
	like, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2), Port: port}, server)
	if err != nil {
		t.Fatal(err)
	}
	defer like.Close()
	if _, err := like.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	// Datagrams are answered in order: once another client has its answer,
	// this one would have it.
	if _, err := Fetch(t.Context(), "udp://"+server.String()); err != nil {
		t.Fatal(err)
	}
	like.SetReadDeadline(time.Now())
	if n, err := like.Read(make([]byte, 100)); !os.IsTimeout(err) {
		t.Errorf("it answered %d bytes, %v", n, err)
	}
}

func TestFetchSaysThatNobodyAnswers(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if got, err := Fetch(ctx, "udp://"+silent.LocalAddr().String()); err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("it got %q, %v", got, err)
	}
}
