package plugin

import (
	"testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

func TestParseOrigin(t *testing.T) {
	kinds := []*registry.Kind{api.NetworkPolicy, api.ClusterNetworkPolicy}
	for _, test := range []struct {
		origin string
		kind   *registry.Kind
		key    registry.Key
	}{
		{"NetworkPolicy default/web ingress[0]", api.NetworkPolicy, registry.Key{Namespace: "default", Name: "web"}},
		{"NetworkPolicy default/web ingress isolation", api.NetworkPolicy, registry.Key{Namespace: "default", Name: "web"}},
		{"NetworkPolicy default/web", api.NetworkPolicy, registry.Key{Namespace: "default", Name: "web"}},
		{`ClusterNetworkPolicy deny-all egress[2] "a/b c"`, api.ClusterNetworkPolicy, registry.Key{Name: "deny-all"}},
		{origin: "ClusterNetworkPolicy default/web ingress[0]"},
		{origin: "NetworkPolicy web ingress[0]"},
		{origin: "NetworkPolicy a/b/c"},
		{origin: "NetworkPolicy /web"},
		{origin: "NetworkPolicy default/"},
		{origin: "NetworkPolicy "},
		{origin: "NetworkPolicy"},
		{origin: "Node node1"},
		{origin: ""},
	} {
		kind, key, ok := ParseOrigin(kinds, test.origin)
		if kind != test.kind || key != test.key || ok != (test.kind != nil) {
			t.Errorf("%q names %v %s (%t)", test.origin, kind, key, ok)
		}
	}
}
