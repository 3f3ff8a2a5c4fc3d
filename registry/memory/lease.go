package memory

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/weftnet/weft/registry"
)

// lease is a lease held. The registry's lock guards it.
type lease struct {
	registry     *Registry
	name, holder string
	ttl          time.Duration
	expiry       *time.Timer // runs while the registry is stopped
	lost         chan struct{}
	once         sync.Once
}

// Acquire implements registry.Registry.
func (r *Registry) Acquire(ctx context.Context, name, holder string, ttl time.Duration) (registry.Lease, error) {
	if err := registry.CheckLease(name, holder, ttl); err != nil {
		return nil, err
	}
	for {
		if err := r.begin(ctx); err != nil {
			return nil, fmt.Errorf("lease %s: %w", name, err)
		}
		if now := r.leases[name]; now == nil || now.holder == holder {
			if now != nil {
				now.end()
			}
			l := &lease{registry: r, name: name, holder: holder, ttl: ttl, lost: make(chan struct{})}
			r.leases[name] = l
			r.mu.Unlock()
			return l, nil
		}
		notify := r.notify
		r.mu.Unlock()
		select {
		case <-notify:
		case <-ctx.Done():
			return nil, fmt.Errorf("lease %s: %w", name, ctx.Err())
		}
	}
}

// Holder implements registry.Registry.
func (r *Registry) Holder(ctx context.Context, name string) (string, error) {
	if err := r.begin(ctx); err != nil {
		return "", fmt.Errorf("lease %s: %w", name, err)
	}
	defer r.mu.Unlock()
	if l := r.leases[name]; l != nil {
		return l.holder, nil
	}
	return "", nil
}

// Holders implements registry.Registry.
func (r *Registry) Holders(ctx context.Context, prefix string) (map[string]string, error) {
	if err := r.begin(ctx); err != nil {
		return nil, fmt.Errorf("leases %s: %w", prefix, err)
	}
	defer r.mu.Unlock()
	held := make(map[string]string)
	for name, l := range r.leases {
		if l != nil && strings.HasPrefix(name, prefix) {
			held[name] = l.holder
		}
	}
	return held, nil
}

// Lost implements registry.Lease.
func (l *lease) Lost() <-chan struct{} { return l.lost }

// Release implements registry.Lease.
func (l *lease) Release(ctx context.Context) error {
	if err := l.registry.begin(ctx); err != nil {
		l.end()
		return fmt.Errorf("lease %s: %w", l.name, err)
	}
	l.registry.mu.Unlock()
	l.registry.drop(l)
	return nil
}

// end tells the holder that the lease is no longer held.
func (l *lease) end() { l.once.Do(func() { close(l.lost) }) }

// drop ends a lease and lets others have it.
func (r *Registry) drop(l *lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.end()
	if r.leases[l.name] == l {
		delete(r.leases, l.name)
		r.announce()
	}
}
