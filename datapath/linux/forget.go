package linux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/internal/sysctl"
	"github.com/weftnet/weft/plan"
)

// forgetter has the kernel forget the connections of addresses that have lost
// their endpoint, so that none of them gets to the next endpoint with the
// address. It does so in the background, as soon as no packet can make them
// anew; whoever gives an address to an endpoint waits for it.
type forgetter struct {
	in  func(func() error) error
	log *slog.Logger

	// deleting is held by who deletes.
	deleting sync.Mutex
	mu       sync.Mutex
	// due are the addresses whose connections are still to be deleted. The number
	// tells one time that an address was lost from the next.
	due   map[netip.Addr]uint64
	times uint64

	wake    chan struct{}
	ctx     context.Context
	cancel  context.CancelFunc
	stopped chan struct{}
}

func startForgetter(in func(func() error) error, log *slog.Logger) *forgetter {
	f := &forgetter{in: in, log: log, due: map[netip.Addr]uint64{}, wake: make(chan struct{}, 1), stopped: make(chan struct{})}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	go f.run()
	return f
}

func (f *forgetter) close() {
	f.cancel()
	<-f.stopped
}

func (f *forgetter) run() {
	defer close(f.stopped)
	for {
		select {
		case <-f.wake:
		case <-f.ctx.Done():
			return
		}
		for f.in(func() error { return f.settle(f.owed()) }) != nil {
			select {
			case <-time.After(sweepRetry):
			case <-f.ctx.Done():
				return
			}
		}
	}
}

// lost takes note of addresses that no packet gets to or comes from any more.
func (f *forgetter) lost(addresses []netip.Addr) {
	if len(addresses) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.times++
	for _, a := range addresses {
		f.due[a] = f.times
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *forgetter) owed() []netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.due))
}

func (f *forgetter) owes(addresses []netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(addresses, func(a netip.Addr) bool { return f.due[a] != 0 })
}

// settle returns when nothing is left of the connections that addresses had
// before they were lost. It costs something only where one of them was, and
// does then what there is to do for all.
func (f *forgetter) settle(addresses []netip.Addr) error {
	if !f.owes(addresses) {
		return nil
	}
	f.deleting.Lock()
	defer f.deleting.Unlock()
	if !f.owes(addresses) {
		return nil // somebody else has done it meanwhile
	}
	f.mu.Lock()
	due := maps.Clone(f.due)
	f.mu.Unlock()
	if err := forget(func(a netip.Addr) bool { return due[a] != 0 }); err != nil {
		f.log.Warn("connections of endpoints that have gone could not be deleted; their addresses are given to no others until they are", "addresses", len(due), "error", err)
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.due, func(a netip.Addr, time uint64) bool { return due[a] == time })
	return nil
}

// forget deletes every tracked connection that has something to do with an
// address, before or behind what the node translates.
func forget(of func(netip.Addr) bool) error {
	if n, err := sysctl.Get("netfilter/nf_conntrack_count"); err != nil || n == "0" {
		return nil // nothing is tracked here
	}
	t, err := openTracker()
	if err != nil {
		return err
	}
	defer t.close()
	handles := map[bool][][]byte{} // by whether it is IPv4
	var broken error
	err = t.list(func(c trackedConnection, entry []byte) {
		if !slices.ContainsFunc([]netip.AddrPort{c.source, c.dialled, c.destination, c.seen}, func(a netip.AddrPort) bool { return of(a.Addr()) }) {
			return
		}
		handle, err := handleOf(entry)
		broken = errors.Join(broken, err)
		handles[c.source.Addr().Is4()] = append(handles[c.source.Addr().Is4()], handle)
	})
	if err = errors.Join(err, broken); err != nil {
		return err
	}
	for _, is4 := range interval.Families {
		for _, h := range handles[is4] {
			if err := t.remove(is4, h); err != nil {
				return fmt.Errorf("delete a tracked connection of an address that has lost its endpoint: %w", err)
			}
		}
	}
	return nil
}

// lostBy returns the addresses of endpoints that a change takes from an
// interface.
func lostBy(changes plan.Diff) []netip.Addr {
	var lost []netip.Addr
	for _, c := range changes.Endpoints {
		if c.Old == nil {
			continue
		}
		for _, a := range c.Old.Addresses {
			if c.New == nil || !slices.Contains(c.New.Addresses, a) {
				lost = append(lost, a)
			}
		}
	}
	return lost
}

// resume has the connections forgotten that an instance before this one did not
// come to: those of addresses of the node's pools that nobody has. Whose
// interface is up has its address already, and keeps its connections.
func (d *DataPlane) resume(p *plan.Plan) error {
	var pools []netip.Prefix
	for _, pool := range p.Local.Pools {
		if !d.resumed[pool.Prefix] {
			pools = append(pools, pool.Prefix)
		}
	}
	if len(pools) == 0 {
		return nil
	}
	own, err := rtnl.LocalAddresses()
	if err != nil {
		return err
	}
	had := map[netip.Addr]bool{}
	for _, a := range slices.Concat(own, p.Local.Addresses, p.Local.PoolAddresses()) {
		had[a] = true
	}
	for k, e := range p.Endpoints.All() {
		if down, there := d.down[k.Interface]; there && !down {
			for _, a := range e.Addresses {
				had[a] = true
			}
		}
	}
	err = forget(func(a netip.Addr) bool {
		return !had[a] && slices.ContainsFunc(pools, func(pool netip.Prefix) bool { return pool.Contains(a) })
	})
	if err != nil {
		return err
	}
	for _, pool := range pools {
		d.resumed[pool] = true
	}
	return nil
}
