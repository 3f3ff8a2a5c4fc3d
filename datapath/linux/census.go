package linux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/internal/sysctl"
	"github.com/weftnet/weft/plan"
)

const (
	// lookEvery is how often the number of tracked connections is looked at, and
	// restAfter how many times the processor time that it took to count whose they
	// are passes before they are counted again, so that a full table costs little.
	// Whose they are is counted only while there are so many that one could have
	// too many.
	lookEvery = time.Second
	restAfter = 10
	// overTimeout is how long who has too many begins none, unless it is found
	// to have too many again. If the agent dies, it lapses.
	overTimeout = 30 * time.Second
)

// Limit holds endpoints to their share of tracked connections; see
// datapath.Limiter.
func (d *DataPlane) Limit(ctx context.Context, f func(datapath.Occupancy)) error {
	over := map[string]bool{}
	for {
		var o datapath.Occupancy
		var took time.Duration
		err := d.in(func() (err error) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			began := threadTime()
			o, err = d.census(over)
			took = threadTime() - began
			return err
		})
		if err != nil {
			return err
		}
		f(o)
		over = map[string]bool{}
		for _, s := range o.Over {
			over[s.Interface] = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(lookEvery, min(restAfter*took, overTimeout/2))):
		}
	}
}

// threadTime is the processor time that the calling thread has used. How long
// something took would say more of what else the machine does.
func threadTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &r); err != nil {
		return 0 // as if nothing had cost anything
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// census counts, and has those begin no more connections that have too many.
// was are those that had when it counted last.
func (d *DataPlane) census(was map[string]bool) (datapath.Occupancy, error) {
	var o datapath.Occupancy
	for name, value := range map[string]*int{"netfilter/nf_conntrack_count": &o.Connections, "netfilter/nf_conntrack_max": &o.MaxConnections} {
		text, err := sysctl.Get(name)
		if err != nil {
			return o, nil // nothing is tracked here
		}
		if *value, err = strconv.Atoi(text); err != nil {
			return o, fmt.Errorf("read %s: %w", name, err)
		}
	}
	p := d.enforced.Load()
	if p == nil || o.MaxConnections == 0 || len(was) == 0 && o.Connections <= o.MaxConnections/tooManyOf {
		return o, nil
	}
	endpoints := map[netip.Addr]plan.EndpointKey{}
	for k, e := range p.Endpoints.All() {
		for _, a := range e.Addresses {
			endpoints[a] = k
		}
	}
	t, err := openTracker()
	if err != nil {
		return o, err
	}
	defer t.close()
	counts := map[string]int{}
	err = t.list(func(c trackedConnection, _ []byte) {
		if k, ok := endpoints[c.source.Addr()]; ok {
			counts[k.Interface]++
		}
	})
	if err != nil {
		return o, err
	}
	over := elements{}
	for _, name := range tooMany(counts, was, o.MaxConnections) {
		e, _ := p.Endpoints.Get(plan.EndpointKey{Interface: name})
		o.Over = append(o.Over, datapath.Share{Interface: name, Name: e.Name, Connections: counts[name]})
		over[element{key: interfaceKey(name)}] = value{}
	}
	if len(was)+len(over) == 0 {
		return o, nil
	}
	return o, renew(over)
}

// tooManyOf is which part of the connections that can be tracked is too much for
// one endpoint: a quarter.
const tooManyOf = 4

// tooMany returns the interfaces of endpoints that have more than their share of
// most connections, those with the most first. Who had too many has until it is
// down to half of that.
func tooMany(counts map[string]int, was map[string]bool, most int) []string {
	var over []string
	for name, n := range counts {
		if n > most/tooManyOf || was[name] && n > most/tooManyOf/2 {
			over = append(over, name)
		}
	}
	slices.SortFunc(over, func(a, b string) int { return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b)) })
	return over
}

// renew makes these interfaces the elements of the set of those who have too
// many, for a while.
func renew(over elements) error {
	conn, err := nftConn()
	if err != nil {
		return err
	}
	there := (&set{key: nftables.TypeIFName, timeout: true}).to(tableName, overSet)
	conn.FlushSet(there)
	if err := addElements(conn, there, over, overTimeout); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("change set %s: %w", overSet, err)
	}
	return nil
}
