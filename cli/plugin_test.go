package cli

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plugin/change"
	"github.com/weftnet/weft/registry"
)

// TestProgress shows a change on a terminal, as a line that is written over, and
// elsewhere, as lines of what is new. What the controller says is a line on both.
func TestProgress(t *testing.T) {
	sights := []sight{
		{},
		{state: "Preparing", message: "nodes load flannel", late: []string{"node1 (loads flannel; its agent does not run; no way to node2)", "node2 (nothing reported)"},
			nodes: []pluginNodeStatus{{Name: "node1", State: "loads flannel; its agent does not run", Reason: "no way to node2"}, {Name: "node2", State: "nothing reported"}}},
		{state: "Preparing", message: "nodes load flannel", late: []string{"node1 (loads flannel)", "node2 (nothing reported)"},
			nodes: []pluginNodeStatus{{Name: "node1", State: "loads flannel"}, {Name: "node2", State: "nothing reported"}}},
		{state: "Switching", message: "nodes change", changed: 1, late: []string{"node2 (changes to \x1b[2J)"},
			nodes: []pluginNodeStatus{{Name: "node1", State: "done", Changed: true}, {Name: "node2", State: "changes to \x1b[2J"}}},
		{state: "Settled", changed: 2, nodes: []pluginNodeStatus{{Name: "node1", State: "done", Changed: true}, {Name: "node2", State: "done", Changed: true}}},
	}
	show := func(width int) string {
		var b strings.Builder
		p := newProgress(&b, width)
		for _, s := range sights {
			p.show(s)
		}
		p.end()
		p.end()
		return b.String()
	}
	for width, want := range map[int]string{
		0: "Preparing: nodes load flannel\nnode1: loads flannel; its agent does not run; no way to node2\nnode2: nothing reported\nnode1: loads flannel\n" +
			"Switching: nodes change\nnode1: done\nnode2: changes to \\u001b[2J\nnode2: done\n",
		200: "\r\x1b[K[....................] 0/0 asked for  " +
			"\r\x1b[KPreparing: nodes load flannel\n" +
			"\r\x1b[K[....................] 0/2 preparing  node1 (loads flannel; its agent does not run; no way to node2), node2 (nothing reported)" +
			"\r\x1b[K[....................] 0/2 preparing  node1 (loads flannel), node2 (nothing reported)" +
			"\r\x1b[KSwitching: nodes change\n" +
			"\r\x1b[K[##########..........] 1/2 switching  node2 (changes to \\u001b[2J)" +
			"\r\x1b[K[####################] 2/2 settled  \n",
		40: "\r\x1b[K[....................] 0/0 asked for  " +
			"\r\x1b[KPreparing: nodes load flannel\n" +
			"\r\x1b[K[....................] 0/2 preparing  n" +
			"\r\x1b[K[....................] 0/2 preparing  n" +
			"\r\x1b[KSwitching: nodes change\n" +
			"\r\x1b[K[##########..........] 1/2 switching  n" +
			"\r\x1b[K[####################] 2/2 settled  \n",
	} {
		if got := show(width); got != want {
			t.Errorf("%d characters wide it is\n%q, and not\n%q", width, got, want)
		}
	}
}

const old, other = "openshift-subnet", "flannel"

// staged is a cluster as its controller and the command that changes it see it.
type staged struct {
	config *api.ClusterConfig
	// counts says that the registry counts the changes of a spec.
	counts bool
	nodes  []string
	held   map[string]string
	// said is what nodes report, late are those that report no more.
	said map[string]string
	late []string
	// against is what speaks against changes to plug-ins.
	against map[string]change.Objections
}

// settled returns a cluster that has one plug-in.
func settled() *staged {
	c := &staged{config: &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: api.ClusterConfigSpec{Plugin: old}},
		nodes: []string{"node1", "node2"}, held: map[string]string{api.NodeLease("node1"): "node1"}, said: map[string]string{}, against: map[string]change.Objections{}}
	c.answer()
	c.report()
	c.answer()
	return c
}

func (c *staged) objects() registry.Snapshot {
	s := registry.Snapshot{api.ClusterConfigKind: {c.config}}
	for _, name := range c.nodes {
		s[api.Node] = append(s[api.Node], &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{api.PluginsAnnotation: c.said[name]}}})
	}
	return s
}

// report has the nodes do what they are told, and say so.
func (c *staged) report() {
	for _, name := range c.nodes {
		if !slices.Contains(c.late, name) {
			c.said[name] = api.PluginReport{Revision: c.config.Status.PluginRevision, Uses: api.PluginOf(c.config, name), Ready: api.PluginMix(c.config)}.Text()
		}
	}
}

// answer has the controller look.
func (c *staged) answer() {
	c.config = c.config.DeepCopyObject().(*api.ClusterConfig)
	c.config.Status = change.Next(change.Cluster{Config: c.config, Nodes: slices.Collect(registry.Each[*corev1.Node](c.objects(), api.Node)),
		Unknown: func(string) error { return nil },
		Against: func(q change.Question) (change.Objections, error) { return c.against[q.To], nil }})
}

// settle has controller and nodes act until they have nothing to do.
func (c *staged) settle() {
	for range 3 {
		c.answer()
		c.report()
	}
	c.answer()
}

// notReady has a node report no more, whose last word is that it has nothing but what all use.
func (c *staged) notReady(node string) {
	c.late = append(c.late, node)
	c.said[node] = api.PluginReport{Revision: c.config.Status.PluginRevision, Uses: old, Ready: []string{old}}.Text()
}

// ask has a user ask for a plug-in.
func (c *staged) ask(plugin string, nodes ...string) *changing {
	return c.askWith(plugin, changeFlags{nodes: nodes})
}

func (c *staged) askWith(plugin string, flags changeFlags) *changing {
	p := &changing{name: plugin, changeFlags: flags, before: api.Effective(c.config)}
	p.used = usedPlugin(p.before)
	c.config = c.config.DeepCopyObject().(*api.ClusterConfig)
	p.edit(c.config)
	if c.counts && !reflect.DeepEqual(c.config.Spec, p.before.Spec) {
		c.config.Generation++
	}
	return p
}

// show is what the command sees.
func (c *staged) show(p *changing) string {
	s := p.see(c.objects(), c.held)
	if !s.answered {
		return fmt.Sprint("not answered, done ", s.done)
	}
	return fmt.Sprintf("%s, %d of %d, done %v: %s", s.state, s.changed, len(s.nodes), s.done, strings.Join(s.waiting(), ", "))
}

// TestSee looks at changes just as they are asked for, as the controller answers, and as
// nodes report that they have changed, each before the controller does the next.
func TestSee(t *testing.T) {
	for what, test := range map[string]struct {
		begin func(*staged) *changing
		want  []string
	}{
		"to another": {func(c *staged) *changing { return c.ask(other) }, []string{
			"not answered, done false",
			"Preparing, 0 of 2, done false: node1 (loads flannel), node2 (loads flannel; its agent does not run)",
			"Preparing, 0 of 2, done false: node1 (ready for flannel), node2 (ready for flannel; its agent does not run)",
			"Switching, 0 of 2, done false: node1 (has not heard that it is to use flannel), node2 (has not heard that it is to use flannel; its agent does not run)",
			"Switching, 2 of 2, done false: node2 (done; its agent does not run)",
			"Settled, 2 of 2, done true: ",
		}},
		"some nodes": {func(c *staged) *changing { return c.ask(other, "node1") }, []string{
			"not answered, done false",
			"Preparing, 0 of 1, done false: node1 (loads flannel), node2 (loads flannel; its agent does not run)",
			"Preparing, 0 of 1, done false: node1 (ready for flannel)",
			"Switching, 0 of 1, done false: node1 (has not heard that it is to use flannel)",
			"Switching, 1 of 1, done false: ",
			"Waiting, 1 of 1, done true: ",
		}},
		"some nodes, and another that is away": {func(c *staged) *changing {
			c.late = []string{"node2"}
			return c.ask(other, "node1")
		}, []string{
			"not answered, done false",
			"Preparing, 0 of 1, done false: node1 (loads flannel), node2 (loads flannel; its agent does not run)",
			"Preparing, 0 of 1, done false: node2 (loads flannel; its agent does not run), node1 (ready for flannel)",
		}},
		"back while nodes prepare": {func(c *staged) *changing {
			c.ask(other)
			c.answer()
			return c.ask(old)
		}, []string{
			"not answered, done false",
			"Settled, 2 of 2, done true: ",
		}},
		"back from some nodes, one of which is away": {func(c *staged) *changing {
			c.ask(other, "node1")
			c.settle()
			c.late = []string{"node2"}
			return c.ask(old)
		}, []string{
			"not answered, done false",
			"Switching, 0 of 2, done false: node1 (has not heard that it is to use openshift-subnet), node2 (has not heard of the last step; its agent does not run)",
			"Switching, 1 of 2, done false: node2 (has not heard of the last step; its agent does not run)",
			"Switching, 1 of 2, done false: node2 (has not heard of the last step; its agent does not run)",
		}},
		"all, after some": {func(c *staged) *changing {
			c.ask(other, "node1")
			c.settle()
			return c.ask(other)
		}, []string{
			"not answered, done false",
			"Switching, 0 of 2, done false: node1 (has not heard of the last step), node2 (has not heard that it is to use flannel; its agent does not run)",
			"Switching, 2 of 2, done false: node2 (done; its agent does not run)",
			"Settled, 2 of 2, done true: ",
		}},
		"some, asked for again": {func(c *staged) *changing {
			c.ask(other, "node1")
			c.settle()
			return c.ask(other, "node1")
		}, []string{
			"Waiting, 1 of 1, done true: ",
		}},
		"all, after some, asked for again while one node is not ready": {func(c *staged) *changing {
			c.ask(other, "node1")
			c.settle()
			c.notReady("node2")
			c.ask(other)
			c.answer()
			return c.ask(other)
		}, []string{
			"Preparing, 1 of 2, done false: node2 (loads flannel; its agent does not run)",
		}},
		"only those that changed already, while others are to follow": {func(c *staged) *changing {
			c.ask(other, "node1")
			c.settle()
			c.notReady("node2")
			c.ask(other)
			c.answer()
			return c.ask(other, "node1")
		}, []string{
			"not answered, done false",
			"Waiting, 1 of 1, done true: ",
		}},
		"by force, while nodes prepare": {func(c *staged) *changing {
			c.ask(other)
			c.answer()
			return c.askWith(other, changeFlags{force: true})
		}, []string{
			"not answered, done false",
			"Switching, 0 of 2, done false: node1 (has not heard that it is to use flannel), node2 (has not heard that it is to use flannel; its agent does not run)",
		}},
		"back to what all use, after a refusal": {func(c *staged) *changing {
			c.against[other] = change.Objections{Refusals: []string{"a policy would be without effect"}}
			c.ask(other)
			c.answer()
			return c.ask(old)
		}, []string{
			"not answered, done false",
			"Settled, 2 of 2, done true: ",
		}},
		"all, after some, asked for twice before the controller looks": {func(c *staged) *changing {
			c.ask(other, "node1")
			c.settle()
			c.ask(other)
			return c.ask(other)
		}, []string{
			"not answered, done false",
			"Switching, 0 of 2, done false: node1 (has not heard of the last step), node2 (has not heard that it is to use flannel; its agent does not run)",
		}},
		"back while nodes prepare, asked for twice before the controller looks": {func(c *staged) *changing {
			c.ask(other)
			c.answer()
			c.ask(old)
			return c.ask(old)
		}, []string{
			"not answered, done false",
			"Settled, 2 of 2, done true: ",
		}},
		"back while nodes switch, asked for twice before the controller looks": {func(c *staged) *changing {
			c.ask(other)
			c.answer()
			c.report()
			c.answer()
			c.ask(old)
			return c.ask(old)
		}, []string{
			"not answered, done false",
			"Switching, 0 of 2, done false: node1 (has not heard of the last step), node2 (has not heard of the last step; its agent does not run)",
		}},
		"all, asked for twice, after other nodes than those that were forced": {func(c *staged) *changing {
			c.askWith(other, changeFlags{force: true, nodes: []string{"node1"}})
			c.answer()
			c.ask(other, "node2")
			c.answer()
			c.ask(other)
			c.answer()
			return c.ask(other)
		}, []string{
			"Preparing, 0 of 2, done false: node1 (loads flannel), node2 (loads flannel; its agent does not run)",
		}},
		"some, of what all use, which are all": {func(c *staged) *changing { return c.ask(old, "node1") }, []string{
			"Settled, 2 of 2, done true: ",
		}},
	} {
		c := settled()
		p := test.begin(c)
		var got []string
		for len(got) < len(test.want) {
			if got = append(got, c.show(p)); len(got)%2 == 1 {
				c.answer()
			} else {
				c.report()
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: it is\n%s\nand not\n%s", what, strings.Join(got, "\n"), strings.Join(test.want, "\n"))
		}
	}
}

// TestWhatIsLacking says at the end of a time what a change waited for: those that were not
// ready, be they to change or not, and none that was; and where all say that they have changed,
// the controller alone.
func TestWhatIsLacking(t *testing.T) {
	c := settled()
	c.late = []string{"node2"}
	p := c.ask(other, "node1")
	c.answer()
	c.report()
	c.answer()
	s := p.see(c.objects(), c.held)
	if got, want := s.lacking(), "node2 (loads flannel; its agent does not run); Preparing: "; !strings.HasPrefix(got, want) {
		t.Errorf("it lacks %q, and not %q", got, want)
	}
	if len(s.others) != 1 || s.others[0].Name != "node2" {
		t.Errorf("of the others there is %v", s.others)
	}
	c.late = nil
	c.report()
	c.answer()
	c.report()
	s = p.see(c.objects(), c.held)
	if got, want := s.lacking(), "all nodes that are to use it say that they do, and the controller has not said so yet"; got != want || len(s.others) > 0 {
		t.Errorf("it lacks %q, and not %q; of the others there is %v", got, want, s.others)
	}
}

// many returns a cluster of as many nodes that load a plug-in, which every second of them is
// to use, and the command that asked for it.
func many(nodes int) (*staged, *changing) {
	c := settled()
	c.nodes = nil
	var some []string
	for i := range nodes {
		name := fmt.Sprintf("ip-10-0-%03d-%03d.eu-central-1.compute.internal", i/256, i%256)
		c.held[api.NodeLease(name)] = name
		if c.nodes = append(c.nodes, name); i%2 == 0 {
			some = append(some, name)
		}
	}
	c.settle()
	p := c.ask(other, some...)
	c.answer()
	return c, p
}

// TestWaitingForMany has all nodes of a cluster be waited for: each is named once, whether it
// is to use the plug-in or keeps others from it, and none any more once it is done.
func TestWaitingForMany(t *testing.T) {
	c, p := many(1000)
	var want []string
	for _, name := range c.nodes {
		want = append(want, name+" (loads flannel)")
	}
	if got := p.see(c.objects(), c.held).waiting(); !slices.Equal(got, want) {
		t.Errorf("it waits for %d nodes, and not for each of %d once: %s", len(got), len(want), printable.Few(got, 0))
	}
	c.settle()
	if s := p.see(c.objects(), c.held); len(s.waiting()) > 0 || !s.done {
		t.Errorf("done: %t, and it waits for %s", s.done, printable.Few(s.waiting(), 0))
	}
}

// BenchmarkSee is what each picture of a change costs: eight times as much of eight times as
// many nodes, while they load the plug-in, and once those use it that are to.
func BenchmarkSee(b *testing.B) {
	for _, nodes := range []int{1000, 8000} {
		c, p := many(nodes)
		for _, stage := range []string{"loading", "changed"} {
			objects := c.objects()
			b.Run(fmt.Sprintf("%s/%d", stage, nodes), func(b *testing.B) {
				for b.Loop() {
					bar := newProgress(io.Discard, 80)
					bar.show(p.see(objects, c.held))
				}
			})
			c.settle()
		}
	}
}

// TestAnsweredIsWhatWasAsked has users ask for one thing after the other, at any stage of a
// change, and looks at each: what is an answer before the controller has looked is the same
// afterwards, and what it says then is one. So nobody waits for what has come already.
func TestAnsweredIsWhatWasAsked(t *testing.T) {
	refused := change.Objections{Refusals: []string{"a policy would be without effect"}}
	rapid.Check(t, func(t *rapid.T) {
		c := settled()
		c.nodes = append(c.nodes, "node3")
		c.counts = rapid.Bool().Draw(t, "counts")
		c.settle()
		said := func() string {
			condition := meta.FindStatusCondition(c.config.Status.Conditions, api.PluginChanged)
			return condition.Reason + ": " + condition.Message
		}
		// look has the controller look until it has nothing more to decide.
		look := func() {
			for before := ""; before != said(); {
				before = said()
				c.answer()
			}
		}
		for range rapid.IntRange(1, 8).Draw(t, "asks") {
			for range rapid.IntRange(0, 3).Draw(t, "steps") {
				c.late = rapid.SliceOfDistinct(rapid.SampledFrom(c.nodes), rapid.ID).Draw(t, "late")
				c.report()
				c.answer()
			}
			plugin := rapid.SampledFrom([]string{old, other, "openshift-networkpolicy"}).Draw(t, "plug-in")
			c.against[plugin] = change.Objections{}
			if rapid.Bool().Draw(t, "refused") {
				c.against[plugin] = refused
			}
			look()
			flags := changeFlags{force: rapid.IntRange(0, 4).Draw(t, "force") == 0,
				nodes: rapid.SliceOfNDistinct(rapid.SampledFrom(c.nodes), 0, 2, rapid.ID).Draw(t, "nodes")}
			p := c.askWith(plugin, flags)
			if rapid.Bool().Draw(t, "again") {
				// A registry that does not count cannot always tell whether the controller has looked.
				if !c.counts || rapid.Bool().Draw(t, "later") {
					look()
				}
				p = c.askWith(plugin, flags)
			}
			before, saw := said(), p.see(c.objects(), c.held)
			look()
			after := said()
			if saw.answered && before != after {
				t.Fatalf("%q was no answer, as that is %q", before, after)
			}
			if now := p.see(c.objects(), c.held); !now.answered && !now.refused {
				t.Fatalf("%q is the answer, and not taken for one", after)
			}
		}
	})
}
