package main

import (
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/dns/compile"
	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/registry"
)

func TestCandidates(t *testing.T) {
	search := []string{"a.svc.b", "b"}
	for name, want := range map[string]string{
		"www.example":        "www.example.a.svc.b. www.example.b. www.example.",
		"a.b.c.d.e.example":  "a.b.c.d.e.example. a.b.c.d.e.example.a.svc.b. a.b.c.d.e.example.b.",
		"one.two.three.four": "one.two.three.four.a.svc.b. one.two.three.four.b. one.two.three.four.",
	} {
		if got := strings.Join(candidates(name, search), " "); got != want {
			t.Errorf("for %s it asks %s, not %s", name, got, want)
		}
	}
	if got := candidates("www.example", nil); !slices.Equal(got, []string{"www.example."}) {
		t.Errorf("without a list it asks %s", got)
	}
}

func TestCheckAnswer(t *testing.T) {
	query := new(dns.Msg).SetQuestion("www."+outsideDomain+".", dns.TypeA)
	pack := func(change func(*dns.Msg)) []byte {
		m := upstreamAnswer(query)
		change(m)
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if id, err := checkAnswer(pack(func(*dns.Msg) {}), dns.RcodeSuccess); err != nil || id != query.Id {
		t.Errorf("the right answer to %d: %d, %v", query.Id, id, err)
	}
	if _, err := checkAnswer(pack(func(m *dns.Msg) { m.Rcode, m.Answer = dns.RcodeNameError, nil }), dns.RcodeNameError); err != nil {
		t.Errorf("that there is no such name: %v", err)
	}
	for what, b := range map[string][]byte{
		"nothing":             nil,
		"a piece":             pack(func(*dns.Msg) {})[:11],
		"a query":             pack(func(m *dns.Msg) { m.Response = false }),
		"no address":          pack(func(m *dns.Msg) { m.Answer = nil }),
		"a part of an answer": pack(func(m *dns.Msg) { m.Truncated = true }),
		"a failure":           pack(func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure }),
		"no such name":        pack(func(m *dns.Msg) { m.Rcode = dns.RcodeNameError }),
	} {
		if _, err := checkAnswer(b, dns.RcodeSuccess); err == nil {
			t.Errorf("%s is taken for the right answer", what)
		}
	}
}

func TestWhatIsAwaited(t *testing.T) {
	query := new(dns.Msg).SetQuestion("www."+outsideDomain+".", dns.TypeA)
	there, missing := upstreamAnswer(query), new(dns.Msg).SetRcode(query, dns.RcodeNameError)
	empty := new(dns.Msg).SetReply(query)
	right := awaiting{Address: netip.MustParseAddr("203.0.113.1")}
	if !right.right(there) || right.right(missing) || right.right(empty) {
		t.Error("an address is awaited, and another answer is taken for it")
	}
	if other := (awaiting{Address: netip.MustParseAddr("203.0.113.2")}); other.right(there) {
		t.Error("another address is taken for the one awaited")
	}
	if none := (awaiting{}); none.right(there) || !none.right(missing) || none.right(empty) {
		t.Error("no name is awaited, and another answer is taken for that")
	}
}

// Every name that is asked for is one that a cluster with so many Services has, and every
// object is one that a registry takes.
func TestNamesObjects(t *testing.T) {
	const services = 1200
	objects := namesObjects(services)
	for k, list := range objects {
		for _, o := range list {
			if err := k.Validate(o); err != nil {
				t.Errorf("%s %s: %v", k.Singular, registry.KeyOf(o), err)
			}
		}
	}
	var c compile.Compiler
	have := make(map[string]netip.Addr)
	s := c.Compile(registry.NewSnapshot(objects))
	for _, one := range s.Services {
		if one.Headless() {
			if len(one.Endpoints) != 1 || one.Endpoints[0].Address != headlessAddress(0) {
				t.Errorf("%s has endpoints %v", one.Key, one.Endpoints)
			}
			continue
		}
		if len(one.Addresses) != 1 || len(one.Endpoints) != endpointsEach {
			t.Errorf("%s has addresses %v and endpoints %v", one.Key, one.Addresses, one.Endpoints)
			continue
		}
		have[serviceName(one.Namespace, one.Name)] = one.Addresses[0]
	}
	if len(have) != services || len(s.Namespaces) != namesNamespaces {
		t.Errorf("there are %d Services, and namespaces %v", len(have), s.Namespaces)
	}
	asked := insideNames(services)
	if len(asked) != mostNames {
		t.Errorf("%d names are asked for", len(asked))
	}
	for i, name := range asked {
		if have[name] != serviceAddress(i) {
			t.Errorf("%s is %s, not %s", name, have[name], serviceAddress(i))
		}
	}
	for _, name := range missingNames() {
		if _, there := have[name]; there {
			t.Errorf("%s is there", name)
		}
	}
}

func TestAddressesOfNamesDiffer(t *testing.T) {
	seen := map[netip.Addr]bool{namesAddress: true}
	once := func(a netip.Addr) {
		if seen[a] {
			t.Errorf("%s is there twice", a)
		}
		seen[a] = true
	}
	for i := range mostServices {
		once(serviceAddress(i))
		for e := range endpointsEach {
			once(endpointAddress(i*endpointsEach + e))
		}
	}
	for i := range namesChanges + 1 {
		once(headlessAddress(i))
		once(changedAddress(i))
	}
}

func TestCorefile(t *testing.T) {
	one, all := corefile("https://192.0.2.1:6443", "cert", "key", "ca", false), corefile("https://192.0.2.1:6443", "cert", "key", "ca", true)
	for _, want := range []string{"endpoint https://192.0.2.1:6443\n", "tls cert key ca\n", "forward . " + namesOutside.String() + " {\n", "kubernetes cluster.local in-addr.arpa ip6.arpa {\n"} {
		if !strings.Contains(one, want) || !strings.Contains(all, want) {
			t.Errorf("%q is missing in\n%s\n%s", want, one, all)
		}
	}
	if !strings.Contains(one, "disable success cluster.local") || strings.Contains(all, "disable") || !strings.Contains(all, "cache 30\n") {
		t.Errorf("what is cached is not what it should be:\n%s\n%s", one, all)
	}
	for _, text := range []string{one, all} {
		if strings.Count(text, "{") != strings.Count(text, "}") {
			t.Errorf("braces do not match:\n%s", text)
		}
	}
}

func TestNumbers(t *testing.T) {
	if got, err := numbersOf("1,1000", 1000); err != nil || !slices.Equal(got, []int{1, 1000}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, list := range []string{"", "0", "1001", "1,,2", "many", "-1"} {
		if got, err := numbersOf(list, 1000); err == nil {
			t.Errorf("%q is read as %v", list, got)
		}
	}
	for flag, words := range map[string][]string{"-services": {"-services 0", "60000"}, "-name-services": {"-name-services 0", "60000"}, "-up": {"-up 0", "not a number"}} {
		_, err := parseSettings([]string{flag, "0"})
		for _, word := range words {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%s 0: %v does not say %q", flag, err, word)
			}
		}
	}
}

// alone runs f in a network namespace of its own with a loopback interface.
func alone(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes a network namespace")
	}
	if err := netns.Thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		f(t)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

var local = netip.MustParseAddr("127.0.0.1")

func TestAsking(t *testing.T) {
	alone(t, func(t *testing.T) {
		if err := serveConstant(local); err != nil {
			t.Error(err)
			return
		}
		q := asking{Names: []string{"www.example.", "other.example."}, From: []netip.Addr{local, netip.MustParseAddr("127.0.0.2")}}
		const d = 50 * time.Millisecond
		for _, rate := range []int{0, 1000} {
			q.Rate = rate
			s, err := ask(local, q, d)
			if err != nil || s.Count == 0 || s.Took <= 0 {
				t.Errorf("at %d a second: %+v, %v", rate, s, err)
			}
			if rate > 0 && (s.Count+s.Lost != 50 || s.Median == 0 || s.P99 < s.Median) {
				t.Errorf("at %d a second: %+v", rate, s)
			}
			wrong := q
			wrong.Rcode = dns.RcodeNameError
			if _, err := ask(local, wrong, d); err == nil {
				t.Errorf("at %d a second: wrong answers are taken for right ones", rate)
			}
			wrong.Names = []string{missingPrefix + ".example."}
			if _, err := ask(local, wrong, d); err != nil {
				t.Errorf("at %d a second: %v", rate, err)
			}
		}
		if _, err := ask(netip.MustParseAddr("127.0.0.3"), asking{Names: q.Names, From: q.From}, d); err == nil {
			t.Error("nobody answers, and that is no error")
		}
		if _, err := ask(local, asking{From: q.From}, d); err == nil {
			t.Error("nothing is asked, and that is no error")
		}
	})
}

func TestLookUps(t *testing.T) {
	alone(t, func(t *testing.T) {
		if err := serveUpstream(local); err != nil {
			t.Error(err)
			return
		}
		for _, l := range []lookups{{Search: search(), Fresh: "one"}, {Search: search(), Names: outsideNames()}} {
			before := upstreamAsked.Load()
			l.From = local
			s, err := lookUpAll(local, l, 20*time.Millisecond)
			// Two for each of the domains and for the name as it is.
			if err != nil || s.Count == 0 || s.Sent != s.Count*8 || upstreamAsked.Load()-before != s.Sent {
				t.Errorf("%+v, and %d came; %v", s, upstreamAsked.Load()-before, err)
			}
		}
		if sent, err := lookUp(local, local, []string{"www.elsewhere.example."}); err == nil || sent != 2 {
			t.Errorf("a name that there is not was found with %d queries", sent)
		}
		name := "www." + outsideDomain + "."
		before, _ := monotonic()
		s, err := awaiting{name, netip.MustParseAddr("203.0.113.1")}.await(local, time.Minute)
		if err != nil || s.At < before || s.Sent != 1 {
			t.Errorf("await what is there: %+v, %v", s, err)
		}
		if _, err := (awaiting{Name: name}).await(local, 0); err == nil || !strings.Contains(err.Error(), "203.0.113.1") {
			t.Errorf("await what does not come: %v", err)
		}
	})
}

func TestChildren(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	got, err := childrenOf(os.Getpid())
	if err != nil || !slices.Contains(got, cmd.Process.Pid) {
		t.Errorf("%v, %v: without %d", got, err, cmd.Process.Pid)
	}
}

// namesOf is what was measured, with one sample a round.
func namesOf(servers ...string) namesResult {
	w := namesResult{Services: 1000, Servers: servers, Traffic: make(map[namesLoad]map[string][]sample), LookUps: make(map[lookUpKind]map[string][]lookUpSample),
		Idle: make(map[string]memory), Busy: make(map[string]memory)}
	for i, name := range servers {
		slower := time.Duration(i + 1)
		for _, l := range namesLoads {
			if w.Traffic[l] == nil {
				w.Traffic[l] = make(map[string][]sample)
			}
			for _, round := range []time.Duration{1, 2, 3} {
				s := sample{Count: uint64(40000 / (slower * round)), Took: time.Second, Median: 40 * slower * round * time.Microsecond, P99: 140 * slower * round * time.Microsecond}
				if name == serverBare && round == 3 {
					s.Lost = 7
				}
				w.Traffic[l][name] = append(w.Traffic[l][name], s)
			}
		}
		for _, k := range lookUpKinds {
			if w.LookUps[k] == nil {
				w.LookUps[k] = make(map[string][]lookUpSample)
			}
			sent := uint64(800)
			if i == 0 || name == serverBare {
				sent = 200
			}
			s := lookUpSample{sample{Count: 100, Sent: sent, Median: slower * time.Millisecond, P99: slower * 2 * time.Millisecond}, 201}
			w.LookUps[k][k.server(name)] = []lookUpSample{s, s}
		}
	}
	for i, p := range []string{processKeeper, processServer, processCoreDNS, processCached} {
		if i < 2 || slices.Contains(servers, serverCoreDNS) {
			w.Idle[p], w.Busy[p] = memory{Resident: 8 << (20 + i), Anonymous: 4 << 20}, memory{Resident: 9 << (20 + i), Anonymous: 5 << 20}
		}
	}
	return w
}

func TestReportOfNames(t *testing.T) {
	whole := namesOf(serverWeft, serverCoreDNS, serverCached, serverBare)
	whole.Changes = make(map[nameChange]map[string][]time.Duration)
	for _, kind := range nameChanges {
		whole.Changes[kind] = map[string][]time.Duration{serverWeft: {1e6, 2e6, 3e6}, serverCoreDNS: {4e6, 5e6, 60e6}, written: {1e6, 1e6, 2e6}}
	}
	lacking := namesOf(serverWeft, serverBare)
	lacking.Services = 1
	res := results{Machine: machine{Processors: 2, Model: "A Processor", Memory: 8 << 30, Kernel: "6.1.0", Go: "go1.26"}, Rounds: 3, Sample: time.Second,
		Names: &namesResults{Worlds: []namesResult{whole, lacking}, Lacking: true}}
	got := render(res, "## Notes\n\nBy hand.\n\n")
	const golden = "testdata/names.md"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("differs from %s (- golden, + now):\n%s", golden, diff)
	}
}

// A document that says of more than one thing is the common one.
func TestDocuments(t *testing.T) {
	for title, r := range map[string]results{
		"Names, measured":                   {Names: &namesResults{}},
		"Network policy at scale, measured": {Policy: &policyResults{}},
		"Services at scale, measured":       {Services: &serviceResults{}},
	} {
		if got, _, _ := r.document(); got != title {
			t.Errorf("%s is called %s", title, got)
		}
	}
	for what, r := range map[string]results{
		"nothing":                {},
		"names and policies":     {Names: &namesResults{}, Policy: &policyResults{}},
		"names and Services":     {Names: &namesResults{}, Services: &serviceResults{}},
		"policies and Services":  {Policy: &policyResults{}, Services: &serviceResults{}},
		"names and failovers":    {Names: &namesResults{}, Failovers: []failover{{}}},
		"Services and a network": {Services: &serviceResults{}, Ups: []upTime{{}}},
	} {
		if got, notes, _ := r.document(); got != "Benchmarks" || notes != "notes.md" {
			t.Errorf("what says of %s is called %s, with %s", what, got, notes)
		}
	}
}
