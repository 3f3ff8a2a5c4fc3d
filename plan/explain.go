package plan

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Flow is a connection, or a first packet, to ask about.
type Flow struct {
	// Network is where Source and Destination are looked up; empty means
	// DefaultNetwork.
	Network     string     `json:"network,omitempty"`
	Source      netip.Addr `json:"source"`
	Destination netip.Addr `json:"destination"`
	// Protocol may be AnyProtocol, which only entries for any protocol match.
	Protocol Protocol `json:"protocol,omitempty"`
	// Port is the destination port, for protocols that have ports.
	Port uint16 `json:"port,omitempty"`
	// Node is the node where the flow begins, as Source alone does not tell
	// that of what comes from outside the cluster; empty lets Explain find out.
	Node string `json:"node,omitempty"`
	// Interface is the key of the endpoint that sends, as Source alone does
	// not tell that of an endpoint that sends from another's address; empty
	// means the endpoint that has Source.
	Interface string `json:"interface,omitempty"`
	// Enters is the node that gets the packet first where it comes from outside the cluster;
	// empty means any that would take it.
	Enters string `json:"enters,omitempty"`
}

// NoneOnHand is how the reason ends that a Service has no backend.
const NoneOnHand = "has no backend on hand"

// Explanation is what becomes of a flow and why.
type Explanation struct {
	Allowed bool `json:"allowed"`
	// Unknown says that it is not known whether the flow is allowed: nothing that was
	// followed denies it, and not all was. It is not Allowed then.
	Unknown bool `json:"unknown,omitempty"`
	// Reason is one sentence for people.
	Reason string `json:"reason"`
	// Steps are the entries that decided, in the order in which the packet
	// meets them.
	Steps []Step `json:"steps,omitempty"`
	// Node and Interface say where the packet arrives: at an endpoint, at the
	// node itself if Interface is empty, and beyond what plans know, as far as
	// it is allowed at all, if both are.
	Node      string `json:"node,omitempty"`
	Interface string `json:"interface,omitempty"`
	// Peer is the machine beyond what plans know to which a node hands the packet, as
	// the node's plan calls it; empty where it does not leave for a peer.
	Peer string `json:"peer,omitempty"`
	// SeenSource and SeenDestination are the addresses in the packet as it
	// arrives; invalid where it does not.
	SeenSource      netip.Addr `json:"seenSource,omitzero"`
	SeenDestination netip.Addr `json:"seenDestination,omitzero"`
	// SeenPort is the destination port in the packet as it arrives.
	SeenPort uint16 `json:"seenPort,omitempty"`
	// Backends are what becomes of the flow with each backend that a Service may choose,
	// where there are several: what is said there follows Steps. Allowed says that it is
	// with all of them, and no more is said of where the packet arrives.
	Backends []Choice `json:"backends,omitempty"`
	// NotFollowed is the number of backends that are not among Backends, nor among
	// those of one of them, as there are too many.
	NotFollowed int `json:"notFollowed,omitempty"`
}

// Choice is one of several backends, and what becomes of the flow with it.
type Choice struct {
	// Backend is its address and port.
	Backend     netip.AddrPort `json:"backend"`
	Explanation `json:"explanation"`
}

// MaxFollowed is how many of the backends that may be chosen for a flow are followed.
// Users write how many there are, and frontends may be each other's backends.
const MaxFollowed = 1000

// Step is one decision on a packet's way.
type Step struct {
	Node string `json:"node,omitempty"`
	// Table is the table's name, "routes", or "node" for what no table decides.
	Table string `json:"table"`
	// Entry is the deciding entry in the text form; empty where none was found.
	Entry string `json:"entry,omitempty"`
	// Decision says what follows from it, for people.
	Decision string `json:"decision"`
	// Origin is the entry's provenance.
	Origin string `json:"origin,omitempty"`
}

// Tunnels reports whether the packet goes on within a tunnel.
func (s Step) Tunnels() bool {
	return s.Table == "routes" && strings.HasPrefix(s.Decision, throughTunnel)
}

// throughTunnel begins the decision of a Route to a tunnel.
const throughTunnel = "through the tunnel to "

// SourceStays begins the decision of an Egress entry that changes nothing.
const SourceStays = "the source stays"

// String returns the flow as ParseFlow reads it:
// "10.1.1.2 to 10.1.2.2 tcp 80".
func (f Flow) String() string {
	var l line
	l = l.quoted(f.Source.String()).keyword("to").name(f.Destination.String())
	if f.Protocol != AnyProtocol || f.Port != 0 {
		l = l.keyword(f.Protocol.String())
	}
	if f.Port != 0 {
		l = l.keyword(strconv.Itoa(int(f.Port)))
	}
	return string(l.option("network", f.Network).option("node", f.Node).option("interface", f.Interface).option("enters", f.Enters))
}

// ParseFlow reads "SOURCE to DESTINATION [PROTOCOL [PORT]] [network NAME]
// [node NAME] [interface NAME] [enters NAME]".
func ParseFlow(text string) (Flow, error) {
	s, _, err := scan(text)
	if err != nil {
		return Flow{}, err
	}
	f := Flow{Source: s.address()}
	s.oneOf("the word between the addresses", "to")
	f.Destination = s.address()
	options := map[string]func(){
		"network":   func() { f.Network = s.name("a network") },
		"node":      func() { f.Node = s.name("a node") },
		"interface": func() { f.Interface = s.name("an interface") },
		"enters":    func() { f.Enters = s.name("a node") },
	}
	isOption := func() bool { return len(s.words) == 0 || options[s.words[0]] != nil }
	if !isOption() {
		f.Protocol = s.protocol()
		if !isOption() {
			f.Port = s.port()
		}
	}
	s.options(options)
	if s.err != nil {
		return Flow{}, fmt.Errorf("flow %q: %w", text, s.err)
	}
	return f, nil
}

// String returns the explanation for people: the result, two lines for each
// step, what the receiver sees, and the same of each backend that may be chosen.
func (e Explanation) String() string {
	var b strings.Builder
	e.write(&b, "")
	return b.String()
}

// write writes all lines with an indent.
func (e Explanation) write(b *strings.Builder, indent string) {
	result := "denied"
	switch {
	case e.Allowed:
		result = "allowed"
	case e.Unknown:
		result = "unknown"
	}
	fmt.Fprintf(b, "%s: %s\n", result, e.Reason)
	nodes, tables := 0, 0
	for _, s := range e.Steps {
		nodes, tables = max(nodes, len(s.Node)), max(tables, len(s.Table))
	}
	for _, s := range e.Steps {
		fmt.Fprintf(b, "%s  %-*s  %-*s  %s\n", indent, nodes, s.Node, tables, s.Table, s.Decision)
		if s.Entry == "" {
			continue
		}
		fmt.Fprintf(b, "%s  %*s  %s", indent, nodes+2+tables, "", s.Entry)
		if s.Origin != "" {
			fmt.Fprintf(b, " # %s", s.Origin)
		}
		b.WriteByte('\n')
	}
	if e.SeenSource.IsValid() {
		fmt.Fprintf(b, "%sthe receiver sees %s to %s", indent, e.SeenSource, e.SeenDestination)
		if e.SeenPort != 0 {
			fmt.Fprintf(b, " port %d", e.SeenPort)
		}
		b.WriteByte('\n')
	}
	for _, c := range e.Backends {
		fmt.Fprintf(b, "%s  backend %s is ", indent, c.Backend)
		c.write(b, indent+"  ")
	}
}

func (p *Plan) decisionOf(r Route, to netip.Addr) string {
	switch r.Way {
	case ToEndpoint:
		return "to the local endpoint " + r.Interface
	case ToTunnel:
		end, _, _ := p.Local.EndOf(p.Peer(r.Peer()), to)
		return fmt.Sprintf(throughTunnel+"%s at %s%s", r.Peer(), end.VTEP, oneOf(r.Peers))
	case ToNextHop:
		via := p.Peer(r.Peer()).NextHop(to)
		if name := r.Peer(); name != via.String() {
			return fmt.Sprintf("to next hop %s, which is %s%s", via, name, oneOf(r.Peers))
		}
		return fmt.Sprintf("to next hop %s%s", via, oneOf(r.Peers))
	case ToHost:
		return "to the node itself"
	case ToGateway:
		return "out as the node's own routing table says"
	default:
		return "dropped"
	}
}

// oneOf says, of the first of several peers, that there are others.
func oneOf(peers []string) string {
	if len(peers) < 2 {
		return ""
	}
	return fmt.Sprintf(", one of %d", len(peers))
}
