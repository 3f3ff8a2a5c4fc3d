package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin/change"
	"github.com/weftnet/weft/registry"
)

// TestProgress shows a change on a terminal, as a line that is written over, and
// elsewhere, as lines of what is new. What the controller says is a line on both.
func TestProgress(t *testing.T) {
	sights := []sight{
		{},
		{state: "Preparing", message: "nodes load flannel", nodes: []pluginNodeStatus{{Name: "node1", State: "loads flannel; its agent does not run", Reason: "no way to node2"}, {Name: "node2", State: "nothing reported"}}},
		{state: "Preparing", message: "nodes load flannel", nodes: []pluginNodeStatus{{Name: "node1", State: "loads flannel"}, {Name: "node2", State: "nothing reported"}}},
		{state: "Switching", message: "nodes change", changed: 1, nodes: []pluginNodeStatus{{Name: "node1", State: "done", Changed: true}, {Name: "node2", State: "changes to \x1b[2J"}}},
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

// TestSee looks at changes just as they are asked for, as the controller answers, and as
// nodes report that they have changed, each before the controller does the next.
func TestSee(t *testing.T) {
	const old, other = "openshift-subnet", "flannel"
	type cluster struct {
		config *api.ClusterConfig
		nodes  []string
		held   map[string]string
		// said is what nodes report, late are those that report no more.
		said map[string]string
		late []string
	}
	objects := func(c *cluster) registry.Snapshot {
		s := registry.Snapshot{api.ClusterConfigKind: {c.config}}
		for _, name := range c.nodes {
			s[api.Node] = append(s[api.Node], &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{api.PluginsAnnotation: c.said[name]}}})
		}
		return s
	}
	report := func(c *cluster) {
		for _, name := range c.nodes {
			if !slices.Contains(c.late, name) {
				c.said[name] = api.PluginReport{Revision: c.config.Status.PluginRevision, Uses: api.PluginOf(c.config, name), Ready: api.PluginMix(c.config)}.Text()
			}
		}
	}
	answer := func(c *cluster) {
		c.config = c.config.DeepCopyObject().(*api.ClusterConfig)
		c.config.Status = change.Next(change.Cluster{Config: c.config, Nodes: slices.Collect(registry.Each[*corev1.Node](objects(c), api.Node)),
			Unknown: func(string) error { return nil },
			Against: func(change.Question) (change.Objections, error) { return change.Objections{}, nil }})
	}
	settled := func() *cluster {
		c := &cluster{config: &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: api.ClusterConfigSpec{Plugin: old}},
			nodes: []string{"node1", "node2"}, held: map[string]string{api.NodeLease("node1"): "node1"}, said: map[string]string{}}
		answer(c)
		report(c)
		answer(c)
		return c
	}
	ask := func(c *cluster, plugin string, nodes ...string) *changing {
		c.config = c.config.DeepCopyObject().(*api.ClusterConfig)
		p := &changing{name: plugin, changeFlags: changeFlags{nodes: nodes}, asked: meta.FindStatusCondition(c.config.Status.Conditions, api.PluginChanged)}
		p.edit(c.config)
		return p
	}
	show := func(c *cluster, p *changing) string {
		s := p.see(objects(c), c.held)
		if !s.answered {
			return fmt.Sprint("not answered, done ", s.done)
		}
		return fmt.Sprintf("%s, %d of %d, done %v: %s", s.state, s.changed, len(s.nodes), s.done, strings.Join(s.waiting(), ", "))
	}
	for what, test := range map[string]struct {
		begin func(*cluster) *changing
		want  []string
	}{
		"to another": {func(c *cluster) *changing { return ask(c, other) }, []string{
			"not answered, done false",
			"Preparing, 0 of 2, done false: node1 (loads flannel), node2 (loads flannel; its agent does not run)",
			"Preparing, 0 of 2, done false: node1 (ready for flannel), node2 (ready for flannel; its agent does not run)",
			"Switching, 0 of 2, done false: node1 (has not heard that it is to use flannel), node2 (has not heard that it is to use flannel; its agent does not run)",
			"Switching, 2 of 2, done false: node2 (done; its agent does not run)",
			"Settled, 2 of 2, done true: ",
		}},
		"some nodes": {func(c *cluster) *changing { return ask(c, other, "node1") }, []string{
			"not answered, done false",
			"Preparing, 0 of 1, done false: node1 (loads flannel)",
			"Preparing, 0 of 1, done false: node1 (ready for flannel)",
			"Switching, 0 of 1, done false: node1 (has not heard that it is to use flannel)",
			"Switching, 1 of 1, done false: ",
			"Waiting, 1 of 1, done true: ",
		}},
		"back while nodes prepare": {func(c *cluster) *changing {
			ask(c, other)
			answer(c)
			return ask(c, old)
		}, []string{
			"not answered, done false",
			"Switching, 0 of 2, done false: node1 (has not heard of the last step), node2 (has not heard of the last step; its agent does not run)",
			"Switching, 2 of 2, done false: node2 (done; its agent does not run)",
			"Settled, 2 of 2, done true: ",
		}},
		"back from some nodes, one of which is away": {func(c *cluster) *changing {
			ask(c, other, "node1")
			for range 3 {
				answer(c)
				report(c)
			}
			answer(c)
			c.late = []string{"node2"}
			return ask(c, old)
		}, []string{
			"not answered, done false",
			"Switching, 0 of 2, done false: node1 (has not heard that it is to use openshift-subnet), node2 (has not heard of the last step; its agent does not run)",
			"Switching, 1 of 2, done false: node2 (has not heard of the last step; its agent does not run)",
			"Switching, 1 of 2, done false: node2 (has not heard of the last step; its agent does not run)",
		}},
	} {
		c := settled()
		p := test.begin(c)
		var got []string
		for len(got) < len(test.want) {
			if got = append(got, show(c, p)); len(got)%2 == 1 {
				answer(c)
			} else {
				report(c)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: it is\n%s\nand not\n%s", what, strings.Join(got, "\n"), strings.Join(test.want, "\n"))
		}
	}
}
