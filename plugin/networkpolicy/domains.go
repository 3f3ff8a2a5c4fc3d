package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/derived"
	"github.com/weftnet/weft/registry"
)

const (
	// resolveEvery is how often a domain name is resolved, give or take a tenth,
	// and resolveTimeout how long that may take.
	resolveEvery   = 30 * time.Second
	resolveTimeout = 5 * time.Second
	// keepAddresses is how long an address stays after it was last in an answer:
	// names with many addresses have a few of them in each.
	keepAddresses = 10 * time.Minute
	// maxDomains and maxAddresses bound what the controller keeps, atOnce how
	// many name servers' answers it waits for at once.
	maxDomains, maxAddresses, atOnce = 1000, 256, 8
)

// Resolver finds the addresses of domain names, as net.Resolver does. A name
// ends with a dot, so that it means the same everywhere.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

var _ Resolver = (*net.Resolver)(nil)

// domainKinds are what the keeper of domain names reads.
var domainKinds = []*registry.Kind{api.ClusterNetworkPolicy, api.DomainNameKind}

// domains keeps a DomainName for each domain name in a ClusterNetworkPolicy.
type domains struct {
	resolver Resolver
	policies derived.List[*translated]
	names    map[string]*domain
}

// domain is what is known of a domain name.
type domain struct {
	// next is when it is to be resolved again.
	next time.Time
	// seen is when each address was last in an answer.
	seen map[netip.Addr]time.Time
	// problem is why the last attempt failed.
	problem string
	// resolved says that there was an attempt.
	resolved bool
}

// update brings the names to what the policies and the DomainNames say: what a
// controller before this one found out is taken over. It returns the names that
// are left out, as there are too many, in alphabetical order.
func (d *domains) update(objects registry.Objects, now time.Time) (tooMany []string) {
	d.policies.Update(objects.All(api.ClusterNetworkPolicy), outline, compareTranslated)
	var wanted []string
	for _, t := range d.policies.All() {
		wanted = append(wanted, t.domains...)
	}
	wanted = sorted(wanted)
	if len(wanted) > maxDomains {
		wanted, tooMany = wanted[:maxDomains], wanted[maxDomains:]
	}
	before := d.names
	d.names = make(map[string]*domain, len(wanted))
	for _, name := range wanted {
		n := before[name]
		if n == nil {
			n = &domain{seen: map[netip.Addr]time.Time{}}
			if o := registry.GetAs[*api.DomainName](objects, api.DomainNameKind, registry.Key{Name: name}); o != nil {
				for _, a := range readDomain(o, nil).Addresses {
					n.seen[a] = now
				}
			}
		}
		d.names[name] = n
	}
	return tooMany
}

// answer takes in what a name server said.
func (n *domain) answer(addresses []netip.Addr, err error, now time.Time) {
	n.resolved = true
	n.next = now.Add(resolveEvery*9/10 + rand.N(resolveEvery/5))
	if err != nil {
		// Whatever fails, it did not answer that the addresses are gone.
		n.problem = truncate("it cannot be resolved: " + err.Error())
		return
	}
	n.problem = ""
	for _, a := range addresses {
		// Whoever has the name must not say that it stands for a pod itself.
		if a = a.Unmap(); a.IsGlobalUnicast() {
			n.seen[a] = now
		}
	}
	for a, seen := range n.seen {
		if now.Sub(seen) > keepAddresses {
			delete(n.seen, a)
		}
	}
	if all := n.addresses(); len(all) > maxAddresses {
		slices.SortStableFunc(all, func(a, b netip.Addr) int { return n.seen[b].Compare(n.seen[a]) })
		for _, a := range all[maxAddresses:] {
			delete(n.seen, a)
		}
		n.problem = fmt.Sprintf("it has more than %d addresses; the others are left out", maxAddresses)
	}
}

func (n *domain) addresses() []netip.Addr {
	all := make([]netip.Addr, 0, len(n.seen))
	for a := range n.seen {
		all = append(all, a)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// resolve asks about all names whose time has come, and returns when the next
// one's comes; zero for never.
func (d *domains) resolve(ctx context.Context, now func() time.Time) (next time.Time) {
	var wg sync.WaitGroup
	turn := make(chan struct{}, atOnce)
	for name, n := range d.names {
		if n.next.After(now()) {
			continue
		}
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
			defer cancel()
			addresses, err := d.resolver.LookupNetIP(ctx, "ip", name+".")
			n.answer(addresses, err, now())
		})
	}
	wg.Wait()
	for _, n := range d.names {
		if next.IsZero() || n.next.Before(next) {
			next = n.next
		}
	}
	return next
}

// write brings the DomainNames to what was found out.
func (d *domains) write(ctx context.Context, r registry.Registry, objects registry.Objects) error {
	var failed []error
	for name, n := range d.names {
		if !n.resolved {
			continue
		}
		var want []string
		for _, a := range n.addresses() {
			want = append(want, a.String())
		}
		have := registry.GetAs[*api.DomainName](objects, api.DomainNameKind, registry.Key{Name: name})
		if have != nil && slices.Equal(have.Addresses, want) && have.Problem == n.problem {
			continue
		}
		err := call(ctx, func(ctx context.Context) error {
			_, err := put(ctx, r, api.DomainNameKind, name, func(o *api.DomainName) { o.Addresses, o.Problem = want, n.problem })
			return err
		})
		if err != nil {
			failed = append(failed, err)
			if errors.Is(err, registry.ErrUnavailable) || ctx.Err() != nil {
				return errors.Join(failed...)
			}
		}
	}
	for o := range objects.All(api.DomainNameKind) {
		if d.names[o.GetName()] != nil {
			continue
		}
		err := call(ctx, func(ctx context.Context) error {
			return r.Delete(ctx, api.DomainNameKind, registry.KeyOf(o), o.GetResourceVersion())
		})
		if err != nil && !errors.Is(err, registry.ErrNotFound) && !errors.Is(err, registry.ErrConflict) {
			failed = append(failed, err)
			if errors.Is(err, registry.ErrUnavailable) || ctx.Err() != nil {
				break
			}
		}
	}
	return errors.Join(failed...)
}
