package linux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/judge"
	"github.com/weftnet/weft/datapath/linux/conntrack"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/plan"
)

// How this data plane takes over from another one of its kind, which has other
// stamps. What the two have is alike, so that nearly all can change hands without
// being gone for a moment:
//
//  1. The policy table comes beside the other's. A packet passes where both let it. As
//     devices still have the other's names, the table believes the tags of what comes out
//     of a tunnel under either name, until step 5.
//  2. In one transaction the other's tables of sources, guards, translation and Services
//     go, and this one's come, which take devices for its own that wear either's
//     stamps. From here on this one is in force.
//  3. One after the other, interfaces of endpoints get this one's group, and the
//     bridge and the tunnels' devices its names. They keep their indexes, and so
//     their routes, neighbours and forwarding entries.
//  4. Interfaces that lead to no endpoint any more go down, and the other's policy
//     table goes.
//  5. All else is as at any start: what differs is written, as this one's routes, which
//     stand beside the other's with another metric, and its table, which now takes
//     only what is its own.
//
// Whoever is killed in between leaves a node in which every packet is judged by the
// same plan as before. Connections are tracked by the kernel, and stay.
//
// A kernel before 6.2 gives no name to a device that is up. There it goes down for as
// long, and with it, until step 5, the routes on it: packets in tunnels are lost.
//
// A data plane of another kind is removed behind step 2, as nothing is known of what
// it has. Until step 5 nothing passes then but what the node's own routes lead to.

// Present reports whether something on the node has this data plane's stamps.
func (d *DataPlane) Present(ctx context.Context) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	d.state.Lock()
	defer d.state.Unlock()
	present := false
	return present, d.in(func() (err error) {
		if present, err = d.kernel.Stamped(); present || err != nil {
			return err
		}
		present, err = nft.AnyOf(d.stamps.Tables()...)
		return err
	})
}

// Prepare makes ready to take over; see datapath.DataPlane.
func (d *DataPlane) Prepare(ctx context.Context, p *plan.Plan, from ...datapath.DataPlane) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := errors.Join(p.Validate(), d.supports(p)); err != nil {
		return err
	}
	d.state.Lock()
	defer d.state.Unlock()
	d.from, d.current, d.previous = nil, nil, nil // what another has since done is not known
	return d.in(func() error {
		d.writes = nil
		inv, err := d.kernel.List()
		if err != nil {
			return err
		}
		var inTheWay []error
		if len(p.Local.Pools) > 0 {
			inTheWay = append(inTheWay, rtnl.CheckName(inv, d.stamps.Bridge, rtnl.BridgeKind))
		}
		rest := inv.Without(tunnelsOf(inv, kin(from)))
		for _, t := range rtnl.Overlays(d.stamps, p) {
			inTheWay = append(inTheWay, rtnl.CheckName(inv, t.Device, rtnl.VXLANKind))
			if err := rtnl.CheckTunnel(rest, t); err != nil && len(kin(from)) == len(from) {
				inTheWay = append(inTheWay, err)
			}
		}
		if err := errors.Join(inTheWay...); err != nil {
			return err
		}
		if err := d.enforce(p, func() ([][]string, error) { return d.besidePolicies(p, kin(from)) }); err != nil {
			return err
		}
		d.from = from
		return nil
	})
}

// besidePolicies writes the policy table where one of the others has one that is in force.
func (d *DataPlane) besidePolicies(p *plan.Plan, others []Stamps) ([][]string, error) {
	have, err := nft.Read(d.stamps.PolicyTable)
	if err != nil {
		return nil, err
	}
	if _, r := compilePolicies(d.stamps, p, d.policies.tags, counting{}, others...); !have.Exists() && !r.Empty() {
		if err := nft.Replace(r.Table, false, nil); err != nil {
			return nil, err
		}
	}
	return d.policies.syncBeside(p, others, apply) // which finds all as it should be, or writes what differs
}

// kin are the stamps of data planes of this kind.
func kin(from []datapath.DataPlane) (all []Stamps) {
	for _, f := range from {
		if other, ok := f.(*DataPlane); ok {
			all = append(all, other.stamps)
		}
	}
	return all
}

// tunnelsOf are the indexes of the devices of others' tunnels.
func tunnelsOf(inv *rtnl.Links, others []Stamps) (all []int) {
	for _, s := range others {
		all = append(all, inv.Of(s).TunnelLinks()...)
	}
	return all
}

// unlessTaken returns an error of an Apply, which says that the data plane has not taken
// over, where it was to and the error is of more than single entries and endpoints: what
// the others have would be removed, and is all that some packets have.
func (d *DataPlane) unlessTaken(err error) error {
	if d.from == nil || datapath.Concerning(err, "") == nil {
		return err
	}
	return fmt.Errorf("%w: %w", datapath.ErrNotTaken, err)
}

// take makes this data plane the one in force, in the place of those that Prepare was
// told of, and gives it what they have. What was done before is done again. It is called
// in the node's namespace.
func (d *DataPlane) take(ctx context.Context, p *plan.Plan) error {
	others := kin(d.from)
	if err := d.takeForce(p, others); err != nil {
		return err
	}
	for _, f := range d.from {
		if _, ok := f.(*DataPlane); !ok {
			if err := f.Remove(ctx); err != nil {
				return fmt.Errorf("remove what data plane %s has: %w", f.Name(), err)
			}
		}
	}
	inv, err := d.kernel.List()
	if err != nil {
		return err
	}
	for _, other := range others {
		if err := d.kernel.Adopt(inv.Of(other)); err != nil {
			return err
		}
	}
	if err := d.releaseAllBut(p, inv, others); err != nil {
		return err
	}
	var policies []string
	for _, other := range others {
		policies = append(policies, other.PolicyTable)
	}
	if err := nft.Delete(policies...); err != nil {
		return fmt.Errorf("delete the policies of another data plane: %w", err)
	}
	return nil
}

// releaseAllBut takes down the interfaces of others' endpoints that are none of a plan.
func (d *DataPlane) releaseAllBut(p *plan.Plan, inv *rtnl.Links, others []Stamps) error {
	var errs []error
	for _, l := range inv.All {
		_, wanted := p.Endpoints.Get(plan.EndpointKey{Interface: l.Attrs().Name})
		if !wanted && slices.ContainsFunc(others, func(s Stamps) bool { return s.Group == l.Attrs().Group }) {
			errs = append(errs, d.kernel.Release(l.Attrs().Index))
		}
	}
	return errors.Join(errs...)
}

// takeForce is steps 1 and 2.
func (d *DataPlane) takeForce(p *plan.Plan, others []Stamps) error {
	if err := d.enforce(p, func() ([][]string, error) {
		done, err := d.policies.syncBeside(p, others, apply)
		if err == nil && judge.Needed(p) {
			err = d.takeEnded(others)
		}
		return done, err
	}); err != nil {
		return err
	}
	inv, err := d.kernel.List()
	if err != nil {
		return err
	}
	own := inv.OwnLinks()
	for _, other := range others {
		own = append(own, inv.Of(other).OwnLinks()...)
	}
	n := &rtnl.Node{Stamps: d.stamps}
	if n.Connected, err = d.kernel.Connections(own); err != nil {
		return err
	}
	most := conntrack.MostTracked()
	if most == 0 {
		most = usualConnections
	}
	sources := compileSources(p, func(via netip.Addr) rtnl.LinkSet { return n.LinksTo(via, p.Local.Addresses) })
	r := compileRuleset(d.stamps, p, sources, most, d.policies.tags)
	for _, other := range others {
		r.takeFor(other)
	}
	services, err := nft.Read(d.stamps.ServiceTable)
	if err != nil {
		return err
	}
	_, s := compileServices(d.stamps, p, sources, services)
	for _, other := range others {
		s.takeFor(other)
	}
	have, err := nft.Read(r.Name)
	if err != nil {
		return err
	}
	var gone []string
	for _, other := range others {
		gone = append(gone, other.Table, other.ServiceTable)
	}
	if err := nft.ReplaceAll([]nft.Placed{{Table: r.Table, There: have.Exists()}, {Table: s.Table, There: services.Exists()}}, gone); err != nil {
		return err
	}
	d.record("write tables inet %s and %s, and delete those of other data planes", r.Name, s.Name)
	return nil
}

// takeEnded takes over what others know of connections that were ended.
func (d *DataPlane) takeEnded(others []Stamps) error {
	sets := map[string]nft.Set{endedAll: setOfAllEnded}
	timeouts := map[string]time.Duration{endedAll: endedTimeout}
	for _, is4 := range interval.Families {
		sets[endedPrefix+suffix(is4)], timeouts[endedPrefix+suffix(is4)] = setOfEnded(is4), endedTimeout
		sets[latePrefix+suffix(is4)], timeouts[latePrefix+suffix(is4)] = setOfEnded(is4), lateTimeout
	}
	for name, like := range sets {
		for _, other := range others {
			ended, _, err := nft.ReadElements(like.In(other.PolicyTable, name))
			if errors.Is(err, unix.ENOENT) || err == nil && len(ended) == 0 {
				continue
			}
			if err == nil {
				err = d.sweeper.add(name, &like, ended, timeouts[name])
			}
			if err != nil {
				return fmt.Errorf("take over which connections were ended: %w", err)
			}
		}
	}
	return nil
}

// takeFor makes the rules take devices that wear another's stamps for devices of
// this data plane, too.
func (r *ruleset) takeFor(other Stamps) {
	r.Rewrite(func(exprs []expr.Any) [][]expr.Any { return alternatives(exprs, r.stamps, other) })
}

// alternatives are the expressions of the rules that together hold for a packet with
// either's stamps where a rule holds for one with the first's. A rule that asks for a
// stamp becomes two; one that asks for another than it asks for another than both.
func alternatives(exprs []expr.Any, own, other Stamps) [][]expr.Any {
	for i := 1; i < len(exprs); i++ {
		load, isLoad := exprs[i-1].(*expr.Meta)
		compare, isCompare := exprs[i].(*expr.Cmp)
		if !isLoad || !isCompare || load.SourceRegister || load.Register != compare.Register {
			continue
		}
		stamp := otherStamp(load.Key, compare.Data, own, other)
		if stamp == nil {
			continue
		}
		also := &expr.Cmp{Op: compare.Op, Register: compare.Register, Data: stamp}
		var all [][]expr.Any
		for _, rest := range alternatives(exprs[i+1:], own, other) {
			if compare.Op == expr.CmpOpNeq {
				all = append(all, slices.Concat(exprs[:i+1], []expr.Any{also}, rest))
				continue
			}
			all = append(all, slices.Concat(exprs[:i+1], rest), slices.Concat(exprs[:i], []expr.Any{also}, rest))
		}
		return all
	}
	return [][]expr.Any{exprs}
}

// otherStamp returns the value that another data plane has where this one has a
// value, or nil if that is no stamp.
func otherStamp(key expr.MetaKey, value []byte, own, other Stamps) []byte {
	switch key {
	case expr.MetaKeyIIFGROUP, expr.MetaKeyOIFGROUP:
		if bytes.Equal(value, nft.HostEndian(own.Group)) {
			return nft.HostEndian(other.Group)
		}
	case expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME:
		if bytes.Equal(value, []byte(own.TunnelPrefix)) {
			return []byte(other.TunnelPrefix)
		}
		if tunnel, ok := strings.CutPrefix(strings.TrimRight(string(value), "\x00"), own.TunnelPrefix); ok {
			return []byte(nft.InterfaceKey(other.TunnelPrefix + tunnel))
		}
		if bytes.Equal(value, []byte(nft.InterfaceKey(own.Bridge))) {
			return []byte(nft.InterfaceKey(other.Bridge))
		}
	}
	return nil
}
