package kubernetes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/weftnet/weft/registry"
)

// acquisitionAnnotation tells one acquisition of a lease from the next, which
// the same holder may have made.
const acquisitionAnnotation = "weft.network/acquisition"

// errTaken says that a lease is somebody else's now.
var errTaken = errors.New("taken over or released")

// lease is an object that others leave alone as long as it changes. Its holder
// counts the time by its own clock, and so do those who wait: from when they
// saw it change last.
type lease struct {
	registry    *Registry
	kind        *registry.Kind
	acquisition string
	version     string // as far as is known
	ttl         time.Duration
	cancel      context.CancelFunc // ends keep
	lost        chan struct{}
}

// leaseKind returns a kind for the object of one lease.
func (r *Registry) leaseKind(name string) *registry.Kind {
	return &registry.Kind{
		GroupVersionKind: coordinationv1.SchemeGroupVersion.WithKind("Lease"),
		Plural:           "leases", Singular: "lease", Namespaced: true,
		New:  func() registry.Object { return &coordinationv1.Lease{} },
		Keep: func(o registry.Object) { o.SetManagedFields(nil) },
		Only: registry.Key{Namespace: r.config.Namespace, Name: leaseName(name)},
	}
}

// leaseName returns the name of a lease's object: a DNS subdomain (RFC 1123), as
// object names are. No two leases have the same, and which lease a name stands
// for can be told from the name alone:
//
//   - What comes before the first slash of a lease's name, and the rest, are
//     written as they are, with -- for the slash. The first part has no -- and
//     does not begin with 0x or 0h. So "node/a--b" is node--a--b, and whoever
//     knows the name of a Node knows that of its lease, without having to know
//     how anything is encoded: an admission policy can say whose it is.
//   - A lease whose name cannot be written so is 0x and all bytes of its name in
//     hexadecimal, or, where that would be too long, 0h and its SHA-256.
func leaseName(name string) string {
	first, rest, several := strings.Cut(name, "/")
	plain := len(content.IsDNS1123Label(first)) == 0 && !strings.Contains(first, "--") &&
		!strings.HasPrefix(first, "0x") && !strings.HasPrefix(first, "0h")
	out := first
	if several {
		out += "--" + rest
		plain = plain && len(content.IsDNS1123Subdomain(rest)) == 0
	}
	if plain && len(content.IsDNS1123Subdomain(out)) == 0 {
		return out
	}
	if out = "0x" + hex.EncodeToString([]byte(name)); len(content.IsDNS1123Subdomain(out)) == 0 {
		return out
	}
	sum := sha256.Sum256([]byte(name))
	return "0h" + hex.EncodeToString(sum[:])
}

// leaseNamed returns the name of the lease of an object, which is not known of
// names that only a hash is kept of, and of objects that are no lease's.
func leaseNamed(object string) (name string, known bool) {
	name = strings.Replace(object, "--", "/", 1)
	if digits, encoded := strings.CutPrefix(object, "0x"); encoded {
		b, err := hex.DecodeString(digits)
		if err != nil {
			return "", false
		}
		name = string(b)
	}
	return name, leaseName(name) == object
}

// leaseAt returns the object of a lease, nil where there is none, and the
// revision at which that was so. A list has one from which to watch; an object
// alone may be older than what the API server remembers.
func (r *Registry) leaseAt(ctx context.Context, k *registry.Kind) (*coordinationv1.Lease, registry.Revision, error) {
	objects, revision, err := r.List(ctx, k)
	if err != nil || len(objects) == 0 {
		return nil, revision, err
	}
	return objects[0].(*coordinationv1.Lease), revision, nil
}

// holderOf returns who a lease's object names, or "".
func holderOf(l *coordinationv1.Lease) string {
	if l == nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// durationOf returns how long a lease is good for without a renewal.
func durationOf(l *coordinationv1.Lease, otherwise time.Duration) time.Duration {
	if s := l.Spec.LeaseDurationSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return otherwise
}

// Holder implements registry.Registry. A holder that has not renewed the lease
// for its ttl counts as gone, going by the clocks of both: this is for people
// to read, and not to act on.
func (r *Registry) Holder(ctx context.Context, name string) (string, error) {
	now, _, err := r.leaseAt(ctx, r.leaseKind(name))
	if err != nil {
		return "", fmt.Errorf("lease %s: %w", name, err)
	}
	return liveHolderOf(now), nil
}

// liveHolderOf returns who a lease's object names, unless its time is over.
func liveHolderOf(l *coordinationv1.Lease) string {
	if l != nil && l.Spec.RenewTime != nil && time.Since(l.Spec.RenewTime.Time) > durationOf(l, math.MaxInt64) {
		return ""
	}
	return holderOf(l)
}

// Holders implements registry.Registry. Leases whose names are too long to be
// kept are not in it.
func (r *Registry) Holders(ctx context.Context, prefix string) (map[string]string, error) {
	k := r.leaseKind("any")
	k.Only.Name = ""
	objects, _, err := r.List(ctx, k)
	if err != nil {
		return nil, fmt.Errorf("leases %s: %w", prefix, err)
	}
	held := make(map[string]string)
	for _, o := range objects {
		name, known := leaseNamed(o.GetName())
		if holder := liveHolderOf(o.(*coordinationv1.Lease)); known && holder != "" && strings.HasPrefix(name, prefix) {
			held[name] = holder
		}
	}
	return held, nil
}

// Acquire implements registry.Registry. It needs the rights to list, watch,
// create and patch leases. A holder whose lease the same holder has taken over
// hears of it at its next renewal, after a third of its ttl at most.
func (r *Registry) Acquire(ctx context.Context, name, holder string, ttl time.Duration) (registry.Lease, error) {
	if err := registry.CheckLease(name, holder, ttl); err != nil {
		return nil, err
	}
	k := r.leaseKind(name)
	for {
		now, err := r.untilFree(ctx, k, holder, ttl)
		var l *lease
		if err == nil {
			l, err = r.take(ctx, k, now, holder, ttl)
		}
		switch {
		case errors.Is(err, registry.ErrCompacted): // look again
		case err != nil:
			return nil, fmt.Errorf("lease %s: %w", name, err)
		case l != nil:
			return l, nil
		}
	}
}

// untilFree waits until a lease may be taken, and returns its object as it is
// then.
func (r *Registry) untilFree(ctx context.Context, k *registry.Kind, holder string, ttl time.Duration) (*coordinationv1.Lease, error) {
	free := func(l *coordinationv1.Lease) bool {
		other := holderOf(l)
		return other == "" || other == holder
	}
	now, revision, err := r.leaseAt(ctx, k)
	if err != nil || free(now) {
		return now, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := r.Watch(ctx, k, revision)
	if err != nil {
		return nil, err
	}
	expiry := time.NewTimer(durationOf(now, ttl))
	defer expiry.Stop()
	for {
		select {
		case e, ok := <-w.Events():
			if !ok {
				return nil, w.Err()
			}
			if e.Type == registry.Deleted {
				return nil, nil
			}
			if now = e.Object.(*coordinationv1.Lease); free(now) {
				return now, nil
			}
			expiry.Reset(durationOf(now, ttl))
		case <-expiry.C:
			return now, nil
		}
	}
}

// take makes a lease ours whose object is as it was seen, nil for none. It
// returns nil if somebody else was faster.
func (r *Registry) take(ctx context.Context, k *registry.Kind, seen *coordinationv1.Lease, holder string, ttl time.Duration) (*lease, error) {
	l := &lease{registry: r, kind: k, acquisition: string(uuid.NewUUID()), ttl: ttl, lost: make(chan struct{})}
	began := time.Now()
	transitions := int32(0)
	if seen != nil && seen.Spec.LeaseTransitions != nil {
		transitions = *seen.Spec.LeaseTransitions + 1
	}
	seconds := int32(min((ttl+time.Second-1)/time.Second, math.MaxInt32))
	now := metav1.NewMicroTime(began)
	spec := coordinationv1.LeaseSpec{
		HolderIdentity:       &holder,
		LeaseDurationSeconds: &seconds,
		AcquireTime:          &now,
		RenewTime:            &now,
		LeaseTransitions:     &transitions,
	}
	var o registry.Object
	var err error
	if seen == nil {
		o, err = r.Create(ctx, k, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: k.Only.Namespace, Name: k.Only.Name,
				Annotations: map[string]string{acquisitionAnnotation: l.acquisition},
			},
			Spec: spec,
		})
	} else {
		o, err = r.patch(ctx, k, k.Only, seen.ResourceVersion, object{
			"metadata": object{"annotations": object{acquisitionAnnotation: l.acquisition}},
			"spec":     spec,
		}, false)
	}
	switch {
	case errors.Is(err, registry.ErrExists), errors.Is(err, registry.ErrConflict), errors.Is(err, registry.ErrNotFound) && seen != nil:
		return nil, nil
	case err != nil:
		return nil, err
	}
	l.version = o.GetResourceVersion()
	var keeping context.Context
	keeping, l.cancel = context.WithCancel(r.ctx)
	go l.keep(keeping, began)
	return l, nil
}

// keep renews the lease until ctx ends, it is taken, or most of its ttl passes
// without a renewal: the holder needs the rest to stop what it does. renewed
// is when the last renewal was sent.
func (l *lease) keep(ctx context.Context, renewed time.Time) {
	defer close(l.lost)
	defer l.cancel()
	next := l.ttl / 3
	for {
		deadline := renewed.Add(l.ttl * 9 / 10)
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(next, time.Until(deadline))):
		}
		began := time.Now()
		if !began.Before(deadline) {
			return
		}
		// One attempt that hangs leaves time for another.
		attempt, cancel := context.WithTimeout(ctx, min(time.Until(deadline), max(l.ttl/4, time.Second)))
		err := l.write(attempt, object{"spec": object{"renewTime": metav1.NewMicroTime(began)}})
		cancel()
		switch {
		case err == nil:
			renewed, next = began, l.ttl/3
		case errors.Is(err, errTaken):
			return
		default:
			next = l.ttl / 10
		}
	}
}

// write patches the object as long as it is ours, whoever else changed it.
func (l *lease) write(ctx context.Context, patch object) error {
	for {
		o, err := l.registry.patch(ctx, l.kind, l.kind.Only, l.version, patch, false)
		if err == nil {
			l.version = o.GetResourceVersion()
			return nil
		}
		if !errors.Is(err, registry.ErrConflict) && !errors.Is(err, registry.ErrNotFound) {
			return err
		}
		// Somebody took it, or annotated it, or a renewal that seemed to fail
		// did not.
		now, _, err := l.registry.leaseAt(ctx, l.kind)
		if err != nil {
			return err
		}
		if now == nil || now.Annotations[acquisitionAnnotation] != l.acquisition {
			return errTaken
		}
		l.version = now.ResourceVersion
	}
}

// Lost implements registry.Lease.
func (l *lease) Lost() <-chan struct{} { return l.lost }

// Release implements registry.Lease. The object stays, and names nobody.
func (l *lease) Release(ctx context.Context) error {
	l.cancel()
	<-l.lost
	err := l.write(ctx, object{
		"metadata": object{"annotations": object{acquisitionAnnotation: nil}},
		"spec":     object{"holderIdentity": nil},
	})
	if err != nil && !errors.Is(err, errTaken) {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}
