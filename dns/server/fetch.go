package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// maxFetched is how large an answer is that is fetched by TCP, in bytes, when all of its names
// are written out. A message has 64 KiB at most, but in it two bytes can stand for a name of 255,
// again and again, so that it takes tens of MiB in memory.
const maxFetched = 256 << 10

// errWrong is that what was said is no answer to the question.
var errWrong = errors.New("something else is answered than what was asked")

// errRefused is that a server cannot or will not help, and another one is asked.
var errRefused = errors.New("the answer is no help")

// fetch asks by TCP for what does not fit into a datagram. Only who asked by TCP itself gets that:
// for others it would be cut again. A question that has just failed so fails again, unless it had hardly any
// time because it waited for others.
func (r *router) fetch(ctx context.Context, of *route, by netip.AddrPort, q *dns.Msg, past *recorder) (*dns.Msg, error) {
	question := same(q) + "by TCP"
	if last, is := of.failures.find(question); is {
		return last.says(q)
	}
	ctx, cancel := context.WithTimeout(ctx, outsideTime)
	defer cancel()
	began := time.Now()
	leave, err := r.streams.enter(ctx, past.from.Addr().Unmap(), of.streams)
	if err != nil {
		return nil, err
	}
	defer leave()
	waited := time.Since(began)
	said, err := r.fetchNow(ctx, of, by, q)
	switch {
	case waited > outsideTime/2:
	case err != nil:
		of.failures.add(question, failure{err: err})
		r.told.add(q, of.targets, "by TCP: "+err.Error())
	case !helps(said):
		of.failures.add(question, failureOf(said))
		r.told.add(q, of.targets, "by TCP the last one answers "+dns.RcodeToString[failureOf(said).rcode])
	}
	return said, err
}

// fetchNow asks by TCP, who said by UDP that there is more first. It is done here
// and not by forward, so that a message is known before it is unpacked: that is done to one at a time,
// as nobody knows before what it takes.
func (r *router) fetchNow(ctx context.Context, of *route, by netip.AddrPort, q *dns.Msg) (*dns.Msg, error) {
	if edns := q.IsEdns0(); edns != nil && !edns.Do() {
		q = plain(q) // it says how long a datagram may be, and not all know it
	} else {
		q = q.Copy()
	}
	q.Id = dns.Id()
	failed := errNobody
	servers := fetchOrder(of.targets, by)
	for i, t := range servers {
		data, err := stream(ctx, t.at.String(), q, len(servers)-i)
		if err == nil && i < len(servers)-1 && refuses(data) {
			err = errRefused
		}
		if err != nil {
			failed = err
			continue
		}
		r.unpacking.Lock()
		defer r.unpacking.Unlock()
		return unpack(data, q)
	}
	return nil, failed
}

// fetchOrder returns servers in their order, one of them before the others, and those that are down
// behind.
func fetchOrder(servers []target, first netip.AddrPort) (all []target) {
	place := func(t target) int {
		switch {
		case t.at == first:
			return 0
		case !t.down():
			return 1
		}
		return 2
	}
	return slices.SortedStableFunc(slices.Values(servers), func(a, b target) int { return cmp.Compare(place(a), place(b)) })
}

// stream asks a server by TCP, for as long as is its share of what is left for that many servers.
func stream(ctx context.Context, server string, q *dns.Msg, servers int) (data []byte, err error) {
	until, _ := ctx.Deadline()
	until = time.Now().Add(time.Until(until) / time.Duration(servers))
	c, err := (&net.Dialer{Deadline: until}).DialContext(ctx, "tcp", server)
	if err != nil {
		return nil, err
	}
	conn := &dns.Conn{Conn: c}
	defer conn.Close()
	if err := conn.SetDeadline(until); err != nil {
		return nil, err
	}
	if err := conn.WriteMsg(q); err != nil {
		return nil, err
	}
	return conn.ReadMsgHeader(nil)
}

// refuses reports whether what is answered says that a server cannot or will not help.
func refuses(data []byte) bool {
	const rcode = 3 // the byte whose lower half it is (RFC 1035, section 4.1.1)
	return len(data) > rcode && !helps(&dns.Msg{MsgHdr: dns.MsgHdr{Rcode: int(data[rcode] & 0xf)}})
}

// unpack reads what is answered to a question.
func unpack(data []byte, q *dns.Msg) (*dns.Msg, error) {
	said := new(dns.Msg)
	if err := said.Unpack(data); err != nil {
		return nil, err
	}
	if !said.Response || said.Id != q.Id || len(said.Question) != 1 || said.Question[0].Qtype != q.Question[0].Qtype ||
		said.Question[0].Qclass != q.Question[0].Qclass || !strings.EqualFold(said.Question[0].Name, q.Question[0].Name) {
		return nil, errWrong
	}
	if size := said.Len(); size > maxFetched {
		return nil, fmt.Errorf("an answer has %d bytes, and %d are as many as are given on", size, maxFetched)
	}
	return said, nil
}
