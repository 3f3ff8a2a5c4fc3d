package server

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

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
		loops    map[netip.AddrPort]bool
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
		"one that brings queries back": {settings: &records.Settings{Upstreams: ports("127.0.0.53:53", "192.0.2.1:53")}, loops: map[netip.AddrPort]bool{ports("127.0.0.53:53")[0]: true},
			rest: ports("192.0.2.1:53"), problems: []string{"127.0.0.53:53 of the upstreams is not asked: what it is asked comes back"}},
		"stubs": {settings: &records.Settings{Upstreams: ports("192.0.2.1:53"), Stubs: []records.Stub{
			{Domain: "example", Servers: ports("192.0.2.2:53")}, {Domain: "corp.example", Servers: ports("192.0.2.3:53", "10.96.0.10:53")}, {Domain: "none", Servers: nil}}},
			rest: ports("192.0.2.1:53"), stubs: "corp.example 192.0.2.3:53, example 192.0.2.2:53, none",
			problems: []string{"10.96.0.10:53 of domain corp.example is not asked", "nobody is there to be asked for names of domain none"}},
	} {
		w, problems := choose(c.settings, "/etc/resolv.conf", c.node, own, c.loops)
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
	if w, problems := choose(nil, "", many, nil, nil); len(w.rest) != maxServers || len(problems) != 5 {
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

// TestUnheard: that nobody answers is told of those names for which all servers are silent.
func TestUnheard(t *testing.T) {
	w := ways{rest: ports("192.0.2.1:53", "[2001:db8::1]:53"), stubs: []records.Stub{{Domain: "corp.example", Servers: ports("192.0.2.9:53")}, {Domain: "none.example"}}}
	told := func(names, servers string) string {
		return "nobody answers for names " + names + ": what is asked of " + servers + " stays without an answer; see whether the node has a way there, or name others"
	}
	rest, stub := told("outside of the cluster", "192.0.2.1:53 and [2001:db8::1]:53"), told("of domain corp.example", "192.0.2.9:53")
	for what, c := range map[string]struct {
		silent map[netip.AddrPort]int
		want   []string
	}{
		"all answer":           {nil, nil},
		"one is silent":        {map[netip.AddrPort]int{w.rest[0]: 9}, nil},
		"all of the rest are":  {map[netip.AddrPort]int{w.rest[0]: maxSilent, w.rest[1]: maxSilent}, []string{rest}},
		"one was only once":    {map[netip.AddrPort]int{w.rest[0]: maxSilent, w.rest[1]: maxSilent - 1}, nil},
		"that of a domain is":  {map[netip.AddrPort]int{w.stubs[0].Servers[0]: maxSilent}, []string{stub}},
		"one that nobody asks": {map[netip.AddrPort]int{ports("192.0.2.77:53")[0]: maxSilent}, nil},
	} {
		if got := w.unheard(c.silent); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
	if got := append(new(ways).unheard(nil), new(ways).unhelped(nil, nil, map[string]bool{"": true})...); len(got) > 0 {
		t.Errorf("of nobody it is told: %q", got)
	}
}

// TestUnhelped: that nobody helps is told of those names for which all servers refuse probes, and
// pods get nothing else.
func TestUnhelped(t *testing.T) {
	w := ways{rest: ports("192.0.2.1:53", "[2001:db8::1]:53"), stubs: []records.Stub{{Domain: "corp.example", Servers: ports("192.0.2.9:53")}, {Domain: "none.example"}}}
	one, two, stub := w.rest[0], w.rest[1], w.stubs[0].Servers[0]
	const rest, corp = "nobody helps with names outside of the cluster: all that is asked of 192.0.2.1:53 and [2001:db8::1]:53 is", "nobody helps with names of domain corp.example: all that is asked of 192.0.2.9:53 is"
	all := map[string]bool{"": true, "corp.example": true, "none.example": true}
	for what, c := range map[string]struct {
		useless, silent map[netip.AddrPort]int
		failing         map[string]bool
		want            []string
	}{
		"all help":                    {nil, nil, all, nil},
		"one does":                    {map[netip.AddrPort]int{one: 9}, nil, all, nil},
		"one did of late":             {map[netip.AddrPort]int{one: 9, two: maxUseless - 1}, nil, all, nil},
		"none does":                   {map[netip.AddrPort]int{one: maxUseless, two: maxUseless}, nil, all, []string{rest}},
		"none does, of whom one says": {map[netip.AddrPort]int{one: maxUseless}, map[netip.AddrPort]int{two: maxSilent}, all, []string{rest}},
		"pods get other answers":      {map[netip.AddrPort]int{one: 9, two: 9, stub: 9}, nil, map[string]bool{"corp.example": true}, []string{corp}},
		"all are silent":              {nil, map[netip.AddrPort]int{one: 9, two: 9}, all, nil},
	} {
		if got := w.unhelped(c.useless, c.silent, c.failing); !slices.EqualFunc(got, c.want, strings.HasPrefix) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}

// TestPassedOver: that a server does not help is told where others do in its place.
func TestPassedOver(t *testing.T) {
	w := ways{rest: ports("192.0.2.1:53", "[2001:db8::1]:53"), stubs: []records.Stub{{Domain: "corp.example", Servers: ports("192.0.2.1:53")}}}
	one, two := w.rest[0], w.rest[1]
	const rest = "others help with names outside of the cluster in the place of 192.0.2.1:53: all that is asked there is"
	for what, c := range map[string]struct {
		useless, silent map[netip.AddrPort]int
		passed          []netip.AddrPort
		want            []string
	}{
		"all help":                 {nil, nil, nil, nil},
		"one refuses probes alone": {map[netip.AddrPort]int{one: 9}, nil, nil, nil},
		"it does not help pods":    {map[netip.AddrPort]int{one: maxUseless}, nil, []netip.AddrPort{one}, []string{rest}},
		"it did not of late":       {map[netip.AddrPort]int{one: maxUseless - 1}, nil, []netip.AddrPort{one}, nil},
		"it says nothing":          {map[netip.AddrPort]int{one: 9}, map[netip.AddrPort]int{one: maxSilent}, []netip.AddrPort{one}, nil},
		"nobody helps":             {map[netip.AddrPort]int{one: 9, two: 9}, nil, []netip.AddrPort{one, two}, nil},
		"another one refuses, too": {map[netip.AddrPort]int{one: 9, two: 9}, nil, []netip.AddrPort{one}, []string{rest}},
	} {
		passed := map[netip.AddrPort]bool{}
		for _, at := range c.passed {
			passed[at] = true
		}
		if got := w.passedOver(c.useless, c.silent, passed); !slices.EqualFunc(got, c.want, strings.HasPrefix) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}
