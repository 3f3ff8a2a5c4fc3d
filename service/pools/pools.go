// Package pools gives Services of type LoadBalancer addresses of AddressPools, where no cloud
// does. What is to be done is a function of the objects, decide; the controller that leads
// carries it out.
//
// Each round does it anew, so that whoever stopped at any line is followed by one that goes on
// from there. Two may run at once for a moment. What holds then: an address that is given is in
// the status of a Service only while that Service has its AddressGrant, of which there can be
// one, so that no two Services are ever given one address. The grant is made first, and the status
// written after that; the status loses the address first, and the grant is taken away after that.
//
// What another load balancer gave a Service is in its status without a grant. The Service gets
// the grant. While it may not have that, the address stays in the status, and no node serves it.
// The status loses it only where another Service has the grant.
//
// A grant is taken away as it was before the Service was read that has no use for it. Whether
// it has is a function of that Service alone, uses. Who writes an address into a status makes
// the grant, or changes it, after having read the Service; and the Service must be as it was
// read. So of one who takes the grant away and one who writes the status, one finds the grant
// or the Service changed.
//
// Nothing that an AddressPool says takes an address away from a Service that has it. A pool
// that was deleted by mistake is made again, and no Service has another address by then.
//
// Start reading at decide; asks.go has what Services ask for, allot.go what they get,
// ranges.go what of pools there is to give, and tell.go what is said.
package pools

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// Kinds are those that are read. All registries serve them.
var Kinds = []*registry.Kind{api.ClusterConfigKind, api.ClusterNetwork, api.HostSubnet, api.Node, api.Namespace, api.Service, api.AddressPoolKind, api.AddressGrantKind, api.VirtualAddressKind}

// Call is something to do with a registry.
type Call struct {
	// Namespace is that of the Service for which it is to be done, empty where it is for none.
	Namespace string
	// Kind is what kind of work it is. Kinds of a namespace take turns, and those of one are done in their order.
	Kind string
	// About tells it from the others of the namespace, and is the same in the next round where it is to be done then
	// as well. It is never empty.
	About string
	// Do does it. What somebody else did meanwhile is an error that wraps registry.ErrConflict,
	// ErrExists or ErrNotFound: then the next round decides anew.
	Do func(context.Context, registry.Registry) error
}

// Calls are what is to be done now, those of one namespace in the order in which they are to be done.
func Calls(objects registry.Objects) []Call { return decide(objects).calls() }

// decision is what is to be done.
type decision struct {
	// give are Services that get addresses, or lose them.
	give []giving
	// retag are grants that name another pool, as that has the address now.
	retag []*api.AddressGrant
	// remove are grants that no Service has a use for.
	remove []*api.AddressGrant
	// say is what is to be said of Services, report of pools.
	say    []saying
	report []report
}

// giving is a Service with the status that it is to have.
type giving struct {
	service *corev1.Service
	// lacks are grants that are to be made before, begins those that it has of what its status
	// does not have yet.
	lacks, begins []*api.AddressGrant
	// same says that the status is what it is to be already.
	same bool
}

// holder is a Service that has grants.
type holder struct {
	key registry.Key
	uid types.UID
}

// decide says what is to be done.
func decide(objects registry.Objects) (d decision) {
	services := make(map[registry.Key]*corev1.Service)
	var all []*corev1.Service
	for svc := range registry.Each[*corev1.Service](objects, api.Service) {
		services[registry.KeyOf(svc)] = svc
		if isBalanced(svc) || len(svc.Status.LoadBalancer.Ingress) > 0 || said(svc) != nil {
			all = append(all, svc)
		}
	}
	a := newAllotment(objects)
	for g := range registry.Each[*api.AddressGrant](objects, api.AddressGrantKind) {
		svc := services[g.Spec.Service()]
		a.taken[g.Address()] = g
		if !uses(svc, g) {
			d.remove = append(d.remove, g)
			continue
		}
		of := holder{g.Spec.Service(), g.Spec.UID}
		a.held[of] = append(a.held[of], g)
		if now := a.retagged(g); now != nil {
			d.retag = append(d.retag, now)
			g = now
		}
		if slices.ContainsFunc(a.in.at(g.Address()), func(p *pool) bool { return p.Name == g.Spec.Pool }) {
			a.used[g.Spec.Pool]++
		}
	}
	// Of several that ask for one address the oldest gets it.
	slices.SortStableFunc(all, func(a, b *corev1.Service) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for _, svc := range all {
		a.keep(svc)
	}
	for _, svc := range all {
		given, is := a.serve(svc)
		if given != nil {
			d.give = append(d.give, *given)
		}
		if was := said(svc); was == nil && is.message != "" || was != nil && (was.Message != is.message || was.Reason != is.reason) {
			d.say = append(d.say, saying{registry.KeyOf(svc), svc.UID, is})
		}
	}
	d.report = a.reports()
	return d
}

// calls are what was decided, those of one namespace in the order in which they are to be done.
func (d decision) calls() (calls []Call) {
	for _, g := range d.give {
		calls = append(calls, Call{Namespace: g.service.Namespace, About: "give " + g.service.Name, Do: g.write})
	}
	for _, g := range d.retag {
		calls = append(calls, Call{Namespace: g.Spec.Service().Namespace, About: "retag " + g.Name, Do: func(ctx context.Context, r registry.Registry) error {
			_, err := r.Update(ctx, api.AddressGrantKind, g)
			return err
		}})
	}
	for _, s := range d.say {
		calls = append(calls, Call{Namespace: s.service.Namespace, About: "say " + s.service.Name, Do: s.write})
	}
	for _, g := range d.remove {
		calls = append(calls, Call{Namespace: g.Spec.Service().Namespace, About: "remove " + g.Name, Do: func(ctx context.Context, r registry.Registry) error { return remove(ctx, r, g) }})
	}
	for _, p := range d.report {
		calls = append(calls, Call{About: "report " + p.pool.Name, Do: p.write})
	}
	return calls
}

// write gives the Service its status, if it is as it was, and nobody else was given what it
// gets.
func (g giving) write(ctx context.Context, r registry.Registry) error {
	// What is refused is to make no grant, as the next round would find that it has a use.
	if _, _, err := api.Service.Admit(g.service); err != nil {
		return err
	}
	for _, lacks := range g.lacks {
		if _, err := r.Create(ctx, api.AddressGrantKind, lacks); err != nil {
			return unreadable(ctx, r, lacks, err)
		}
	}
	for _, has := range g.begins {
		begun := has.DeepCopyObject().(*api.AddressGrant)
		begun.Spec.Turn = !begun.Spec.Turn
		if _, err := r.Update(ctx, api.AddressGrantKind, begun); err != nil {
			return err
		}
	}
	if g.same {
		return nil
	}
	_, err := r.Update(ctx, api.Service, g.service)
	return err
}

// unreadable says how to get a grant out of the way that is there and cannot be read: it is
// never seen, and what there is of it would be tried for ever.
func unreadable(ctx context.Context, r registry.Registry, g *api.AddressGrant, err error) error {
	if !errors.Is(err, registry.ErrExists) {
		return err
	}
	if _, why := r.Get(ctx, api.AddressGrantKind, registry.KeyOf(g)); why != nil && !errors.Is(why, registry.ErrNotFound) {
		return fmt.Errorf("%w: it is in the way of one that is to be made: weft delete %s %s", why, api.AddressGrantKind.Singular, g.Name)
	}
	return err
}

// remove takes a grant away as it was seen, if its Service has no use for it, which is read
// after that.
func remove(ctx context.Context, r registry.Registry, g *api.AddressGrant) error {
	var svc *corev1.Service
	switch o, err := r.Get(ctx, api.Service, g.Spec.Service()); {
	case err == nil:
		svc = o.(*corev1.Service)
	case !errors.Is(err, registry.ErrNotFound):
		return err
	}
	if uses(svc, g) {
		return nil
	}
	return r.Delete(ctx, api.AddressGrantKind, registry.KeyOf(g), g.ResourceVersion)
}

// uses reports whether a Service, nil where there is none, has the address of a grant, or may
// come to have it. It is a function of the Service alone: see the package.
func uses(svc *corev1.Service, g *api.AddressGrant) bool {
	address := g.Address()
	if svc == nil || !address.IsValid() || !g.IsOf(svc) {
		return false
	}
	has, others := inStatus(svc)
	if slices.Contains(has, address) {
		return true
	}
	if families := familiesOf(svc); !isBalanced(svc) || others || len(families) > 0 && !slices.Contains(families, familyOf(address)) {
		return false
	}
	asked, problem := askedOf(svc)
	if one, is := asked[familyOf(address)]; is && problem == "" {
		return one == address
	}
	return !slices.ContainsFunc(has, func(a netip.Addr) bool { return familyOf(a) == familyOf(address) })
}

// isBalanced reports whether a Service is one that load balancers serve.
func isBalanced(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.ClusterIP != corev1.ClusterIPNone
}

// inStatus returns the addresses that a Service has of load balancers. others says that it has
// something that is no address, and so is of another load balancer.
func inStatus(svc *corev1.Service) (all []netip.Addr, others bool) {
	for _, i := range svc.Status.LoadBalancer.Ingress {
		if a, is := addressOf(i); is {
			all = append(all, a)
		} else {
			others = true
		}
	}
	return all, others
}

// addressOf returns the address of an entry of a status; is says whether it is one, and nothing
// else.
func addressOf(i corev1.LoadBalancerIngress) (address netip.Addr, is bool) {
	a, err := netip.ParseAddr(i.IP)
	return a.Unmap(), i.Hostname == "" && err == nil && a.Zone() == ""
}

// familyOf is the family of an address.
func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Unmap().Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// familiesOf are the families of a Service, its first the first; none where it has none yet.
func familiesOf(svc *corev1.Service) []corev1.IPFamily {
	if len(svc.Spec.IPFamilies) > 0 {
		return svc.Spec.IPFamilies
	}
	texts := svc.Spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{svc.Spec.ClusterIP}
	}
	var families []corev1.IPFamily
	for _, text := range texts {
		if a, err := netip.ParseAddr(strings.TrimSpace(text)); err == nil && !slices.Contains(families, familyOf(a)) {
			families = append(families, familyOf(a))
		}
	}
	return families
}
