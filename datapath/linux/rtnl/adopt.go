package rtnl

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/plan"
)

// Of returns what interfaces there are as a data plane with other stamps sees them.
func (i *Links) Of(s stamps.Stamps) *Links {
	return &Links{stamps: s, All: i.All, ByName: i.ByName}
}

// Without returns what interfaces there are but for some, by their indexes.
func (i *Links) Without(indexes []int) *Links {
	rest := slices.DeleteFunc(slices.Clone(i.All), func(l netlink.Link) bool { return slices.Contains(indexes, l.Attrs().Index) })
	return &Links{stamps: i.stamps, All: rest, ByName: i.ByName}
}

// Stamped reports whether something wears the stamps of the data plane.
func (k *Kernel) Stamped() (bool, error) {
	inv, err := k.List()
	if err != nil {
		return false, err
	}
	own := inv.OwnLinks()
	have, err := k.Read(inv.All, own, inv.TunnelLinks())
	if err != nil {
		return false, err
	}
	return len(own)+len(have.Groups)+len(have.Shaping)+len(have.Routes)+len(have.Rules)+len(have.Neighbours) > 0, nil
}

// Adopt gives interfaces and neighbours that wear another's stamps those of this data
// plane.
func (k *Kernel) Adopt(theirs *Links) error {
	var errs []error
	for _, l := range theirs.All {
		if l.Attrs().Group != theirs.stamps.Group {
			continue
		}
		if err := k.LinkSetGroup(l, int(k.stamps.Group)); err != nil && !Gone(err) {
			errs = append(errs, fmt.Errorf("set group %d of %s: %w", k.stamps.Group, l.Attrs().Name, err))
			continue
		}
		k.record("set group %d of interface %d", k.stamps.Group, l.Attrs().Index)
	}
	if l, ok := theirs.Own(theirs.stamps.Bridge, BridgeKind); ok {
		errs = append(errs, k.take(theirs, l, k.stamps.Bridge))
	}
	for name, l := range theirs.OwnTunnels() {
		errs = append(errs, k.take(theirs, l, k.stamps.TunnelPrefix+name))
	}
	// What leads to the same MAC is not written anew, and would go with the other.
	reader := *k
	reader.stamps = theirs.stamps
	have := &Objects{Neighbours: map[NeighbourKey]plan.MAC{}, FDB: map[FDBKey]netip.Addr{}}
	errs = append(errs, reader.readNeighbours(have, nil))
	for key, mac := range have.Neighbours {
		if err := k.setNeighbour(key, mac); err != nil && !Gone(err) {
			errs = append(errs, fmt.Errorf("take over neighbour %s: %w", key.Addr, err))
		}
	}
	return errors.Join(errs...)
}

// take gives another's device a name of this data plane's, unless there is one of that name;
// then whoever is removed takes the device away. It says what it is before it is called so:
// who is killed in between finds it by its old name, or by its alias.
func (k *Kernel) take(inv *Links, l netlink.Link, name string) error {
	if _, taken := inv.ByName[name]; taken {
		return nil
	}
	if err := k.setAlias(l, name); err != nil {
		return err
	}
	return k.rename(l, name)
}
