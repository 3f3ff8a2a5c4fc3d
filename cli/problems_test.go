package cli

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/plugin/networkpolicy"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service/control"
)

// TestHearsay has agents tell of others than their own nodes.
func TestHearsay(t *testing.T) {
	said := func(kind, name, message string) api.Problem {
		return api.Problem{Kind: kind, Name: name, Message: message}
	}
	var l problemList
	l.add(said("HostSubnet", "node3", "who asks sees this, too"))
	h := hearsay{nodes: 3}
	h.add("node1", said("HostSubnet", "node3", "who asks sees this, too"))
	h.add("node1", said("Node", "node2", "on fire"))
	h.add("node1", said("ClusterConfig", "default", "a part of it"))
	h.add("node3", said("ClusterConfig", "default", "a part of it"))
	for _, node := range []string{"node1", "node2", "node3"} {
		h.add(node, said("ClusterConfig", "default", "all of it"))
	}
	h.addTo(&l)
	var got []string
	for _, p := range l.list {
		got = append(got, p.String())
	}
	want := []string{"hostsubnet node3: who asks sees this, too", "node node2: on fire (so says node1)",
		"clusterconfig default: a part of it (so says node1, node3)", "clusterconfig default: all of it"}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nand not\n%q", got, want)
	}
}

// TestManyFaultyRules has a policy of which each rule has a fault: it does not hide
// what else is wrong.
func TestManyFaultyRules(t *testing.T) {
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	const faults = maxOfPolicy + 5
	for i := range faults {
		policy.Spec.Ingress = append(policy.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{
			From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("10.0.%d.0/99", i)}}}})
	}
	objects := registry.Snapshot{}
	objects.Put(api.NetworkPolicy, policy)
	states := networkpolicy.States(objects)
	if len(states) != 1 || len(states[0].Problems) != faults {
		t.Fatalf("the states are %v", states)
	}
	var l problemList
	plug, err := plugins.Finder(func(*registry.Kind) bool { return true })("openshift-networkpolicy")
	if err != nil {
		t.Fatal(err)
	}
	policyProblems(&l, explain.Cluster{Objects: objects, Plugin: func(string) (plugin.Plugin, error) { return plug, nil }}, plug)
	want := "networkpolicy shop/web: and 5 more problems (see: weft policy status -n shop networkpolicy/web -o json)"
	if last := l.list[len(l.list)-1].String(); len(l.list) != maxOfPolicy+1 || last != want {
		t.Errorf("%d problems, the last of which is %q, not %q", len(l.list), last, want)
	}
	var text strings.Builder
	if err := printPolicyStates(&text, policyStates(objects, func(networkpolicy.State) bool { return true }), ""); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(text.String(), "; and 5 more (-o json shows them)\n") {
		t.Errorf("it is\n%s", text.String())
	}
}

// TestUnfitMTU has nodes that cannot give their pods the MTU that was asked for: each
// is told of once, though who asks finds a part of it, too.
func TestUnfitMTU(t *testing.T) {
	for mtu, want := range map[int]string{
		9000: "ClusterConfig default: mtu 9000 is more than node %s can carry in tunnels; its pods get 1450.",
		500:  "an mtu of 500 is too small for pods on node %s, which get 576;",
	} {
		objects := registry.Snapshot{}
		config := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: api.ClusterConfigSpec{Plugin: "openshift-subnet", MTU: mtu}}
		objects.Put(api.ClusterConfigKind, config)
		decoded, err := api.Decode([]byte(twoNodes), kinds())
		if err != nil {
			t.Fatal(err)
		}
		find := plugins.Finder(func(*registry.Kind) bool { return true })
		plug, err := find(config.Spec.Plugin)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range decoded {
			node := d.Object.(*corev1.Node)
			_, problems := plug.Compile(plugin.Input{Config: config, Objects: objects,
				Node: plugin.Node{Name: node.Name, Addresses: api.NodeAddresses(node), MTU: 1500}})
			var said []api.Problem
			for _, p := range problems {
				said = append(said, explain.Told(node.Name, p))
			}
			api.SetNodeProblems(node, said)
			objects.Put(api.Node, node)
		}
		var told, wanted []string
		for _, p := range statusOf(explain.Cluster{Objects: objects, Plugin: find}, nil).Problems {
			if strings.Contains(p.Message, "mtu") {
				told = append(told, p.String())
			}
		}
		for _, node := range []string{"node1", "node2"} {
			wanted = append(wanted, "node "+node+": "+fmt.Sprintf(want, node))
		}
		if !slices.EqualFunc(told, wanted, strings.HasPrefix) {
			t.Errorf("mtu %d: told is\n%q and not\n%q", mtu, told, wanted)
		}
	}
}

// TestUntold has an object say what is wrong with it, of which a part is told already.
func TestUntold(t *testing.T) {
	key := registry.Key{Name: "node1"}
	for name, test := range map[string]struct {
		known      []string
		text, want string
	}{
		"nothing is said":        {known: []string{"a"}},
		"nothing is known":       {text: "a; b", want: "a; b"},
		"all is known":           {known: []string{"b", "a"}, text: "a; b"},
		"a part is known":        {known: []string{"b"}, text: "a; b; c", want: "a; c"},
		"one holds another":      {known: []string{"b", "a b"}, text: "a b; c", want: "c"},
		"what is known is empty": {known: []string{""}, text: "a host", want: "a host"},
		"it is known of another": {text: "of another", want: "of another"},
	} {
		t.Run(name, func(t *testing.T) {
			var l problemList
			l.about(api.Node, key, "of another", "")
			for _, message := range test.known {
				l.about(api.HostSubnet, key, message, "")
			}
			if got := l.untold(api.HostSubnet, key, test.text); got != test.want {
				t.Errorf("untold is %q, not %q", got, test.want)
			}
		})
	}
}

// TestOneFactOfPluginsBeside has the controller and nodes say what is wrong with an object that
// one plug-in reads, some of which use that plug-in and some of which have it beside another: it
// is one fact. What each says of a node is another.
func TestOneFactOfPluginsBeside(t *testing.T) {
	var l problemList
	key := registry.Key{Name: "appliance"}
	told := hearsay{nodes: 2}
	for teller, message := range map[string]string{"node1": "subnet 10.1.9.0/24 is in no CIDR", "node2": "openshift-subnet: subnet 10.1.9.0/24 is in no CIDR"} {
		told.add(teller, api.Problem{Kind: api.HostSubnet.Kind, Name: key.Name, Message: message})
		told.add(teller, api.Problem{Kind: api.Node.Kind, Name: "node3", Message: strings.Replace(message, "is in no CIDR", "is another's", 1)})
	}
	told.addTo(&l)
	if left := l.untold(api.HostSubnet, key, "subnet 10.1.9.0/24 is in no CIDR"); left != "" {
		t.Errorf("what its annotation says is told anew: %s", left)
	}
	var got []string
	for _, p := range l.list {
		got = append(got, p.String())
	}
	slices.Sort(got)
	want := []string{"hostsubnet appliance: subnet 10.1.9.0/24 is in no CIDR",
		"node node3: openshift-subnet: subnet 10.1.9.0/24 is another's (so says node2)", "node node3: subnet 10.1.9.0/24 is another's (so says node1)"}
	if !slices.Equal(got, want) {
		t.Errorf("it says %q, and not %q", got, want)
	}
}

// TestUntoldOfMany has a cluster with many objects and many problems: an object that
// says nothing costs nothing, and one that does costs what its own problems do.
func TestUntoldOfMany(t *testing.T) {
	costs := func(problems int, text string) float64 {
		var l problemList
		for i := range problems {
			l.about(api.HostSubnet, registry.Key{Name: fmt.Sprint("node", i)}, "a", "")
		}
		return testing.AllocsPerRun(10, func() { l.untold(api.HostSubnet, registry.Key{Name: "node0"}, text) })
	}
	if n := costs(1000, ""); n != 0 {
		t.Errorf("to say nothing takes %v allocations", n)
	}
	if few, many := costs(1, "a; b"), costs(1000, "a; b"); many > few {
		t.Errorf("it takes %v allocations with 1000 problems of others, and %v with none", many, few)
	}
}

// TestEnforcedBeside has policies be enforced by a plug-in that the cluster uses no more, as
// it changes to another, or by nobody.
func TestEnforcedBeside(t *testing.T) {
	find := func(name string) plugin.Plugin {
		p, err := plugins.Finder(func(*registry.Kind) bool { return true })(name)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	objects := make(registry.Snapshot)
	policy := api.NetworkPolicy.New()
	policy.SetNamespace("shop")
	policy.SetName("web")
	objects.Put(api.NetworkPolicy, policy)
	for _, c := range []struct {
		beside []plugin.Plugin
		want   bool
	}{{nil, true}, {[]plugin.Plugin{find("openshift-subnet")}, true}, {[]plugin.Plugin{find("openshift-networkpolicy")}, false}} {
		var l problemList
		policyProblems(&l, explain.Cluster{Objects: objects, Plugin: func(name string) (plugin.Plugin, error) { return find(name), nil }}, find("openshift-subnet"), c.beside...)
		if got := len(l.list) > 0 && strings.Contains(l.list[0].Message, "1 is enforced by nobody"); got != c.want {
			t.Errorf("beside %v, it is said that nobody enforces it: %t (%v)", c.beside, got, l.list)
		}
	}
}

// In a lab a node whose agent does not run is said to be started by a command of the lab. Which
// of them hang is asked once, of all those and of no others.
func TestRemedyInLab(t *testing.T) {
	problems := []api.Problem{{Kind: api.Node.Kind, Name: "node3", Remedy: startAgent}, {Kind: api.Node.Kind, Name: "node1", Remedy: "give it an address"}, {Kind: api.Node.Kind, Name: "node4", Remedy: startAgent},
		{Kind: api.Node.Kind, Name: "node2", Message: "no name server runs on the node: " + plugin.StartNameServer}}
	var asked [][]string
	startInLab(problems, func(nodes ...string) map[string]int {
		asked = append(asked, nodes)
		return map[string]int{"node4": 4711}
	})
	if want := [][]string{{"node3", "node4"}}; !reflect.DeepEqual(asked, want) {
		t.Errorf("whether they hang is asked of %q, and not of %q", asked, want)
	}
	if got, want := problems[0].Remedy, "start it with weft lab start-node node3, or delete the Node if it will not come back"; got != want {
		t.Errorf("the remedy is %q", got)
	}
	if got, want := problems[2].Remedy, "end process 4711, which hangs (kill -9 4711), then start it with weft lab start-node node4, or delete the Node if it will not come back"; got != want {
		t.Errorf("the remedy of one that hangs is %q", got)
	}
	if got := problems[3].Message; got != "no name server runs on the node: start it with weft lab start-node node2" {
		t.Errorf("of a name server it is said %q", got)
	}
	if got := problems[1].Remedy; got != "give it an address" {
		t.Errorf("the remedy of another is %q", got)
	}
}

// TestForcedPastPolicies has policies be in force by a plug-in that is to leave, and that
// stays for them only where the change is not forced.
func TestForcedPastPolicies(t *testing.T) {
	for wish, want := range map[string][]string{
		"": nil,
		"flannel again": {"policies: 1 is enforced only until the plug-ins beside flannel leave, as the change to it is forced (networkpolicy shop/web); " +
			"choose a plug-in that enforces policies, which are flannel-networkpolicy, openshift-networkpolicy, or delete them"},
	} {
		objects := make(registry.Snapshot)
		policy := api.NetworkPolicy.New()
		policy.SetNamespace("shop")
		policy.SetName("web")
		objects.Put(api.NetworkPolicy, policy)
		objects.Put(api.ClusterConfigKind, &api.ClusterConfig{
			ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName, Annotations: map[string]string{api.ForcePluginAnnotation: wish}},
			Spec:       api.ClusterConfigSpec{Plugin: "flannel"},
			Status:     api.ClusterConfigStatus{Plugin: "flannel", PreparedPlugin: "flannel", Plugins: []string{"flannel", "openshift-networkpolicy"}}})
		_, l := problemsOf(explain.Cluster{Objects: objects, Plugin: plugins.Get}, nil)
		var got []string
		for _, p := range l.list {
			if p.Name == "policies" {
				got = append(got, p.String())
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("forced by %q, it is said %q, and not %q", wish, got, want)
		}
		// So says who is asked of policies alone.
		states := policyStates(objects, func(networkpolicy.State) bool { return true })
		err := judge(states, objects, plugins.Get, func() (map[string]string, error) { return nil, nil })
		if err != nil || len(states) != 1 || states[0].Passing != (want != nil) || len(states[0].Problems) != len(want) {
			t.Errorf("forced by %q, the policies are %+v, %v", wish, states, err)
		}
	}
}

// TestOneDeadNode has a Node whose agent never ran. Nobody can know a way to its pods, and who
// says so of two plug-ins says nothing that is not said of that Node.
func TestOneDeadNode(t *testing.T) {
	objects := make(registry.Snapshot)
	for _, name := range []string{"node1", "node2", "node3"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		var said []api.Problem
		for _, plugin := range []string{"flannel", "openshift-subnet"} {
			said = append(said, api.Problem{Kind: api.Node.Kind, Name: name, Message: api.UnreadyFor(plugin) + api.NoWayTo([]string{"node4"})})
		}
		if name == "node1" {
			said = append(said, api.Problem{Kind: api.Node.Kind, Name: name, Message: api.UnreadyFor("flannel") + api.NoWayTo([]string{"node3", "node4"})})
		}
		api.SetNodeProblems(node, said)
		objects.Put(api.Node, node)
	}
	objects.Put(api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node4"}})
	var l problemList
	nodeProblems(&l, explain.Cluster{Objects: objects, Plugin: plugins.Get, Lost: map[string]bool{"node4": true}}, nil)
	var got []string
	for _, p := range l.list {
		got = append(got, p.Name+": "+p.Message)
	}
	want := []string{"node1: not ready for flannel: it knows no way yet to the pods of node3, node4 under it; if that does not pass, see what their agents say, and delete Nodes that are gone",
		"node4: " + api.NotReported}
	if !slices.Equal(got, want) {
		t.Errorf("it is said\n%s\nand not\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestNoAgentCanRun has a node of another system, which lacks nothing: no agent can run there. One that
// says nothing of its system is to have one.
func TestNoAgentCanRun(t *testing.T) {
	objects := make(registry.Snapshot)
	for name, system := range map[string]string{"node1": "linux", "node2": "", "win1": "windows"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if system != "" {
			node.Labels = map[string]string{corev1.LabelOSStable: system}
		}
		objects.Put(api.Node, node)
	}
	c := explain.Cluster{Objects: objects, Plugin: plugins.Get, Lost: map[string]bool{"node1": true, "node2": true, "win1": true}}
	var l problemList
	nodeProblems(&l, c, nil)
	var got []string
	for _, p := range l.list {
		got = append(got, p.Name+": "+p.Message)
	}
	if want := []string{"node1: " + api.NotReported, "node2: " + api.NotReported}; !slices.Equal(got, want) {
		t.Errorf("it is said %q and not %q", got, want)
	}
	agents := map[string]string{}
	for _, n := range statusOf(c, map[string]string{}).Nodes {
		agents[n.Name] = n.Agent
	}
	if want := map[string]string{"node1": "lost", "node2": "lost", "win1": "none"}; !maps.Equal(agents, want) {
		t.Errorf("agents are %v and not %v", agents, want)
	}
}

// TestKubeProxyBeside has kube-proxy run on some nodes: where Weft does Services that is shown, and where
// it was taken away before it is a problem. So it is where that is to do them and was taken away.
func TestKubeProxyBeside(t *testing.T) {
	pod := func(namespace, name, app, owner string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"k8s-app": app}},
			Spec: corev1.PodSpec{NodeName: "on-" + name, HostNetwork: true}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		if owner != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: owner, Controller: new(true)}}
		}
		change(p)
		return p
	}
	as := func(*corev1.Pod) {}
	pods := []*corev1.Pod{
		pod("kube-system", "owned", "", "kube-proxy", as), pod("kube-system", "static", "kube-proxy", "", as),
		pod("kube-system", "ends", "kube-proxy", "kube-proxy", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }),
		pod("kube-system", "waits", "kube-proxy", "kube-proxy", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
		pod("kube-system", "pod", "kube-proxy", "", func(p *corev1.Pod) { p.Spec.HostNetwork = false }),
		pod("kube-system", "cleans", "", "weft-kube-proxy-cleanup", as), pod("shop", "another", "kube-proxy", "kube-proxy", as),
	}
	component := pod("kube-system", "component", "", "", func(p *corev1.Pod) { p.Labels["component"] = "kube-proxy" })
	for name, test := range map[string]struct {
		by, mark string
		pods     []*corev1.Pod
		shown    []string
		problem  string
	}{
		"beside Weft":  {api.WeftProxy, "", pods, []string{"on-owned", "on-static"}, ""},
		"beside pools": {api.WeftProxy, "", pods, []string{"on-owned", "on-static"}, "kube-proxy: it does Services beside Weft on on-owned, on-static, also at addresses that Weft refuses them"},
		"beside names": {api.WeftProxy, "", pods, []string{"on-owned", "on-static"}, "kube-proxy: it does Services beside Weft on on-owned, on-static, also at addresses that Weft refuses them"},
		"it was removed": {api.WeftProxy, api.KubeProxyRemoved, pods, []string{"on-owned", "on-static"}, "kube-proxy: it runs again on on-owned, on-static, though weft kube-proxy remove had ended it, and does Services beside Weft there, " + unguarded + "; run weft kube-proxy remove again, " +
			"and have what brought it back leave it out: for kubeadm, set proxy: {disabled: true} in ClusterConfiguration of the ConfigMap kube-system/kubeadm-config, " +
			"or give --skip-phases=addon/kube-proxy to kubeadm upgrade apply and to kubeadm upgrade node"},
		"another was":      {api.WeftProxy, api.KubeProxyRemoved + " shop/kube-proxy", pods[6:], []string{"on-another"}, "kube-proxy: it runs again on on-another, though weft kube-proxy remove had ended it"},
		"a kubelet has it": {api.WeftProxy, "", []*corev1.Pod{component}, []string{"on-component"}, ""},
		"it stays removed": {api.WeftProxy, api.KubeProxyRemoved, pods[2:], nil, ""},
		"in Weft's place":  {api.KubeProxy, "", pods, nil, ""},
		"nobody does them": {api.KubeProxy, api.KubeProxyRemoved, pods[2:], nil, "kube-proxy: spec.serviceProxy of the ClusterConfig leaves Services to it, and weft kube-proxy remove has ended it, so that nobody does them; run weft kube-proxy restore"},
		"it is no pod":     {api.KubeProxy, "", pods[2:], nil, ""},
		"it is back":       {api.KubeProxy, api.KubeProxyRemoved, pods, nil, ""},
	} {
		config := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName, Annotations: map[string]string{api.KubeProxyAnnotation: test.mark}}}
		config.Spec.ServiceProxy = test.by
		objects := make(registry.Snapshot)
		objects.Put(api.ClusterConfigKind, config)
		switch name {
		case "beside pools":
			objects.Put(api.AddressPoolKind, &api.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "public"}})
		case "beside names":
			config.Spec.DNS.Server = api.NamesByNodes
		}
		for _, p := range test.pods {
			objects.Put(api.Pod, p)
		}
		s := statusOf(explain.Cluster{Objects: objects, Plugin: plugins.Get}, map[string]string{})
		if !slices.Equal(s.KubeProxy, test.shown) {
			t.Errorf("%s: it is shown on %q, want %q", name, s.KubeProxy, test.shown)
		}
		said := ""
		for _, p := range s.Problems {
			if p.Name == "kube-proxy" {
				said = p.String()
			}
		}
		if !strings.HasPrefix(said, test.problem) || (said == "") != (test.problem == "") {
			t.Errorf("%s: it is said %q, want %q", name, said, test.problem)
		}
		var out strings.Builder
		if err := s.print(&out); err != nil || strings.Contains(out.String(), "\nkube-proxy does Services, too, on "+strings.Join(test.shown, ", ")+" (see: weft kube-proxy).\n") != (test.shown != nil) {
			t.Errorf("%s: %v, status is\n%s", name, err, &out)
		}
		if strings.Contains(out.String(), "\n"+noKubeProxy+" (see: weft kube-proxy).\n") != (name == "it is no pod") {
			t.Errorf("%s: status is\n%s", name, &out)
		}
		// What is a problem, or is shown, weft kube-proxy says as well.
		if text := ofKubeProxy(objects); (text != "") != (said != "" || test.shown != nil || name == "it is no pod") {
			t.Errorf("%s: weft kube-proxy says %q", name, text)
		}
	}
}

// TestManyDeadNodes has so many Nodes whose agents do not run that nobody names all of them:
// that there is no way to those is said by none, the dead among them. Where one that lives is
// among those that are not named, it is said.
func TestManyDeadNodes(t *testing.T) {
	for name, test := range map[string]struct {
		lost, unknown []string
		said          bool
	}{
		"three":                            {lost: []string{"node3", "node4", "node5"}, unknown: []string{"node3", "node4", "node5"}},
		"four":                             {lost: []string{"node3", "node4", "node5", "node6"}, unknown: []string{"node3", "node4", "node5", "node6"}},
		"all but two":                      {lost: []string{"node3", "node4", "node5", "node6", "node7"}, unknown: []string{"node3", "node4", "node5", "node6", "node7"}},
		"three, and one that lives":        {lost: []string{"node3", "node4", "node5"}, unknown: []string{"node3", "node4", "node5", "node6"}, said: true},
		"one that lives is named":          {lost: []string{"node4", "node5", "node6", "node7"}, unknown: []string{"node3", "node4", "node5", "node6", "node7"}, said: true},
		"another dead one is not unknown":  {lost: []string{"node2", "node3", "node4", "node5"}, unknown: []string{"node3", "node4", "node5", "node6"}, said: true},
		"one that lives is amid dead ones": {lost: []string{"node3", "node4", "node5", "node7"}, unknown: []string{"node3", "node4", "node5", "node6", "node7"}, said: true},
		"and there is a way to a dead one": {lost: []string{"node3", "node4", "node5", "node7"}, unknown: []string{"node3", "node4", "node5", "node6"}, said: true},
		"there is a way to the live ones":  {lost: []string{"node3", "node4", "node5", "node7"}, unknown: []string{"node3", "node4", "node5", "node7"}},
	} {
		t.Run(name, func(t *testing.T) {
			objects, lost := make(registry.Snapshot), make(map[string]bool)
			config := &flannel.Config{ObjectMeta: metav1.ObjectMeta{Name: flannel.ConfigName}, Spec: []byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}`)}
			objects.Put(flannel.ConfigKind, config)
			for _, name := range test.lost {
				lost[name] = true
			}
			for i := range 7 {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node", i+1)}}
				others := slices.DeleteFunc(slices.Clone(test.unknown), func(name string) bool { return name == node.Name })
				api.SetNodeProblems(node, []api.Problem{{Kind: api.Node.Kind, Name: node.Name, Message: api.UnreadyFor("flannel") + api.NoWayTo(others)}})
				node.Annotations[api.OnLinkAnnotation] = "172.30.0.0/24"
				address := fmt.Sprint("172.30.0.", i+1)
				node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
				objects.Put(api.Node, node)
				if !slices.Contains(test.unknown, node.Name) {
					lease := &flannel.Lease{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("10.5.%d.0-24", i+1)}, Spec: fmt.Appendf(nil, `{"PublicIP":%q,"BackendType":"host-gw"}`, address)}
					objects.Put(flannel.LeaseKind, lease)
				}
			}
			var l problemList
			nodeProblems(&l, explain.Cluster{Objects: objects, Plugin: plugins.Get, Lost: lost}, nil)
			saying := make(map[string]string)
			for _, p := range l.list {
				if strings.Contains(p.Message, "knows no way") {
					saying[p.Name] = p.Message
				}
			}
			if said := saying["node1"] != ""; said != test.said || !said && len(saying) > 0 {
				t.Errorf("it is said %q", saying)
			}
		})
	}
}

// counting is a plug-in that counts how often it compiles, and how often with nothing made
// before.
type counting struct {
	plugin.Plugin
	all, anew *int
}

func (p counting) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	if *p.all++; in.Previous == nil {
		*p.anew++
	}
	return p.Plugin.Compile(in)
}

// TestWhoLacksTheDeadIsFoundOnce has all nodes of a cluster that changes its plug-in say that
// they know no way to more dead ones than they name, under either plug-in. Who these are is
// compiled once for a node, whichever of the two says so, and of what all nodes know nothing is
// made anew for the second.
func TestWhoLacksTheDeadIsFoundOnce(t *testing.T) {
	const nodes, dead = 20, 5
	objects, lost := make(registry.Snapshot), make(map[string]bool)
	mix := []string{"flannel", "openshift-subnet"}
	objects.Put(api.ClusterConfigKind, &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName},
		Status: api.ClusterConfigStatus{Plugin: "openshift-subnet", Plugins: mix, LoadingPlugins: mix[:1], PluginRevision: 2}})
	objects.Put(flannel.ConfigKind, &flannel.Config{ObjectMeta: metav1.ObjectMeta{Name: flannel.ConfigName}, Spec: []byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}`)})
	var away []string
	for i := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%02d", i)}}
		node.Annotations = map[string]string{api.OnLinkAnnotation: "172.30.0.0/24"}
		address := fmt.Sprint("172.30.0.", i+1)
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		objects.Put(api.Node, node)
		if i < dead {
			lost[node.Name], away = true, append(away, node.Name)
			continue
		}
		objects.Put(flannel.LeaseKind, &flannel.Lease{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("10.5.%d.0-24", i)}, Spec: fmt.Appendf(nil, `{"PublicIP":%q,"BackendType":"host-gw"}`, address)})
		subnet := api.HostSubnet.New().(*networkv1.HostSubnet)
		subnet.Name, subnet.Host, subnet.HostIP, subnet.Subnet = node.Name, node.Name, address, fmt.Sprintf("10.128.%d.0/24", i)
		objects.Put(api.HostSubnet, subnet)
	}
	for node := range registry.Each[*corev1.Node](objects, api.Node) {
		var said []api.Problem
		for _, under := range mix {
			said = append(said, api.Problem{Kind: api.Node.Kind, Name: node.Name, Message: api.UnreadyFor(under) + api.NoWayTo(away)})
		}
		api.SetNodeProblems(node, said)
	}
	all, anew := 0, 0
	find := func(name string) (plugin.Plugin, error) {
		p, err := plugins.Get(name)
		return counting{p, &all, &anew}, err
	}
	var l problemList
	nodeProblems(&l, explain.Cluster{Objects: objects, Plugin: find, Lost: lost}, nil)
	for _, p := range l.list {
		if strings.Contains(p.Message, "knows no way") {
			t.Errorf("it is said that %s", p)
		}
	}
	// Each plug-in compiles for itself, and then with what the other has.
	if want := nodes * len(mix) * 2; all != want {
		t.Errorf("for %d nodes there were %d compilations, and not %d", nodes, all, want)
	}
	if want := len(mix) * 2; anew != want {
		t.Errorf("%d were from nothing, and not those %d of the first node alone", anew, want)
	}
}

// TestManyFaultyServices has a tenant write many Services that cannot be: what is wrong with those of
// others is told as well, and how many there are.
func TestManyFaultyServices(t *testing.T) {
	objects := registry.Snapshot{}
	put := func(namespace string, n int) {
		for i := range n {
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("web", i)}}
			for _, what := range []string{control.Served, control.Granted} {
				svc.Status.Conditions = append(svc.Status.Conditions, metav1.Condition{Type: what, Status: metav1.ConditionFalse, Message: what + " is not"})
			}
			objects.Put(api.Service, svc)
		}
	}
	put("evil", 5000)
	put("shop", 1)
	var l problemList
	serviceProblems(&l, explain.Cluster{Objects: objects})
	last := "services: something is wrong with more of them: 4990 of namespace evil; see weft get services -A -o wide"
	if n := len(l.list); n != 2*maxOfNamespace+2+1 || l.list[n-1].String() != last || l.list[n-2].Namespace != "shop" {
		t.Errorf("it is told %v", l.list)
	}
}

// TestAnnotatedProblems: whoever has a namespace can write what they like on their objects, and none of it is taken for
// what the controller says.
func TestAnnotatedProblems(t *testing.T) {
	objects := registry.Snapshot{}
	for _, k := range kinds() {
		o := k.New()
		o.SetName("x")
		if k.Namespaced {
			o.SetNamespace("evil")
		}
		o.SetAnnotations(map[string]string{api.ProblemAnnotation: "it has no subnet"})
		objects.Put(k, o)
	}
	var l problemList
	annotatedProblems(&l, objects)
	var got []string
	for _, p := range l.list {
		got = append(got, p.String())
	}
	if want := []string{"clusternetwork x: it has no subnet", "hostsubnet x: it has no subnet", "node x: it has no subnet"}; !slices.Equal(got, want) {
		t.Errorf("it is told %q, want %q", got, want)
	}
	_, l = problemsOf(explain.Cluster{Objects: objects, Plugin: plugins.Get}, nil)
	for _, p := range l.list {
		if p.Namespace == "evil" && p.Message == "it has no subnet" {
			t.Errorf("it is told %s", p)
		}
	}
}

// TestAddressesOutsideOfTheRange: where the controller gives Services their addresses, it is told which have one
// that is outside of the range by now, and that there is none.
func TestAddressesOutsideOfTheRange(t *testing.T) {
	service := func(name, ip string, conditions ...metav1.Condition) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Spec: corev1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}}, Status: corev1.ServiceStatus{Conditions: conditions}}
	}
	refused := metav1.Condition{Type: control.Granted, Status: metav1.ConditionFalse, Message: "no"}
	all := []registry.Object{service("in", "10.96.0.1"), service("out", "10.1.8.217"), service("far", "192.0.2.1", refused), service("head", corev1.ClusterIPNone)}
	for _, test := range []struct {
		ranges   []string
		services []registry.Object
		serves   bool // as Kubernetes does not
		want     string
	}{
		{[]string{"10.96.0.0/16"}, all, true, "clusterconfig default: spec.serviceNetworks: outside of 10.96.0.0/16, where Services get addresses, are 10.1.8.217 of Service shop/out: " +
			"these keep them, and something else may be given the same; have the range hold them, or delete and make them anew"},
		{[]string{"10.96.0.0/16"}, all[:1], true, ""},
		{[]string{"10.96.0.0/16"}, all, false, ""},
		{nil, all, true, "clusterconfig default: spec.serviceNetworks: there is no range, so that new Services get no address; there are " +
			"10.1.8.217 of Service shop/out, 10.96.0.1 of Service shop/in; give it the range that these are of"},
		{nil, all[2:], true, ""},
	} {
		config := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: api.ClusterConfigSpec{ServiceNetworks: test.ranges}}
		objects := registry.NewSnapshot(map[*registry.Kind][]registry.Object{api.ClusterConfigKind: {config}, api.Service: test.services})
		find := plugins.Finder(func(*registry.Kind) bool { return test.serves })
		var l problemList
		rangeProblem(&l, explain.Cluster{Objects: objects, Plugin: find})
		got := ""
		for _, p := range l.list {
			got += p.String()
		}
		if got != test.want {
			t.Errorf("with %v it is told %q, and not %q", test.ranges, got, test.want)
		}
	}
}
