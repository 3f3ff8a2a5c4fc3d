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

	"golang.org/x/sys/unix"

	"github.com/google/nftables"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/linux/conntrack"
	"github.com/weftnet/weft/datapath/linux/nft"
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
	over := map[party]bool{}
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
		over = map[party]bool{}
		for _, s := range o.Over {
			over[partyOf(s)] = true
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

// party is who connections are counted for: the interface of an endpoint of the
// node, or any other address.
type party struct {
	endpoint string
	address  netip.Addr
}

func partyOf(s datapath.Share) party {
	if s.Interface != "" {
		return party{endpoint: s.Interface}
	}
	return party{address: s.Address}
}

// census counts, and has those begin no more connections that have too many.
// was are those that had when it counted last.
//
// A connection counts for who began it. Who got it has not chosen to, and could
// be cut off from all by others. Nor is it known of a node, or of a machine
// outside of the cluster, for how many it speaks: an endpoint elsewhere is limited,
// and these are not.
func (d *DataPlane) census(was map[party]bool) (datapath.Occupancy, error) {
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
	t, err := conntrack.Open()
	if err != nil {
		return o, err
	}
	defer t.Close()
	begun, got, others := map[party]int{}, map[party]int{}, tally{}
	err = t.List(func(c conntrack.Connection, _ []byte) {
		if k, ok := endpoints[c.Source.Addr()]; ok {
			begun[party{endpoint: k.Interface}]++
		} else {
			others.add(c.Source.Addr())
		}
		if k, ok := endpoints[c.Destination.Addr()]; ok {
			got[party{endpoint: k.Interface}]++
		}
	})
	if err != nil {
		return o, err
	}
	for a, n := range others {
		begun[party{address: a}] = n
	}
	name := func(who party) string {
		e, _ := p.Endpoints.Get(plan.EndpointKey{Interface: who.endpoint})
		return e.Name
	}
	over := map[string]nft.Elements{overSet: {}, farOverPrefix + suffix(true): {}, farOverPrefix + suffix(false): {}}
	for _, who := range tooMany(begun, was, o.MaxConnections) {
		s := datapath.Share{Interface: who.endpoint, Address: who.address, Connections: begun[who]}
		if who.endpoint != "" {
			s.Name = name(who)
			over[overSet][nft.Element{Key: nft.InterfaceKey(who.endpoint)}] = nft.Value{}
		} else if node, ok := hostOf(p, who.address); ok {
			s.Name = who.address.String() + " on " + node
			over[farOverPrefix+suffix(who.address.Is4())][nft.Element{Key: string(who.address.AsSlice())}] = nft.Value{}
		} else {
			continue
		}
		o.Over = append(o.Over, s)
	}
	for _, who := range tooMany(got, nil, o.MaxConnections) {
		o.Crowded = append(o.Crowded, datapath.Share{Interface: who.endpoint, Name: name(who), Connections: got[who]})
	}
	if len(was)+len(o.Over) == 0 {
		return o, nil
	}
	return o, renew(d.stamps.Table, over)
}

// hostOf returns the name of the peer by which an endpoint with an address is
// reached; false where that is none. A node's own addresses in its prefix are no
// endpoint's.
func hostOf(p *plan.Plan, a netip.Addr) (node string, ok bool) {
	k, r, ok := p.Route(plan.DefaultNetwork, a, false)
	if !ok || r.Way != plan.ToTunnel && r.Way != plan.ToNextHop {
		return "", false
	}
	if slices.Contains(plan.NodeAddressesIn(k.Prefix), a) {
		return "", false
	}
	return r.Peer(), true
}

// tally counts addresses, of which there may be more than can be remembered.
// Who has more than a mostCounted-th of all is in it, with fewer than that too
// few (Misra and Gries, "Finding repeated elements", 1982).
type tally map[netip.Addr]int

// mostCounted is how many addresses a tally remembers.
const mostCounted = 4096

func (t tally) add(a netip.Addr) {
	if _, ok := t[a]; ok || len(t) < mostCounted {
		t[a]++
		return
	}
	for other, n := range t {
		if n == 1 {
			delete(t, other)
		} else {
			t[other] = n - 1
		}
	}
}

// tooManyOf is which part of the connections that can be tracked is too much for
// one endpoint: a quarter.
const tooManyOf = 4

// tooMany returns those who have more than their share of most connections,
// those with the most first. Who had too many has until it is down to half of
// that.
func tooMany(counts map[party]int, was map[party]bool, most int) []party {
	var over []party
	for who, n := range counts {
		if n > most/tooManyOf || was[who] && n > most/tooManyOf/2 {
			over = append(over, who)
		}
	}
	slices.SortFunc(over, func(a, b party) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a.endpoint, b.endpoint), a.address.Compare(b.address))
	})
	return over
}

// renew makes those who have too many the elements of these sets of a table, for a
// while.
func renew(inTable string, over map[string]nft.Elements) error {
	err := nft.Transaction(inTable, func(conn *nftables.Conn) error {
		for _, to := range []struct {
			name string
			like nft.Set
		}{{overSet, interfacesOver}, {farOverPrefix + suffix(true), addressesOver(true)}, {farOverPrefix + suffix(false), addressesOver(false)}} {
			there := to.like.In(inTable, to.name)
			conn.FlushSet(there)
			if err := nft.AddElements(conn, there, over[to.name], overTimeout); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
