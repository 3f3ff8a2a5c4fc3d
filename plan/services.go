package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// ServiceKey is a frontend.
type ServiceKey struct {
	Network  string
	Address  netip.Addr
	Port     uint16
	Protocol Protocol
}

// Compare orders keys.
func (k ServiceKey) Compare(o ServiceKey) int {
	return cmp.Or(strings.Compare(k.Network, o.Network), k.Address.Compare(o.Address),
		cmp.Compare(k.Protocol, o.Protocol), cmp.Compare(k.Port, o.Port))
}

// Backend is where a connection to a frontend may go.
type Backend struct {
	Address netip.Addr
	Port    uint16
	// Node is the node the backend runs on, where known.
	Node string
}

// Service is what a frontend stands for. A service without backends refuses.
type Service struct {
	// Backends must not be changed once the service is in a table.
	Backends []Backend
	// Affinity keeps a client at its backend for this long; 0 means not at all.
	Affinity time.Duration
	// LocalOnly sends to backends on the same node only.
	LocalOnly bool
	// Origin says where the entry comes from, as "Service default/web".
	Origin string
}

// Equal reports whether both are the same in every field.
func (s Service) Equal(o Service) bool {
	return slices.Equal(s.Backends, o.Backends) && s.Affinity == o.Affinity && s.LocalOnly == o.LocalOnly && s.Origin == o.Origin
}
