package answer

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weftnet/weft/dns/records"
)

// Zone is what questions are answered by. The zero Zone has no domain, and answers for no name
// itself. Its methods may be called by several goroutines at once: an answer has each Service as
// it is at some moment of it.
//
// A lock guards the indexes, and not what they lead to, which is never changed but replaced. So
// an answer holds it for as long as it takes to find a Service or two, and a change for as long
// as it takes to index the addresses that are new or gone.
type Zone struct {
	settings atomic.Pointer[settings]

	mu       sync.RWMutex
	services map[records.Key]*entry
	// namespaces are those of services, with the number of each one's, and named those that
	// are known to exist.
	namespaces map[string]int
	named      map[string]struct{}
	// holders are the Services that have each address, their own or an endpoint's.
	holders *holders
	// clients are the namespaces of the node's pods.
	clients map[netip.Addr]string
}

// entry is a Service of a Zone, as long as it is there.
type entry struct {
	key records.Key
	now atomic.Pointer[service]
}

// service is a Service as its name is answered by.
type service struct {
	*records.Service
	// hosts are the endpoints that have a hostname, in order of these. There is no index of
	// those without, as their addresses are their names.
	hosts []uint32
}

// settings are those of a Zone, with what they mean for each answer.
type settings struct {
	*records.Settings
	// suffix is the domain with a dot at either end, empty where there is none.
	suffix string
	// others are the domains below it that others answer for, with dots like it.
	others []string
}

// Set says how questions are answered from now on. The settings are not to be changed any more.
func (z *Zone) Set(s *records.Settings) {
	now := &settings{Settings: s}
	if s.Domain != "" {
		now.suffix = "." + s.Domain + "."
	}
	for _, stub := range s.Stubs {
		if suffix := "." + stub.Domain + "."; s.Domain != "" && strings.HasSuffix(suffix, now.suffix) && suffix != now.suffix {
			now.others = append(now.others, suffix)
		}
	}
	z.settings.Store(now)
}

// Put adds a Service, in the place of the one with its key. It is not to be changed any more.
func (z *Zone) Put(s *records.Service) {
	now := newService(s)
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.services == nil {
		z.services, z.namespaces = make(map[records.Key]*entry), make(map[string]int)
	}
	e := z.services[s.Key]
	if e == nil {
		e = &entry{key: s.Key}
		z.services[s.Key] = e
		z.namespaces[s.Namespace]++
	}
	before := e.now.Swap(now)
	z.index(e, before, now)
}

// Delete removes a Service, if it is there.
func (z *Zone) Delete(k records.Key) {
	z.mu.Lock()
	defer z.mu.Unlock()
	e := z.services[k]
	if e == nil {
		return
	}
	delete(z.services, k)
	if z.namespaces[k.Namespace]--; z.namespaces[k.Namespace] == 0 {
		delete(z.namespaces, k.Namespace)
	}
	z.index(e, e.now.Load(), nil)
}

// index has an entry be found by the addresses that it has now, and not by those that it had before
// alone.
func (z *Zone) index(e *entry, before, now *service) {
	if before == nil {
		before = none
	}
	if now == nil {
		now = none
	}
	gone := func(a netip.Addr, behind bool) { z.holders = z.holders.drop(holder{held{a, behind}, e}) }
	came := func(a netip.Addr, behind bool) { z.holders = z.holders.put(holder{held{a, behind}, e}) }
	for _, a := range before.Addresses {
		if !slices.Contains(now.Addresses, a) {
			gone(a, false)
		}
	}
	for _, a := range now.Addresses {
		came(a, false) // or is there
	}
	was, is := before.Endpoints, now.Endpoints
	for len(was)+len(is) > 0 {
		c := len(is) - len(was) // where one of them has no more
		if len(was) > 0 && len(is) > 0 {
			c = was[0].Address.Compare(is[0].Address)
		}
		if c <= 0 {
			a := was[0].Address
			if was = behind(was, a); c < 0 {
				gone(a, true)
			}
		}
		if c >= 0 {
			a := is[0].Address
			if is = behind(is, a); c > 0 {
				came(a, true)
			}
		}
	}
}

// none is what is not there.
var none = &service{Service: &records.Service{}}

// behind returns what of endpoints in order is behind those in front that have an address.
func behind(all []records.Endpoint, a netip.Addr) []records.Endpoint {
	for len(all) > 0 && all[0].Address == a {
		all = all[1:]
	}
	return all
}

// PutNamespace has a namespace exist: a name in one that exists and has nothing of that name is one
// that could be (RFC 8020).
func (z *Zone) PutNamespace(name string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.named == nil {
		z.named = make(map[string]struct{})
	}
	z.named[name] = struct{}{}
}

// DeleteNamespace has a namespace exist no more, unless it has Services still.
func (z *Zone) DeleteNamespace(name string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	delete(z.named, name)
}

// PutClient adds a pod of the node, in the place of the one with its address.
func (z *Zone) PutClient(c records.Client) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.clients == nil {
		z.clients = make(map[netip.Addr]string)
	}
	z.clients[c.Address.Unmap()] = c.Namespace
}

// DeleteClient removes the pod that has an address, if it is there.
func (z *Zone) DeleteClient(a netip.Addr) {
	z.mu.Lock()
	defer z.mu.Unlock()
	delete(z.clients, a.Unmap())
}

// service returns a Service, nil where there is none.
func (z *Zone) service(k records.Key) *service {
	z.mu.RLock()
	e := z.services[k]
	z.mu.RUnlock()
	if e == nil {
		return nil
	}
	return e.now.Load()
}

// has returns the Services that have an address as their own, in order of their keys, and where
// there is none those that have an endpoint there; so many at most.
func (z *Zone) has(a netip.Addr, limit int) (all []*entry) {
	z.mu.RLock()
	defer z.mu.RUnlock()
	own := false
	z.holders.of(a, func(h holder) bool {
		if h.behind && own {
			return false
		}
		own = !h.behind
		all = append(all, h.entry)
		return len(all) < limit
	})
	return all
}

// hasNamespace reports whether a namespace exists, as far as that is known.
func (z *Zone) hasNamespace(name string) bool {
	z.mu.RLock()
	defer z.mu.RUnlock()
	_, named := z.named[name]
	return named || z.namespaces[name] > 0
}

// client returns the namespace of the pod that has an address, empty where none is known.
func (z *Zone) client(a netip.Addr) string {
	z.mu.RLock()
	defer z.mu.RUnlock()
	return z.clients[a]
}

func newService(s *records.Service) *service {
	// Whoever wrote them, what is searched here is in order.
	if !slices.IsSortedFunc(s.Endpoints, compareEndpoints) {
		sorted := *s
		sorted.Endpoints = slices.SortedFunc(slices.Values(s.Endpoints), compareEndpoints)
		s = &sorted
	}
	now := &service{Service: s}
	for i, e := range s.Endpoints {
		if e.Hostname != "" {
			now.hosts = append(now.hosts, uint32(i))
		}
	}
	slices.SortStableFunc(now.hosts, func(a, b uint32) int { return strings.Compare(s.Endpoints[a].Hostname, s.Endpoints[b].Hostname) })
	now.hosts = slices.Clip(now.hosts)
	return now
}

func compareEndpoints(a, b records.Endpoint) int {
	return cmp.Or(a.Address.Compare(b.Address), strings.Compare(a.Hostname, b.Hostname))
}
