package answer_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/dns/records"
)

// table is every name of a cluster with all its records, written down one by one. What a
// question is answered is looked up in it; it shares nothing with the package.
type table struct {
	c       cluster
	domain  string
	records map[string]map[string]bool // "name TYPE" → records
	names   map[string]bool
	aliases map[string]string
}

func newTable(c cluster) *table {
	t := &table{c: c, domain: c.Settings.Domain, records: make(map[string]map[string]bool), names: make(map[string]bool), aliases: make(map[string]string)}
	t.put("dns-version", "TXT", `"1.1.0"`)
	for _, tree := range []string{"svc", "endpoints", "pod", "ns.dns", ""} {
		t.exists(tree)
	}
	for _, a := range c.Settings.Addresses {
		t.address("ns.dns", a)
	}
	namespaces := slices.Clone(c.Namespaces)
	for _, s := range c.Services {
		namespaces = append(namespaces, s.Namespace)
	}
	for _, n := range namespaces {
		t.exists(n + ".svc")
		t.exists(n + ".endpoints")
	}
	for _, s := range c.Services {
		name := s.Name + "." + s.Namespace
		switch {
		case s.External != "":
			t.exists(name + ".svc")
			t.aliases[t.full(name+".svc")] = s.External + "."
		case len(s.Addresses) > 0:
			for _, a := range s.Addresses {
				t.address(name+".svc", a)
				t.pointer(a, name+".svc")
				for _, p := range s.Ports {
					if p.Name != "" {
						t.address(fmt.Sprintf("_%s._%s.%s.svc", p.Name, p.Protocol, name), a)
					}
				}
			}
			for _, p := range s.Ports {
				t.port(name+".svc", p, name+".svc")
			}
			t.endpoints(s, name+".endpoints")
			t.endpoints(s, "_endpoints."+name+".svc")
			for _, e := range s.Endpoints {
				t.endpoint(s, e, host(e)+"."+name+".svc")
			}
		default:
			t.endpoints(s, name+".endpoints")
			t.endpoints(s, "_endpoints."+name+".svc")
			t.endpoints(s, name+".svc")
		}
	}
	// An endpoint's address that is a Service's own means that one alone.
	for _, s := range c.Services {
		for _, e := range s.Endpoints {
			if !t.owned(e.Address) && s.External == "" {
				t.pointer(e.Address, host(e)+"."+s.Name+"."+s.Namespace+".svc")
			}
		}
	}
	return t
}

func (t *table) owned(a netip.Addr) bool {
	for _, s := range t.c.Services {
		for _, own := range s.Addresses {
			if own == a {
				return true
			}
		}
	}
	return false
}

func (t *table) full(name string) string {
	if name == "" {
		return t.domain + "."
	}
	return name + "." + t.domain + "."
}

func (t *table) exists(name string) { t.names[t.full(name)] = true }

func (t *table) put(name, rrtype, record string) { t.putFull(t.full(name), rrtype, record) }

func (t *table) putFull(name, rrtype, record string) {
	t.names[name] = true
	key := name + " " + rrtype
	if t.records[key] == nil {
		t.records[key] = make(map[string]bool)
	}
	t.records[key][record] = true
}

func (t *table) address(name string, a netip.Addr) {
	if a.Is4() {
		t.put(name, "A", a.String())
	} else {
		t.put(name, "AAAA", a.String())
	}
}

func (t *table) pointer(a netip.Addr, name string) {
	of, err := dns.ReverseAddr(a.String())
	if err != nil {
		panic(err)
	}
	t.putFull(of, "PTR", t.full(name))
}

// port puts a port's records, at its own name and at that of what has it.
func (t *table) port(at string, p records.Port, target string) {
	record := fmt.Sprintf("%d %s", p.Port, t.full(target))
	t.put(at, "SRV", record)
	if p.Name != "" {
		t.put(fmt.Sprintf("_%s._%s.%s", p.Name, p.Protocol, at), "SRV", record)
	}
}

// endpoints puts the records of all endpoints of a Service at a name, and those of each below it.
func (t *table) endpoints(s *records.Service, at string) {
	for _, e := range s.Endpoints {
		t.endpoint(s, e, at)
		t.endpoint(s, e, host(e)+"."+at)
		for _, p := range e.Ports {
			if p.Name != "" {
				name := fmt.Sprintf("_%s._%s.%s", p.Name, p.Protocol, at)
				t.address(name, e.Address)
				t.port(at, p, host(e)+"."+s.Name+"."+s.Namespace+".svc")
			}
		}
	}
}

// endpoint puts the records of one at a name.
func (t *table) endpoint(s *records.Service, e records.Endpoint, at string) {
	t.address(at, e.Address)
	for _, p := range e.Ports {
		t.put(at, "SRV", fmt.Sprintf("%d %s", p.Port, t.full(host(e)+"."+s.Name+"."+s.Namespace+".svc")))
	}
}

func host(e records.Endpoint) string {
	if e.Hostname != "" {
		return e.Hostname
	}
	return strings.NewReplacer(".", "-", ":", "-").Replace(e.Address.String())
}

// look returns the rcode and the records of a name at the end of all aliases, or the name that
// others are to be asked for.
func (t *table) look(name, rrtype string) (rcode string, all map[string]bool, outside string) {
	name = strings.ToLower(name)
	for range 8 {
		if !t.names[name] && name != t.domain+"." && !strings.HasSuffix(name, "."+t.domain+".") {
			return "", nil, name
		}
		next, ok := t.aliases[name]
		if !ok {
			if all := t.records[name+" "+rrtype]; len(all) > 0 {
				return "NOERROR", all, ""
			}
			if t.names[name] {
				return "NOERROR", nil, ""
			}
			for other := range t.names {
				if strings.HasSuffix(other, "."+name) {
					return "NOERROR", nil, ""
				}
			}
			return "NXDOMAIN", nil, ""
		}
		name = next
	}
	return "SERVFAIL", nil, ""
}
