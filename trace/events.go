package trace

import "fmt"

// at returns what a node's kernel did with the probe, or what came back.
func at(events []Event, node string, reply bool) []Event {
	var found []Event
	for _, e := range events {
		if e.Node == node && e.Reply == reply && (e.Kind == Seen || e.Kind == Decided) {
			found = append(found, e)
		}
	}
	return found
}

// find returns the last event for which is holds, or nil. The last counts, as a
// sender tries again.
func find(events []Event, is func(Event) bool) *Event {
	for i := len(events) - 1; i >= 0; i-- {
		if is(events[i]) {
			return &events[i]
		}
	}
	return nil
}

func dropped(e Event) bool { return e.Kind == Decided && e.Verdict == "drop" }
func cameIn(e Event) bool  { return e.Kind == Seen && !e.Out }

// wentOut is of a packet that left the node, or went on to an endpoint: what a node sends to itself
// goes out on its loopback device, and comes in there again.
func wentOut(e Event) bool { return e.Kind == Seen && e.Out && !e.Tunnel && e.Device != loopback }
func inTunnel(out bool) func(Event) bool {
	return func(e Event) bool { return e.Kind == Seen && e.Tunnel && e.Out == out }
}
func toNode(e Event) bool { return e.Kind == Decided && e.Hook == "input" && !e.Tunnel }

// translated is of a packet that leaves with other addresses, so that it is not
// seen as the probe any more.
func translated(e Event) bool {
	return e.Kind == Decided && e.Hook == "postrouting" && e.Translates && !e.Tunnel
}

// led is of a packet that goes elsewhere than it was sent, or of the rule that has it
// go there.
func led(e Event) bool {
	return e.Kind == Decided && !e.Tunnel && (e.To.IsValid() || e.Translates && (e.Hook == "prerouting" || e.Hook == "output"))
}

// translation says where a packet was led, and by which rule, as far as that is known.
func translation(here []Event, node string) string {
	text := "translated"
	if node != "" {
		text += " on " + node
	}
	if e := find(here, func(e Event) bool { return led(e) && e.To.IsValid() }); e != nil {
		to := e.To.String()
		if e.To.Port() == 0 {
			to = e.To.Addr().String()
		}
		text += " to " + to
	}
	if e := find(here, func(e Event) bool { return led(e) && e.Translates }); e != nil {
		text += " by " + e.place()
	}
	return text
}

// passed is of a packet that no rule held back, and that was left to a device.
func passed(e Event) bool {
	return e.Kind == Decided && e.Hook == "postrouting" && e.Verdict == "accept" && !e.Tunnel
}

func deviceOf(e Event) string {
	if e.Endpoint != "" {
		return e.Device + ", which is pod " + e.Endpoint + "'s"
	}
	return e.Device
}

// within says so of a packet in the tunnel.
func (e Event) within() string {
	if e.Tunnel {
		return " in the tunnel's packet"
	}
	return ""
}

// encapsulates reports whether the packet went into a device of the overlay.
func (e *Event) encapsulates() bool { return e != nil && e.Encapsulates }

// place names a rule, or the policy of a chain, and where it is.
func (e Event) place() string {
	rule := "the policy"
	if e.Rule != "" {
		rule = fmt.Sprintf("%q", e.Rule)
	}
	where := fmt.Sprintf("%s of chain %s in table %s %s", rule, e.Chain, e.Family, e.Table)
	if e.Hook != "" {
		where += " (" + e.Hook + ")"
	}
	return where
}

// own reports whether a table is Weft's, and not that of a probe.
func (e Event) own() bool {
	return e.Family == "inet" && (e.Table == "weft" || e.Table == policyTable || e.Table == servicesTable)
}

// The tables of policies and of Services of the linux data plane.
const (
	policyTable   = "weft-policy"
	servicesTable = "weft-services"
)

// loopback is a node's device for what it sends to itself.
const loopback = "lo"
