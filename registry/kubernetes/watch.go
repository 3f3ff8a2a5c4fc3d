package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/weftnet/weft/registry"
)

// A watch is a request that the API server is asked to end after some time
// from this on and up to twice that, so that watches spread over servers.
const watchTime = 5 * time.Minute

// A request that ends before this, and brought nothing, is no progress: to
// send the next at once would do harm.
const briefly = time.Second

// watch is a running watch: one request after another.
type watch struct {
	registry *Registry
	kind     *registry.Kind
	format   format
	events   chan registry.Event
	err      error // set before events is closed

	ctx    context.Context // of the requests
	caller context.Context
	after  registry.Revision // where the next request goes on
	call   *call
}

// Watch implements registry.Registry. An API server remembers the last minutes
// only, so that to watch from the start of all fails with ErrCompacted.
func (r *Registry) Watch(ctx context.Context, k *registry.Kind, after registry.Revision) (registry.Watch, error) {
	if err := served(k); err != nil {
		return nil, err
	}
	if r.ctx.Err() != nil {
		return nil, fmt.Errorf("watch %s: %w", k.Plural, r.errClosed())
	}
	if after == "" {
		after = "1" // the first there is; no revision at all would mean the latest
	}
	if err := r.reached(ctx, k, after); err != nil {
		return nil, fmt.Errorf("watch %s: %w", k.Plural, err)
	}
	w := &watch{registry: r, kind: k, format: formatOf(k), events: make(chan registry.Event, 64), caller: ctx, after: after, call: &call{}}
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithCancel(context.WithValue(ctx, callKey{}, w.call))
	stop := context.AfterFunc(r.ctx, cancel)
	body, err := w.open()
	if err != nil {
		stop()
		cancel()
		return nil, w.failure(err)
	}
	go func() {
		defer close(w.events)
		defer cancel()
		defer stop()
		w.err = w.failure(w.run(body))
	}()
	return w, nil
}

// reached returns ErrCompacted where the API server's revision is before one
// that was seen of it: its etcd was restored or wiped, and what the watcher
// knows is of no use. It would let a watch from such a revision wait in silence
// until it gets there.
func (r *Registry) reached(ctx context.Context, k *registry.Kind, after registry.Revision) error {
	params, key := r.selection(k)
	params.Set("limit", "1")
	page, err := r.page(ctx, k, key, params, func([]byte) {})
	if err != nil {
		return err
	}
	now, err := strconv.ParseUint(page.ResourceVersion, 10, 64)
	if err != nil {
		return nil // revisions that do not compare
	}
	seen, err := strconv.ParseUint(string(after), 10, 64)
	if err != nil {
		return fmt.Errorf("%w: revision %q", registry.ErrInvalid, after)
	}
	if now < seen {
		return registry.ErrCompacted
	}
	return nil
}

// Events implements registry.Watch.
func (w *watch) Events() <-chan registry.Event { return w.events }

// Err implements registry.Watch.
func (w *watch) Err() error { return w.err }

// failure returns why a watch ends.
func (w *watch) failure(err error) error {
	if ended := w.caller.Err(); ended != nil {
		return ended
	}
	return fmt.Errorf("watch %s: %w", w.kind.Plural, w.registry.failure(w.caller, w.call, err))
}

// open sends a request and waits until the API server has begun to answer it.
func (w *watch) open() (io.ReadCloser, error) {
	params, key := w.registry.selection(w.kind)
	params.Set("watch", "1")
	params.Set("resourceVersion", string(w.after))
	params.Set("allowWatchBookmarks", "true")
	params.Set("timeoutSeconds", strconv.Itoa(int((watchTime + rand.N(watchTime)).Seconds())))
	ctx, cancel := context.WithCancel(w.ctx)
	bound := time.AfterFunc(requestTimeout, cancel)
	body, err := w.registry.open(ctx, w.call, request{verb: "watch", kind: w.kind, key: key, params: params, accept: w.format.accept(true)})
	if !bound.Stop() && err == nil {
		body.Close()
		err = context.DeadlineExceeded
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &stream{body, cancel}, nil
}

// stream is a body whose request ends when it is closed.
type stream struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (s *stream) Close() error {
	s.cancel()
	return s.ReadCloser.Close()
}

// run follows one request after another until one fails, and returns why.
func (w *watch) run(body io.ReadCloser) error {
	for {
		began, before := time.Now(), w.after
		err := w.follow(body)
		body.Close()
		if w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		if !errors.Is(err, errEnded) {
			return err
		}
		// The server ended it, or the connection broke: it goes on after the
		// last event, if there still is a server.
		if w.after == before && time.Since(began) < briefly {
			return err
		}
		if body, err = w.open(); err != nil {
			return err
		}
	}
}

// errEnded says that nothing more comes.
var errEnded = errors.New("the watch ended")

// follow delivers what a request brings.
func (w *watch) follow(body io.Reader) error {
	next := w.format.events(&ending{body})
	for {
		kind, data, err := next()
		if err != nil {
			return err
		}
		event, err := w.event(apiwatch.EventType(kind), data)
		if err != nil {
			return err
		}
		if event.Object == nil {
			continue
		}
		select {
		case w.events <- event:
		case <-w.ctx.Done():
			return w.ctx.Err()
		}
	}
}

// ending is a reader whose errors are errEnded, so that they are not taken for
// those of what was read.
type ending struct{ io.Reader }

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		err = errEnded
	default:
		err = fmt.Errorf("%w: %w", errEnded, err)
	}
	return n, err
}

// event returns what an event of the API server looks like to those who watch
// the kind; without an object where they need not know. It moves w.after on.
// An object that does not decode is to them as none.
func (w *watch) event(kind apiwatch.EventType, data []byte) (registry.Event, error) {
	var event registry.Event
	switch kind {
	case apiwatch.Added, apiwatch.Modified:
	case apiwatch.Deleted:
		event.Type = registry.Deleted
	case apiwatch.Bookmark:
		var o metav1.PartialObjectMetadata
		err := w.format.decode(data, &o)
		if err == nil && o.ResourceVersion != "" {
			w.after = registry.Revision(o.ResourceVersion)
		}
		return event, err
	case apiwatch.Error:
		var s metav1.Status
		if err := w.format.decode(data, &s); err != nil {
			return event, err
		}
		return event, apierrors.FromObject(&s)
	default:
		return event, fmt.Errorf("it sent an event of type %q", kind)
	}
	if event.Object = w.registry.decodeOrSkip(w.kind, w.format, data); event.Object == nil {
		var o metav1.PartialObjectMetadata
		if err := w.format.decode(data, &o); err != nil {
			return event, err
		}
		event.Type, event.Object = registry.Deleted, w.kind.New()
		event.Object.SetNamespace(o.Namespace)
		event.Object.SetName(o.Name)
		event.Object.SetResourceVersion(o.ResourceVersion)
	}
	w.after = registry.Revision(event.Object.GetResourceVersion())
	event.Revision = w.after
	return event, nil
}
