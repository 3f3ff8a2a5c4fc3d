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
	// one more: where nobody answers for one, that takes no room from the others.
	maxOutside, maxOutsideEach = 1024, 128
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
		place := s.enter(outside, p)
		if place == nil {
			s.send(p, query, s.ask(query, outside, p, nil), "")
			return
		}
		waits = true
		later(func() {
			defer p.finish()
			defer s.survive(p, &query)
			s.send(p, query, s.ask(query, outside, p, place), "forward")
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

// enter takes a place for a query among those that wait for others to say something of the name
// that is to be asked for now, and returns among whom that is; nil if there is no place.
func (s *Server) enter(o *answer.Outside, p *packet) *share {
	waiting := s.outside.Load().waitingFor(o.Name())
	if !waiting.take(p.client()) {
		// A server that brings queries back is a reason for so many.
		s.busy.Store(true)
		return nil
	}
	return waiting
}

// ask has others answer. place is where the query has a place, which is given back; where that is nil,
// what is remembered is all there is.
func (s *Server) ask(query *dns.Msg, o *answer.Outside, p *packet, place *share) *dns.Msg {
	defer func() {
		if place != nil {
			place.give(p.client())
		}
	}()
	began := time.Now()
	for range maxQuestions {
		// Of the names that are searched one may be of another domain than the one before.
		if place != nil && place != s.outside.Load().waitingFor(o.Name()) {
			place.give(p.client())
			place = s.enter(o, p)
		}
		ctx := s.labels
		if place == nil {
			ctx = context.WithValue(ctx, remembered{}, true)
		}
		var said *dns.Msg
		if time.Since(began) < outsideTime {
			said = s.outside.Load().ask(ctx, o.Question(), p.from, p.stream)
		}
		if said == nil && place == nil {
			s.metrics.dropped("outside")
		}
		if reply := o.Take(said); reply != nil {
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
