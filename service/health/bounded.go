package health

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
)

// crowd are the connections to one or several ports that there are at a time. Where there would be
// too many, the oldest of whoever has the most is ended for the next: whoever holds connections
// open, from however many addresses, keeps nobody from asking.
type crowd struct {
	mu sync.Mutex
	// all has every connection, the oldest first.
	all list.List
	// of counts them by whose they are.
	of map[netip.Prefix]int
}

// join counts a connection, and ends the one that it takes the place of.
func (c *crowd) join(conn *counted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = make(map[netip.Prefix]int)
	}
	own, most := c.of[conn.from], mostOfOne
	full := c.all.Len() >= mostOfAll
	if full {
		most = c.heaviest()
	}
	switch {
	case own >= most:
		c.end(func(of netip.Prefix) bool { return of == conn.from })
	case full:
		c.end(func(of netip.Prefix) bool { return c.of[of] == most })
	}
	conn.place = c.all.PushBack(conn)
	c.of[conn.from]++
}

// heaviest is how many connections those have who have the most.
func (c *crowd) heaviest() int {
	most := 0
	for _, n := range c.of {
		most = max(most, n)
	}
	return most
}

// end ends the oldest connection of those whose it may be.
func (c *crowd) end(may func(of netip.Prefix) bool) {
	for e := c.all.Front(); e != nil; e = e.Next() {
		if conn := e.Value.(*counted); may(conn.from) {
			c.forget(conn)
			conn.Conn.Close() //nolint:errcheck // nobody waits for what comes of it
			return
		}
	}
}

func (c *crowd) leave(conn *counted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(conn)
}

func (c *crowd) forget(conn *counted) {
	if conn.place == nil {
		return
	}
	c.all.Remove(conn.place)
	conn.place = nil
	if c.of[conn.from]--; c.of[conn.from] == 0 {
		delete(c.of, conn.from)
	}
}

// bounded is a listener whose connections are some of a crowd.
type bounded struct {
	net.Listener
	crowd *crowd
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	conn, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &counted{Conn: conn, crowd: b.crowd, from: whose(conn.RemoteAddr())}
	b.crowd.join(c)
	return c, nil
}

// whose returns the addresses that count as one: those of a /64 of IPv6, as whoever has one of
// them may have all.
func whose(a net.Addr) netip.Prefix {
	tcp, _ := a.(*net.TCPAddr)
	if tcp == nil {
		return netip.Prefix{}
	}
	address := tcp.AddrPort().Addr().Unmap()
	bits := 32
	if address.Is6() {
		bits = 64
	}
	prefix, _ := address.Prefix(bits)
	return prefix
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	crowd *crowd
	from  netip.Prefix
	// place is where it is among all, nil where it counts no more.
	place *list.Element
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.crowd.leave(c)
	return c.Conn.Close()
}
