package plugins

import (
	"slices"
	"strings"
	"testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/plugin/networkpolicy"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// A registry that keeps other systems' keys gets the form of a plug-in that
// uses them; Kubernetes, which cannot, gets the other.
func TestFormsOfPlugins(t *testing.T) {
	everything := func(*registry.Kind) bool { return true }
	onKubernetes := func(k *registry.Kind) bool { return k.Layout == nil }
	isEtcd := func(p plugin.Plugin) bool { _, ok := p.(flannel.Plugin); return ok }
	isKubernetes := func(p plugin.Plugin) bool { _, ok := p.(flannel.Kubernetes); return ok }
	for name, c := range map[string]struct {
		serves func(*registry.Kind) bool
		is     func(plugin.Plugin) bool
	}{"etcd": {everything, isEtcd}, "Kubernetes": {onKubernetes, isKubernetes}} {
		p, err := Finder(c.serves)(flannel.Name)
		if err != nil || !c.is(plugin.BaseOf(p)) {
			t.Errorf("on %s flannel is a %T, %v", name, p, err)
		}
		// A plug-in with policies runs wherever the one does that it stands on, and on
		// the same form of it.
		if p, err := Finder(c.serves)("openshift-networkpolicy"); err != nil || p.Name() != "openshift-networkpolicy" {
			t.Errorf("on %s there is %T, %v", name, p, err)
		}
		p, err = Finder(c.serves)("flannel-networkpolicy")
		if err != nil || !c.is(plugin.BaseOf(p)) {
			t.Errorf("on %s flannel with policies is a %T, %v", name, p, err)
		}
	}
	// Where Grants are kept all go by them, in whatever mix or on standby.
	for _, name := range Names() {
		for serves, want := range map[string]bool{"etcd": true, "Kubernetes": false} {
			find := Finder(map[string]func(*registry.Kind) bool{"etcd": everything, "Kubernetes": onKubernetes}[serves])
			p, err := find(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range []plugin.Plugin{p, plugin.Standby(p), plugin.Mix(p, p)} {
				if slices.Contains(p.Kinds(), service.GrantKind) != want {
					t.Errorf("on %s %s reads Grants: %t", serves, name, !want)
				}
			}
		}
	}
	if p, err := Finder(func(*registry.Kind) bool { return false })(flannel.Name); err == nil {
		t.Errorf("a registry that serves nothing gets %T", p)
	}
	if p, err := Get("elephant"); err == nil {
		t.Errorf("there is %T", p)
	}
	if names := Names(); !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("the names are %v", names)
	}
}

func TestBase(t *testing.T) {
	for name, want := range map[string]string{"openshift-networkpolicy": "openshift-subnet", "flannel-networkpolicy": "flannel",
		"flannel": "flannel", "elephant": "elephant"} {
		if got := Base(name); got != want {
			t.Errorf("%s stands on %s, not on %s", name, got, want)
		}
	}
}

// What is enforced by nobody under a plug-in is what it does not read, and what to do
// about it names the plug-ins that do.
func TestUnenforced(t *testing.T) {
	for name, want := range map[string][]*registry.Kind{
		"openshift-subnet":        api.PolicyKinds,
		"flannel":                 api.PolicyKinds,
		"openshift-networkpolicy": {api.EgressNetworkPolicy},
		"flannel-networkpolicy":   {api.EgressNetworkPolicy},
		"elephant":                api.PolicyKinds,
	} {
		var mix []plugin.Plugin
		if p, err := Get(name); err == nil {
			mix = append(mix, p)
		}
		if got := Unenforced(mix...); !slices.Equal(got, want) {
			t.Errorf("%s does not enforce %d kinds, not %d", name, len(got), len(want))
		}
		beside, ok := Beside(name, mix).(networkpolicy.Unenforced)
		if !ok || len(beside.Kinds) != len(want) || beside.Unknown != (name == "elephant") {
			t.Errorf("beside %s runs %+v", name, beside)
		}
		if u := beside.Kinds[api.EgressNetworkPolicy]; !u.Never || !strings.HasPrefix(u.Remedy, "no plug-in enforces egressnetworkpolicies yet") {
			t.Errorf("%s: of EgressNetworkPolicies it says %+v", name, u)
		}
		if u, ok := beside.Kinds[api.NetworkPolicy]; ok && (u.Never || !strings.Contains(u.Remedy, "openshift-networkpolicy")) {
			t.Errorf("%s: of NetworkPolicies it says %+v", name, u)
		}
	}
	// While the cluster changes its plug-in, some nodes enforce what others do not.
	one, _ := Get("flannel")
	other, _ := Get("openshift-networkpolicy")
	if got := Unenforced(one, other); !slices.Equal(got, []*registry.Kind{api.EgressNetworkPolicy}) {
		t.Errorf("none of %s and %s enforces %d kinds", one.Name(), other.Name(), len(got))
	}
}

// TestNamesElsewhere asks for what there is by the names that others call it: who does is told
// of a plug-in that there is.
func TestNamesElsewhere(t *testing.T) {
	for name := range elsewhere {
		for _, name := range []string{name, strings.ToUpper(name)} {
			_, err := Get(name)
			if err == nil {
				t.Fatalf("there is a plug-in %q", name)
			}
			_, hint, _ := strings.Cut(err.Error(), "; ")
			if !slices.ContainsFunc(Names(), func(here string) bool {
				return slices.Contains(strings.Fields(strings.ReplaceAll(hint, ",", " ")), here)
			}) {
				t.Errorf("of %q it is said %q", name, err)
			}
		}
	}
}
