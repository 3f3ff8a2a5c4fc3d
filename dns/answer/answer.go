// Package answer answers questions about names, by what package records says that the names
// of a cluster stand for. It is a function of the question, of who asks, and of a Zone: it
// opens no socket, asks nobody and looks at no clock. Only the order of several records is left
// to chance, so that not all clients begin at the same endpoint.
//
// Names are those of Kubernetes' DNS specification 1.1.0, and what that leaves open is as
// CoreDNS has it:
//
//	web.shop.svc.cluster.local                   A, AAAA: the Service's own addresses; those of its
//	                                             endpoints where it is headless; CNAME: what it
//	                                             stands for, where that is outside
//	_http._tcp.web.shop.svc.cluster.local        SRV: the port of that name, and where it is
//	web.shop.svc.cluster.local                   SRV: all ports
//	db-0.db.shop.svc.cluster.local               A, AAAA, SRV: the endpoint with that hostname
//	10-1-0-2.db.shop.svc.cluster.local           A, AAAA, SRV: the endpoint without a hostname
//	1.0.96.10.in-addr.arpa                       PTR: the names of whose address that is
//	10-1-0-2.shop.pod.cluster.local              A, AAAA: that address, where Settings.Pods says so
//	dns-version.cluster.local                    TXT: 1.1.0
//
// Names with nothing below them do not exist (NXDOMAIN), nor does a headless Service without
// endpoints; what has a name, or names below it, but not what is asked for, has no data (RFC
// 2308, RFC 8020). A name that stands for another has that for every type (RFC 1034, section
// 3.6.2), also where CoreDNS makes something else of it. There are no wildcards.
//
// Of what OpenShift 3 had beside these there are the endpoints of any Service,
// web.shop.endpoints.cluster.local and _endpoints.web.shop.svc.cluster.local, whose SRV records
// have priority and weight 10. There, what was in front of a Service's name did not matter. That
// contradicts Kubernetes, where nodes.db.shop.svc is no name while no endpoint has that hostname,
// and its search lists: with a Service called "com" in their namespace, pods would find no
// name of that domain any more. So it is done where Settings.Prefixes asks for it alone, and never
// for a headless Service, of which each name is one endpoint's.
//
// Start reading at Zone.Answer; read.go has what is read of a packet, zone.go has what is found by, names.go what a name stands for,
// search.go whose searches are answered at once, and outside.go what is asked of others.
package answer

import (
	"net/netip"
	"slices"

	"github.com/miekg/dns"
)

// TTL is for how many seconds what is answered here may be kept, as with CoreDNS.
const TTL = 5

// Bounds of a reply, in bytes.
const (
	// maxDatagram is what no path cuts into pieces, whatever an asker would take (RFC 9715).
	maxDatagram = 1232
	maxStream   = dns.MaxMsgSize - 1
	// minRecord is the size of the smallest record that there are many of, an A.
	minRecord = 16
)

// maxAliases is how many names may stand for each other in a row.
const maxAliases = 8

// Asker is who asks, and how.
type Asker struct {
	// Address is where the question came from; 4-in-6 addresses mean the IPv4 ones.
	Address netip.Addr
	// Stream says that the reply may be of 64 KiB, as by TCP. Otherwise it is a datagram, and
	// what does not fit into the one that the question allows is left out (RFC 1035, section
	// 4.2.1; RFC 6891, section 6.2.5).
	Stream bool
}

// Answer returns the reply to a query, or what others are to be asked for it. Both are nil for
// what is no query, and gets no reply. A reply fits its way, and need only be packed. The
// query is not changed, and the reply shares nothing with it that may be.
//
// It costs no more than looking at each endpoint of one Service, most often far less, whatever
// is asked, and a reply has no more records than fit their way.
func (z *Zone) Answer(query *dns.Msg, from Asker) (reply *dns.Msg, outside *Outside) {
	if query.Response {
		return nil, nil
	}
	a := &answering{zone: z, query: query, from: from, settings: z.settings.Load(), size: maxStream}
	if a.settings == nil {
		a.settings = new(settings)
	}
	if rcode := a.read(); rcode != dns.RcodeSuccess {
		return a.refuse(rcode), nil
	}
	a.limit = a.size/minRecord + 1
	return a.resolve()
}

// answering is a query on its way to its reply.
type answering struct {
	zone     *Zone
	settings *settings
	query    *dns.Msg
	from     Asker
	// edns is that of the query, nil where it has none.
	edns *dns.OPT
	// size is how many bytes the reply may have, limit how many records are looked for.
	size, limit int
	// aliases are those that led to the name that is looked for now.
	aliases []dns.RR
}

// read finds out how the query is to be answered, or how it is refused.
func (a *answering) read() (rcode int) {
	for _, r := range a.query.Extra {
		edns, ok := r.(*dns.OPT)
		if !ok {
			continue
		}
		if a.edns != nil || edns.Hdr.Name != "." {
			a.edns = nil
			return dns.RcodeFormatError // RFC 6891, section 6.1.1
		}
		a.edns = edns
	}
	if !a.from.Stream {
		a.size = dns.MinMsgSize
		if a.edns != nil {
			a.size = min(max(int(a.edns.UDPSize()), dns.MinMsgSize), maxDatagram)
		}
	}
	switch {
	case a.edns != nil && a.edns.Version() != 0:
		return dns.RcodeBadVers
	case a.query.Opcode != dns.OpcodeQuery:
		return dns.RcodeNotImplemented
	case len(a.query.Question) != 1: // RFC 9619
		return dns.RcodeFormatError
	}
	q := a.query.Question[0]
	if _, ok := dns.IsDomainName(q.Name); !ok || !dns.IsFqdn(q.Name) {
		return dns.RcodeFormatError
	}
	switch q.Qtype {
	case dns.TypeNone:
		return dns.RcodeFormatError
	case dns.TypeAXFR, dns.TypeIXFR:
		return dns.RcodeRefused
	case dns.TypeANY:
	default:
		// All others of these are no types of records (RFC 6895, section 3.1).
		if q.Qtype == dns.TypeOPT || q.Qtype >= 128 && q.Qtype <= 255 {
			return dns.RcodeNotImplemented
		}
	}
	if q.Qclass != dns.ClassINET {
		return dns.RcodeRefused
	}
	return dns.RcodeSuccess
}

// resolve answers, from alias to alias.
func (a *answering) resolve() (*dns.Msg, *Outside) {
	q := a.query.Question[0]
	name := q.Name
	for range maxAliases {
		f, inside := a.find(name)
		if !inside {
			return nil, a.outside(name)
		}
		if f.missing && len(a.aliases) == 0 {
			found, inside, outside := a.search(name)
			if outside != nil {
				return nil, outside
			}
			if inside {
				f = found
			}
		}
		if f.alias == "" || q.Qtype == dns.TypeCNAME || q.Qtype == dns.TypeANY {
			return a.reply(f), nil
		}
		a.aliases = append(a.aliases, cname(f.name, f.alias))
		name = f.alias
	}
	return a.refuse(dns.RcodeServerFailure), nil // they lead around in a circle
}

// start returns a reply that says nothing yet.
func (a *answering) start() *dns.Msg {
	r := new(dns.Msg)
	r.SetReply(a.query)
	r.RecursionAvailable = true
	return r
}

// refuse returns a reply that says why there is no answer.
func (a *answering) refuse(rcode int) *dns.Msg {
	r := a.start()
	r.Rcode = rcode
	return a.fit(r)
}

// reply returns what was found.
func (a *answering) reply(f found) *dns.Msg {
	r := a.start()
	r.Authoritative = true
	if a.qtype() == dns.TypeANY && !f.missing && f.alias == "" {
		// There is no list of all types (RFC 8482, section 4.2).
		f.records, f.extra = []dns.RR{&dns.HINFO{Hdr: header(f.name, dns.TypeHINFO), Cpu: "RFC8482"}}, nil
	}
	r.Answer, r.Extra = append(a.aliases, f.records...), f.extra
	if f.alias != "" {
		r.Answer = append(r.Answer, cname(f.name, f.alias))
	} else if len(f.records) == 0 {
		r.Ns = []dns.RR{a.soa(f.zone)}
	}
	if f.missing {
		r.Rcode = dns.RcodeNameError // RFC 6604: that of the last name
	}
	return a.fit(r)
}

// fit completes a reply, and makes it as small as it has to be.
func (a *answering) fit(r *dns.Msg) *dns.Msg {
	var opt []dns.RR
	if a.edns != nil {
		o := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		o.SetUDPSize(maxDatagram)
		o.SetDo(a.edns.Do()) // RFC 3225, section 3
		opt = []dns.RR{o}
	}
	// What is only a help is no reason to ask again by TCP (RFC 2181, section 9).
	extra := r.Extra
	r.Extra = append(extra[:len(extra):len(extra)], opt...)
	r.Compress = true
	if len(extra) > 0 && r.Len() > a.size {
		r.Extra = opt
	}
	if r.Rcode == dns.RcodeSuccess && len(r.Answer) > 0 && (a.edns == nil || !a.edns.Do()) && r.Len() > a.size {
		// So are the servers of the name's zone, beside an answer. Who checks signatures wants what is signed.
		r.Ns = slices.DeleteFunc(r.Ns, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeNS })
	}
	r.Truncate(a.size)
	if a.from.Stream {
		r.Truncated = false // nobody could tell the rest
	}
	return r
}
