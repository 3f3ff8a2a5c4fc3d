package server

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// probeTime is how long a probe may be under way.
const probeTime = 2 * time.Second

// probes find servers that bring back what they are asked: each is asked for a name that nobody
// else can know, and if a query for that name comes here, it came through the server.
type probes struct {
	mu   sync.Mutex
	away map[string]*probe
}

// probe is one that is under way.
type probe struct{ back bool }

// comes is asked of each query, and reports whether it is a probe that came back.
func (p *probes) comes(q dns.Question) bool {
	if q.Qtype != dns.TypeHINFO {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.away[strings.ToLower(q.Name)]
	if one != nil {
		one.back = true
	}
	return one != nil
}

// loops sends a probe, and reports whether it came back, whether the server said anything, and
// whether that was more than that it cannot or will not say.
func (p *probes) loops(ctx context.Context, s server) (came, heard, helped bool) {
	name := strings.ToLower(rand.Text()) + "." + strings.ToLower(rand.Text()) + "."
	if s.domain != "" {
		name += s.domain + "."
	}
	one := &probe{}
	p.mu.Lock()
	if p.away == nil {
		p.away = map[string]*probe{}
	}
	p.away[name] = one
	p.mu.Unlock()
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeHINFO)
	heard, helped = answers(ctx, m, s)
	p.mu.Lock()
	came = one.back
	delete(p.away, name)
	p.mu.Unlock()
	if !helped && !came {
		// Some let no such question pass, and some ask others for it for long.
		m.SetQuestion(".", dns.TypeNS)
		again := false
		again, helped = answers(ctx, m, s)
		heard = heard || again
	}
	return came, heard, helped
}

// answers reports whether a server answers a question, whatever it says, and whether that helps. It is
// asked as for clients: with EDNS0, as some say nothing to that, and where it does not know that, without.
func answers(ctx context.Context, m *dns.Msg, s server) (heard, helped bool) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	m = m.Copy()
	m.SetEdns0(payload, false)
	ask := func(m *dns.Msg) (said *dns.Msg, err error) {
		said, _, err = (&dns.Client{Timeout: probeTime}).ExchangeContext(ctx, m, s.at.String())
		return said, err
	}
	said, err := ask(m)
	if err == nil && misunderstood(m, said) {
		said, err = ask(plain(m))
	}
	return err == nil, err == nil && helps(said)
}
