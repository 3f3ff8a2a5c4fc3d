package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// results is everything that a run measured.
type results struct {
	Machine  machine
	Rounds   int
	Sample   time.Duration
	Variants []variant
	Traffic  traffic
	// Bare is the name of the variant that all others are a fraction of.
	Bare string
	// Attached are the rounds of each CNI plug-in; Own is Weft's name there, and Asking that
	// which it has where pods ask for ports and limits, as they do of those in Asked.
	Attached    map[string][]batch
	Own, Asking string
	Asked       map[string]bool
	// Single are the rounds of these two with one call after the other.
	Single         map[string][]batch
	Pods, InFlight int
	Agent          *footprint
	Ups            []upTime
	Tenants        []tenantResult
	Policy         *policyResults
	Services       *serviceResults
	Faults         []faultRun
	FaultSettings  faultSettings
	Failovers      []failover
	Names          *namesResults
}

// document returns the title of the report, the file of its notes, and how to have a quick look:
// what says of policies alone, of Services, of what breaks, or of names, is a document of its own.
func (r results) document() (title, notes, quick string) {
	const more = " What else is measured is in [benchmarks.md](benchmarks.md)."
	policies, services, faults, names := r.Policy != nil || len(r.Tenants) > 0, r.Services != nil, len(r.Faults) > 0, r.Names != nil
	switch {
	case len(r.Traffic) > 0 || len(r.Attached) > 0 || r.Agent != nil || len(r.Ups) > 0 || len(r.Failovers) > 0:
	case policies && !services && !faults && !names:
		return "Network policy at scale, measured", "policy-notes.md", "`go run ./bench -only policy -rounds 3` is the half of it." + more
	case services && !policies && !faults && !names:
		return "Services at scale, measured", "services-notes.md",
			"`go run ./bench -only services -services 1,1000 -rounds 3 -changes 20` is a quick look, with `-kube-proxy=false` of Weft alone.\n  What breaks when something fails is in [faults-measured.md](faults-measured.md)." + more
	case faults && !policies && !services && !names:
		return "What breaks when something fails, measured", "faults-notes.md",
			"`go run ./bench -only faults -kube-proxy=false` is a quick look, of Weft alone. What Services cost is in [services-measured.md](services-measured.md)." + more
	case names && !policies && !services && !faults:
		return "Names, measured", "names-notes.md", "`go run ./bench -only names -name-services 100 -rounds 3` is a quick look." + more
	}
	return "Benchmarks", "notes.md", "`go run ./bench -only traffic -rounds 3` is a quick look."
}

// The targets that are not ratios.
const (
	addMedianTarget   = 20 * time.Millisecond
	addP99Target      = 60 * time.Millisecond
	addSpentTarget    = 3 * time.Millisecond
	addAskedTarget    = 2 * time.Millisecond
	agentMemoryTarget = 35 << 20
)

// upTargets are those for a lab, by its number of nodes.
var upTargets = map[int]struct {
	took   time.Duration
	memory uint64
}{3: {took: 5 * time.Second}, 10: {took: 12 * time.Second}, 100: {memory: 4 << 30}}

// report is a document in the making. It counts the outcomes.
type report struct {
	strings.Builder
	outcomes map[outcome]int
}

func (r *report) line(format string, args ...any) { fmt.Fprintf(r, format+"\n", args...) }

// row writes a table's row.
func (r *report) row(cells ...string) { r.line("| %s |", strings.Join(cells, " | ")) }

// head writes a table's head; all columns but the first are numbers.
func (r *report) head(cells ...string) {
	r.line("")
	r.row(cells...)
	r.line("|---%s|", strings.Repeat("|--:", len(cells)-1))
}

func (r *report) judged(o outcome) string {
	r.outcomes[o]++
	return string(o)
}

// render writes the document. Notes are appended as they are.
func render(res results, notes string) string {
	body := &report{outcomes: make(map[outcome]int)}
	body.againstHand(res)
	body.againstBare(res)
	body.attach(res)
	body.footprints(res)
	if p := res.Policy; p != nil {
		body.policyWorld(p.World)
		body.policySquares(p.Squares)
		body.policyCosts(p.Costs)
		body.policyTraffic(p.Variants, p.Traffic)
	}
	body.policyTenants(res.Tenants)
	if res.Services != nil {
		body.services(*res.Services)
	}
	body.faults(res.Faults, res.FaultSettings)
	body.failovers(res.Failovers)
	if res.Names != nil {
		body.names(res.Names)
	}

	top := &report{}
	title, by, quick := res.document()
	top.line("# %s\n", title)
	top.line("Written by `make bench`, which measures everything here anew; what is written by")
	top.line("hand is in [bench/%s](../bench/%s), which is appended. Absolute numbers", by, by)
	top.line("are those of one small machine that does everything at once, so look at the")
	top.line("ratios: what they compare was measured in turns, in one run.\n")
	top.line("**Targets: %d met, %d met within noise, %d missed.**\n", body.outcomes[met], body.outcomes[within], body.outcomes[missed])
	top.line("- Machine: %s", res.Machine)
	top.line("- Traffic: %d rounds; in each round every kind of load visits all variants in a random order, for %v each.", res.Rounds, res.Sample)
	top.line("  A ratio is the median of the rounds' own ratios, and after it stands the middle half of them.")
	top.line("- “Met within noise” says that the median misses the target and the middle half of the rounds reaches it.")
	top.line("- To repeat: `make bench` as root, with nothing else running. `go run ./bench -h` lists what can be set;")
	top.line("  %s", quick)
	return top.String() + body.String() + "\n" + strings.TrimSpace(notes) + "\n"
}

func (r *report) againstHand(res results) {
	if len(res.Traffic) == 0 {
		return
	}
	r.line("\n## Pod to pod, against the same built by hand\n")
	r.line("By hand means what flannel sets up, with `ip`, `bridge` and `nft` commands: a bridge")
	r.line("for the pods of a node, flannel's masquerade and forward rules, and routes or a VXLAN")
	r.line("device between the nodes ([bench/handmade.go](../bench/handmade.go)). Weft is the lab: real agents, the real CNI")
	r.line("plug-in, all its rules in place, masquerade and anti-spoofing among them. Both have the same underlay.")
	r.line("TCP over IPv4; the target is never to be slower.")
	for _, v := range res.Variants {
		if v.against == "" {
			continue
		}
		r.line("\n### %s", v.name)
		r.head("", "Weft", "by hand", "Weft / by hand", "target", "")
		for _, q := range quantities {
			own, hand := res.Traffic.values(q, v.name), res.Traffic.values(q, v.against)
			s := spreadOf(ratios(own, hand))
			target := "≥ 1"
			if !q.moreBetter {
				target = "≤ 1"
			}
			r.row(q.name, amount(spreadOf(own).Median, q.unit), amount(spreadOf(hand).Median, q.unit), s.String(), target, r.judged(judge(s, q.moreBetter, 0)))
		}
	}
}

func (r *report) againstBare(res results) {
	if len(res.Traffic) == 0 {
		return
	}
	r.line("\n## Pod to pod, against a bare pair of interfaces\n")
	r.line("The bare pair connects two namespaces directly and is what any of this could reach at")
	r.line("best. Its MTU is %d, that of VXLAN's pods %d. GSO (with TSO) is on or off in the pods'", underlayMTU, underlayMTU-vxlanCost)
	r.line("interfaces; all else on the way is as it was set up. CPU seconds are the whole machine's.\n")
	var bare []string
	for _, q := range quantities {
		bare = append(bare, fmt.Sprintf("%s %s", q.name, amount(spreadOf(res.Traffic.values(q, res.Bare)).Median, q.unit)))
	}
	r.line("The bare pair itself: %s.", strings.Join(bare, "; "))
	head := []string{""}
	for _, q := range quantities {
		head = append(head, q.name)
	}
	r.head(head...)
	for _, v := range res.Variants {
		if v.name == res.Bare {
			continue
		}
		cells := []string{v.name}
		for _, q := range quantities {
			cells = append(cells, spreadOf(ratios(res.Traffic.values(q, v.name), res.Traffic.values(q, res.Bare))).String())
		}
		r.row(cells...)
	}
}

// latencies are two quantiles of the times of each round, in milliseconds.
func latencies(batches []batch, of func(batch) []time.Duration) (medians, p99s []float64) {
	for _, b := range batches {
		medians = append(medians, milliseconds(quantile(of(b), 0.5)))
		p99s = append(p99s, milliseconds(quantile(of(b), 0.99)))
	}
	return medians, p99s
}

func added(b batch) []time.Duration   { return b.Add }
func deleted(b batch) []time.Duration { return b.Delete }

// addSpent returns the processor time of one ADD in each batch, in milliseconds: that of
// the plug-in's process, that of the one which works for it, and the sum.
func addSpent(batches []batch) (plugin, daemon, sum []float64) {
	for _, b := range batches {
		n := float64(len(b.Add))
		p, d := milliseconds(b.AddSpent.Plugin)/n, milliseconds(b.AddSpent.Daemon)/n
		plugin, daemon, sum = append(plugin, p), append(daemon, d), append(sum, p+d)
	}
	return plugin, daemon, sum
}

func (r *report) attach(res results) {
	if len(res.Attached) == 0 {
		return
	}
	r.line("\n## Attaching pods\n")
	r.line("CNI calls through libcni, from the runtime's side: the plug-in's process is started,")
	r.line("and the call is over when it has answered. %d pods with %d in flight, %d rounds in turns", res.Pods, res.InFlight, len(res.Attached[res.Own]))
	r.line("with Debian's bridge and ptp plug-ins under flannel's settings. Weft's answer means that")
	r.line("the address is in the agent's journal and the pod's routes and rules are in the kernel.")
	r.line("Pods that ask for it get a port of the node and a limit of 100 Mbit/s each way, and are")
	r.line("compared with such pods.")
	r.head("", "ADD p50", "ADD p99", "DEL p50", "DEL p99", "Weft's ADD p50 / this", "Weft's ADD p99 / this")
	own := map[bool][]batch{false: res.Attached[res.Own], true: res.Attached[res.Asking]}
	ownMedians, ownP99s := latencies(own[false], added)
	for _, name := range slices.Sorted(maps.Keys(res.Attached)) {
		medians, p99s := latencies(res.Attached[name], added)
		deleteMedians, deleteP99s := latencies(res.Attached[name], deleted)
		cells := []string{name}
		for _, values := range [][]float64{medians, p99s, deleteMedians, deleteP99s} {
			cells = append(cells, amount(spreadOf(values).Median, "ms"))
		}
		if name == res.Own || name == res.Asking {
			cells = append(cells, "", "")
		} else {
			likeMedians, likeP99s := latencies(own[res.Asked[name]], added)
			cells = append(cells, spreadOf(ratios(likeMedians, medians)).String(), spreadOf(ratios(likeP99s, p99s)).String())
		}
		r.row(cells...)
	}
	r.line("\nThe processor time of one ADD, as the kernel counts it: of the plug-in's processes from fork")
	r.line("to exit, and of the agent, which does the work for weft-cni's.")
	r.head("", "plug-in", "agent", "in all", "Weft's in all / this")
	_, _, ownSums := addSpent(own[false])
	for _, name := range slices.Sorted(maps.Keys(res.Attached)) {
		plugins, daemons, sums := addSpent(res.Attached[name])
		_, _, likeSums := addSpent(own[res.Asked[name]])
		cells := []string{name, amount(spreadOf(plugins).Median, "ms"), "", amount(spreadOf(sums).Median, "ms"), spreadOf(ratios(likeSums, sums)).String()}
		if name == res.Own || name == res.Asking {
			cells[2], cells[4] = amount(spreadOf(daemons).Median, "ms"), ""
		}
		r.row(cells...)
	}
	r.head("", "measured", "target", "")
	for _, t := range []struct {
		name   string
		values []float64
		target time.Duration
	}{{"Weft's ADD, p50", ownMedians, addMedianTarget}, {"Weft's ADD, p99", ownP99s, addP99Target}, {"Weft's ADD, processor time", ownSums, addSpentTarget}} {
		s := spreadOf(t.values)
		r.row(t.name, amount(s.Median, "ms"), fmt.Sprintf("≤ %v", t.target), r.judged(atMost(s.Median, milliseconds(t.target))))
	}
	alone, _ := latencies(res.Single[res.Own], added)
	asked, _ := latencies(res.Single[res.Asking], added)
	more := make([]float64, min(len(alone), len(asked)))
	for i := range more {
		more[i] = asked[i] - alone[i]
	}
	if s := spreadOf(more); len(more) > 0 {
		r.row(fmt.Sprintf("What a port and limits add to Weft's ADD, one call at a time, p50 (%s without)", amount(spreadOf(alone).Median, "ms")),
			amount(s.Median, "ms"), fmt.Sprintf("≤ %v", addAskedTarget), r.judged(atMost(s.Median, milliseconds(addAskedTarget))))
	}
}

func (r *report) footprints(res results) {
	if f := res.Agent; f != nil {
		r.line("\n## Memory of an agent\n")
		r.line("With %d local pods and %d peers. Resident counts the program's own pages, which agents", f.Pods, f.Peers)
		r.line("of one machine share; proportional divides them by those who share; anonymous has none.")
		r.line("Measured %s after the last pod came, but for what was resident at once.", rest)
		r.head("", "measured", "target", "")
		r.row("resident", mebibytes(f.Resident), "≤ "+mebibytes(agentMemoryTarget), r.judged(atMost(f.Resident, agentMemoryTarget)))
		r.row("resident at once", mebibytes(f.AtOnce), "", "")
		r.row("proportional", mebibytes(f.Proportional), "", "")
		r.row("anonymous", mebibytes(f.Anonymous), "", "")
		r.row("Go's heap", mebibytes(f.Heap), "", "")
	}
	if len(res.Ups) == 0 {
		return
	}
	r.line("\n## Bringing a cluster up\n")
	r.line("A lab from nothing until pods can run on all nodes, the median of the runs; the proportional")
	r.line("memory of all its processes, which are etcd, controller and agents; and by how much the")
	r.line("machine's available memory shrank, the kernel's part with it.")
	r.head("", "runs", "time", "target", "", "processes", "machine", "target", "")
	byNodes := make(map[int][]upTime)
	for _, u := range res.Ups {
		byNodes[u.Nodes] = append(byNodes[u.Nodes], u)
	}
	for _, nodes := range slices.Sorted(maps.Keys(byNodes)) {
		ups := byNodes[nodes]
		slices.SortFunc(ups, func(a, b upTime) int { return int(a.Took - b.Took) })
		u := ups[(len(ups)-1)/2]
		cells := []string{fmt.Sprintf("%d nodes", nodes), fmt.Sprint(len(ups)), fmt.Sprintf("%.2f s", u.Took.Seconds())}
		t := upTargets[nodes]
		if t.took > 0 {
			cells = append(cells, fmt.Sprintf("≤ %v", t.took), r.judged(atMost(u.Took, t.took)))
		} else {
			cells = append(cells, "", "")
		}
		cells = append(cells, mebibytes(u.Processes), mebibytes(u.Machine))
		if t.memory > 0 {
			cells = append(cells, "≤ "+mebibytes(t.memory), r.judged(atMost(max(u.Processes, u.Machine), t.memory)))
		} else {
			cells = append(cells, "", "")
		}
		r.row(cells...)
	}
}

func (s spread) String() string { return fmt.Sprintf("%.2f (%.2f–%.2f)", s.Median, s.Low, s.High) }

// amount writes a value with three digits that count, where it has so many
// before the point.
func amount(v float64, unit string) string {
	switch {
	case v < 10:
		return fmt.Sprintf("%.2f %s", v, unit)
	case v < 100:
		return fmt.Sprintf("%.1f %s", v, unit)
	}
	return fmt.Sprintf("%.0f %s", v, unit)
}

func mebibytes(n uint64) string { return amount(float64(n)/(1<<20), "MiB") }
