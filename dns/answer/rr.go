package answer

import (
	"net"
	"net/netip"

	"github.com/miekg/dns"
)

func header(name string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: TTL}
}

// addressRecords returns those of addresses that are of the family asked for, if one is.
func (a *answering) addressRecords(name string, addresses []netip.Addr) []dns.RR {
	var of []netip.Addr
	for _, address := range addresses {
		switch qtype := a.qtype(); {
		case len(of) == a.limit:
		case qtype == dns.TypeA && address.Is4() || qtype == dns.TypeAAAA && address.Is6():
			of = append(of, address)
		}
	}
	return addressRecordsOf(name, of)
}

// addressRecordsOf returns records of addresses of one family. There may be thousands, so they
// are made at once.
func addressRecordsOf(name string, addresses []netip.Addr) []dns.RR {
	if len(addresses) == 0 {
		return nil
	}
	all, bytes := make([]dns.RR, len(addresses)), make([]byte, 0, len(addresses)*addresses[0].BitLen()/8)
	ip := func(a netip.Addr) net.IP {
		n := len(bytes)
		bytes = append(bytes, a.AsSlice()...)
		return bytes[n:len(bytes):len(bytes)]
	}
	if addresses[0].Is4() {
		of := make([]dns.A, len(addresses))
		for i, a := range addresses {
			of[i] = dns.A{Hdr: header(name, dns.TypeA), A: ip(a)}
			all[i] = &of[i]
		}
		return all
	}
	of := make([]dns.AAAA, len(addresses))
	for i, a := range addresses {
		of[i] = dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: ip(a)}
		all[i] = &of[i]
	}
	return all
}

func addressRecord(name string, a netip.Addr) dns.RR {
	return addressRecordsOf(name, []netip.Addr{a})[0]
}

func cname(name, target string) dns.RR {
	return &dns.CNAME{Hdr: header(name, dns.TypeCNAME), Target: target}
}

// soa returns what says who answers for a zone, and that for how long what is not there may be
// remembered. Nobody copies the zone, so its serial means nothing.
func (a *answering) soa(zone string) dns.RR {
	return &dns.SOA{Hdr: header(zone, dns.TypeSOA), Ns: nameserver + a.settings.suffix, Mbox: "hostmaster" + a.settings.suffix,
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: TTL}
}

// ports collects SRV records, each once.
type ports struct {
	name             string
	priority, weight uint16
	all              []portAt
	seen             map[portAt]bool
}

type portAt struct {
	target string
	port   uint16
}

// newPorts is for records of a name, or of one that OpenShift 3 had.
func newPorts(name string, openshift bool) *ports {
	p := &ports{name: name, seen: make(map[portAt]bool)}
	if openshift {
		p.priority, p.weight = 10, 10
	}
	return p
}

func (p *ports) add(target string, port uint16) {
	if one := (portAt{target, port}); !p.seen[one] {
		p.seen[one] = true
		p.all = append(p.all, one)
	}
}

// records returns what was added. All together weigh about 100, as with CoreDNS.
func (p *ports) records() []dns.RR {
	if len(p.all) == 0 {
		return nil
	}
	weight := p.weight
	if weight == 0 {
		weight = uint16(max(1, 100/len(p.all)))
	}
	out := make([]dns.RR, len(p.all))
	of := make([]dns.SRV, len(p.all))
	for i, one := range p.all {
		of[i] = dns.SRV{Hdr: header(p.name, dns.TypeSRV), Priority: p.priority, Weight: weight, Port: one.port, Target: one.target}
		out[i] = &of[i]
	}
	return out
}
