package answer

import (
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// Outside is a query for whose answer others have to be asked. Take its Question to them, and
// what they say to Take, until that returns the reply. It is for one goroutine.
type Outside struct {
	answering *answering
	// names are those to be asked for, one after the other where they are searched.
	names    []string
	searched bool
}

func (a *answering) outside(name string) *Outside {
	return &Outside{answering: a, names: []string{name}}
}

// Name is the name that others are to be asked for now, as in Question.
func (o *Outside) Name() string { return o.names[0] }

// Question is what others are to be asked now: one question, whose name is fully qualified and
// as the asker wrote it. The message has no id. CD, AD and DO are as the asker has them; it
// has EDNS0 where DO is set alone. RD is always set, whatever the asker has: what is said without
// it is no answer, but where to ask, and nobody may have that be remembered for others.
func (o *Outside) Question() *dns.Msg {
	query := o.answering.query
	q := new(dns.Msg)
	q.RecursionDesired, q.CheckingDisabled, q.AuthenticatedData = true, query.CheckingDisabled, query.AuthenticatedData
	q.Question = []dns.Question{{Name: o.names[0], Qtype: query.Question[0].Qtype, Qclass: query.Question[0].Qclass}}
	if edns := o.answering.edns; edns != nil && edns.Do() {
		q.SetEdns0(maxDatagram, true)
	}
	return q
}

// Take takes what others said to Question, nil where nobody did. It returns the reply to the
// query, or nil where Question is another one now. said is not changed, and the reply shares
// nothing with it: packing a record writes into it, and what others said may be kept for more.
func (o *Outside) Take(said *dns.Msg) (reply *dns.Msg) {
	a := o.answering
	if said == nil || Refers(said) {
		return a.refuse(dns.RcodeServerFailure)
	}
	if o.searched && said.Rcode == dns.RcodeNameError {
		if o.names = o.names[1:]; len(o.names) > 0 {
			return nil
		}
		// Nothing is found anywhere, nor is there the name asked.
		return a.reply(found{name: a.query.Question[0].Name, zone: a.settings.suffix[1:], missing: true})
	}
	led := a.aliases
	if o.searched {
		led = append(led, cname(a.query.Question[0].Name, o.names[0]))
	}
	if said.Rcode != dns.RcodeSuccess && said.Rcode != dns.RcodeNameError {
		if len(led) > 0 || said.Rcode > 15 {
			return a.refuse(dns.RcodeServerFailure) // what they say is not about the name asked
		}
		return a.refuse(said.Rcode)
	}
	r := a.start()
	r.Rcode, r.Truncated = said.Rcode, said.Truncated
	// What leads there is ours, and signed by nobody. AD is for who knows it (RFC 6840, section 5.8).
	wanted := a.query.AuthenticatedData || a.edns != nil && a.edns.Do()
	r.Authoritative, r.AuthenticatedData = len(led) > 0, said.AuthenticatedData && wanted && len(led) == 0
	all := copies(said.Answer)
	mix(all)
	r.Answer, r.Ns, r.Extra = append(led, all...), copies(said.Ns), copies(said.Extra)
	return a.fit(r)
}

// Inconclusive reports whether what others said has neither an answer nor the SOA with which that
// there is none would be for a while (RFC 2308, section 5). It must not be remembered.
func Inconclusive(said *dns.Msg) bool {
	return said.Rcode == dns.RcodeSuccess && len(said.Answer) == 0 && !has(said.Ns, dns.TypeSOA)
}

// Refers reports whether others said only whom else to ask (RFC 2308, section 2.2). Who asks here
// would take that for no data, so it is a failure of who was asked. Of what is cut nobody knows what is missing.
func Refers(said *dns.Msg) bool {
	return Inconclusive(said) && !said.Truncated && !said.Authoritative && has(said.Ns, dns.TypeNS)
}

func has(section []dns.RR, rrtype uint16) bool {
	return slices.ContainsFunc(section, func(r dns.RR) bool { return r.Header().Rrtype == rrtype })
}

// copies returns copies of records, but for EDNS0 and a signature, which are of one way alone.
func copies(of []dns.RR) (all []dns.RR) {
	for _, r := range of {
		if t := r.Header().Rrtype; t != dns.TypeOPT && t != dns.TypeTSIG {
			all = append(all, dns.Copy(r))
		}
	}
	return all
}

// mix leaves the order of the addresses of each name to chance. What others said may be kept for long,
// and clients that take the first address would all have the same one.
func mix(all []dns.RR) {
	for len(all) > 0 {
		n, of := 1, all[0].Header()
		for n < len(all) && all[n].Header().Rrtype == of.Rrtype && strings.EqualFold(all[n].Header().Name, of.Name) {
			n++
		}
		if some := all[:n]; n > 1 && (of.Rrtype == dns.TypeA || of.Rrtype == dns.TypeAAAA) {
			rand.Shuffle(n, func(i, j int) { some[i], some[j] = some[j], some[i] })
		}
		all = all[n:]
	}
}
