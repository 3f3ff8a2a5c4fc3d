package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/api"
)

// OutsideNames is the name of the daemon that the lab's nodes ask for names outside the
// cluster, at Outside and Outside6. All that there is outside is OutsideZone.
const OutsideNames = switchName + "-dns"

// OutsideZone is the domain of the world outside. It and each name right below it, as
// www.outside.example, have the addresses of Outside, but for outsideAlias and outsideLarge.
const OutsideZone = "outside.example"

// What else is right below OutsideZone: a name that stands for www, one with texts that no
// datagram has room for, and one below which there is of each name, as a text, how many
// times it was asked for; its own text says that of all names together.
const (
	outsideAlias = "alias." + OutsideZone + "."
	outsideLarge = "large." + OutsideZone + "."
	outsideAsked = "asked." + OutsideZone + "."
)

// outsideTTL is for how long others may remember what is said, in seconds.
const outsideTTL = 5

// mostAsked bounds the names of which it is known how often they were asked for.
const mostAsked = 10_000

// outsideServer is the name server of the world outside.
type outsideServer struct {
	// addresses are what names have.
	addresses []netip.Addr

	mu    sync.Mutex // for what follows
	asked map[string]int
	all   int
}

// startOutsideNames starts the name server of the world outside.
func (l *Lab) startOutsideNames(ctx context.Context) error {
	args := []string{l.options.Weft, "lab", "names", "--ready-fd", fmt.Sprint(readyFD)}
	for _, a := range l.options.outside() {
		args = append(args, "--address", a.String())
	}
	_, err := launch{
		Weft: l.options.Weft, Record: l.dir.record(OutsideNames), Log: l.dir.log(OutsideNames), Ready: true,
		Within: l.inNetwork(switchName), Stage: stage{Args: args},
	}.start(ctx)
	return err
}

// outside are the addresses of the world outside.
func (o Options) outside() []netip.Addr {
	if o.IPv6 {
		return []netip.Addr{Outside, Outside6}
	}
	return []netip.Addr{Outside}
}

// ServeNames answers for names outside the cluster at some addresses, which are those of the
// names as well, until ctx ends. ready is called once it answers.
func ServeNames(ctx context.Context, addresses []netip.Addr, ready func()) error {
	o := &outsideServer{addresses: addresses, asked: make(map[string]int)}
	var servers []*dns.Server
	for _, a := range addresses {
		at := netip.AddrPortFrom(a, api.DNSPort).String()
		udp, err := net.ListenPacket("udp", at)
		if err != nil {
			return err
		}
		defer udp.Close()
		tcp, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		defer tcp.Close()
		servers = append(servers, &dns.Server{PacketConn: udp, Handler: o}, &dns.Server{Listener: tcp, Handler: o})
	}
	failed := make(chan error, len(servers))
	for _, s := range servers {
		go func() { failed <- s.ActivateAndServe() }()
	}
	ready()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// ServeDNS answers a question.
func (o *outsideServer) ServeDNS(w dns.ResponseWriter, question *dns.Msg) {
	answer := o.answer(question)
	size := dns.MaxMsgSize
	if w.RemoteAddr().Network() == "udp" {
		size = dns.MinMsgSize
		if opt := question.IsEdns0(); opt != nil {
			size = int(opt.UDPSize())
		}
	}
	answer.Truncate(size)
	w.WriteMsg(answer) // who asked may be gone
}

// answer returns what is answered to a question.
func (o *outsideServer) answer(question *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(question)
	m.Authoritative, m.RecursionAvailable = true, true
	if question.IsEdns0() != nil {
		m.SetEdns0(dns.DefaultMsgSize, false)
	}
	if question.Opcode != dns.OpcodeQuery {
		m.Rcode = dns.RcodeNotImplemented
		return m
	}
	if len(question.Question) != 1 {
		m.Rcode = dns.RcodeFormatError
		return m
	}
	q := question.Question[0]
	name := strings.ToLower(q.Name)
	if name == outsideAsked || strings.HasSuffix(name, "."+outsideAsked) {
		m.Answer = append(m.Answer, text(q.Name, 0, strconv.Itoa(o.times(strings.TrimSuffix(name, outsideAsked)))))
		return m
	}
	o.count(name)
	first, below := strings.CutSuffix(name, "."+OutsideZone+".")
	if name != OutsideZone+"." && (!below || strings.Contains(first, ".")) {
		m.Rcode = dns.RcodeNameError
	}
	host := q.Name
	switch {
	case m.Rcode != dns.RcodeSuccess:
	case name == outsideAlias:
		host = "www." + OutsideZone + "."
		m.Answer = append(m.Answer, &dns.CNAME{Hdr: header(q.Name, dns.TypeCNAME), Target: host})
		if q.Qtype != dns.TypeCNAME {
			m.Answer = append(m.Answer, o.records(host, q.Qtype)...)
		}
	case name == outsideLarge && q.Qtype == dns.TypeTXT:
		for i := range 20 {
			m.Answer = append(m.Answer, text(q.Name, outsideTTL, strings.Repeat(strconv.Itoa(i%10), 200)))
		}
	default:
		m.Answer = o.records(host, q.Qtype)
	}
	if len(m.Answer) == 0 {
		zone := "."
		if below || m.Rcode == dns.RcodeSuccess {
			zone = OutsideZone + "."
		}
		m.Ns = append(m.Ns, &dns.SOA{Hdr: header(zone, dns.TypeSOA), Ns: "ns." + OutsideZone + ".", Mbox: "admin." + OutsideZone + ".",
			Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: outsideTTL})
	}
	return m
}

// records are those of a type that the name of a machine has.
func (o *outsideServer) records(name string, of uint16) (all []dns.RR) {
	for _, a := range o.addresses {
		switch {
		case a.Is4() && of == dns.TypeA:
			all = append(all, &dns.A{Hdr: header(name, of), A: a.AsSlice()})
		case a.Is6() && of == dns.TypeAAAA:
			all = append(all, &dns.AAAA{Hdr: header(name, of), AAAA: a.AsSlice()})
		}
	}
	return all
}

func header(name string, of uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: of, Class: dns.ClassINET, Ttl: outsideTTL}
}

func text(name string, ttl uint32, content string) dns.RR {
	t := &dns.TXT{Hdr: header(name, dns.TypeTXT), Txt: []string{content}}
	t.Hdr.Ttl = ttl
	return t
}

func (o *outsideServer) count(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all++
	if _, known := o.asked[name]; known || len(o.asked) < mostAsked {
		o.asked[name]++
	}
}

// times says how often a name was asked for; of all together where it is empty.
func (o *outsideServer) times(name string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if name == "" {
		return o.all
	}
	return o.asked[name]
}

// Asked says how many times the name server of the world outside was asked for a name, of
// whatever type, since it started; empty stands for all names together.
func (l *Lab) Asked(ctx context.Context, name string) (times int, err error) {
	if name != "" {
		name = dns.Fqdn(strings.ToLower(name))
	}
	question := new(dns.Msg).SetQuestion(name+outsideAsked, dns.TypeTXT)
	var answer *dns.Msg
	err = l.inNetwork(switchName)(func() error {
		answer, _, err = (&dns.Client{Net: "tcp"}).ExchangeContext(ctx, question, netip.AddrPortFrom(Outside, api.DNSPort).String())
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("ask the name server of the world outside: %w", err)
	}
	for _, rr := range answer.Answer {
		if t, ok := rr.(*dns.TXT); ok && len(t.Txt) == 1 {
			return strconv.Atoi(t.Txt[0])
		}
	}
	return 0, errors.New("the name server of the world outside does not say how often it was asked")
}
