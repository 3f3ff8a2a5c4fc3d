package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/weftnet/weft/registry"
)

// follow delivers what happens to keys after a revision until handle returns
// false, and then returns nil; until ctx ends; or until etcd ends it. It calls
// created when the server has begun.
//
// The client takes a broken connection up again by itself, without a gap, but
// for ever and in silence. So follow ends when no new connection can be made:
// the caller then knows of the outage and can follow again from the last
// event.
func (r *Registry) follow(ctx context.Context, key string, after int64, created func(), handle func([]*clientv3.Event) bool, options ...clientv3.OpOption) error {
	if r.ctx.Err() != nil {
		return r.errClosed()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.ctx, func() { cancel(r.errClosed()) })()
	go r.guard(ctx, r.client.ActiveConnection(), cancel)

	options = append(options,
		clientv3.WithRev(after+1),
		clientv3.WithPrevKV(),
		clientv3.WithProgressNotify(), // an idle watch survives a compaction while the connection was lost
		clientv3.WithCreatedNotify())
	// A member that is cut off from the others must not keep its watchers.
	for response := range r.client.Watch(clientv3.WithRequireLeader(ctx), key, options...) {
		if ctx.Err() != nil {
			break
		}
		if err := response.Err(); err != nil {
			r.auth.streamRefused(err)
			return r.failure(ctx, err)
		}
		if response.Created {
			// A server whose history is shorter than what was seen of it was
			// restored or wiped: what the watcher knows is of no use.
			if response.Header.Revision < after {
				return registry.ErrCompacted
			}
			created()
		}
		if !handle(response.Events) {
			return nil
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return r.unavailable(errors.New("the watch ended"))
}

// guard cancels ctx when etcd cannot be reached.
func (r *Registry) guard(ctx context.Context, connection *grpc.ClientConn, cancel context.CancelCauseFunc) {
	for {
		state := connection.GetState()
		if state == connectivity.TransientFailure {
			// A request fails at once in this state, and says why.
			err := r.Ping(ctx)
			if err == nil {
				err = r.unavailable(errors.New("the connection was lost"))
			}
			cancel(err)
			return
		}
		if !connection.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// watch is a running watch.
type watch struct {
	registry *Registry
	kind     *registry.Kind
	events   chan registry.Event
	err      error // set before events is closed
}

// Watch implements registry.Registry.
func (r *Registry) Watch(ctx context.Context, k *registry.Kind, after registry.Revision) (registry.Watch, error) {
	revision := int64(0)
	if after != "" {
		var err error
		if revision, err = strconv.ParseInt(string(after), 10, 64); err != nil {
			return nil, fmt.Errorf("watch %s: %w: revision %q", k.Plural, registry.ErrInvalid, after)
		}
	}
	w := &watch{registry: r, kind: k, events: make(chan registry.Event, 64)}
	created, ended := make(chan struct{}), make(chan struct{})
	var options []clientv3.OpOption
	key, one := r.scope(k)
	if !one {
		options = append(options, clientv3.WithPrefix())
	}
	go func() {
		defer close(w.events)
		defer close(ended)
		err := r.follow(ctx, key, revision,
			func() { close(created) },
			func(events []*clientv3.Event) bool { return w.deliver(ctx, events) },
			options...)
		if ctx.Err() != nil {
			w.err = ctx.Err()
			return
		}
		w.err = fmt.Errorf("watch %s: %w", k.Plural, err)
	}()
	select {
	case <-created:
		return w, nil
	case <-ended:
		return nil, w.err
	}
}

// Events implements registry.Watch.
func (w *watch) Events() <-chan registry.Event { return w.events }

// Err implements registry.Watch.
func (w *watch) Err() error { return w.err }

// deliver hands events on, and returns false when nobody wants them any more.
func (w *watch) deliver(ctx context.Context, events []*clientv3.Event) bool {
	for i, e := range events {
		event, ok := w.event(e)
		if !ok {
			continue
		}
		revision := e.Kv.ModRevision
		if i+1 < len(events) && events[i+1].Kv.ModRevision == revision {
			revision-- // others of this revision are still to come
		}
		event.Revision = registry.Revision(version(revision))
		select {
		case w.events <- event:
		case <-ctx.Done():
			return false
		case <-w.registry.ctx.Done():
			return false
		}
	}
	return true
}

// event returns what a change of a key looks like to those who watch the kind.
// A value that does not decode is to them as none.
func (w *watch) event(e *clientv3.Event) (registry.Event, bool) {
	if e.Type == clientv3.EventTypePut {
		if o := w.registry.decodeOrSkip(w.kind, e.Kv); o != nil {
			return registry.Event{Type: registry.Put, Object: o}, true
		}
		if e.IsCreate() {
			return registry.Event{}, false
		}
	}
	key, ok := w.kind.KeyAt(w.registry.config.Prefix, string(e.Kv.Key))
	if !ok {
		return registry.Event{}, false
	}
	if e.PrevKv != nil {
		if o, err := decode(w.kind, key, e.PrevKv); err == nil {
			return registry.Event{Type: registry.Deleted, Object: o}, true
		}
		return registry.Event{}, false // nobody saw it
	}
	o := w.kind.New()
	o.SetNamespace(key.Namespace)
	o.SetName(key.Name)
	return registry.Event{Type: registry.Deleted, Object: o}, true
}
