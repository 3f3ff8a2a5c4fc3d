package change

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
)

// TestFound loses the status of clusters of which some nodes use one plug-in and some another,
// beside nodes that say nothing, and such as came since and began with the default. No node
// that was told what to use changes to what nobody asks for. One of which nothing is asked, as
// of others, changes only to what most of such use. Where nobody asks for anything, who was told
// nothing decides nothing. What is said of the cluster meanwhile is
// what the controller writes.
func TestFound(t *testing.T) {
	unknown := known("a b " + api.DefaultPlugin)
	rapid.Check(t, func(t *rapid.T) {
		var nodes, speaking []*corev1.Node
		used := make(map[string]string)
		for i := range rapid.IntRange(2, 7).Draw(t, "nodes") {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node", i)}}
			nodes = append(nodes, node)
			r := api.PluginReport{}
			switch what := rapid.SampledFrom([]string{"a", "b", "new", "silent"}).Draw(t, node.Name); what {
			case "silent":
				continue
			case "new":
				r.Uses, r.Ready = api.DefaultPlugin, []string{api.DefaultPlugin}
			default:
				r.Uses, r.Ready, r.Revision = what, []string{"a", "b"}, 5
				used[node.Name] = what
				speaking = append(speaking, node)
			}
			node.Annotations = map[string]string{api.PluginsAnnotation: r.Text()}
		}
		if len(speaking) < 2 {
			return // who speaks alone is not believed
		}
		lost := &api.ClusterConfig{Spec: api.ClusterConfigSpec{Plugin: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "spec")}}
		for _, node := range nodes {
			if rapid.Bool().Draw(t, node.Name+" is named") {
				lost.Spec.PluginNodes = append(lost.Spec.PluginNodes, node.Name)
			}
		}
		named := setOf(lost.Spec.PluginNodes)
		some := lost.Spec.Plugin != "" && len(named) > 0
		others := make(map[string]int)
		for node, uses := range used {
			if !named[node] {
				others[uses]++
			}
		}
		config := Config(lost, slices.Values(nodes), unknown)
		for node, before := range used {
			uses := api.PluginOf(config, node)
			if some && !named[node] {
				if uses != before && (others[uses] < others[before] || others[uses] == others[before] && uses == lost.Spec.Plugin) {
					t.Errorf("%s used %s, as %d that are not named, and is to use %s, as %d", node, before, others[before], uses, others[uses])
				}
				continue
			}
			if uses != before && uses != lost.Spec.Plugin {
				t.Errorf("%s used %s, and is to use %s, which nobody asked for", node, before, uses)
			}
		}
		if lost.Spec.Plugin == "" {
			if of := Config(lost, slices.Values(speaking), unknown); of.Status.Plugin != config.Status.Plugin || of.Status.PreparedPlugin != config.Status.PreparedPlugin {
				t.Errorf("those that were told something use %s and %s, and others make that %s and %s",
					of.Status.Plugin, of.Status.PreparedPlugin, config.Status.Plugin, config.Status.PreparedPlugin)
			}
		}
		written := Next(Cluster{Config: lost, Nodes: nodes, Unknown: unknown, Against: unopposed, Now: metav1.NewTime(began)})
		if got, want := fmt.Sprint(written.Plugin, written.Plugins, written.PreparedPlugin, written.PluginNodes, written.LoadingPlugins),
			fmt.Sprint(config.Status.Plugin, config.Status.Plugins, config.Status.PreparedPlugin, config.Status.PluginNodes, config.Status.LoadingPlugins); got != want {
			t.Errorf("the controller writes %s, and it is said that %s", got, want)
		}
		as := &api.ClusterConfig{Spec: lost.Spec, Status: written}
		if wanted, some := api.AskedPlugin(as); wanted != config.Spec.Plugin || !slices.Equal(some, config.Spec.PluginNodes) || written.DecidedWish != api.Wish(as) {
			t.Errorf("it asks for %s on %v, and it is said that for %s on %v; the controller answers %q", wanted, some, config.Spec.Plugin, config.Spec.PluginNodes, written.DecidedWish)
		}
	})
}

// TestFoundOfFew says what a cluster uses whose status is lost, where that is not what each
// node uses.
func TestFoundOfFew(t *testing.T) {
	for what, test := range map[string]struct {
		asked string
		some  []string
		// said are reports, in order of the nodes: "revision uses ready...", or nothing.
		said []string
		want string // Plugin, PreparedPlugin, PluginNodes
	}{
		"nobody says anything":                       {"", nil, []string{"", ""}, "  []"},
		"nobody is named":                            {"a", nil, nil, "  []"},
		"nobody was told anything":                   {"", nil, []string{"0 a a", "", ""}, "a a []"},
		"nobody uses any":                            {"", nil, []string{"0 - b", "0 - b a"}, "b b []"},
		"what is asked for is not known":             {"x", nil, []string{"5 b b", "", ""}, "b b []"},
		"what is used is not known":                  {"", nil, []string{"5 x x", "5 x x", "5 b b"}, "b b []"},
		"one alone speaks of what it uses":           {"", nil, []string{"5 b b", "5 a a", "5 a a"}, "a a []"},
		"most use what is asked for on them":         {"b", []string{"node0", "node1"}, []string{"5 b a b", "5 b a b", "5 a a b"}, "a b [node0 node1]"},
		"most say nothing, and are not asked":        {"b", []string{"node0"}, []string{"5 b a b", "5 a a b", "", "", ""}, "a b [node0]"},
		"all use what is asked for on one":           {"b", []string{"node0"}, []string{"5 b b", "5 b b"}, "b b []"},
		"those say nothing of whom it is not asked":  {"b", []string{"node0"}, []string{"5 b a b", ""}, "b b []"},
		"of the others as many use each":             {"a", []string{"node0"}, []string{"5 a a b", "5 a a b", "5 b a b"}, "b a [node0 node1]"},
		"one says that it was told something else":   {"", nil, []string{"0 a a", "0 a a", "1 b b"}, "a a []"},
		"one was told so, and has what others have":  {"", nil, []string{"0 a a b", "0 a a b", "1 b a b"}, "a b [node2]"},
		"one alone was told what is asked of it":     {"b", []string{"node0"}, []string{"1 b b", "0 a a", "0 a a"}, "a a []"},
		"one alone speaks whom nothing is asked of":  {"b", []string{"node0", "node1"}, []string{"0 a a", "0 a a", "0 c c"}, "a a []"},
		"one was told, and the others say nothing":   {"", nil, []string{"5 b b", "", ""}, "b b []"},
		"each alone speaks of what it uses":          {"", nil, []string{"0 b b", "5 c c"}, "b b []"},
		"one alone uses what it speaks of":           {"", nil, []string{"0 b b", "0 - a"}, "b b []"},
		"two were told, and more have come":          {"", nil, []string{"5 b b", "5 b b", "0 a a", "0 a a", "0 a a"}, "b b []"},
		"others use what they were not asked to use": {"a", nil, []string{"5 b a b", "5 b a b", "5 a a b"}, "b a [node2]"},
		"each alone, one of what is asked for":       {"a", nil, []string{"5 a a", "5 b b"}, "a a []"},
		"each alone, one of what is asked of it":     {"a", []string{"node0"}, []string{"5 a a", "5 b b", ""}, "a a []"},
		"some use what is not asked for":             {"c", nil, []string{"5 b a b", "5 a a b", "5 a a b"}, "a a []"},
	} {
		var nodes []*corev1.Node
		for i, text := range test.said {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node", i)}}
			if words := strings.Fields(text); len(words) > 0 {
				r := api.PluginReport{Uses: words[1], Ready: words[2:]}
				if words[1] == "-" {
					r.Uses = ""
				}
				r.Revision, _ = strconv.ParseInt(words[0], 10, 64)
				node.Annotations = map[string]string{api.PluginsAnnotation: r.Text()}
			}
			nodes = append(nodes, node)
		}
		s := Found(api.ClusterConfigSpec{Plugin: test.asked, PluginNodes: test.some}, slices.Values(nodes), known("a b c"))
		if got := fmt.Sprint(s.Plugin, " ", s.PreparedPlugin, " ", s.PluginNodes); got != test.want {
			t.Errorf("%s: it is %s, and not %s", what, got, test.want)
		}
	}
}

// TestFoundOfMany has more nodes use another plug-in than a status names. Those that it names are
// the first in order, and the rest come to what most use, which all load.
func TestFoundOfMany(t *testing.T) {
	var nodes []*corev1.Node
	for i := range 2*api.MaxChangedNodes + 3 {
		r := api.PluginReport{Revision: 5, Uses: "a", Ready: []string{"a", "b"}}
		if i <= api.MaxChangedNodes {
			r.Uses = "b"
		}
		nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%05d", i), Annotations: map[string]string{api.PluginsAnnotation: r.Text()}}})
	}
	config := Config(&api.ClusterConfig{}, slices.Values(nodes), known("a b"))
	if n := len(config.Status.PluginNodes); n != api.MaxChangedNodes {
		t.Errorf("the status names %d nodes, and not %d", n, api.MaxChangedNodes)
	}
	uses := api.PluginsOf(config)
	for i, want := range map[int]string{0: "b", api.MaxChangedNodes - 1: "b", api.MaxChangedNodes: "a", api.MaxChangedNodes + 1: "a"} {
		if got := uses(nodes[i].Name); got != want {
			t.Errorf("%s is to use %s, and not %s", nodes[i].Name, got, want)
		}
	}
	if mix := api.PluginMix(config); !slices.Equal(mix, []string{"a", "b"}) {
		t.Errorf("all load %v", mix)
	}
}
