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

// leaseName returns the name of a lease's object: a DNS subdomain (RFC 1123),
// as object names are, in which -- stands for a slash. A segment that cannot
// be said so is 0x and its bytes in hexadecimal, and a name that would be too
// long is 0h and its SHA-256. No two leases have the same.
func leaseName(name string) string {
	segments := strings.Split(name, "/")
	for i, s := range segments {
		if len(content.IsDNS1123Subdomain(s)) > 0 || strings.Contains(s, "--") || strings.HasPrefix(s, "0x") || strings.HasPrefix(s, "0h") {
			segments[i] = "0x" + hex.EncodeToString([]byte(s))
		}
	}
	out := strings.Join(segments, "--")
	if len(content.IsDNS1123Subdomain(out)) > 0 { // as it is too long
		sum := sha256.Sum256([]byte(name))
		return "0h" + hex.EncodeToString(sum[:])
	}
	return out
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
	if now != nil && now.Spec.RenewTime != nil && time.Since(now.Spec.RenewTime.Time) > durationOf(now, math.MaxInt64) {
		return "", nil
	}
	return holderOf(now), nil
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
