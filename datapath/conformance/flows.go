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
	// receiver is the name of the host that must get it.
	receiver string
	// answered says that the answer must come back, too.
	answered bool

	word    string
	arrival <-chan arrival
	failed  string
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
		case a.says.Allowed:
			allowed = append(allowed, a)
		default:
			denied = append(denied, a)
		}
		for _, h := range l.hosts() {
			l.listen(h, service{f.Protocol, f.Port})
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
	if !a.says.Allowed {
		return a, true
	}
	a.receiver = receiver(a.says)
	if a.receiver == "" {
		return nil, false
	}
	back := plan.Explain(open, plan.Flow{Network: f.Network, Source: a.says.SeenDestination, Destination: a.says.SeenSource,
		Protocol: f.Protocol, Node: a.backAt(plans)})
	a.answered = back.Allowed && back.SeenSource == a.says.SeenDestination
	if f.Protocol == plan.ICMP || f.Protocol == plan.ICMPv6 {
		// The kernel answers echo requests from addresses of its own only.
		a.answered = a.answered && (a.receiver != l.out.name || isOutside(a.says.SeenDestination))
	}
	return a, true
}

// backAt names the node at which an answer from outside comes in.
func (a *attempt) backAt(plans map[string]*plan.Plan) string {
	for name, p := range plans {
		if slices.Contains(p.Local.Addresses, a.says.SeenSource) && a.receiver == outsideName {
			return name
		}
	}
	return ""
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
	if !a.answered {
		return // a handshake needs both ways
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
		a.failed = fmt.Sprintf("send: %v", err)
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
	want := arrival{a.receiver, a.says.SeenSource, a.says.SeenDestination}
	select {
	case got := <-a.arrival:
		if got != want {
			a.failed = fmt.Sprintf("arrived at %s from %s to %s; expected at %s from %s to %s",
				got.receiver, got.source, got.destination, want.receiver, want.source, want.destination)
		}
	case <-time.After(patience):
		a.failed = fmt.Sprintf("it did not arrive at %s", want.receiver)
	}
}

func (a *attempt) to() netip.AddrPort {
	return netip.AddrPortFrom(a.flow.Destination, a.flow.Port)
}
