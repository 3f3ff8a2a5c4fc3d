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

// loops sends a probe, and reports whether it came back.
func (p *probes) loops(ctx context.Context, s server) bool {
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
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	// Whatever it says, or that it says nothing, is of no interest.
	(&dns.Client{Timeout: probeTime}).ExchangeContext(ctx, m, s.at.String())
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.away, name)
	return one.back
}
