package policy

import (
	"encoding/json"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/test/policy/oracle"
)

// shrink returns a trial with as little in it as still differs, and how. It
// takes away states, then objects from all states or from one, then parts of
// objects, until nothing can go.
func shrink(t trial, start func() subject) (trial, *difference) {
	last := t.run(start)
	if last == nil {
		return t, nil
	}
	try := func(next trial) bool {
		if !next.complete() {
			return false
		}
		d := next.run(start)
		if d == nil || d.failed != last.failed {
			return false
		}
		t, last = next, d
		return true
	}
	for progress := true; progress; {
		progress = false
		for i := len(t.states) - 2; i >= 0; i-- {
			progress = try(trial{slices.Delete(slices.Clone(t.states), i, i+1), t.packet}) || progress
		}
		for _, o := range t.objects() {
			progress = try(t.change(func(_ int, other metav1.Object) metav1.Object {
				return unless(sameName(o, other), other)
			})) || progress
		}
		for i, c := range t.states {
			for _, o := range objectsOf(c) {
				progress = try(t.change(func(state int, other metav1.Object) metav1.Object {
					return unless(state == i && other == o, other)
				})) || progress
			}
		}
		for _, o := range t.objects() {
			for smaller := true; smaller; {
				smaller = slices.ContainsFunc(variants(o), func(v metav1.Object) bool {
					if !try(t.change(func(_ int, other metav1.Object) metav1.Object {
						if other == o {
							return v
						}
						return other
					})) {
						return false
					}
					o = v
					return true
				})
				progress = progress || smaller
			}
		}
		for _, name := range domains {
			next := t.change(func(_ int, o metav1.Object) metav1.Object { return o })
			there := false
			for _, c := range next.states {
				_, ok := c.Domains[name]
				there = there || ok
				delete(c.Domains, name)
			}
			progress = there && try(next) || progress
		}
	}
	return t, last
}

func unless(gone bool, o metav1.Object) metav1.Object {
	if gone {
		return nil
	}
	return o
}

func sameName(a, b metav1.Object) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && a.GetNamespace() == b.GetNamespace() && a.GetName() == b.GetName()
}

// complete reports whether what is left is a cluster: pods have their node and
// their namespace, and the parties of the packet are there.
func (t trial) complete() bool {
	for _, c := range t.states {
		for _, p := range c.Pods {
			if !slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool { return n.Name == p.Spec.NodeName }) ||
				!slices.ContainsFunc(c.Namespaces, func(n *corev1.Namespace) bool { return n.Name == p.Namespace }) {
				return false
			}
		}
	}
	parties := trafficOf(t.states[len(t.states)-1])
	for _, a := range []netip.Addr{t.packet.Source, t.packet.Destination} {
		f := family(a)
		if (podNetworks[f].Contains(a) || underlays[f].Contains(a)) && !slices.Contains(parties.pods[f], a) && !slices.Contains(parties.nodes[f], a) {
			return false
		}
	}
	return true
}

// objects lists those of all states, each once.
func (t trial) objects() []metav1.Object {
	var all []metav1.Object
	for _, c := range t.states {
		for _, o := range objectsOf(c) {
			if !slices.Contains(all, o) {
				all = append(all, o)
			}
		}
	}
	return all
}

func objectsOf(c *oracle.Cluster) (all []metav1.Object) {
	change(c, func(o metav1.Object) metav1.Object {
		all = append(all, o)
		return o
	})
	return all
}

// change returns a trial in which f replaced each object of each state; nil
// takes it away.
func (t trial) change(f func(state int, o metav1.Object) metav1.Object) trial {
	next := trial{packet: t.packet}
	for i, c := range t.states {
		next.states = append(next.states, change(c, func(o metav1.Object) metav1.Object { return f(i, o) }))
	}
	return next
}

func change(c *oracle.Cluster, f func(metav1.Object) metav1.Object) *oracle.Cluster {
	return &oracle.Cluster{
		ClusterNetworkPolicies: changeAll(c.ClusterNetworkPolicies, f), NetworkPolicies: changeAll(c.NetworkPolicies, f),
		Pods: changeAll(c.Pods, f), Namespaces: changeAll(c.Namespaces, f), Nodes: changeAll(c.Nodes, f),
		Domains: maps.Clone(c.Domains),
	}
}

func changeAll[O metav1.Object](list []O, f func(metav1.Object) metav1.Object) []O {
	var out []O
	for _, o := range list {
		if next := f(o); next != nil {
			out = append(out, next.(O))
		}
	}
	return out
}

// variants returns copies of an object in which one thing each is gone.
func variants(o metav1.Object) []metav1.Object {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		panic(err)
	}
	var out []metav1.Object
	for _, v := range smaller("", tree) {
		text, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		next := reflect.New(reflect.TypeOf(o).Elem()).Interface().(metav1.Object)
		if err := json.Unmarshal(text, next); err != nil {
			panic(err)
		}
		out = append(out, next)
	}
	return out
}

// What may go without making an object that Kubernetes would refuse: entries of
// these maps, these fields, and elements of lists but for these; and of these
// lists all but the last.
var (
	optionalEntries = []string{"labels", "matchLabels"}
	optionalFields  = []string{"endPort"}
	wholeLists      = []string{"podIPs", "podCIDRs", "addresses"}
	neverEmpty      = []string{"from", "to", "networks", "domainNames", "values", "policyTypes"}
)

// smaller returns copies of a JSON value, which is there under a key, in which
// one thing each is gone. What takes away more comes first.
func smaller(key string, value any) (out []any) {
	switch v := value.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			_, pods := v["podSelector"]
			_, namespaces := v["namespaceSelector"]
			both := pods && namespaces && (key == "from" || key == "to") && (k == "podSelector" || k == "namespaceSelector")
			if both || slices.Contains(optionalEntries, key) || slices.Contains(optionalFields, k) {
				next := maps.Clone(v)
				delete(next, k)
				out = append(out, next)
			}
		}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			for _, child := range smaller(k, v[k]) {
				next := maps.Clone(v)
				next[k] = child
				out = append(out, next)
			}
		}
	case []any:
		if slices.Contains(wholeLists, key) {
			return nil
		}
		for i := range v {
			if len(v) > 1 || !slices.Contains(neverEmpty, key) {
				out = append(out, slices.Delete(slices.Clone(v), i, i+1))
			}
		}
		for i := range v {
			for _, child := range smaller(key, v[i]) {
				next := slices.Clone(v)
				next[i] = child
				out = append(out, next)
			}
		}
	}
	return out
}
