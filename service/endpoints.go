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
	*member
	origin string
}

// ends are what is behind the ports of a Service, by what the Service and its slices call them. There may be
// very many ports and very many slices, so that no port looks through all slices.
type ends map[portName]*end

// end is what is behind a port.
type end struct {
	// named says that a slice has the port, and at are those slices of these that have endpoints.
	named bool
	at    []numbered
	// backends is how many endpoints these have, of which several may be the same.
	backends int
}

// numbered is a slice, and the number of a port at its endpoints.
type numbered struct {
	*slice
	number uint16
}

func (e *end) put(b *slice, number uint16) {
	e.named = true
	is, last := numbered{b, number}, len(e.at)-1
	if n := len(b.endpoints); n > 0 && (last < 0 || e.at[last] != is) {
		e.at = append(e.at, is)
		e.backends += n
	}
}

// endsOf returns what is behind all ports of a Service.
//
// Kubernetes writes slices after the Service, and one after the other. So a slice that does not call a
// port as the Service does by now has it all the same by the number that the Service says its pods
// have, where it has that number by a name that no port of the Service has. Without that a Service of which a
// port is called otherwise would lose its backends for a while.
func endsOf(s *service, behind []*slice) ends {
	all := make(ends, len(s.ports))
	for _, p := range s.ports {
		if all[p.portName] == nil {
			all[p.portName] = new(end)
		}
	}
	var targets map[target][]portName
	left := MaxBackends // what is more has none
	for _, b := range behind {
		for _, of := range b.ports {
			if e := all[of.portName]; e != nil {
				e.put(b, of.number)
				continue
			}
			if len(b.endpoints) == 0 || left < 0 {
				continue
			}
			if targets == nil {
				targets = s.targets()
			}
			for _, name := range targets[target{of.protocol, of.number}] {
				if left--; left >= 0 && !b.calls(name) {
					all[name].put(b, of.number)
					left -= len(b.endpoints) - 1
				}
			}
		}
	}
	return all
}

// target is a port of pods.
type target struct {
	protocol plan.Protocol
	number   uint16
}

// targets returns which ports are to lead to a port of pods, by name.
func (s *service) targets() map[target][]portName {
	all, seen := make(map[target][]portName), make(map[port]bool)
	for _, p := range s.ports {
		if once := (port{portName: p.portName, target: p.target}); p.target != 0 && !seen[once] {
			seen[once] = true
			at := target{p.protocol, p.target}
			all[at] = append(all[at], p.portName)
		}
	}
	return all
}

// backends returns how many endpoints there are for some ports together.
func (e ends) backends(ports []port) (n int) {
	for _, p := range ports {
		n += e[p.portName].backends
	}
	return n
}

// endpoints returns who is behind a port, by address, each once: where several slices
// have one, it is the one on the node, or the one that can take more.
func (e *end) endpoints(node view) []endpoint {
	if e == nil {
		return nil
	}
	all := make([]endpoint, 0, e.backends)
	for _, of := range e.at {
		for i := range of.endpoints {
			m := &of.endpoints[i]
			all = append(all, endpoint{netip.AddrPortFrom(m.address, of.number), m, of.origin})
		}
	}
	slices.SortStableFunc(all, func(a, b endpoint) int { return cmp.Or(a.at.Compare(b.at), -compareSaid(a, b, node.Node)) })
	return slices.CompactFunc(all, func(a, b endpoint) bool { return a.at == b.at })
}

// compareSaid compares how much counts what two slices say of an endpoint.
func compareSaid(a, b endpoint, node string) int {
	rank := func(e endpoint) (rank int) {
		for i, is := range [...]bool{e.ready || e.serving, e.ready, e.node == node} {
			if is {
				rank += 1 << i
			}
		}
		return rank
	}
	return cmp.Compare(rank(a), rank(b))
}

// every prefers nobody. Of endpoints on one node hints do not count.
func every(ready []endpoint) []endpoint { return ready }

func onNode(all []endpoint, node string) []endpoint {
	return only(all, func(e endpoint) bool { return e.node == node })
}

// bothFamilies are the families, of each of which endpoints are chosen apart.
var bothFamilies = []plan.Family{plan.IPv4, plan.IPv6}

// anyOf reports whether one of them is of a family.
func anyOf(all []endpoint, f plan.Family) bool {
	return slices.ContainsFunc(all, func(e endpoint) bool { return plan.FamilyOf(e.address) == f })
}

// choose returns who gets new connections, of each family: who is ready, and of these whom
// prefer returns; where nobody is ready, who still serves while it ends. All are in order, IPv4
// first, and so are the chosen.
func choose(all []endpoint, prefer func(ready []endpoint) []endpoint) (chosen []endpoint) {
	isReady := func(e endpoint) bool { return e.ready }
	if !slices.ContainsFunc(all, func(e endpoint) bool { return !e.ready }) && (len(all) == 0 || plan.FamilyOf(all[0].address) == plan.FamilyOf(all[len(all)-1].address)) {
		return prefer(all) // most often
	}
	for _, f := range bothFamilies {
		of := only(all, func(e endpoint) bool { return plan.FamilyOf(e.address) == f })
		ready := only(of, isReady)
		if len(ready) == 0 {
			chosen = append(chosen, only(of, func(e endpoint) bool { return e.serving && e.terminating })...)
			continue
		}
		chosen = append(chosen, prefer(ready)...)
	}
	return chosen
}

// only returns those of which something is true.
func only(all []endpoint, is func(endpoint) bool) (some []endpoint) {
	for _, e := range all {
		if is(e) {
			some = append(some, e)
		}
	}
	return some
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
		names := func(e endpoint) bool {
			_, found := slices.BinarySearch(by.hints(e), by.own)
			return found
		}
		if near := only(ready, names); len(near) > 0 {
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
}

// frontends returns where a port of the Service is reached on the node.
func (c *compiled) frontends(p port, granted granted, node view) (all []frontend) {
	for _, a := range c.clusterIPs {
		if has := granted.has(what{address: a}); (has || !node.grants) && !slices.Contains(c.pooled.taken, a) {
			all = append(all, frontend{rankClusterIP, has, a, p.port})
		}
	}
	for _, a := range c.balanced {
		if c.pooled.outside[a] == pooledOthers {
			continue
		}
		all = append(all, frontend{rankBalanced, c.pooled.outside[a] == pooledOwn, a, p.port})
	}
	for _, a := range c.external {
		if c.pooled.outside[a] != pooledOthers {
			all = append(all, frontend{rankExternal, c.pooled.outside[a] == pooledOwn, a, p.port})
		}
	}
	if !c.nodePorts || p.nodePort == 0 {
		return all
	}
	// Not at loopback addresses: what answers from another machine to one of these no kernel
	// takes.
	has := granted.has(what{port: p.nodePort, protocol: p.protocol})
	if node.grants && !has {
		return all
	}
	for _, a := range node.Addresses {
		if slices.Contains(c.families, plan.FamilyOf(a)) {
			all = append(all, frontend{rankNodePort, has, a, p.nodePort})
		}
	}
	return all
}
