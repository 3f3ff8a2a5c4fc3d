package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/dns/journal"
	"github.com/weftnet/weft/dns/keeper"
	"github.com/weftnet/weft/internal/await"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// TestNameServerComesAndGoes has the node answer as soon as its name server does, and leave it
// to pods only when that has been away for longer than one takes that is replaced.
func TestNameServerComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := errors.New("nobody listens")
		var state keeper.State
		kicks := 0
		var problem string
		n := &names{kick: func() { kicks++ }, problem: func(text string) { problem = text },
			ask: func(context.Context) (keeper.State, error) { return state, said }}
		const one, other = "10.96.0.10", "169.254.20.10"
		serving := func(at ...string) keeper.State {
			s := keeper.State{Serving: true}
			for _, a := range at {
				s.Addresses = append(s.Addresses, netip.AddrPortFrom(netip.MustParseAddr(a), 53))
			}
			return s
		}
		look := func(what string, serves string, kicked int) {
			t.Helper()
			n.look(t.Context())
			at, _ := n.serving()
			if joined(at) != serves || kicks != kicked {
				t.Errorf("%s: it serves at %v, after %d kicks", what, at, kicks)
			}
		}
		look("there is none", "", 0)
		said, state = nil, keeper.State{Problem: "port 53 is taken"}
		look("it does not answer", "", 0)
		if problem != "port 53 is taken" {
			t.Errorf("the node says %q", problem)
		}
		state = serving(one)
		look("it answers", one, 1)
		if problem != "" {
			t.Errorf("the node says %q", problem)
		}
		state = keeper.State{Problem: "the server has just been started"}
		time.Sleep(namesGoneAfter - time.Millisecond)
		look("it is being replaced", one, 1)
		if problem != "" {
			t.Errorf("the node says %q", problem)
		}
		time.Sleep(time.Millisecond)
		look("it is gone", "", 2)
		state = serving(other, one)
		look("it is back", one+","+other, 3)
		state = serving(other)
		state.Problem = "listen at 10.96.0.10:53: address already in use"
		look("an address is refused", other, 4)
		if problem != state.Problem {
			t.Errorf("the node says %q", problem)
		}
		state.Problem = ""
		said = fmt.Errorf("dial: %w", unix.ECONNREFUSED)
		n.loaded = &plan.Plan{}
		for range 3 {
			look("nobody is there, and no plan in force leads there", other, 4)
			if problem != "" {
				t.Errorf("the node says %q", problem)
			}
		}
		said = nil
		look("it is there", other, 4)
		var err error
		if n.loaded, err = plan.Parse("service default " + other + " udp 53 from inside here\n"); err != nil {
			t.Fatal(err)
		}
		const refused = "none runs on the node, and what pods ask is refused at " + other + ": start weft-dns there"
		for _, gone := range []error{unix.ECONNREFUSED, unix.ENOENT} {
			kicked := kicks
			if gone == unix.ENOENT {
				kicked++ // pods get the questions, where there are any
			}
			said = fmt.Errorf("dial: %w", gone)
			for i, want := range []string{"", refused, refused} {
				if look("it is killed", other, kicked); problem != want {
					t.Errorf("at look %d after %v the node says %q", i, gone, problem)
				}
			}
			said, kicks = nil, 4
			if gone == unix.ENOENT {
				kicks--
			}
			if look("it is back", other, 4); problem != "" {
				t.Errorf("behind %v the node says %q", gone, problem)
			}
		}
		said = context.DeadlineExceeded
		for range 3 {
			if look("it does not say in time whether it answers", other, 4); problem != "" {
				t.Errorf("the node says %q", problem)
			}
		}
		said = nil
		n.able(true)
		look("nothing changes", other, 4)
		n.able(false)
		look("no question comes to it", "", 5)
		n.able(true)
		state = keeper.State{Idle: true}
		look("pods are to answer", "", 7)
	})
}

// TestNameServerEnds has the name server end, and not be killed: pods get the questions at once
// where there are any.
func TestNameServerEnds(t *testing.T) {
	a := netip.MustParseAddr("10.96.0.10")
	var said error
	kicks := 0
	n := &names{kick: func() { kicks++ }, problem: func(string) {},
		ask: func(context.Context) (keeper.State, error) {
			return keeper.State{Serving: said == nil, Addresses: []netip.AddrPort{netip.AddrPortFrom(a, 53)}}, said
		}}
	at := plugin.NameServer{Service: []netip.Addr{a}, Origin: "Service kube-system/kube-dns"}
	const nobody = "node node1 addresses 172.30.0.2 mtu 1450\n" +
		"service default 10.96.0.10 udp 53 to kube-system/kube-dns:dns # Service kube-system/kube-dns\n"
	const pods = nobody + "backend default kube-system/kube-dns:dns 10.1.1.2:53\n"
	want := func(what, text, want string) {
		t.Helper()
		p, err := plan.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := joined(n.servingBeside(p, at)); got != want {
			t.Errorf("%s: it serves at %q", what, got)
		}
	}
	n.look(t.Context())
	want("it serves", pods, "10.96.0.10")
	said = fmt.Errorf("dial: %w", unix.ECONNREFUSED)
	n.look(t.Context())
	want("it was killed", pods, "10.96.0.10")
	said = fmt.Errorf("dial: %w", unix.ENOENT)
	n.look(t.Context())
	want("it has ended", pods, "")
	want("it has ended, and there are no pods", nobody, "10.96.0.10")
	said = nil
	n.look(t.Context())
	want("it is back", pods, "10.96.0.10")
	if kicks != 3 {
		t.Errorf("%d kicks", kicks)
	}
}

// TestRecordsAreTakenAway has somebody remove what the name server answers by: the agent writes it
// anew.
func TestRecordsAreTakenAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	j, err := journal.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	n := nobodyAnswers()
	n.journal, n.untold = j, func(string) {}
	n.read(namesInput(api.DNSSpec{Server: api.NamesByNodes}), &plan.Plan{}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); n.run(ctx) }()
	defer func() { cancel(); <-ended }()
	there := func() error { _, err := os.Stat(path); return err }
	await.NoError(t, time.Minute, "there are records", there)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, time.Minute, "there are records again", there)
}

// namesOf returns names that write to a file, the name server that is asked, and what the file says:
// at which addresses that is to be, and of how many Services.
func namesOf(t *testing.T, dir string) (n *names, state *keeper.State, says func() string) {
	t.Helper()
	files := nameFiles{dir}
	j, err := journal.Open(files.records())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	state = new(keeper.State)
	n = nobodyAnswers()
	n.journal, n.untold, n.written = j, func(text string) {
		if text != "" {
			t.Error(text)
		}
	}, files.leadToRecords
	n.ask = func(context.Context) (keeper.State, error) { return *state, nil }
	if n.at, err = files.toldLast(); err != nil {
		t.Fatal(err)
	}
	return n, state, func() (text string) {
		for len(n.news) > 0 {
			<-n.news
			n.tell()
		}
		f := journal.Follow(files.records(), func(b journal.Batch) {
			if b.Settings != nil { // the last one counts
				text = joined(b.Settings.Addresses)
			}
		})
		f.Look()
		return fmt.Sprintf("at %s of %d", text, f.State().Services)
	}
}

// sockets is a name server that serves at some addresses, or has nothing to.
func sockets(at ...string) keeper.State {
	s := keeper.State{Serving: len(at) > 0, Idle: len(at) == 0}
	for _, a := range at {
		s.Addresses = append(s.Addresses, netip.AddrPortFrom(netip.MustParseAddr(a), api.DNSPort))
	}
	return s
}

// namesInput is what there is on a node whose cluster has two Services, one at which pods ask for
// names.
func namesInput(dns api.DNSSpec) plugin.Input {
	service := func(name, address string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name},
			Spec: corev1.ServiceSpec{ClusterIP: address, Ports: []corev1.ServicePort{{Port: api.DNSPort, Protocol: corev1.ProtocolUDP}}}}
	}
	in := plugin.Input{Config: api.Effective(&api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: api.ClusterConfigSpec{DNS: dns}}),
		Objects: registry.NewSnapshot(map[*registry.Kind][]registry.Object{api.Service: {service("kube-dns", "10.96.0.10"), service("other", "10.96.0.11")}})}
	in.Node.Addresses = []netip.Addr{netip.MustParseAddr("172.30.0.2")}
	return in
}

const noNames = "node node1 addresses 172.30.0.2 mtu 1450\nservice default 10.96.0.10 udp 53 to kube-system/kube-dns:dns # Service kube-system/kube-dns\n"

// compiled is the plan of a node without names, and with those that its name server is at.
func (n *names) compiled(t *testing.T, in plugin.Input) *plan.Plan {
	t.Helper()
	p, err := plan.Parse(noNames)
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{names: n, node: &registrar{kick: make(chan struct{}, 1)}}
	p, _ = a.putNames(p, in)
	return p
}

// TestPodsAnswerInstead has a cluster leave names to pods, and take them back. A name server goes only
// once no plan leads to it, and its records once it is gone; and it is there before a plan leads to
// it. So it is where the agent is started again meanwhile.
func TestPodsAnswerInstead(t *testing.T) {
	dir := t.TempDir()
	n, state, says := namesOf(t, dir)
	want := func(what, text string) {
		t.Helper()
		if got := says(); got != text {
			t.Errorf("%s: the name server is told to be %s, not %s", what, got, text)
		}
	}
	nodes, pods := namesInput(api.DNSSpec{Server: api.NamesByNodes}), namesInput(api.DNSSpec{Server: api.NamesByPods})
	const here = "10.96.0.10"
	leads := func(what string, p *plan.Plan, should bool) {
		t.Helper()
		if is := plugin.NameServerIn(p, netip.MustParseAddr(here)); is != should {
			t.Errorf("%s: the plan leads to the name server: %t", what, is)
		}
	}
	*state = sockets()
	n.look(t.Context())
	n.load(n.compiled(t, pods))
	want("pods answer", "at  of 0")

	p := n.compiled(t, nodes)
	leads("nodes are to answer", p, false)
	n.load(p)
	want("nodes are to answer", "at 10.96.0.10 of 2")
	*state = sockets(here)
	n.look(t.Context())
	p = n.compiled(t, nodes)
	leads("the name server answers", p, true)
	n.load(p)
	want("the plan leads there", "at 10.96.0.10 of 2")

	p = n.compiled(t, pods)
	leads("pods are to answer", p, false)
	want("a plan still leads there", "at 10.96.0.10 of 2")
	n, state, says = namesOf(t, dir)
	p = n.compiled(t, pods)
	want("the agent does not know which plan is in force", "at 10.96.0.10 of 2")
	*state = sockets(here)
	n.look(t.Context())
	n.load(p)
	want("no plan leads there", "at  of 2")
	*state = sockets()
	n.look(t.Context())
	want("it is closed", "at  of 0")
}

// TestOthersAreKeptOutFirst has the name server be at the node's own address: it is there only
// while a plan is in force that drops what other machines send there.
func TestOthersAreKeptOutFirst(t *testing.T) {
	n, state, says := namesOf(t, t.TempDir())
	const node = "172.30.0.2"
	with, without := namesInput(api.DNSSpec{Server: api.NamesByNodes, Addresses: []string{api.NodeAddress}}), namesInput(api.DNSSpec{Server: api.NamesByNodes})
	plain, err := plan.Parse(noNames)
	if err != nil {
		t.Fatal(err)
	}
	guards := func(what string, p *plan.Plan, should bool) {
		t.Helper()
		if is := plugin.KeepsOthersOut(p, netip.MustParseAddr(node)); is != should {
			t.Errorf("%s: the plan keeps other machines out: %t", what, is)
		}
	}
	want := func(what, text string) {
		t.Helper()
		if got := says(); got != text {
			t.Errorf("%s: the name server is told to be %s, not %s", what, got, text)
		}
	}
	p := n.compiled(t, with)
	guards("it is to be there", p, true)
	want("no plan is in force", "at 10.96.0.10 of 2")
	n.load(plain)
	want("one of before is in force", "at 10.96.0.10 of 2")
	n.load(p)
	want("others are kept out", "at 10.96.0.10,172.30.0.2 of 2")
	*state = sockets("10.96.0.10", node)
	n.look(t.Context())
	n.load(n.compiled(t, with))

	n.able(false)
	n.load(plain)
	n.again()
	want("the data plane cannot bring questions there", "at 10.96.0.10 of 2")
	n.able(true)
	n.load(n.compiled(t, with))
	want("it can", "at 10.96.0.10,172.30.0.2 of 2")

	p = n.compiled(t, without)
	guards("it is not to be there any more, and is", p, true)
	n.load(p)
	want("no question is led there", "at 10.96.0.10 of 2")
	guards("it has not closed its sockets yet", n.compiled(t, without), true)
	*state = sockets("10.96.0.10")
	n.look(t.Context())
	guards("it has", n.compiled(t, without), false)
}

// nobodyAnswers are names on a node without a name server.
func nobodyAnswers() *names {
	return &names{written: func() error { return nil }, news: make(chan struct{}, 1), problem: func(string) {}, kick: func() {},
		ask: func(context.Context) (keeper.State, error) { return keeper.State{}, errors.New("nobody listens") }}
}

// TestClients: the node's name server goes by where a pod's search begins only of those pods that
// search as all do by default.
func TestClients(t *testing.T) {
	pods := map[string]*corev1.Pod{
		"plain":    {},
		"first":    {Spec: corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}},
		"nodes":    {Spec: corev1.PodSpec{DNSPolicy: corev1.DNSDefault}},
		"own":      {Spec: corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{}}},
		"searches": {Spec: corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, DNSConfig: &corev1.PodDNSConfig{}}},
	}
	var endpoints []plugin.Endpoint
	for i, name := range []string{"searches", "plain", "nodes", "first", "own", "unknown"} {
		a := netip.AddrFrom4([4]byte{10, 1, 1, byte(9 - i)})
		endpoints = append(endpoints, plugin.Endpoint{Interface: "weft" + name, Network: plan.DefaultNetwork, Namespace: "shop", Pod: name, Addresses: []netip.Addr{a}})
	}
	endpoints = append(endpoints,
		plugin.Endpoint{Interface: "weft1", Network: plan.DefaultNetwork, Addresses: []netip.Addr{netip.MustParseAddr("10.1.1.20")}},
		plugin.Endpoint{Interface: "weft2", Network: "other", Namespace: "shop", Pod: "plain", Addresses: []netip.Addr{netip.MustParseAddr("10.1.1.21")}},
		plugin.Endpoint{Interface: "weft3", Network: plan.DefaultNetwork, Namespace: "shop", Pod: "plain", Unidentified: true, Addresses: []netip.Addr{netip.MustParseAddr("10.1.1.22")}})
	known := &names{identify: func(e plugin.Endpoint) *corev1.Pod { return pods[e.Pod] }}
	if got, want := fmt.Sprint(known.clients(endpoints)), "[{10.1.1.6 shop} {10.1.1.8 shop}]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	// Without Pod objects there are no other ways to search.
	if got, want := len(new(names).clients(endpoints)), 6; got != want {
		t.Errorf("%d clients, want %d", got, want)
	}
}

func TestSettingsOfNames(t *testing.T) {
	seconds := int32(60)
	config := api.Effective(&api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: api.ClusterConfigSpec{DNS: api.DNSSpec{
		Server: api.NamesByNodes, Domain: "cluster.example", Addresses: []string{"169.254.20.10"}, Upstreams: []string{"192.0.2.1", "[2001:db8::1]:5353"},
		StubDomains: []api.StubDomain{{Domain: "corp.example", Servers: []string{"192.0.2.9"}}}, PodNames: api.PodNamesInsecure, AnyPrefix: true, StaleSeconds: &seconds}}})
	got := settingsOf(plugin.Input{Config: config, Objects: registry.Snapshot{}}, []netip.Addr{netip.MustParseAddr("169.254.20.10")})
	want := "{cluster.example [169.254.20.10] [192.0.2.1:53 [2001:db8::1]:5353] [{corp.example [192.0.2.9:53]}] [] true insecure 60}"
	if d := cmp.Diff(want, fmt.Sprint(*got)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestNobodyAnswers: that pods' questions lead nowhere is said of the node, and nothing where
// somebody answers, or where it is not known.
func TestNobodyAnswers(t *testing.T) {
	const plain = "node node1 addresses 172.30.0.2 mtu 1450\n" +
		"service default 10.96.0.10 udp 53 to kube-system/kube-dns:dns # Service kube-system/kube-dns\n"
	const left = "node node1 addresses 172.30.0.2 mtu 1450 services-left\n"
	const nobody = "nobody answers at 10.96.0.10, where pods ask for names: Service kube-system/kube-dns has no endpoints, and no name server runs on the node: start weft-dns there"
	at := plugin.NameServer{Service: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Origin: "Service kube-system/kube-dns"}
	none := func(netip.Addr) bool { return false }
	for what, test := range map[string]struct {
		plan    string
		serving []netip.Addr
		want    string
	}{
		"nobody":                   {plain, nil, nobody},
		"the node":                 {plain, at.Service, ""},
		"a pod":                    {plain + "backend default kube-system/kube-dns:dns 10.1.1.2:53\n", nil, ""},
		"there is no such Service": {"node node1 addresses 172.30.0.2 mtu 1450\n", nil, ""},
		"kube-proxy does Services": {left, nil, nobody},
		"beside it the node does":  {left, at.Service, ""},
	} {
		p, err := plan.Parse(test.plan)
		if err != nil {
			t.Fatal(what, err)
		}
		if got := unanswered(p, at, test.serving, api.NamesByNodes, none); got != test.want {
			t.Errorf("%s: %q, want %q", what, got, test.want)
		}
	}
	p, err := plan.Parse(plain)
	if err != nil {
		t.Fatal(err)
	}
	want := "nobody answers at 10.96.0.10, where pods ask for names: Service kube-system/kube-dns has no endpoints, and spec.dns.server of the ClusterConfig leaves names to these: see why none is ready, or set it to nodes"
	if got := unanswered(p, at, nil, api.NamesByPods, none); got != want {
		t.Errorf("where pods are to answer: %q, want %q", got, want)
	}
	if p, err = plan.Parse(left); err != nil {
		t.Fatal(err)
	}
	for server, behind := range map[string]bool{api.NamesByNodes: true, api.NamesByPods: false} {
		if got := unanswered(p, at, nil, server, func(netip.Addr) bool { return behind }); got != "" {
			t.Errorf("beside kube-proxy, where %s answer, and there are endpoints: %t: %q", server, behind, got)
		}
	}
}

// TestHasEndpoint: whether anybody is behind a Service say its EndpointSlices of the address's family.
func TestHasEndpoint(t *testing.T) {
	slice := func(name, of string, conditions discoveryv1.EndpointConditions) registry.Object {
		es := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.1.2"}, Conditions: conditions}}}
		es.Namespace, es.Name, es.Labels = "kube-system", name, map[string]string{discoveryv1.LabelServiceName: of}
		return es
	}
	for what, test := range map[string]struct {
		of         string
		conditions discoveryv1.EndpointConditions
		want       bool
	}{
		"nothing is said of it": {"kube-dns", discoveryv1.EndpointConditions{}, true},
		"it is ready":           {"kube-dns", discoveryv1.EndpointConditions{Ready: new(true)}, true},
		"it is not ready":       {"kube-dns", discoveryv1.EndpointConditions{Ready: new(false)}, false},
		"it serves to its end":  {"kube-dns", discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}, true},
		"it is another's":       {"other", discoveryv1.EndpointConditions{}, false},
	} {
		objects := registry.NewSnapshot(map[*registry.Kind][]registry.Object{api.EndpointSlice: {slice("a", test.of, test.conditions)}})
		of := registry.Key{Namespace: "kube-system", Name: "kube-dns"}
		if got := hasEndpoint(objects, of, netip.MustParseAddr("10.96.0.10")); got != test.want {
			t.Errorf("%s: %t, want %t", what, got, test.want)
		}
		if hasEndpoint(objects, of, netip.MustParseAddr("fd00::10")) {
			t.Errorf("%s: it is of another family, too", what)
		}
	}
}

// TestTaken: a name server is told to be at no address that is another's.
func TestTaken(t *testing.T) {
	n, _, says := namesOf(t, t.TempDir())
	n.read(namesInput(api.DNSSpec{Server: api.NamesByNodes, Addresses: []string{"169.254.20.10", "10.1.1.2"}}), &plan.Plan{}, []netip.Addr{netip.MustParseAddr("10.1.1.2")})
	if got, want := says(), "at 10.96.0.10,169.254.20.10 of 2"; got != want {
		t.Errorf("it is told to be %s, want %s", got, want)
	}
}

// TestAskedNowhere: that the Service that pods ask leads nowhere is told as of the ClusterConfig,
// where that says that pods ask.
func TestAskedNowhere(t *testing.T) {
	service := func(spec corev1.ServiceSpec) registry.Objects {
		svc := &corev1.Service{Spec: spec}
		svc.Namespace, svc.Name = "kube-system", "kube-dns"
		return registry.NewSnapshot(map[*registry.Kind][]registry.Object{api.Service: {svc}})
	}
	ports := []corev1.ServicePort{{Port: 53, Protocol: corev1.ProtocolUDP}}
	nodes := api.DNSSpec{Server: api.NamesByNodes}
	for what, test := range map[string]struct {
		dns     api.DNSSpec
		objects registry.Objects
		want    string
	}{
		"nothing says that there are names":    {api.DNSSpec{}, registry.Snapshot{}, ""},
		"there is none, and nodes are to":      {nodes, registry.Snapshot{}, "there is no Service kube-system/kube-dns"},
		"there is none, and pods ask the node": {api.DNSSpec{Server: api.NamesByNodes, Addresses: []string{api.NodeAddress}}, registry.Snapshot{}, ""},
		"another is named that there is not":   {api.DNSSpec{Service: "default/nosuch"}, registry.Snapshot{}, "there is no Service default/nosuch"},
		"it has another port":                  {nodes, service(corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{{Port: 80}}}), "Service kube-system/kube-dns has no port 53"},
		"it is headless":                       {api.DNSSpec{}, service(corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: ports}), "Service kube-system/kube-dns has no address in the cluster"},
		"all is well":                          {nodes, service(corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: ports}), ""},
	} {
		config := api.Effective(&api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: api.ClusterConfigSpec{DNS: test.dns}})
		var got, want []plugin.Problem
		got = askedNowhere(config, test.objects, plugin.NameServerOf(config, test.objects, []netip.Addr{netip.MustParseAddr("172.30.0.2")}).More)
		if test.want != "" {
			want = []plugin.Problem{{Kind: api.ClusterConfigKind, Key: registry.Key{Name: api.DefaultName},
				Message: "spec.dns.service: " + test.want + ", so that pods' questions for names lead nowhere: make or mend that Service, or name here the one that they ask"}}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	config := api.Effective(&api.ClusterConfig{Spec: api.ClusterConfigSpec{DNS: api.DNSSpec{Server: api.NamesByNodes, Addresses: []string{"10.1.1.2"}}}})
	if got := askedNowhere(config, registry.Snapshot{}, nil); len(got) != 1 {
		t.Errorf("where each of more addresses is taken it is told %v", got)
	}
}

func TestStubDomainsThatNobodyIsAskedFor(t *testing.T) {
	dns := api.DNSSpec{Server: api.NamesByNodes, Domain: "cluster.local"}
	for _, domain := range []string{"corp.example", "cluster.local", "Svc.Cluster.Local.", "mycluster.local", "local"} {
		dns.StubDomains = append(dns.StubDomains, api.StubDomain{Domain: domain})
	}
	var got []string
	for _, p := range unasked(dns) {
		got = append(got, p.Message)
	}
	want := []string{
		"spec.dns.stubDomains[1]: nobody is asked for names of cluster.local, as nodes answer for the cluster's domain cluster.local themselves: take it out",
		"spec.dns.stubDomains[2]: nobody is asked for names of Svc.Cluster.Local., as nodes answer for the cluster's domain cluster.local themselves: take it out",
	}
	if !slices.Equal(got, want) {
		t.Errorf("it is said\n%s", strings.Join(got, "\n"))
	}
	dns.Server = api.NamesByPods
	if got := unasked(dns); len(got) > 0 {
		t.Errorf("where pods answer, it is said %v", got)
	}
}
