package conntrack

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
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/internal/sysctl"
)

const (
	// gather is for how long addresses are gathered whose connections are deleted at
	// once.
	gather = 100 * time.Millisecond
	// forgetRetry is how long after an error it is tried again.
	forgetRetry = time.Second
)

// Forgetter has the kernel forget the connections of addresses that have lost
// their endpoint, so that none of them gets to the next endpoint with the
// address. It does so in the background, once no packet can make them
// anew; whoever gives an address to an endpoint waits for it.
type Forgetter struct {
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

// StartForgetter starts one for the network namespace that in runs functions in.
func StartForgetter(in func(func() error) error, log *slog.Logger) *Forgetter {
	f := &Forgetter{in: in, log: log, due: map[netip.Addr]uint64{}, wake: make(chan struct{}, 1), stopped: make(chan struct{})}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	go f.run()
	return f
}

// Close ends it; what it has not come to, the next instance finds.
func (f *Forgetter) Close() {
	f.cancel()
	<-f.stopped
}

func (f *Forgetter) run() {
	defer close(f.stopped)
	for {
		select {
		case <-f.wake:
		case <-f.ctx.Done():
			return
		}
		// What a kernel tracks is read whole, so endpoints that leave one after the
		// other are dealt with at once. Who needs an address does not wait for this.
		if !retry.Sleep(f.ctx, gather) {
			return
		}
		for f.in(func() error { return f.Settle(f.owed()) }) != nil {
			if !retry.Sleep(f.ctx, forgetRetry) {
				return
			}
		}
	}
}

// Lost takes note of addresses that no packet gets to or comes from any more.
func (f *Forgetter) Lost(addresses []netip.Addr) {
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

func (f *Forgetter) owed() []netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.due))
}

func (f *Forgetter) owes(addresses []netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(addresses, func(a netip.Addr) bool { return f.due[a] != 0 })
}

// Settle returns when nothing is left of the connections that addresses had
// before they were lost. It costs something only where one of them was, and
// does then what there is to do for all.
func (f *Forgetter) Settle(addresses []netip.Addr) error {
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
	if err := Forget(func(a netip.Addr) bool { return due[a] != 0 }); err != nil {
		f.log.Warn("connections of endpoints that have gone could not be deleted; their addresses are given to no others until they are", "addresses", len(due), "error", err)
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.due, func(a netip.Addr, time uint64) bool { return due[a] == time })
	return nil
}

// Forget deletes every tracked connection that has something to do with an
// address, before or behind what the node translates.
func Forget(of func(netip.Addr) bool) error {
	if n, err := sysctl.Get("netfilter/nf_conntrack_count"); err != nil || n == "0" {
		return nil // nothing is tracked here
	}
	t, err := Open()
	if err != nil {
		return err
	}
	defer t.Close()
	handles := map[bool][][]byte{} // by whether it is IPv4
	var broken error
	err = t.List(func(c Connection, entry []byte) {
		if !slices.ContainsFunc([]netip.AddrPort{c.Source, c.Dialled, c.Destination, c.seen}, func(a netip.AddrPort) bool { return of(a.Addr()) }) {
			return
		}
		handle, err := HandleOf(entry)
		broken = errors.Join(broken, err)
		handles[c.Source.Addr().Is4()] = append(handles[c.Source.Addr().Is4()], handle)
	})
	if err = errors.Join(err, broken); err != nil {
		return err
	}
	for _, is4 := range interval.Families {
		for _, h := range handles[is4] {
			if _, err := t.Remove(is4, h); err != nil {
				return fmt.Errorf("delete a tracked connection of an address that has lost its endpoint: %w", err)
			}
		}
	}
	return nil
}
