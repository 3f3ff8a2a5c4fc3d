package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/dns/compile"
	"github.com/weftnet/weft/dns/journal"
	"github.com/weftnet/weft/dns/keeper"
	"github.com/weftnet/weft/dns/records"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
)

// namesPart is what is wrong with the node's name server, and recordsPart that it is not told
// what it answers by.
const (
	namesPart   = "name server"
	recordsPart = "records of names"
)

const (
	// askNamesEvery is how often the name server is asked whether it answers.
	askNamesEvery = time.Second
	// namesGoneAfter is how long it may be away before pods' questions go to the Service's
	// own pods: one that is replaced is back before.
	namesGoneAfter = 10 * time.Second
)

// names has the node's name server know what names stand for, and the node know whether it
// answers.
type names struct {
	journal *journal.Journal
	// written is called when the records have been.
	written func() error
	ask     func(context.Context) (keeper.State, error)
	// problem and untold are told what is wrong with the name server, and with telling it.
	// kick has the node be brought to its plan.
	problem, untold func(string)
	kick            func()
	// identify returns the pod of an endpoint, nil where that is not known; it is nil where
	// there are no Pod objects to know it by.
	identify func(e plugin.Endpoint) *corev1.Pod

	news chan struct{}

	mu     sync.Mutex
	latest *plugin.Input
	// serves are the addresses at which the name server answers, in order, and last is when it
	// last did, or the agent began. gone says that it has ended and nobody takes its place, and unable that the
	// node's data plane cannot bring questions to it.
	serves       []netip.Addr
	gone, unable bool
	last         time.Time

	// compiler and told are run's own: told is what the name server was told last.
	compiler compile.Compiler
	told     *compile.Snapshot
}

func (a *agent) newNames() (*names, error) {
	files := nameFiles{a.RunDir}
	j, err := journal.Open(files.records())
	if err != nil {
		return nil, err
	}
	n := &names{journal: j, written: files.leadToRecords, news: make(chan struct{}, 1), kick: a.kick, last: time.Now(),
		ask:     files.ask,
		problem: a.problem(namesPart), untold: a.problem(recordsPart)}
	if a.pods != nil {
		n.identify = func(e plugin.Endpoint) *corev1.Pod { return a.pods.get(e.Namespace, e.Pod, e.UID) }
	}
	return n, nil
}

// run tells the name server what there is, and asks it whether it answers, until ctx ends.
func (n *names) run(ctx context.Context) {
	defer n.journal.Close()
	again := time.NewTicker(askNamesEvery)
	defer again.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.news:
			failed = !n.tell()
		case <-again.C:
			if failed || n.journal.Replaced() {
				failed = !n.tell()
			}
			n.look(ctx)
		}
	}
}

// look asks the name server whether it answers.
func (n *names) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askNamesEvery)
	defer cancel()
	state, err := n.ask(ctx)
	if ctx.Err() != nil && err != nil && context.Cause(ctx) == context.Canceled {
		return
	}
	now := time.Now()
	n.mu.Lock()
	before, gone := n.serves, n.gone
	switch {
	case err == nil && state.Serving:
		n.serves, n.last = addressesOf(state.Addresses), now
	case now.Sub(n.last) >= namesGoneAfter, err == nil && state.Idle:
		n.serves = nil
	}
	// One that ends takes its socket away, and one that is replaced or killed does not.
	n.gone = errors.Is(err, fs.ErrNotExist)
	changed := gone != n.gone && len(n.serves) > 0 || !slices.Equal(before, n.serves)
	problem := state.Problem // none where there is no name server: then the Service's pods answer
	if !state.Serving && now.Sub(n.last) < namesGoneAfter {
		problem = "" // it is being started
	}
	n.mu.Unlock()
	n.problem(problem)
	if changed {
		n.kick()
	}
}

// addressesOf are the addresses of sockets, in order.
func addressesOf(sockets []netip.AddrPort) (all []netip.Addr) {
	for _, at := range sockets {
		all = append(all, at.Addr())
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// serving returns the addresses at which the node's own name server answers, and whether it has
// ended: then they are those at which it may be back soon.
func (n *names) serving() (at []netip.Addr, gone bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unable {
		return nil, n.gone
	}
	return n.serves, n.gone
}

// servingBeside returns the addresses at which the node itself is to answer: those at which its
// name server does, but for those at which pods do while it is away.
func (n *names) servingBeside(p *plan.Plan, s plugin.NameServer) []netip.Addr {
	at, gone := n.serving()
	if !gone {
		return at
	}
	return slices.DeleteFunc(slices.Clone(at), func(a netip.Addr) bool {
		_, answers := podsAnswer(p, s, a)
		return answers
	})
}

// able takes note of whether the node's data plane can bring questions to the name server.
func (n *names) able(is bool) {
	n.mu.Lock()
	changed := n.unable == is
	n.unable = !is
	n.mu.Unlock()
	if changed {
		n.kick()
	}
}

// read takes note of what there is, for the name server to be told.
func (n *names) read(in plugin.Input) {
	n.mu.Lock()
	n.latest = &in
	n.mu.Unlock()
	select {
	case n.news <- struct{}{}:
	default:
	}
}

// tell tells the name server what there is, and reports whether it could.
func (n *names) tell() bool {
	n.mu.Lock()
	in, unable := n.latest, n.unable
	n.mu.Unlock()
	if in == nil {
		return true
	}
	now := n.compiler.Compile(in.Objects)
	changed, gone := now.Since(n.told)
	n.told = now // also where it could not be written: the journal writes all of it then
	set := *in
	if unable {
		// Nothing keeps other machines from asking at the node's own addresses.
		set.Node.Addresses = nil
	}
	settings := settingsOf(set)
	settings.Namespaces = now.Namespaces
	err := n.journal.Put(settings, changed, gone, n.clients(in.Node.Endpoints))
	if err == nil {
		err = n.written()
	}
	if err != nil {
		n.untold(err.Error())
		return false
	}
	n.untold("")
	return true
}

// settingsOf says how a node's name server is to answer, but for the namespaces that there are.
func settingsOf(in plugin.Input) *records.Settings {
	dns := in.Config.Spec.DNS
	s := &records.Settings{Domain: dns.Domain, Addresses: plugin.NameServerOf(in.Config, in.Objects, in.Node.Addresses).Addresses(), Upstreams: nameServers(dns.Upstreams), Prefixes: dns.AnyPrefix}
	for _, stub := range dns.StubDomains {
		s.Stubs = append(s.Stubs, records.Stub{Domain: stub.Domain, Servers: nameServers(stub.Servers)})
	}
	if dns.PodNames == api.PodNamesInsecure {
		s.Pods = records.AnyPods
	}
	if dns.StaleSeconds != nil {
		s.StaleFor = uint32(*dns.StaleSeconds)
	}
	return s
}

// nameServers are those of a list that can be read: what cannot be, validation has refused.
func nameServers(texts []string) (all []netip.AddrPort) {
	for _, text := range texts {
		if at, err := api.ParseNameServer(text); err == nil {
			all = append(all, at)
		}
	}
	return all
}

// clients are the pods of the node that search for names in the order in which all do whose
// objects say nothing else.
func (n *names) clients(endpoints []plugin.Endpoint) (all []records.Client) {
	for _, e := range endpoints {
		if e.Pod == "" || e.Unidentified || e.Network != plan.DefaultNetwork || !n.searches(e) {
			continue
		}
		for _, a := range e.Addresses {
			all = append(all, records.Client{Address: a, Namespace: e.Namespace})
		}
	}
	slices.SortFunc(all, func(a, b records.Client) int { return a.Address.Compare(b.Address) })
	return slices.CompactFunc(all, func(a, b records.Client) bool { return a.Address == b.Address })
}

// searches reports whether the pod of an endpoint searches as pods do by default.
func (n *names) searches(e plugin.Endpoint) bool {
	if n.identify == nil {
		return true
	}
	p := n.identify(e)
	return p != nil && (p.Spec.DNSPolicy == "" || p.Spec.DNSPolicy == corev1.DNSClusterFirst) && p.Spec.DNSConfig == nil
}

// nameServerIn are the addresses at which a plan has the node itself answer, as Nodes say it.
func nameServerIn(p *plan.Plan, s plugin.NameServer) string {
	var at []netip.Addr
	for _, a := range s.Addresses() {
		for _, from := range []plan.Scope{plan.Anywhere, plan.Inside} {
			svc, ok := p.Services.Get(plan.ServiceKey{Network: plan.DefaultNetwork, Address: a, Protocol: plan.UDP, Port: api.DNSPort, From: from})
			if ok && svc.Here {
				at = append(at, a)
			}
		}
	}
	return joined(at)
}

// podsAnswer reports whether a plan has the Service at one of its addresses, and whether there is
// a pod that answers there.
func podsAnswer(p *plan.Plan, s plugin.NameServer, a netip.Addr) (is, answers bool) {
	_, svc, ok := p.Service(plan.DefaultNetwork, a, plan.UDP, api.DNSPort, plan.Inside)
	is = ok && svc.Origin == s.Origin
	return is, is && hasBackend(p, svc.Set)
}

// unanswered says that nobody answers pods' questions for names: neither the node itself, nor
// a pod that the Service selects.
func unanswered(p *plan.Plan, s plugin.NameServer, serving []netip.Addr) string {
	if p.Local.ServicesLeft {
		return ""
	}
	var nobody []string
	for _, a := range s.Service {
		if slices.Contains(serving, a) {
			continue
		}
		if is, answers := podsAnswer(p, s, a); is && !answers {
			nobody = append(nobody, a.String())
		}
	}
	if len(nobody) == 0 {
		return ""
	}
	return fmt.Sprintf("nobody answers at %s, where pods ask for names: %s has no endpoints, and no name server runs on the node: start weft-dns there",
		printable.Few(nobody, 0), s.Origin)
}

// putNames has a plan have the node itself answer at the addresses of its name server, as long as
// it answers there.
func (a *agent) putNames(p *plan.Plan, in plugin.Input) *plan.Plan {
	at := plugin.NameServerOf(in.Config, in.Objects, in.Node.Addresses)
	serving := a.names.servingBeside(p, at)
	text := unanswered(p, at, serving)
	a.mu.Lock()
	changed := a.unanswered != text
	a.unanswered = text
	a.mu.Unlock()
	if changed {
		a.node.Kick()
	}
	return plugin.PutNames(p, at.Within(serving))
}
