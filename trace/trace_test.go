package trace_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/trace"
)

// TestStories holds what nodes told of a probe against what the interpreter says
// of the flow. In a story, "plans" and "flow" hold for all that follows; every
// other file is events, a line each: NODE [reply] and what happened there. In one
// with "blind" in its name node2 could not look.
func TestStories(t *testing.T) {
	golden.Archives(t, "testdata/*.txtar", func(t *testing.T, files []txtar.File) []txtar.File {
		var plans map[string]*plan.Plan
		var flow plan.Flow
		var says plan.Explanation
		return golden.Answer(files, func(name, in string) string {
			switch name {
			case "plans":
				var err error
				if plans, err = plan.ParseAll(in); err != nil {
					t.Fatal(err)
				}
				return ""
			case "flow":
				var err error
				if flow, err = plan.ParseFlow(strings.TrimSpace(in)); err != nil {
					t.Fatal(err)
				}
				says = plan.Explain(plans, flow)
				// As of the pods' objects, which do not tell interfaces.
				for _, p := range plans {
					if e, ok := p.Endpoints.Get(plan.EndpointKey{Interface: says.Interface}); ok {
						says.Interface = e.Name
					}
				}
				verdict, _, _ := strings.Cut(says.String(), "\n")
				return verdict + "\n"
			}
			blind := map[string]string{}
			if strings.Contains(name, "blind") {
				blind["node2"] = "no agent runs there that could look"
			}
			report := trace.Compare(says, owner(flow, plans), events(t, in), blind)
			return fmt.Sprintf("%sarrived: %v\n", report, report.Arrived)
		})
	})
}

// owner is who has the address that a flow goes to, by the plans.
func owner(flow plan.Flow, plans map[string]*plan.Plan) trace.Owner {
	for node, p := range plans {
		if slices.Contains(p.Local.Addresses, flow.Destination) {
			return trace.Owner{Node: node}
		}
		for _, e := range p.Endpoints.All() {
			if slices.Contains(e.Addresses, flow.Destination) {
				return trace.Owner{Pod: e.Name, Node: node}
			}
		}
	}
	return trace.Owner{}
}

// events reads lines such as
//
//	node1 in eth0 tunnel
//	node2 reply out weft1 default/db
//	node1 out weft-vxlan encapsulates
//	node1 translate inet weft masquerade postrouting "the node's address becomes the source"
//	node2 drop ip filter INPUT input tunnel "no tunnels"
//	node1 unsent no buffers
//	node2 translate ip r raw prerouting "dnat to 10.1.2.2:9999"
//	node2 accept inet weft masquerade postrouting to 10.1.2.2:9999 weft-c default/c
//	node2 traced prerouting tunnel
//	node2 untraced ingress eth0 "chain in of table netdev cut (ingress)"
//	node2 untraced "iptables-legacy (table raw)"
//	node1 drop inet weft-policy leave forward "nothing allows it"
//	node1 answer silence nothing came back
//	node2 failed some of the packets were lost to sight
func events(t *testing.T, text string) []trace.Event {
	t.Helper()
	var all []trace.Event
	for l := range strings.Lines(text) {
		l, rule, _ := strings.Cut(strings.TrimSpace(l), ` "`)
		words := strings.Fields(l)
		e := trace.Event{Node: words[0], Kind: trace.Seen, Rule: strings.TrimSuffix(rule, `"`)}
		words = words[1:]
		if words[0] == "reply" {
			e.Reply, words = true, words[1:]
		}
		switch words[0] {
		case "in", "out":
			e.Out, e.Device = words[0] == "out", words[1]
			for _, w := range words[2:] {
				switch w {
				case "tunnel":
					e.Tunnel = true
				case "encapsulates":
					e.Encapsulates = true
				default:
					e.Endpoint = w
				}
			}
		case "answer":
			e.Kind, e.Answer, e.Text = trace.Answered, trace.Answer(words[1]), strings.Join(words[2:], " ")
		case "failed":
			e.Kind, e.Text = trace.Failed, strings.Join(words[1:], " ")
		case "traced":
			e.Kind, e.Hook, e.Tunnel = trace.Traced, words[1], words[len(words)-1] == "tunnel"
		case "untraced":
			e.Kind, e.Text, e.Rule = trace.Untraced, e.Rule, ""
			if len(words) > 1 {
				e.Hook = words[1]
			}
			if len(words) > 2 {
				e.Device = words[2]
			}
		case "unsent":
			e.Kind, e.Text = trace.Unsent, strings.Join(words[1:], " ")
		case "translate":
			e.Translates, words[0] = true, "accept"
			fallthrough
		case "drop", "accept":
			e.Tunnel = words[len(words)-1] == "tunnel"
			e.Kind, e.Verdict, e.Family, e.Table, e.Chain, e.Hook = trace.Decided, words[0], words[1], words[2], words[3], words[4]
			if len(words) > 6 && words[5] == "to" {
				e.To = netip.MustParseAddrPort(words[6])
				if len(words) > 8 {
					e.Device, e.Endpoint = words[7], words[8]
				}
			}
		default:
			t.Fatalf("%q says nothing that can happen", l)
		}
		all = append(all, e)
	}
	return all
}

func TestValidate(t *testing.T) {
	good := `{"id": "0123abcd", "source": "10.1.1.2", "destination": "10.1.2.2", "protocol": "tcp", "port": 80, "for": 1000000000}`
	var w trace.Watch
	if err := json.Unmarshal([]byte(good), &w); err != nil {
		t.Fatal(err)
	}
	if err := w.Validate(); err != nil {
		t.Fatal(err)
	}
	for what, break_ := range map[string]func(*trace.Watch){
		"id":       func(w *trace.Watch) { w.ID = "x; drop table" },
		"family":   func(w *trace.Watch) { w.Source = w.Source.Next(); w.Destination = w.Destination.Prev(); w.ID = "" },
		"protocol": func(w *trace.Watch) { w.Protocol = plan.SCTP },
		"port":     func(w *trace.Watch) { w.Port = 0 },
		"icmpv6":   func(w *trace.Watch) { w.Protocol, w.Port = plan.ICMPv6, 0 },
		"time":     func(w *trace.Watch) { w.For = time.Hour },
		"sender":   func(w *trace.Watch) { w.Pod, w.Host = "a/b", true },
	} {
		bad := w
		break_(&bad)
		if bad.Validate() == nil {
			t.Errorf("%s: %+v is taken", what, bad)
		}
	}
}
