package main

import (
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// samplesOf makes one sample a round; a round's number is the unit of all.
func samplesOf(rounds ...float64) []sample {
	var out []sample
	for _, r := range rounds {
		out = append(out, sample{Count: uint64(r * 125e6), Took: time.Second, CPU: 500 * time.Millisecond,
			Median: time.Duration(r * 1000), P99: time.Duration(r * 3000)})
	}
	return out
}

func TestReport(t *testing.T) {
	up := func(nodes int, seconds float64, memory uint64) upTime {
		return upTime{nodes, time.Duration(seconds * float64(time.Second)), memory, memory + 100<<20}
	}
	times := func(ms ...int) []time.Duration {
		var out []time.Duration
		for _, n := range ms {
			out = append(out, time.Duration(n)*time.Millisecond)
		}
		return out
	}
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	res := results{
		Machine: machine{Processors: 2, Model: "A Processor", Memory: 8 << 30, Kernel: "6.1.0", Go: "go1.26"},
		Rounds:  3, Sample: time.Second,
		Bare:     "bare pair",
		Variants: []variant{{name: "bare pair"}, {name: "bridge"}, {name: "Weft: same node", against: "bridge"}},
		Traffic:  make(traffic),
		Own:      "weft-cni", Asking: "weft-cni, asked", Pods: 3, InFlight: 2,
		Asked: map[string]bool{"weft-cni, asked": true, "bridge + more": true},
		Single: map[string][]batch{
			"weft-cni":        {{Add: times(5, 6, 7)}, {Add: times(7, 8, 9)}},
			"weft-cni, asked": {{Add: times(6, 7, 8)}, {Add: times(11, 11, 12)}},
		},
		Attached: map[string][]batch{
			"weft-cni":        {{times(5, 6, 70), times(1, 2, 3), spent{seconds(0.006), seconds(0.009)}}, {times(7, 8, 90), times(1, 2, 3), spent{seconds(0.003), seconds(0.009)}}},
			"weft-cni, asked": {{times(6, 8, 70), times(2, 3, 4), spent{seconds(0.006), seconds(0.012)}}, {times(7, 9, 90), times(2, 3, 4), spent{seconds(0.003), seconds(0.012)}}},
			"bridge + more":   {{times(90, 80, 170), times(10, 20, 30), spent{Plugin: seconds(0.06)}}, {times(170, 180, 190), times(10, 20, 30), spent{Plugin: seconds(0.03)}}},
			"bridge":          {{times(50, 60, 70), times(10, 20, 30), spent{Plugin: seconds(0.03)}}, {times(70, 80, 90), times(10, 20, 30), spent{Plugin: seconds(0.012)}}},
		},
		Agent: &footprint{Pods: 3, Peers: 4, memory: memory{Resident: 36 << 20, Proportional: 20 << 20, Anonymous: 15 << 20}, AtOnce: 38 << 20, Heap: 7 << 20},
		Ups:   []upTime{up(10, 13, 700<<20), up(3, 2, 300<<20), up(3, 9, 320<<20), up(3, 1, 310<<20), up(100, 30, 3<<30)},
	}
	res.Policy = &policyResults{
		World: worldResult{Nodes: 10, Pods: 1000, Namespaces: 20, Policies: 200,
			Before: memory{Resident: 90 << 20, Anonymous: 60 << 20}, First: memory{Resident: 140 << 20, Anonymous: 110 << 20},
			After: memory{Resident: 151 << 20, Anonymous: 120 << 20}, Peak: 170 << 20, Heap: 80 << 20,
			Ready: seconds(2.5), ReadyWithout: seconds(0.9), Compiled: seconds(1.1), Compilations: 2,
			Classes: 300, Verdicts: 400, Elements: 500, Changes: [changeKinds][]time.Duration{
				remoteLabels: times(5, 7, 40), localLabels: times(9, 10, 51), policyCreated: times(1, 2, 3), policyDeleted: times(2, 3, 50)},
			Compile: seconds(0.0042), Apply: seconds(0.0013), Birth: 4 << 10, PodJSON: 20 << 10, PodProtobuf: 9 << 10},
		Squares: []squareResult{{100, 100, 4, 500}, {200, 200, 4, 2001}},
		Variants: []variant{{name: "same node, 0 policies"}, {name: "same node, 10 policies", against: "same node, 0 policies"},
			{name: handNone}, {name: handForward, against: handNone}},
		Traffic: make(traffic),
	}
	for _, l := range policyLoads {
		res.Policy.Traffic[l] = map[string][]sample{
			"same node, 0 policies":  samplesOf(10, 12, 11),
			"same node, 10 policies": samplesOf(10.4, 12.4, 11.4),
			handNone:                 samplesOf(9, 10, 11),
			handForward:              samplesOf(90, 100, 110),
		}
	}
	served := func(by string, n int) serviceVariant {
		return serviceVariant{variant{name: by + " of some"}, by, n}
	}
	res.Services = &serviceResults{
		Variants: []serviceVariant{{variant: variant{name: "by hand"}}, served(byWeft, 1), served(byNftables, 1)},
		Traffic:  traffic{load{doConnect, true}: {"by hand": samplesOf(10, 12, 11), byWeft + " of some": samplesOf(5, 6, 5), byNftables + " of some": samplesOf(7, 8, 9)}},
		Loads: []serviceLoad{
			{By: byWeft, Services: 1, Took: seconds(0.25), Spent: seconds(0.2), Loaded: memory{Resident: 40 << 20}, Peak: 50 << 20, Changes: times(1, 2, 60)},
			{By: byNftables, Services: 1, Took: seconds(1), Loaded: memory{Resident: 60 << 20}, Peak: 61 << 20},
			{By: byWeft, Services: targetServices, Took: seconds(2), Loaded: memory{Resident: 119 << 20}, Peak: 150 << 20, Changes: times(1, 2, 49)},
			{By: byNftables, Services: targetServices},
		},
	}
	res.Services.Variants = append(res.Services.Variants, serviceVariant{variant{name: "many"}, byWeft, targetServices})
	res.Services.Traffic[load{doConnect, true}]["many"] = samplesOf(5.1, 5.9, 5)
	for _, l := range loads {
		res.Traffic[l] = map[string][]sample{
			"bare pair":       samplesOf(10, 12, 11),
			"bridge":          samplesOf(5, 6, 5.5),
			"Weft: same node": samplesOf(5.5, 6.6, 5.4),
		}
	}
	got := render(res, "## Notes\n\nBy hand.\n\n")
	const golden = "testdata/report.md"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("differs from %s (- golden, + now):\n%s", golden, diff)
	}
}

// What says of policies alone is called by that, and names its own notes.
func TestReportOfPolicies(t *testing.T) {
	got := render(results{Tenants: []tenantResult{{Revoked: []time.Duration{1}, Started: []time.Duration{1}}}}, "")
	for _, want := range []string{"# Network policy at scale, measured\n", "[bench/policy-notes.md](../bench/policy-notes.md)", "[benchmarks.md](benchmarks.md)"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing:\n%s", want, got)
		}
	}
}

// So is what says of Services alone.
func TestReportOfServices(t *testing.T) {
	got := render(results{Services: &serviceResults{Variants: []serviceVariant{{}}}}, "")
	for _, want := range []string{"# Services at scale, measured\n", "[bench/services-notes.md](../bench/services-notes.md)", "[benchmarks.md](benchmarks.md)"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing:\n%s", want, got)
		}
	}
}

// A change that packets never follow misses the target, however fast those before it were.
func TestReportOfUnseenChange(t *testing.T) {
	got := render(results{Services: &serviceResults{Variants: []serviceVariant{{}}, Loads: []serviceLoad{
		{By: byWeft, Services: targetServices, Took: time.Second, Changes: []time.Duration{time.Millisecond}, Unseen: true},
	}}}, "")
	for _, want := range []string{"1, then one never seen", "≤ 50ms | **missed**"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing:\n%s", want, got)
		}
	}
}
