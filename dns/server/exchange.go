package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/coredns/coredns/plugin/forward"
	"github.com/miekg/dns"

	"github.com/weftnet/weft/dns/answer"
)

// target is one of the servers that are asked for names of a domain.
type target struct {
	at netip.AddrPort
	// forward asks this server alone, and once: who is asked next is decided here, as forward does
	// not know which answers help.
	forward *forward.Forward
}

// portFor is for how long questions leave from one port. Who would answer in a server's place has to guess
// the port besides the number (RFC 5452, section 9.2), and could look for one that stays. A socket of its own
// for each question would be half as much work again.
const portFor = 100 * time.Millisecond

// newTarget returns a server that can be asked, until stop. Questions to it that are under way at once leave
// from a port each, which the kernel draws.
func newTarget(at netip.AddrPort) (t target, err error) {
	h, err := setUp("forward", fmt.Sprintf("forward . %s {\nmax_connect_attempts 1\nmax_idle_conns 32\nexpire %[2]s\nmax_age %[2]s\n}\n", at, portFor), nil)
	if err != nil {
		return t, err
	}
	f, ok := h.(*forward.Forward)
	if !ok {
		return t, fmt.Errorf("forward is a %T", h)
	}
	return target{at, f}, f.OnStartup()
}

// maxFails is behind how many failed checks in a row forward counts a server for down.
const maxFails = 2

func (t target) down() bool { return t.forward.List()[0].Down(maxFails) }

// answered is what is said, and by which server.
type answered struct {
	said *dns.Msg
	by   netip.AddrPort
}

// exchange asks the servers of a domain by UDP, in their order and until one helps, as nodes' own
// resolvers do. Where none helps, those that said nothing are asked once more, as a datagram may have
// been lost. Where that does not help either it returns what was said last. Who is down is left out,
// unless all are: then one of them is asked, as checks may be what does not work.
func (r *route) exchange(ctx context.Context, q *dns.Msg, past *recorder) (last answered, err error) {
	until := time.Now().Add(outsideTime)
	up := slices.DeleteFunc(slices.Clone(r.targets), target.down)
	turns := up
	if len(up) == 0 {
		turns = []target{r.targets[rand.IntN(len(r.targets))]}
	}
	err = errSilent
	var passed []netip.AddrPort
	for i := 0; i < len(turns) && time.Now().Before(until); i++ {
		if i == len(up) {
			passed = nil // they may be behind those that are asked once more
		}
		t := turns[i]
		said, failed := t.ask(ctx, q, past)
		if failed != nil {
			err = failed
			r.pods.silent(t.at)
			if i < len(up) {
				turns = append(turns, t)
			}
			continue
		}
		if last = (answered{said, t.at}); helps(said) {
			r.pods.helped(t.at, passed)
			return last, nil
		}
		passed = append(passed, t.at)
	}
	if last.said != nil {
		return last, nil
	}
	return last, err
}

// ask asks a server by UDP, and returns what it says. Who does not know EDNS0 is asked without.
func (t target) ask(ctx context.Context, q *dns.Msg, past *recorder) (*dns.Msg, error) {
	said, err := t.once(ctx, q, past)
	if err != nil || !misunderstood(q, said) {
		return said, err
	}
	return t.once(ctx, plain(q), past)
}

// errSilent is that nothing was said.
var errSilent = errors.New("nothing is answered")

func (t target) once(ctx context.Context, q *dns.Msg, past *recorder) (*dns.Msg, error) {
	var from netip.AddrPort
	if past != nil {
		from = past.from
	}
	w := newRecorder(from, false)
	if _, err := t.forward.ServeDNS(ctx, w, q); err != nil {
		return nil, err
	}
	if w.said == nil {
		return nil, errSilent
	}
	return w.said, nil
}

// helps reports whether an answer says something of the name, be it that there is none. An answer that
// only says whom else to ask does not.
func helps(said *dns.Msg) bool {
	switch said.Rcode {
	case dns.RcodeFormatError, dns.RcodeServerFailure, dns.RcodeNotImplemented, dns.RcodeRefused:
		return false
	}
	return !answer.Refers(said)
}

// misunderstood reports whether what is said to a question may be said because of its EDNS0, which
// the client did not bring: that tries without itself (RFC 6891, sections 6.2.2 and 7).
func misunderstood(q, said *dns.Msg) bool {
	edns := q.IsEdns0()
	return edns != nil && !edns.Do() && (said.Rcode == dns.RcodeFormatError || said.Rcode == dns.RcodeNotImplemented)
}

// plain returns a question without its EDNS0.
func plain(q *dns.Msg) *dns.Msg {
	q = q.Copy()
	q.Extra = slices.DeleteFunc(q.Extra, func(r dns.RR) bool { return r.Header().Rrtype == dns.TypeOPT })
	return q
}

// same returns what questions have in common that are the same to others. In all else that is sent, the
// case of a name aside, queries do not differ.
func same(q *dns.Msg) string {
	ask, edns := q.Question[0], q.IsEdns0()
	return fmt.Sprintln(strings.ToLower(ask.Name), ask.Qtype, ask.Qclass, q.CheckingDisabled, edns != nil && edns.Do())
}
