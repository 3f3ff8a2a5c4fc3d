package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodePlugins reads what agents say of their plug-ins, and what somebody says who
// has got hold of one.
func TestNodePlugins(t *testing.T) {
	full := PluginReport{Revision: 7, Uses: "flannel", Ready: []string{"openshift-subnet", "flannel", "flannel"}, Needs: []string{"openshift-subnet"}}
	if got, want := full.Text(), `{"revision":7,"uses":"flannel","ready":["flannel","openshift-subnet"],"needs":["openshift-subnet"]}`; got != want {
		t.Errorf("an agent writes %s, not %s", got, want)
	}
	if full.Ready[0] != "openshift-subnet" {
		t.Error("Text changed what it was given")
	}
	long := strings.Repeat("a", 64)
	names := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`"p%d"`, i))
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	for name, test := range map[string]struct {
		text string
		want *PluginReport
		err  string
	}{
		"nothing":                {},
		"what an agent writes":   {text: full.Text(), want: &PluginReport{Revision: 7, Uses: "flannel", Ready: []string{"flannel", "openshift-subnet"}, Needs: []string{"openshift-subnet"}}},
		"none yet":               {text: `{"revision":1}`, want: &PluginReport{Revision: 1}},
		"a field of tomorrow":    {text: `{"uses":"flannel","tomorrow":1}`, want: &PluginReport{Uses: "flannel"}},
		"no JSON":                {text: "flannel", err: "invalid character"},
		"of another type":        {text: `{"uses":["flannel"]}`, err: "cannot unmarshal array"},
		"long":                   {text: `{"uses":"flannel"}` + strings.Repeat(" ", 5000), err: "it has 5018 bytes, more than 4096"},
		"a revision below 0":     {text: `{"revision":-1}`, err: "revision is -1, not a number from 0 to"},
		"a revision of nobody's": {text: `{"revision":9007199254740993}`, err: "revision is 9007199254740993, not a number from 0 to"},
		"a name that is none":    {text: `{"uses":"flannel\n"}`, err: `uses: "flannel\n" is no name`},
		"a name that is long":    {text: `{"uses":"` + long + `"}`, err: `uses: "` + long + `" is no name`},
		"an empty name":          {text: `{"ready":["flannel",""]}`, err: `ready[1]: "" is no name`},
		"needs what is no name":  {text: `{"needs":["../etc"]}`, err: `needs[0]: "../etc" is no name`},
		"as many as there are":   {text: `{"ready":` + names(MaxPlugins) + `}`, want: &PluginReport{Ready: strings.Split(strings.Trim(strings.ReplaceAll(names(MaxPlugins), `"`, ""), "[]"), ",")}},
		"more than there are":    {text: `{"needs":` + names(MaxPlugins+1) + `}`, err: "needs has 17 plug-ins, more than 16"},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Annotations: map[string]string{PluginsAnnotation: test.text}}}
			got, err := NodePlugins(node)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			message := errorText(err)
			if test.err != "" && !strings.HasPrefix(message, "annotation "+PluginsAnnotation+" of Node node1 cannot be read: ") || !strings.Contains(message, test.err) || (test.err == "") != (message == "") {
				t.Errorf("the error is %q, and not %q", message, test.err)
			}
		})
	}
	// What is not used is stripped of objects as they arrive, and this is used.
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{PluginsAnnotation: full.Text()}}}
	if Node.Keep(node); node.Annotations[PluginsAnnotation] == "" {
		t.Error("the annotation is not kept")
	}
}

func TestPluginReport(t *testing.T) {
	r := PluginReport{Uses: "a", Ready: []string{"a", "b"}, Needs: []string{"c"}}
	for _, name := range []string{"a", "b", "c", "d"} {
		if got, want := r.IsReady(name), name <= "b"; got != want {
			t.Errorf("ready for %s: %v", name, got)
		}
		if got, want := r.Keeps(name), name == "a" || name == "c"; got != want {
			t.Errorf("keeps %s: %v", name, got)
		}
	}
}

// TestAskedPlugin says what an empty spec.plugin asks for: nothing else than what nodes use.
func TestAskedPlugin(t *testing.T) {
	some := ClusterConfigStatus{Plugin: "a", PreparedPlugin: "b", Plugins: []string{"a", "b"}, PluginNodes: []string{"node2"}}
	for name, test := range map[string]struct {
		spec   ClusterConfigSpec
		status ClusterConfigStatus
		want   string
	}{
		"a cluster that uses none yet": {want: "openshift-subnet []"},
		"a cluster that uses one":      {status: ClusterConfigStatus{Plugin: "a", PreparedPlugin: "a", Plugins: []string{"a"}}, want: "a []"},
		"nodes load another":           {status: ClusterConfigStatus{Plugin: "a", Plugins: []string{"a", "b"}, LoadingPlugins: []string{"b"}}, want: "a []"},
		"some use another":             {status: some, want: "b [node2]"},
		"some use another, for others": {spec: ClusterConfigSpec{PluginNodes: []string{"node1"}}, status: some, want: "b [node2]"},
		"all use one, for some":        {spec: ClusterConfigSpec{PluginNodes: []string{"node1"}}, status: ClusterConfigStatus{Plugin: "a", PreparedPlugin: "a", Plugins: []string{"a"}}, want: "a []"},
		"one that is named":            {spec: ClusterConfigSpec{Plugin: "a"}, status: some, want: "a []"},
	} {
		c := &ClusterConfig{Spec: test.spec, Status: test.status}
		plugin, nodes := AskedPlugin(c)
		if got := fmt.Sprint(plugin, " ", nodes); got != test.want {
			t.Errorf("%s: it asks for %s, and not %s", name, got, test.want)
		}
		if Wish(c) != Wish(Effective(c)) {
			t.Errorf("%s: with its defaults it is another wish", name)
		}
	}
}

// TestPluginOf says what nodes use at each stage of a change.
func TestPluginOf(t *testing.T) {
	for name, test := range map[string]struct {
		spec   ClusterConfigSpec
		status ClusterConfigStatus
		// want are the plug-ins of node1 and node2, and the mix.
		want string
	}{
		"nothing said":           {want: "openshift-subnet openshift-subnet [openshift-subnet]"},
		"no controller yet":      {ClusterConfigSpec{Plugin: "b"}, ClusterConfigStatus{}, "b b [b]"},
		"settled":                {ClusterConfigSpec{Plugin: "a"}, ClusterConfigStatus{Plugin: "a", Plugins: []string{"a"}}, "a a [a]"},
		"asked for":              {ClusterConfigSpec{Plugin: "b"}, ClusterConfigStatus{Plugin: "a"}, "a a [a]"},
		"preparing":              {ClusterConfigSpec{Plugin: "b"}, ClusterConfigStatus{Plugin: "a", Plugins: []string{"a", "b"}}, "a a [a b]"},
		"prepared":               {ClusterConfigSpec{Plugin: "b"}, ClusterConfigStatus{Plugin: "a", PreparedPlugin: "b", Plugins: []string{"a", "b"}}, "a a [a b]"},
		"prepared for some":      {ClusterConfigSpec{Plugin: "b", PluginNodes: []string{"node2"}}, ClusterConfigStatus{Plugin: "a", PreparedPlugin: "b", Plugins: []string{"a", "b"}, PluginNodes: []string{"node2"}}, "a b [a b]"},
		"prepared for another":   {ClusterConfigSpec{Plugin: "b", PluginNodes: []string{"node1", "node2"}}, ClusterConfigStatus{Plugin: "a", PreparedPlugin: "b", Plugins: []string{"a", "b"}, PluginNodes: []string{"node2"}}, "a b [a b]"},
		"no longer asked for":    {ClusterConfigSpec{Plugin: "b", PluginNodes: []string{"node1"}}, ClusterConfigStatus{Plugin: "a", PreparedPlugin: "b", Plugins: []string{"a", "b"}, PluginNodes: []string{"node2"}}, "a a [a b]"},
		"others are to follow":   {ClusterConfigSpec{Plugin: "b"}, ClusterConfigStatus{Plugin: "a", PreparedPlugin: "b", Plugins: []string{"a", "b"}, PluginNodes: []string{"node2"}}, "a b [a b]"},
		"another was prepared":   {ClusterConfigSpec{Plugin: "c"}, ClusterConfigStatus{Plugin: "a", PreparedPlugin: "b", Plugins: []string{"a", "b"}}, "a a [a b]"},
		"back to what it was":    {ClusterConfigSpec{Plugin: "a"}, ClusterConfigStatus{Plugin: "a", PreparedPlugin: "b", Plugins: []string{"a", "b"}}, "a a [a b]"},
		"nothing asked for":      {ClusterConfigSpec{}, ClusterConfigStatus{Plugin: "a", PreparedPlugin: "b", Plugins: []string{"a", "b"}, PluginNodes: []string{"node2"}}, "a b [a b]"},
		"no plug-in, for others": {ClusterConfigSpec{PluginNodes: []string{"node1"}}, ClusterConfigStatus{Plugin: "a", PreparedPlugin: "b", Plugins: []string{"a", "b"}, PluginNodes: []string{"node2"}}, "a b [a b]"},
		"some, of what all have": {ClusterConfigSpec{Plugin: "b", PluginNodes: []string{"node2"}}, ClusterConfigStatus{Plugin: "b", Plugins: []string{"b"}}, "b b [b]"},
	} {
		c := &ClusterConfig{Spec: test.spec, Status: test.status}
		for _, config := range []*ClusterConfig{c, Effective(c)} {
			if got := fmt.Sprint(PluginOf(config, "node1"), " ", PluginOf(config, "node2"), " ", PluginMix(config)); got != test.want {
				t.Errorf("%s: %s, and not %s", name, got, test.want)
			}
			for _, node := range []string{"node1", "node2"} {
				if !slices.Contains(PluginMix(config), PluginOf(config, node)) {
					t.Errorf("%s: what %s uses is not in the mix", name, node)
				}
			}
		}
	}
	c := &ClusterConfig{Spec: ClusterConfigSpec{Plugin: "b", PluginNodes: []string{"node1", "node2", "node3"}},
		Status: ClusterConfigStatus{Plugin: "a", PreparedPlugin: "b", PluginNodes: []string{"node0", "node2", "node3"}}}
	uses := PluginsOf(c)
	// Who asks of many nodes has these lists read once, and not for each node.
	clear(c.Spec.PluginNodes)
	clear(c.Status.PluginNodes)
	if got := fmt.Sprint(uses("node0"), uses("node1"), uses("node2"), uses("node3"), uses("")); got != "aabba" {
		t.Errorf("of many nodes it says %s", got)
	}
	c = &ClusterConfig{Status: ClusterConfigStatus{Plugins: []string{"a"}}}
	if PluginMix(c)[0] = "changed"; c.Status.Plugins[0] != "a" {
		t.Error("who changes the mix that is returned changes the configuration")
	}
}
