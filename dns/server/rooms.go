package server

// rooms are where the queries of each domain wait for others to say something.
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
