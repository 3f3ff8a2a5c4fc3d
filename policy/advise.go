package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/weftnet/weft/plan"
)

// Connection is one that the policies of one of its parties are asked about.
type Connection struct {
	// Direction is the subject's.
	Direction plan.Direction
	// Subject is the pod whose policies are asked, Peer the other side.
	Subject, Peer Party
	// SubjectName and PeerName are what people call them: "pod default/web".
	SubjectName, PeerName string
	Protocol              plan.Protocol
	// Port is the destination port, for protocols that have ports.
	Port uint16
}

func (c *Connection) destination() *Party {
	if c.Direction == plan.Incoming {
		return &c.Subject
	}
	return &c.Peer
}

// Decide returns what the policies decide about a connection.
func (c *Connection) Decide(policies []*Policy) Decision {
	return c.decide(Applicable(policies, c.Subject.Identity, c.Subject.NamespaceLabels, c.Direction))
}

func (c *Connection) decide(rules []Applied) Decision {
	return decisionOfPort(Resolve(rules, c.Peer, c.destination().Identity), c.Protocol, c.Port)
}

// Advice is what policies decide about a connection and, where they deny it,
// the least that would have to be otherwise.
type Advice struct {
	Decision Decision
	// Nearest is the origin of the rule that would allow the connection after
	// the fewest changes; empty if no rule could.
	Nearest string
	// Text says in a sentence what would allow the connection; empty where it
	// is allowed.
	Text string

	cost int
}

// Advise says what the subject's policies decide about a connection and, if
// they deny it, which rule is the nearest that would have allowed it, and the
// smallest change after which it would. The policies of the other side, which
// must allow the connection as well, are asked separately.
//
// The rules that count are those that are asked before the one that denies. A
// label or a listed port counts as one change, another peer as three, as saying
// whom a rule is for takes about as much. Of rules as near as each other the
// first is chosen. Every change has been tried: with it the subject's policies
// allow the connection.
func Advise(policies []*Policy, c Connection) Advice {
	rules := Applicable(policies, c.Subject.Identity, c.Subject.NamespaceLabels, c.Direction)
	a := Advice{Decision: c.decide(rules)}
	if a.Decision.Allow {
		return a
	}
	deciding := slices.IndexFunc(rules, func(r Applied) bool { return r.Origin == a.Decision.Origin })
	for _, r := range rules[:deciding] {
		if r.Action != Allow {
			continue
		}
		for _, changes := range c.changes(r.Rule) {
			cost := 0
			for _, ch := range changes {
				cost += ch.cost
			}
			if (a.Nearest == "" || cost < a.cost) && c.allowedAfter(policies, r.Rule, changes) {
				a.Nearest, a.cost = r.Origin, cost
				a.Text = fmt.Sprintf("the nearest is %s, which allows %s: it would hold if %s", r.Origin, c.ruleText(r.Rule), changesText(changes))
			}
		}
	}
	if a.Nearest == "" {
		a.Text = c.newRule(rules[deciding])
	}
	return a
}

// newRule says what rule would allow the connection where none is near.
func (c *Connection) newRule(deciding Applied) string {
	missing := fmt.Sprintf("for %s %s %s", portText(Port{Protocol: c.Protocol, Range: plan.PortRange{First: c.Port, Last: c.Port}}), preposition(c.Direction), c.PeerName)
	switch {
	case deciding.Tier == Isolating:
		return fmt.Sprintf("no rule of the policies of %s could allow it: it takes an %s rule of a NetworkPolicy %s", c.SubjectName, c.Direction, missing)
	case deciding.Tier == Baseline:
		return fmt.Sprintf("no rule that is asked before it could allow it: it takes an %s rule of a NetworkPolicy %s, or an Accept rule of a ClusterNetworkPolicy that is asked earlier", c.Direction, missing)
	default:
		return fmt.Sprintf("no rule that is asked before it could allow it: it takes an Accept rule %s in a ClusterNetworkPolicy that is asked earlier", missing)
	}
}

// change is something that could be otherwise.
type change struct {
	cost int
	text string
	do   func(h *hypothesis)
}

// hypothesis is a connection and a rule that it is tried with. What both point
// to belongs to others: a change puts a copy in its place.
type hypothesis struct {
	Connection
	rule Rule
}

// allowedAfter tries changes.
func (c *Connection) allowedAfter(policies []*Policy, r *Rule, changes []change) bool {
	h := hypothesis{*c, *r}
	for _, ch := range changes {
		ch.do(&h)
	}
	rules := Applicable(policies, h.Subject.Identity, h.Subject.NamespaceLabels, h.Direction)
	for i := range rules {
		if rules[i].Rule == r {
			rules[i].Rule = &h.rule
		}
	}
	return h.decide(rules).Allow
}

// changes returns the ways to make a rule hold, each a list of changes.
func (c *Connection) changes(r *Rule) [][]change {
	var ways [][]change
	for _, peer := range c.peerChanges(r) {
		for _, port := range c.portChanges(r) {
			ways = append(ways, slices.Concat(peer, port))
		}
	}
	return ways
}

// costOfPeer is what counts for another peer in a rule.
const costOfPeer = 3

// peerChanges returns the ways to make a rule hold for the peer on some port.
func (c *Connection) peerChanges(r *Rule) [][]change {
	if r.Holds(c.Peer) {
		return [][]change{nil}
	}
	var ways [][]change
	for i, p := range r.Peers {
		switch {
		case p.Pods != nil:
			if way, ok := c.labelChanges(p.Pods); ok {
				ways = append(ways, way)
			}
		case p.Block != nil && p.Block.Prefix.Contains(c.Peer.Address):
			var kept, gone []netip.Prefix
			for _, e := range p.Block.Except {
				if e.Contains(c.Peer.Address) {
					gone = append(gone, e)
				} else {
					kept = append(kept, e)
				}
			}
			ways = append(ways, []change{{len(gone), fmt.Sprintf("it did not except %s from %s", enumerate(gone, netip.Prefix.String), p.Block.Prefix),
				func(h *hypothesis) {
					h.rule.Peers = slices.Clone(h.rule.Peers)
					h.rule.Peers[i] = Peer{Block: &Block{Prefix: p.Block.Prefix, Except: kept}}
				}}})
		}
	}
	return append(ways, []change{{costOfPeer, "it also allowed " + c.PeerName, func(h *hypothesis) {
		only := netip.PrefixFrom(c.Peer.Address, c.Peer.Address.BitLen())
		h.rule.Peers = append(slices.Clone(h.rule.Peers), Peer{Block: &Block{Prefix: only}})
	}}})
}

// portChanges returns the ways to make a rule hold on the port for some peer.
func (c *Connection) portChanges(r *Rule) [][]change {
	if !c.Protocol.HasPorts() && r.Ports != nil {
		// Languages cannot list such a protocol.
		if slices.ContainsFunc(r.Ports, func(p Port) bool { return p.Protocol == plan.AnyProtocol && p.Name == "" }) {
			return [][]change{nil}
		}
		return [][]change{{{1, "it listed no ports", func(h *hypothesis) { h.rule.Ports = nil }}}}
	}
	destination := c.destination()
	if r.Ports == nil || slices.ContainsFunc(resolvePorts(r.Ports, destination.Identity), func(p Port) bool {
		return p.Protocol == plan.AnyProtocol || p.Protocol == c.Protocol && p.Range.Contains(c.Port)
	}) {
		return [][]change{nil}
	}
	var ways [][]change
	for _, p := range r.Ports {
		if p.Name == "" || destination.Identity == nil || p.Protocol != plan.AnyProtocol && p.Protocol != c.Protocol ||
			slices.ContainsFunc(destination.Identity.Ports, func(n NamedPort) bool { return n.Name == p.Name }) {
			continue
		}
		name := c.PeerName
		if c.Direction == plan.Incoming {
			name = c.SubjectName
		}
		ways = append(ways, []change{{1, fmt.Sprintf("%s called its %s port %d %s", name, protocolText(c.Protocol), c.Port, p.Name), func(h *hypothesis) {
			d := h.destination()
			id := *d.Identity
			id.Ports = append(slices.Clone(id.Ports), NamedPort{Name: p.Name, Protocol: c.Protocol, Port: c.Port})
			d.Identity = &id
		}}})
	}
	listed := Port{Protocol: c.Protocol, Range: plan.PortRange{First: c.Port, Last: c.Port}}
	return append(ways, []change{{1, "it also listed " + portText(listed), func(h *hypothesis) {
		h.rule.Ports = append(slices.Clone(h.rule.Ports), listed)
	}}})
}

// labelChanges returns what makes a selector select the peer, if labels can.
func (c *Connection) labelChanges(s *Selector) ([]change, bool) {
	id := c.Peer.Identity
	if id == nil || s.Namespace != "" && s.Namespace != id.Namespace {
		return nil, false
	}
	var changes []change
	if s.Namespace == "" && s.Namespaces != nil {
		want, ok := relabel(s.Namespaces, c.Peer.NamespaceLabels)
		if _, named := want[nameLabel]; named || !ok {
			return nil, false
		}
		if len(want) > 0 {
			changes = append(changes, change{len(want), labelText("namespace "+id.Namespace, want), func(h *hypothesis) {
				after := want.of(h.Peer.NamespaceLabels)
				h.Peer.NamespaceLabels = after
				if h.Subject.Identity != nil && h.Subject.Identity.Namespace == id.Namespace {
					h.Subject.NamespaceLabels = after
				}
			}})
		}
	}
	if s.Pods != nil {
		want, ok := relabel(s.Pods, id.Labels)
		if !ok {
			return nil, false
		}
		if len(want) > 0 {
			changes = append(changes, change{len(want), labelText(c.PeerName, want), func(h *hypothesis) {
				id := *h.Peer.Identity
				id.Labels = want.of(id.Labels)
				h.Peer.Identity = &id
			}})
		}
	}
	return changes, true
}

// nameLabel is a label that Kubernetes gives every namespace, with its name as
// the value.
const nameLabel = "kubernetes.io/metadata.name"

// relabeling says which labels to change.
type relabeling map[string]newLabel

type newLabel struct {
	value string
	// any says that another value would do as well, and gone that there must
	// be no such label.
	any, gone bool
}

// relabel returns the fewest changes after which a selector matches labels; false
// if there are none.
func relabel(s labels.Selector, have labels.Set) (relabeling, bool) {
	requirements, selectable := s.Requirements()
	byKey := make(map[string]labels.Requirements)
	for _, r := range requirements {
		byKey[r.Key()] = append(byKey[r.Key()], r)
	}
	want := make(relabeling)
	for key, rs := range byKey {
		fits := func(l newLabel) bool {
			set := relabeling{key: l}.of(nil)
			return !slices.ContainsFunc(rs, func(r labels.Requirement) bool { return !r.Matches(set) })
		}
		var choices []newLabel
		if value, ok := have[key]; ok {
			choices = append(choices, newLabel{value: value})
		} else {
			choices = append(choices, newLabel{gone: true})
		}
		for _, r := range rs {
			for _, value := range slices.Sorted(slices.Values(r.ValuesUnsorted())) {
				choices = append(choices, newLabel{value: value})
			}
		}
		choices = append(choices, newLabel{gone: true}, newLabel{value: "true", any: true})
		i := slices.IndexFunc(choices, fits)
		switch {
		case i < 0:
			return nil, false
		case i > 0:
			want[key] = choices[i]
		}
	}
	return want, selectable
}

// of returns labels as they are after the changes.
func (r relabeling) of(set labels.Set) labels.Set {
	after := make(labels.Set, len(set)+len(r))
	maps.Copy(after, set)
	for key, l := range r {
		if l.gone {
			delete(after, key)
		} else {
			after[key] = l.value
		}
	}
	return after
}

func labelText(who string, want relabeling) string {
	var have, lack []string
	for _, key := range slices.Sorted(maps.Keys(want)) {
		switch l := want[key]; {
		case l.gone:
			lack = append(lack, key)
		case l.any:
			have = append(have, key)
		default:
			have = append(have, key+"="+l.value)
		}
	}
	var texts []string
	for _, part := range []struct {
		verb string
		list []string
	}{{"had", have}, {"had not", lack}} {
		switch len(part.list) {
		case 0:
		case 1:
			texts = append(texts, part.verb+" the label "+part.list[0])
		default:
			texts = append(texts, part.verb+" the labels "+enumerate(part.list, strings.Clone))
		}
	}
	return who + " " + strings.Join(texts, " and ")
}

func changesText(changes []change) string {
	return enumerate(changes, func(c change) string { return c.text })
}

// ruleText says what a rule allows: "TCP 80 from all pods".
func (c *Connection) ruleText(r *Rule) string {
	ports, peers := "everything", "anyone"
	if r.Ports != nil {
		ports = cmp.Or(enumerate(shortened(r.Ports, portText)), "nothing")
	}
	if r.Peers != nil {
		peers = cmp.Or(enumerate(shortened(r.Peers, peerText)), "nobody")
	}
	return ports + " " + preposition(c.Direction) + " " + peers
}

func preposition(d plan.Direction) string {
	if d == plan.Outgoing {
		return "to"
	}
	return "from"
}

func protocolText(p plan.Protocol) string { return strings.ToUpper(p.String()) }

func portText(p Port) string {
	switch {
	case p.Name != "" && p.Protocol == plan.AnyProtocol:
		return "port " + p.Name
	case p.Name != "":
		return protocolText(p.Protocol) + " port " + p.Name
	case p.Protocol == plan.AnyProtocol:
		return "everything"
	case p.Range == plan.AllPorts || !p.Protocol.HasPorts():
		return protocolText(p.Protocol)
	default:
		return protocolText(p.Protocol) + " " + p.Range.String()
	}
}

func peerText(p Peer) string {
	switch {
	case p.Pods != nil:
		return selectorText(p.Pods)
	case p.Block != nil && len(p.Block.Except) > 0:
		return p.Block.Prefix.String() + " except " + enumerate(shortened(p.Block.Except, netip.Prefix.String))
	case p.Block != nil:
		return p.Block.Prefix.String()
	case p.Nodes != nil && p.Nodes.Empty():
		return "all nodes"
	case p.Nodes != nil:
		return "nodes with " + p.Nodes.String()
	default:
		return cmp.Or(p.Domain, "nobody")
	}
}

func selectorText(s *Selector) string {
	text := "pods"
	if s.Pods != nil && !s.Pods.Empty() {
		text += " with " + s.Pods.String()
	} else if s.Namespace == "" && (s.Namespaces == nil || s.Namespaces.Empty()) {
		return "all pods"
	}
	switch {
	case s.Namespace != "":
		text += " in namespace " + s.Namespace
	case s.Namespaces != nil && !s.Namespaces.Empty():
		text += " in namespaces with " + s.Namespaces.String()
	}
	return text
}

// shortened returns the texts of a list, of a long one the first ones.
func shortened[T any](list []T, text func(T) string) ([]string, func(string) string) {
	const most = 4
	var texts []string
	for i, v := range list {
		if i == most && len(list) > most+1 {
			texts = append(texts, fmt.Sprintf("%d more", len(list)-most))
			break
		}
		texts = append(texts, text(v))
	}
	return texts, strings.Clone
}

// enumerate joins the texts of a list as people do: "a, b and c".
func enumerate[T any](list []T, text func(T) string) string {
	var texts []string
	for _, v := range list {
		texts = append(texts, text(v))
	}
	last := len(texts) - 1
	if last < 1 {
		return strings.Join(texts, "")
	}
	return strings.Join(texts[:last], ", ") + " and " + texts[last]
}
