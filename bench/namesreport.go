package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The targets of names.
const (
	namesLatencyTarget = 300 * time.Microsecond
	// lookUpTarget is how many queries a look-up may take, of the pod and of the server outside:
	// one for the addresses of each family.
	lookUpTarget      = 2
	namesMemoryTarget = 25 << 20
	// namesMemoryServices is with how many Services at most.
	namesMemoryServices = 1000
)

// askQuantity is one thing that is measured of queries.
type askQuantity struct {
	name, unit string
	load       namesLoad
	moreBetter bool
	of         func(sample) float64
	// limit is what it may be at most, in the unit; where it is 0, the target is CoreDNS.
	limit float64
}

var askQuantities = []askQuantity{
	{"queries for the " + string(askInside), "/s", askInside, true, answersPerSecond, 0},
	{"queries for a " + string(askMissing), "/s", askMissing, true, answersPerSecond, 0},
	{"queries for a " + string(askOutside), "/s", askOutside, true, answersPerSecond, 0},
	{fmt.Sprintf("%s of %d /s, p50", askInside, namesRate), "µs", askAtRate, false, func(s sample) float64 { return microseconds(s.Median) }, 0},
	{fmt.Sprintf("%s of %d /s, p99", askInside, namesRate), "µs", askAtRate, false, func(s sample) float64 { return microseconds(s.P99) }, microseconds(namesLatencyTarget)},
}

func answersPerSecond(s sample) float64 { return float64(s.Count) / s.Took.Seconds() }

// values returns a quantity of samples, round by round.
func values[T any](samples []T, of func(T) float64) (all []float64) {
	for _, s := range samples {
		all = append(all, of(s))
	}
	return all
}

func (r *report) names(n *namesResults) {
	r.line("\n## Names on a node\n")
	r.line("Each name server is on a node of its own, a network namespace, and a pod of that node asks it")
	r.line("over a pair of interfaces, from %d addresses ([bench/names.go](../bench/names.go)). Weft's are weft-dns and", addressesEach)
	r.line("weft-dns-server, as on every node. CoreDNS is the real one with what kubeadm has it do")
	r.line("([bench/namesworld.go](../bench/namesworld.go)), beside an etcd and a kube-apiserver; “all cached” is the")
	r.line("same with the cluster's names in its cache as well, as kubeadm had it before. It is asked at the")
	r.line("node itself: what kube-proxy does on the way to it in a cluster, and the way to another")
	r.line("node, are left out. The constant is a server of the same library that answers and knows nothing: what")
	r.line("the machine gives at best. Names outside are answered by one more server, after %v.", upstreamDelay)
	if n.Lacking {
		r.line("\n**CoreDNS was left out, and with it all that needs an API server:** their programs were not built,")
		r.line("which `make kubernetes-programs` does.")
	}
	for _, w := range n.Worlds {
		r.line("\n## With %s of %d endpoints each", plural(w.Services, "Service"), endpointsEach)
		r.queries(w)
		r.lookUps(w)
		r.namesMemory(w)
		r.nameChanges(w)
	}
}

func (r *report) queries(w namesResult) {
	r.line("\n### Queries\n")
	r.line("By UDP. %d clients ask for one name after the other, for those of %s in turns, and each again as soon", clientsEach*addressesEach, plural(min(w.Services, mostNames), "Service"))
	r.line("as it has its answer. For latency, %d queries a second are sent at random times, whether others are", namesRate)
	r.line("answered or not.")
	others := w.Servers[1:]
	head := []string{"", serverWeft}
	for _, other := range others {
		head = append(head, other, "Weft / this")
		if other == serverCoreDNS {
			head = append(head, "target", "")
		}
	}
	if !slices.Contains(others, serverCoreDNS) {
		head = append(head, "target", "")
	}
	r.head(head...)
	for _, q := range askQuantities {
		own := values(w.Traffic[q.load][serverWeft], q.of)
		cells := []string{q.name, amount(spreadOf(own).Median, q.unit)}
		for _, other := range others {
			v := values(w.Traffic[q.load][other], q.of)
			s := spreadOf(ratios(own, v))
			cells = append(cells, amount(spreadOf(v).Median, q.unit), s.String())
			if other == serverCoreDNS {
				cells = append(cells, r.askTarget(q, own, s)...)
			}
		}
		if !slices.Contains(others, serverCoreDNS) {
			cells = append(cells, r.askTarget(q, own, spread{})...)
		}
		r.row(cells...)
	}
	var lost []string
	for _, name := range w.Servers {
		var n, all uint64
		for _, samples := range w.Traffic {
			for _, s := range samples[name] {
				n, all = n+s.Lost, all+s.Count
			}
		}
		if n > 0 {
			lost = append(lost, fmt.Sprintf("%d of %d by %s", n, n+all, name))
		}
	}
	r.line("\nAn answer other than the right one would have ended the measurement. Not answered within %v: %s.", unanswered, cmp.Or(strings.Join(lost, ", "), "none"))
}

// askTarget are the cells of a quantity's target; empty where that is CoreDNS, which is left
// out.
func (r *report) askTarget(q askQuantity, own []float64, against spread) []string {
	switch {
	case q.limit > 0:
		var parts []float64
		for _, v := range own {
			parts = append(parts, v/q.limit)
		}
		return []string{"≤ " + amount(q.limit, q.unit), r.judged(judge(spreadOf(parts), false, 0))}
	case against == spread{}:
		return []string{"", ""}
	case q.moreBetter:
		return []string{"≥ 1", r.judged(judge(against, true, 0))}
	}
	return []string{"≤ 1", r.judged(judge(against, false, 0))}
}

func (r *report) lookUps(w namesResult) {
	r.line("\n### Look-ups of names outside\n")
	r.line("As C's library does: a pod looks for a name with less than %d dots in %d domains of the cluster before", dots, len(search()))
	r.line("it asks for the name as it is, each time for addresses of both families at once. What there is at")
	r.line("best is to ask for the name as it is, the server outside or that which answers a constant.")
	for _, kind := range lookUpKinds {
		r.head("Names "+string(kind), "p50", "Weft / this", "p99", "queries of the pod", "target", "", "queries outside", "target", "")
		own := w.LookUps[kind][serverWeft]
		ownTimes := values(own, lookUpMedian)
		for _, name := range w.Servers {
			name = kind.server(name)
			samples := w.LookUps[kind][name]
			times, p99s := values(samples, lookUpMedian), values(samples, func(s lookUpSample) float64 { return microseconds(s.P99) })
			sent, upstream := queriesEach(samples)
			cells := []string{name, amount(spreadOf(times).Median, "µs"), "", amount(spreadOf(p99s).Median, "µs"),
				fmt.Sprintf("%.2f", sent), "", "", fmt.Sprintf("%.2f", upstream), "", ""}
			if name == serverWeft {
				cells[5], cells[6] = fmt.Sprintf("≤ %d", lookUpTarget), r.judged(atMost(sent, lookUpTarget))
				if kind == lookUpFresh {
					cells[8], cells[9] = fmt.Sprintf("≤ %d", lookUpTarget), r.judged(atMost(upstream, lookUpTarget))
				}
			} else {
				cells[2] = spreadOf(ratios(ownTimes, times)).String()
			}
			r.row(cells...)
		}
	}
}

func lookUpMedian(s lookUpSample) float64 { return microseconds(s.Median) }

// queriesEach returns how many queries a look-up took, of the pod and of the server outside.
func queriesEach(samples []lookUpSample) (sent, upstream float64) {
	var n float64
	for _, s := range samples {
		n, sent, upstream = n+float64(s.Count), sent+float64(s.Sent), upstream+float64(s.Upstream)
	}
	return sent / n, upstream / n
}

func (r *report) namesMemory(w namesResult) {
	r.line("\n### Memory\n")
	r.line("Of the servers' processes, %v after they started, and as long after all that is told here.", namesRest)
	r.line("Resident counts the program's own pages.")
	r.head("", "resident at first", "anonymous", "resident after all", "anonymous", "target", "")
	row := func(name string, target bool, processes ...string) {
		var idle, busy memory
		for _, p := range processes {
			idle.Resident, idle.Anonymous = idle.Resident+w.Idle[p].Resident, idle.Anonymous+w.Idle[p].Anonymous
			busy.Resident, busy.Anonymous = busy.Resident+w.Busy[p].Resident, busy.Anonymous+w.Busy[p].Anonymous
		}
		cells := []string{name, mebibytes(idle.Resident), mebibytes(idle.Anonymous), mebibytes(busy.Resident), mebibytes(busy.Anonymous), "", ""}
		if target {
			cells[5], cells[6] = "≤ "+mebibytes(namesMemoryTarget), r.judged(atMost(max(idle.Resident, busy.Resident), namesMemoryTarget))
		}
		r.row(cells...)
	}
	for _, p := range []string{processKeeper, processServer} {
		row(p, false, p)
	}
	row("both", w.Services <= namesMemoryServices, processKeeper, processServer)
	for _, p := range []string{processCoreDNS, processCached} {
		if _, measured := w.Idle[p]; measured {
			row(p, false, p)
		}
	}
}

func (r *report) nameChanges(w namesResult) {
	if len(w.Changes) == 0 {
		return
	}
	r.line("\n### From a change to the answer\n")
	r.line("From the beginning of the write to the API server until a query is answered accordingly; one is")
	r.line("sent %v after the answer to the one before. The API server tells of a change before who wrote it has", askAgain)
	r.line("its answer. %d changes of each kind. Between the API server and Weft's server there is the benchmark", len(w.Changes[nameChanges[0]][serverWeft]))
	r.line("in the place of the agent: it follows, compiles and writes with the same code, and does nothing else.")
	r.head("", "Weft p50", "p99", "longest", "CoreDNS p50", "p99", "longest", "write p50", "p99", "longest")
	for _, kind := range nameChanges {
		cells := []string{string(kind)}
		for _, server := range []string{serverWeft, serverCoreDNS, written} {
			times := w.Changes[kind][server]
			cells = append(cells, duration(quantile(times, 0.5)), duration(quantile(times, 0.99)), duration(quantile(times, 1)))
		}
		r.row(cells...)
	}
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
