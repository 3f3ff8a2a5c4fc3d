package plan

import "net/netip"

// Flow is a connection, or a first packet, to ask about.
type Flow struct {
	// Network is where Source and Destination are looked up; empty means
	// DefaultNetwork.
	Network             string
	Source, Destination netip.Addr
	Protocol            Protocol
	// Port is the destination port, for protocols that have ports.
	Port uint16
}

// Explanation is what becomes of a flow and why.
type Explanation struct {
	Allowed bool
	// Reason is one sentence for people.
	Reason string
	// Steps are the entries that decided, in the order in which the packet
	// meets them.
	Steps []Step
	// SeenSource and SeenDestination are the addresses in the packet as it
	// arrives; invalid where it does not.
	SeenSource, SeenDestination netip.Addr
	// SeenPort is the destination port in the packet as it arrives.
	SeenPort uint16
}

// Step is one decision on a packet's way.
type Step struct {
	Node string
	// Table is the table's name, "routes", or "node" for what no table decides.
	Table string
	// Entry is the deciding entry in the text form; empty where none was found.
	Entry string
	// Decision says what follows from it, for people.
	Decision string
	// Origin is the entry's provenance.
	Origin string
}
