package main

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// agent listens at a socket, and has serve speak with who comes.
func agent(t *testing.T, serve func(net.Conn)) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	return path
}

func open(t *testing.T, path string) *conversation {
	t.Helper()
	c, err := dial(path, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

// TestConversation sends more than the socket holds at once, and gets all of it back.
func TestConversation(t *testing.T) {
	c := open(t, agent(t, func(conn net.Conn) { io.CopyN(conn, conn, 3<<20) }))
	c.deadline = time.Now().Add(time.Minute)
	sent := strings.Repeat("0123456789abcdef", 3<<16)
	failed := make(chan error, 1)
	go func() {
		_, err := io.WriteString(c, sent)
		failed <- err
	}()
	got, err := io.ReadAll(c)
	if err := errors.Join(err, <-failed); err != nil || string(got) != sent {
		t.Fatalf("sent %d bytes and got %d back: %v", len(sent), len(got), err)
	}
}

// TestSilentAgent waits for an answer, and then for room to send, until the deadline.
func TestSilentAgent(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	path := agent(t, func(net.Conn) { <-done })
	for name, speak := range map[string]func(c *conversation) error{
		"read":  func(c *conversation) error { _, err := c.Read(make([]byte, 1)); return err },
		"write": func(c *conversation) error { _, err := c.Write(make([]byte, 8<<20)); return err },
	} {
		c := open(t, path)
		c.deadline = time.Now().Add(50 * time.Millisecond)
		if err := speak(c); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s from an agent that is silent: %v", name, err)
		}
	}
}

// TestNoAgent dials where nobody listens, and writes to one that has gone.
func TestNoAgent(t *testing.T) {
	if _, err := dial(filepath.Join(t.TempDir(), "s"), time.Second); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("no socket: %v", err)
	}
	if _, err := dial("/"+strings.Repeat("long", 100), time.Second); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a path that no socket can have: %v", err)
	}
	c := open(t, agent(t, func(net.Conn) {}))
	c.deadline = time.Now().Add(time.Minute)
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("an agent that goes away: %v", err)
	}
	if _, err := c.Write(make([]byte, 1)); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write to an agent that has gone: %v", err)
	}
}
