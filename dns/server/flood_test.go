package server

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/dns/keeper"
	"github.com/weftnet/weft/internal/await"
)

// TestFlood has one client ask as much as it can, for names inside and for such that nobody
// answers, while another asks for both as well, and is answered.
func TestFlood(t *testing.T) {
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if !strings.HasSuffix(q.Question[0].Name, "nobody.") {
			says(w, q, "@ 60 IN A 203.0.113.1")
		}
	})
	n := run(t, settings(up), service("web", 1))
	stop, number, lost := make(chan struct{}), 0, 0
	var floods sync.WaitGroup
	for _, name := range []string{"web.default.svc.cluster.local", "%d.nobody"} {
		c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)}, net.UDPAddrFromAddrPort(n.at))
		n.must(err)
		defer c.Close()
		floods.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				one := name
				if strings.Contains(name, "%") {
					one = fmt.Sprintf(name, i)
				}
				data, err := question(one, dns.TypeA).Pack()
				if err != nil {
					panic(err)
				}
				c.Write(data)
			}
		})
	}
	// The other client asks as stub resolvers do: what is lost, as the kernel's buffer was full,
	// is asked again.
	deadline := time.Now().Add(long)
	for i := 0; number < 200; i++ {
		if time.Now().After(deadline) {
			t.Errorf("only %d queries of the other client were answered, and %d were not", number, lost)
			break
		}
		q, want := question("web.default.svc.cluster.local", dns.TypeA), "NOERROR 10.96.0.1"
		if i%2 == 1 {
			q, want = question(fmt.Sprintf("www%d.example", i), dns.TypeA), "NOERROR 203.0.113.1"
		}
		r, err := ask(n.at, "udp", "127.0.0.3", q, time.Second)
		if err != nil {
			lost++
			continue
		}
		if got := words(r); got != want {
			t.Fatalf("%s is answered %s", q.Question[0].Name, got)
		}
		number++
	}
	close(stop)
	floods.Wait()
	n.state("the server has lived through it", func(s keeper.State) bool { return s.Serving && s.Problem == "" })
}

// TestConnections has one client open more connections than it may have, and say nothing. Another
// one is answered, and so is the first once it has closed some.
func TestConnections(t *testing.T) {
	n := run(t, settings(), service("web", 1))
	q := question("web.default.svc.cluster.local", dns.TypeA)
	// open opens a connection, on which one query is answered.
	var all []net.Conn
	open := func() error {
		c, err := (&net.Dialer{Timeout: long, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).Dial("tcp", n.at.String())
		if err != nil {
			return err
		}
		all = append(all, c)
		c.SetDeadline(time.Now().Add(long))
		co := &dns.Conn{Conn: c}
		if err := co.WriteMsg(q); err != nil {
			return err
		}
		r, err := co.ReadMsg()
		if err == nil && words(r) != "NOERROR 10.96.0.1" {
			err = errors.New(words(r))
		}
		return err
	}
	defer func() {
		for _, c := range all {
			c.Close()
		}
	}()
	for range maxConnectionsEach {
		n.must(open())
	}
	for range 3 {
		if open() == nil {
			t.Error("there is one connection more than there may be")
		}
	}
	n.want("tcp", q, "NOERROR 10.96.0.1")
	all[0].Close()
	await.NoError(n, long, "a connection is free", open)
}
