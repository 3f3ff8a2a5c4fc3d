// Package drops is what is told of packets that were dropped, because a policy
// denied them or for another reason: a Record for each that was seen, a Count for
// each rule, and for each reason and who sent them. Attribute finds who and what
// they are about in the node's plan, Counter adds up what a data plane counts, and
// Log keeps the last Records. Agents serve a Report as JSON, and Records a line
// each; the command line joins and shows them.
package drops

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
)

// Record is a packet that was dropped.
type Record struct {
	Time time.Time `json:"time"`
	// Node is where it was dropped.
	Node string `json:"node"`
	// Direction is egress where the policy of the source denied it, and
	// ingress where that of the destination did. Where there is a Reason, it is
	// egress for what an endpoint of the node sent, and ingress for all else.
	Direction plan.Direction `json:"direction"`
	// Reason is why it was dropped; empty where a policy denied it.
	Reason datapath.Reason `json:"reason,omitempty"`
	// From is who sent it, where there is a Reason: a pod, "namespace/name", or
	// the interface that it came from, "eth0 of node1".
	From string `json:"from,omitempty"`
	// Peer is the VTEP that sent it through the tunnel, where that is not the
	// one that may.
	Peer netip.Addr `json:"peer,omitzero"`
	// Network is the one that the addresses of Source and Destination mean something
	// in; empty from agents that knew plan.DefaultNetwork alone. In takes that into
	// account.
	Network string `json:"network,omitempty"`
	// Rule is what decided, as "NetworkPolicy default/web ingress[0]"; empty
	// where the node's plan has changed since, or gives no reason.
	Rule        string `json:"rule,omitempty"`
	Source      End    `json:"source"`
	Destination End    `json:"destination"`
	// Protocol is in the form of plan.Protocol.
	Protocol string `json:"protocol"`
}

// In returns an address of the packet with its network.
func (r Record) In(a netip.Addr) plan.Address {
	return plan.Address{Network: cmp.Or(r.Network, plan.DefaultNetwork), IP: a}
}

// End is one side of a packet.
type End struct {
	Address netip.Addr `json:"address"`
	// Pod is the name of the pod with that address, "namespace/name", or of
	// what else is known to have it; empty where nobody is.
	Pod string `json:"pod,omitempty"`
	// Port is 0 for protocols without ports.
	Port uint16 `json:"port,omitempty"`
}

// Count is how many packets a rule has denied, or how many of somebody's were
// dropped for another reason. Its fields are as in Record.
type Count struct {
	Rule      string          `json:"rule,omitempty"`
	Reason    datapath.Reason `json:"reason,omitempty"`
	Direction plan.Direction  `json:"direction"`
	From      string          `json:"from,omitempty"`
	Packets   uint64          `json:"packets"`
}

// Report is what a node, or a cluster, tells when asked once.
type Report struct {
	// Counts are in the order of CompareCounts.
	Counts []Count `json:"counts"`
	// Recent are the packets dropped last, in the order of time.
	Recent []Record `json:"recent"`
	// Missing says what is not in the report.
	Missing []Missing `json:"missing,omitempty"`
}

// Missing is why a node did not tell all.
type Missing struct {
	Node    string `json:"node"`
	Problem string `json:"problem"`
}

// Error implements error.
func (m Missing) Error() string { return fmt.Sprintf("node %s: %s", m.Node, m.Problem) }

// CompareCounts orders counts: the most packets first.
func CompareCounts(a, b Count) int {
	return cmp.Or(cmp.Compare(b.Packets, a.Packets), strings.Compare(a.Rule, b.Rule), strings.Compare(string(a.Reason), string(b.Reason)),
		strings.Compare(string(a.Direction), string(b.Direction)), strings.Compare(a.From, b.From))
}

// Join returns what several nodes tell as one.
func Join(reports ...Report) Report {
	all := Report{Counts: []Count{}, Recent: []Record{}}
	packets := make(map[Count]uint64)
	for _, r := range reports {
		for _, c := range r.Counts {
			n := c.Packets
			c.Packets = 0
			packets[c] += n
		}
		all.Recent = append(all.Recent, r.Recent...)
		all.Missing = append(all.Missing, r.Missing...)
	}
	for c, n := range packets {
		c.Packets = n
		all.Counts = append(all.Counts, c)
	}
	slices.SortFunc(all.Counts, CompareCounts)
	slices.SortStableFunc(all.Recent, func(a, b Record) int { return a.Time.Compare(b.Time) })
	return all
}

// Attribute says what a node's plans know of a packet that was dropped there: what the
// node does, and what it is being brought to, as a pod sends before that is done. There
// may be none, or others than that which dropped it.
func Attribute(d datapath.Drop, plans ...*plan.Plan) Record {
	p := knowing(d.Interface, plans)
	r := Record{Time: d.Time, Network: d.Network, Direction: d.Direction, Reason: d.Reason, Peer: d.Peer, Protocol: d.Protocol.String(),
		Source: End{Address: d.Source, Port: d.SourcePort}, Destination: End{Address: d.Destination, Port: d.Port}}
	if r.Reason != "" {
		r.Direction, r.From = sender(d.Interface, p)
	}
	if p == nil {
		return r
	}
	r.Node = p.Local.Node
	e, ok := p.Endpoints.Get(plan.EndpointKey{Interface: d.Interface})
	if ok {
		r.Network = e.Network
	}
	if r.Reason != "" {
		for _, end := range []*End{&r.Source, &r.Destination} {
			if e, ok := endpointOf(p, r.Network, end.Address); ok {
				end.Pod = e.Name
			}
		}
		return r
	}
	if !ok {
		return r
	}
	own, other, policy := &r.Destination, &r.Source, e.IngressPolicy
	if d.Direction == plan.Outgoing {
		own, other, policy = other, own, e.EgressPolicy
	}
	own.Pod = e.Name
	class, known := p.ClassAt(e.Network, other.Address)
	if peer, ok := endpointOf(p, e.Network, other.Address); ok {
		other.Pod = peer.Name
		if !known {
			class = plan.ClassOf(peer.Tag)
		}
	}
	if _, v, ok := p.Verdict(policy, d.Direction, class, d.Protocol, d.Port); ok && !v.Allow {
		r.Rule = v.Origin
	}
	return r
}

// sender says who sends from an interface of the plan's node, and whether that
// is an endpoint's.
// knowing returns the first of some plans that has an endpoint, or the first, or nil.
func knowing(iface string, plans []*plan.Plan) *plan.Plan {
	for _, p := range plans {
		if _, ok := p.Endpoints.Get(plan.EndpointKey{Interface: iface}); ok {
			return p
		}
	}
	if len(plans) == 0 {
		return nil
	}
	return plans[0]
}

func sender(iface string, p *plan.Plan) (plan.Direction, string) {
	switch {
	case p == nil && iface == "":
		return plan.Outgoing, "the node itself"
	case p == nil:
		return plan.Incoming, iface
	case iface == "":
		return plan.Outgoing, p.Local.Node + " itself"
	}
	if e, ok := p.Endpoints.Get(plan.EndpointKey{Interface: iface}); ok {
		return plan.Outgoing, cmp.Or(e.Name, iface)
	}
	return plan.Incoming, iface + " of " + p.Local.Node
}

// endpointOf returns the endpoint of the plan's node that has an address.
func endpointOf(p *plan.Plan, network string, a netip.Addr) (plan.Endpoint, bool) {
	_, route, ok := p.Route(network, a, true)
	if !ok || route.Way != plan.ToEndpoint {
		return plan.Endpoint{}, false
	}
	e, ok := p.Endpoints.Get(plan.EndpointKey{Interface: route.Interface})
	return e, ok && e.Network == network && slices.Contains(e.Addresses, a)
}
