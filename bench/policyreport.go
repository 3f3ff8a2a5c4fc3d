package main

import (
	"fmt"
	"time"
)

// The targets of network policies.
const (
	policyMemoryTarget = 150 << 20
	changeTarget       = 50 * time.Millisecond
	// squareTarget is how many elements in the kernel a pod may cost, of those
	// that a policy protects and those that it lets in.
	squareTarget = 5
	// policySlack is by what part policies may slow traffic down.
	policySlack = 0.05
)

func (r *report) policyWorld(w worldResult) {
	r.line("\n## Network policy in a large cluster\n")
	r.line("Plug-in %s with %d policies about %d pods in %d namespaces on %d", policyPlugin, w.Policies, w.Pods, w.Namespaces, w.Nodes)
	r.line("nodes ([bench/policyworld.go](../bench/policyworld.go)). One node is real, with an agent and %d pods that CNI attached; of", worldPods)
	r.line("the others there are the objects that their agents would have written. A change is timed from")
	r.line("the return of the write to the registry until datagrams between pods fare accordingly: one is")
	r.line("sent each millisecond, each as the first of a connection. Where pods elsewhere change, they are")
	r.line("seen to leave by the tunnel, or not to. %d changes of each kind, the kinds in turns, one every", len(w.Changes[0]))
	r.line("%v or more, as seldom as it takes for the agent not to let several gather: it does that with", leastInterval)
	r.line("changes that would have it work for more than a tenth of the time.")
	r.head("", "p50", "p99", "longest", "target for p99", "")
	for kind, times := range w.Changes {
		p99 := quantile(times, 0.99)
		r.row(changeNames[kind], duration(quantile(times, 0.5)), duration(p99), duration(quantile(times, 1)),
			fmt.Sprintf("≤ %v", changeTarget), r.judged(atMost(p99, changeTarget)))
	}
	r.line("\nOf that the agent compiles for %s and applies for %s on average.", duration(w.Compile), duration(w.Apply))
	r.head("An agent", "without policies", "with policies", "after all changes", "target", "")
	r.row("resident", mebibytes(w.Before.Resident), mebibytes(w.First.Resident), mebibytes(w.After.Resident),
		"≤ "+mebibytes(policyMemoryTarget), r.judged(atMost(max(w.First.Resident, w.After.Resident), policyMemoryTarget)))
	r.row("anonymous", mebibytes(w.Before.Anonymous), mebibytes(w.First.Anonymous), mebibytes(w.After.Anonymous), "", "")
	r.row("resident at most", "", "", mebibytes(w.Peak), "", "")
	r.row("Go's heap", "", "", mebibytes(w.Heap), "", "")
	r.row("from start to ready", duration(w.ReadyWithout), duration(w.Ready), "", "", "")
	r.row("of it compiling", "", fmt.Sprintf("%s in %d rounds", duration(w.Compiled), w.Compilations), "", "", "")
	r.row("entries of Classes", "", fmt.Sprint(w.Classes), "", "", "")
	r.row("entries of Verdicts", "", fmt.Sprint(w.Verdicts), "", "", "")
	r.row("elements in the kernel", "", fmt.Sprint(w.Elements), "", "", "")
	r.line("\nFor the birth of a pod elsewhere, the registry sends the agent %s (%d births, less what it", kibibytes(w.Birth), births)
	r.line("sends in as long a time without any). The four events of a typical Pod object")
	r.line("([bench/pod.yaml](../bench/pod.yaml)) until it runs are %s in JSON, and %s in", kibibytes(w.PodJSON), kibibytes(w.PodProtobuf))
	r.line("protobuf, without managedFields.")
}

func (r *report) policySquares(squares []squareResult) {
	r.line("\n## One policy between many pods\n")
	r.line("A policy about so many pods of a node lets in as many pods of another: what the node's plan and")
	r.line("kernel hold of it.")
	r.head("", "Classes", "Verdicts", "elements in the kernel", "target", "")
	for _, s := range squares {
		most := 2 * s.Side * squareTarget
		r.row(fmt.Sprintf("%d × %[1]d", s.Side), fmt.Sprint(s.Classes), fmt.Sprint(s.Verdicts), fmt.Sprint(s.Elements),
			fmt.Sprintf("≤ %d for each of %d pods", squareTarget, 2*s.Side), r.judged(atMost(s.Elements, most)))
	}
}

func (r *report) policyTraffic(variants []variant, t traffic) {
	r.line("\n## Pod to pod, with network policies\n")
	r.line("Of %d policies, %d are about each of the pods here, half of them about what it receives and", manyPolicies, concerning)
	r.line("half about what it sends; one for either direction lets the traffic through. TCP over IPv4 in %d", t.rounds())
	r.line("rounds of %v for each; ratios are to the same without policies.", policySamples)
	r.line("")
	r.line("By hand is a node that routes between two pods of its own, with plain nftables rules for what")
	r.line("pods receive: a chain for each of %d policies. Either all are asked in turn whether they are about", manyPolicies)
	r.line("the destination, or a map leads to the %d chains of the destination; the last lets the traffic through.", manyPolicies/concerning)
	head := []string{""}
	for _, q := range policyQuantities {
		head = append(head, q.name, "ratio", "target", "")
	}
	r.head(head...)
	for _, v := range variants {
		cells := []string{v.name}
		for _, q := range policyQuantities {
			own := t.values(q, v.name)
			cells = append(cells, amount(spreadOf(own).Median, q.unit))
			if v.against == "" {
				cells = append(cells, "", "", "")
				continue
			}
			s := spreadOf(ratios(own, t.values(q, v.against)))
			if v.against == handNone {
				cells = append(cells, s.String(), "", "")
				continue
			}
			target := fmt.Sprintf("≥ %.2f", 1/(1+policySlack))
			if !q.moreBetter {
				target = fmt.Sprintf("≤ %.2f", 1+policySlack)
			}
			cells = append(cells, s.String(), target, r.judged(judge(s, q.moreBetter, policySlack)))
		}
		r.row(cells...)
	}
}

// rounds is how many samples there are of each variant.
func (t traffic) rounds() int {
	for _, variants := range t {
		for _, samples := range variants {
			return len(samples)
		}
	}
	return 0
}

func duration(d time.Duration) string {
	if d >= time.Second {
		return amount(d.Seconds(), "s")
	}
	return amount(milliseconds(d), "ms")
}

func kibibytes(n int) string { return amount(float64(n)/(1<<10), "KiB") }
