package conformance

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftnet/weft/plan"
)

// attempt is one flow that is tried, with what the interpreter says of it.
type attempt struct {
	flow plan.Flow
	says plan.Explanation
	from *host
	// source is what the sender binds to; invalid where that is the kernel's
	// choice.
	source netip.Addr
	// ends are where it may arrive: with each backend that a Service may choose, if it
	// goes to one of several.
	ends []end
	// certain says that it arrives, or that it does not, whichever backend it gets.
	certain bool
	// answered says that the answer must come back, too.
	answered bool

	word    string
	arrival <-chan arrival
	failed  string
}

// end is where a flow ends with one backend.
type end struct {
	says plan.Explanation
	// receiver is the name of the host that must get it; empty where it is denied.
	receiver string
	answered bool
}

// ends are those of a flow with each backend that it may get. What is said of each begins
// with all steps of the flow.
func ends(e plan.Explanation) []end {
	if len(e.Backends) == 0 {
		return []end{{says: e}}
	}
	var all []end
	for _, c := range e.Backends {
		c.Steps = slices.Concat(e.Steps, c.Steps)
		all = append(all, ends(c.Explanation)...)
	}
	return all
}

// try sends each flow and holds what arrives against the interpreter. It
// returns the flows of which no host could see the end, as they end at a node
// without a plan.
func (l *topology) try(t *testing.T, plans map[string]*plan.Plan, flows []plan.Flow) (untried []plan.Flow) {
	t.Helper()
	var denied, allowed []*attempt
	open := withoutPolicies(plans)
	for _, f := range flows {
		a, ok := l.attempt(t, plans, open, f)
		switch {
		case !ok:
			untried = append(untried, f)
		case a.allowed():
			allowed = append(allowed, a)
		default:
			denied = append(denied, a)
		}
		for _, h := range l.hosts() {
			l.listen(h, service{f.Protocol, f.Port})
			for _, e := range ends(plan.Explain(plans, f)) {
				if e.says.Allowed {
					l.listen(h, service{f.Protocol, e.says.SeenPort})
				}
			}
		}
	}
	// What must not arrive is sent first: by the time when all that must
	// arrive has arrived, it would have, too.
	var running sync.WaitGroup
	for _, a := range denied {
		running.Go(a.deny)
	}
	for _, a := range allowed {
		running.Go(a.allow)
	}
	running.Wait()
	for _, a := range denied {
		select {
		case got := <-a.arrival:
			a.failed = fmt.Sprintf("it arrived at %s from %s", got.receiver, got.source)
		default:
		}
	}
	for _, a := range slices.Concat(denied, allowed) {
		if a.failed != "" {
			t.Errorf("%s, sent by %s: %s\n%s", a.flow, a.from.name, a.failed, a.says)
		}
	}
	return untried
}

func (l *topology) hosts() []*host {
	hosts := []*host{l.out}
	for _, n := range l.nodes {
		hosts = append(hosts, n.host)
		for _, p := range n.pods {
			hosts = append(hosts, p.host)
		}
	}
	return hosts
}

// withoutPolicies returns plans in which no endpoint has a policy: what they
// allow is what the answers to connections may do.
func withoutPolicies(plans map[string]*plan.Plan) map[string]*plan.Plan {
	open := map[string]*plan.Plan{}
	for name, p := range plans {
		q := *p
		for k, e := range p.Endpoints.All() {
			e.IngressPolicy, e.EgressPolicy = "", ""
			q.Endpoints = q.Endpoints.Set(k, e)
		}
		open[name] = &q
	}
	return open
}

// attempt asks the interpreter about a flow, and finds sender and receiver.
// open is plans without policies. It returns false where the flow ends out of
// sight.
func (l *topology) attempt(t *testing.T, plans, open map[string]*plan.Plan, f plan.Flow) (*attempt, bool) {
	t.Helper()
	a := &attempt{flow: f, says: plan.Explain(plans, f), source: f.Source}
	a.word, a.arrival = l.expect()
	if a.from = l.sender(plans, f); a.from == nil {
		t.Fatalf("%s: nobody can send that", f)
	}
	if n, ok := l.nodes[a.from.name]; ok && n.host == a.from {
		a.source = netip.Addr{} // Explain says what the kernel chooses
	}
	a.ends, a.certain, a.answered = ends(a.says), !a.says.Unknown, true
	passes := 0
	for i := range a.ends {
		e := &a.ends[i]
		if !e.says.Allowed {
			continue
		}
		if e.receiver = receiver(e.says); e.receiver == "" {
			return nil, false
		}
		passes++
		e.answered = l.isAnswered(plans, open, f, *e)
		a.answered = a.answered && e.answered
	}
	a.certain = a.certain && (passes == 0 || passes == len(a.ends))
	a.answered = a.answered && passes == len(a.ends)
	return a, true
}

// isAnswered reports whether an answer must come back.
func (l *topology) isAnswered(plans, open map[string]*plan.Plan, f plan.Flow, e end) bool {
	if e.says.AnsweredHere() {
		return true // whatever policies say
	}
	back := plan.Explain(open, plan.Flow{Network: f.Network, Source: e.says.SeenDestination, Destination: e.says.SeenSource,
		Protocol: f.Protocol, Node: e.backAt(plans)})
	if !back.Allowed || back.SeenSource != e.says.SeenDestination {
		return false
	}
	if at := translatedAt(e.says); len(at) > 0 && !comesBy(plans, f, e.says, back, at) {
		return false
	}
	if f.Protocol == plan.ICMP || f.Protocol == plan.ICMPv6 {
		// The kernel answers echo requests from addresses of its own only.
		return e.receiver != l.out.name || isOutside(e.says.SeenDestination)
	}
	return true
}

// translatedAt are the nodes at which a Service gave a packet its backend.
func translatedAt(e plan.Explanation) (nodes []string) {
	for _, s := range e.Steps {
		if s.Table == "services" && strings.Contains(s.Entry, "service ") {
			nodes = append(nodes, s.Node)
		}
	}
	return nodes
}

// comesBy reports whether an answer comes by the one node that gave the packet its backend,
// which must give it the address that the sender knows, and gets to the sender from there.
func comesBy(plans map[string]*plan.Plan, f plan.Flow, there, back plan.Explanation, nodes []string) bool {
	p := plans[nodes[0]]
	if len(nodes) > 1 || there.Steps[0].Node != nodes[0] {
		return false
	}
	byNode := func(s plan.Step) bool { return s.Node == nodes[0] }
	if !owns(p, there.SeenSource) && !slices.ContainsFunc(back.Steps, byNode) {
		return false // it goes past the node
	}
	if p.Owns(plan.DefaultNetwork, f.Source) || isEndpoint(p, f.Source) || !isEndpoint(p, there.SeenDestination) {
		return true
	}
	// What an endpoint of the node answers takes the endpoints' routes, whoever it has
	// taken for its client.
	_, r, ok := p.Route(plan.DefaultNetwork, f.Source, true)
	return ok && r.Way != plan.ToDrop
}

// isEndpoint reports whether an endpoint of a plan has an address.
func isEndpoint(p *plan.Plan, a netip.Addr) bool {
	for _, e := range p.Endpoints.All() {
		if slices.Contains(e.Addresses, a) {
			return true
		}
	}
	return false
}

// backAt names the node at which an answer from outside comes in.
func (e end) backAt(plans map[string]*plan.Plan) string {
	for name, p := range plans {
		if slices.Contains(p.Local.Addresses, e.says.SeenSource) && e.receiver == outsideName {
			return name
		}
	}
	return ""
}

// allowed reports whether it may arrive.
func (a *attempt) allowed() bool {
	return slices.ContainsFunc(a.ends, func(e end) bool { return e.receiver != "" })
}

func isOutside(a netip.Addr) bool {
	is := func(p netip.Prefix) bool { return p.Addr() == a }
	return slices.ContainsFunc(routers, is) || slices.ContainsFunc(outside, is)
}

// sender is who sends a flow, as Explain finds it. Nodes and the outside are of the
// network of nodes alone.
func (l *topology) sender(plans map[string]*plan.Plan, f plan.Flow) *host {
	network := cmp.Or(f.Network, plan.DefaultNetwork)
	for name, p := range plans {
		if f.Node != "" && f.Node != name {
			continue
		}
		for k, e := range p.Endpoints.All() {
			if f.Interface == k.Interface || f.Interface == "" && e.Network == network && slices.Contains(e.Addresses, f.Source) {
				return l.nodes[name].pods[k.Interface].host
			}
		}
	}
	if network != plan.DefaultNetwork {
		return nil
	}
	for name, p := range plans {
		if owns(p, f.Source) {
			return l.nodes[name].host
		}
	}
	if isOutside(f.Source) {
		return l.out
	}
	return nil
}

func owns(p *plan.Plan, a netip.Addr) bool {
	return slices.Contains(p.Local.Addresses, a) || slices.Contains(p.Local.PoolAddresses(), a)
}

// receiver names who must get what the interpreter let through: an endpoint, a node, or
// the outside. It is empty when the packet went to a node without a plan.
func receiver(says plan.Explanation) string {
	switch {
	case says.Interface != "":
		return says.Interface
	case says.Node != "":
		return says.Node
	case strings.Contains(says.Reason, "no plan is known"):
		return ""
	default:
		return outsideName
	}
}

// deny tries what must not come about.
func (a *attempt) deny() {
	switch a.flow.Protocol {
	case plan.TCP:
		c, err := a.from.dial("tcp", a.source, a.to(), disappointment)
		if err == nil {
			a.failed = fmt.Sprintf("the connection was accepted by %s", c.RemoteAddr())
			c.Close()
		}
	case plan.ICMP, plan.ICMPv6:
		if err := a.from.ping(a.source, a.flow.Destination, disappointment); err == nil {
			a.failed = "the echo request was answered"
		}
	default:
		c, err := a.from.dial("udp", a.source, a.to(), disappointment)
		if err != nil {
			return // no route
		}
		defer c.Close()
		_, _ = c.Write([]byte(a.word)) // an error is as good
	}
}

// allow tries what must come about.
func (a *attempt) allow() {
	switch a.flow.Protocol {
	case plan.TCP:
		a.connect()
	case plan.ICMP, plan.ICMPv6:
		if !a.answered {
			return
		}
		if err := a.from.ping(a.source, a.flow.Destination, patience); err != nil {
			a.failed = fmt.Sprintf("echo: %v", err)
		}
	default:
		a.send()
	}
}

func (a *attempt) connect() {
	if !a.answered && a.certain {
		return // a handshake needs both ways
	}
	if !a.certain {
		if c, err := a.from.dial("tcp", a.source, a.to(), disappointment); err == nil {
			if converse(c, a.word) == nil {
				a.check()
			}
			c.Close()
		}
		return
	}
	c, err := a.from.dial("tcp", a.source, a.to(), patience)
	if err != nil {
		a.failed = err.Error()
		return
	}
	defer c.Close()
	if err := converse(c, a.word); err != nil {
		a.failed = err.Error()
		return
	}
	a.check()
}

func (a *attempt) send() {
	c, err := a.from.dial("udp", a.source, a.to(), patience)
	if err != nil {
		a.failed = err.Error()
		return
	}
	defer c.Close()
	if _, err := c.Write([]byte(a.word)); err != nil {
		if a.certain {
			a.failed = fmt.Sprintf("send: %v", err)
		}
		return
	}
	if a.check(); a.failed != "" || !a.answered {
		return
	}
	b := make([]byte, 100)
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		a.failed = err.Error()
		return
	}
	if n, err := c.Read(b); err != nil {
		a.failed = fmt.Sprintf("the answer: %v", err)
	} else if string(b[:n]) != a.word {
		a.failed = fmt.Sprintf("the answer is %q instead of %q", b[:n], a.word)
	}
}

// check waits for the arrival and compares it.
func (a *attempt) check() {
	var want []arrival
	for _, e := range a.ends {
		if e.receiver != "" {
			want = append(want, arrival{e.receiver, e.says.SeenSource, e.says.SeenDestination})
		}
	}
	limit := patience
	if !a.certain {
		limit = disappointment
	}
	select {
	case got := <-a.arrival:
		if !slices.Contains(want, got) {
			a.failed = fmt.Sprintf("arrived %s; expected %s", got, want)
		}
	case <-time.After(limit):
		if a.certain {
			a.failed = fmt.Sprintf("it did not arrive %s", want)
		}
	}
}

// String says where something arrived.
func (a arrival) String() string {
	return fmt.Sprintf("at %s from %s to %s", a.receiver, a.source, a.destination)
}

func (a *attempt) to() netip.AddrPort {
	return netip.AddrPortFrom(a.flow.Destination, a.flow.Port)
}
