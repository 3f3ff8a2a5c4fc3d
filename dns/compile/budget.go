package compile

import (
	"cmp"
	"slices"

	"github.com/weftnet/weft/dns/records"
	"github.com/weftnet/weft/service"
)

// MaxEndpointsOfNamespace is how many endpoints the Services of a namespace have together, counted as
// for MaxEndpoints: one set of pods may be behind any number of Services, and each node keeps the
// endpoints of each.
const MaxEndpointsOfNamespace = service.MaxBackendsOfNamespace

// budget is MaxEndpointsOfNamespace. Only tests set it.
var budget = MaxEndpointsOfNamespace

// space is what the Services of a namespace have together.
type space struct {
	// sum is how many endpoints all would have, also those that get none.
	sum int
	// over are those that get none.
	over map[records.Key]bool
}

// sizeOf returns how many endpoints a Service would have.
func (c *Compiler) sizeOf(key records.Key) (size int) {
	if n := c.named(key); n == nil || !n.exists || n.External != "" {
		return 0
	}
	fit, _ := fitting(c.behind(key))
	for _, s := range fit {
		size += s.size()
	}
	return size
}

// account brings what namespaces have to what some of their Services are now, and adds those that
// get endpoints now or get none any more for what others of their namespace are. It costs in proportion
// to what changed, and in a namespace that goes beyond its budget to all of its Services.
func (c *Compiler) account(changed map[records.Key]bool) {
	touched := make(map[string]bool)
	for key := range changed {
		touched[key.Namespace] = true // also where its age alone is another
		now, was := c.sizeOf(key), c.sizes[key]
		if now == was {
			continue
		}
		if c.sizes[key] = now; now == 0 {
			delete(c.sizes, key)
		}
		of := c.spaces[key.Namespace]
		of.sum += now - was
		c.spaces[key.Namespace] = of
	}
	for namespace := range touched {
		of := c.spaces[namespace]
		before := of.over
		if of.over = nil; of.sum > budget {
			of.over = c.exceeding(namespace)
		}
		for _, some := range []map[records.Key]bool{before, of.over} {
			for key := range some {
				if before[key] != of.over[key] {
					changed[key] = true
				}
			}
		}
		if c.spaces[namespace] = of; of.sum == 0 {
			delete(c.spaces, namespace)
		}
	}
}

// exceeding returns which Services of a namespace have more endpoints than is left of the budget by
// those before them. Those are headless ones first, as their names are nothing without endpoints, while
// hardly anybody asks for the endpoints of others; of either the older ones.
func (c *Compiler) exceeding(namespace string) map[records.Key]bool {
	all := c.services.All()
	first, _ := slices.BinarySearchFunc(all, records.Key{Namespace: namespace}, func(s *named, k records.Key) int { return s.Key.Compare(k) })
	end := first
	for end < len(all) && all[end].Key.Namespace == namespace {
		end++
	}
	over, sum := make(map[records.Key]bool), 0
	for _, n := range slices.SortedFunc(slices.Values(all[first:end]), func(a, b *named) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.created.Compare(b.created), a.Key.Compare(b.Key))
	}) {
		size := c.sizes[n.Key]
		if sum+size > budget {
			over[n.Key] = true
			continue
		}
		sum += size
	}
	return over
}

// rank is less for a Service that has its endpoints before others.
func rank(n *named) int {
	if n.Headless() {
		return 0
	}
	return 1
}
