package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/weftnet/weft/registry"
)

// errTaken says that a lease is somebody else's now.
var errTaken = errors.New("taken over or expired")

// lease is a key that exists as long as an etcd lease does. Its holder counts
// the time by its own clock: etcd may be out of reach when the ttl is over.
type lease struct {
	registry *Registry
	key      string
	id       clientv3.LeaseID
	revision int64 // the key's, as long as it is ours
	ttl      time.Duration
	cancel   context.CancelFunc // ends keep
	lost     chan struct{}
}

func (r *Registry) leaseKey(name string) string { return LeaseKey(r.config.Prefix, name) }

// leaseAt returns the key of a lease, nil where nobody holds it, and the
// revision at which that was so.
func (r *Registry) leaseAt(ctx context.Context, key string) (*mvccpb.KeyValue, int64, error) {
	var found *clientv3.GetResponse
	err := r.call(ctx, func(ctx context.Context, c *clientv3.Client) (err error) {
		found, err = c.Get(ctx, key)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	if len(found.Kvs) == 0 {
		return nil, found.Header.Revision, nil
	}
	return found.Kvs[0], found.Header.Revision, nil
}

// Holder implements registry.Registry.
func (r *Registry) Holder(ctx context.Context, name string) (string, error) {
	now, _, err := r.leaseAt(ctx, r.leaseKey(name))
	if err != nil {
		return "", fmt.Errorf("lease %s: %w", name, err)
	}
	return string(now.GetValue()), nil
}

// Holders implements registry.Registry.
func (r *Registry) Holders(ctx context.Context, prefix string) (map[string]string, error) {
	var found *clientv3.GetResponse
	err := r.call(ctx, func(ctx context.Context, c *clientv3.Client) (err error) {
		found, err = c.Get(ctx, r.leaseKey(prefix), clientv3.WithPrefix())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("leases %s: %w", prefix, err)
	}
	held := make(map[string]string, len(found.Kvs))
	for _, kv := range found.Kvs {
		held[strings.TrimPrefix(string(kv.Key), r.leaseKey(""))] = string(kv.Value)
	}
	return held, nil
}

// Acquire implements registry.Registry. A lease that the same holder has is
// taken over at once: it is that of a process before this one.
func (r *Registry) Acquire(ctx context.Context, name, holder string, ttl time.Duration) (registry.Lease, error) {
	if err := registry.CheckLease(name, holder, ttl); err != nil {
		return nil, err
	}
	key := r.leaseKey(name)
	for {
		now, revision, err := r.leaseAt(ctx, key)
		var l *lease
		switch {
		case err != nil:
		case now != nil && string(now.Value) != holder:
			err = r.waitForChange(ctx, key, revision)
		default:
			l, err = r.take(ctx, key, holder, ttl, now)
		}
		if err != nil {
			return nil, fmt.Errorf("lease %s: %w", name, err)
		}
		if l != nil {
			return l, nil
		}
	}
}

// waitForChange returns when a key has changed after a revision.
func (r *Registry) waitForChange(ctx context.Context, key string, revision int64) error {
	return r.follow(ctx, key, revision, func() {}, func(events []*clientv3.Event) bool { return len(events) == 0 })
}

// take replaces what was seen at the key, nil for nothing, by a lease of our
// own. It returns nil if somebody else was faster.
func (r *Registry) take(ctx context.Context, key, holder string, ttl time.Duration, seen *mvccpb.KeyValue) (*lease, error) {
	began := time.Now()
	id, err := r.grant(ctx, ttl)
	if err != nil {
		return nil, err
	}
	var done *clientv3.TxnResponse
	err = r.call(ctx, func(ctx context.Context, c *clientv3.Client) (err error) {
		done, err = c.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(key), "=", seen.GetModRevision())).
			Then(clientv3.OpPut(key, holder, clientv3.WithLease(id))).
			Commit()
		return err
	})
	if err != nil || !done.Succeeded {
		r.revoke(context.WithoutCancel(ctx), id)
		return nil, err
	}
	if old := clientv3.LeaseID(seen.GetLease()); old != clientv3.NoLease {
		r.revoke(ctx, old) // whoever still renews it learns that it is over
	}
	l := &lease{registry: r, key: key, id: id, revision: done.Header.Revision, ttl: ttl, lost: make(chan struct{})}
	var keeping context.Context
	keeping, l.cancel = context.WithCancel(r.ctx)
	go l.keep(keeping, began.Add(ttl))
	return l, nil
}

// keep renews the lease until ctx ends, it is taken, or the deadline passes
// without a renewal.
func (l *lease) keep(ctx context.Context, deadline time.Time) {
	defer close(l.lost)
	defer l.cancel()
	next := l.ttl / 3
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(next, time.Until(deadline))):
		}
		began := time.Now()
		if !began.Before(deadline) {
			return
		}
		attempt, cancel := context.WithDeadline(ctx, deadline)
		err := l.renew(attempt)
		cancel()
		switch {
		case err == nil:
			deadline, next = began.Add(l.ttl), l.ttl/3
		case errors.Is(err, errTaken):
			return
		default:
			next = l.ttl / 10
		}
	}
}

// renew prolongs the etcd lease and sees to it that the key is still ours.
func (l *lease) renew(ctx context.Context) error {
	err := l.registry.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.KeepAliveOnce(ctx, l.id)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return errTaken
		}
		return err
	})
	if err != nil {
		return err
	}
	now, _, err := l.registry.leaseAt(ctx, l.key)
	if err == nil && now.GetModRevision() != l.revision {
		return errTaken
	}
	return err
}

// Lost implements registry.Lease.
func (l *lease) Lost() <-chan struct{} { return l.lost }

// Release implements registry.Lease.
func (l *lease) Release(ctx context.Context) error {
	l.cancel()
	<-l.lost
	err := l.registry.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Revoke(ctx, l.id)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("release the lease at %s: %w", l.key, err)
	}
	return nil
}
