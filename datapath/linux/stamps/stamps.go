// Package stamps has the names and numbers by which what a data plane makes in a kernel
// is told from all else.
package stamps

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
)

// Stamps are the names and numbers by which a data plane tells what it made from
// all else. It sees, changes and removes nothing that has others. So several may
// stand in one network namespace, if no two have any of these in common.
type Stamps struct {
	// Bridge is the device that holds the pools' gateways.
	Bridge string
	// TunnelPrefix comes before a tunnel's name in that of its device.
	TunnelPrefix string
	// Table, PolicyTable and ServiceTable are nftables tables of the family inet.
	Table, PolicyTable, ServiceTable string
	// Protocol marks routes, rules and neighbours.
	Protocol uint8
	// RoutingTable has the routes that hold for what endpoints send only.
	RoutingTable int
	// Metric is added to those of routes. Where two data planes have a route to one
	// prefix, the lower is taken.
	Metric int
	// Priority is that of the rules that have RoutingTable asked, before the main
	// one's 32766. The next number is taken, too, by rules to everywhere.
	Priority int
	// Group marks interfaces that lead to endpoints.
	Group uint32
	// LogGroup is the netlink group of what is denied and dropped.
	LogGroup uint16
}

// Default are those of a data plane that is told no others.
var Default = Stamps{
	Bridge:       "weft0",
	TunnelPrefix: "weft-",
	Table:        "weft",
	PolicyTable:  "weft-policy",
	ServiceTable: "weft-services",
	Protocol:     87, // 'W'
	RoutingTable: 87,
	Priority:     8700,
	Group:        0x77656674, // "weft"
	LogGroup:     87,
}

// Check says what of the stamps cannot be.
func (s Stamps) Check() error {
	for _, name := range []string{s.Bridge, s.TunnelPrefix} {
		if !datapath.OwnsInterface(name) || len(name) >= unix.IFNAMSIZ {
			return fmt.Errorf("stamps: a device's name begins with %q and has less than %d bytes; %q does not", datapath.InterfacePrefix, unix.IFNAMSIZ, name)
		}
	}
	switch {
	case strings.HasPrefix(s.Bridge, s.TunnelPrefix):
		return fmt.Errorf("stamps: the bridge %s would be taken for a tunnel's device, whose names begin with %s; give one another name", s.Bridge, s.TunnelPrefix)
	case !s.apart():
		return fmt.Errorf("stamps: the nftables tables %q must each have a name of its own", s.Tables())
	case s.Protocol <= unix.RTPROT_STATIC:
		return fmt.Errorf("stamps: the routing protocol %d is none of its own; it must be one from %d to 255", s.Protocol, unix.RTPROT_STATIC+1)
	case s.RoutingTable <= 0 || s.RoutingTable >= unix.RT_TABLE_COMPAT && s.RoutingTable <= unix.RT_TABLE_LOCAL:
		return fmt.Errorf("stamps: %d is no routing table of its own", s.RoutingTable)
	case s.Metric < 0:
		return fmt.Errorf("stamps: the metric %d is less than 0", s.Metric)
	case s.Priority <= 0 || s.Priority >= 32765:
		return fmt.Errorf("stamps: the rules' priority is %d; it must come before the main table's, 32766, by two at least", s.Priority)
	case s.Group == 0:
		return fmt.Errorf("stamps: the group 0 is that of all other interfaces; give endpoints' another")
	}
	return nil
}

// Tables are the names of the nftables tables.
func (s Stamps) Tables() []string { return []string{s.Table, s.PolicyTable, s.ServiceTable} }

// apart reports whether each table has a name, and no other the same.
func (s Stamps) apart() bool {
	seen := map[string]bool{"": true}
	for _, name := range s.Tables() {
		if seen[name] {
			return false
		}
		seen[name] = true
	}
	return true
}
