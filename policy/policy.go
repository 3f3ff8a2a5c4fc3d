// Package policy compiles ordered rules about groups of pods and prefixes into
// the Classes and Verdicts tables of a node's plan.
//
// A policy language (NetworkPolicy, ClusterNetworkPolicy, and whatever else
// says who may talk to whom) is translated into values of type Policy; a World
// holds them with what their selectors select from. Applicable and Resolve say
// what follows for two parties, and are all that there is to the semantics:
// the Compiler asks them for each peer that a node's policies can tell apart,
// and keeps what it was told while nothing of that changes.
//
// The flattening is what makes a packet cheap: tiers, priorities, passes, denies
// and exceptions are gone in the tables, and a first packet costs one lookup
// however many policies there are. Each entry names the rule it came from.
package policy

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/weftnet/weft/plan"
)

// Policy is a set of rules about some pods. It must not be changed once it is
// in a World.
type Policy struct {
	// Name is the policy's own, as people call it: "NetworkPolicy default/web".
	// It is unlike that of any other.
	Name string
	Tier Tier
	// Priority orders policies of one tier, the least first, and Name those of
	// one priority. It means nothing in the tier Isolating.
	Priority int
	// Subject says whom the policy is about.
	Subject Selector
	// IsolatesIngress and IsolatesEgress say, in the tier Isolating, that the
	// subject gets (sends) nothing that no rule of the tier allows.
	IsolatesIngress, IsolatesEgress bool
	// Ingress and Egress are the rules, the first that matches decides.
	Ingress, Egress []Rule
}

// Isolates reports whether the policy isolates its subject in a direction.
func (p *Policy) Isolates(d plan.Direction) bool {
	_, isolates := p.side(d)
	return isolates
}

// Tier is when a policy is asked, and what it can say.
type Tier int

// The tiers, in the order in which they are asked. What none decides is allowed.
const (
	// Admin policies are asked before all others.
	Admin Tier = iota
	// Isolating policies, NetworkPolicies, only allow; but what a policy
	// isolates may do nothing else than what some policy of the tier allows.
	Isolating
	// Baseline policies decide what no other does.
	Baseline
)

// Rule says what happens to some connections.
type Rule struct {
	// Origin is the rule's name for people, which begins with its policy's:
	// "NetworkPolicy default/web ingress[0]".
	Origin string
	Action Action
	// Peers are the other sides for which the rule holds; nil means all.
	Peers []Peer
	// Ports are the destination ports for which it holds; nil means all
	// protocols and ports.
	Ports []Port
}

// Action is what a rule does.
type Action int

// The actions.
const (
	Allow Action = iota
	Deny
	// Pass leaves the decision to the next tier.
	Pass
)

// Peer is the other side of a connection. Exactly one field is set; one in
// which none is matches nothing.
type Peer struct {
	// Pods selects pods.
	Pods *Selector
	// Block is a set of addresses, those of pods included.
	Block *Block
	// Nodes selects nodes by their labels, which stand for their addresses.
	Nodes labels.Selector
	// Domain is a domain name in lower case without a dot at its end, which
	// stands for the addresses that World.Domains has for it.
	Domain string
}

// Block is a prefix without some prefixes within it. All are masked.
type Block struct {
	Prefix netip.Prefix
	Except []netip.Prefix
}

// Contains reports whether a is in the block.
func (b *Block) Contains(a netip.Addr) bool {
	if !b.Prefix.Contains(a) {
		return false
	}
	for _, e := range b.Except {
		if e.Contains(a) {
			return false
		}
	}
	return true
}

// Selector selects pods. The zero Selector selects all.
type Selector struct {
	// Namespace is the namespace they are in; "" means that Namespaces says.
	Namespace string
	// Namespaces selects namespaces by their labels; nil means all.
	Namespaces labels.Selector
	// Pods selects pods by their labels; nil means all.
	Pods labels.Selector
}

// Port is a set of destination ports.
type Port struct {
	// Protocol is the protocol; AnyProtocol means all, or with a Name
	// whichever has a port of that name.
	Protocol plan.Protocol
	// Range is AllPorts for protocols without ports. It means nothing if there
	// is a Name.
	Range plan.PortRange
	// Name is that of a port of the pod that is the destination. What is no pod,
	// or has no port of that name, is not matched.
	Name string
}

// World is all that a node's tables are compiled from. It is a value: nothing
// in it may be changed once it was handed to a Compiler. The lists are sorted as
// stated and hold no key twice, and what did not change should be the same
// pointer in the next World, since that is how the compiler knows.
type World struct {
	// Network is the network that all addresses belong to.
	Network string
	// Policies are in the order of their names.
	Policies []*Policy
	// Namespaces are in the order of their names.
	Namespaces []*Namespace
	// Groups are in the order of their tags.
	Groups []*Group
	// Nodes are in the order of their names: what other nodes have. The node's
	// own pods are in Local alone.
	Nodes []*Node
	// Machines are in the order of their names.
	Machines []*Machine
	// Domains are in the order of their names.
	Domains []*Domain
	// Local are the node's own pods in the order of their interfaces.
	Local []*Local
}

// Namespace is a namespace with its labels.
type Namespace struct {
	Name   string
	Labels labels.Set
}

// Identity is what policies can tell of a pod but for its addresses.
type Identity struct {
	Namespace string
	Labels    labels.Set
	// Ports are the pod's named ports, in the order of name, then protocol.
	Ports []NamedPort
}

// NamedPort is a port of a pod that has a name.
type NamedPort struct {
	Name     string
	Protocol plan.Protocol
	Port     uint16
}

// Group is all pods of one cluster-wide tag.
type Group struct {
	Tag plan.Tag
	Identity
}

// Node is another node, with the addresses of its pods.
type Node struct {
	Name string
	// Origin is where that is known from, as "NodePods node2".
	Origin string
	// Pods are the addresses of each tag. An address is there once.
	Pods []TaggedAddresses
}

// TaggedAddresses are the addresses of pods of one tag.
type TaggedAddresses struct {
	Tag       plan.Tag
	Addresses []netip.Addr
}

// Machine is a node of the cluster as a peer of its own: what runs on it
// outside of pods, or in pods that share its network.
type Machine struct {
	Name      string
	Labels    labels.Set
	Addresses []netip.Addr
	// Prefixes are what else the machine gets, in the eyes of the node whose
	// World it is.
	Prefixes []netip.Prefix
}

// Domain is a domain name and the addresses it stands for.
type Domain struct {
	Name      string
	Addresses []netip.Addr
}

// Local is a pod of the node itself.
type Local struct {
	Interface string
	// Name is the pod's name for people, "namespace/pod"; Namespace is also
	// known while Identity is not.
	Name, Namespace string
	Addresses       []netip.Addr
	// Identity is nil while the pod's labels are not known: a policy that could
	// select it then denies everything in the directions that it isolates or
	// has rules for.
	Identity *Identity
	// Unidentified says that not even the namespace is known: any policy could
	// select it.
	Unidentified bool
	// Ended says that the pod's containers have ended for good. Its address is
	// nobody's then, as others will have it.
	Ended bool
}
