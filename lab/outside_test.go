package lab

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// TestOutsideNames tells what there is outside the cluster, and how often it was asked for.
func TestOutsideNames(t *testing.T) {
	o := &outsideServer{addresses: []netip.Addr{Outside, Outside6}, asked: make(map[string]int)}
	for _, test := range []struct{ name, of, want string }{
		{"www.outside.example.", "A", "NOERROR www.outside.example. A 172.30.0.1"},
		{"WWW.outside.example.", "AAAA", "NOERROR WWW.outside.example. AAAA fd30::1"},
		{"outside.example.", "A", "NOERROR outside.example. A 172.30.0.1"},
		{"www.outside.example.", "MX", "NOERROR (outside.example.)"},
		{"alias.outside.example.", "A", "NOERROR alias.outside.example. CNAME www.outside.example., www.outside.example. A 172.30.0.1"},
		{"deep.www.outside.example.", "A", "NXDOMAIN (outside.example.)"},
		{"badoutside.example.", "A", "NXDOMAIN (.)"},
		{"web.default.svc.cluster.local.", "A", "NXDOMAIN (.)"},
		{"asked.outside.example.", "TXT", `NOERROR asked.outside.example. TXT "8"`},
		{"www.outside.example.asked.outside.example.", "TXT", `NOERROR www.outside.example.asked.outside.example. TXT "3"`},
		{"never.outside.example.asked.outside.example.", "TXT", `NOERROR never.outside.example.asked.outside.example. TXT "0"`},
	} {
		m := o.answer(new(dns.Msg).SetQuestion(test.name, dns.StringToType[test.of]))
		var records []string
		for _, rr := range m.Answer {
			fields := strings.Fields(rr.String())
			records = append(records, strings.Join([]string{fields[0], fields[3], strings.Join(fields[4:], " ")}, " "))
		}
		got := dns.RcodeToString[m.Rcode] + " " + strings.Join(records, ", ")
		for _, rr := range m.Ns {
			got += fmt.Sprintf("(%s)", rr.Header().Name)
		}
		if got != test.want {
			t.Errorf("%s %s: %s", test.name, test.of, got)
		}
	}
	for _, q := range []*dns.Msg{{}, new(dns.Msg).SetNotify("outside.example.")} {
		if m := o.answer(q); m.Rcode == dns.RcodeSuccess {
			t.Errorf("%v is answered: %v", q, m)
		}
	}
}

// What no datagram has room for is asked for over TCP.
func TestOutsideNamesOverTCP(t *testing.T) {
	o := &outsideServer{addresses: []netip.Addr{Outside}, asked: make(map[string]int)}
	q := new(dns.Msg).SetQuestion(outsideLarge, dns.TypeTXT).SetEdns0(1232, false)
	w := &written{network: "udp"}
	if o.ServeDNS(w, q); !w.answer.Truncated || w.answer.Len() > 1232 {
		t.Errorf("a datagram of %d bytes, truncated: %v", w.answer.Len(), w.answer.Truncated)
	}
	w.network = "tcp"
	if o.ServeDNS(w, q); w.answer.Truncated || len(w.answer.Answer) != 20 {
		t.Errorf("over TCP %d records, truncated: %v", len(w.answer.Answer), w.answer.Truncated)
	}
}

// written is where an answer goes, over some network.
type written struct {
	dns.ResponseWriter
	network string
	answer  *dns.Msg
}

func (w *written) RemoteAddr() net.Addr {
	if w.network == "udp" {
		return &net.UDPAddr{}
	}
	return &net.TCPAddr{}
}

func (w *written) WriteMsg(m *dns.Msg) error {
	w.answer = m.Copy()
	return nil
}
