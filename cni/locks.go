package cni

import (
	"context"
	"sync"
)

// locks holds one lock for each key in use.
type locks struct {
	mu   sync.Mutex
	held map[string]*keyLock
}

// keyLock is a lock that can be waited for with a context. users counts who
// holds it or waits for it.
type keyLock struct {
	token chan struct{}
	users int
}

// acquire waits for key's lock, until ctx ends. The function it returns gives
// the lock back.
func (l *locks) acquire(ctx context.Context, key string) (release func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*keyLock{}
	}
	k := l.held[key]
	if k == nil {
		k = &keyLock{token: make(chan struct{}, 1)}
		l.held[key] = k
	}
	k.users++
	l.mu.Unlock()

	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.held, key)
		}
	}
	select {
	case k.token <- struct{}{}:
		return func() { <-k.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
