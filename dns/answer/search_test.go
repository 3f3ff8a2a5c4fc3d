package answer_test

import (
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

// Whatever a pod looks for, it finds the same, whether its searches are answered at once or not,
// and never with more questions. What cannot be told from a search, as search.go says, is left
// out: names of the pod's own namespace, written with it, that are below a Service's.
func TestSearches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := cluster{Settings: drawSettings(t), Namespaces: drawNamespaces(t), Outside: make(map[string][]string)}
		c.Settings.Searches = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"corp", "a.corp", "com"}), 0, 2, rapid.ID).Draw(t, "searches")
		for range rapid.IntRange(0, 4).Draw(t, "services") {
			c.Services = append(c.Services, drawService(t))
		}
		client := records.Client{Address: netip.MustParseAddr("10.1.1.2"), Namespace: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace")}
		c.Clients = []records.Client{client}
		z := c.zone()
		labels := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "com", "www", "svc", "_http", "_tcp", "db-0"}), 1, 6).Draw(t, "asked")
		asked := strings.Join(labels, ".")
		if rapid.IntRange(0, 4).Draw(t, "in full") == 0 {
			asked += "." + rapid.SampledFrom([]string{"a", "b"}).Draw(t, "its namespace") + ".svc." + c.Settings.Domain
		}
		list := []string{client.Namespace + ".svc." + c.Settings.Domain, "svc." + c.Settings.Domain, c.Settings.Domain}
		list = append(list, c.Settings.Searches...)
		for _, d := range append(list[1:], "") {
			if front, own := strings.CutSuffix(strings.TrimSuffix(asked+"."+d, "."), "."+list[0]); own && strings.Contains(front, ".") {
				return
			}
		}
		for _, d := range append(slices.Clone(c.Settings.Searches), "") {
			name := dns.Fqdn(strings.TrimSuffix(asked+"."+d, "."))
			if rapid.Bool().Draw(t, "is outside") && !strings.HasSuffix(strings.TrimSuffix(asked, "."), c.Settings.Domain) {
				c.Outside[name] = []string{name + " 60 IN A 192.0.2." + string('1'+byte(len(c.Outside)))}
			}
		}
		// Who follows RFC 1535 goes on where there is a name, but nothing of the type.
		goesOn := rapid.Bool().Draw(t, "goes on where there is no data")
		qtype := rapid.SampledFrom([]uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV}).Draw(t, "type")
		alone, many := c.resolve(t, z, netip.MustParseAddr("10.1.1.9"), asked, list, qtype, goesOn)
		helped, few := c.resolve(t, z, client.Address, asked, list, qtype, goesOn)
		if !maps.Equal(alone, helped) {
			t.Fatalf("%s in %v: by itself it finds %v, and helped %v", asked, list, alone, helped)
		}
		if few > many {
			t.Fatalf("%s in %v: it asks %d times by itself, and helped %d times", asked, list, many, few)
		}
	})
}

// resolve looks for a name as a resolver library with a search list does. It returns what it
// finds, and how often it asks.
func (c cluster) resolve(t *rapid.T, z *answer.Zone, from netip.Addr, asked string, list []string, qtype uint16, goesOn bool) (all map[string]bool, questions int) {
	names := make([]string, 0, len(list)+1)
	for _, d := range list {
		names = append(names, asked+"."+d+".")
	}
	if strings.Count(asked, ".") < 5 {
		names = append(names, asked+".")
	} else {
		names = append([]string{asked + "."}, names...)
	}
	for _, name := range names {
		q := new(dns.Msg)
		q.SetQuestion(name, qtype)
		reply, outside := z.Answer(q, answer.Asker{Address: from, Stream: true})
		for reply == nil {
			reply = outside.Take(c.outside(t, outside.Question()))
		}
		questions++
		all = make(map[string]bool)
		for _, r := range reply.Answer {
			if r.Header().Rrtype == qtype {
				all[data(r)] = true
			}
		}
		if len(all) > 0 || reply.Rcode == dns.RcodeServerFailure || reply.Rcode == dns.RcodeSuccess && !goesOn {
			break
		}
	}
	return all, questions
}

// A pod's address is another's once it is gone, and then its searches are not the same.
func TestAddressesChangeHands(t *testing.T) {
	c := cluster{Settings: records.Settings{Domain: "cluster.local"}, Outside: map[string][]string{"github.com.": {"github.com. 60 IN A 192.0.2.1"}}}
	z := c.zone()
	address := netip.MustParseAddr("10.1.1.2")
	finds := func(namespace string) bool {
		q := new(dns.Msg)
		q.SetQuestion("github.com."+namespace+".svc.cluster.local.", dns.TypeA)
		reply, outside := z.Answer(q, answer.Asker{Address: address})
		for reply == nil {
			reply = outside.Take(c.outside(t, outside.Question()))
		}
		return len(reply.Answer) > 0
	}
	for _, of := range []string{"", "a", "b", "", "a"} {
		if of == "" {
			z.DeleteClient(netip.AddrFrom16(address.As16())) // the same, mapped to IPv6
		} else {
			z.PutClient(records.Client{Address: address, Namespace: of})
		}
		for _, namespace := range []string{"a", "b"} {
			if finds(namespace) != (namespace == of) {
				t.Errorf("as a pod of %q it finds something in %s: %t", of, namespace, finds(namespace))
			}
		}
	}
}
