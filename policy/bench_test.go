package policy

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/weftnet/weft/plan"
)

// The cluster of the benchmarks: on each of 1,000 nodes 100 pods, of 10 groups
// in each of 1,000 namespaces, which have 10 policies each. The node compiled
// for has 100 pods of 100 namespaces.
const (
	benchNodes      = 1000
	benchPods       = 100
	benchNamespaces = 1000
	benchGroups     = 10
	benchPolicies   = 10
)

func benchWorld() *World {
	w := &World{Network: plan.DefaultNetwork}
	for n := range benchNamespaces {
		w.Namespaces = append(w.Namespaces, &Namespace{benchNamespace(n), labels.Set{"kubernetes.io/metadata.name": benchNamespace(n), "team": fmt.Sprint(n % 50)}})
		for g := range benchGroups {
			w.Groups = append(w.Groups, &Group{plan.Tag(10 + n*benchGroups + g), benchIdentity(n, g)})
		}
		for p := range benchPolicies {
			w.Policies = append(w.Policies, benchPolicy(n, p, 8080))
		}
	}
	for n := range benchNodes {
		w.Nodes = append(w.Nodes, benchNode(n, 0))
		w.Machines = append(w.Machines, &Machine{Name: fmt.Sprintf("node%04d", n), Labels: labels.Set{"zone": fmt.Sprint(n % 3)},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{172, 30, byte(n >> 8), byte(n)})}})
	}
	for i := range benchPods {
		id := benchIdentity(i*benchNamespaces/benchPods, i%benchGroups)
		w.Local = append(w.Local, &Local{Interface: fmt.Sprintf("weft%03d", i), Name: fmt.Sprintf("%s/pod%d", id.Namespace, i), Namespace: id.Namespace,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 127, 0, byte(i + 2)})}, Identity: &id})
	}
	return w
}

func benchNamespace(n int) string { return fmt.Sprintf("namespace%04d", n) }

func benchIdentity(n, g int) Identity {
	return Identity{Namespace: benchNamespace(n), Labels: labels.Set{"app": fmt.Sprintf("app%d", g), "tier": fmt.Sprint(g % 3)},
		Ports: []NamedPort{{"http", plan.TCP, uint16(8080 + g)}}}
}

// benchNode has pods of all groups by turns; another shift gives its addresses to
// the groups that follow.
func benchNode(n, shift int) *Node {
	node := &Node{Name: fmt.Sprintf("node%04d", n), Origin: fmt.Sprintf("NodePods node%04d", n)}
	for i := range benchPods {
		tag := plan.Tag(10 + (n*benchPods+(i+shift)%benchPods*17)%(benchNamespaces*benchGroups))
		node.Pods = append(node.Pods, TaggedAddresses{tag, []netip.Addr{netip.AddrFrom4([4]byte{10, byte(128 + n>>8), byte(n), byte(i + 2)})}})
	}
	slices.SortFunc(node.Pods, func(a, b TaggedAddresses) int { return int(a.Tag) - int(b.Tag) })
	return node
}

func benchPolicy(n, p int, port uint16) *Policy {
	name := fmt.Sprintf("NetworkPolicy %s/policy%d", benchNamespace(n), p)
	app := func(g int) labels.Selector {
		return must(labels.Parse(fmt.Sprintf("app=app%d", g%benchGroups)))
	}
	peers := []Peer{{Pods: &Selector{Namespace: benchNamespace(n), Pods: app(p + 1)}}}
	switch p {
	case 0, 1:
		peers = append(peers, Peer{Pods: &Selector{Namespaces: must(labels.Parse(fmt.Sprintf("team=%d", n%50))), Pods: app(p)}})
	case 2:
		peers = append(peers, Peer{Pods: &Selector{Namespaces: must(labels.Parse("kubernetes.io/metadata.name=" + benchNamespace(0)))}})
	case 3:
		peers = append(peers, Peer{Block: &Block{netip.MustParsePrefix("0.0.0.0/0"), []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, byte(n), 0}), 24)}}})
	}
	ports := []Port{{Protocol: plan.TCP, Range: plan.PortRange{First: port, Last: port}}, {Protocol: plan.TCP, Name: "http"}}
	subject := Selector{Namespace: benchNamespace(n), Pods: app(p)}
	if p < 3 {
		subject.Pods = must(labels.Parse(fmt.Sprintf("tier=%d", p)))
	}
	return &Policy{Name: name, Tier: Isolating, Subject: subject, IsolatesIngress: true, IsolatesEgress: p%2 == 1,
		Ingress: []Rule{{Origin: name + " ingress[0]", Peers: peers, Ports: ports}},
		Egress:  []Rule{{Origin: name + " egress[0]", Peers: peers, Ports: ports}}[:p%2]}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func BenchmarkFirst(b *testing.B) {
	w := benchWorld()
	for b.Loop() {
		var c Compiler
		c.Compile(w)
	}
	before := heap()
	var c Compiler
	tables := c.Compile(w)
	b.ReportMetric(float64(heap()-before)/(1<<20), "MiB")
	b.ReportMetric(float64(tables.Classes.Len()), "classes")
	b.ReportMetric(float64(tables.Verdicts.Len()), "verdicts")
	b.ReportMetric(float64(len(c.state.classes.all)), "classes")
	runtime.KeepAlive(w)
}

// benchmarkChange compiles what change makes of the world, round after round.
func benchmarkChange(b *testing.B, change func(w *World, round int)) {
	w := benchWorld()
	var c Compiler
	c.Compile(w)
	var took []time.Duration
	for round := 0; b.Loop(); round++ {
		b.StopTimer()
		next := *w
		change(&next, round)
		w = &next
		b.StartTimer()
		start := time.Now()
		c.Compile(w)
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
}

func replaced[T any](list []*T, i int, with *T) []*T {
	list = slices.Clone(list)
	list[i] = with
	return list
}

// BenchmarkPolicy edits one policy after the other of those about the node's
// pods: its ports.
func BenchmarkPolicy(b *testing.B) {
	benchmarkChange(b, func(w *World, round int) {
		n, p := round*benchNamespaces/benchPods%benchNamespaces, round%benchPolicies
		w.Policies = replaced(w.Policies, n*benchPolicies+p, benchPolicy(n, p, uint16(9000+round%7)))
	})
}

// BenchmarkNewPolicy takes policies away and puts them back, peers included.
func BenchmarkNewPolicy(b *testing.B) {
	benchmarkChange(b, func(w *World, round int) {
		n, p := round/2*benchNamespaces/benchPods%benchNamespaces, round/2%benchPolicies
		if round%2 == 0 {
			w.Policies = slices.Delete(slices.Clone(w.Policies), n*benchPolicies+p, n*benchPolicies+p+1)
		} else {
			w.Policies = slices.Insert(slices.Clone(w.Policies), n*benchPolicies+p, benchPolicy(n, p, 8080))
		}
	})
}

// BenchmarkNodePods gives all addresses of a node to other pods.
func BenchmarkNodePods(b *testing.B) {
	benchmarkChange(b, func(w *World, round int) {
		n := round * 7 % benchNodes
		w.Nodes = replaced(w.Nodes, n, benchNode(n, 1+round))
	})
}

// BenchmarkRelabel gives all pods of a group other labels.
func BenchmarkRelabel(b *testing.B) {
	benchmarkChange(b, func(w *World, round int) {
		i := round / 2 * benchNamespaces / benchPods * benchGroups % len(w.Groups)
		g := *w.Groups[i]
		g.Identity = benchIdentity(i/benchGroups, i%benchGroups+(round+1)%2)
		w.Groups = replaced(w.Groups, i, &g)
	})
}

// BenchmarkNamespace gives a namespace other labels.
func BenchmarkNamespace(b *testing.B) {
	benchmarkChange(b, func(w *World, round int) {
		n := round * benchNamespaces / benchPods % benchNamespaces
		w.Namespaces = replaced(w.Namespaces, n, &Namespace{benchNamespace(n), labels.Set{"team": fmt.Sprint(round % 50)}})
	})
}

// BenchmarkLocal starts and ends a pod of the node.
func BenchmarkLocal(b *testing.B) {
	benchmarkChange(b, func(w *World, round int) {
		i := round % benchPods
		l := *w.Local[i]
		l.Ended = !l.Ended
		w.Local = replaced(w.Local, i, &l)
	})
}
