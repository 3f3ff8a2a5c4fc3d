package change_test

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/change"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// TestAgainst says what speaks against changes. The first line of a question is a comment
// with the plug-in that the cluster has, the one that it is to have, and what of the mix
// there is besides, or with "the end of" and the plug-in that is to leave a mix; then come
// the objects. With "on Kubernetes" at its end, plug-ins are in the form that they have
// there.
func TestAgainst(t *testing.T) {
	kinds := slices.Clone(api.Kinds)
	for _, k := range plugins.Kinds() {
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	golden.Answers(t, "testdata/against.txtar", func(t *testing.T, _, text string) string {
		first, _, _ := strings.Cut(strings.TrimPrefix(text, "# "), "\n")
		first, there := strings.CutSuffix(first, " on Kubernetes")
		first, end := strings.CutPrefix(first, "the end of ")
		find := plugins.Finder(func(k *registry.Kind) bool { return !there || k.Layout == nil })
		var named []plugin.Plugin
		for _, name := range strings.Fields(first) {
			p, err := find(name)
			if err != nil {
				t.Fatal(err)
			}
			named = append(named, p)
		}
		decoded, err := api.Decode([]byte(text), kinds)
		if err != nil {
			t.Fatal(err)
		}
		objects := map[*registry.Kind][]registry.Object{}
		for _, d := range decoded {
			objects[d.Kind] = append(objects[d.Kind], d.Object)
		}
		mix := append([]plugin.Plugin{named[0]}, named[2:]...)
		c := change.Change{To: named[1], Beside: mix, Before: mix, After: named[1:2]}
		if end {
			c = change.Change{Before: named, After: named[1:]}
		}
		c.Enforcers = plugins.Enforcers
		// It goes by nothing but the kinds that it says, and pods.
		read := c.Kinds()
		for k := range objects {
			if k != api.Pod && !slices.Contains(read, k) {
				delete(objects, k)
			}
		}
		o := c.Against(api.Effective(nil), registry.NewSnapshot(objects))
		var b strings.Builder
		for _, r := range o.Refusals {
			fmt.Fprintln(&b, "refused:", r)
		}
		for _, l := range o.Lacks {
			fmt.Fprintln(&b, "lacks:", l)
		}
		for _, l := range o.Clashes {
			fmt.Fprintln(&b, "clash:", l)
		}
		for _, e := range o.Effects {
			fmt.Fprintln(&b, "effect:", e)
		}
		if b.Len() == 0 {
			return "nothing\n"
		}
		return b.String()
	})
}

// TestFromNowhere has the cluster come from a plug-in that there is not: nobody knows
// which policies it enforced.
func TestFromNowhere(t *testing.T) {
	to, err := plugins.Get("flannel")
	if err != nil {
		t.Fatal(err)
	}
	c := change.Change{To: to, After: []plugin.Plugin{to}}
	if k := c.Kinds(); slices.Contains(k, api.NetworkPolicy) || !slices.Contains(k, api.Node) {
		t.Errorf("it reads %v", k)
	}
	if o := c.Against(api.Effective(nil), registry.Snapshot{}); len(o.Refusals) > 0 {
		t.Errorf("it is refused: %v", o.Refusals)
	}
}

// TestKindsToRead has the cluster come to a plug-in whose policies are of kinds that the
// one before does not read: that there are such kinds is seen before the change.
func TestKindsToRead(t *testing.T) {
	from, err := plugins.Get("flannel")
	if err != nil {
		t.Fatal(err)
	}
	to, err := plugins.Get("openshift-networkpolicy")
	if err != nil {
		t.Fatal(err)
	}
	read := change.Change{To: to, Beside: []plugin.Plugin{from}, Before: []plugin.Plugin{from}, After: []plugin.Plugin{to}}.Kinds()
	for _, k := range append(to.Kinds(), from.Kinds()...) {
		// Services are the same under either.
		if slices.Contains(read, k) == slices.Contains([]*registry.Kind{api.Pod, api.Service, api.EndpointSlice, service.GrantKind, api.AddressPoolKind, api.AddressGrantKind}, k) {
			t.Errorf("it reads %v, and %s", read, k.Plural)
		}
	}
}

// counting are objects that count how many were looked at.
type counting struct {
	registry.Objects
	looks int
}

func (c *counting) All(k *registry.Kind) iter.Seq[registry.Object] {
	return func(yield func(registry.Object) bool) {
		for o := range c.Objects.All(k) {
			if c.looks++; !yield(o) {
				return
			}
		}
	}
}

// TestManyNodesWithoutASubnet has half of the nodes have got a lease, as while the cluster
// prepares: what is asked of each of the others must not grow with their number.
func TestManyNodesWithoutASubnet(t *testing.T) {
	looks := func(nodes int) int {
		var text strings.Builder
		for i := range nodes {
			address := fmt.Sprintf("172.30.%d.%d", i/200, i%200+1)
			fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Node\nmetadata: {name: node%d, annotations: {weft.network/on-link: 172.30.0.0/16}}\nstatus: {addresses: [{type: InternalIP, address: %s}]}\n", i, address)
			if i%2 == 0 {
				fmt.Fprintf(&text, "---\napiVersion: weft.network/v1\nkind: FlannelLease\nmetadata: {name: 10.5.%d.0-24}\nspec: {PublicIP: %s, BackendType: host-gw}\n", i/2+1, address)
			}
		}
		text.WriteString("---\napiVersion: weft.network/v1\nkind: FlannelConfig\nmetadata: {name: config}\nspec: {Network: 10.5.0.0/16, SubnetLen: 24, Backend: {Type: host-gw}}\n")
		to, err := plugins.Get("flannel")
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := api.Decode([]byte(text.String()), to.Kinds())
		if err != nil {
			t.Fatal(err)
		}
		objects := map[*registry.Kind][]registry.Object{}
		for _, d := range decoded {
			objects[d.Kind] = append(objects[d.Kind], d.Object)
		}
		c := &counting{Objects: registry.NewSnapshot(objects)}
		if o := (change.Change{To: to}).Against(api.Effective(nil), c); len(o.Refusals)+len(o.Lacks) > 0 {
			t.Fatal(o)
		}
		return c.looks
	}
	if few, many := looks(50), looks(400); many > 9*few {
		t.Errorf("of 50 nodes it looks at %d objects, and of 400 at %d", few, many)
	}
}
