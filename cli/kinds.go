package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
)

// kinds lists every kind there is: those that all share, and those of the
// plug-ins. What a registry hands out of them may be reduced to what Weft uses.
var kinds = sync.OnceValue(func() []*registry.Kind {
	all := slices.Clone(api.Kinds)
	for _, k := range plugins.Kinds() {
		if !slices.Contains(all, k) {
			all = append(all, k)
		}
	}
	return all
})

// wholeKinds lists the same kinds with all that an object has, for people to see
// and to change.
var wholeKinds = sync.OnceValue(func() []*registry.Kind {
	var all []*registry.Kind
	for _, k := range kinds() {
		whole := *k
		whole.Keep = nil
		all = append(all, &whole)
	}
	return all
})

// whole returns the kind of whole objects of a kind.
func whole(k *registry.Kind) *registry.Kind { return wholeKinds()[slices.Index(kinds(), k)] }

// shortNames are what kubectl calls kinds for short.
var shortNames = map[string]string{"no": "nodes", "po": "pods", "ns": "namespaces", "svc": "services",
	"netpol": "networkpolicies", "cnp": "clusternetworkpolicies"}

// kindNamed finds a kind by its plural, singular or short name in any case,
// with or without the group.
func kindNamed(name string) (*registry.Kind, error) {
	wanted := strings.ToLower(name)
	wanted = cmp.Or(shortNames[wanted], wanted)
	for _, k := range kinds() {
		for _, n := range []string{k.Plural, k.Singular} {
			if wanted == n || k.Group != "" && wanted == n+"."+k.Group {
				return k, nil
			}
		}
	}
	if wanted, _, _ := strings.Cut(wanted, "."); wanted == "netnamespaces" || wanted == "netnamespace" {
		return nil, fmt.Errorf("weft does not read %s, as they keep no namespace apart yet, which networkpolicies do: those that a cluster of Kubernetes has are shown by kubectl get netnamespaces", name)
	}
	return nil, fmt.Errorf("there is no kind %q: there are %s", name, strings.Join(kindNames(), ", "))
}

// kindNames are the plural names of all kinds.
func kindNames() []string {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.Plural)
	}
	return names
}

// reference names an object or all of a kind, from arguments of the forms
// "KIND NAME", "KIND/NAME" and "KIND".
func reference(args []string, namespace string) (*registry.Kind, registry.Key, error) {
	kind, name, _ := strings.Cut(args[0], "/")
	if len(args) > 1 {
		if name != "" {
			return nil, registry.Key{}, fmt.Errorf("%q names an object already: leave out %q", args[0], args[1])
		}
		name = args[1]
	}
	k, err := kindNamed(kind)
	if err != nil {
		return nil, registry.Key{}, err
	}
	key := registry.Key{Name: name}
	if k.Namespaced {
		key.Namespace = namespace
	}
	return k, key, nil
}

// completeReference completes a kind, then the names of its objects.
func (c *connection) completeReference(namespace func() string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return kindNames(), cobra.ShellCompDirectiveNoFileComp
		case 1:
			k, err := kindNamed(args[0])
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return c.names(cmd, k, namespace()), cobra.ShellCompDirectiveNoFileComp
		default:
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
	}
}

// names lists the objects of a kind for completion; none when the registry
// does not answer.
func (c *connection) names(cmd *cobra.Command, k *registry.Kind, namespace string) []string {
	reg, err := c.open(cmd.Context())
	if err != nil {
		return nil
	}
	defer reg.Close()
	objects, _, err := reg.List(cmd.Context(), k)
	if err != nil {
		return nil
	}
	var names []string
	for _, o := range objects {
		if !k.Namespaced || o.GetNamespace() == namespace {
			names = append(names, o.GetName())
		}
	}
	return names
}
