// Package compile compiles Services and what is behind them, as Kubernetes has both, to what
// their names stand for (package records). It is pure, and makes anew what changed alone.
//
// It follows Kubernetes' DNS specification 1.1.0, and where that says nothing, CoreDNS. All
// Services have names, also those that another program serves. Endpoints are those of all
// EndpointSlices that name the Service, whoever made them, that are ready: of a Service that
// publishes those that are not, who makes the slices calls them all ready. What no name or
// address can be is left out, and so are addresses at which every machine finds itself, or a
// neighbour: a name is no way to have a pod talk to its own node.
package compile

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/dns/records"
	"github.com/weftnet/weft/internal/derived"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// Kinds are the kinds that are read.
var Kinds = []*registry.Kind{api.Service, api.EndpointSlice, api.Namespace}

// Snapshot is what the names of a cluster stand for. It is never changed once made.
type Snapshot struct {
	// Services are in order of their keys. What did not change is the same pointer in the next
	// Snapshot of a Compiler.
	Services []*records.Service
	// Namespaces are those that exist, in order.
	Namespaces []string
}

// Since returns what is other in the Snapshot than in one before it of the same Compiler, both
// in order: the Services that came or changed, and those that went. Before all of them is nil.
// It costs a comparison of pointers for each Service.
func (s *Snapshot) Since(before *Snapshot) (changed []*records.Service, gone []records.Key) {
	var old []*records.Service
	if before != nil {
		old = before.Services
	}
	for _, now := range s.Services {
		for ; len(old) > 0 && old[0].Key.Compare(now.Key) < 0; old = old[1:] {
			gone = append(gone, old[0].Key)
		}
		known := len(old) > 0 && old[0].Key == now.Key
		if !known || old[0] != now {
			changed = append(changed, now)
		}
		if known {
			old = old[1:]
		}
	}
	for _, o := range old {
		gone = append(gone, o.Key)
	}
	return changed, gone
}

// MaxEndpoints is how many endpoints a Service has at most, each counted once for each of its
// ports: users write more in far fewer bytes than each node would keep.
const MaxEndpoints = service.MaxBackends

// Compiler compiles one Snapshot after the other. It is not safe for concurrent use. The zero
// Compiler knows nothing yet.
type Compiler struct {
	services   derived.List[*named]
	slices     derived.List[*slice]
	namespaces derived.List[*string]
	// crowded are the Services that have more endpoints than they may, troubled those of which
	// something else is left out.
	crowded  map[records.Key]int
	troubled map[records.Key]bool
	// sizes are how many endpoints Services would have, and spaces what the namespaces have that have any.
	sizes  map[records.Key]int
	spaces map[string]space
	last   *Snapshot
}

// Compile returns what follows from objects; the same Snapshot as before where nothing is
// other.
//
// A Service is compiled anew where it or one of its slices changed since the last call, or whether
// its endpoints fit into its namespace, which costs in proportion to its endpoints. Objects that did
// not change, where these are the same pointers, cost no more than to find that.
func (c *Compiler) Compile(objects registry.Objects) *Snapshot {
	if c.last == nil {
		c.last, c.crowded, c.troubled = new(Snapshot), make(map[records.Key]int), make(map[records.Key]bool)
		c.sizes, c.spaces = make(map[records.Key]int), make(map[string]space)
	}
	changed := make(map[records.Key]bool)
	gone, came := c.services.Update(objects.All(api.Service), readService, compareServices)
	for _, s := range slices.Concat(gone, came) {
		changed[s.Key] = true
	}
	left, arrived := c.slices.Update(objects.All(api.EndpointSlice), readSlice, compareSlices)
	for _, s := range slices.Concat(left, arrived) {
		changed[s.of] = true
	}
	lost, made := c.namespaces.Update(objects.All(api.Namespace), readNamespace, comparePointers)
	now := &Snapshot{Services: c.last.Services, Namespaces: c.last.Namespaces}
	if len(lost)+len(made) > 0 {
		now.Namespaces = make([]string, 0, len(c.namespaces.All()))
		for _, name := range c.namespaces.All() {
			now.Namespaces = append(now.Namespaces, *name)
		}
	}
	c.account(changed)
	replaced := make(map[records.Key]*records.Service)
	for key := range changed {
		before, compiled := find(c.last.Services, key), c.compile(key)
		if !compiled.Equal(before) {
			replaced[key] = compiled
		}
	}
	if len(replaced) > 0 {
		now.Services = replace(now.Services, replaced)
	}
	if len(replaced)+len(lost)+len(made) > 0 {
		c.last = now
	}
	return c.last
}

// compile returns what the names of a Service stand for, nil where it has none.
func (c *Compiler) compile(key records.Key) *records.Service {
	delete(c.crowded, key)
	delete(c.troubled, key)
	n, behind := c.named(key), c.behind(key)
	if n == nil {
		return nil
	}
	if len(n.problems) > 0 || slices.ContainsFunc(behind, func(s *slice) bool { return len(s.hostnames)+len(s.refused) > 0 }) {
		c.troubled[key] = true
	}
	if !n.exists {
		return nil
	}
	s := n.Service
	if s.External == "" && !c.spaces[key.Namespace].over[key] {
		var many int
		if s.Endpoints, many = endpoints(behind); many > MaxEndpoints {
			c.crowded[key] = many
		}
	}
	return &s
}

// named returns what of a Service is compiled, nil where there is none.
func (c *Compiler) named(key records.Key) *named {
	all := c.services.All()
	if i, found := slices.BinarySearchFunc(all, key, func(s *named, k records.Key) int { return s.Key.Compare(k) }); found {
		return all[i]
	}
	return nil
}

// behind returns the slices of a Service, in the order of their names.
func (c *Compiler) behind(key records.Key) []*slice {
	all := c.slices.All()
	first, _ := slices.BinarySearchFunc(all, key, func(s *slice, k records.Key) int { return s.of.Compare(k) })
	end := first
	for end < len(all) && all[end].of == key {
		end++
	}
	return all[first:end]
}

// Problems returns what is left out of what was compiled last, in the order of the Services. It
// costs in proportion to how many of them something is wrong with.
func (c *Compiler) Problems() (all []service.Problem) {
	about := make([]records.Key, 0, len(c.crowded)+len(c.troubled))
	for k := range c.crowded {
		about = append(about, k)
	}
	for k := range c.troubled {
		about = append(about, k)
	}
	for _, of := range c.spaces {
		about = slices.AppendSeq(about, maps.Keys(of.over))
	}
	slices.SortFunc(about, records.Key.Compare)
	for _, k := range slices.Compact(about) {
		key := registry.Key(k)
		tell := func(text string) {
			all = append(all, service.Problem{Service: key, Kind: api.Service, Key: key, Message: text})
		}
		if n := c.named(k); n != nil {
			for _, text := range n.problems {
				tell(text)
			}
		}
		if many := c.crowded[k]; many > 0 {
			tell(fmt.Sprintf("its endpoints for all of their ports together are %d, more than %d, and its names have those of its first EndpointSlices alone: make several Services of it", many, MaxEndpoints))
		}
		if c.spaces[k.Namespace].over[k] {
			tell(fmt.Sprintf("the Services of namespace %s have more than %d endpoints together, each counted once for each of its ports, and this one's names have none, as headless and older Services have them: delete Services there, or have it in another namespace", k.Namespace, budget))
		}
		for _, s := range c.behind(k) {
			for _, address := range s.refused {
				all = append(all, service.Problem{Service: key, Kind: api.EndpointSlice, Key: s.key, Endpoint: address,
					Message: fmt.Sprintf("endpoint %q is not the address of one machine that others reach, and has no name: take it out", address)})
			}
			for _, hostname := range s.hostnames {
				all = append(all, service.Problem{Service: key, Kind: api.EndpointSlice, Key: s.key,
					Message: fmt.Sprintf("hostname %q is not a label of a name (RFC 1123), and is no name: take it out", hostname)})
			}
		}
	}
	return all
}

// endpoints returns those of slices, each once, and how many there are for all ports; of more
// than may be those of the first slices. Where slices have ports for the same one it has all of
// them.
func endpoints(behind []*slice) (all []records.Endpoint, many int) {
	fit, many := fitting(behind)
	// Most Services have one slice, and its endpoints are the Service's: they are kept once.
	if len(fit) == 1 {
		return fit[0].endpoints, many
	}
	for _, s := range fit {
		all = append(all, s.endpoints...)
	}
	slices.SortStableFunc(all, compareEndpoints)
	return slices.Clone(merge(all)), many
}

// fitting returns those of slices whose endpoints a Service has, and how many there are in all of
// them for all ports.
func fitting(behind []*slice) (fit []*slice, many int) {
	fit = make([]*slice, 0, len(behind))
	for _, s := range behind {
		n := s.size()
		if many += n; n > 0 && many <= MaxEndpoints {
			fit = append(fit, s)
		}
	}
	return fit, many
}

// merge makes one of each group of endpoints that are one, and next to each other.
func merge(all []records.Endpoint) []records.Endpoint {
	out := all[:0]
	for len(all) > 0 {
		n := 1
		for n < len(all) && compareEndpoints(all[0], all[n]) == 0 {
			n++
		}
		one := all[0]
		if n > 1 {
			var ports []records.Port
			for _, e := range all[:n] {
				ports = append(ports, e.Ports...)
			}
			one.Ports = once(ports)
		}
		out, all = append(out, one), all[n:]
	}
	return out
}

// once returns ports in order, each once.
func once(ports []records.Port) []records.Port {
	slices.SortFunc(ports, comparePorts)
	return slices.Clone(slices.Compact(ports))
}

func comparePorts(a, b records.Port) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// compareEndpoints is 0 for those that are one: what has two hostnames has two names.
func compareEndpoints(a, b records.Endpoint) int {
	return cmp.Or(a.Address.Compare(b.Address), strings.Compare(a.Hostname, b.Hostname))
}

func find(all []*records.Service, key records.Key) *records.Service {
	if i, found := slices.BinarySearchFunc(all, key, func(s *records.Service, k records.Key) int { return s.Key.Compare(k) }); found {
		return all[i]
	}
	return nil
}

// replace returns an ordered list with other Services in the place of some, or without them
// where they are nil.
func replace(list []*records.Service, by map[records.Key]*records.Service) []*records.Service {
	var came []*records.Service
	for _, s := range by {
		if s != nil {
			came = append(came, s)
		}
	}
	slices.SortFunc(came, func(a, b *records.Service) int { return a.Key.Compare(b.Key) })
	out := make([]*records.Service, 0, len(list)+len(came))
	for _, s := range list {
		for len(came) > 0 && came[0].Key.Compare(s.Key) < 0 {
			out, came = append(out, came[0]), came[1:]
		}
		if _, other := by[s.Key]; !other {
			out = append(out, s)
		}
	}
	return append(out, came...)
}

// addressOf reads an address that one machine has, and that means the same one everywhere.
func addressOf(text string) (a netip.Addr, ok bool) {
	a, err := netip.ParseAddr(text)
	return a.Unmap(), err == nil && a.Zone() == "" && a.Unmap().IsGlobalUnicast()
}
