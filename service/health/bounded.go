package health

import (
	"net"
	"sync"
	"sync/atomic"
)

// bounded is a listener that hangs up at once where there are too many connections.
type bounded struct {
	net.Listener
	// everywhere counts the connections to all ports.
	everywhere *atomic.Int64

	mu sync.Mutex
	// from counts connections by the address of the other side.
	from map[string]int
	all  int
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err != nil || !b.take(host) {
			c.Close()
			continue
		}
		return &counted{Conn: c, leave: sync.OnceFunc(func() { b.leave(host) })}, nil
	}
}

func (b *bounded) take(host string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all >= mostConnections || b.from[host] >= mostOfOne {
		return false
	}
	if b.everywhere.Add(1) > mostOfAll {
		b.everywhere.Add(-1)
		return false
	}
	b.all++
	b.from[host]++
	return true
}

func (b *bounded) leave(host string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all--
	b.everywhere.Add(-1)
	if b.from[host]--; b.from[host] == 0 {
		delete(b.from, host)
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}
