package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/plan"
)

// A compiler that works off large policies gradually comes to what one that does not
// comes to, within as many calls as there are pods, or so. Meanwhile it allows a pod
// nothing that none of the versions would that its policies had since it was last
// done.
func TestGradually(t *testing.T) {
	size, verdicts, most, together, work := smallSize, smallVerdicts, maxVerdicts, maxOfNamespace, maxWork
	defer func() {
		smallSize, smallVerdicts, maxVerdicts, maxOfNamespace, maxWork = size, verdicts, most, together, work
	}()
	rapid.Check(t, func(t *rapid.T) {
		defer directly(t)()
		smallSize = rapid.IntRange(0, 6).Draw(t, "small size")
		smallVerdicts = rapid.IntRange(0, 3).Draw(t, "small verdicts")
		maxVerdicts = rapid.SampledFrom([]int{most, most, 8, 4}).Draw(t, "most verdicts")
		maxOfNamespace = rapid.SampledFrom([]int{together, together, 8, 4}).Draw(t, "most verdicts of a namespace")
		maxWork = rapid.SampledFrom([]int{work, work, 40, 20, 10}).Draw(t, "most work")
		known := worldMaker{}
		spec := drawWorld(t)
		c := Compiler{Gradual: rapid.IntRange(0, 3).Draw(t, "gradually") > 0}
		since := []*World{known.of(spec)}
		c.Compile(since[0])
		if len(c.Waiting()) > 0 {
			t.Fatal("the first world was not compiled whole")
		}
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			for range rapid.IntRange(1, 3).Draw(t, "edits") {
				spec.edit(t, editKinds.Draw(t, "kind"))
			}
			t.Logf("world:\n%s", spec)
			c.Rest(map[string]bool{"a": rapid.Bool().Draw(t, "a rests"), "b": rapid.Bool().Draw(t, "b rests")})
			w := known.of(spec)
			since = append(since, w)
			checkAllowed(t, since, c.Compile(w))
			calls := 0
			for finish := rapid.Bool().Draw(t, "finish"); finish && len(c.Waiting()) > 0; calls++ {
				c.Advance(rapid.SampledFrom(c.Waiting()).Draw(t, "owner"))
				if calls > 4*len(someInterfaces)*len(since) {
					t.Fatalf("not finished after %d calls", calls)
				}
				checkAllowed(t, since, c.Compile(w))
			}
			if len(c.Waiting()) > 0 {
				if rapid.Bool().Draw(t, "advance") {
					c.Advance(rapid.SampledFrom(c.Waiting()).Draw(t, "owner"))
				}
				continue
			}
			tables := c.Compile(w)
			if len(tables.Costly) == 0 {
				check(t, w, tables)
			}
			since = []*World{w}
			var fresh Compiler
			same := fresh.Compile(w)
			if got, want := c.renumbered(tables), fresh.renumbered(same); !got.Equal(want) || len(tables.Costly) != len(same.Costly) {
				t.Fatalf("the tables differ from those compiled anew:\n%s", want.Diff(got))
			}
			if got, want := c.state.size(), fresh.state.size(); got != want {
				t.Fatalf("the compiler holds\n%s, one that never saw another world\n%s", got, want)
			}
		}
	})
}

// checkAllowed fails if the tables allow a pod of the last world something that none
// of its policies allows as they and the pod were in one of the worlds, towards who is
// there now.
func checkAllowed(t *rapid.T, since []*World, tables Tables) {
	p := &plan.Plan{Local: plan.Local{Node: "node1"}, Classes: tables.Classes, Within: tables.Within, Verdicts: tables.Verdicts}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	w := since[len(since)-1]
	for _, l := range w.Local {
		for _, d := range directions {
			set := tables.Endpoints[l.Interface].Ingress
			if d == plan.Outgoing {
				set = tables.Endpoints[l.Interface].Egress
			}
			type version struct {
				rules []Applied
				of    *Identity
			}
			var versions []version
			for _, at := range since {
				i := slices.IndexFunc(at.Local, func(o *Local) bool { return o.Interface == l.Interface && o.Identity != nil })
				if i >= 0 {
					of := at.Local[i].Identity
					versions = append(versions, version{Applicable(at.Policies, of, at.labelsOf(at.Local[i].Namespace), d), of})
				}
			}
			for _, text := range slices.Concat(someAddresses, otherAddresses) {
				a := netip.MustParseAddr(text)
				peer := w.partyAt(a)
				class, _ := p.ClassAt(w.Network, a)
				for _, protocol := range probed {
					for _, port := range probedPorts {
						if !protocol.HasPorts() {
							port = 0
						}
						if set != "" {
							if _, got, ok := p.Verdict(set, d, class, protocol, port); !ok || !got.Allow {
								continue
							}
						}
						if !slices.ContainsFunc(versions, func(v version) bool {
							destination := v.of
							if d == plan.Outgoing {
								destination = peer.Identity
							}
							return len(v.rules) == 0 || readDecision(Resolve(v.rules, peer, destination), protocol, port).Allow
						}) && (l.Identity != nil || set != "") {
							t.Fatalf("%s %s, peer %s (class %s), %s port %d is allowed, which it was by no version\n%s", l.Interface, d, a, class, protocol, port, p)
						}
					}
				}
			}
		}
	}
}

// largeWorld is a node with a pod of a shop, under a policy that is too large to be
// worked out in front of what others change: from each of some peers, 20 ports that no
// other may use, and ports by themselves.
func largeWorld() *World {
	w := &World{Network: plan.DefaultNetwork, Namespaces: []*Namespace{{Name: "blue"}, {Name: "shop"}}}
	web := Identity{Namespace: "shop", Labels: labelsOf("app=web")}
	w.Local = []*Local{{Interface: "weft001", Namespace: "shop", Identity: &web, Addresses: []netip.Addr{netip.MustParseAddr("10.1.1.2")}}}
	p := &Policy{Name: "NetworkPolicy shop/web", Tier: Isolating, Subject: Selector{Namespace: "shop", Pods: selectorOf(ptr("app=web"))}, IsolatesIngress: true}
	node := &Node{Name: "node2", Origin: "NodePods node2"}
	for i := range 10 {
		r := Rule{Origin: fmt.Sprintf("NetworkPolicy shop/web ingress[%d]", i),
			Peers: []Peer{{Pods: &Selector{Namespace: "shop", Pods: selectorOf(ptr(fmt.Sprintf("app=p%d", i)))}}}}
		for j := range 20 {
			r.Ports = append(r.Ports, portOf(fmt.Sprintf("tcp/%d", 1000+100*i+2*j)))
		}
		p.Ingress = append(p.Ingress, r)
		tag := plan.Tag(10 + i)
		w.Groups = append(w.Groups, &Group{tag, Identity{Namespace: "shop", Labels: labelsOf(fmt.Sprintf("app=p%d", i))}})
		node.Pods = append(node.Pods, TaggedAddresses{Tag: tag, Addresses: []netip.Addr{
			netip.AddrFrom4([4]byte{10, 1, 2, byte(i)}), netip.AddrFrom4([4]byte{10, 1, 3, byte(i)})}})
	}
	w.Nodes, w.Policies = []*Node{node}, []*Policy{p}
	return w
}

// allows reports whether weft001 may be reached from an address.
func allows(tables Tables, from string, port uint16) bool {
	p := tables.planOf()
	class, _ := p.ClassAt(plan.DefaultNetwork, netip.MustParseAddr(from))
	_, v, _ := p.Verdict(tables.Endpoints["weft001"].Ingress, plan.Incoming, class, plan.TCP, port)
	return v.Allow
}

// What another tenant's policies tell apart is no reason to judge a large set of rules
// anew, and its peers keep what they may.
func TestALargeSetOutlivesOthersPolicies(t *testing.T) {
	w := largeWorld()
	blue := Identity{Namespace: "blue"}
	w.Local = append(w.Local, &Local{Interface: "weft002", Namespace: "blue", Identity: &blue, Addresses: []netip.Addr{netip.MustParseAddr("10.1.1.3")}})
	c := Compiler{Gradual: true}
	tables := c.Compile(w)
	set := c.state.sets.byName[tables.Endpoints["weft001"].Ingress]
	rows := set.rows
	for _, prefixes := range [][]string{{"10.0.0.0/8"}, {"10.0.0.0/9"}, {"10.1.3.0/24"}, {"10.1.3.0/29", "10.1.2.0/31"}, {}} {
		next := *w
		var blocks []Peer
		for _, p := range prefixes {
			blocks = append(blocks, Peer{Block: &Block{Prefix: netip.MustParsePrefix(p)}})
		}
		next.Policies = []*Policy{{Name: "NetworkPolicy blue/all", Tier: Isolating, Subject: Selector{Namespace: "blue"}, IsolatesIngress: true,
			Ingress: []Rule{{Origin: "NetworkPolicy blue/all ingress[0]", Peers: blocks}}}, w.Policies[0]}
		tables = c.Compile(&next)
		if waiting := c.Waiting(); len(waiting) > 0 {
			t.Errorf("%v: %q wait", prefixes, waiting)
		}
		if set.rows != rows {
			t.Errorf("%v: the set was judged anew", prefixes)
			rows = set.rows
		}
		for i := range 10 {
			for _, subnet := range []int{2, 3} {
				from := fmt.Sprintf("10.1.%d.%d", subnet, i)
				if own := uint16(1000 + 100*i); !allows(tables, from, own) || allows(tables, from, own+1) || allows(tables, from, 1000+uint16(100*((i+1)%10))) {
					t.Errorf("%v: %s may not do what it may, or more", prefixes, from)
				}
			}
		}
		var fresh Compiler
		same := fresh.Compile(&next)
		if got, want := c.renumbered(tables), fresh.renumbered(same); !got.Equal(want) {
			t.Errorf("%v: the tables differ from those compiled anew:\n%s", prefixes, want.Diff(got))
		}
	}
}

// A peer of a kind that was not there before waits for a large set to be worked out
// for it, and is denied until then. All others keep what they may.
func TestANewPeerOfALargeSetWaits(t *testing.T) {
	w := largeWorld()
	c := Compiler{Gradual: true}
	c.Compile(w)
	next := *w
	policy := *w.Policies[0]
	both := &Selector{Namespace: "shop", Pods: selectorOf(ptr("both=yes"))}
	policy.Ingress = slices.Clone(policy.Ingress)
	for _, i := range []int{0, 1} {
		policy.Ingress[i].Peers = append(slices.Clone(policy.Ingress[i].Peers), Peer{Pods: both})
	}
	next.Policies = []*Policy{&policy}
	c.Compile(&next)
	for len(c.Waiting()) > 0 {
		c.Advance(c.Waiting()[0])
		c.Compile(&next)
	}
	last := next
	last.Groups = append(slices.Clone(w.Groups), &Group{99, Identity{Namespace: "shop", Labels: labelsOf("both=yes")}})
	last.Nodes = append(slices.Clone(w.Nodes), &Node{Name: "node3", Origin: "NodePods node3",
		Pods: []TaggedAddresses{{Tag: 99, Addresses: []netip.Addr{netip.MustParseAddr("10.1.4.1")}}}})
	tables := c.Compile(&last)
	if waiting := c.Waiting(); !slices.Equal(waiting, []string{"shop"}) {
		t.Fatalf("%q wait", waiting)
	}
	if !slices.Equal(tables.Waiting, last.Policies) {
		t.Errorf("%d policies are said to wait", len(tables.Waiting))
	}
	if allows(tables, "10.1.4.1", 1000) {
		t.Error("what was not worked out yet is allowed")
	}
	if !allows(tables, "10.1.2.0", 1000) || !allows(tables, "10.1.3.9", 1900) {
		t.Error("another peer lost what it may")
	}
	c.Advance("blue")
	if tables = c.Compile(&last); allows(tables, "10.1.4.1", 1000) {
		t.Error("another's turn was taken")
	}
	c.Advance("shop")
	tables = c.Compile(&last)
	if !allows(tables, "10.1.4.1", 1000) || !allows(tables, "10.1.4.1", 1100) || allows(tables, "10.1.4.1", 1200) {
		t.Error("the new peer may not do what it may, or more")
	}
	if waiting := c.Waiting(); len(waiting)+len(tables.Waiting) > 0 {
		t.Errorf("%q wait, and %d policies", waiting, len(tables.Waiting))
	}
}

// However often one comes back, who waits has its turn.
func TestTurns(t *testing.T) {
	q := newQueue()
	shop := debt{subject: &subject{namespace: "shop"}}
	for i := range 5 {
		q.add(debt{subject: &subject{namespace: "blue", key: fmt.Sprint("blue", i)}})
	}
	var order []string
	for range 6 {
		q.add(shop)
		q.advance, q.owner = true, q.owners()[0]
		order = append(order, q.owner)
		if d := q.take(); d.owner() != q.owner {
			t.Fatalf("%q was taken", d.owner())
		}
	}
	if want := []string{"blue", "shop", "blue", "shop", "blue", "shop"}; !slices.Equal(order, want) {
		t.Errorf("turns of %q, want %q", order, want)
	}
}

// everyoneWaits has what small policies are about wait as well, until the test ends.
func everyoneWaits(t *testing.T) {
	usual := smallSize
	smallSize = -1
	t.Cleanup(func() { smallSize = usual })
}

// shopPod is a pod of the node, in the shop, at weft00n.
func shopPod(n byte, labels string) *Local {
	return &Local{Interface: fmt.Sprintf("weft%03d", n), Namespace: "shop", Identity: &Identity{Namespace: "shop", Labels: labelsOf(labels)},
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 1, n})}}
}

// shopPolicy is about pods with these labels, and allows everything or nothing.
func shopPolicy(name, labels string, allow bool) *Policy {
	p := &Policy{Name: "NetworkPolicy shop/" + name, Tier: Isolating, Subject: Selector{Namespace: "shop", Pods: selectorOf(&labels)}, IsolatesIngress: true}
	if allow {
		p.Ingress = []Rule{{Origin: p.Name + " ingress[0]"}}
	}
	return p
}

// A set is called by its policies' names. Who waits keeps the rules of before, though
// the same policies make other rules for another by now.
func TestWhoWaitsKeepsItsRules(t *testing.T) {
	everyoneWaits(t)
	w := &World{Network: plan.DefaultNetwork, Namespaces: []*Namespace{{Name: "shop"}}, Local: []*Local{shopPod(1, "app=web"), shopPod(2, "app=db")}}
	w.Policies = []*Policy{shopPolicy("a", "", false), shopPolicy("b", "", false)}
	c := Compiler{Gradual: true}
	c.Compile(w)
	next := *w
	next.Policies = []*Policy{shopPolicy("a", "app=db", true), w.Policies[1]}
	c.Compile(&next)
	for turn := 0; len(c.Waiting()) > 0; turn++ {
		c.Advance("shop")
		if tables := c.Compile(&next); allows(tables, "10.1.1.2", 80) {
			t.Errorf("after turn %d weft001 may be reached, of which no policy ever said so:\n%s", turn, tables.planOf())
		}
	}
	var fresh Compiler
	last, same := c.Compile(&next), fresh.Compile(&next)
	if got, want := c.renumbered(last), fresh.renumbered(same); !got.Equal(want) {
		t.Errorf("the tables differ from those compiled anew:\n%s", want.Diff(got))
	}
}

// A pod with other labels keeps its rules until the new ones are worked out. Another
// that comes with these labels has never had those, and is allowed nothing.
func TestNobodyInheritsAnothersRules(t *testing.T) {
	everyoneWaits(t)
	w := &World{Network: plan.DefaultNetwork, Namespaces: []*Namespace{{Name: "shop"}}, Local: []*Local{shopPod(2, "app=old")}}
	w.Policies = []*Policy{shopPolicy("new", "app=new", false), shopPolicy("old", "app=old", true)}
	c := Compiler{Gradual: true}
	c.Compile(w)
	relabelled := *w
	relabelled.Local = []*Local{shopPod(2, "app=new")}
	tables := c.Compile(&relabelled)
	if p := tables.planOf(); len(c.Waiting()) == 0 {
		t.Fatalf("the pod does not wait:\n%s", p)
	}
	joined := relabelled
	joined.Local = []*Local{shopPod(1, "app=new"), relabelled.Local[0]}
	for _, advance := range []bool{false, true} {
		if advance {
			c.Advance("shop")
		}
		if tables = c.Compile(&joined); allows(tables, "10.1.1.3", 80) {
			t.Errorf("weft001 may be reached, of which no policy ever said so:\n%s", tables.planOf())
		}
	}
}

// Who comes to pods that wait for their first policy never had their rules, which were
// none: nothing is allowed, in either direction, whatever policies come meanwhile.
func TestANewPodOfWhoWaitsIsAllowedNothing(t *testing.T) {
	everyoneWaits(t)
	w := &World{Network: plan.DefaultNetwork, Namespaces: []*Namespace{{Name: "shop"}}, Local: []*Local{shopPod(2, "app=web")}}
	c := Compiler{Gradual: true}
	c.Compile(w)
	isolated := *w
	isolated.Policies = []*Policy{shopPolicy("in", "app=web", false)}
	c.Compile(&isolated)
	joined := isolated
	joined.Local = []*Local{shopPod(1, "app=web"), w.Local[0]}
	both := joined
	both.Policies = []*Policy{isolated.Policies[0], {Name: "NetworkPolicy shop/out", Tier: Isolating, Subject: Selector{Namespace: "shop"}, IsolatesEgress: true}}
	for _, world := range []*World{&joined, &both} {
		tables := c.Compile(world)
		e := tables.Endpoints["weft001"]
		for d, set := range map[plan.Direction]string{plan.Incoming: e.Ingress, plan.Outgoing: e.Egress} {
			if _, v, ok := tables.planOf().Verdict(set, d, 0, plan.TCP, 80); set == "" || !ok || v.Allow {
				t.Errorf("weft001 %s: %q, %v", d, set, v)
			}
		}
		if e := tables.Endpoints["weft002"]; e != (EndpointPolicies{}) {
			t.Errorf("weft002 has %v before its turn", e)
		}
		if !slices.Equal(tables.Waiting, world.Policies) {
			t.Errorf("%d policies are said to wait", len(tables.Waiting))
		}
	}
}

// Pods that get the same labels one after the other keep what they may, each its own.
func TestPodsRelabelledOneByOne(t *testing.T) {
	everyoneWaits(t)
	w := &World{Network: plan.DefaultNetwork, Namespaces: []*Namespace{{Name: "shop"}}, Local: []*Local{shopPod(1, "app=old"), shopPod(2, "app=older")}}
	w.Policies = []*Policy{shopPolicy("new", "app=new", true), shopPolicy("old", "app=old", true), shopPolicy("older", "app=older", false)}
	c := Compiler{Gradual: true}
	c.Compile(w)
	next := *w
	for i, p := range []*Local{shopPod(1, "app=new"), shopPod(2, "app=new")} {
		next.Local = slices.Clone(next.Local)
		next.Local[i] = p
		tables := c.Compile(&next)
		if !allows(tables, "10.1.1.9", 80) {
			t.Errorf("after %d changes weft001 lost what it may", i+1)
		}
		if _, v, _ := tables.planOf().Verdict(tables.Endpoints["weft002"].Ingress, plan.Incoming, 0, plan.TCP, 80); v.Allow {
			t.Errorf("after %d changes weft002 may be reached, of which no policy that holds says so", i+1)
		}
	}
	c.Advance("shop")
	if e := c.Compile(&next).Endpoints; e["weft001"] != e["weft002"] {
		t.Errorf("after their turn they have %v", e)
	}
}

// What one is owed first it gets first, whatever comes meanwhile, again and again.
func TestWhatIsOwedFirst(t *testing.T) {
	q := newQueue()
	first := debt{judge: &set{name: "shop/zzz", owner: "shop"}}
	again := debt{subject: &subject{namespace: "shop"}}
	q.add(again)
	q.add(first)
	q.add(debt{drop: &set{name: "shop/aaa", owner: "shop"}})
	for range 2 {
		q.advance, q.owner = true, "shop"
		if q.take() == first {
			return
		}
		q.add(again)
		q.add(debt{judge: &set{name: "shop/aaa", owner: "shop"}})
	}
	t.Error("what was owed for longer was not taken")
}

// What nobody has any more does not count against a namespace's verdicts, though it is
// not dropped yet.
func TestWhatNobodyHasDoesNotCount(t *testing.T) {
	everyoneWaits(t)
	most, small := maxOfNamespace, smallVerdicts
	t.Cleanup(func() { maxOfNamespace, smallVerdicts = most, small })
	maxOfNamespace, smallVerdicts = 36, 2
	w := &World{Network: plan.DefaultNetwork, Namespaces: []*Namespace{{Name: "shop"}}}
	for i := range byte(3) {
		labels := fmt.Sprintf("app=p%d", i)
		p := shopPolicy(fmt.Sprintf("p%d", i), labels, true)
		for j := range 10 {
			p.Ingress[0].Ports = append(p.Ingress[0].Ports, portOf(fmt.Sprintf("tcp/%d", 1000+2*j)))
		}
		w.Local, w.Policies = append(w.Local, shopPod(i+1, labels)), append(w.Policies, p)
	}
	c := Compiler{Gradual: true}
	c.Compile(w)
	next := *w
	next.Policies = append(slices.Clone(w.Policies), shopPolicy("z", "", false)) // which makes other sets for all
	for turn := 0; ; turn++ {
		tables := c.Compile(&next)
		if len(tables.Costly) > 0 {
			t.Errorf("turn %d: %d sets are shut", turn, len(tables.Costly))
		}
		for _, l := range w.Local {
			if _, v, _ := tables.planOf().Verdict(tables.Endpoints[l.Interface].Ingress, plan.Incoming, 0, plan.TCP, 1000); !v.Allow {
				t.Errorf("turn %d: %s lost what it may", turn, l.Interface)
			}
		}
		if len(c.Waiting()) == 0 {
			break
		}
		c.Advance("shop")
	}
}

// What an administrator denies is denied at once, however much a namespace is owed.
func TestAdministratorsDoNotWait(t *testing.T) {
	everyoneWaits(t)
	w := &World{Network: plan.DefaultNetwork, Namespaces: []*Namespace{{Name: "shop"}}, Local: []*Local{shopPod(1, "app=web"), shopPod(2, "app=db")}}
	w.Policies = []*Policy{shopPolicy("web", "app=web", true)}
	c := Compiler{Gradual: true}
	c.Compile(w)
	edited := *w
	edited.Policies = []*Policy{shopPolicy("web", "app=web", true)}
	if c.Compile(&edited); len(c.Waiting()) == 0 {
		t.Fatal("nothing waits")
	}
	deny := &Policy{Name: "ClusterNetworkPolicy deny", Tier: Admin, Subject: Selector{}, Ingress: []Rule{{Origin: "ClusterNetworkPolicy deny ingress[0]", Action: Deny}}}
	denied := edited
	denied.Policies = []*Policy{deny, edited.Policies[0]}
	tables := c.Compile(&denied)
	for name, e := range tables.Endpoints {
		if _, v, ok := tables.planOf().Verdict(e.Ingress, plan.Incoming, 0, plan.TCP, 80); !ok || v.Allow {
			t.Errorf("%s may be reached, by %v", name, v)
		}
	}
	if len(tables.Endpoints) != 2 {
		t.Errorf("%d endpoints are under policies", len(tables.Endpoints))
	}
}

// What changes of a resting namespace's policies waits, however small it is, and what
// others change does not. Its new pods do not wait, unless they come to one that does.
func TestWhoRestsWaits(t *testing.T) {
	blue := &Identity{Namespace: "blue"}
	w := &World{Network: plan.DefaultNetwork, Namespaces: []*Namespace{{Name: "blue"}, {Name: "shop"}},
		Local: []*Local{shopPod(1, "app=web"), {Interface: "weft009", Namespace: "blue", Identity: blue, Addresses: []netip.Addr{netip.MustParseAddr("10.1.1.9")}}}}
	c := Compiler{Gradual: true}
	c.Compile(w)
	c.Rest(map[string]bool{"shop": true})
	next := *w
	next.Policies = []*Policy{{Name: "NetworkPolicy blue/all", Tier: Isolating, Subject: Selector{Namespace: "blue"}, IsolatesIngress: true}, shopPolicy("all", "", false)}
	tables := c.Compile(&next)
	if _, waits := tables.Endpoints["weft001"]; waits || tables.Endpoints["weft009"].Ingress == "" {
		t.Errorf("%v, and shop rests", tables.Endpoints)
	}
	if waiting, hasty := c.Waiting(), c.Hasty(); !slices.Equal(waiting, []string{"shop"}) || !slices.Equal(hasty, []string{"blue"}) {
		t.Errorf("%q wait, and %q did not", waiting, hasty)
	}
	joined := next
	joined.Local = []*Local{w.Local[0], shopPod(2, "app=db"), w.Local[1]}
	if tables = c.Compile(&joined); tables.Endpoints["weft002"].Ingress == "" || allows(tables, "10.1.1.9", 80) {
		t.Errorf("%v, and weft002 is new", tables.Endpoints)
	}
	c.Advance("shop")
	if tables = c.Compile(&joined); tables.Endpoints["weft001"].Ingress == "" || len(c.Waiting()) > 0 {
		t.Errorf("%v after the turn", tables.Endpoints)
	}
}
