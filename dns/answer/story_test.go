package answer_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/dns/answer"
	"github.com/weftnet/weft/dns/records"
	"github.com/weftnet/weft/internal/golden"
)

// cluster is what a story is about.
type cluster struct {
	Settings   records.Settings   `json:"settings"`
	Namespaces []string           `json:"namespaces"`
	Services   []*records.Service `json:"services"`
	Clients    []records.Client   `json:"clients"`
	// Outside is what others say: of each name its records, or an rcode, or "nothing". Behind
	// "authority " are those of that section, for any type. There are no other names.
	Outside map[string][]string `json:"outside"`
}

// TestStories asks what each part of a story says, one question in a line as dig has it:
// a name, a type, and perhaps @ with the address from which it is asked, and +options. A part
// whose name begins with "cluster" says what there is from then on.
func TestStories(t *testing.T) {
	golden.Archives(t, "testdata/*.txtar", func(t *testing.T, files []txtar.File) []txtar.File {
		var c cluster
		var z *answer.Zone
		return golden.Answer(files, func(name, in string) string {
			if strings.HasPrefix(name, "cluster") {
				c = cluster{}
				if err := yaml.UnmarshalStrict([]byte(in), &c); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				z = c.zone()
				return ""
			}
			var out strings.Builder
			for l := range strings.Lines(in) {
				query, from := question(t, l)
				fmt.Fprintf(&out, "%s", strings.Join(c.ask(t, z, query, from), "\n"))
				out.WriteString("\n")
			}
			return out.String()
		})
	})
}

func (c cluster) zone() *answer.Zone {
	z := new(answer.Zone)
	z.Set(&c.Settings)
	for _, name := range c.Namespaces {
		z.PutNamespace(name)
	}
	for _, s := range c.Services {
		z.Put(s)
	}
	for _, client := range c.Clients {
		z.PutClient(client)
	}
	return z
}

// question reads a line.
func question(t *testing.T, line string) (*dns.Msg, answer.Asker) {
	words := strings.Fields(line)
	q, from := new(dns.Msg), answer.Asker{Address: netip.MustParseAddr("192.0.2.99")}
	q.Id, q.RecursionDesired = 7, true
	q.Question = []dns.Question{{Name: dns.Fqdn(words[0]), Qtype: dns.TypeA, Qclass: dns.ClassINET}}
	edns := func() *dns.OPT {
		if q.IsEdns0() == nil {
			q.SetEdns0(dns.MinMsgSize, false)
		}
		return q.IsEdns0()
	}
	number := func(text string) uint16 {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		return uint16(n)
	}
	for _, w := range words[1:] {
		option, value, _ := strings.Cut(w, "=")
		switch {
		case w[0] == '@':
			from.Address = netip.MustParseAddr(w[1:])
		case option == "+tcp":
			from.Stream = true
		case option == "+norec":
			q.RecursionDesired = false
		case option == "+cd":
			q.CheckingDisabled = true
		case option == "+ad":
			q.AuthenticatedData = true
		case option == "+bufsize":
			edns().SetUDPSize(number(value))
		case option == "+do":
			edns().SetDo()
		case option == "+edns":
			edns().SetVersion(uint8(number(value)))
		case option == "+opcode":
			q.Opcode = int(number(value))
		case option == "+class":
			q.Question[0].Qclass = number(value)
		case option == "+questions":
			q.Question = slices.Repeat(q.Question, int(number(value)))
		case option == "+opts":
			for range number(value) {
				q.Extra = append(q.Extra, &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}})
			}
		case option == "+response":
			q.Response = true
		case option == "+type":
			q.Question[0].Qtype = number(value)
		default:
			qtype, ok := dns.StringToType[w]
			if !ok {
				t.Fatalf("%s: what is %s?", line, w)
			}
			q.Question[0].Qtype = qtype
		}
	}
	return q, from
}

// ask returns what is answered, and what is asked of others for that.
func (c cluster) ask(t *testing.T, z *answer.Zone, query *dns.Msg, from answer.Asker) (lines []string) {
	before := query.String()
	if len(query.Question) > 0 {
		q := query.Question[0]
		lines = append(lines, fmt.Sprintf("%s %s?", q.Name, dns.Type(q.Qtype)))
	}
	reply, outside := z.Answer(query, from)
	for reply == nil && outside != nil {
		q := outside.Question()
		lines = append(lines, "  asks outside for "+q.Question[0].Name+flags(q))
		reply = outside.Take(c.outside(t, q))
	}
	if query.String() != before {
		t.Errorf("%s\nis another query after it is answered:\n%s", before, query)
	}
	if reply == nil {
		return append(lines, "  no reply")
	}
	packet, err := reply.Pack()
	most := 65535
	if !from.Stream {
		most = 1232
	}
	if err != nil || len(packet) > most {
		t.Errorf("%s\nis answered in %d bytes, %v:\n%s", query, len(packet), err, reply)
	}
	rcode := dns.RcodeToString[reply.Rcode]
	if reply.Rcode == dns.RcodeBadVers {
		rcode = "BADVERS" // RFC 6891; the same number means something else elsewhere
	}
	lines = append(lines, "  "+rcode+flags(reply))
	for _, section := range [][]dns.RR{reply.Answer, reply.Ns, reply.Extra} {
		lines = append(lines, texts(section)...)
	}
	return lines
}

// outside is what others say to a question.
func (c cluster) outside(t fataler, q *dns.Msg) *dns.Msg {
	said := new(dns.Msg)
	said.SetReply(q)
	said.AuthenticatedData = true
	all, exists := c.Outside[strings.ToLower(q.Question[0].Name)]
	if !exists {
		said.Rcode = dns.RcodeNameError
	}
	for _, text := range all {
		if text == "nothing" {
			return nil
		}
		if rcode, ok := dns.StringToRcode[text]; ok {
			said.Rcode = rcode
			continue
		}
		text, authority := strings.CutPrefix(text, "authority ")
		r, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		if authority {
			said.Ns = append(said.Ns, r)
			continue
		}
		if r.Header().Rrtype == q.Question[0].Qtype {
			said.Answer = append(said.Answer, r)
		}
	}
	return said
}

func flags(m *dns.Msg) (out string) {
	for _, f := range []struct {
		is   bool
		name string
	}{{m.Authoritative, "aa"}, {m.Truncated, "tc"}, {m.RecursionDesired, "rd"}, {m.RecursionAvailable, "ra"}, {m.AuthenticatedData, "ad"}, {m.CheckingDisabled, "cd"}} {
		if f.is {
			out += " " + f.name
		}
	}
	return out
}

// texts are records, those behind the aliases in order, as their own order is left to chance.
func texts(section []dns.RR) (out []string) {
	aliases := 0
	for _, r := range section {
		if o, ok := r.(*dns.OPT); ok {
			out = append(out, fmt.Sprintf("  ; EDNS %d, %d bytes, DO %t", o.Version(), o.UDPSize(), o.Do()))
			continue
		}
		if r.Header().Rrtype == dns.TypeCNAME {
			aliases++
		}
		out = append(out, "  "+strings.ReplaceAll(r.String(), "\t", " "))
	}
	slices.Sort(out[aliases:])
	return out
}

// fataler is a test of either kind.
type fataler interface{ Fatal(...any) }
