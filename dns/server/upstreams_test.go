package server

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/dns/records"
)

func ports(all ...string) (at []netip.AddrPort) {
	for _, a := range all {
		at = append(at, netip.MustParseAddrPort(a))
	}
	return at
}

// TestChoose chooses who is asked.
func TestChoose(t *testing.T) {
	own := ports("10.96.0.10:53", "[fd00::10]:53")
	for name, c := range map[string]struct {
		settings *records.Settings
		node     []netip.AddrPort
		loops    map[server]bool
		rest     []netip.AddrPort
		stubs    string
		problems []string
	}{
		"nothing is known":  {problems: []string{"nobody is there to be asked for names outside"}},
		"nobody on purpose": {node: []netip.AddrPort{}},
		"the node's":        {node: ports("192.0.2.1:53", "[2001:db8::1]:53", "192.0.2.1:53"), rest: ports("192.0.2.1:53", "[2001:db8::1]:53")},
		"the settings'": {settings: &records.Settings{Upstreams: ports("198.51.100.1:5353")}, node: ports("192.0.2.1:53"),
			rest: ports("198.51.100.1:5353")},
		"this server": {node: ports("10.96.0.10:53", "[::ffff:10.96.0.10]:53", "192.0.2.1:53"), rest: ports("192.0.2.1:53"),
			problems: []string{"10.96.0.10:53 of /etc/resolv.conf is not asked: it is this name server itself", "10.96.0.10:53 of"}},
		"this address at another port": {node: ports("10.96.0.10:54"), rest: ports("10.96.0.10:54")},
		"no address means the node":    {node: ports("0.0.0.0:53", "[::]:53"), rest: ports("127.0.0.1:53", "[::1]:53")},
		"an address of a link":         {node: ports("[fe80::1%eth0]:53"), problems: []string{"an address of one link alone", "nobody"}},
		"one that brings queries back": {settings: &records.Settings{Upstreams: ports("127.0.0.53:53", "192.0.2.1:53")}, loops: map[server]bool{{at: ports("127.0.0.53:53")[0]}: true},
			rest: ports("192.0.2.1:53"), problems: []string{"127.0.0.53:53 of the upstreams is not asked: what it is asked comes back"}},
		"one that brings back what it is asked for a domain": {settings: &records.Settings{Upstreams: ports("192.0.2.1:53"), Stubs: []records.Stub{{Domain: "example", Servers: ports("192.0.2.1:53", "192.0.2.2:53")}}},
			loops: map[server]bool{{ports("192.0.2.1:53")[0], "example"}: true},
			rest:  ports("192.0.2.1:53"), stubs: "example 192.0.2.2:53", problems: []string{"192.0.2.1:53 of domain example is not asked: what it is asked comes back"}},
		"stubs": {settings: &records.Settings{Upstreams: ports("192.0.2.1:53"), Stubs: []records.Stub{
			{Domain: "example", Servers: ports("192.0.2.2:53")}, {Domain: "corp.example", Servers: ports("192.0.2.3:53", "10.96.0.10:53")}, {Domain: "none", Servers: nil}}},
			rest: ports("192.0.2.1:53"), stubs: "corp.example 192.0.2.3:53, example 192.0.2.2:53, none",
			problems: []string{"10.96.0.10:53 of domain corp.example is not asked", "nobody is there to be asked for names of domain none"}},
	} {
		w, problems := choose(c.settings, "/etc/resolv.conf", c.node, own, func(s server) bool { return c.loops[s] })
		if !slices.Equal(w.rest, c.rest) {
			t.Errorf("%s: %v are asked", name, w.rest)
		}
		var stubs []string
		for _, s := range w.stubs {
			words := s.Domain
			for _, a := range s.Servers {
				words += " " + a.String()
			}
			stubs = append(stubs, words)
		}
		if got := strings.Join(stubs, ", "); got != c.stubs {
			t.Errorf("%s: stubs are %s", name, got)
		}
		if !slices.EqualFunc(problems, c.problems, strings.HasPrefix) && !slices.EqualFunc(problems, c.problems, strings.Contains) {
			t.Errorf("%s: problems are %q", name, problems)
		}
	}
	var many []netip.AddrPort
	for n := range 20 {
		many = append(many, netip.AddrPortFrom(pod(n), 53))
	}
	if w, problems := choose(nil, "", many, nil, func(server) bool { return false }); len(w.rest) != maxServers || len(problems) != 5 {
		t.Errorf("%d are asked, and problems are %q", len(w.rest), problems)
	}
}

// FuzzResolv reads any resolv.conf.
func FuzzResolv(f *testing.F) {
	f.Add([]byte("# the node's\nsearch example.org\nnameserver 192.0.2.1\n  nameserver\t2001:db8::1 # second\nnameserver fe80::1%eth0\nnameserver none\noptions ndots:5\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if servers, searches := readResolv(data); len(servers) > maxServers+1 || len(searches) > maxSearches || servers == nil {
			t.Errorf("there are %d servers and %d domains", len(servers), len(searches))
		}
	})
}

func TestReadResolv(t *testing.T) {
	servers, searches := readResolv([]byte("# the node's\ndomain example.net\nsearch Example.org. corp\nnameserver 192.0.2.1\n  nameserver\t2001:db8::1 # second\nnameserver none\nnameserver\noptions ndots:5\n;nameserver 192.0.2.9\n"))
	if want := ports("192.0.2.1:53", "[2001:db8::1]:53"); !slices.Equal(servers, want) {
		t.Errorf("the servers are %v", servers)
	}
	if !slices.Equal(searches, []string{"example.org", "corp"}) {
		t.Errorf("the domains are %q", searches)
	}
	if servers, searches := readResolv(nil); servers == nil || len(servers)+len(searches) > 0 {
		t.Errorf("an empty one has %v and %v", servers, searches)
	}
}

func TestResolvFile(t *testing.T) {
	var r resolvFile
	for i, step := range []struct {
		data    string
		changed bool
		servers []netip.AddrPort
		gone    bool
	}{
		{"", true, nil, false},
		{"", false, nil, false},
		{"nameserver 192.0.2.1\n", true, ports("192.0.2.1:53"), false},
		{"", true, ports("192.0.2.1:53"), true},
		{"nameserver 192.0.2.2\n", true, ports("192.0.2.2:53"), false},
	} {
		if changed := r.take([]byte(step.data)); changed != step.changed || r.servers == nil || !slices.Equal(r.servers, step.servers) || r.gone != step.gone {
			t.Errorf("step %d: it changed: %t, and says %+v", i, changed, r)
		}
	}
}

// standingsOf returns standings of servers for names of domains. Words say which: "silent", "refuses" or "passed" of
// "192.0.2.1:53" or of "192.0.2.9:53/corp.example".
func standingsOf(words map[string]string) standings {
	all := standings{}
	for who, what := range words {
		at, domain, _ := strings.Cut(who, "/")
		s := &standing{}
		for _, word := range strings.Fields(what) {
			switch word {
			case "silent":
				s.silent = maxSilent
			case "once-silent":
				s.silent = maxSilent - 1
			case "refuses":
				s.useless = maxUseless
			case "refused-of-late":
				s.useless = maxUseless - 1
			case "passed":
				s.passed = true
			default:
				panic(word)
			}
		}
		all[server{netip.MustParseAddrPort(at), domain}] = s
	}
	return all
}

// Servers as standingsOf calls them: two for names outside, and two for those of a domain, of which one is the first again.
const firstOutside, secondOutside, ofCorp, firstOfCorp = "192.0.2.1:53", "[2001:db8::1]:53", "192.0.2.9:53/corp.example", "192.0.2.1:53/corp.example"

// TestUnheard: that nobody answers is told of those names for which all servers are silent.
func TestUnheard(t *testing.T) {
	w := ways{rest: ports(firstOutside, secondOutside), stubs: []records.Stub{{Domain: "corp.example", Servers: ports("192.0.2.9:53")}, {Domain: "none.example"}}}
	told := func(names, servers string) string {
		return "nobody answers for names " + names + ": what is asked of " + servers + " stays without an answer; see whether the node has a way there, or name others"
	}
	rest, corp := told("outside of the cluster", "192.0.2.1:53 and [2001:db8::1]:53"), told("of domain corp.example", "192.0.2.9:53")
	for what, c := range map[string]struct {
		is   map[string]string
		want []string
	}{
		"all answer":           {nil, nil},
		"one is silent":        {map[string]string{firstOutside: "silent"}, nil},
		"all of the rest are":  {map[string]string{firstOutside: "silent", secondOutside: "silent"}, []string{rest}},
		"one was only once":    {map[string]string{firstOutside: "silent", secondOutside: "once-silent"}, nil},
		"that of a domain is":  {map[string]string{ofCorp: "silent"}, []string{corp}},
		"one that nobody asks": {map[string]string{"192.0.2.77:53": "silent"}, nil},
	} {
		if got := w.unheard(standingsOf(c.is)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
	if got := append(new(ways).unheard(nil), new(ways).unhelped(nil, map[string]bool{"": true}, time.Now())...); len(got) > 0 {
		t.Errorf("of nobody it is told: %q", got)
	}
}

// TestUnhelped: that nobody helps is told of those names for which all servers refuse probes, and
// pods get nothing else.
func TestUnhelped(t *testing.T) {
	w := ways{rest: ports(firstOutside, secondOutside), stubs: []records.Stub{{Domain: "corp.example", Servers: ports("192.0.2.9:53")}, {Domain: "none.example"}}}
	const rest, corp = "nobody helps with names outside of the cluster: all that is asked of 192.0.2.1:53 and [2001:db8::1]:53 is", "nobody helps with names of domain corp.example: all that is asked of 192.0.2.9:53 is"
	all := map[string]bool{"": true, "corp.example": true, "none.example": true}
	for what, c := range map[string]struct {
		is      map[string]string
		failing map[string]bool
		want    []string
	}{
		"all help":                    {nil, all, nil},
		"one does":                    {map[string]string{firstOutside: "refuses"}, all, nil},
		"one did of late":             {map[string]string{firstOutside: "refuses", secondOutside: "refused-of-late"}, all, nil},
		"none does":                   {map[string]string{firstOutside: "refuses", secondOutside: "refuses"}, all, []string{rest}},
		"none does, of whom one says": {map[string]string{firstOutside: "refuses", secondOutside: "silent"}, all, []string{rest}},
		"pods get other answers":      {map[string]string{firstOutside: "refuses", secondOutside: "refuses", ofCorp: "refuses"}, map[string]bool{"corp.example": true}, []string{corp}},
		"all are silent":              {map[string]string{firstOutside: "silent", secondOutside: "silent"}, all, nil},
	} {
		if got := w.unhelped(standingsOf(c.is), c.failing, time.Now()); !slices.EqualFunc(got, c.want, strings.HasPrefix) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}

// TestPassedOver: that a server does not help is told where others do in its place, and for these names
// alone.
func TestPassedOver(t *testing.T) {
	w := ways{rest: ports(firstOutside, secondOutside), stubs: []records.Stub{{Domain: "corp.example", Servers: ports(firstOutside, "192.0.2.9:53")}}}
	const rest = "others help with names outside of the cluster in the place of 192.0.2.1:53: all that is asked there is"
	const corp = "others help with names of domain corp.example in the place of 192.0.2.1:53: all that is asked there is"
	for what, c := range map[string]struct {
		is   map[string]string
		want []string
	}{
		"all help":                 {nil, nil},
		"one refuses probes alone": {map[string]string{firstOutside: "refuses"}, nil},
		"it does not help pods":    {map[string]string{firstOutside: "refuses passed"}, []string{rest}},
		"nor with other names":     {map[string]string{firstOutside: "refuses passed", firstOfCorp: "refuses passed"}, []string{rest, corp}},
		"with other names alone":   {map[string]string{firstOfCorp: "refuses passed"}, []string{corp}},
		"it did not of late":       {map[string]string{firstOutside: "refused-of-late passed"}, nil},
		"it says nothing":          {map[string]string{firstOutside: "refuses silent passed"}, nil},
		"nobody helps":             {map[string]string{firstOutside: "refuses passed", secondOutside: "refuses passed"}, nil},
		"another one refuses, too": {map[string]string{firstOutside: "refuses passed", secondOutside: "refuses"}, []string{rest}},
	} {
		if got := w.passedOver(standingsOf(c.is), time.Now()); !slices.EqualFunc(got, c.want, strings.HasPrefix) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}
