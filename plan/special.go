package plan

import (
	"fmt"
	"net/netip"
)

// What is in this file no table decides: every kernel treats loopback,
// multicast, broadcast and link-local destinations in a way of its own,
// whatever the plan says.

var (
	limitedBroadcast = netip.MustParseAddr("255.255.255.255")                                                         // RFC 919, section 7
	allHosts         = netip.MustParseAddr("224.0.0.1")                                                               // RFC 1112, section 4
	allNodes         = netip.MustParseAddr("ff02::1")                                                                 // RFC 4291, section 2.7.1
	allRouters       = netip.MustParseAddr("ff02::2")                                                                 // RFC 4291, section 2.7.1
	loopback         = map[bool]netip.Addr{true: netip.AddrFrom4([4]byte{127, 0, 0, 1}), false: netip.IPv6Loopback()} // by being IPv4
)

// NodeOnly are destinations that a pod's packets can reach on the pod's own node
// and nowhere else, as nothing forwards them: multicast, the broadcast of every
// link, link-local addresses.
var NodeOnly = []netip.Prefix{
	netip.MustParsePrefix("224.0.0.0/4"),   // RFC 5771
	netip.PrefixFrom(limitedBroadcast, 32), // RFC 919
	netip.MustParsePrefix("fe80::/10"),     // RFC 4291, section 2.5.6
	netip.MustParsePrefix("ff00::/8"),      // RFC 4291, section 2.7
}

// StaysHome reports whether what is sent to an address never leaves the
// machine, or the pod, that sends it: loopback addresses, and the unspecified
// one, which the kernel takes for them.
func StaysHome(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsLoopback() || a.IsUnspecified() || a.Is6() && a.IsInterfaceLocalMulticast()
}

// IsGroup reports whether an address stands for several machines: multicast,
// and the broadcast address of every link.
func IsGroup(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsMulticast() || a == limitedBroadcast
}

// HasOneReceiver reports whether the protocol talks to one machine, so that a
// kernel neither connects to a group, nor answers one who does.
func (p Protocol) HasOneReceiver() bool { return p == TCP || p == SCTP }

// specify gives a packet for the unspecified address the one that the sender's kernel takes for that: it does
// so before anything else sees the packet, Services among it.
func (x *explainer) specify(p *Plan) {
	if x.dst.IsUnspecified() {
		to := loopback[x.dst.Is4()]
		x.note(p, "node", "%s stands for the loopback address %s", x.dst, to)
		x.dst = to
	}
}

// stay ends at the machine or pod that sends to itself.
func (x *explainer) stay(p *Plan, iface, who string) stage {
	x.src = loopback[x.dst.Is4()]
	if x.dst.IsMulticast() && x.protocol.HasOneReceiver() {
		return x.connectsToOne(p)
	}
	x.note(p, "node", "%s never leaves who sends to it", x.dst)
	return x.arrive(p, iface, "%s reaches itself at %s", who, x.dst)
}

func (x *explainer) connectsToOne(p *Plan) stage {
	x.note(p, "node", "%s is for several receivers, and %s has one: refused", x.dst, x.protocol)
	return x.deny("%s cannot be used with %s, which is for several receivers", x.protocol, x.dst)
}

// special is the stage of a destination on which no table is asked. It returns
// false for all others.
func (x *explainer) special(p *Plan, from sender, e Endpoint) (stage, bool) {
	group, link := IsGroup(x.dst), x.dst.Is6() && (x.dst.IsLinkLocalUnicast() || x.dst.IsLinkLocalMulticast())
	switch {
	case !group && !link:
		return nil, false
	case group && x.protocol.HasOneReceiver():
		return x.connectsToOne(p), true
	case from == fromHost:
		x.note(p, "node", "%s is for who is on a link of the node: out there", x.dst)
		return x.allow("leaves %s for a link of its own", p.Local.Node), true
	case from != fromEndpoint:
		x.note(p, "node", "%s: nothing is forwarded to it: dropped", x.dst)
		return x.deny("%s forwards nothing to %s", p.Local.Node, x.dst), true
	}
	if link && e.AntiSpoof {
		x.note(p, "node", "a pod sends to %s from its link-local address, which is not its own here: dropped", x.dst)
		return x.deny("%s may send from its own addresses only, and to the link-local %s its kernel sends from another", e.Name, x.dst), true
	}
	if !x.mayLeave(p, e, false, Route{}) {
		return nil, true
	}
	switch x.dst {
	case limitedBroadcast, allHosts, allNodes, allRouters:
		x.note(p, "node", "%s%s", "every link's own node listens to it", unanswered(x))
		return x.atHost(p, fromEndpoint), true
	}
	if group {
		x.note(p, "node", "nothing forwards multicast: dropped, unless a program on the node has joined %s", x.dst)
		return x.deny("%s forwards no multicast", p.Local.Node), true
	}
	x.note(p, "node", "%s is on the pod's own link or nowhere", x.dst)
	return x.deny("no other machine is on the link of %s", e.Name), true
}

// unanswered says that echo requests to all are not answered.
func unanswered(x *explainer) string {
	if x.protocol == ICMP {
		return fmt.Sprintf(", but answers no echo request to %s", x.dst)
	}
	return ""
}
