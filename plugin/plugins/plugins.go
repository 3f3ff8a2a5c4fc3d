// Package plugins lists the plug-ins there are.
package plugins

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/plugin/networkpolicy"
	"github.com/weftnet/weft/plugin/openshift"
	"github.com/weftnet/weft/plugin/services"
	"github.com/weftnet/weft/registry"
)

// all are the plug-ins. One that comes in several forms, for registries that
// differ in what they can hold, is there once for each, the preferred first. All have
// Services, below the policies, whose compiler may leave work for later.
var all = []plugin.Plugin{
	services.WithGrants(openshift.Subnet{}, "openshift-subnet"), services.On(openshift.Subnet{}, "openshift-subnet"),
	plugin.Stack("openshift-networkpolicy", openshift.Subnet{}, services.WithGrants, networkpolicy.On),
	plugin.Stack("openshift-networkpolicy", openshift.Subnet{}, services.On, networkpolicy.On),
	services.WithGrants(flannel.Plugin{}, "flannel"), services.On(flannel.Kubernetes{}, "flannel"),
	plugin.Stack("flannel-networkpolicy", flannel.Plugin{}, services.WithGrants, networkpolicy.On),
	plugin.Stack("flannel-networkpolicy", flannel.Kubernetes{}, services.On, networkpolicy.On),
}

// Base returns the name of the plug-in that gives addresses and ways under one of that
// name, which may add policies to it: its own configuration is that one's. Of a plug-in
// that there is not, it is the name itself.
func Base(name string) string {
	p, err := Get(name)
	if err != nil {
		return name
	}
	return plugin.BaseOf(p).Name()
}

// Finder returns what finds a plug-in by name among those all of whose kinds
// the registry serves. Its error names those there are.
func Finder(serves func(*registry.Kind) bool) func(name string) (plugin.Plugin, error) {
	return func(name string) (plugin.Plugin, error) {
		known := false
		for _, p := range all {
			if p.Name() != name {
				continue
			}
			known = true
			if !slices.ContainsFunc(p.Kinds(), func(k *registry.Kind) bool { return !serves(k) }) {
				return p, nil
			}
		}
		if known {
			return nil, fmt.Errorf("plug-in %q needs a registry that can hold its objects, and this one cannot", name)
		}
		instead := elsewhere[strings.ToLower(name)]
		if instead != "" {
			instead = "; " + instead
		}
		return nil, fmt.Errorf("plug-in %q is unknown: there are %s%s", name, strings.Join(Names(), ", "), instead)
	}
}

const noMultitenant = "what openshift-multitenant isolates, NetworkPolicies can isolate under openshift-networkpolicy"

// elsewhere says of names by which others know what there is here, in lower case, what it is
// here. OpenShift 3 had the first in the networkPluginName of its nodes, OpenShift 4 calls
// them all OpenShiftSDN.
var elsewhere = map[string]string{
	"redhat/openshift-ovs-subnet":        "it is openshift-subnet here",
	"redhat/openshift-ovs-networkpolicy": "it is openshift-networkpolicy here",
	"redhat/openshift-ovs-multitenant":   noMultitenant,
	"openshift-multitenant":              noMultitenant,
	"openshift-sdn":                      "it is openshift-subnet here, or openshift-networkpolicy where policies are enforced",
	"openshiftsdn":                       "it is openshift-subnet here, or openshift-networkpolicy where policies are enforced",
	"kube-flannel":                       "it is flannel here",
	"canal":                              "flannel with policies is flannel-networkpolicy here",
}

// Beside returns what runs for the cluster beside the work of the plug-ins that it uses,
// of which the one of a given name is that of most nodes: it says of policies that
// nobody enforces that this is so. mix is empty where there is no such plug-in. Beside is
// nil where all kinds of policies are enforced.
func Beside(name string, mix []plugin.Plugin) plugin.ClusterRunner {
	unread := make(map[*registry.Kind]networkpolicy.Unread)
	for _, k := range Unenforced(mix...) {
		unread[k] = networkpolicy.Unread{Never: len(Enforcers(k)) == 0, Remedy: Remedy(k)}
	}
	if len(unread) == 0 {
		return nil
	}
	return networkpolicy.Unenforced{Plugin: name, Unknown: len(mix) == 0, Kinds: unread}
}

// Unenforced returns the kinds of policies that none of some plug-ins, nil for one that
// there is not, enforces, as none reads them.
func Unenforced(mix ...plugin.Plugin) []*registry.Kind {
	return slices.DeleteFunc(slices.Clone(api.PolicyKinds), func(k *registry.Kind) bool {
		return slices.ContainsFunc(mix, func(p plugin.Plugin) bool { return p != nil && slices.Contains(p.Kinds(), k) })
	})
}

// Plain returns what a plug-in says of an object without the plug-in's name before it, which
// plans have that are made of several: where none but that one reads objects of the kind, it is
// the same fact, be the plug-in used or beside another.
func Plain(kind, message string) string {
	name, plain, named := strings.Cut(message, ": ")
	reads := false
	for _, p := range all {
		base := plugin.BaseOf(p)
		if !named || !slices.ContainsFunc(base.Kinds(), func(k *registry.Kind) bool { return k.Kind == kind }) {
			continue
		}
		if base.Name() != name {
			return message
		}
		reads = true
	}
	if !reads {
		return message
	}
	return plain
}

// Remedy says what to do about policies of a kind that the cluster's plug-in does
// not enforce.
func Remedy(k *registry.Kind) string {
	names := Enforcers(k)
	if len(names) == 0 {
		return "no plug-in enforces " + k.Plural + " yet: write clusternetworkpolicies that say the same, or delete them"
	}
	return "choose a plug-in that enforces policies, which are " + strings.Join(names, ", ") + ", or delete them"
}

// Enforcers returns the names of the plug-ins that enforce a kind of policies, in
// alphabetical order.
func Enforcers(k *registry.Kind) []string {
	var names []string
	for _, p := range all {
		if slices.Contains(p.Kinds(), k) {
			names = append(names, p.Name())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Get returns the preferred form of the plug-in of that name, for those who ask
// without a registry.
func Get(name string) (plugin.Plugin, error) {
	return Finder(func(*registry.Kind) bool { return true })(name)
}

// Kinds lists the kinds that any form of any plug-in reads.
func Kinds() []*registry.Kind {
	var kinds []*registry.Kind
	for _, p := range all {
		for _, k := range p.Kinds() {
			if !slices.Contains(kinds, k) {
				kinds = append(kinds, k)
			}
		}
	}
	return kinds
}

// Names lists the plug-ins in alphabetical order.
func Names() []string {
	var names []string
	for _, p := range all {
		names = append(names, p.Name())
	}
	slices.Sort(names)
	return slices.Compact(names)
}
