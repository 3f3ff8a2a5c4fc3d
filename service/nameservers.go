package service

import (
	"net/netip"
	"slices"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// NameServers are the addresses and ports of name servers that a ClusterConfig names: those
// at which nodes' own ones are to answer, and those that these ask. Who drew what is sent
// there would answer for all names, so they are no Service's by its externalIPs, which whoever writes
// it chooses as he likes. A Service may be a name server, by an address or port that it was
// given; and the Service at whose addresses pods ask by any, as names are answered there anyway.
type NameServers struct {
	// At are these, in order, with keys of the table Services that have no side.
	At []plan.ServiceKey
	// Service is the one that may claim them.
	Service registry.Key
}

// NameServersOf returns those of a node with some addresses of its own. Where nodes do not
// answer for names there are none.
func NameServersOf(config *api.ClusterConfig, node []netip.Addr) NameServers {
	dns := config.Spec.DNS
	if dns.Server != api.NamesByNodes {
		return NameServers{}
	}
	s := NameServers{Service: dns.ServiceKey()}
	put := func(at netip.AddrPort) {
		for _, protocol := range []plan.Protocol{plan.UDP, plan.TCP} {
			s.At = append(s.At, plan.ServiceKey{Network: plan.DefaultNetwork, Address: at.Addr(), Protocol: protocol, Port: at.Port()})
		}
	}
	for _, a := range dns.AnswersAt(node) {
		put(netip.AddrPortFrom(a, api.DNSPort))
	}
	asked := slices.Clone(dns.Upstreams)
	for _, stub := range dns.StubDomains {
		asked = append(asked, stub.Servers...)
	}
	for _, text := range asked {
		if at, err := api.ParseNameServer(text); err == nil {
			put(at)
		}
	}
	slices.SortFunc(s.At, plan.ServiceKey.Compare)
	s.At = slices.Compact(s.At)
	return s
}

func (s NameServers) equal(o NameServers) bool {
	return s.Service == o.Service && slices.Equal(s.At, o.At)
}

// nobodys is the key of what claims name servers, which is no Service.
var nobodys registry.Key

// keepNames has c claim name servers, before all externalIPs but those of their Service.
func (c *compiled) keepNames(s NameServers) {
	c.service = &service{key: nobodys, created: time.Unix(1<<40, 0)} // behind the Service itself
	for _, key := range s.At {
		c.claims = append(c.claims, &claim{by: c, rank: rankNameServer, key: key})
	}
}

// has reports whether a Service may claim an address and port as a name server.
func (s NameServers) has(of registry.Key, key plan.ServiceKey) bool {
	if of != s.Service {
		return false
	}
	_, is := slices.BinarySearchFunc(s.At, key, plan.ServiceKey.Compare)
	return is
}
