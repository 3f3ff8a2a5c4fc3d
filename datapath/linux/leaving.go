package linux

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/weftnet/weft/datapath/judge"
	"github.com/weftnet/weft/plan"
)

// absence is for how long a backend may be out of its Service and connections to it go on, where they
// need not end at once; see judge.MayReturn. Whoever packs the EndpointSlices of a large Service anew
// is done with it by then.
const absence = 3 * time.Second

// departures say when backends left a Service of late. A backend that was back meanwhile has left when
// it left last. The zero value knows of none.
type departures struct {
	mu sync.Mutex
	// began is when the first plan came: when backends left before that nobody knows.
	began time.Time
	left  map[netip.AddrPort]time.Time
}

// begin says that the plan that comes now is the first.
func (d *departures) begin(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.began = now
}

// note takes note of the backends that leave with changes.
func (d *departures) note(changes []plan.Change[plan.BackendKey, plan.Backend], now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range changes {
		if c.New == nil {
			if d.left == nil {
				d.left = map[netip.AddrPort]time.Time{}
			}
			d.left[netip.AddrPortFrom(c.Key.Address, c.Key.Port)] = now
		}
	}
}

// forget forgets those that were long ago.
func (d *departures) forget(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.left, func(_ netip.AddrPort, left time.Time) bool { return now.Sub(left) >= absence })
}

// endsAt returns when a connection ends of which a jury's Unserved is true. It is not after now where
// that is at once.
func (d *departures) endsAt(j *judge.Jury, c judge.Connection, now time.Time) time.Time {
	if !j.MayReturn(c) {
		return now
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	left, known := d.left[c.Destination]
	if !known {
		left = d.began
	}
	return left.Add(absence)
}
