package server

import "maps"

// rooms are where the queries of each domain wait for others to say something. They stay while the ways
// to others change.
type rooms struct {
	all *together
	// of are those of domains, as ways have them.
	of map[string]*share
}

func newRooms() *rooms {
	return &rooms{all: &together{all: maxOutsideTogether, few: fewOutside, most: mostOutside}, of: map[string]*share{}}
}

// room returns that of a domain.
func (r *rooms) room(domain string) *share {
	if r.of[domain] == nil {
		one := newShare(maxOutsideEach, maxOutside)
		one.in = r.all
		r.of[domain] = one
	}
	return r.of[domain]
}

// keep has rooms of these domains, and of those for whose names somebody waits still.
func (r *rooms) keep(domains map[string]bool) {
	maps.DeleteFunc(r.of, func(domain string, one *share) bool { return !domains[domain] && one.count() == 0 })
}
