package service

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
)

// endpoint is who is behind a port of a Service.
type endpoint struct {
	at netip.AddrPort
	member
	origin string
}

// endpointsOf returns who is behind a port, by address, each once: where several slices
// have one, it is the one on the node, or the one that can take more.
func endpointsOf(p port, behind []*slice, node view) (all []endpoint) {
	index := make(map[netip.AddrPort]int)
	for _, s := range behind {
		for _, number := range s.ports[p.portName] {
			for _, m := range s.endpoints {
				e := endpoint{netip.AddrPortFrom(m.address, number), m, s.origin}
				i, there := index[e.at]
				switch {
				case !there:
					index[e.at] = len(all)
					all = append(all, e)
				case better(e, all[i], node.Node):
					all[i] = e
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b endpoint) int { return a.at.Compare(b.at) })
	return all
}

// better reports whether what one slice says of an endpoint counts more than what another
// one does.
func better(a, b endpoint, node string) bool {
	rank := func(e endpoint) (rank int) {
		for i, is := range []bool{e.ready || e.serving, e.ready, e.node == node} {
			if is {
				rank += 1 << i
			}
		}
		return rank
	}
	return cmp.Compare(rank(a), rank(b)) > 0
}

// every prefers nobody. Of endpoints on one node hints do not count.
func every(ready []endpoint) []endpoint { return ready }

func onNode(all []endpoint, node string) []endpoint {
	return slices.DeleteFunc(slices.Clone(all), func(e endpoint) bool { return e.node != node })
}

// bothFamilies are the families, of each of which endpoints are chosen apart.
var bothFamilies = []plan.Family{plan.IPv4, plan.IPv6}

// anyOf reports whether one of them is of a family.
func anyOf(all []endpoint, f plan.Family) bool {
	return slices.ContainsFunc(all, func(e endpoint) bool { return plan.FamilyOf(e.address) == f })
}

// choose returns who gets new connections, of each family: who is ready, and of these whom
// prefer returns; where nobody is ready, who still serves while it ends.
func choose(all []endpoint, prefer func(ready []endpoint) []endpoint) (chosen []endpoint) {
	for _, f := range bothFamilies {
		of := slices.DeleteFunc(slices.Clone(all), func(e endpoint) bool { return plan.FamilyOf(e.address) != f })
		ready := slices.DeleteFunc(slices.Clone(of), func(e endpoint) bool { return !e.ready })
		if len(ready) == 0 {
			chosen = append(chosen, slices.DeleteFunc(of, func(e endpoint) bool { return !e.serving || !e.terminating })...)
			continue
		}
		chosen = append(chosen, prefer(ready)...)
	}
	return chosen
}

// hinted returns those of the ready endpoints that say that the node is to use them, or else
// that its zone is; all of them where one says nothing, or none names either.
func (node view) hinted(ready []endpoint) []endpoint {
	for _, by := range []struct {
		hints func(endpoint) []string
		own   string
	}{{func(e endpoint) []string { return e.nodes }, node.Node}, {func(e endpoint) []string { return e.zones }, node.zone}} {
		if by.own == "" || slices.ContainsFunc(ready, func(e endpoint) bool { return len(by.hints(e)) == 0 }) {
			continue
		}
		near := slices.DeleteFunc(slices.Clone(ready), func(e endpoint) bool { return !slices.Contains(by.hints(e), by.own) })
		if len(near) > 0 {
			return near
		}
	}
	return ready
}

// frontend is an address and port where a Service is reached.
type frontend struct {
	rank    rank
	granted bool
	address netip.Addr
	port    uint16
	sources string
}

// frontends returns where a port of the Service is reached on the node.
func (c *compiled) frontends(p port, node view) (all []frontend) {
	for _, a := range c.clusterIPs {
		if granted := c.granted[what{address: a}]; granted || !node.grants {
			all = append(all, frontend{rankClusterIP, granted, a, p.port, ""})
		}
	}
	for _, a := range c.balanced {
		f := frontend{rankBalanced, false, a, p.port, ""}
		if c.guarded && !c.open[plan.FamilyOf(a)] {
			f.sources = c.name
		}
		all = append(all, f)
	}
	for _, a := range c.external {
		all = append(all, frontend{rankExternal, false, a, p.port, ""})
	}
	if !c.nodePorts || p.nodePort == 0 {
		return all
	}
	// Not at loopback addresses: what answers from another machine to one of these no kernel
	// takes.
	granted := c.granted[what{port: p.nodePort, protocol: p.protocol}]
	if node.grants && !granted {
		return all
	}
	for _, a := range node.Addresses {
		if slices.Contains(c.families, plan.FamilyOf(a)) {
			all = append(all, frontend{rankNodePort, granted, a, p.nodePort, ""})
		}
	}
	return all
}
