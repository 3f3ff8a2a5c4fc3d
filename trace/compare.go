package trace

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
)

// Report is what became of a probe, beside what the interpreter says.
type Report struct {
	// Arrived says that the probe came to where it was sent, or left the cluster
	// on its way there.
	Arrived bool `json:"arrived"`
	// Outcome says what the kernels did with it, in a sentence.
	Outcome string `json:"outcome"`
	// Agree says that this is what the interpreter says; Difference says what
	// is not, where it does not.
	Agree      bool   `json:"agree"`
	Difference string `json:"difference,omitempty"`
	// Answer is what came back to the sender, and Text says it for people.
	Answer Answer `json:"answer,omitempty"`
	Text   string `json:"text,omitempty"`
	// Lost says where the answer was lost, where one was sent and the sender got
	// none. Where nobody saw one being sent it is empty: nobody may listen.
	Lost string `json:"lost,omitempty"`
	// Hops are what the kernels did, in the order of the way.
	Hops []Hop `json:"hops"`
	// Blind says which nodes could not look or missed something, and why. Open
	// says that the probe was lost sight of at one of them, so that nothing can
	// be compared.
	Blind map[string]string `json:"blind,omitempty"`
	Open  bool              `json:"open,omitempty"`
	// Meanwhile is what the interpreter says after the probe, where the
	// cluster's objects changed while it was on its way.
	Meanwhile string `json:"meanwhile,omitempty"`
}

// Changed takes back that interpreter and kernel differ, as the cluster's objects
// changed while the probe was on its way: the interpreter says something else by
// now.
func (r *Report) Changed(says string) {
	r.Open, r.Meanwhile, r.Difference = true, says, ""
}

// Hop is something that a node's kernel did.
type Hop struct {
	Node string `json:"node"`
	Text string `json:"text"`
	// Reply says that it did so with what came back.
	Reply bool `json:"reply,omitempty"`
}

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

// Compare says what became of a probe, by the events of all nodes, and whether
// that is what the interpreter says. blind says which nodes could not look, and
// why; those that Failed missed something.
func Compare(says plan.Explanation, events []Event, blind map[string]string) Report {
	blind = maps.Clone(blind)
	for _, e := range events {
		if e.Kind == Failed && blind[e.Node] == "" {
			if blind == nil {
				blind = make(map[string]string)
			}
			blind[e.Node] = e.Text
		}
	}
	order := nodesOf(says, events)
	r := Report{Blind: blind}
	for _, node := range order {
		for _, text := range describe(at(events, node, false)) {
			r.Hops = append(r.Hops, Hop{Node: node, Text: text})
		}
	}
	for _, node := range slices.Backward(order) {
		for _, text := range describe(at(events, node, true)) {
			r.Hops = append(r.Hops, Hop{Node: node, Text: text, Reply: true})
		}
	}
	for _, e := range events {
		if e.Kind == Answered {
			r.Answer, r.Text = e.Answer, e.Text
		}
	}
	got := follow(says, order, events, blind)
	if i := slices.IndexFunc(events, func(e Event) bool { return e.Kind == Unsent }); i >= 0 && got.drop == nil {
		got = end{open: true, text: "not sent: " + events[i].Text}
	}
	if got.stayed && r.Answer != "" && r.Answer != Silence {
		if got.arrived = r.Answer != Unreachable; differs(says, got) != "" {
			// The sender's own rules may lead elsewhere what it sends.
			r.Outcome, r.Open = "the probe never left who sent it for where it was sent, and yet something answered", true
			return r
		}
	}
	if got.lost && (r.Answer == Accepted || r.Answer == Refused) {
		// What answers was reached, by a packet that could not be told for the probe.
		r.Arrived, r.Open = r.Answer == Accepted, true
		r.Outcome = fmt.Sprintf("not seen any more behind %s, and yet something answered: it may have other addresses or ports there", got.node)
		return r
	}
	r.Arrived, r.Outcome = got.arrived, got.text
	if got.open {
		r.Arrived, r.Open = r.Answer == Accepted, true
		return r
	}
	r.Difference = differs(says, got)
	if says.SeenSource.IsValid() && r.Answer == Silence && (got.arrived || got.left) {
		answer := followBack(order, events, blind)
		if answer.open && r.Difference == "" {
			r.Outcome, r.Open = r.Outcome+"; the answer was "+answer.text, true
		} else if !answer.open && answer.text != "" {
			r.Lost = answer.text
			r.Difference = cmp.Or(r.Difference, "by the plans what answers comes back; in the kernel the answer was "+answer.text+answer.foreign())
		}
	}
	r.Agree = r.Difference == "" && !r.Open
	return r
}

// nodesOf returns the nodes that the interpreter has the packet meet, in that
// order, and then any others that saw it.
func nodesOf(says plan.Explanation, events []Event) []string {
	var order []string
	add := func(node string) {
		if node != "" && !slices.Contains(order, node) {
			order = append(order, node)
		}
	}
	for _, s := range says.Steps {
		add(s.Node)
	}
	for _, e := range events {
		if !e.Reply && (e.Kind == Seen || e.Kind == Decided) {
			add(e.Node)
		}
	}
	return order
}

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
func wentOut(e Event) bool { return e.Kind == Seen && e.Out && !e.Tunnel }
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

// describe says what a node's kernel did, in the order of the packet's way.
func describe(events []Event) []string {
	var lines []string
	say := func(e *Event, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); e != nil && !slices.Contains(lines, text) {
			lines = append(lines, text)
		}
	}
	if e := find(events, inTunnel(false)); e != nil {
		say(e, "came in through the tunnel on %s", e.Device)
	}
	if e := find(events, func(e Event) bool { return cameIn(e) && !e.Tunnel }); e != nil {
		say(e, "came in on %s", deviceOf(*e))
	}
	if e := find(events, led); e != nil {
		say(e, "%s", translation(events, ""))
	}
	if e := find(events, dropped); e != nil {
		if e.Tunnel {
			for _, o := range events {
				if wentOut(o) {
					say(&o, "went out on %s", deviceOf(o))
				}
			}
		}
		say(e, "dropped%s by %s", e.within(), e.place())
		return lines
	}
	if e := find(events, toNode); e != nil && find(events, wentOut) == nil {
		say(e, "went to the node itself")
	}
	for _, e := range events {
		if wentOut(e) {
			say(&e, "went out on %s", deviceOf(e))
		}
		if passed(e) && e.Device != "" {
			say(&e, "passed all rules on its way to %s", deviceOf(e))
		}
	}
	if e := find(events, translated); e != nil && find(events, wentOut) == nil {
		say(e, "went out with other addresses, by %s", e.place())
	}
	if e := find(events, inTunnel(true)); e != nil {
		say(e, "went into the tunnel on %s", e.Device)
	}
	return lines
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
func (e Event) own() bool { return e.Family == "inet" && (e.Table == "weft" || e.Table == policyTable) }

// policyTable is the table of policies of the linux data plane.
const policyTable = "weft-policy"

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
			return end{node: order[i-1], lost: true, text: lostBetween(order[i-1], node)}
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
			return end{node: last, text: lostBetween(last, node)}
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

// lostBetween says of a packet that it left a node and was not seen on the next.
// Programs of XDP come before all that can see it.
func lostBetween(node, next string) string {
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

// programs are what may drop packets anywhere, and of which nobody tells.
const programs = "a program of tc or BPF"

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
	return either(append(names, programs))
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

// differs says what the interpreter says else than what was seen; "" where they
// agree.
func differs(says plan.Explanation, got end) string {
	reached := says.SeenSource.IsValid()
	var last plan.Step
	if n := len(says.Steps); n > 0 {
		last = says.Steps[n-1]
	}
	itself := reached && len(says.Steps) > 0 && says.Node == says.Steps[0].Node && says.SeenSource.IsValid() &&
		(plan.StaysHome(says.SeenDestination) || says.SeenSource == says.SeenDestination)
	agree := false
	switch {
	case got.translated: // for nobody that the plans name
	case itself:
		agree = got.stayed
	case reached && says.Interface != "":
		agree = got.endpoint == says.Interface && got.node == says.Node
	case reached && says.Node != "":
		agree = got.toNode && got.node == says.Node
	case reached:
		agree = got.left && got.node == last.Node
	case got.arrived || got.node != last.Node && !got.stayed:
	case got.drop == nil:
		agree = !got.early && (last.Table == "routes" || last.Table == "node")
	case last.Table == "verdicts":
		agree = got.drop.own() && got.drop.Table == policyTable
	default:
		agree = got.drop.own()
	}
	if agree {
		return ""
	}
	text := fmt.Sprintf("by the plans: %s; in the kernel: %s", says.Reason, got.text)
	return text + got.foreign()
}

// foreign says so of the table of a rule that dropped a packet.
func (e end) foreign() string {
	if e.drop == nil || e.drop.own() {
		return ""
	}
	return fmt.Sprintf("; table %s %s is not Weft's", e.drop.Family, e.drop.Table)
}

// String returns the report for people.
func (r Report) String() string {
	var b strings.Builder
	printable.Fprintf(&b, "live: %s\n", printable.Brief(r.Outcome))
	width := 0
	for _, h := range r.Hops {
		width = max(width, len(h.Node))
	}
	back := false
	for _, h := range r.Hops {
		if h.Reply && !back {
			b.WriteString("  and back:\n")
			back = true
		}
		printable.Fprintf(&b, "  %-*s  %s\n", width, h.Node, printable.Brief(h.Text))
	}
	if r.Text != "" {
		printable.Fprintf(&b, "answer: %s\n", printable.Brief(r.Text))
	}
	for _, node := range slices.Sorted(maps.Keys(r.Blind)) {
		printable.Fprintf(&b, "warning: node %s: %s\n", node, printable.Brief(r.Blind[node]))
	}
	switch {
	case r.Meanwhile != "":
		printable.Fprintf(&b, "the cluster's objects changed meanwhile, so that this cannot be compared; by the plans now: %s; ask again\n", printable.Brief(r.Meanwhile))
	case r.Open:
		b.WriteString("what the kernels do beyond that is not known\n")
	case r.Agree:
		b.WriteString("interpreter and kernel agree\n")
	default:
		printable.Fprintf(&b, "interpreter and kernel differ: %s\n", printable.Brief(r.Difference))
	}
	return b.String()
}
