package service

import (
	"cmp"
	"maps"
	"slices"

	"github.com/weftnet/weft/registry"
)

// size is how much Services make, at most.
type size struct{ frontends, backends, ranges int }

func (s size) plus(o size) size {
	return size{s.frontends + o.frontends, s.backends + o.backends, s.ranges + o.ranges}
}

func (s size) minus(o size) size {
	return size{s.frontends - o.frontends, s.backends - o.backends, s.ranges - o.ranges}
}

// within reports whether it is no more than another.
func (s size) within(o size) bool {
	return s.frontends <= o.frontends && s.backends <= o.backends && s.ranges <= o.ranges
}

// budget is how much the Services of a namespace may make together. Only tests set it.
var budget = size{MaxFrontendsOfNamespace, MaxBackendsOfNamespace, MaxRangesOfNamespace}

// excess says what of a Service is more than those of its namespace may make.
type excess struct{ frontends, backends, ranges bool }

// space is what the Services of a namespace make together.
type space struct {
	// sum is what all would make, also those that may not.
	sum size
	// over are those of which something is more than may be.
	over map[registry.Key]excess
}

// sizeOf returns how much a Service makes, the same on all nodes: nothing where it is more than
// one Service may make. Endpoints on the node itself, which may be in two sets there, count once.
func (s *service) sizeOf(behind []*slice) (n size) {
	at := len(s.clusterIPs) + len(s.balanced) + len(s.external)
	if s.nodePorts {
		at += len(s.families)
	}
	if n.frontends = at * len(s.ports); n.frontends > MaxFrontends {
		return size{}
	}
	if n.backends = endsOf(s, behind).backends(s.ports); n.backends > MaxBackends {
		n.backends = 0
	}
	if n.ranges = s.mostAdmitted(); n.ranges > MaxRanges {
		n.ranges = 0
	}
	return n
}

// account brings what namespaces make to what some of their Services are now, and returns those others of which
// more or less is beyond the budget for that, the older ones of a namespace first. It costs
// in proportion to the Services that changed, and, in a namespace that goes beyond its budget, to all.
func (c *Compiler) account(changed map[registry.Key]bool) (others []registry.Key) {
	touched := make(map[string]bool)
	for key := range changed {
		var now size
		if s := c.service(key); s != nil {
			now = s.sizeOf(c.behind(key))
		}
		was := c.sizes[key]
		if touched[key.Namespace] = true; now == was {
			continue // its age may be another
		}
		if c.sizes[key] = now; now == (size{}) {
			delete(c.sizes, key)
		}
		of := c.spaces[key.Namespace]
		if of.sum = of.sum.plus(now).minus(was); of.sum == (size{}) && len(of.over) == 0 {
			delete(c.spaces, key.Namespace)
			continue
		}
		c.spaces[key.Namespace] = of
	}
	for _, namespace := range slices.Sorted(maps.Keys(touched)) {
		of := c.spaces[namespace]
		within := of.sum.within(budget)
		if within && len(of.over) == 0 {
			continue
		}
		before, all := of.over, c.byAge(namespace)
		if of.over = nil; !within {
			of.over = c.exceeding(all)
		}
		for _, s := range all {
			if before[s.key] != of.over[s.key] && !changed[s.key] {
				others = append(others, s.key)
			}
		}
		if c.spaces[namespace] = of; of.sum == (size{}) {
			delete(c.spaces, namespace)
		}
	}
	return others
}

// hasTooMuch reports whether the tables have more of a Service than it may have by now. It does not compile the Service, and goes by how
// many its entries are. Of backends it may have twice as many as are counted: an endpoint on the node may be in two sets.
func (c *Compiler) hasTooMuch(key registry.Key) bool {
	has, may, over := c.compiled[key], c.sizes[key].backends, c.spaces[key.Namespace].over[key]
	if has == nil {
		return false
	}
	if over.frontends || over.backends {
		may = 0
	}
	return over.frontends && len(has.ports) > 0 || over.ranges && len(has.sources) > 0 || len(has.backends) > 2*may
}

// byAge returns the Services of a namespace, the older ones first.
func (c *Compiler) byAge(namespace string) []*service {
	all := c.services.All()
	first, _ := slices.BinarySearchFunc(all, registry.Key{Namespace: namespace}, func(s *service, k registry.Key) int { return s.key.Compare(k) })
	end := first
	for end < len(all) && all[end].key.Namespace == namespace {
		end++
	}
	return slices.SortedFunc(slices.Values(all[first:end]), func(a, b *service) int { return cmp.Or(a.created.Compare(b.created), a.key.Compare(b.key)) })
}

// exceeding returns which Services make more than is left of the budget by those
// before them, the older ones.
func (c *Compiler) exceeding(byAge []*service) map[registry.Key]excess {
	over := make(map[registry.Key]excess)
	var sum size
	for _, s := range byAge {
		n := c.sizes[s.key]
		is := excess{frontends: sum.frontends+n.frontends > budget.frontends}
		is.backends = !is.frontends && sum.backends+n.backends > budget.backends
		is.ranges = !is.frontends && sum.ranges+n.ranges > budget.ranges
		if is != (excess{}) {
			over[s.key] = is
		}
		if is.frontends {
			continue
		}
		if sum.frontends += n.frontends; !is.backends {
			sum.backends += n.backends
		}
		if !is.ranges {
			sum.ranges += n.ranges
		}
	}
	return over
}

// service returns a Service, nil where it is not there.
func (c *Compiler) service(key registry.Key) *service {
	all := c.services.All()
	if i, found := slices.BinarySearchFunc(all, key, func(s *service, k registry.Key) int { return s.key.Compare(k) }); found {
		return all[i]
	}
	return nil
}
