package change

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/test/kubernetes/traffic"
)

// loaded is what came of a load in a pod.
type loaded struct {
	from   pod
	to     []pod // in the order of the targets of the load
	load   traffic.Load
	report traffic.Report
}

// judgement is what is said of loads.
type judgement struct {
	// said are lines that tell what was measured.
	said []string
	// faults are what was lost, what was not sent, and what took too long.
	faults []string
	// rate is how many requests a second were sent between nodes, and held how many open
	// connections there are between nodes.
	rate float64
	held int
}

// longestGap is for how much longer than within a pod no answer must be awaited between
// two. It is far less than TCP lives through, and not more than what the first lost packet
// of a new connection takes.
const longestGap = time.Second

// sentShare is the least part of what is due that must be sent to each pod in each way.
const sentShare = 0.9

// gaps are the longest times to an answer, in milliseconds, by the ways to ask.
type gaps map[string]float64

func (g gaps) String() string {
	var all []string
	for _, way := range slices.Sorted(maps.Keys(traffic.Ways)) {
		all = append(all, fmt.Sprintf("%.0f", g[way]))
	}
	return strings.Join(all, "/")
}

func (g gaps) longest() (most float64) {
	for _, took := range g {
		most = max(most, took)
	}
	return most
}

// flowOf is how a report names what goes to a pod in one way.
func flowOf(way string, to pod) string { return way + " " + to.serves().String() }

// judge holds loads to losing nothing, to sending what they were asked for, and to getting
// answers about as fast as a pod gets them from itself, which says how slow the machine is.
func judge(loads []loaded) (j judgement) {
	fault := func(format string, args ...any) { j.faults = append(j.faults, fmt.Sprintf(format, args...)) }
	var sum traffic.Counts
	within, pairs, nodes := make(gaps), make(map[string]gaps), make(map[string]float64)
	for _, l := range loads {
		sum = sum.Add(l.report.Counts)
		for _, e := range l.report.Errors {
			fault("%s (%s on %s): %s", l.from.name, l.from.address, l.from.node, e)
		}
		for _, to := range l.to {
			if to.node != l.from.node {
				j.held += l.load.Held
			}
			for way := range traffic.Ways {
				name := flowOf(way, to)
				sent := l.report.Flows[name].Sent
				if due := l.load.Due(way, l.report.Sending); float64(sent) < sentShare*due {
					fault("%s to %s, %s: %d requests were sent in %s, and %.0f are due", l.from.name, to.name, way, sent, l.report.Sending.Round(time.Second), due)
				}
				took := l.report.Slowest[name]
				if to.name == l.from.name {
					within[way] = max(within[way], took)
					continue
				}
				pair := l.from.node + " to " + to.node
				if pairs[pair] == nil {
					pairs[pair] = make(gaps)
				}
				pairs[pair][way] = max(pairs[pair][way], took)
				for _, node := range []string{l.from.node, to.node} {
					nodes[node] = max(nodes[node], took)
				}
				if to.node != l.from.node && sent > 0 {
					j.rate += float64(sent) / l.report.Sending.Seconds()
				}
			}
		}
	}
	if sum.Answered == 0 {
		fault("nothing was tested: there was no answer")
	}
	if sum.Lost+sum.Resets+sum.Reconnects+sum.Waiting() != 0 {
		fault("lost: %+v", sum)
	}
	var ofPairs, ofNodes []string
	for _, pair := range slices.Sorted(maps.Keys(pairs)) {
		ofPairs = append(ofPairs, pair+" "+pairs[pair].String())
		for _, way := range slices.Sorted(maps.Keys(pairs[pair])) {
			if took, most := pairs[pair][way], within.longest()+float64(longestGap.Milliseconds()); took > most {
				fault("%s, %s: an answer took %.0f ms, and within a pod %.0f ms at most", pair, way, took, within.longest())
			}
		}
	}
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		ofNodes = append(ofNodes, fmt.Sprintf("%s %.0f", node, nodes[node]))
	}
	j.said = []string{
		fmt.Sprintf("%d requests, between nodes %.0f/s and %d connections that stay open; %d lost, %d connections refused or reset, %d broken",
			sum.Sent, j.rate, j.held, sum.Lost, sum.Resets, sum.Reconnects),
		fmt.Sprintf("longest gap in ms, of either end: %s; by %s: %s; within a pod %s", strings.Join(ofNodes, ", "),
			strings.Join(slices.Sorted(maps.Keys(traffic.Ways)), "/"), strings.Join(ofPairs, ", "), within),
	}
	return j
}

// wellLoaded are loads of two pods on two nodes, each of which asks both, without a fault.
func wellLoaded() (all []loaded) {
	pods := []pod{{name: "a", node: "node1", address: netip.MustParseAddr("10.1.0.2")}, {name: "b", node: "node2", address: netip.MustParseAddr("10.1.1.2")}}
	for _, from := range pods {
		l := loaded{from: from, to: pods, load: traffic.Load{Rate: 100, Held: 5}}
		l.report = traffic.Report{Sending: 10 * time.Second, Flows: make(map[string]traffic.Counts), Slowest: make(map[string]float64)}
		for _, to := range pods {
			l.load.Targets = append(l.load.Targets, to.serves())
			for way, part := range traffic.Ways {
				n := int64(500 * part)
				name := flowOf(way, to)
				l.report.Flows[name], l.report.Slowest[name] = traffic.Counts{Sent: n, Answered: n}, 200
				l.report.Counts = l.report.Add(l.report.Flows[name])
			}
		}
		all = append(all, l)
	}
	return all
}

func TestJudge(t *testing.T) {
	if j := judge(wellLoaded()); len(j.faults) != 0 || j.rate < 99 || j.rate > 101 || j.held != 10 {
		t.Errorf("loads without a fault come to %+v", j)
	}
	if j := judge(nil); len(j.faults) == 0 {
		t.Error("no load is no fault")
	}
	for _, test := range []struct {
		name  string
		spoil func(a, b *loaded)
		says  []string // of the faults, or of what is told
	}{
		{"a request is lost", func(a, _ *loaded) { a.report.Lost++; a.report.Answered-- }, []string{"Lost:1"}},
		{"one is still waited for", func(a, _ *loaded) { a.report.Answered-- }, []string{"lost: "}},
		{"an error", func(_, b *loaded) { b.report.Errors = []string{"refused"} }, []string{"b (10.1.1.2 on node2): refused"}},
		{"a way to one pod stalls", func(a, b *loaded) {
			name := flowOf(traffic.Renewed, b.from)
			a.report.Counts = a.report.Sub(a.report.Flows[name])
			a.report.Flows[name] = traffic.Counts{Sent: 25, Answered: 25}
			a.report.Counts = a.report.Add(a.report.Flows[name])
		}, []string{"a to b, tcp-new: 25 requests were sent in 10s, and 49 are due"}},
		{"all stalls", func(a, _ *loaded) { a.report.Sending *= 2 }, []string{"a to a, tcp: 350 ", "a to b, udp: 100 "}},
		{"open connections stall", func(a, b *loaded) { a.report.Slowest[flowOf(traffic.Kept, b.from)] = 1201 },
			[]string{"node1 to node2, tcp: an answer took 1201 ms, and within a pod 200 ms at most"}},
		{"new connections stall", func(a, b *loaded) { b.report.Slowest[flowOf(traffic.Renewed, a.from)] = 1300 },
			[]string{"node2 to node1, tcp-new: an answer took 1300 ms"}},
		{"datagrams stall", func(a, b *loaded) { b.report.Slowest[flowOf(traffic.Datagrams, a.from)] = 1300 },
			[]string{"node2 to node1, udp: an answer took 1300 ms"}},
		{"the machine is as slow", func(a, b *loaded) {
			b.report.Slowest[flowOf(traffic.Datagrams, a.from)], a.report.Slowest[flowOf(traffic.Kept, a.from)] = 1300, 300
		}, nil},
	} {
		all := wellLoaded()
		test.spoil(&all[0], &all[1])
		faults := strings.Join(judge(all).faults, "\n")
		for _, says := range test.says {
			if !strings.Contains(faults, says) {
				t.Errorf("%s: the faults lack %q:\n%s", test.name, says, faults)
			}
		}
		if (faults == "") != (test.says == nil) {
			t.Errorf("%s: the faults are %q", test.name, faults)
		}
	}
	all := wellLoaded()
	all[0].report.Slowest[flowOf(traffic.Datagrams, all[1].from)] = 250
	if said := judge(all).said[1]; !strings.Contains(said, "node1 250, node2 250; by tcp/tcp-new/udp: node1 to node2 200/200/250, node2 to node1 200/200/200; within a pod 200/200/200") {
		t.Errorf("it says %q", said)
	}
}
