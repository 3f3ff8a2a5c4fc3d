package main

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

const (
	namesPort = 53
	// outsideDomain is that of the names that the cluster does not have.
	outsideDomain = "outside.example"
	// upstreamDelay is how long the server takes that answers for them.
	upstreamDelay = time.Millisecond
	// missingPrefix begins the names that nothing has.
	missingPrefix = "missing"
)

// upstreamAsked counts the queries for addresses that an upstream server got.
var upstreamAsked atomic.Uint64

// serveUpstream answers for names outside, after a while, and counts them. It returns once it
// does.
func serveUpstream(at netip.Addr) error {
	return serveNames(at, func(w dns.ResponseWriter, q *dns.Msg) {
		if t := q.Question[0].Qtype; t != dns.TypeA && t != dns.TypeAAAA {
			w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeNameError))
			return
		}
		upstreamAsked.Add(1)
		time.Sleep(upstreamDelay)
		w.WriteMsg(upstreamAnswer(q))
	})
}

// upstreamAnswer is what the upstream server answers.
func upstreamAnswer(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable = true
	name := q.Question[0].Name
	if !dns.IsSubDomain(outsideDomain+".", strings.ToLower(name)) {
		m.Rcode = dns.RcodeNameError
		return m
	}
	header := dns.RR_Header{Name: name, Rrtype: q.Question[0].Qtype, Class: dns.ClassINET, Ttl: 3600}
	if header.Rrtype == dns.TypeAAAA {
		m.Answer = []dns.RR{&dns.AAAA{Hdr: header, AAAA: net.ParseIP("2001:db8::1")}}
	} else {
		m.Answer = []dns.RR{&dns.A{Hdr: header, A: net.IPv4(203, 0, 113, 1)}}
	}
	return m
}

// serveConstant answers all queries the same, but for the names that nothing has. It returns
// once it does.
func serveConstant(at netip.Addr) error {
	address := net.IPv4(10, 96, 1, 1)
	return serveNames(at, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if name := q.Question[0].Name; strings.HasPrefix(name, missingPrefix) {
			m.Rcode = dns.RcodeNameError
		} else {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}, A: address}}
		}
		w.WriteMsg(m)
	})
}

func serveNames(at netip.Addr, handle dns.HandlerFunc) error {
	c, err := new(net.ListenConfig).ListenPacket(context.Background(), "udp4", netip.AddrPortFrom(at, namesPort).String())
	if err != nil {
		return err
	}
	go (&dns.Server{PacketConn: c, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if len(q.Question) == 1 {
			handle(w, q)
		}
	})}).ActivateAndServe()
	return nil
}
