package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weftnet/weft/plan"
)

// end is where a probe's way ends.
type end struct {
	arrived bool
	text    string
	node    string
	// endpoint is the pod that got it. toNode says that the node itself did, left
	// that it left the cluster, stayed that it never left who sent it.
	endpoint             string
	toNode, left, stayed bool
	// drop is the rule that dropped it, or nil where none did.
	drop *Event
	// translated says that it was given another destination, and lost that nothing
	// tells what became of it.
	translated, lost bool
	// early says that it was lost before the first rule that is traced, and so
	// before it was routed.
	early bool
	// open says that the probe was lost sight of.
	open bool
}

// follow finds where the probe's way ends. Of a node that missed something counts
// what it did tell, and nothing that it did not.
func follow(says plan.Explanation, order []string, events []Event, blind map[string]string) end {
	last := end{text: "the probe never left who sent it", stayed: true}
	for i, node := range order {
		here := at(events, node, false)
		later := slices.ContainsFunc(order[i+1:], func(n string) bool { return len(at(events, n, false)) > 0 })
		switch {
		case len(here) > 0:
		case blind[node] != "" && later:
			continue
		case last.open:
			return last
		case blind[node] != "" && i > 0:
			return end{node: order[i-1], open: true, text: fmt.Sprintf("left %s for %s, which could not look", order[i-1], node)}
		case blind[node] != "":
			return end{node: node, open: true, text: fmt.Sprintf("sent by %s, which could not look", node)}
		case i == 0:
			return last
		default:
			return end{node: order[i-1], lost: true, text: lostBetween(events, order[i-1], node, false, tunnels(says, order[i-1]))}
		}
		if e := find(here, dropped); e != nil {
			text := fmt.Sprintf("dropped on %s%s by %s", node, e.within(), e.place())
			elsewhere := find(here, led) != nil
			if elsewhere {
				text += ", after it was " + translation(here, "")
			}
			return end{node: node, drop: e, translated: elsewhere, text: text}
		}
		if e := find(here, func(e Event) bool { return wentOut(e) && e.Endpoint != "" }); e != nil {
			return end{arrived: true, node: node, endpoint: e.Endpoint, text: fmt.Sprintf("delivered to %s on %s", e.Endpoint, node)}
		}
		out := find(here, wentOut)
		if blind[node] != "" {
			if !later {
				last = end{node: node, open: true, text: fmt.Sprintf("lost to sight on %s", node)}
			}
			continue
		}
		switch {
		case out == nil && find(here, led) != nil:
			text := translation(here, node)
			switch left := find(here, func(e Event) bool { return passed(e) && e.Device != "" }); {
			case left != nil:
				return end{node: node, translated: true, text: text + ", and then passed all rules on its way to " + deviceOf(*left)}
			case find(here, toNode) != nil:
				return end{node: node, translated: true, text: text + ", and then went to the node itself"}
			}
			lost, early := lostWithin(events, node, false)
			return end{node: node, translated: true, lost: true, early: early, text: text + ", and then " + lost}
		case out == nil && find(here, toNode) != nil:
			return end{arrived: true, node: node, toNode: true, text: fmt.Sprintf("delivered to %s itself", node)}
		case out == nil && find(here, translated) != nil:
			last = end{node: node, left: true, text: fmt.Sprintf("left %s with other addresses", node)}
		default:
			if text, early := lostWithin(events, node, false); text != "" {
				return end{node: node, lost: true, text: text, early: early}
			}
		}
		if out != nil {
			last = end{node: node, left: true, text: fmt.Sprintf("left %s on %s", node, cmp.Or(tunnelDevice(here), out.Device))}
		}
		last.arrived = says.SeenSource.IsValid() && says.Node == "" && i == len(order)-1
		if i == len(order)-1 && !last.arrived {
			last.text += ", for nobody who was asked"
		}
	}
	return last
}

// followBack finds where the answer was lost that the sender did not get; the text is
// empty where nobody saw one, or who sent the probe was given it.
func followBack(order []string, events []Event, blind map[string]string) end {
	var last string // who had it last
	for i, node := range slices.Backward(order) {
		here := at(events, node, true)
		nearer := slices.ContainsFunc(order[:i], func(n string) bool { return len(at(events, n, true)) > 0 })
		switch {
		case len(here) > 0:
		case last == "" || nearer:
			continue
		case blind[node] != "":
			return end{node: last, open: true, text: fmt.Sprintf("lost to sight: it left %s for %s, which could not look", last, node)}
		case find(at(events, node, false), translated) != nil:
			// It comes with other addresses, and is seen only once it has its own.
			return end{node: last, text: fmt.Sprintf("lost behind %s: it left there, and %s, which translates it back, was not seen to pass it on", last, node)}
		default:
			return end{node: last, text: lostBetween(events, last, node, true, false)}
		}
		last = node
		if e := find(here, dropped); e != nil {
			return end{node: node, drop: e, text: fmt.Sprintf("dropped on %s%s by %s", node, e.within(), e.place())}
		}
		out, itself := find(here, wentOut), find(here, toNode) != nil
		asked := i == 0
		pod := asked && find(at(events, node, false), func(e Event) bool { return cameIn(e) && e.Endpoint != "" }) != nil
		switch {
		case asked && pod && find(here, func(e Event) bool { return wentOut(e) && e.Endpoint != "" }) != nil, asked && !pod && itself:
			return end{}
		case blind[node] != "" && !nearer:
			return end{node: node, open: true, text: "lost to sight on " + node}
		case blind[node] != "" || nearer:
			continue
		case out == nil && itself:
			return end{node: node, text: fmt.Sprintf("lost on %s, which took it for its own", node)}
		}
		if text, _ := lostWithin(events, node, true); text != "" {
			return end{node: node, text: text}
		}
		if asked {
			return end{node: node, text: fmt.Sprintf("lost behind %s, which it left on %s, where nobody asked", node, deviceOf(*out))}
		}
	}
	return end{}
}

// tunnels reports whether the interpreter has a node send the packet on in a tunnel.
func tunnels(says plan.Explanation, node string) bool {
	return slices.ContainsFunc(says.Steps, func(s plan.Step) bool { return s.Node == node && s.Tunnels() })
}

// lostBetween says of a packet that it left a node and was not seen on the next. Programs
// of XDP come before all that can see it. What should have left in a tunnel, and did not,
// went by another way, so that the next never had it.
func lostBetween(events []Event, node, next string, reply, tunnels bool) string {
	here := at(events, node, reply)
	if out := find(here, wentOut); tunnels && out != nil && !out.Encapsulates && tunnelDevice(here) == "" {
		return fmt.Sprintf("led past the tunnel: it left %s on %s and not in the tunnel to %s, so that a route or a rule that is not Weft's decides", node, deviceOf(*out), next)
	}
	return fmt.Sprintf("lost between %s and %s: it left the one and was not seen on the other, where an XDP program may have dropped it unseen", node, next)
}

// lostWithin says where a node's kernel lost a packet that no rule is known to have
// dropped, and what may have; "" where it left on a device. Early says that it was
// before the first rule that is traced.
func lostWithin(events []Event, node string, reply bool) (text string, early bool) {
	here := at(events, node, reply)
	out, in := find(here, wentOut), find(here, func(e Event) bool { return cameIn(e) && !e.Tunnel })
	tunnelled := out == nil && in == nil && find(here, inTunnel(false)) != nil
	switch {
	case out.encapsulates() && tunnelDevice(here) == "":
		return fmt.Sprintf("lost within the kernel of %s: it went into the tunnel's device %s, and no packet of the tunnel was seen to leave the node, nor to be dropped by a rule of nftables; %s may have dropped it, which is not traced",
			node, out.Device, behind(events, node)), false
	case out != nil:
		return "", false
	}
	early = !slices.ContainsFunc(events, func(e Event) bool {
		return e.Kind == Traced && e.Node == node && e.Reply == reply && e.Tunnel == tunnelled && (e.Hook != "output" || in == nil)
	}) && find(here, func(e Event) bool { return e.Kind == Decided && e.Tunnel == tunnelled }) == nil
	const peer = "it may be of another peer's address, VNI, MAC or port than the node knows"
	switch {
	case tunnelled && early:
		return fmt.Sprintf("came to %s in the tunnel, and was not taken out of it: lost before Weft could look, where %s may have dropped it, or it was sent to another MAC address than the device's", node, before(events, node, reply)), true
	case tunnelled:
		return fmt.Sprintf("came to %s in the tunnel, and was not taken out of it, which no rule of nftables did: %s, or %s dropped it, which is not traced", node, peer, behind(events, node)), false
	case early:
		return fmt.Sprintf("lost within the kernel of %s before Weft could look, where %s may have dropped it, or it was sent to another MAC address than the device's", node, before(events, node, reply)), true
	case find(here, passed) != nil:
		return fmt.Sprintf("lost within the kernel of %s behind all rules of nftables: the device that it was to leave on is down, or nobody answers there, or %s dropped it, which is not traced", node, behind(events, node)), false
	}
	return fmt.Sprintf("lost within the kernel of %s, which no rule of nftables did: it has no way there, or a source that it does not take from there, or %s dropped it, which is not traced", node, behind(events, node)), false
}

// programs are what may drop packets anywhere, and policies what may where the kernel
// has found their way; nobody tells of either.
const (
	programs = "a program of tc or BPF"
	policies = "a policy of IPsec"
)

// before names what may have dropped a packet before the first rule that is traced.
func before(events []Event, node string, reply bool) string {
	var names []string
	for _, e := range events {
		met := e.Device == "" || find(at(events, node, reply), func(s Event) bool { return cameIn(s) && s.Device == e.Device }) != nil
		if e.Kind == Untraced && e.Node == node && e.Hook != "" && met {
			names = append(names, e.Text)
		}
	}
	return either(append(names, programs))
}

// behind names what may have dropped a packet behind that.
func behind(events []Event, node string) string {
	var names []string
	for _, e := range events {
		if e.Kind == Untraced && e.Node == node && e.Hook == "" {
			names = append(names, e.Text)
		}
	}
	return either(append(names, programs, policies))
}

// either lists names, one of which it is.
func either(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// tunnelDevice is where a packet left within the tunnel, or "".
func tunnelDevice(events []Event) string {
	if e := find(events, inTunnel(true)); e != nil {
		return e.Device
	}
	return ""
}

// foreign says so of the table of a rule that dropped a packet.
func (e end) foreign() string {
	if e.drop == nil || e.drop.own() {
		return ""
	}
	return fmt.Sprintf("; table %s %s is not Weft's", e.drop.Family, e.drop.Table)
}
