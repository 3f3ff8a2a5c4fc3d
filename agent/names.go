package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/dns/compile"
	"github.com/weftnet/weft/dns/journal"
	"github.com/weftnet/weft/dns/keeper"
	"github.com/weftnet/weft/dns/records"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
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
	// namesRefusedAfter is how many looks in a row find nobody until it is told: one that is started
	// again is back before the second.
	namesRefusedAfter = 2
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

	mu sync.Mutex
	// latest is what there is, own says which addresses are the node's own, and taken are those of its
	// configuration that others have.
	latest *plugin.Input
	own    func(netip.Addr) bool
	taken  []netip.Addr
	// loaded is the plan that the data plane has in force; nil before there was one.
	loaded *plan.Plan
	// at are the addresses at which the name server was told last to be, by this agent or the one
	// before, and open those at which it said last that it has sockets.
	at, open []netip.Addr
	// serves are the addresses at which the name server answers, in order, and last is when it
	// last did, or the agent began. gone says that it has ended and nobody takes its place, and unable that the
	// node's data plane cannot bring questions to it.
	serves       []netip.Addr
	gone, unable bool
	last         time.Time
	// nobody is how many looks have found nobody since the last that found somebody.
	nobody int

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
	if n.at, err = files.toldLast(); err != nil {
		a.Log.Warn("at which addresses the name server was told to be is not known", "error", err)
	}
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
	before, gone, open := n.serves, n.gone, n.open
	if err == nil {
		n.open = addressesOf(state.Addresses)
	} else if errors.Is(err, fs.ErrNotExist) {
		n.open = nil
	}
	other := !slices.Equal(open, n.open)
	// Where one of the node's own is closed, nobody need be kept from it any more.
	unguarded := n.own != nil && slices.ContainsFunc(open, func(a netip.Addr) bool { return !slices.Contains(n.open, a) && n.own(a) })
	switch {
	case err == nil && state.Serving:
		n.serves, n.last = addressesOf(state.Addresses), now
	case now.Sub(n.last) >= namesGoneAfter, err == nil && state.Idle:
		n.serves = nil
	}
	// One that ends takes its socket away, and one that is replaced or killed does not.
	n.gone = errors.Is(err, fs.ErrNotExist)
	if n.nobody++; !n.gone && !errors.Is(err, unix.ECONNREFUSED) {
		n.nobody = 0
	}
	changed := gone != n.gone && len(n.serves) > 0 || !slices.Equal(before, n.serves) || unguarded
	problem := state.Problem // none where there is no name server: then the Service's pods answer
	if !state.Serving && now.Sub(n.last) < namesGoneAfter {
		problem = "" // it is being started
	}
	if at := n.leading(); n.nobody >= namesRefusedAfter && len(at) > 0 {
		problem = plugin.RefusedNames(at)
	}
	n.mu.Unlock()
	n.problem(problem)
	if other {
		n.again()
	}
	if changed {
		n.kick()
	}
}

// leading are the addresses at which questions come to the node itself, by the plan that is in force,
// until its name server has been away for long enough. mu is held.
func (n *names) leading() []netip.Addr {
	return slices.DeleteFunc(slices.Clone(n.serves), func(a netip.Addr) bool { return n.loaded == nil || !plugin.NameServerIn(n.loaded, a) })
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

// read takes note of what there is, and of what was compiled of it, for the name server to be told,
// which is to be at no address that is taken.
func (n *names) read(in plugin.Input, p *plan.Plan, taken []netip.Addr) {
	local := p.Local
	n.mu.Lock()
	n.latest, n.own, n.taken = &in, func(a netip.Addr) bool { return local.Owns(plan.DefaultNetwork, a) }, taken
	n.mu.Unlock()
	n.again()
}

// load takes note of the plan that is in force.
func (n *names) load(p *plan.Plan) {
	n.mu.Lock()
	n.loaded = p
	other := n.latest != nil && !slices.Equal(n.at, n.addresses())
	n.mu.Unlock()
	if other {
		n.again()
	}
}

// again has the name server be told what is new.
func (n *names) again() {
	select {
	case n.news <- struct{}{}:
	default:
	}
}

// addresses are those at which the name server is to be now. At an address of the node itself it
// begins only under a plan that keeps other machines out, and nowhere does it end before a plan is
// in force that leads no question there. mu is held.
func (n *names) addresses() (all []netip.Addr) {
	node := n.latest.Node.Addresses
	if n.unable {
		node = nil // nothing keeps other machines from asking there
	}
	wanted := slices.DeleteFunc(plugin.NameServerOf(n.latest.Config, n.latest.Objects, node).Addresses(), func(a netip.Addr) bool { return slices.Contains(n.taken, a) })
	for _, a := range wanted {
		if slices.Contains(n.at, a) || !n.own(a) || n.loaded != nil && plugin.KeepsOthersOut(n.loaded, a) {
			all = append(all, a)
		}
	}
	for _, a := range n.at {
		if !slices.Contains(wanted, a) && (n.loaded == nil || plugin.NameServerIn(n.loaded, a)) {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// toldAt are the addresses at which the name server was told last to be.
func (n *names) toldAt() []netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.at
}

// guarded are the addresses at which other machines are to be kept from the name server: those
// at which it is to be, and those at which it may be still.
func (n *names) guarded(s plugin.NameServer) []netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Concat(s.More, n.at, n.open)
}

// tell tells the name server what there is, and reports whether it could. One that has no address,
// and no socket, as pods answer for names, needs to know of no Service.
func (n *names) tell() bool {
	n.mu.Lock()
	if n.latest == nil {
		n.mu.Unlock()
		return true
	}
	in, at, answers := *n.latest, n.addresses(), len(n.open) > 0
	n.at = at
	n.mu.Unlock()
	now, clients := &compile.Snapshot{}, []records.Client(nil)
	if answers || len(at) > 0 {
		now, clients = n.compiler.Compile(in.Objects), n.clients(in.Node.Endpoints)
	} else {
		n.compiler = compile.Compiler{}
	}
	changed, gone := now.Since(n.told)
	n.told = now // also where it could not be written: the journal writes all of it then
	err := n.journal.Put(settingsOf(in, at), now.Namespaces, changed, gone, clients)
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

// settingsOf says how a node's name server is to answer, and at which addresses.
func settingsOf(in plugin.Input, at []netip.Addr) *records.Settings {
	dns := in.Config.Spec.DNS
	s := &records.Settings{Domain: dns.Domain, Addresses: at, Upstreams: nameServers(dns.Upstreams), Prefixes: dns.AnyPrefix}
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

// searches reports whether the pod of an endpoint searches as pods do by default. api.Pod keeps a
// dnsConfig only where the pod searches by it.
func (n *names) searches(e plugin.Endpoint) bool {
	if n.identify == nil {
		return true
	}
	p := n.identify(e)
	return p != nil && (p.Spec.DNSPolicy == "" || p.Spec.DNSPolicy == corev1.DNSClusterFirst) && p.Spec.DNSConfig == nil
}

// nameServerIn are the addresses at which a plan has the node itself answer, as Nodes say it.
func nameServerIn(p *plan.Plan, s plugin.NameServer) string {
	return joined(slices.DeleteFunc(s.Addresses(), func(a netip.Addr) bool { return !plugin.NameServerIn(p, a) }))
}

// podsAnswer reports whether a plan has the Service at one of its addresses, and whether there is
// a pod that answers there.
func podsAnswer(p *plan.Plan, s plugin.NameServer, a netip.Addr) (is, answers bool) {
	_, svc, ok := p.Service(plan.DefaultNetwork, a, plan.UDP, api.DNSPort, plan.Inside)
	is = ok && svc.Origin == s.Origin
	return is, is && hasBackend(p, svc.Set)
}

// hasEndpoint reports whether a Service has an endpoint that serves, of the family of an address.
func hasEndpoint(objects registry.Objects, of registry.Key, address netip.Addr) bool {
	family := discoveryv1.AddressTypeIPv6
	if address.Is4() {
		family = discoveryv1.AddressTypeIPv4
	}
	serves := func(e discoveryv1.Endpoint) bool {
		ready, serving := e.Conditions.Ready, e.Conditions.Serving
		return len(e.Addresses) > 0 && (ready == nil || *ready || serving != nil && *serving)
	}
	for es := range registry.Each[*discoveryv1.EndpointSlice](objects, api.EndpointSlice) {
		if es.Namespace == of.Namespace && es.Labels[discoveryv1.LabelServiceName] == of.Name && es.AddressType == family && slices.ContainsFunc(es.Endpoints, serves) {
			return true
		}
	}
	return false
}

// unanswered says that nobody answers pods' questions for names: neither the node itself, nor
// a pod that the Service selects. Where another program does Services, no plan has the Service's pods:
// there it is told where the node itself is to answer, and behind says whether the Service has
// an endpoint of an address's family.
func unanswered(p *plan.Plan, s plugin.NameServer, serving []netip.Addr, server string, behind func(netip.Addr) bool) string {
	var nobody []string
	for _, a := range s.Service {
		is, answers := podsAnswer(p, s, a)
		switch {
		case slices.Contains(serving, a), !p.Local.ServicesLeft && (!is || answers):
		case p.Local.ServicesLeft && (server != api.NamesByNodes || behind(a)):
		default:
			nobody = append(nobody, a.String())
		}
	}
	if len(nobody) == 0 {
		return ""
	}
	why := "no name server runs on the node: " + plugin.StartNameServer
	if server != api.NamesByNodes {
		why = "spec.dns.server of the ClusterConfig leaves names to these: see why none is ready, or set it to " + api.NamesByNodes
	}
	return fmt.Sprintf("nobody answers at %s, where pods ask for names: %s has no endpoints, and %s", printable.Few(nobody, 0), s.Origin, why)
}

// askedNowhere says that at the Service at whose addresses pods ask for names nobody can be asked,
// whoever is to answer. Where nothing says that a cluster has names, it need not have any, and where
// name servers answer at more addresses, pods may ask there.
func askedNowhere(config *api.ClusterConfig, objects registry.Objects, more []netip.Addr) []plugin.Problem {
	dns := config.Spec.DNS
	key := dns.ServiceKey()
	if dns.Service == api.DefaultDNSService && (dns.Server != api.NamesByNodes || len(more) > 0) && objects.Get(api.Service, key) == nil {
		return nil
	}
	_, err := plugin.NameService(config, objects)
	if err == nil {
		return nil
	}
	return []plugin.Problem{{Kind: api.ClusterConfigKind, Key: registry.Key{Name: api.DefaultName}, Message: fmt.Sprintf("spec.dns.service: %v, so that pods' questions for names lead nowhere: make or mend that Service, or name here the one that they ask", err)}}
}

// unasked says of which stub domains nobody is ever asked, as nodes answer for the cluster's domain themselves.
func unasked(dns api.DNSSpec) (all []plugin.Problem) {
	domain := strings.ToLower(strings.TrimSuffix(dns.Domain, "."))
	if dns.Server != api.NamesByNodes || domain == "" {
		return nil
	}
	for i, stub := range dns.StubDomains {
		name := strings.ToLower(strings.TrimSuffix(stub.Domain, "."))
		if name == domain || strings.HasSuffix(name, "."+domain) {
			all = append(all, plugin.Problem{Kind: api.ClusterConfigKind, Key: registry.Key{Name: api.DefaultName}, Message: fmt.Sprintf(
				"spec.dns.stubDomains[%d]: nobody is asked for names of %s, as nodes answer for the cluster's domain %s themselves: take it out", i, printable.Line(stub.Domain), domain)})
		}
	}
	return all
}

// putNames has a plan have the node itself answer at the addresses of its name server, as long as
// it answers there.
// It returns what keeps names from being answered where the configuration says so.
func (a *agent) putNames(p *plan.Plan, in plugin.Input) (*plan.Plan, []plugin.Problem) {
	at, taken, problems := plugin.NameServerOf(in.Config, in.Objects, in.Node.Addresses).Free(p, in.Objects, a.names.toldAt())
	a.names.read(in, p, taken)
	serving := a.names.servingBeside(p, at)
	asked := at
	asked.Service, _ = plugin.NameService(in.Config, in.Objects) // also where pods are to answer
	text := unanswered(p, asked, serving, in.Config.Spec.DNS.Server, func(a netip.Addr) bool {
		return hasEndpoint(in.Objects, in.Config.Spec.DNS.ServiceKey(), a)
	})
	a.mu.Lock()
	changed := a.unanswered != text
	a.unanswered = text
	a.mu.Unlock()
	if changed {
		a.node.Kick()
	}
	return plugin.KeepOthersOut(plugin.PutNames(p, at.Within(serving)), a.names.guarded(at), at.MoreOrigin), slices.Concat(problems, askedNowhere(in.Config, in.Objects, at.More), unasked(in.Config.Spec.DNS))
}
