package answer_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/dns/answer"
	"github.com/weftnet/weft/dns/records"
)

// Whatever the cluster is, and however a Zone came to it, each question is answered with what
// the table of all names says.
func TestAnswers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		z := new(answer.Zone)
		services := make(map[records.Key]*records.Service)
		for range rapid.IntRange(1, 4).Draw(t, "steps") {
			settings := drawSettings(t)
			z.Set(&settings)
			namespaces := drawNamespaces(t)
			for _, name := range []string{"a", "b", "c"} {
				if z.DeleteNamespace(name); slices.Contains(namespaces, name) {
					z.PutNamespace(name)
				}
			}
			for range rapid.IntRange(0, 4).Draw(t, "changes") {
				s := drawService(t)
				if rapid.IntRange(0, 3).Draw(t, "gone") == 0 {
					z.Delete(s.Key)
					delete(services, s.Key)
					continue
				}
				z.Put(s)
				services[s.Key] = s
			}
			c := cluster{Settings: settings, Namespaces: namespaces, Services: slices.Collect(maps.Values(services))}
			all := newTable(c)
			names := slices.Sorted(maps.Keys(all.names))
			for range 20 {
				compare(t, z, all, drawName(t, names), rapid.SampledFrom([]uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeTXT}).Draw(t, "type"))
			}
		}
	})
}

func compare(t *rapid.T, z *answer.Zone, all *table, name string, qtype uint16) {
	q := new(dns.Msg)
	q.SetQuestion(name, qtype)
	reply, outside := z.Answer(q, answer.Asker{Stream: true})
	rcode, want, ask := all.look(name, dns.TypeToString[qtype])
	if ask != "" {
		if outside == nil || !strings.EqualFold(outside.Question().Question[0].Name, ask) {
			t.Fatalf("%s: others are to be asked for %s, and are not:\n%s", name, ask, reply)
		}
		return
	}
	if outside != nil {
		t.Fatalf("%s: others are asked for %s", name, outside.Question().Question[0].Name)
	}
	got := make(map[string]bool)
	for _, r := range reply.Answer {
		if r.Header().Rrtype == dns.TypeCNAME {
			continue
		}
		if text := data(r); got[text] {
			t.Fatalf("%s: %s is there twice:\n%s", name, text, reply)
		} else {
			got[text] = true
		}
	}
	if dns.RcodeToString[reply.Rcode] != rcode || !maps.Equal(got, want) {
		t.Fatalf("%s %s: it is %s %v, and not\n%s", name, dns.TypeToString[qtype], rcode, want, reply)
	}
	if rcode != "SERVFAIL" && (!reply.Authoritative || len(want) == 0 && len(reply.Ns) != 1) {
		t.Fatalf("%s: nobody says so:\n%s", name, reply)
	}
	if packet, err := reply.Pack(); err != nil || new(dns.Msg).Unpack(packet) != nil {
		t.Fatalf("%s: %v:\n%s", name, err, reply)
	}
}

// data is what a record says, but for what is decided nowhere.
func data(r dns.RR) string {
	switch r := r.(type) {
	case *dns.A:
		return r.A.String()
	case *dns.AAAA:
		return r.AAAA.String()
	case *dns.SRV:
		return fmt.Sprintf("%d %s", r.Port, r.Target)
	case *dns.PTR:
		return r.Ptr
	case *dns.TXT:
		return fmt.Sprintf("%q", r.Txt[0])
	}
	return r.String()
}

// drawName draws one of names, one near it, or any.
func drawName(t *rapid.T, names []string) string {
	name := rapid.SampledFrom(names).Draw(t, "name")
	labels := dns.SplitDomainName(name)
	i := rapid.IntRange(0, len(labels)-1).Draw(t, "label")
	any := rapid.SampledFrom([]string{"a", "b", "x", "_http", "_tcp", "_udp", "_endpoints", "svc", "endpoints", "*", "10-1-0-1", "web-0", "com", `a\.b`})
	switch rapid.IntRange(0, 5).Draw(t, "change") {
	case 0:
		labels = labels[i:]
	case 1:
		labels[i] = any.Draw(t, "another")
	case 2:
		labels = slices.Insert(labels, i, any.Draw(t, "more"))
	case 3:
		labels = slices.Delete(labels, i, i+1)
	case 4:
		labels[i] = strings.ToUpper(labels[i])
	}
	return dns.Fqdn(strings.Join(labels, "."))
}

func drawSettings(t *rapid.T) records.Settings {
	return records.Settings{
		Domain:    rapid.SampledFrom([]string{"cluster.local", "local", "a.b.c"}).Draw(t, "domain"),
		Addresses: []netip.Addr{netip.MustParseAddr("169.254.20.10")},
	}
}

func drawNamespaces(t *rapid.T) []string {
	return rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID).Draw(t, "namespaces")
}

func drawService(t *rapid.T) *records.Service {
	ports := func() (all []records.Port) {
		for range rapid.IntRange(0, 3).Draw(t, "ports") {
			all = append(all, records.Port{Name: rapid.SampledFrom([]string{"", "http", "a"}).Draw(t, "port name"),
				Protocol: rapid.SampledFrom([]string{records.TCP, records.UDP}).Draw(t, "protocol"), Port: rapid.Uint16Range(1, 3).Draw(t, "port")})
		}
		return all
	}
	s := &records.Service{Key: records.Key{Namespace: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace"), Name: rapid.SampledFrom([]string{"a", "b", "com"}).Draw(t, "service")}}
	addresses := []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")}
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		s.External = rapid.SampledFrom([]string{"www.example.com", "a.a.svc.cluster.local", "b.a.svc.local", "com.b.svc.a.b.c", "local"}).Draw(t, "external")
		return s
	case 1:
		s.Addresses = rapid.SliceOfNDistinct(rapid.SampledFrom(addresses), 1, 2, rapid.ID).Draw(t, "addresses")
		s.Ports = ports()
	}
	seen := make(map[string]bool)
	for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
		e := records.Endpoint{Address: rapid.SampledFrom(addresses).Draw(t, "address"), Hostname: rapid.SampledFrom([]string{"", "web-0", "web-1", "10-1-0-1"}).Draw(t, "hostname")}
		if at := e.Address.String() + e.Hostname; !seen[at] {
			seen[at] = true
			e.Ports = ports()
			s.Endpoints = append(s.Endpoints, e)
		}
	}
	return s
}
