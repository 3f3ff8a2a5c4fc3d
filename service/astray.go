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
// It costs in proportion to the number of endpoints and of addresses at which Services are reached.
func (c *Compiler) Astray(nodes map[netip.Addr]string) (all []Problem) {
	reached := make(map[netip.Addr]bool, len(c.claims))
	for key := range c.claims {
		reached[key.Address] = true
	}
	ports := c.nodePorts()
	for _, s := range c.slices.All() {
		of := c.compiled[s.of]
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
			for _, p := range of.ports {
				for _, number := range s.numbers(p.portName) {
					whose := c.frontendOf(plan.ServiceKey{Network: plan.DefaultNetwork, Address: e.address, Protocol: p.protocol, Port: number.number})
					if whose == "" && isNode {
						whose = ports[nodePort{p.protocol, number.number}]
					}
					switch {
					case whose == "":
					case len(some) == printable.MaxNamed:
						more++
					default:
						if first == "" {
							first = whose
						}
						some = append(some, netip.AddrPortFrom(e.address, number.number).String())
					}
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
		all = append(all, Problem{s.of, api.EndpointSlice, s.key, fmt.Sprintf("%s%s%s, which hands on nothing that comes by another Service: name what is behind it", what, printable.Few(some, more), are)})
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
