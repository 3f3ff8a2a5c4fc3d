package linux

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
)

// supports names all entries of a plan that cannot be done.
func (d *DataPlane) supports(p *plan.Plan) error {
	var errs []error
	for _, pool := range p.Local.Pools {
		line := func() string { return "pool " + pool.Network + " " + pool.Prefix.String() }
		errs = append(errs, d.network(pool.Network, line), d.family(pool.Prefix.Addr().Is6(), line))
	}
	for _, t := range p.Local.Tunnels {
		if t.CarriesTags && !d.policies.tags {
			errs = append(errs, notSupported(func() string { return "tunnel " + t.Name }, "tags in the tunnel, as the kernel labels no connections,"))
		}
	}
	for k, n := range p.Networks.All() {
		errs = append(errs, d.network(k.Name, func() string { return k.Line(n) }))
	}
	for k, peer := range p.Peers.All() {
		errs = append(errs, d.supportsPeer(k, peer))
	}
	for k, e := range p.Endpoints.All() {
		errs = append(errs, d.supportsEndpoint(k, e))
	}
	for k, r := range p.Routes.All() {
		errs = append(errs, d.supportsRoute(k, r))
	}
	for k, e := range p.Egress.All() {
		errs = append(errs, d.supportsEgress(k, e))
	}
	for k, t := range p.Tags.All() {
		errs = append(errs, d.network(k.Network, func() string { return k.Line(t) }))
	}
	for k, m := range p.Classes.All() {
		errs = append(errs, d.network(k.Network, func() string { return k.Line(m) }))
	}
	errs = append(errs, d.supportsVerdicts(p, nil))
	for k, s := range p.Services.All() {
		errs = append(errs, d.supportsFrontend(k, s))
	}
	for k, b := range p.Backends.All() {
		errs = append(errs, d.ofServices(k.Network, k.Address, func() string { return k.Line(b) }))
	}
	for k, s := range p.Sources.All() {
		errs = append(errs, d.ofServices(k.Network, k.Prefix.Addr(), func() string { return k.Line(s) }))
	}
	return errors.Join(errs...)
}

// supportsChanges is supports for a plan of which all else was accepted.
func (d *DataPlane) supportsChanges(p *plan.Plan, changes plan.Diff) error {
	if changes.Local || len(changes.Networks) > 0 {
		return errors.Join(p.Validate(), d.supports(p))
	}
	var errs []error
	for _, c := range changes.Peers {
		if c.New != nil {
			errs = append(errs, d.supportsPeer(c.Key, *c.New))
		}
	}
	for _, c := range changes.Endpoints {
		if c.New != nil {
			errs = append(errs, d.supportsEndpoint(c.Key, *c.New))
		}
	}
	for _, c := range changes.Routes {
		if c.New != nil {
			errs = append(errs, d.supportsRoute(c.Key, *c.New))
		}
	}
	for _, c := range changes.Egress {
		if c.New != nil {
			errs = append(errs, d.supportsEgress(c.Key, *c.New))
		}
	}
	for _, c := range changes.Tags {
		if c.New != nil {
			errs = append(errs, d.network(c.Key.Network, func() string { return c.Key.Line(*c.New) }))
		}
	}
	for _, c := range changes.Classes {
		if c.New != nil {
			errs = append(errs, d.network(c.Key.Network, func() string { return c.Key.Line(*c.New) }))
		}
	}
	for _, c := range changes.Services {
		if c.New != nil {
			errs = append(errs, d.supportsFrontend(c.Key, *c.New))
		}
	}
	for _, c := range changes.Backends {
		if c.New != nil {
			errs = append(errs, d.ofServices(c.Key.Network, c.Key.Address, func() string { return c.Key.Line(*c.New) }))
		}
	}
	for _, c := range changes.Sources {
		if c.New != nil {
			errs = append(errs, d.ofServices(c.Key.Network, c.Key.Prefix.Addr(), func() string { return c.Key.Line(*c.New) }))
		}
	}
	return errors.Join(append(errs, d.supportsVerdicts(p, d.current))...)
}

func (d *DataPlane) supportsFrontend(k plan.ServiceKey, s plan.Service) error {
	return d.ofServices(k.Network, k.Address, func() string { return k.Line(s) })
}

// ofServices refuses an entry of one of the tables of Services, about an address.
func (d *DataPlane) ofServices(network string, a netip.Addr, line func() string) error {
	if !d.policies.tags {
		return notSupported(line, "services, as the kernel labels no connections,")
	}
	return errors.Join(d.network(network, line), d.family(a.Is6(), line))
}

func (d *DataPlane) supportsPeer(k plan.PeerKey, p plan.Peer) error {
	if p.CarriesTags && !d.policies.tags {
		return notSupported(func() string { return k.Line(p) }, "tags in the tunnel, as the kernel labels no connections,")
	}
	return nil
}

func (d *DataPlane) supportsEndpoint(k plan.EndpointKey, e plan.Endpoint) error {
	line := func() string { return k.Line(e) }
	for _, a := range e.Addresses {
		if err := d.family(a.Is6(), line); err != nil {
			return err
		}
	}
	return d.network(e.Network, line)
}

func (d *DataPlane) supportsRoute(k plan.RouteKey, r plan.Route) error {
	line := func() string { return k.Line(r) }
	switch {
	case r.EndpointsOnly && (r.Way == plan.ToGateway || r.Way == plan.ToHost || r.Way == plan.ToEndpoint):
		return notSupported(line, "this way for endpoints only")
	case len(r.Peers) > 1:
		return notSupported(line, "a way by several peers")
	}
	return errors.Join(d.network(k.Network, line), d.family(k.Prefix.Addr().Is6(), line))
}

func (d *DataPlane) supportsEgress(k plan.EgressKey, e plan.Egress) error {
	line := func() string { return k.Line(e) }
	if e.Action == plan.ViaNode {
		return notSupported(line, "leaving through another node")
	}
	return errors.Join(d.network(k.Network, line), d.family(k.Destination.Addr().Is6(), line))
}

// supportsVerdicts refuses what only connection tracking of SCTP could do. Verdicts of single
// ports are nothing of that where all ports are treated alike, as datapath.Enforceable sees
// to. accepted is a plan of which that is known, or nil.
func (d *DataPlane) supportsVerdicts(p, accepted *plan.Plan) error {
	var errs []error
	_, refusals := datapath.Enforceable(p, datapath.Capabilities{SCTP: d.sctp}, accepted)
	for _, r := range refusals {
		errs = append(errs, notSupported(func() string { return r.Key.Line(r.Verdict) }, "telling SCTP's ports apart, which the kernel does not track,"))
	}
	return errors.Join(errs...)
}

// network refuses all networks but the one that node and pods share: they
// would not be apart in one routing table.
func (d *DataPlane) network(name string, line func() string) error {
	if name == plan.DefaultNetwork {
		return nil
	}
	return notSupported(line, fmt.Sprintf("a network of its own, %q,", name))
}

func (d *DataPlane) family(is6 bool, line func() string) error {
	if is6 && !d.ipv6 {
		return notSupported(line, "IPv6, which the kernel has not turned on,")
	}
	return nil
}

// notSupported makes the text of the entry only when it is needed.
func notSupported(line func() string, what string) error {
	return fmt.Errorf("%s: %s: %w", line(), what, datapath.ErrNotSupported)
}
