// Package drops is what is told of packets that policies denied: a Record for
// each that was seen, a Count for each rule. Attribute finds who and what they
// are about in the node's plan, Counter adds up what a data plane counts, and
// Log keeps the last Records. Agents serve a Report as JSON, and Records a line
// each; the command line joins and shows them.
package drops

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
)

// Record is a packet that a policy denied.
type Record struct {
	Time time.Time `json:"time"`
	// Node is where it was denied.
	Node string `json:"node"`
	// Direction is egress where the policy of the source denied it, and
	// ingress where that of the destination did.
	Direction plan.Direction `json:"direction"`
	// Rule is what decided, as "NetworkPolicy default/web ingress[0]"; empty
	// where the node's plan has changed since, or gives no reason.
	Rule        string `json:"rule,omitempty"`
	Source      End    `json:"source"`
	Destination End    `json:"destination"`
	// Protocol is in the form of plan.Protocol.
	Protocol string `json:"protocol"`
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

// Count is how many packets a rule has denied.
type Count struct {
	Rule      string         `json:"rule,omitempty"`
	Direction plan.Direction `json:"direction"`
	Packets   uint64         `json:"packets"`
}

// Report is what a node, or a cluster, tells when asked once.
type Report struct {
	// Counts are in the order of CompareCounts.
	Counts []Count `json:"counts"`
	// Recent are the packets denied last, in the order of time.
	Recent []Record `json:"recent"`
}

// CompareCounts orders counts: the most packets first.
func CompareCounts(a, b Count) int {
	return cmp.Or(cmp.Compare(b.Packets, a.Packets), strings.Compare(a.Rule, b.Rule), strings.Compare(string(a.Direction), string(b.Direction)))
}

// Join returns what several nodes tell as one.
func Join(reports ...Report) Report {
	all := Report{Counts: []Count{}, Recent: []Record{}}
	packets := make(map[Count]uint64)
	for _, r := range reports {
		for _, c := range r.Counts {
			packets[Count{Rule: c.Rule, Direction: c.Direction}] += c.Packets
		}
		all.Recent = append(all.Recent, r.Recent...)
	}
	for c, n := range packets {
		c.Packets = n
		all.Counts = append(all.Counts, c)
	}
	slices.SortFunc(all.Counts, CompareCounts)
	slices.SortStableFunc(all.Recent, func(a, b Record) int { return a.Time.Compare(b.Time) })
	return all
}

// Attribute says what a node's plan knows of a packet that was denied there. p
// may be nil, or another than that which denied it.
func Attribute(d datapath.Drop, p *plan.Plan) Record {
	r := Record{Time: d.Time, Direction: d.Direction, Protocol: d.Protocol.String(),
		Source: End{Address: d.Source, Port: d.SourcePort}, Destination: End{Address: d.Destination, Port: d.Port}}
	if p == nil {
		return r
	}
	r.Node = p.Local.Node
	e, ok := p.Endpoints.Get(plan.EndpointKey{Interface: d.Interface})
	if !ok {
		return r
	}
	own, other, policy := &r.Destination, &r.Source, e.IngressPolicy
	if d.Direction == plan.Outgoing {
		own, other, policy = other, own, e.EgressPolicy
	}
	own.Pod = e.Name
	_, t, tagged := p.TagOf(e.Network, other.Address)
	if peer, ok := endpointOf(p, e.Network, other.Address); ok {
		other.Pod = peer.Name
		if !tagged {
			t.Tag = peer.Tag
		}
	}
	if _, v, ok := p.Verdict(policy, d.Direction, t.Tag, d.Protocol, d.Port); ok && !v.Allow {
		r.Rule = v.Origin
	}
	return r
}

// endpointOf returns the endpoint of the plan's node that has an address.
func endpointOf(p *plan.Plan, network string, a netip.Addr) (plan.Endpoint, bool) {
	_, route, ok := p.Route(network, a, true)
	if !ok || route.Way != plan.ToEndpoint {
		return plan.Endpoint{}, false
	}
	e, ok := p.Endpoints.Get(plan.EndpointKey{Interface: route.Interface})
	return e, ok && slices.Contains(e.Addresses, a)
}
