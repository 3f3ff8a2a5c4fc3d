package plan

import (
	"net/netip"
	"slices"
	"strings"
)

// EndpointKey names an endpoint by the node's interface that leads to it.
type EndpointKey struct{ Interface string }

// Compare orders keys.
func (k EndpointKey) Compare(o EndpointKey) int { return strings.Compare(k.Interface, o.Interface) }

// Endpoint is something on this node that owns addresses: a pod, as a rule.
type Endpoint struct {
	// Name is the endpoint's name for people, "namespace/pod" for a pod.
	Name string
	// Network is the network in which Addresses are unique.
	Network string
	// Addresses are the endpoint's own, the primary one first. The slice must
	// not be changed once the endpoint is in a table.
	Addresses []netip.Addr
	// MAC is the address of the endpoint's own end of the link.
	MAC MAC
	// Tag is what other endpoints' policies see it as.
	Tag Tag
	// IngressPolicy and EgressPolicy name the sets of Verdicts that hold for
	// connections to and from the endpoint; empty means that all is allowed.
	IngressPolicy, EgressPolicy string
	// IngressRate and EgressRate limit bandwidth towards and from the
	// endpoint, in bits per second; 0 means no limit.
	IngressRate, EgressRate uint64
	// AntiSpoof drops what the endpoint sends from addresses not its own.
	AntiSpoof bool
	// Origin says where the entry comes from, as "Kind name", for people.
	Origin string
}

// Equal reports whether both are the same in every field.
func (e Endpoint) Equal(o Endpoint) bool {
	return e.Name == o.Name && e.Network == o.Network && slices.Equal(e.Addresses, o.Addresses) &&
		e.MAC == o.MAC && e.Tag == o.Tag && e.IngressPolicy == o.IngressPolicy && e.EgressPolicy == o.EgressPolicy &&
		e.IngressRate == o.IngressRate && e.EgressRate == o.EgressRate && e.AntiSpoof == o.AntiSpoof && e.Origin == o.Origin
}
