package answer

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/dns/records"
)

// wanted is what of a Service is asked for.
type wanted struct {
	*service
	// ofEndpoints says that its endpoints are, also where it has addresses of its own.
	ofEndpoints bool
	// port and protocol are those of the ports that are; all where they are empty.
	port, protocol string
	// target is the name of the Service.
	target string
}

func (w *wanted) fits(p records.Port) bool {
	return w.port == "" || p.Name == w.port && p.Protocol == w.protocol
}

// fitsSome reports whether an endpoint has one of the ports.
func (w *wanted) fitsSome(e *records.Endpoint) bool {
	return w.port == "" || slices.ContainsFunc(e.Ports, w.fits)
}

// hasPort reports whether there is such a port: of the Service where that has addresses, of
// an endpoint otherwise.
func (w *wanted) hasPort(is func(records.Port) bool) bool {
	if !w.ofEndpoints && !w.Headless() {
		return slices.ContainsFunc(w.Ports, is)
	}
	var last []records.Port
	for i := range w.Endpoints {
		// Most endpoints share the ports of their slice.
		ports := w.Endpoints[i].Ports
		if len(ports) == 0 || len(ports) == len(last) && &ports[0] == &last[0] {
			continue
		}
		if last = ports; slices.ContainsFunc(ports, is) {
			return true
		}
	}
	return false
}

// whole answers for a Service.
func (a *answering) whole(f *found, w wanted) {
	f.missing = false
	if w.ofEndpoints || w.Headless() {
		a.endpoints(f, w, w.Endpoints, nil)
		return
	}
	if w.port != "" && !slices.ContainsFunc(w.Ports, w.fits) {
		f.missing = true
		return
	}
	switch a.qtype() {
	case dns.TypeA, dns.TypeAAAA:
		f.records = a.addressRecords(f.name, w.Addresses)
	case dns.TypeSRV:
		ports := newPorts(f.name, false)
		for _, p := range w.Ports {
			if w.fits(p) && len(ports.all) < a.limit {
				ports.add(w.target, p.Port)
			}
		}
		f.records = ports.records()
		for _, address := range w.Addresses {
			f.extra = append(f.extra, addressRecord(w.target, address))
		}
	}
}

// host answers for the endpoints that have a hostname, or the one whose address it means.
func (a *answering) host(f *found, w wanted, label string) {
	first, _ := slices.BinarySearchFunc(w.hosts, label, func(i uint32, label string) int { return strings.Compare(w.Endpoints[i].Hostname, label) })
	end := first
	for end < len(w.hosts) && w.Endpoints[w.hosts[end]].Hostname == label {
		end++
	}
	of := w.hosts[first:end]
	if address, ok := undashed(label); ok && dashed(address) == label {
		// The one without a hostname is the first with its address.
		i, found := slices.BinarySearchFunc(w.Endpoints, records.Endpoint{Address: address}, compareEndpoints)
		if found {
			of = append(slices.Clone(of), uint32(i))
		}
	}
	f.missing = true
	if len(of) > 0 {
		f.missing = false
		a.endpoints(f, w, w.Endpoints, of)
	}
}

// endpoints answers for those of all that are in of, or for all where that is nil. It begins at
// any of them, and ends when it has enough.
func (a *answering) endpoints(f *found, w wanted, all []records.Endpoint, of []uint32) {
	qtype := a.qtype()
	n := len(of)
	if of == nil {
		n = len(all)
	}
	if n == 0 || w.port != "" && !w.hasPort(w.fits) {
		f.missing = true
		return
	}
	if of == nil && (qtype == dns.TypeA || qtype == dns.TypeAAAA) {
		// IPv4 is in front of IPv6.
		split, _ := slices.BinarySearchFunc(all, netip.IPv6Unspecified(), func(e records.Endpoint, a netip.Addr) int { return e.Address.Compare(a) })
		if all = all[:split]; qtype == dns.TypeAAAA {
			all = w.Endpoints[split:]
		}
		if n = len(all); n == 0 {
			return
		}
	}
	at, start := func(i int) *records.Endpoint {
		if of != nil {
			return &all[of[i]]
		}
		return &all[i]
	}, rand.IntN(n)
	switch qtype {
	case dns.TypeA, dns.TypeAAAA:
		seen := make(map[netip.Addr]bool, min(n, a.limit))
		var addresses []netip.Addr
		for i := range n {
			e := at((start + i) % n)
			if e.Address.Is4() == (qtype == dns.TypeA) && !seen[e.Address] && w.fitsSome(e) {
				seen[e.Address] = true
				if addresses = append(addresses, e.Address); len(addresses) == a.limit {
					break
				}
			}
		}
		f.records = addressRecordsOf(f.name, addresses)
	case dns.TypeSRV:
		type help struct {
			target  string
			address netip.Addr
		}
		ports, seen := newPorts(f.name, w.ofEndpoints), make(map[help]bool)
		for i := range n {
			e := at((start + i) % n)
			target, fits := "", false
			for _, p := range e.Ports {
				if w.fits(p) && len(ports.all) < a.limit {
					if !fits {
						target, fits = hostname(*e)+"."+w.target, true
					}
					ports.add(target, p.Port)
				}
			}
			if one := (help{target, e.Address}); fits && len(f.extra) < a.limit && !seen[one] {
				seen[one] = true
				f.extra = append(f.extra, addressRecord(target, e.Address))
			}
			if len(ports.all) >= a.limit {
				break
			}
		}
		f.records = ports.records()
	}
}

// at returns the endpoints with an address.
func (s *service) at(address netip.Addr) []records.Endpoint {
	first, _ := slices.BinarySearchFunc(s.Endpoints, address, func(e records.Endpoint, a netip.Addr) int { return e.Address.Compare(a) })
	end := first
	for end < len(s.Endpoints) && s.Endpoints[end].Address == address {
		end++
	}
	return s.Endpoints[first:end]
}

// hostname returns the label of an endpoint below its Service.
func hostname(e records.Endpoint) string {
	if e.Hostname != "" {
		return e.Hostname
	}
	return dashed(e.Address)
}

// dashed returns an address as a label, as CoreDNS writes it.
func dashed(a netip.Addr) string {
	if a.Is4() {
		return strings.ReplaceAll(a.String(), ".", "-")
	}
	label := strings.ReplaceAll(a.String(), ":", "-")
	// A label neither begins nor ends with a dash (RFC 1123, section 2.1).
	if label[0] == '-' {
		label = "0" + label
	}
	if label[len(label)-1] == '-' {
		label += "0"
	}
	return label
}

// undashed returns the address that a label means.
func undashed(label string) (a netip.Addr, ok bool) {
	by := ":"
	if strings.Count(label, "-") == 3 && !strings.Contains(label, "--") {
		by = "."
	}
	a, err := netip.ParseAddr(strings.ReplaceAll(label, "-", by))
	return a, err == nil && !a.Is4In6() && a.Zone() == ""
}
