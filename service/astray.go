package service

import (
	"fmt"
	"net/netip"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
)

// nodePort is a port of all nodes.
type nodePort struct {
	protocol plan.Protocol
	port     uint16
}

// Astray returns which endpoints are themselves where Services are reached, a problem for each
// EndpointSlice that has some. What a node has given such an endpoint no node gives another one: it
// is dropped, or leaves the cluster. nodes are the addresses of nodes, at which Services have ports.
//
// It costs in proportion to the number of endpoints, of ports and of addresses at which Services are reached, and, where
// endpoints are astray, to that of backends.
func (c *Compiler) Astray(nodes map[netip.Addr]string) (all []Problem) {
	reached := make(map[netip.Addr]bool, len(c.claims))
	for key := range c.claims {
		reached[key.Address] = true
	}
	ports := c.nodePorts()
	var of *compiled // whose slices those are that come one after the other
	var used map[*slice][]nodePort
	for _, s := range c.slices.All() {
		if is := c.compiled[s.of]; is != of {
			of, used = is, nil
		}
		if of == nil {
			continue
		}
		var first string
		var some []string
		more := 0
		for _, e := range s.endpoints {
			isNode := len(ports) > 0 && nodes[e.address] != ""
			if !reached[e.address] && !isNode {
				continue
			}
			if used == nil {
				used = of.used(c.behind(s.of))
			}
			for _, at := range used[s] {
				whose := c.frontendOf(plan.ServiceKey{Network: plan.DefaultNetwork, Address: e.address, Protocol: at.protocol, Port: at.port})
				if whose == "" && isNode {
					whose = ports[at]
				}
				switch {
				case whose == "":
				case len(some) == printable.MaxNamed:
					more++
				default:
					if first == "" {
						first = whose
					}
					some = append(some, netip.AddrPortFrom(e.address, at.port).String())
				}
			}
		}
		if len(some) == 0 {
			continue
		}
		what, are := "endpoint ", " is where Service "+first+" is reached"
		if len(some)+more > 1 {
			what, are = "endpoints ", " are where Services are reached, the first of them Service "+first
		}
		all = append(all, Problem{Service: s.of, Kind: api.EndpointSlice, Key: s.key, Message: fmt.Sprintf("%s%s%s, which hands on nothing that comes by another Service: name what is behind it", what, printable.Few(some, more), are)})
	}
	return all
}

// used returns which ports of each slice a Service uses, in the order of its own: none where its backends are too
// many, as then none gets anything.
func (c *compiled) used(behind []*slice) map[*slice][]nodePort {
	all := make(map[*slice][]nodePort)
	if c.tooMany {
		return all
	}
	found := endsOf(c.service, behind)
	for _, p := range c.ports {
		for _, of := range found[p.portName].at {
			all[of.slice] = append(all[of.slice], nodePort{p.protocol, of.number})
		}
	}
	return all
}

// frontendOf returns which Service has an address and port, or all of the address, "" for none.
func (c *Compiler) frontendOf(key plan.ServiceKey) string {
	for _, key := range []plan.ServiceKey{key, {Network: key.Network, Address: key.Address}} {
		// Where the API server is, no Service is.
		if all := c.claims[key]; len(all) > 0 {
			if len(all.first().sides()) == 0 {
				return ""
			}
			return all.first().by.name
		}
	}
	return ""
}

// nodePorts returns which Service has a port of nodes.
func (c *Compiler) nodePorts() map[nodePort]string {
	of := make(map[nodePort]string)
	for _, s := range c.services.All() {
		if !s.nodePorts {
			continue
		}
		granted := c.granted(s)
		for _, p := range s.ports {
			at := nodePort{p.protocol, p.nodePort}
			if p.nodePort != 0 && of[at] == "" && (!c.node.grants || granted.has(what{port: p.nodePort, protocol: p.protocol})) {
				of[at] = s.name
			}
		}
	}
	return of
}
