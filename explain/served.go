package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weftnet/weft/service/counts"
)

// Uncounted is a node that has not told all that it counts, or all nodes where Node is empty, and
// why.
type Uncounted struct {
	Node    string `json:"node,omitempty"`
	Problem string `json:"problem"`
}

// Count adds what a node has counted to what is told of the nodes that serve alike. What it does not
// tell is not known, and said to be so.
func (s *Serving) Count(node string, r counts.Report) {
	i := slices.IndexFunc(s.On, func(on ServingNodes) bool { return slices.Contains(on.Nodes, node) })
	if i < 0 {
		return
	}
	on, missing := &s.On[i], false
	// The node's own addresses of a family are one where all have the frontend; see once.
	apart := map[netip.Addr]bool{}
	for _, f := range on.Frontends {
		apart[f.Address] = true
	}
	frontends, backends := map[frontendName]counts.Outcome{}, map[counts.Backend]uint64{}
	for _, f := range r.Frontends {
		name := frontendName{f.Address, 0, f.Port, f.From}
		if !apart[f.Address] {
			name.address, name.family = netip.Addr{}, familyOf(f.Address)
		}
		frontends[name] = frontends[name].Plus(f.Outcome)
	}
	for _, b := range r.Backends {
		backends[counts.Backend{Set: b.Set, At: b.At}] += b.Given
	}
	for j := range on.Frontends {
		f := &on.Frontends[j]
		name := frontendName{f.Address, 0, f.Port, f.From}
		if !f.Address.IsValid() {
			name.family = f.Family
		}
		count, known := frontends[name]
		if known && f.Counts != nil {
			count = count.Plus(*f.Counts)
		}
		if known {
			f.Counts = &count
		}
		missing = missing || !known && !f.Here
	}
	for _, set := range on.Sets {
		for j := range set.Backends {
			b := &set.Backends[j]
			given, known := backends[counts.Backend{Set: set.Name, At: b.At}]
			if known && b.Given != nil {
				given += *b.Given
			}
			if known {
				b.Given = &given
			}
			missing = missing || !known
		}
	}
	if missing {
		s.NotCounted(node, "its agent does not have all that is said here, or not yet")
	}
}

// frontendName is by what a frontend of a plan and one that is told are the same: of the node's own
// addresses their family.
type frontendName struct {
	address    netip.Addr
	family     int
	port, from string
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}

// NotCounted takes note that a node has not told what it counts; all nodes where none is named.
func (s *Serving) NotCounted(node, problem string) {
	s.Uncounted = append(s.Uncounted, Uncounted{node, problem})
}

// String writes it for people.
func (u Uncounted) String() string {
	if u.Node == "" {
		return "not counted: " + u.Problem
	}
	return fmt.Sprintf("not counted, what node %s has: %s", u.Node, u.Problem)
}

// told says for people what became of what was sent to a frontend.
func told(o counts.Outcome) string {
	var parts []string
	for _, of := range []struct {
		n         uint64
		one, many string
	}{
		{o.Given, "connection", "connections"},
		{o.Refused, "packet refused", "packets refused"},
		{o.Dropped, "packet dropped", "packets dropped"},
		{o.ForOthers, "packet of others dropped", "packets of others dropped"},
	} {
		switch {
		case of.n == 1:
			parts = append(parts, "1 "+of.one)
		case of.n > 1:
			parts = append(parts, fmt.Sprintf("%d %s", of.n, of.many))
		}
	}
	if len(parts) == 0 {
		return "nothing came"
	}
	return strings.Join(parts, ", ")
}
