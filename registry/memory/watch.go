package memory

import (
	"context"
	"fmt"
	"strconv"

	"github.com/weftnet/weft/registry"
)

// watch is a running watch. Its goroutine owns everything but events.
type watch struct {
	registry *Registry
	kind     *registry.Kind
	after    int64 // delivered up to this revision
	events   chan registry.Event
	err      error // set before events is closed
}

// Watch implements registry.Registry.
func (r *Registry) Watch(ctx context.Context, k *registry.Kind, after registry.Revision) (registry.Watch, error) {
	w := &watch{registry: r, kind: k, events: make(chan registry.Event, 64)}
	if after != "" {
		var err error
		if w.after, err = strconv.ParseInt(string(after), 10, 64); err != nil {
			return nil, fmt.Errorf("watch %s: %w: revision %q", k.Plural, registry.ErrInvalid, after)
		}
	}
	if err := r.begin(ctx); err != nil {
		return nil, fmt.Errorf("watch %s: %w", k.Plural, err)
	}
	compacted := w.after < r.forgotten
	r.mu.Unlock()
	if compacted {
		return nil, fmt.Errorf("watch %s: %w", k.Plural, registry.ErrCompacted)
	}
	go w.run(ctx)
	return w, nil
}

// Events implements registry.Watch.
func (w *watch) Events() <-chan registry.Event { return w.events }

// Err implements registry.Watch.
func (w *watch) Err() error { return w.err }

func (w *watch) run(ctx context.Context) {
	defer close(w.events)
	for {
		changes, more, err := w.next()
		if err != nil {
			w.err = fmt.Errorf("watch %s: %w", w.kind.Plural, err)
			return
		}
		for _, c := range changes {
			event, ok := w.event(c)
			if !ok {
				continue
			}
			select {
			case w.events <- event:
			case <-ctx.Done():
				w.err = ctx.Err()
				return
			}
		}
		if len(changes) > 0 {
			continue
		}
		select {
		case <-more:
		case <-ctx.Done():
			w.err = ctx.Err()
			return
		}
	}
}

// next returns some of the changes not yet delivered, of any kind, and what is
// closed when there are more.
func (w *watch) next() ([]change, <-chan struct{}, error) {
	r := w.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away != nil {
		return nil, nil, r.away
	}
	if w.after < r.forgotten {
		return nil, nil, registry.ErrCompacted
	}
	// Each revision has one entry, so what is not delivered is the tail.
	start := len(r.history) - int(max(r.revision-w.after, 0))
	changes := r.history[start:min(len(r.history), start+64)]
	if len(changes) > 0 {
		w.after = changes[len(changes)-1].revision
	}
	return append([]change(nil), changes...), r.notify, nil
}

// event returns what a change looks like to those who watch the kind. A value
// that does not decode is to them as none.
func (w *watch) event(c change) (registry.Event, bool) {
	key, ok := w.kind.KeyAt("", c.path)
	if !ok {
		return registry.Event{}, false
	}
	decode := func(i *item) registry.Object {
		if i == nil {
			return nil
		}
		o, err := i.decode(w.kind, key)
		if err != nil {
			w.registry.log.Warn("skipped", "error", err)
			return nil
		}
		return o
	}
	revision := registry.Revision(version(c.revision))
	if o := decode(c.after); o != nil {
		return registry.Event{Type: registry.Put, Object: o, Revision: revision}, true
	}
	if o := decode(c.before); o != nil {
		return registry.Event{Type: registry.Deleted, Object: o, Revision: revision}, true
	}
	return registry.Event{}, false
}
