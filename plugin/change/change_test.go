package change

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/registry"
)

// TestStories goes through changes line by line, and writes down what the status
// becomes where that is something else than before:
//
//	spec PLUGIN [NODE...]   what the user asks for; "-", or nothing at all, is an empty plug-in
//	force PLUGIN            the annotation; without a plug-in it goes
//	node NAME [REPORT]      a Node with what its agent says; "is ready" is the report of
//	                        one that does all that the status says
//	gone NAME               its end
//	away [NAME...]          those whose agents do not run, of which only a force asks
//	patience, impatience    whether a force still waits for nodes whose agents run
//	refused TEXT, lack TEXT what speaks against changes; without text nothing does
//	needed NAME [TEXT]      what speaks against the end of a plug-in
//	unread [TEXT]           why neither can be read
//	made NAME...            what others have left behind, of the Nodes of these names
//	lost                    the status is lost
func TestStories(t *testing.T) {
	golden.Answers(t, "testdata/stories.txtar", func(t *testing.T, _, text string) string {
		var b strings.Builder
		config := &api.ClusterConfig{}
		nodes := map[string]*corev1.Node{}
		var objections Objections
		needed := map[string][]string{}
		var clashes, made []string
		var away map[string]bool
		var unread error
		patient := false
		for line := range strings.Lines(text) {
			words := strings.Fields(line)
			if len(words) == 0 {
				continue
			}
			rest := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), words[0]))
			words = append(words[1:], "")
			switch verb, _, _ := strings.Cut(line, " "); strings.TrimSpace(verb) {
			case "spec":
				config.Spec.Plugin, config.Spec.PluginNodes = strings.TrimPrefix(words[0], "-"), slices.Clone(words[1:max(1, len(words)-1)])
				config.Generation++
			case "force":
				config.Annotations = map[string]string{api.ForcePluginAnnotation: rest}
			case "node":
				report := strings.TrimSpace(strings.TrimPrefix(rest, words[0]))
				if report == "is ready" {
					report = api.PluginReport{Revision: config.Status.PluginRevision, Uses: api.PluginOf(config, words[0]), Ready: api.PluginMix(config)}.Text()
				}
				nodes[words[0]] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: words[0], Annotations: map[string]string{api.PluginsAnnotation: report}}}
			case "away":
				away = setOf(words[:len(words)-1])
			case "patience", "impatience":
				patient = strings.TrimSpace(line) == "patience"
			case "gone":
				delete(nodes, words[0])
			case "refused":
				objections.Refusals = addOrEmpty(objections.Refusals, rest)
			case "lack":
				objections.Lacks = addOrEmpty(objections.Lacks, rest)
			case "clash":
				clashes = addOrEmpty(clashes, rest)
			case "needed":
				needed[words[0]] = addOrEmpty(nil, strings.TrimSpace(strings.TrimPrefix(rest, words[0])))
			case "unread":
				if unread = nil; rest != "" {
					unread = errors.New(rest)
				}
			case "made":
				made = words[:len(words)-1]
			case "lost":
				config.Status = api.ClusterConfigStatus{}
			default:
				t.Fatalf("what is %q?", line)
			}
			fmt.Fprintf(&b, "> %s", line)
			asked := map[string]bool{}
			for rounds := 0; ; rounds++ {
				before := config.DeepCopyObject().(*api.ClusterConfig).Status
				var all []*corev1.Node
				for _, name := range slices.Sorted(maps.Keys(nodes)) {
					all = append(all, nodes[name])
				}
				config.Status = Next(Cluster{Config: config, Nodes: all, Unknown: unknown, Now: metav1.NewTime(began),
					Away: func() map[string]bool { return away }, Patient: func() bool { return patient },
					Against: func(q Question) (Objections, error) {
						if q.To != "" {
							asked["a change to "+q.To] = true
							return objections, unread
						}
						if q.Only != "" {
							return Objections{Made: map[*registry.Kind][]string{api.HostSubnet: made}}, unread
						}
						if len(q.Before) == 0 {
							return Objections{Clashes: clashes}, unread
						}
						asked[fmt.Sprintf("the end of %s beside %s", q.Before[0], strings.Join(q.After, ","))] = true
						return Objections{Refusals: needed[q.Before[0]]}, unread
					}})
				if show(before) == show(config.Status) {
					break
				}
				b.WriteString(show(config.Status))
				if rounds == 5 {
					t.Fatalf("it finds no end after %q:\n%s", line, &b)
				}
			}
			for _, what := range slices.Sorted(maps.Keys(asked)) {
				fmt.Fprintf(&b, "  (what speaks against %s was asked)\n", what)
			}
		}
		return b.String()
	})
}

// TestKnown has Next know what was found a while ago: it says how far the change is by that,
// and has nodes do nothing by it.
func TestKnown(t *testing.T) {
	node := func(name string, ready ...string) *corev1.Node {
		report := api.PluginReport{Revision: 2, Uses: "openshift-subnet", Ready: ready}
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{api.PluginsAnnotation: report.Text()}}}
	}
	refused := Objections{Refusals: []string{"policies"}}
	for what, test := range map[string]struct {
		first         []string // asked for
		used          []string // told so already
		known, now    Objections
		ready         []string
		want          string
		revision      int64
		asked, unread bool
	}{
		"not all are ready":               {want: api.PluginPreparing, revision: 2, now: refused},
		"it was refused":                  {want: api.PluginRefused, revision: 2, known: refused, ready: []string{"flannel"}},
		"nothing speaks against it still": {want: api.PluginSwitching, revision: 3, ready: []string{"flannel"}, asked: true},
		"something came up":               {want: api.PluginRefused, revision: 2, now: refused, ready: []string{"flannel"}, asked: true},
		"more are to follow":              {first: []string{"node1", "node2"}, used: []string{"node1"}, want: api.PluginRefused, revision: 2, now: refused, ready: []string{"flannel"}, asked: true},
		"it cannot be read":               {want: api.PluginWaiting, revision: 2, ready: []string{"flannel"}, asked: true, unread: true},
	} {
		c := &api.ClusterConfig{Spec: api.ClusterConfigSpec{Plugin: "flannel", PluginNodes: test.first}, Status: api.ClusterConfigStatus{
			Plugin: "openshift-subnet", Plugins: []string{"flannel", "openshift-subnet"}, PluginRevision: 2}}
		if c.Status.LoadingPlugins = []string{"flannel"}; len(test.used) > 0 {
			c.Status.PreparedPlugin, c.Status.PluginNodes, c.Status.LoadingPlugins = "flannel", test.used, nil
		}
		asked := false
		status := Next(Cluster{Config: c, Nodes: []*corev1.Node{node("node1", "flannel"), node("node2", test.ready...)}, Unknown: unknown, Now: metav1.NewTime(began),
			Known: func(q Question) (Objections, bool) { return test.known, q.To != "" },
			Against: func(q Question) (Objections, error) {
				if q.To == "" {
					return Objections{}, nil
				}
				if asked = true; test.unread {
					return Objections{}, errors.New("the registry cannot be reached")
				}
				return test.now, nil
			}})
		if got := meta.FindStatusCondition(status.Conditions, api.PluginChanged).Reason; got != test.want || status.PluginRevision != test.revision || asked != test.asked || !slices.Equal(status.PluginNodes, test.used) {
			t.Errorf("%s: it is %s at revision %d, with nodes %v, and it was asked anew: %v", what, got, status.PluginRevision, status.PluginNodes, asked)
		}
	}
}

// TestBack takes changes back at each stage.
func TestBack(t *testing.T) {
	for what, test := range map[string]struct {
		plugin string
		nodes  []string
		status api.ClusterConfigStatus
		want   string
	}{
		"nothing is known":      {"b", nil, api.ClusterConfigStatus{}, ""},
		"settled":               {"a", nil, api.ClusterConfigStatus{Plugin: "a", PreparedPlugin: "a", Plugins: []string{"a"}}, "a"},
		"by default":            {"", nil, api.ClusterConfigStatus{Plugin: api.DefaultPlugin, PreparedPlugin: api.DefaultPlugin}, api.DefaultPlugin},
		"refused":               {"b", nil, api.ClusterConfigStatus{Plugin: "a", Plugins: []string{"a"}}, "a"},
		"preparing":             {"b", nil, api.ClusterConfigStatus{Plugin: "a", Plugins: []string{"a", "b"}, LoadingPlugins: []string{"b"}}, "a"},
		"some nodes":            {"b", []string{"node1"}, api.ClusterConfigStatus{Plugin: "a", Plugins: []string{"a", "b"}, PreparedPlugin: "b"}, "a"},
		"retiring":              {"b", nil, api.ClusterConfigStatus{Plugin: "b", PreparedPlugin: "b", Plugins: []string{"a", "b"}, PreviousPlugin: "a"}, "a"},
		"retiring, and a third": {"b", nil, api.ClusterConfigStatus{Plugin: "b", PreparedPlugin: "b", Plugins: []string{"a", "b", "c"}, PreviousPlugin: "c"}, "c"},
		"to a third":            {"c", nil, api.ClusterConfigStatus{Plugin: "b", Plugins: []string{"a", "b", "c"}, PreviousPlugin: "a", LoadingPlugins: []string{"c"}}, "b"},
		"taken back already":    {"a", nil, api.ClusterConfigStatus{Plugin: "a", PreparedPlugin: "a", Plugins: []string{"a", "b"}, TakenBack: true}, "a"},
		"from what has left":    {"b", nil, api.ClusterConfigStatus{Plugin: "b", PreparedPlugin: "b", Plugins: []string{"b", "c"}}, ""},
		"retiring, and of all some are asked for":       {"b", []string{"node1"}, api.ClusterConfigStatus{Plugin: "b", PreparedPlugin: "b", Plugins: []string{"a", "b"}, PreviousPlugin: "a"}, "a"},
		"retiring, and some are to come back":           {"a", []string{"node1"}, api.ClusterConfigStatus{Plugin: "b", Plugins: []string{"a", "b"}, PreviousPlugin: "a"}, "b"},
		"taken back, and not taken up":                  {"a", nil, api.ClusterConfigStatus{Plugin: "b", PreparedPlugin: "b", Plugins: []string{"a", "b"}, PreviousPlugin: "a"}, "a"},
		"taken back, while nodes prepare":               {"a", nil, api.ClusterConfigStatus{Plugin: "b", Plugins: []string{"a", "b"}, PreviousPlugin: "a"}, "a"},
		"taken back from a third, and not taken up":     {"b", nil, api.ClusterConfigStatus{Plugin: "b", Plugins: []string{"a", "b", "c"}, PreviousPlugin: "a", LoadingPlugins: []string{"c"}}, "b"},
		"taken back from a third that is to leave yet":  {"b", nil, api.ClusterConfigStatus{Plugin: "b", PreparedPlugin: "b", Plugins: []string{"a", "b", "c"}, PreviousPlugin: "a", LoadingPlugins: []string{"c"}}, "b"},
		"taken back from a third, which some nodes use": {"b", nil, api.ClusterConfigStatus{Plugin: "b", PreparedPlugin: "c", PluginNodes: []string{"node1"}, Plugins: []string{"a", "b", "c"}, PreviousPlugin: "a"}, "b"},
	} {
		got, err := Back(&api.ClusterConfig{Spec: api.ClusterConfigSpec{Plugin: test.plugin, PluginNodes: test.nodes}, Status: test.status})
		if got != test.want || (err != nil) != (test.want == "") {
			t.Errorf("%s: back to %q, %v; want %q", what, got, err, test.want)
		}
	}
}

// TestIsBack says which changes are being taken back: those that were, and none of which the
// beginning is forgotten.
func TestIsBack(t *testing.T) {
	for what, test := range map[string]struct {
		status api.ClusterConfigStatus
		want   bool
	}{
		"come back to":                     {api.ClusterConfigStatus{Plugin: "a", Plugins: []string{"a", "b"}, TakenBack: true}, true},
		"asked for, and used before":       {api.ClusterConfigStatus{Plugin: "b", Plugins: []string{"a", "b"}, PreviousPlugin: "a"}, true},
		"asked for while another loads":    {api.ClusterConfigStatus{Plugin: "a", Plugins: []string{"a", "b"}, LoadingPlugins: []string{"b"}}, true},
		"settled":                          {api.ClusterConfigStatus{Plugin: "a", Plugins: []string{"a"}}, false},
		"changed to":                       {api.ClusterConfigStatus{Plugin: "a", Plugins: []string{"a", "b"}, PreviousPlugin: "b"}, false},
		"changed to, from what has left":   {api.ClusterConfigStatus{Plugin: "a", Plugins: []string{"a", "c"}}, false},
		"changed to, and the status lost":  {api.ClusterConfigStatus{Plugin: "a", Plugins: []string{"a", "b"}}, false},
		"changed to from one, and another": {api.ClusterConfigStatus{Plugin: "c", Plugins: []string{"a", "b", "c"}, PreviousPlugin: "b"}, false},
	} {
		if got := IsBack(&api.ClusterConfig{Spec: api.ClusterConfigSpec{Plugin: "a"}, Status: test.status}); got != test.want {
			t.Errorf("%s: it is taken back is %t", what, got)
		}
	}
}

// addOrEmpty adds a text to a list, or empties it where there is none.
func addOrEmpty(list []string, text string) []string {
	if text == "" {
		return nil
	}
	return append(list, text)
}

func unknown(name string) error {
	if !slices.Contains([]string{"flannel", "openshift-subnet", "openshift-networkpolicy"}, name) {
		return fmt.Errorf("plug-in %q is unknown: there are flannel and openshift-subnet", name)
	}
	return nil
}

func show(s api.ClusterConfigStatus) string {
	text := fmt.Sprintf("  %d: nodes use %s of %s, prepared %s", s.PluginRevision, cmp.Or(s.Plugin, "-"), strings.Join(s.Plugins, ","), cmp.Or(s.PreparedPlugin, "-"))
	if s.PreviousPlugin != "" {
		text += ", before " + s.PreviousPlugin
	}
	if len(s.LoadingPlugins) > 0 {
		text += ", loading " + strings.Join(s.LoadingPlugins, ",")
	}
	text += "\n"
	if c := meta.FindStatusCondition(s.Conditions, api.PluginChanged); c != nil {
		text += fmt.Sprintf("  %s %s (of %d): %s\n", c.Status, c.Reason, c.ObservedGeneration, c.Message)
	}
	return text
}
