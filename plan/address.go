package plan

import "net/netip"

// Address is an address in the network in which it means something. The same
// IP is another endpoint's in another network.
type Address struct {
	Network string
	IP      netip.Addr
}

// String returns the address for people: the IP, with the name of the network
// unless that is DefaultNetwork.
func (a Address) String() string {
	if a.Network == DefaultNetwork {
		return a.IP.String()
	}
	return a.IP.String() + " in network " + a.Network
}
