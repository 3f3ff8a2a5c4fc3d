package policy

import (
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
	size, verdicts, most, together := smallSize, smallVerdicts, maxVerdicts, maxOfNamespace
	defer func() { smallSize, smallVerdicts, maxVerdicts, maxOfNamespace = size, verdicts, most, together }()
	rapid.Check(t, func(t *rapid.T) {
		defer directly(t)()
		smallSize = rapid.IntRange(0, 6).Draw(t, "small size")
		smallVerdicts = rapid.IntRange(0, 3).Draw(t, "small verdicts")
		maxVerdicts = rapid.SampledFrom([]int{most, most, 8, 4}).Draw(t, "most verdicts")
		maxOfNamespace = rapid.SampledFrom([]int{together, together, 8, 4}).Draw(t, "most verdicts of a namespace")
		known := worldMaker{}
		spec := drawWorld(t)
		c := Compiler{Gradual: rapid.IntRange(0, 3).Draw(t, "gradually") > 0}
		since := []*World{known.of(spec)}
		c.Compile(since[0])
		if c.Unfinished() {
			t.Fatal("the first world was not compiled whole")
		}
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			for range rapid.IntRange(1, 3).Draw(t, "edits") {
				spec.edit(t, editKinds.Draw(t, "kind"))
			}
			t.Logf("world:\n%s", spec)
			w := known.of(spec)
			since = append(since, w)
			checkAllowed(t, since, c.Compile(w))
			calls := 0
			for finish := rapid.Bool().Draw(t, "finish"); finish && c.Unfinished(); calls++ {
				c.Advance()
				if calls > 4*len(someInterfaces)*len(since) {
					t.Fatalf("not finished after %d calls", calls)
				}
				checkAllowed(t, since, c.Compile(w))
			}
			if c.Unfinished() {
				if rapid.Bool().Draw(t, "advance") {
					c.Advance()
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
			if got, want := tables.planOf(), same.planOf(); !got.Equal(want) || len(tables.Costly) != len(same.Costly) {
				t.Fatalf("the tables differ from those compiled anew:\n%s", want.Diff(got))
			}
			if got, want := c.state.size(), fresh.state.size(); got != want {
				t.Fatalf("the compiler holds\n%s, one that never saw another world\n%s", got, want)
			}
		}
	})
}

// checkAllowed fails if the tables allow a pod of the last world something that none
// of its policies allows as they were in one of the worlds, towards who is there now.
func checkAllowed(t *rapid.T, since []*World, tables Tables) {
	p := &plan.Plan{Local: plan.Local{Node: "node1"}, Tags: tables.Tags, Within: tables.Within, Verdicts: tables.Verdicts}
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
			var versions [][]Applied
			for _, at := range since {
				i := slices.IndexFunc(at.Local, func(o *Local) bool { return o.Interface == l.Interface && o.Identity != nil })
				if i >= 0 {
					versions = append(versions, Applicable(at.Policies, at.Local[i].Identity, at.labelsOf(at.Local[i].Namespace), d))
				}
			}
			for _, text := range slices.Concat(someAddresses, otherAddresses) {
				a := netip.MustParseAddr(text)
				peer := w.partyAt(a)
				_, tagging, _ := p.TagOf(w.Network, a)
				for _, protocol := range probed {
					for _, port := range probedPorts {
						if !protocol.HasPorts() {
							port = 0
						}
						if set != "" {
							if _, got, ok := p.Verdict(set, d, tagging.Tag, protocol, port); !ok || !got.Allow {
								continue
							}
						}
						if !slices.ContainsFunc(versions, func(rules []Applied) bool {
							destination := l.Identity
							if d == plan.Outgoing {
								destination = peer.Identity
							}
							return len(rules) == 0 || readDecision(Resolve(rules, peer, destination), protocol, port).Allow
						}) && (l.Identity != nil || set != "") {
							t.Fatalf("%s %s, peer %s (tag %d), %s port %d is allowed, which it was by no version\n%s", l.Interface, d, a, tagging.Tag, protocol, port, p)
						}
					}
				}
			}
		}
	}
}
