package cli

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/announce"
	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/registry"
)

// A VirtualAddress is shown with who says to answer for it, but for nodes whose agents are gone, and
// with nobody where the address is another's, whoever answers for that.
func TestVirtualAddressesAreShownWithTheirOwners(t *testing.T) {
	node := func(name, announces string) registry.Object {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		api.SetAnnounces(n, announces)
		api.SetNodeProblems(n, []api.Problem{{Kind: api.VirtualAddressKind.Kind, Name: "taken", Message: "192.0.2.4 is granted to Service default/web, and " + announce.NobodyMay}})
		return n
	}
	var all []registry.Object
	for name, a := range map[string]string{"one": "192.0.2.1", "none": "192.0.2.2", "lost": "192.0.2.3", "taken": "192.0.2.4"} {
		all = append(all, &api.VirtualAddress{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: api.VirtualAddressSpec{Address: a}})
	}
	cluster := explain.Cluster{Objects: registry.NewSnapshot(map[*registry.Kind][]registry.Object{
		api.Node: {node("node1", "192.0.2.1,192.0.2.4"), node("node2", "192.0.2.3")},
	}), Lost: map[string]bool{"node2": true}}
	var text strings.Builder
	if err := printTable(&text, api.VirtualAddressKind, all, false, false, time.Unix(0, 0), ownersIn(cluster)); err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(text.String()), "\n") {
		words := strings.Fields(line)
		if want := map[string]string{"NAME": "ANSWERED-BY", "one": "node1", "none": "<none>", "lost": "<none>", "taken": "<none>"}[words[0]]; words[3] != want {
			t.Errorf("it is %q instead of %s:\n%s", words[3], want, text.String())
		}
	}
}

// What a Service is called on the command line is what output calls it, too.
func TestServiceKey(t *testing.T) {
	for text, want := range map[string]string{
		"web": "default/web", "shop/web": "shop/web", "svc/web": "default/web", "service/shop/web": "shop/web", "pods/web": "pods/web",
		"": "", "shop/": "", "/web": "", "a/b/c": "",
	} {
		key, err := serviceKey(text, "default")
		if got := key.String(); want == "" && err == nil || want != "" && (err != nil || got != want) {
			t.Errorf("%q is %s (%v) instead of %s", text, got, err, want)
		}
	}
}

// get says which kinds there are.
func TestGetNamesKinds(t *testing.T) {
	long := newGet(&connection{}).Long
	for _, name := range kindNames() {
		if !strings.Contains(long, name) {
			t.Errorf("%s is missing", name)
		}
	}
	for _, line := range strings.Split(long, "\n") {
		if len(line) > 80 {
			t.Errorf("this line is too long: %s", line)
		}
	}
}
