package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/plan"
)

// However many pods there are, verdicts are as many as what policies tell apart.
func TestManyPods(t *testing.T) {
	w := &World{Network: plan.DefaultNetwork, Namespaces: []*Namespace{{Name: "shop"}}}
	client := Identity{Namespace: "shop", Labels: labelsOf("app=client")}
	web := Identity{Namespace: "shop", Labels: labelsOf("app=web")}
	w.Groups = []*Group{{10, client}}
	node := &Node{Name: "node2", Origin: "NodePods node2", Pods: []TaggedAddresses{{Tag: 10}}}
	for i := range byte(200) {
		node.Pods[0].Addresses = append(node.Pods[0].Addresses, netip.AddrFrom4([4]byte{10, 1, 2, i}))
		w.Local = append(w.Local, &Local{Interface: fmt.Sprintf("weft%03d", i), Namespace: "shop", Identity: &web,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 1, i})}})
	}
	w.Nodes = []*Node{node}
	w.Policies = []*Policy{{Name: "NetworkPolicy shop/web", Tier: Isolating, Subject: Selector{Namespace: "shop", Pods: selectorOf(ptr("app=web"))},
		IsolatesIngress: true, Ingress: []Rule{{Origin: "NetworkPolicy shop/web ingress[0]",
			Peers: []Peer{{Pods: &Selector{Namespace: "shop", Pods: selectorOf(ptr("app=client"))}}}, Ports: []Port{portOf("tcp/80")}}}}}
	tables := new(Compiler).Compile(w)
	if tables.Verdicts.Len() != 2 || tables.Classes.Len() != 200 || len(tables.Endpoints) != 200 {
		t.Fatalf("%d verdicts, %d classes and policies for %d endpoints; want 2, 200 and 200\n%s",
			tables.Verdicts.Len(), tables.Classes.Len(), len(tables.Endpoints), tables.planOf())
	}
}

func ptr[T any](v T) *T { return &v }

// Another network has addresses of its own.
func TestAnotherNetwork(t *testing.T) {
	known := worldMaker{}
	s := "app=web"
	spec := worldSpec{
		Groups:   map[string]identitySpec{"10": {Namespace: "shop"}},
		Nodes:    map[string]map[string][]string{"node2": {"10": {"10.1.2.2"}}},
		Local:    map[string]localSpec{"weft1": {identitySpec: identitySpec{Namespace: "shop", Labels: s}, Addresses: []string{"10.1.1.2"}}},
		Policies: map[string]policySpec{"p": {Isolates: []string{"ingress"}, Ingress: []ruleSpec{{Action: "allow", Peers: &[]peerSpec{{Pods: &selectorSpec{}}}}}}},
	}
	var c Compiler
	first := c.Compile(known.of(spec))
	w := known.of(spec)
	w.Network = "other"
	second := c.Compile(w)
	for k := range second.Classes.All() {
		if k.Network != "other" {
			t.Errorf("%v is left", k)
		}
	}
	if first.Classes.Len() != 2 || second.Classes.Len() != 2 {
		t.Errorf("%d classes, then %d, want 2", first.Classes.Len(), second.Classes.Len())
	}
}

// Two classes never have one number, nor two sets one name, even if their hashes
// are the same.
func TestCollisions(t *testing.T) {
	x := classes{all: map[classKey]*class{}, byNumber: map[plan.Class]*class{}}
	p := &profile{ports: []NamedPort{{"http", plan.TCP, 80}}}
	preferred := (&class{ports: p.ports}).preferredNumber()
	x.byNumber[preferred] = &class{}
	if c := x.get(p, nil); c.number != nextClass(preferred) {
		t.Errorf("number %d for a class when %d is taken, want the next", c.number, preferred)
	}
	if next := nextClass(firstRow - 1); next != plan.FirstOwnClass {
		t.Errorf("after the last number of a class comes %d, want %d", next, plan.FirstOwnClass)
	}
	names := sets{byName: map[string]*set{}}
	one := names.name("shop/web", []byte("key"))
	names.byName[one] = &set{}
	if other := names.name("shop/web", []byte("key")); other == one {
		t.Errorf("two sets are called %s", one)
	}
}

// changes leads from one list to the other.
func TestChanges(t *testing.T) {
	type element struct{ key, version int }
	rapid.Check(t, func(t *rapid.T) {
		pool := map[element]*element{}
		lists := rapid.Map(rapid.MapOfN(rapid.IntRange(0, 8), rapid.IntRange(0, 1), 0, 8), func(m map[int]int) []*element {
			var list []*element
			for k, v := range m {
				e := element{k, v}
				if pool[e] == nil {
					pool[e] = &e
				}
				list = append(list, pool[e])
			}
			slices.SortFunc(list, func(a, b *element) int { return cmp.Compare(a.key, b.key) })
			return list
		})
		was, is := lists.Draw(t, "was"), lists.Draw(t, "is")
		have := map[int]*element{}
		for _, e := range was {
			have[e.key] = e
		}
		for o, n := range changes(was, is, func(a, b *element) int { return cmp.Compare(a.key, b.key) }) {
			switch {
			case o == n:
				t.Fatalf("%v does not change", o)
			case o != nil && have[o.key] != o || o != nil && n != nil && o.key != n.key:
				t.Fatalf("%v becomes %v, but was %v", o, n, have[o.key])
			case o == nil && have[n.key] != nil:
				t.Fatalf("%v is not new", n)
			case n == nil:
				delete(have, o.key)
			default:
				have[n.key] = n
			}
		}
		if len(have) != len(is) {
			t.Fatalf("leads to %v, want %v", have, is)
		}
		for _, e := range is {
			if have[e.key] != e {
				t.Fatalf("leads to %v, want %v", have[e.key], e)
			}
		}
	})
}

// The entries around an address are those whose prefixes contain it, and a
// reader reads the longest of them.
func TestPrefixMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m prefixMap[string]
		in := map[netip.Prefix]bool{}
		for range rapid.IntRange(0, 12).Draw(t, "changes") {
			p := netip.MustParsePrefix(rapid.SampledFrom(somePrefixes).Draw(t, "prefix"))
			if in[p] = !in[p]; in[p] {
				m.set(p, p.String())
			} else {
				m.delete(p)
			}
		}
		read := m.reader()
		for _, text := range slices.Concat(otherAddresses, someAddresses, []string{"255.255.255.255", "::", "ffff::"}) {
			a := netip.MustParseAddr(text)
			want := []string{}
			for _, s := range somePrefixes {
				if p := netip.MustParsePrefix(s); in[p] && p.Contains(a) {
					want = append(want, s)
				}
			}
			slices.SortFunc(want, func(a, b string) int {
				return netip.MustParsePrefix(b).Bits() - netip.MustParsePrefix(a).Bits()
			})
			got := []string{}
			for p, v := range m.around(netip.PrefixFrom(a, a.BitLen())) {
				if p.String() != v {
					t.Fatalf("%s is at %s", v, p)
				}
				got = append(got, v)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("around %s are %v, want %v", a, got, want)
			}
			if longest := append(want, "")[0]; read(a) != longest {
				t.Fatalf("of %s the reader reads %q, want %q", a, read(a), longest)
			}
		}
	})
}
