// Package linux is the data plane that consists of the Linux kernel's own
// routing: routes, neighbours and forwarding entries that are all known in
// advance, so that nothing is flooded and nobody has to ask who is where.
//
// A pod's interface is one end of a veth pair and no bridge's port: the node
// is its router. Each pod's address is a route to its interface and a
// permanent neighbour. Another node's prefix is a route to a next hop on the
// VXLAN device, a permanent neighbour that gives the next hop the MAC address
// of that node's VTEP, and one forwarding entry that gives the MAC its
// underlay address. Source translation and the check of all sources is one
// nftables table, policies are another, and Services a third.
//
// What is made here can be told from all else by its Stamps, which are, unless
// others are given: the devices weft0 (a bridge
// without ports that holds the pools' gateways) and weft-NAME for each tunnel, the nftables
// tables "inet weft", "inet weft-policy" and "inet weft-services", routes, rules and neighbours of
// protocol 87, interfaces of group 0x77656674. Nothing else is touched; settings
// that make the node a router are turned on and stay on, for the families that
// the plan has to do with. Where a table checks an endpoint's sources, the
// kernel's own check of them is off for that interface. Router advertisements,
// redirects and the like are taken from no interface of Weft's.
// A firewall of the node's own that drops what is forwarded keeps dropping it,
// as a verdict of another table cannot be overruled from here; package survey
// says so.
//
// Policies are asked about what passes through the node, and about what its
// endpoints send to the node itself; policy.go shows how. What they deny is
// told to netlink log group 87. Connections that they, or egress rules, come to forbid are
// ended in the background, by sweep.go, and both sides are told, by package conntrack.
//
// What an endpoint may receive and send at most, it does by way of token buckets, package rtnl's
// Shaping.
//
// What an endpoint leaves behind in connection tracking is deleted before
// another has its address, by package conntrack.
//
// The parts: compile.go turns plan entries into the values of package rtnl,
// egress.go, ruleset.go, sources.go, arrivals.go, guard.go, peers.go, crossing.go
// and limits.go turn the rest into those of an nftables table, without touching
// anything, and tags.go those by which tags travel; policy.go, policies.go and
// believed.go do so for the table of policies, services.go, serving.go and slots.go for
// that of Services, here.go what the node itself answers of these, and counts.go what they count,
// which endcounts.go reads and ends.
// Packages rtnl and nft read and write them; watch.go and news.go notice what others
// do to them. Package survey says what of others' own is in the way. Start at
// DataPlane.sync.
package linux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/judge"
	"github.com/weftnet/weft/datapath/linux/conntrack"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/datapath/linux/survey"
	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/plan"
)

// Stamps tell what a data plane makes from all else; see stamps.Stamps.
type Stamps = stamps.Stamps

// Config is what a data plane needs to start.
type Config struct {
	// Stamps are the data plane's own; zero means stamps.Default.
	Stamps Stamps
	// Log gets what is worth telling people; nil means slog.Default.
	Log *slog.Logger
}

// DataPlane makes a network namespace do what a plan says. Its methods must
// not be called concurrently, but for those of datapath.Observer,
// datapath.ServiceCounter and datapath.Watcher.
type DataPlane struct {
	stamps Stamps
	log    *slog.Logger
	in     func(func() error) error
	kernel *rtnl.Kernel
	ipv6   bool
	writes []string // since the last call of take
	count  uint64

	// What was applied last; nil when it has to be read from the kernel. What the
	// kernel lacks of it is owed: what report tells.
	current *plan.Plan
	// previous is the plan that Repair repairs, also after an error.
	previous *plan.Plan

	// state is held while the kernel is brought up to date, and by Watch while
	// it looks at what is wanted.
	state sync.Mutex
	// watcher is that of Watch, nil while nobody watches.
	watcher *watcher
	// others is what Others follows, nil while it does not.
	others *survey.Changes
	// follows is the watcher that has heard of all that others did since sync began
	// to read what there is; nil where there is none. looks is how often Repair has
	// gone by that since.
	follows *watcher
	looks   int

	compiler *compiler
	// refused are the routes of the compiler's plan that other programs' are in the way of.
	refused  []rtnl.Refusal
	table    nft.Content
	policies policies
	services services
	// policyTable is held by who writes it, or the Services'. The sweeper and the counter do beside
	// Apply.
	policyTable sync.Mutex
	sweeper     *sweeper
	counter     *counter
	// passing says that what is applied is a plan to go through on the way to another, and
	// owed that it may forbid connections, of which the other judges.
	passing, owed bool
	// enforced is the plan whose policies the kernel has, for Denied.
	enforced atomic.Pointer[plan.Plan]

	sctp bool
	// most is how many connections the kernel tracked at most when it was last
	// read, which Repair does; 0 where it did not say.
	most int
	// forwards says for which families the node was made a router since the
	// kernel was read.
	forwards [2]bool
	// keepsHalfClosed says that connections of which one side sends no more are known for long
	// enough, since the kernel was read.
	keepsHalfClosed bool
	// misnamed are the interfaces that could not have the names that they ought to have when
	// all was read last, by these names.
	misnamed map[string]rtnl.Misnamed
	// down are the endpoints' interfaces, and the tunnels' devices, that were down when
	// they were last looked at.
	down map[string]bool

	// lost are addresses that have lost their endpoint since the kernel was last
	// brought up to date, and forgetter has their connections forgotten.
	lost      []netip.Addr
	forgetter *conntrack.Forgetter
	// from are those that the next Apply takes over from.
	from []datapath.DataPlane
	// resumed are the pools whose addresses were looked through for connections
	// of before.
	resumed map[netip.Prefix]bool
}

var (
	_ datapath.DataPlane = (*DataPlane)(nil)
	_ datapath.Observer  = (*DataPlane)(nil)
	_ datapath.Watcher   = (*DataPlane)(nil)
	_ datapath.Surveyor  = (*DataPlane)(nil)
	_ datapath.Limiter   = (*DataPlane)(nil)

	_ datapath.ServiceCounter = (*DataPlane)(nil)
)

// New returns a data plane for the network namespace that the process is in.
func New(c Config) (*DataPlane, error) {
	return open(c, func(f func() error) error { return f() })
}

// NewAt returns a data plane for the network namespace at path.
func NewAt(path string, c Config) (*DataPlane, error) {
	return open(c, func(f func() error) error { return netns.Do(path, f) })
}

func open(c Config, in func(func() error) error) (*DataPlane, error) {
	d := &DataPlane{stamps: cmp.Or(c.Stamps, stamps.Default), log: c.Log, in: in, resumed: map[netip.Prefix]bool{}}
	if d.log == nil {
		d.log = slog.Default()
	}
	if err := d.stamps.Check(); err != nil {
		return nil, err
	}
	d.policies.stamps, d.services.stamps = d.stamps, d.stamps
	err := in(func() (err error) {
		if d.policies.tags, err = labelsConnections(); err != nil {
			return err
		}
		// Behind that, as it has the kernel load connection tracking where that is a module.
		d.able()
		d.kernel, err = rtnl.Open(d.stamps, d.record)
		return err
	})
	if err != nil {
		return nil, err
	}
	d.sweeper = startSweeper(in, d.log, d.stamps.PolicyTable, &d.policyTable, &d.enforced)
	d.counter = startCounter(in, d.log, d.stamps.ServiceTable, &d.policyTable, &d.enforced)
	d.forgetter = conntrack.StartForgetter(in, d.log)
	return d, nil
}

// Close releases the data plane's sockets and ends what it does in the
// background. What it made in the kernel stays.
func (d *DataPlane) Close() error {
	d.sweeper.close()
	d.counter.close()
	d.forgetter.Close()
	d.kernel.Close()
	return nil
}

// record notes one change that was made in the kernel.
func (d *DataPlane) record(format string, args ...any) {
	d.count++
	d.writes = append(d.writes, fmt.Sprintf(format, args...))
	d.log.Debug("kernel", "change", d.writes[len(d.writes)-1])
}

// Writes is how many changes were made in the kernel since New.
func (d *DataPlane) Writes() uint64 { return d.count }

// Name returns "linux".
func (d *DataPlane) Name() string { return "linux" }

// able asks the kernel for what it may come to do, or cease to do.
func (d *DataPlane) able() { d.ipv6, d.sctp = rtnl.IPv6Enabled(), conntrack.SCTPTracked() }

// Capabilities says what Apply accepts. It asks the kernel each time, as IPv6
// may be turned on and off, and connection tracking loaded later.
func (d *DataPlane) Capabilities() datapath.Capabilities {
	if err := d.in(func() error { d.able(); return nil }); err != nil {
		d.log.Warn("cannot see whether there is IPv6, and whether SCTP is tracked", "error", err)
	}
	without := ""
	if !d.ipv6 {
		without = rtnl.NoIPv6
	}
	return datapath.Capabilities{
		IPv6:          d.ipv6,
		NoIPv6:        without,
		Tunnels:       true,
		Tags:          d.policies.tags,
		Verdicts:      true,
		Services:      d.policies.tags,
		AnswersHere:   d.policies.tags,
		SCTP:          d.sctp,
		AntiSpoof:     true,
		Bandwidth:     true,
		EgressActions: []plan.EgressAction{plan.Direct, plan.Masquerade, plan.SourceNAT, plan.Discard},
	}
}

// Apply makes the node do what p says; see datapath.DataPlane. Endpoints whose
// interface is not there are left out, and the error then wraps
// datapath.ErrMissing. They, and the routes that other programs' are in the way of, are
// owed: a later call tries them again, also one with the same plan, and it reads no more
// than these need. An interface that was made anew, under the name that one has that is
// there by the plan, is seen by Watch and Repair alone.
func (d *DataPlane) Apply(ctx context.Context, p *plan.Plan) error {
	if p == nil {
		p = &plan.Plan{}
	}
	changes, err := d.accept(ctx, p)
	if err != nil {
		return d.unlessTaken(err)
	}
	if d.current != nil && changes.Empty() && d.report(d.current) == nil {
		return nil
	}
	trouble, err := d.load(ctx, p, changes)
	return errors.Join(trouble, err, d.report(p))
}

// load brings the kernel to p, where changes lead to it from the current plan. It returns
// what is wrong with the node or the plan, and all else that kept it from doing so, but for
// what report says.
func (d *DataPlane) load(ctx context.Context, p *plan.Plan, changes plan.Diff) (trouble, err error) {
	d.state.Lock()
	defer d.state.Unlock()
	err = d.in(func() (err error) {
		d.writes = nil
		known := d.current != nil && !changes.Local && len(changes.Networks) == 0
		if now := time.Now(); d.previous != nil {
			since := d.previous.Diff(p)
			d.lost = append(d.lost, lostBy(since)...)
			d.sweeper.left.note(since.Backends, now)
		} else {
			d.sweeper.left.begin(now)
		}
		d.current, d.previous = nil, p
		if d.from != nil {
			if err := d.take(ctx, p); err != nil {
				return d.unlessTaken(err)
			}
		}
		if known {
			known, err = d.update(p, changes)
			if errors.Is(err, unix.ENOENT) { // somebody has just deleted what was to be changed
				known = false
			}
		}
		if !known {
			trouble, err = d.sync(p)
		}
		if err = d.unlessTaken(err); !errors.Is(err, datapath.ErrNotTaken) {
			d.from = nil
		}
		if errors.Join(trouble, err) == nil {
			d.current = p
		}
		return err
	})
	return trouble, err
}

// accept returns what leads from the current plan to p, if there is one, or why p
// cannot be done. Where the way there is by another plan, it is gone.
func (d *DataPlane) accept(ctx context.Context, p *plan.Plan) (plan.Diff, error) {
	if err := ctx.Err(); err != nil {
		return plan.Diff{}, err
	}
	changes, err := d.check(p)
	if err != nil || d.from != nil || d.current != nil && changes.Empty() {
		return changes, err
	}
	between := datapath.Between(d.previous, p)
	if between == d.previous {
		return changes, nil
	}
	if changes, err = d.check(between); err != nil {
		return changes, err
	}
	// Trouble, and what is owed, is said of the plan itself: where a device or an interface
	// is missing, nothing passes. Connections are judged by that plan alone, too.
	before := d.previous
	d.passing = true
	_, err = d.load(ctx, between, changes)
	d.passing = false
	if datapath.Concerning(err, "") != nil {
		// What drops packets may not be in place, and p may allow more. The next call goes
		// the same way.
		d.previous = before
		return changes, err
	}
	return d.check(p)
}

// check returns what leads from the current plan to p, if there is one, or why p cannot
// be done. Where there is one it costs what the changes do.
func (d *DataPlane) check(p *plan.Plan) (plan.Diff, error) {
	if d.current == nil {
		return plan.Diff{}, errors.Join(p.Validate(), d.supports(p))
	}
	changes := d.current.Diff(p)
	if changes.Empty() {
		return changes, nil
	}
	return changes, d.supportsChanges(p, changes)
}

// Repair puts right what others changed; see datapath.DataPlane.
func (d *DataPlane) Repair(ctx context.Context) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if d.previous == nil {
		return nil, nil
	}
	d.state.Lock()
	defer d.state.Unlock()
	err := d.in(func() error {
		d.writes = nil
		if d.compiler != nil {
			// Before interfaces are read, which waits for whoever else has the kernel change
			// some, as the end of a network namespace does for seconds where much ends. What keeps
			// it from being done is told where all is read.
			_ = d.refill()
		}
		if d.current != nil {
			if same, err := d.look(); same && err == nil {
				return d.report(d.current)
			}
			// What is wrong comes to light, or is told, when all is read.
			d.current = nil
		}
		err := errors.Join(d.sync(d.previous))
		if err == nil {
			d.current = d.previous
		}
		return errors.Join(err, d.report(d.previous))
	})
	return slices.Clone(d.writes), err
}

// Remove takes away all that is Weft's; see datapath.DataPlane.
func (d *DataPlane) Remove(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.state.Lock()
	defer d.state.Unlock()
	return d.in(func() error {
		d.writes = nil
		d.current, d.previous, d.lost, d.from = nil, nil, nil, nil
		clear(d.resumed)
		return errors.Join(d.sync(&plan.Plan{}))
	})
}

// look puts right what the kernel does not tell Watch, which is settings, and
// says whether all else is what it was when everything was read last: by what
// Watch heard, and by what it is not told, or not in full, of interfaces and of
// other interfaces' addresses. Routes that were refused are tried again.
func (d *DataPlane) look() (same bool, err error) {
	if same, err := d.followed(); !same || err != nil {
		return false, err
	}
	d.looks++
	c, p := d.compiler, d.current
	inv, err := d.list()
	if err != nil || len(d.misnamed) > 0 {
		return false, err
	}
	n := &rtnl.Node{}
	if n.Connected, err = d.kernel.Connections(c.node.OwnLinks()); err != nil {
		return false, err
	}
	before := d.count
	tunnels, bridge := d.ensureDevices(inv, n, p)
	if err := errors.Join(bridge, inOrder(tunnels)); err != nil || d.count != before {
		return false, err
	}
	if !slices.Equal(inv.OwnLinks(), c.node.OwnLinks()) ||
		!n.Connected.Equal(c.node.Connected) || d.most != conntrack.MostTracked() {
		return false, nil
	}
	for _, l := range inv.All {
		if _, leads := c.want.Groups.Now[l.Attrs().Index]; leads != (l.Attrs().Group == d.stamps.Group) {
			return false, nil
		}
	}
	for _, l := range inv.OwnTunnels() {
		if l.Attrs().Flags&net.FlagUp == 0 || l.Attrs().MasterIndex != 0 {
			return false, nil
		}
	}
	for name := range c.missing {
		if _, ok := inv.Endpoint(name); ok {
			return false, nil
		}
	}
	if elsewhere(inv, c.missing) {
		return false, nil
	}
	for name, index := range c.node.Links {
		if l, ok := inv.Endpoint(name); !ok || l.Attrs().Index != index || l.Attrs().Flags&net.FlagUp == 0 || l.Attrs().MasterIndex != 0 {
			return false, nil
		}
	}
	d.forwards, d.keepsHalfClosed = [2]bool{}, false
	return true, errors.Join(d.write(rtnl.Delta{}, c, p.Endpoints.All(), false))
}

// sync reads what is there and changes what differs. It returns what is wrong with the
// node or the plan, and all else that kept it from doing so.
func (d *DataPlane) sync(p *plan.Plan) (trouble, err error) {
	// What is told from here on is judged by what this writes.
	d.follows, d.looks = d.watcher, 0
	d.forwards, d.keepsHalfClosed, d.most = [2]bool{}, false, conntrack.MostTracked()
	inv, err := listing(d.kernel)
	if err != nil {
		return nil, err
	}
	changed, misnamed, notBack := d.kernel.PutBack(inv, d.known(inv))
	if d.misnamed = misnamed; changed {
		if inv, err = d.list(); err != nil {
			return nil, err
		}
	}
	n := &rtnl.Node{Stamps: d.stamps, Links: map[string]int{}}
	if n.Connected, err = d.kernel.Connections(inv.OwnLinks()); err != nil {
		return nil, err
	}
	tunnelTrouble, bridgeTrouble := d.ensureDevices(inv, n, p)
	// Again, as making devices changes what there is.
	if inv, err = d.list(); err != nil {
		return nil, err
	}
	d.down = map[string]bool{}
	for k := range p.Endpoints.All() {
		if l, ok := inv.Endpoint(k.Interface); ok {
			n.Links[k.Interface] = l.Attrs().Index
			d.down[k.Interface] = l.Attrs().Flags&net.FlagUp == 0
		}
	}
	if len(p.Local.Pools) > 0 && bridgeTrouble == nil {
		n.Bridge = inv.Index(d.stamps.Bridge)
	}
	n.Tunnels = map[string]rtnl.Device{}
	for _, t := range p.Local.Tunnels {
		if l, ok := inv.Own(d.stamps.TunnelPrefix+t.Name, rtnl.VXLANKind); ok && tunnelTrouble[t.Name] == nil {
			n.Tunnels[t.Name] = rtnl.Device{Index: l.Attrs().Index, MTU: l.Attrs().MTU}
			d.down[l.Attrs().Name] = l.Attrs().Flags&net.FlagUp == 0
		}
	}
	c := newCompiler(n, p, &rtnl.Wanted{})
	if err := c.compile(); err != nil {
		return nil, err
	}
	have, err := d.kernel.Read(inv.All, inv.OwnLinks(), inv.TunnelLinks())
	if err != nil {
		return nil, err
	}
	if d.table, err = reading(d.stamps.Table); err != nil {
		return nil, err
	}
	c.want.Begin()
	d.refused = nil // as all that is there was read
	delta := c.want.Against(have)
	released := d.release(delta.Groups)
	d.services.shutNow = nil // as others may have written there
	if err := d.comeHere(p, &delta, c); err != nil {
		return released, err
	}
	retag := d.retag(p)
	if err := d.enforce(p, func() ([][]string, error) {
		return d.unheard(func() ([][]string, error) {
			serve := writer(func(edits ...nft.Edit) ([][]string, error) { return d.services.sync(p, c.sourcesOf(), edits...) })
			return d.policies.sync(p, serve, retag)
		})
	}); err != nil {
		return released, err
	}
	d.retagged(retag)
	// Whatever there was to change: another instance may not have come to it.
	d.sweep(p, true)
	settings, err := d.write(delta, c, p.Endpoints.All(), true)
	if err == nil {
		err = d.letIn(p)
	}
	d.sweep(p, judge.Drops(p))
	return errors.Join(notBack, bridgeTrouble, released, inOrder(tunnelTrouble), settings, d.removeDevices(inv, p)), err
}

// update changes what leads from the current plan to p, and tries again what is owed. It
// returns false when that cannot be told from the changes and what is owed alone, and has
// then changed nothing.
func (d *DataPlane) update(p *plan.Plan, changes plan.Diff) (bool, error) {
	if ipv4, ipv6 := rtnl.Routed(p); d.forwards != [2]bool{ipv4, ipv6} {
		return false, nil // Weft's own devices have to do with another family
	}
	// What does not say itself that it is an endpoint's may be another's.
	doubtful := map[string]bool{}
	index := func(name string) int {
		l, err := d.kernel.LinkByName(name)
		if d.mayBe(name) && (err != nil || rtnl.Whose(l) != name) {
			doubtful[name] = true
		}
		if err != nil || !rtnl.MayBe(l, name) || !d.mayBe(name) {
			return 0
		}
		d.down[name] = l.Attrs().Flags&net.FlagUp == 0
		return l.Attrs().Index
	}
	// What judges packets has an endpoint by its name, also while its interface is
	// missing.
	loaded := d.compiler.withArrived(p, changes, index)
	clear(doubtful) // those that were missing before, and still are: of these Watch and Repair hear
	c, ok := d.compiler.advance(p, loaded, index)
	if !ok {
		return false, nil
	}
	if len(doubtful) > 0 {
		if other, err := d.elsewhere(doubtful); other || err != nil {
			return false, err
		}
	}
	delta := c.want.Changes()
	filters := len(changes.Endpoints)+len(changes.Egress) > 0 || c.sources == nil
	released := d.release(delta.Groups)
	if movesHere(changes) {
		if err := d.comeHere(p, &delta, c); err != nil {
			return true, errors.Join(released, err)
		}
	}
	elements := len(changes.Tags) + len(changes.Classes) + len(changes.Within) + len(changes.Verdicts) +
		len(changes.Services) + len(changes.Backends) + len(changes.Sources)
	before := d.compiler.plan
	if len(changes.Endpoints)+elements > 0 || d.services.concerns(changes) || movesSources(before, p, changes) || len(changes.Egress) > 0 && judge.Needed(p) != d.policies.present {
		retag := d.retag(p)
		serve, now := d.services.update(before, p, changes, c.sourcesOf())
		write := func() ([][]string, error) {
			done, err := apply(serve.before)
			if err != nil {
				return done, err
			}
			noticed, err := d.policies.update(before, p, changes, retag, serve.noticed)
			if done = append(done, noticed...); err != nil {
				return done, err
			}
			rest := func() ([][]string, error) { return apply(serve.behind...) }
			if !now {
				rest = func() ([][]string, error) { return d.services.sync(p, c.sourcesOf()) }
			}
			behind, err := rest()
			return append(done, behind...), err
		}
		if update := write; max(elements, serve.elements()) > manyElements {
			write = func() ([][]string, error) { return d.unheard(update) }
		}
		err := d.enforce(p, write)
		if err != nil {
			return true, errors.Join(released, err)
		}
		d.retagged(retag)
		d.sweep(p, judge.MayForbid(before, p, changes) || judge.MayUnserve(before, p, changes) || movesBelief(d.stamps, before, p, changes))
	}
	added := func(yield func(plan.EndpointKey, plan.Endpoint) bool) {
		for _, e := range loaded.Endpoints {
			if e.New != nil && !yield(e.Key, *e.New) {
				return
			}
		}
		// And those that have come to be served at a loopback address.
		for k, e := range answering(p, changes) {
			if !slices.ContainsFunc(loaded.Endpoints, func(l plan.Change[plan.EndpointKey, plan.Endpoint]) bool { return l.Key == k }) && !yield(k, e) {
				return
			}
		}
	}
	settings, err := d.write(delta, c, added, filters)
	if err == nil && movesHere(changes) {
		err = d.letIn(p)
	}
	// Until here, what egress rules drop now could begin.
	d.sweep(p, judge.MayDrop(before, p, changes))
	return true, errors.Join(released, settings, err)
}

// ensureDevices makes the devices that the plan needs, as they should be. It
// returns, by their names, why there are no tunnels, and why there is no bridge: the
// rest does without.
func (d *DataPlane) ensureDevices(inv *rtnl.Links, n *rtnl.Node, p *plan.Plan) (tunnels map[string]error, bridge error) {
	ipv4, ipv6 := rtnl.Routed(p)
	if len(p.Local.Pools) > 0 {
		if bridge = rtnl.CheckName(inv, d.stamps.Bridge, rtnl.BridgeKind); bridge == nil {
			bridge = d.kernel.EnsureBridge(inv, p, ipv4, ipv6)
		}
	}
	tunnels = map[string]error{}
	for _, t := range rtnl.Overlays(d.stamps, p) {
		if err := d.ensureTunnel(inv, n, t, ipv4, ipv6); err != nil {
			tunnels[t.Name] = err
		}
	}
	return tunnels, bridge
}

func (d *DataPlane) ensureTunnel(inv *rtnl.Links, n *rtnl.Node, t rtnl.Overlay, ipv4, ipv6 bool) error {
	if err := errors.Join(rtnl.CheckName(inv, t.Device, rtnl.VXLANKind), rtnl.CheckTunnel(inv, t)); err != nil {
		return err
	}
	mtu, err := rtnl.VXLANMTU(inv, n, t)
	if err != nil {
		return err
	}
	return d.kernel.EnsureVXLAN(inv, t, mtu, ipv4, ipv6)
}

// inOrder joins errors in the order of what they are about: what is said of one reason is
// always the same.
func inOrder(about map[string]error) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(about)) {
		errs = append(errs, about[name])
	}
	return errors.Join(errs...)
}

// removeDevices deletes Weft's devices that the plan does not need, whatever they are called.
func (d *DataPlane) removeDevices(inv *rtnl.Links, p *plan.Plan) error {
	errs := map[string]error{}
	for name, l := range inv.OwnTunnels() {
		if _, wanted := p.Local.Tunnel(name); !wanted {
			errs[name] = d.kernel.DeleteLink(l)
		}
	}
	if l, ok := inv.Own(d.stamps.Bridge, rtnl.BridgeKind); ok && len(p.Local.Pools) == 0 {
		errs[""] = d.kernel.DeleteLink(l)
	}
	for name, m := range d.misnamed {
		if l := inv.ByIndex(m.Index); l != nil && !m.Copy && l.Type() == d.kindOf(name) && !d.names(p, name) {
			errs[name] = d.kernel.DeleteLink(l)
		}
	}
	return inOrder(errs)
}

// report says what the kernel lacks of a plan, where it was brought up to date with that: the
// routes that it refused, what the node cannot do, the interfaces of which there are copies,
// and the endpoints whose interface is missing.
func (d *DataPlane) report(p *plan.Plan) error {
	c := d.compiler
	if c == nil || c.plan != p {
		return nil
	}
	var errs []error
	for _, r := range d.refused {
		errs = append(errs, c.blame(r.Route.Link, &datapath.EntryError{Entry: r.String(), Origin: c.originOf(r.Key), Err: r.Err}))
	}
	errs = append(errs, c.problems...)
	for _, name := range slices.Sorted(maps.Keys(d.misnamed)) {
		if m := d.misnamed[name]; m.Copy && d.names(p, name) && !c.missing[name] {
			errs = append(errs, &datapath.EntryError{Entry: "interface " + name, Err: m.Problem(name)})
		}
	}
	if len(c.missing) == 0 {
		return errors.Join(errs...)
	}
	for k, e := range p.Endpoints.All() {
		if c.missing[k.Interface] {
			missing := &datapath.EndpointError{Interface: k.Interface, Name: e.Name, Origin: e.Origin, Err: datapath.ErrMissing}
			if !d.mayBe(k.Interface) {
				missing.Err = d.misnamed[k.Interface].Problem(k.Interface)
			}
			errs = append(errs, missing)
		}
	}
	return errors.Join(errs...)
}
