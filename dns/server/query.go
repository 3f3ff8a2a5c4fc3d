package server

import (
	"context"
	"net/netip"
	"runtime/debug"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/metrics/vars"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/weftnet/weft/dns/answer"
	"github.com/weftnet/weft/dns/unanswered"
)

const (
	// maxOutside is how many queries for names of one domain wait for others to answer, and
	// maxOutsideEach how many of these of one client, but for what share lets in beyond. All further ones
	// get what is remembered, or SERVFAIL. Domains are those of Stubs, and all other names together are
	// one more.
	maxOutside, maxOutsideEach = 1024, 128
	// maxOutsideTogether is how many queries wait for names of all domains together. Beyond that each
	// domain may have fewOutside, of clients that have few there, as long as no more than mostOutside wait. So where
	// nobody answers for some domains, the others have room, and however many there are, package unanswered
	// has room for all that is read. Settings have 64 domains beside all other names.
	maxOutsideTogether, fewOutside = 2048, 12
	mostOutside                    = maxOutsideTogether + 65*fewOutside
	// outsideTime is how long others are asked for one query, at most; what has begun goes on for
	// five seconds. Resolvers wait for five, most often.
	outsideTime = 5 * time.Second
	// maxQuestions is how many questions others are asked for one query, which are a list of
	// domains that is searched.
	maxQuestions = 64
)

// packet is a query as it came.
type packet struct {
	data  []byte
	from  netip.AddrPort
	began time.Time
	// stream says that it came by TCP.
	stream bool
	// reply sends what is answered; it may be called later, and by another goroutine.
	reply func([]byte)
	// held is where it is held until nothing more becomes of it, and done, if it is set, is called
	// then.
	held unanswered.Held
	done func()
	// check, if it is set, is no query, but to be called in the place of one.
	check func()
}

func (p *packet) client() netip.Addr { return p.from.Addr().Unmap() }

// finish says that nothing more becomes of it.
func (p *packet) finish() {
	p.held.Free()
	if p.done != nil {
		p.done()
	}
}

// handle answers a packet. What others are to be asked for is done by later, so that a worker
// can go on.
func (s *Server) handle(p *packet, later func(func())) {
	if p.check != nil {
		p.check()
		return
	}
	waits := false
	defer func() {
		if !waits {
			p.finish()
		}
	}()
	p.held.Begin()
	var query, reply *dns.Msg
	var outside *answer.Outside
	defer s.survive(p, &query)
	query, reply = answer.Read(p.data)
	switch {
	case reply != nil:
		s.send(p, nil, reply, "")
		return
	case query == nil:
		return
	}
	if s.probes.comes(first(query)) {
		reply = refuse(query, dns.RcodeNameError)
	} else {
		reply, outside = s.answer(query, p)
	}
	switch {
	case outside == nil && reply != nil:
		s.send(p, query, reply, "weft")
	case outside == nil:
	default:
		at := s.enter(outside, p)
		if !at.has {
			// This waits for nobody, as a worker must not.
			if reply = s.ask(query, outside, p, &at); reply != nil {
				s.send(p, query, reply, "")
				return
			}
		}
		waits = true
		later(func() {
			defer p.finish()
			defer s.survive(p, &query)
			s.send(p, query, s.ask(query, outside, p, &at), "forward")
		})
	}
}

// first returns the question of a query, or none.
func first(query *dns.Msg) dns.Question {
	if len(query.Question) != 1 {
		return dns.Question{}
	}
	return query.Question[0]
}

// answer answers by the records, unless there are none: then what may be the cluster's is not
// known, and is never said not to be there.
func (s *Server) answer(query *dns.Msg, p *packet) (*dns.Msg, *answer.Outside) {
	if s.settings.Load() == nil && s.unknown(first(query).Name) {
		return refuse(query, dns.RcodeServerFailure), nil
	}
	s.applying.RLock()
	defer s.applying.RUnlock()
	return s.zone.Answer(query, answer.Asker{Address: p.client(), Stream: p.stream})
}

// place is among whom a query waits for others to say something, if it has a place there.
type place struct {
	among *share
	has   bool
}

// leave gives back what the query of a client has.
func (at *place) leave(client netip.Addr) {
	if at.has {
		at.among.give(client)
		at.has = false
	}
}

// enter takes a place for a query among those that wait for others to say something of the name
// that is to be asked for now, if there is one.
func (s *Server) enter(o *answer.Outside, p *packet) place {
	to := s.outside.Load().router.find(o.Name())
	has := to.waiting.take(p.client())
	if !has {
		// A server that brings queries back is a reason for so many.
		to.troubled.Store(true)
	}
	return place{to.waiting, has}
}

// ask has others answer. A query that has a place waits for them, and gives its place back. One that has none
// waits for nobody, and gets what is remembered. Where it comes to a name of another domain, as in a
// search, and finds a place there, ask returns nil: it goes on when it is called again, and waits then.
func (s *Server) ask(query *dns.Msg, o *answer.Outside, p *packet, at *place) (reply *dns.Msg) {
	waits := at.has
	defer func() {
		if reply != nil || waits {
			at.leave(p.client())
		}
	}()
	began := time.Now()
	for range maxQuestions {
		if at.among != s.outside.Load().waitingFor(o.Name()) {
			at.leave(p.client())
			if *at = s.enter(o, p); at.has && !waits {
				return nil
			}
		}
		ctx := s.labels
		if !at.has {
			ctx = context.WithValue(ctx, remembered{}, true)
		}
		var said *dns.Msg
		if time.Since(began) < outsideTime {
			said = s.outside.Load().ask(ctx, o.Question(), p.from, p.stream)
		}
		if said == nil && !at.has {
			s.metrics.dropped("outside")
		}
		if reply = o.Take(said); reply != nil {
			return reply
		}
	}
	return refuse(query, dns.RcodeServerFailure)
}

// refuse returns a reply that has no answer.
func refuse(query *dns.Msg, rcode int) *dns.Msg {
	r := new(dns.Msg)
	r.SetRcode(query, rcode)
	r.RecursionAvailable = true
	return r
}

// send sends a reply, and counts it.
func (s *Server) send(p *packet, query, reply *dns.Msg, plugin string) {
	data, err := reply.Pack()
	if err != nil && query != nil {
		// What others say need not be what can be said.
		q := first(query)
		s.log.Debug("an answer cannot be sent", "query", q.String(), "error", err)
		reply = refuse(query, dns.RcodeServerFailure)
		data, err = reply.Pack()
	}
	if err != nil {
		return
	}
	p.reply(data)
	if s.metrics == nil || query == nil {
		return
	}
	zone := "."
	if plugin == "weft" {
		zone = s.domain()
	}
	state := request.Request{Req: query, W: newRecorder(p.from, p.stream)}
	vars.Report(serverLabel, state, zone, "", dns.RcodeToString[reply.Rcode], plugin, len(data), p.began)
}

// survive has a panic cost one reply, and not all that is under way.
func (s *Server) survive(p *packet, query **dns.Msg) {
	bad := recover()
	if bad == nil {
		return
	}
	vars.Panic.Inc()
	s.log.Error("a query was not answered because of a defect of weft-dns-server", "panic", bad, "stack", string(debug.Stack()))
	if *query == nil {
		return
	}
	if data, err := refuse(*query, dns.RcodeServerFailure).Pack(); err == nil {
		p.reply(data)
	}
}

// serverLabel is what CoreDNS's metrics call the server.
const serverLabel = "dns://:53"

// withLabels returns a context in which CoreDNS's plug-ins find what their metrics call the
// server.
func withLabels() context.Context {
	return context.WithValue(context.Background(), dnsserver.Key{}, &dnsserver.Server{Addr: serverLabel})
}
