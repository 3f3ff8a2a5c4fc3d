package policy

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/weftnet/weft/plan"
)

// Difference is what becomes allowed, or is no longer, between two sides.
type Difference struct {
	Source      Side `json:"source"`
	Destination Side `json:"destination"`
	// Family is "IPv4" or "IPv6" where the other one differs, else empty.
	Family string `json:"family,omitempty"`
	// Traffic is what it is about.
	Traffic []Traffic `json:"traffic"`
	// Allowed is how it will be, by the rule Rule or by those of both sides.
	Allowed bool   `json:"allowed"`
	Rule    string `json:"rule"`
}

// Traffic is connections of a protocol to a range of ports. That of AnyProtocol
// is those of all protocols but TCP, UDP and SCTP.
type Traffic struct {
	Protocol plan.Protocol
	Ports    plan.PortRange
}

func (t Traffic) String() string {
	if t.Protocol == plan.AnyProtocol {
		return "other protocols"
	}
	return portText(Port{Protocol: t.Protocol, Range: t.Ports})
}

// MarshalText is String for JSON.
func (t Traffic) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

func (d Difference) String() string {
	change := "allowed -> denied"
	if d.Allowed {
		change = "denied -> allowed"
	}
	what := trafficText(d.Traffic)
	if d.Family != "" {
		what += " over " + d.Family
	}
	return fmt.Sprintf("%s -> %s  %s: %s  (%s)", d.Source, d.Destination, what, change, d.Rule)
}

// trafficText says what traffic is, by what it is not if other protocols are
// part of it.
func trafficText(traffic []Traffic) string {
	text := func(list []Traffic) string { return enumerate(shortened(list, Traffic.String)) }
	if !slices.ContainsFunc(traffic, func(t Traffic) bool { return t.Protocol == plan.AnyProtocol }) {
		return text(traffic)
	}
	var others []Traffic
	for _, protocol := range portProtocols {
		next := 0
		for _, t := range append(slices.Clone(traffic), Traffic{protocol, plan.PortRange{First: 65535, Last: 65535}}) {
			if t.Protocol != protocol {
				continue
			}
			if first := int(t.Ports.First); first > next {
				others = append(others, Traffic{protocol, plan.PortRange{First: uint16(next), Last: uint16(first - 1)}})
			}
			next = max(next, int(t.Ports.Last)+1)
		}
	}
	if len(others) == 0 {
		return "everything"
	}
	return "everything but " + text(others)
}

// portProtocols are those of which decisions go by ports.
var portProtocols = [...]plan.Protocol{plan.TCP, plan.UDP, plan.SCTP}

// maxCounted is where Compare stops to count differences that it does not
// return.
const maxCounted = 100_000

// Compare returns what would change for the pods of a scene if the policies were
// others, in the order of the sides' names. Of more than most differences the
// first are returned (0: all), and total is how many there are, up to 100,000.
// What is allowed is what the egress policies of the source and the ingress
// policies of the destination both allow; a pod always reaches itself. Policies
// that are in both must be the same pointers.
//
// Pods that no policy can tell apart are looked at once, and of two sides only
// those for which a rule holds that came or went. So a change to a policy costs
// in proportion to those that it selects times those that it is about.
func Compare(before, after []*Policy, s Scene, most int) (differences []Difference, total int) {
	c := comparison{
		eras: [2]*era{newEra(before), newEra(after)}, namespaces: make(map[string]labels.Set),
		seats: make(map[string]*seat), holds: make(map[*Rule][]bool), memo: make(map[[4]*outcome][]section),
	}
	for _, ns := range s.Namespaces {
		c.namespaces[ns.Name] = ns.Labels
	}
	c.classify(before, after, s)
	out, in := make([]*concern, len(c.classes)), make([]*concern, len(c.classes))
	var destinations []int
	for i, k := range c.classes {
		if k.Identity != nil {
			out[i], in[i] = c.concern(k, plan.Outgoing), c.concern(k, plan.Incoming)
		}
		if in[i] != nil {
			destinations = append(destinations, i)
		}
	}
	everyone := make([]int, len(c.classes))
	for i := range everyone {
		everyone[i] = i
	}
	for i, src := range c.classes {
		to := destinations
		if out[i] != nil {
			to = everyone
		}
		for _, j := range to {
			if i == j && src.side.Pods < 2 || !out[i].with(j) && !in[j].with(i) {
				continue
			}
			for _, d := range c.differences(src, c.classes[j]) {
				if total++; most == 0 || total <= most {
					differences = append(differences, d)
				} else if total >= maxCounted {
					return differences, total
				}
			}
		}
	}
	return differences, total
}

// concern says for whom a class may decide otherwise than before: those for
// whom one of some rules holds. nil is nobody.
type concern struct {
	all  bool
	rows [][]bool // by class
}

func (c *concern) with(class int) bool {
	return c != nil && (c.all || slices.ContainsFunc(c.rows, func(row []bool) bool { return row[class] }))
}

func (c *comparison) concern(k *sideClass, d plan.Direction) *concern {
	before, after := c.seat(k, d, 0), c.seat(k, d, 1)
	if before == after {
		return nil
	}
	in := make(map[*Rule]bool)
	isolated := [2]bool{}
	var found concern
	for i, s := range [...]*seat{before, after} {
		for _, r := range s.rules {
			if r.Tier == Isolating && r.Action == Deny {
				isolated[i] = true // the only rule of the tier that does
			} else if i == 0 {
				in[r.Rule] = true
			} else if in[r.Rule] {
				delete(in, r.Rule)
			} else {
				found.rows = append(found.rows, c.row(r.Rule))
			}
		}
	}
	for r := range in {
		found.rows = append(found.rows, c.row(r))
	}
	found.all = isolated[0] != isolated[1]
	if !found.all && len(found.rows) == 0 {
		return nil
	}
	return &found
}

// row says for which classes a rule holds.
func (c *comparison) row(r *Rule) []bool {
	row := c.holds[r]
	if row == nil {
		row = make([]bool, len(c.classes))
		for i, k := range c.classes {
			p := k.Party
			for _, p.Address = range k.addresses {
				row[i] = row[i] || r.Holds(p)
			}
		}
		c.holds[r] = row
	}
	return row
}

// comparison is the state of Compare.
type comparison struct {
	eras       [2]*era
	namespaces map[string]labels.Set
	classes    []*sideClass
	seats      map[string]*seat
	holds      map[*Rule][]bool
	memo       map[[4]*outcome][]section
}

// era is the policies before or after, found by the namespaces of their subjects.
type era struct {
	inNamespace map[string][]*Policy
	others      []*Policy
}

func newEra(policies []*Policy) *era {
	e := &era{inNamespace: make(map[string][]*Policy)}
	for _, p := range policies {
		if ns := p.Subject.Namespace; ns != "" {
			e.inNamespace[ns] = append(e.inNamespace[ns], p)
		} else {
			e.others = append(e.others, p)
		}
	}
	return e
}

// seat is all that decides for a class in one direction and era. Classes of the
// same policies share it.
type seat struct {
	rules    []Applied
	outcomes map[string]*outcome
}

// outcome is what a seat decides for some peers.
type outcome struct {
	decisions []Decision
	// nothing says that nothing is allowed.
	nothing bool
}

func newOutcome(decisions []Decision) *outcome {
	return &outcome{decisions, !slices.ContainsFunc(decisions, func(d Decision) bool { return d.Allow })}
}

// unrestricted is what is decided for what is no pod.
var unrestricted = newOutcome(Resolve(nil, Party{}, nil))

func (c *comparison) seat(k *sideClass, d plan.Direction, era int) *seat {
	known := &k.seats[era]
	if d == plan.Incoming {
		known = &k.seats[2+era]
	}
	if *known != nil {
		return *known
	}
	var chosen []*Policy
	var key strings.Builder
	fmt.Fprint(&key, d)
	if d == plan.Incoming {
		fmt.Fprint(&key, k.Identity.Ports) // rules resolve by them
	}
	for _, list := range [...][]*Policy{c.eras[era].inNamespace[k.Identity.Namespace], c.eras[era].others} {
		for _, p := range list {
			if p.Subject.Selects(k.Identity, k.NamespaceLabels) {
				chosen = append(chosen, p)
				fmt.Fprintf(&key, " %p", p)
			}
		}
	}
	s := c.seats[key.String()]
	if s == nil {
		s = &seat{rules: Applicable(chosen, k.Identity, k.NamespaceLabels, d), outcomes: make(map[string]*outcome)}
		c.seats[key.String()] = s
	}
	*known = s
	return s
}

// outcome returns what a class decides about another.
func (c *comparison) outcome(k *sideClass, d plan.Direction, era int, peer *sideClass, f int) *outcome {
	if k.Identity == nil {
		return unrestricted
	}
	s := c.seat(k, d, era)
	p := peer.Party
	p.Address = peer.addresses[f]
	key := make([]byte, len(s.rules), len(s.rules)+8)
	var destination *Identity
	if d == plan.Incoming {
		destination = k.Identity
	} else if destination = peer.Identity; destination != nil && len(destination.Ports) > 0 {
		key = fmt.Append(key, destination.Ports)
	}
	for i := range s.rules {
		if s.rules[i].Holds(p) {
			key[i] = 1
		}
	}
	o := s.outcomes[string(key)]
	if o == nil {
		o = newOutcome(Resolve(s.rules, p, destination))
		s.outcomes[string(key)] = o
	}
	return o
}

// differences returns those of what one class sends to another.
func (c *comparison) differences(src, dst *sideClass) []Difference {
	var byFamily [2][]section
	var families []int
	for f := range byFamily {
		if !src.addresses[f].IsValid() || !dst.addresses[f].IsValid() {
			continue
		}
		families = append(families, f)
		in := [2]*outcome{c.outcome(dst, plan.Incoming, 0, src, f), c.outcome(dst, plan.Incoming, 1, src, f)}
		if in[0].nothing && in[1].nothing {
			continue
		}
		out := [2]*outcome{c.outcome(src, plan.Outgoing, 0, dst, f), c.outcome(src, plan.Outgoing, 1, dst, f)}
		if out[0] == out[1] && in[0] == in[1] || out[0].nothing && out[1].nothing {
			continue
		}
		key := [4]*outcome{out[0], in[0], out[1], in[1]}
		sections, known := c.memo[key]
		if !known {
			sections = sectionsOf(key)
			c.memo[key] = sections
		}
		byFamily[f] = sections
	}
	names := [...]string{"IPv4", "IPv6"}
	same := len(families) == 2 && slices.EqualFunc(byFamily[0], byFamily[1], section.equal)
	if same {
		families = families[:1]
	}
	var all []Difference
	for _, f := range families {
		for _, s := range byFamily[f] {
			d := Difference{Source: src.side, Destination: dst.side, Traffic: s.traffic, Allowed: s.allowed, Rule: s.rule}
			if len(families) == 2 {
				d.Family = names[f]
			}
			all = append(all, d)
		}
	}
	return all
}

// section is traffic that changes alike, for the same reason.
type section struct {
	allowed bool
	rule    string
	traffic []Traffic
}

func (s section) equal(o section) bool {
	return s.allowed == o.allowed && s.rule == o.rule && slices.Equal(s.traffic, o.traffic)
}

// sectionsOf compares the decisions of both sides, before and after.
func sectionsOf(sides [4]*outcome) []section {
	var sections []section
	for _, protocol := range append(portProtocols[:], plan.AnyProtocol) {
		cuts := []int{0}
		for _, o := range sides {
			for _, d := range o.decisions {
				if d.Protocol == protocol {
					cuts = append(cuts, int(d.Ports.First), int(d.Ports.Last)+1)
				}
			}
		}
		slices.Sort(cuts)
		cuts = slices.Compact(append(cuts, 65536))
		for i, from := range cuts[:len(cuts)-1] {
			var d [4]Decision
			for j, o := range sides {
				d[j] = decisionOfPort(o.decisions, protocol, uint16(from))
			}
			before, after := d[0].Allow && d[1].Allow, d[2].Allow && d[3].Allow
			if before == after {
				continue
			}
			// Of what denies, the first that does; of what allows, those that
			// did not before.
			var rules []string
			for side, was := range d[:2] {
				if is := d[2+side]; after && !was.Allow || !after && !is.Allow && rules == nil {
					rules = append(rules, is.Origin)
				}
			}
			s := section{allowed: after, rule: strings.Join(slices.Compact(rules), " and ")}
			at := slices.IndexFunc(sections, func(o section) bool { return o.allowed == s.allowed && o.rule == s.rule })
			if at < 0 {
				at = len(sections)
				sections = append(sections, s)
			}
			traffic := &sections[at].traffic
			ports := plan.PortRange{First: uint16(from), Last: uint16(cuts[i+1] - 1)}
			if n := len(*traffic); n > 0 && (*traffic)[n-1].Protocol == protocol && int((*traffic)[n-1].Ports.Last)+1 == from {
				(*traffic)[n-1].Ports.Last = ports.Last
			} else {
				*traffic = append(*traffic, Traffic{protocol, ports})
			}
		}
	}
	return sections
}

// decisionOfPort returns that of Resolve's decisions which holds for a port.
func decisionOfPort(decisions []Decision, protocol plan.Protocol, port uint16) Decision {
	for _, d := range decisions {
		if d.Protocol == protocol && d.Ports.Contains(port) {
			return d
		}
	}
	return decisions[len(decisions)-1]
}
