package plugin

import (
	"slices"
	"strings"

	"github.com/weftnet/weft/registry"
)

// ParseOrigin returns the object that the origin of an entry in a plan names:
// "NetworkPolicy default/web ingress[0]" is of the NetworkPolicy default/web.
// ok is false where none of kinds is meant.
func ParseOrigin(kinds []*registry.Kind, origin string) (kind *registry.Kind, key registry.Key, ok bool) {
	word, rest, _ := strings.Cut(origin, " ")
	name, _, _ := strings.Cut(rest, " ")
	i := slices.IndexFunc(kinds, func(k *registry.Kind) bool { return k.Kind == word })
	if i < 0 {
		return nil, registry.Key{}, false
	}
	namespace, last, namespaced := strings.Cut(name, "/")
	if !namespaced {
		namespace, last = "", name
	}
	if namespaced != kinds[i].Namespaced || last == "" || namespaced && namespace == "" || strings.Contains(last, "/") {
		return nil, registry.Key{}, false
	}
	return kinds[i], registry.Key{Namespace: namespace, Name: last}, true
}
