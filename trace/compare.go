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
	// Arrived says that the probe came to whom it was sent, or left the cluster
	// on its way there. Who else got it is none of them.
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

// Owner is who has the address to which a probe is sent, as far as that is known: the
// Pod "namespace/name" or, where that is empty, the Node itself.
type Owner struct {
	Pod, Node string
}

// is reports whether it was the Owner who got a probe, where nothing says otherwise.
func (o Owner) is(got end) bool {
	switch {
	case o.Pod != "":
		return got.endpoint == o.Pod
	case o.Node != "":
		return got.toNode && got.node == o.Node
	}
	return true
}

// Compare says what became of a probe to an Owner, by the events of all nodes, and
// whether that is what the interpreter says. blind says which nodes could not look, and
// why; those that Failed missed something.
func Compare(says plan.Explanation, to Owner, events []Event, blind map[string]string) Report {
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
	if says.SeenSource.IsValid() {
		r.Arrived = got.arrived && r.Difference == ""
	} else {
		r.Arrived = got.arrived && to.is(got)
	}
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
		agree = got.stayed || says.Interface == "" && got.toNode && got.node == says.Node
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
