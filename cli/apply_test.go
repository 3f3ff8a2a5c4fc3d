package cli

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
	"github.com/weftnet/weft/service"
)

// TestTooLargeToKeep applies policies of which apply's copy has room in the object's
// annotations, and of which it has none.
func TestTooLargeToKeep(t *testing.T) {
	for rules, want := range map[int]string{
		100: "",
		20000: "networkpolicy default/large: what the file says of it is 1389042 bytes long, and apply keeps it in the annotation " +
			"kubectl.kubernetes.io/last-applied-configuration, where an object has room for 262144 bytes with all its annotations: split it into several objects",
	} {
		var text strings.Builder
		text.WriteString("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: large}\nspec:\n  podSelector: {}\n  ingress:\n")
		for i := range rules {
			fmt.Fprintf(&text, "  - {ports: [{port: %d}], from: [{ipBlock: {cidr: 10.0.0.0/8}}]}\n", i+1)
		}
		decoded, err := api.Decode([]byte(text.String()), kinds())
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		o, err := newTarget(decoded[0], "default").merge(nil)
		if err == nil {
			_, _, err = api.NetworkPolicy.Admit(o)
		}
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("of %d rules it says\n%.300s\nnot\n%s", rules, got, want)
		}
	}
}

// TestApplyToMixedCluster applies configurations to a cluster of which one node changed to
// another plug-in by force, past a policy that this one does not enforce. Who asks for what there
// is, as one that names no plug-in does, is told that it stays, and not what would speak against
// a change that nobody asks for.
func TestApplyToMixedCluster(t *testing.T) {
	const (
		stays   = "clusterconfig default: node1 stays with plug-in flannel, and the other nodes with openshift-networkpolicy, as it asks for nothing else: weft plugin change flannel has all follow, and weft plugin change openshift-networkpolicy has all come back"
		changes = "clusterconfig default: it asks for plug-in flannel%s, and the cluster uses openshift-networkpolicy; how far that change is says weft plugin status"
		refused = "the cluster will not change to flannel: "
	)
	for name, test := range map[string]struct {
		spec api.ClusterConfigSpec
		want string
		// refused says that what speaks against a change is told as well.
		refused bool
	}{
		"without a plug-in":       {api.ClusterConfigSpec{MTU: 1400}, stays, false},
		"the same again":          {api.ClusterConfigSpec{Plugin: "flannel", PluginNodes: []string{"node1"}}, stays, false},
		"for all nodes":           {api.ClusterConfigSpec{Plugin: "flannel"}, fmt.Sprintf(changes, ""), true},
		"for another node":        {api.ClusterConfigSpec{Plugin: "flannel", PluginNodes: []string{"node2"}}, fmt.Sprintf(changes, " on node2"), true},
		"for what the others use": {api.ClusterConfigSpec{Plugin: "openshift-networkpolicy"}, "clusterconfig default: it asks for plug-in openshift-networkpolicy, so the change to flannel is taken back; how far that is says weft plugin status", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := memory.New()
			for kind, o := range map[*registry.Kind]registry.Object{
				api.ClusterConfigKind: &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: test.spec,
					Status: api.ClusterConfigStatus{Plugin: "openshift-networkpolicy", PreparedPlugin: "flannel", PluginNodes: []string{"node1"}, Plugins: []string{"flannel", "openshift-networkpolicy"}, PluginRevision: 3}},
				api.NetworkPolicy: &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}},
			} {
				if _, err := r.Create(t.Context(), kind, o); err != nil {
					t.Fatal(err)
				}
			}
			for _, name := range []string{"node1", "node2"} {
				if _, err := r.Create(t.Context(), api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
					t.Fatal(err)
				}
			}
			reg, applied := &busy{Registry: r}, []target{{kind: api.ClusterConfigKind, key: registry.Key{Name: api.DefaultName}}}
			if got := unmetWish(t.Context(), reg, applied); len(got) != 1 || got[0] != test.want {
				t.Errorf("it warns of %q, and not of %q", got, test.want)
			}
			against := unenforced(t.Context(), reg, applied)
			if told := slices.ContainsFunc(against, func(w string) bool { return strings.HasPrefix(w, refused) }); told != test.refused || !told && len(against) > 0 {
				t.Errorf("of policies it warns of %q", against)
			}
		})
	}
}

// TestOthersAnnotationsStay applies a file that has an annotation, then one that has
// none: what an agent or a controller wrote on the object meanwhile stays.
func TestOthersAnnotationsStay(t *testing.T) {
	const hostSubnet = "apiVersion: network.openshift.io/v1\nkind: HostSubnet\nmetadata: {name: node1%s}\nhost: node1\nhostIP: 172.30.0.11\nsubnet: 10.1.0.0/24\n"
	const node = "apiVersion: v1\nkind: Node\nmetadata: {name: node1%s}\n"
	apply := func(have registry.Object, text string) registry.Object {
		decoded, err := api.Decode([]byte(text), kinds())
		if err != nil {
			t.Fatal(err)
		}
		o, err := newTarget(decoded[0], "default").merge(have)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	for _, object := range []string{hostSubnet, node} {
		for _, without := range []string{"", ", annotations: {}", ", annotations: null"} {
			o := apply(nil, fmt.Sprintf(object, ", annotations: {note: mine}"))
			theirs := maps.Clone(o.GetAnnotations())
			theirs["weft.network/theirs"] = "fd00::/64"
			o.SetAnnotations(theirs)
			o = apply(o, fmt.Sprintf(object, without))
			got := maps.Clone(o.GetAnnotations())
			delete(got, lastApplied)
			if want := map[string]string{"weft.network/theirs": "fd00::/64"}; !maps.Equal(got, want) {
				t.Errorf("after a file with %q the annotations are %v, want %v:\n%s", without, got, want, object)
			}
		}
	}
}

// TestNullInWhatIsMade applies a file with nulls, where the object is not there, and once
// more: the second time changes nothing.
func TestNullInWhatIsMade(t *testing.T) {
	decoded, err := api.Decode([]byte("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, labels: {tier: null}}\n"+
		"spec: {podSelector: {matchLabels: {app: null, role: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: null, role: web}}}]}]}\n"), kinds())
	if err != nil {
		t.Fatal(err)
	}
	made, err := newTarget(decoded[0], "default").merge(nil)
	if err != nil {
		t.Fatal(err)
	}
	policy := made.(*networkingv1.NetworkPolicy)
	if got, want := policy.Spec.PodSelector.MatchLabels, map[string]string{"role": "db"}; !maps.Equal(got, want) || len(policy.Labels) > 0 {
		t.Errorf("the policy is made with the labels %v, and selects by %v; want none, and %v", policy.Labels, got, want)
	}
	if got, want := policy.Spec.Ingress[0].From[0].PodSelector.MatchLabels, map[string]string{"role": "web"}; !maps.Equal(got, want) {
		t.Errorf("in a list it selects by %v, not by %v", got, want)
	}
	again, err := newTarget(decoded[0], "default").merge(made)
	if err != nil {
		t.Fatal(err)
	}
	if !sameJSON(made, again) {
		t.Errorf("the second time the same file makes\n%+v\nof\n%+v", again, made)
	}
}

// TestWhatNobodyNamedStays merges any files into any objects: what neither the last
// file nor this one names stays, what this one names is as it says, without nulls, what the last one
// named and this one does not is gone, and the same file once more changes nothing.
func TestWhatNobodyNamedStays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have, last, want := anyFields(3).Draw(t, "have"), anyFields(3).Draw(t, "last"), anyFields(3).Draw(t, "want")
		got := copied(have)
		mergeFields(got, copied(last), copied(want))
		for path, v := range values(have, "") {
			if says(last, path) == nil && says(want, path) == nil && !named(want, path) && !reflect.DeepEqual(at(got, path), v) {
				t.Fatalf("%s was %v, and is %v, though no file named it: %v", path, v, at(got, path), got)
			}
		}
		want = withoutListedNulls(want, false).(map[string]any)
		for path, v := range values(want, "") {
			if !reflect.DeepEqual(at(got, path), v) {
				t.Fatalf("%s is %v, where the file says %v: %v", path, at(got, path), v, got)
			}
		}
		for path := range values(last, "") {
			if says(want, path) == nil && at(got, path) != nil && !isObject(at(want, path)) {
				t.Fatalf("%s is %v, where the last file named it and this one does not: %v", path, at(got, path), got)
			}
		}
		for path, v := range values(got, "") {
			if !reflect.DeepEqual(at(have, path), v) && !reflect.DeepEqual(at(want, path), v) {
				t.Fatalf("%s is %v, which is neither the object's nor the file's: %v", path, v, got)
			}
		}
		again := copied(got)
		if mergeFields(again, copied(want), copied(want)); !reflect.DeepEqual(again, got) {
			t.Fatalf("once more merged, %v becomes %v", got, again)
		}
	})
}

// anyFields are those of a JSON object, with objects within it so deep.
func anyFields(depth int) *rapid.Generator[map[string]any] {
	return rapid.Custom(func(t *rapid.T) map[string]any {
		o := make(map[string]any)
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "status"}), 0, 3, rapid.ID[string]).Draw(t, "names") {
			kind := rapid.IntRange(0, 9).Draw(t, "kind")
			switch {
			case kind == 0:
				o[name] = nil
			case kind == 1:
				o[name] = []any{rapid.SampledFrom([]string{"u", "v"}).Draw(t, "item")}
			case kind == 2 && depth > 0:
				o[name] = []any{anyFields(depth-1).Draw(t, "item")}
			case kind <= 3 || depth == 0:
				o[name] = rapid.SampledFrom([]string{"u", "v", "w"}).Draw(t, "value")
			default:
				o[name] = anyFields(depth-1).Draw(t, name)
			}
		}
		return o
	})
}

// withoutListedNulls returns a value without the fields that are null in objects within
// lists. in says that the value is within one.
func withoutListedNulls(v any, in bool) any {
	switch v := v.(type) {
	case map[string]any:
		c := make(map[string]any)
		for k, inner := range v {
			if inner != nil || !in {
				c[k] = withoutListedNulls(inner, in)
			}
		}
		return c
	case []any:
		var c []any
		for _, inner := range v {
			c = append(c, withoutListedNulls(inner, true))
		}
		return c
	}
	return v
}

func copied(o map[string]any) map[string]any {
	c := maps.Clone(o)
	for k, v := range c {
		if inner, ok := v.(map[string]any); ok {
			c[k] = copied(inner)
		}
	}
	return c
}

func isObject(v any) bool { _, ok := v.(map[string]any); return ok }

// values are those of an object and of objects within it, by their paths. A null is none.
func values(o map[string]any, under string) map[string]any {
	all := make(map[string]any)
	for k, v := range o {
		switch inner, ok := v.(map[string]any); {
		case ok:
			maps.Copy(all, values(inner, under+k+"."))
		case v != nil:
			all[under+k] = v
		}
	}
	return all
}

// at returns what an object has at a path, nil where that is nothing.
func at(o map[string]any, path string) any {
	first, rest, more := strings.Cut(path, ".")
	if !more {
		return o[first]
	}
	inner, _ := o[first].(map[string]any)
	return at(inner, rest)
}

// says returns the value that an object has at a path or at what the path is within.
func says(o map[string]any, path string) any {
	first, rest, more := strings.Cut(path, ".")
	if inner, ok := o[first].(map[string]any); ok {
		if !more {
			return nil
		}
		return says(inner, rest)
	}
	return o[first]
}

// named reports whether an object has the very path, be it with null.
func named(o map[string]any, path string) bool {
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		o, _ = at(o, path[:i]).(map[string]any)
		path = path[i+1:]
	}
	_, ok := o[path]
	return ok
}

// A Service that is applied again as it was keeps the ports of nodes that it was given, and is not
// written. One that is for the cluster alone from then on has none.
func TestApplyKeepsNodePorts(t *testing.T) {
	const ports = "ports: [{name: web, port: 80}, {name: dns, port: 53, protocol: UDP}]"
	apply := func(r *memory.Registry, spec string) string {
		t.Helper()
		decoded, err := api.Decode([]byte("apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {"+spec+"}\n"), wholeKinds())
		if err != nil {
			t.Fatal(err)
		}
		done, err := newTarget(decoded[0], "default").apply(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	for name, test := range map[string]struct {
		again, done string
		want        []int32
	}{
		"the same":            {"type: NodePort, " + ports, "unchanged", []int32{30080, 30053}},
		"a load balancer's":   {"type: LoadBalancer, " + ports, "configured", []int32{30080, 30053}},
		"one port more":       {"type: NodePort, ports: [{name: more, port: 81}, {name: web, port: 80}]", "configured", []int32{0, 30080}},
		"another port has it": {"type: NodePort, ports: [{name: more, port: 81, nodePort: 30080}, {name: web, port: 80}]", "configured", []int32{30080, 0}},
		"of another protocol": {"type: NodePort, ports: [{name: web, port: 80, protocol: UDP}]", "configured", []int32{0}},
		"the cluster's alone": {ports, "configured", []int32{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			r := memory.New()
			if done := apply(r, "type: NodePort, "+ports); done != "created" {
				t.Fatalf("it is %s", done)
			}
			key := registry.Key{Namespace: "default", Name: "web"}
			if _, err := registry.Modify(t.Context(), r, api.Service, key, func(svc *corev1.Service) error {
				svc.Spec.Ports[0].NodePort, svc.Spec.Ports[1].NodePort = 30080, 30053
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if done := apply(r, test.again); done != test.done {
				t.Errorf("it is %s instead of %s", done, test.done)
			}
			o, err := r.Get(t.Context(), api.Service, key)
			if err != nil {
				t.Fatal(err)
			}
			var got []int32
			for _, p := range o.(*corev1.Service).Spec.Ports {
				got = append(got, p.NodePort)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("the ports of nodes are %v instead of %v", got, test.want)
			}
		})
	}
}

// What a Service was given by its type is not in the way of another type.
func TestApplyDropsWhatIsOfAnotherType(t *testing.T) {
	const ports = "ports: [{port: 80}]"
	given := func(svc *corev1.Service) error {
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs, svc.Spec.IPFamilies = "10.96.0.5", []string{"10.96.0.5"}, []corev1.IPFamily{corev1.IPv4Protocol}
		if service.IsChecked(svc) {
			svc.Spec.HealthCheckNodePort = 31000
		}
		if svc.Spec.Type != "" && svc.Spec.ExternalTrafficPolicy == "" {
			svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster // as an API server does
		}
		return nil
	}
	for name, test := range map[string]struct{ before, after, refused string }{
		"for the cluster alone":  {"type: LoadBalancer, externalTrafficPolicy: Local, loadBalancerClass: a/b, allocateLoadBalancerNodePorts: false, " + ports, ports, ""},
		"by the file":            {"type: LoadBalancer, loadBalancerClass: a/b, " + ports, "loadBalancerClass: a/c, " + ports, "spec.loadBalancerClass: Forbidden"},
		"a policy of an API":     {"type: NodePort, " + ports, ports, ""},
		"asked about no more":    {"type: LoadBalancer, externalTrafficPolicy: Local, " + ports, "type: LoadBalancer, externalTrafficPolicy: Cluster, " + ports, ""},
		"another name":           {"ipFamilyPolicy: PreferDualStack, " + ports, "type: ExternalName, externalName: db.example.com", ""},
		"another name, unlikely": {ports, "type: ExternalName, externalName: db.example.com, clusterIP: 10.96.0.6, clusterIPs: [10.96.0.6]", "spec.clusterIPs: Forbidden"},
		"an address no more":     {"externalIPs: [192.0.2.1], externalTrafficPolicy: Local, " + ports, ports, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := memory.New()
			apply := func(spec string) error {
				decoded, err := api.Decode([]byte("apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {"+spec+"}\n"), wholeKinds())
				if err != nil {
					t.Fatal(err)
				}
				_, err = newTarget(decoded[0], "default").apply(t.Context(), r)
				return err
			}
			if err := apply(test.before); err != nil {
				t.Fatal(err)
			}
			if _, err := registry.Modify(t.Context(), r, api.Service, registry.Key{Namespace: "default", Name: "web"}, given); err != nil {
				t.Fatal(err)
			}
			if err := apply(test.after); test.refused == "" && err != nil || test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)) {
				t.Errorf("it is %v, and is to be refused for %q", err, test.refused)
			}
		})
	}
}
