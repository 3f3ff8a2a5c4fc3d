package linux

// What a plan's change writes to the kernel, and in which order: policies before what they are
// about can be reached, and endpoints last.

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/weftnet/weft/datapath/linux/conntrack"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/datapath/reconcile"
	"github.com/weftnet/weft/plan"
)

// sweep makes p the plan that connections are judged by, and, if it may forbid some that
// were allowed, has them judged.
func (d *DataPlane) sweep(p *plan.Plan, forbids bool) {
	if d.owed = d.owed || forbids; d.passing {
		return
	}
	d.sweeper.judge(p, d.owed)
	d.owed = false
}

// release takes down the interfaces that lead to no endpoint any more, before the
// policies are gone under which they are. It is said which could not be.
func (d *DataPlane) release(groups []reconcile.Change[int, struct{}]) error {
	var errs []error
	for _, c := range groups {
		if c.New == nil {
			errs = append(errs, d.kernel.Release(c.Key))
		}
	}
	return errors.Join(errs...)
}

// enforce brings the policies up to date, before anything else changes: what
// is new is under them before it can be reached, or not there at all.
func (d *DataPlane) enforce(p *plan.Plan, write func() ([][]string, error)) error {
	d.policyTable.Lock()
	defer d.policyTable.Unlock()
	done, err := write()
	for _, line := range slices.Concat(done...) {
		d.record("%s", line)
	}
	if err != nil {
		return err
	}
	// Whoever reads counts by this plan is told of none of those that end with it.
	d.counter.end(d.services.ended())
	d.enforced.Store(p)
	d.counter.settle()
	return nil
}

// write brings the kernel up to date, tries again the routes that it refused, and remembers
// what was written and what was refused. It returns which settings could not be made, and
// what else could not be written.
func (d *DataPlane) write(delta rtnl.Delta, c *compiler, endpoints iter.Seq2[plan.EndpointKey, plan.Endpoint], filters bool) (settings, err error) {
	ipv4, ipv6 := rtnl.Routed(c.plan)
	var errs []error
	if families := [2]bool{ipv4, ipv6}; d.forwards != families {
		err := d.kernel.Forwarding(ipv4, ipv6)
		if err == nil {
			d.forwards = families
		}
		errs = append(errs, err)
	}
	if c.plan.Services.Len() > 0 && !d.keepsHalfClosed {
		err := d.kernel.KeepHalfClosed()
		d.keepsHalfClosed = err == nil
		errs = append(errs, err)
	}
	safe := map[string]*rtnl.Settings{}
	atLoopback := sync.OnceValue(func() func(netip.Addr) bool { return servedAtLoopback(c.plan) })
	for k, e := range endpoints {
		if c.missing[k.Interface] {
			continue
		}
		link := c.node.Links[k.Interface]
		s, err := d.kernel.Settings(link)
		if err == nil {
			err = d.kernel.EndpointSettings(s, ipv4, slices.ContainsFunc(e.Addresses, netip.Addr.Is6), slices.ContainsFunc(e.Addresses, atLoopback()))
		}
		if err == nil && s.Name == k.Interface { // and no other by now
			safe[k.Interface] = s
		}
		errs = append(errs, c.blame(link, err))
	}
	d.refused, err = d.kernel.Apply(delta.Again(d.refused, c.want), func(failed map[int]bool) error {
		// The interfaces that leave are gone or down.
		d.forgetter.Lost(d.lost)
		d.lost = nil
		if filters {
			if err := d.filter(c); err != nil {
				return err
			}
		}
		tunnels := d.openTunnels(c)
		var all []netip.Addr
		for _, e := range endpoints {
			all = append(all, e.Addresses...)
		}
		if err := errors.Join(d.resume(c.plan), d.forgetter.Settle(all)); err != nil {
			return errors.Join(tunnels, fmt.Errorf("delete the connections of endpoints that have gone, before others get their addresses: %w", err))
		}
		errs := []error{tunnels}
		for k := range endpoints {
			if s := safe[k.Interface]; s != nil && !failed[c.node.Links[k.Interface]] {
				errs = append(errs, c.blame(c.node.Links[k.Interface], d.open(k.Interface, s, ipv4)))
			}
		}
		return errors.Join(errs...)
	}, c.blame)
	d.compiler = c
	return errors.Join(errs...), err
}

// filter brings up to date the table that has neither policies nor Services.
func (d *DataPlane) filter(c *compiler) error {
	for again := true; again; {
		most := d.most
		table, done, err := nft.Write(d.table, compileRuleset(d.stamps, c.plan, c.sourcesOf(), cmp.Or(most, usualConnections), d.policies.tags).Table)
		d.table = table
		for _, line := range done {
			d.record("%s", line)
		}
		if err != nil {
			return err
		}
		// The first rule about connections may be what makes the kernel track any.
		if most == 0 {
			d.most = conntrack.MostTracked()
		}
		again = most != d.most
	}
	return nil
}

// refill writes the tables that were written last, if somebody has deleted one: without them
// everything passes. It asks the kernel for nothing but these.
func (d *DataPlane) refill() error {
	var names []string
	for name, there := range map[string]bool{d.stamps.Table: d.table.Exists(), d.stamps.PolicyTable: d.policies.present, d.stamps.ServiceTable: d.services.present} {
		if there {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	missing, err := nft.Missing(names...)
	if err != nil || len(missing) == 0 {
		return err
	}
	c := d.compiler
	if err := d.enforce(c.plan, func() ([][]string, error) {
		return d.unheard(func() ([][]string, error) {
			return d.policies.sync(c.plan, func(edits ...nft.Edit) ([][]string, error) { return d.services.sync(c.plan, c.sourcesOf(), edits...) })
		})
	}); err != nil || !slices.Contains(missing, d.stamps.Table) {
		return err
	}
	if d.table, err = reading(d.stamps.Table); err != nil {
		return err
	}
	return d.filter(c)
}

// guards reports whether the table checks the sources of what comes from an
// interface.
func guards(c nft.Content, name string) bool {
	_, ok := c.Elements["guarded"][nft.Element{Key: nft.InterfaceKey(name)}]
	return ok
}

// open lets packets to and from an endpoint, of which all other rules hold
// now.
func (d *DataPlane) open(name string, s *rtnl.Settings, ipv4 bool) error {
	if ipv4 {
		// The packet filter checks sources now, where it shall.
		if err := d.kernel.EndpointSources(s, guards(d.table, name)); err != nil {
			return err
		}
	}
	return d.setUp(name)
}

// openTunnels lets packets into the node's tunnels and out of them, of which the table
// is in force now. Before, whoever knows the node's address could send what he likes.
func (d *DataPlane) openTunnels(c *compiler) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.node.Tunnels)) {
		errs = append(errs, d.setUp(d.stamps.TunnelPrefix+name))
	}
	return errors.Join(errs...)
}

// setUp brings an interface up that was down.
func (d *DataPlane) setUp(name string) error {
	if !d.down[name] {
		return nil
	}
	l, err := d.kernel.LinkByName(name)
	if err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	if err := d.kernel.SetUp(l); err != nil {
		return err
	}
	delete(d.down, name)
	return nil
}
