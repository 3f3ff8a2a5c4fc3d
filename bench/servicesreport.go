package main

import (
	"fmt"
	"slices"
	"time"
)

// The targets of Services. Those of a node hold for targetServices of them.
const (
	targetServices      = 10_000
	serviceLoadTarget   = 1500 * time.Millisecond
	serviceMemoryTarget = 120 << 20
	serviceChangeTarget = 50 * time.Millisecond
	// serviceSlack is by what part many Services may slow connections down that one does not.
	serviceSlack = 0.03
)

// serviceQuantities are what is measured of connections to a Service.
var serviceQuantities = []quantity{
	{"connections", "/s", load{doConnect, true}, true, func(s sample) float64 { return float64(s.Count) / s.Took.Seconds() }},
	{"connected p50", "µs", load{doConnect, true}, false, func(s sample) float64 { return microseconds(s.Median) }},
	{"connected p99", "µs", load{doConnect, true}, false, func(s sample) float64 { return microseconds(s.P99) }},
}

// of returns the variant of who does so many Services.
func (r serviceResults) of(by string, services int) (serviceVariant, bool) {
	i := slices.IndexFunc(r.Variants, func(v serviceVariant) bool { return v.By == by && v.Services == services })
	if i < 0 {
		return serviceVariant{}, false
	}
	return r.Variants[i], true
}

// sizes are the numbers of Services, in order.
func (r serviceResults) sizes() (all []int) {
	for _, l := range r.Loads {
		all = append(all, l.Services)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (r *report) services(s serviceResults) {
	r.serviceConnections(s)
	r.serviceComparison(s)
	r.serviceLoads(s.Loads)
}

func (r *report) serviceConnections(s serviceResults) {
	r.line("\n## Connections to a Service, by how many there are\n")
	r.line("Between pods of a node, TCP over IPv4. Each connection is opened by a Service's address, and closed")
	r.line("by one of its two endpoints at once; it is connected when the answer to the first packet has come.")
	r.line("What one could reach at best is a node by hand ([bench/policytraffic.go](../bench/policytraffic.go)) that routes between pods and knows")
	r.line("no Service; the ratios are to that. All others are nodes of labs, with all else that Weft does, of which one")
	r.line("leaves Services to kube-proxy. Each was loaded with so many Services of two endpoints each, and left with what")
	r.line("its kernel had then.")
	head := []string{""}
	for _, q := range serviceQuantities {
		head = append(head, q.name, "ratio")
	}
	r.head(head...)
	best := s.Variants[0].name
	for _, v := range s.Variants {
		cells := []string{v.name + ", no Service"}
		if v.Services > 0 {
			cells[0] = fmt.Sprintf("%s: %d", v.By, v.Services)
		}
		for _, q := range serviceQuantities {
			own := s.Traffic.values(q, v.name)
			cells = append(cells, amount(spreadOf(own).Median, q.unit))
			if v.name == best {
				cells = append(cells, "")
				continue
			}
			cells = append(cells, spreadOf(ratios(own, s.Traffic.values(q, best))).String())
		}
		r.row(cells...)
	}
}

// serviceComparison is of Weft with many Services and with few, and with who else does them.
func (r *report) serviceComparison(s serviceResults) {
	sizes := s.sizes()
	compare := func(name string, of, with string, slack float64) {
		cells := []string{name}
		for _, q := range serviceQuantities {
			ratio := spreadOf(ratios(s.Traffic.values(q, of), s.Traffic.values(q, with)))
			target := fmt.Sprintf("≥ %.2f", 1-slack)
			if !q.moreBetter {
				target = fmt.Sprintf("≤ %.2f", 1+slack)
			}
			cells = append(cells, ratio.String(), target, r.judged(judge(ratio, q.moreBetter, slack)))
		}
		r.row(cells...)
	}
	r.line("\n### Weft, beside itself with fewer Services and beside kube-proxy\n")
	r.line("However many there are, a connection is to take as long as with the fewest, and at no number longer")
	r.line("than by either of kube-proxy's modes.")
	head := []string{"Weft's / that of"}
	for _, q := range serviceQuantities {
		head = append(head, q.name, "target", "")
	}
	r.head(head...)
	for _, n := range sizes {
		own, there := s.of(byWeft, n)
		if few, any := s.of(byWeft, sizes[0]); there && any && n > sizes[0] {
			compare(fmt.Sprintf("%d: itself with %d", n, sizes[0]), own.name, few.name, serviceSlack)
		}
	}
	for _, n := range sizes {
		own, there := s.of(byWeft, n)
		for _, by := range byKubeProxy {
			if other, any := s.of(by, n); there && any {
				compare(fmt.Sprintf("%d: %s", n, by), own.name, other.name, 0)
			}
		}
	}
}

// followed judges how long changes took, at the 99th of a hundred.
func (l serviceLoad) followed(p99 time.Duration) outcome {
	if l.Unseen || len(l.Changes) == 0 {
		return missed
	}
	return atMost(p99, serviceChangeTarget)
}

func (r *report) serviceLoads(loads []serviceLoad) {
	r.line("\n## A node that gets Services\n")
	r.line("Loaded is the time from the start of who does Services until a client gets a connection by one, and")
	r.line("beside it stands the processor time of its process until then, without that of programs that it runs;")
	r.line("Weft reads from the lab's etcd, and kube-proxy from a real API server, with which it is given")
	r.line("the configuration that clusters give it. A change is timed from the return of the write until")
	r.line("datagrams to the Service fare accordingly: one is sent each millisecond, each as the first of a connection,")
	r.line("and an endpoint comes or goes every %v or more, for some minutes at most. A change that datagrams did not", leastChange)
	r.line("follow in %v ends that, and is told as one that was never seen. Memory is that of the process, some time after these.", probeTimeout)
	r.head("", "loaded", "target", "", "processor time", "changes", "p50", "p99", "longest", "target for p99", "", "resident", "target", "", "at most")
	for _, l := range loads {
		name := fmt.Sprintf("%s: %d", l.By, l.Services)
		if l.Took == 0 {
			r.row(name, "never", "", "", "", "", "", "", "", "", "", "", "", "", "")
			continue
		}
		cells := []string{name, duration(l.Took), "", "", duration(l.Spent), fmt.Sprint(len(l.Changes)), "", "", "", "", "", mebibytes(l.Loaded.Resident), "", "", mebibytes(l.Peak)}
		if l.Unseen {
			cells[5] += ", then one never seen"
		}
		p99 := quantile(l.Changes, 0.99)
		if len(l.Changes) > 0 {
			cells[6], cells[7], cells[8] = duration(quantile(l.Changes, 0.5)), duration(p99), duration(quantile(l.Changes, 1))
		}
		if l.By == byWeft && l.Services == targetServices {
			cells[2], cells[3] = fmt.Sprintf("≤ %v", serviceLoadTarget), r.judged(atMost(l.Took, serviceLoadTarget))
			cells[9], cells[10] = fmt.Sprintf("≤ %v", serviceChangeTarget), r.judged(l.followed(p99))
			cells[12], cells[13] = "≤ "+mebibytes(serviceMemoryTarget), r.judged(atMost(l.Loaded.Resident, serviceMemoryTarget))
		}
		r.row(cells...)
	}
}
