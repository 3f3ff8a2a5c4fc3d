package linux

import (
	"net/netip"

	"github.com/weftnet/weft/plan"
)

// scope is whom an egress rule holds for. The zero scope is the network's.
type scope struct {
	endpoint string
	tagged   bool
	tag      plan.Tag
}

func scopeOf(k plan.EgressKey) scope { return scope{k.Interface, k.Tagged, k.Tag} }

// egressScopes groups the rules by scope and leaves out families.
func egressScopes(p *plan.Plan) map[scope]map[netip.Prefix]plan.Egress {
	scopes := map[scope]map[netip.Prefix]plan.Egress{}
	for k, e := range p.Egress.All() {
		s := scopeOf(k)
		if scopes[s] == nil {
			scopes[s] = map[netip.Prefix]plan.Egress{}
		}
		scopes[s][k.Destination] = e
	}
	return scopes
}
