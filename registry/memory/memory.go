// Package memory is a registry in the memory of one process, for tests and for
// tools that need no cluster. It keeps encoded values and a history of changes
// as etcd does, so that what passes here passes there; Stop and Start make it
// go away and come back, Compact makes it forget.
package memory

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/weftnet/weft/registry"
)

// historyLimit is how many changes are kept for watches. The oldest are
// forgotten first.
const historyLimit = 8192

// Registry is a registry.Registry in memory. Make one with New.
type Registry struct {
	log *slog.Logger

	mu        sync.Mutex
	revision  int64            // of the last change
	forgotten int64            // changes up to this revision are not in history
	items     map[string]*item // by path
	history   []change         // by revision
	leases    map[string]*lease
	notify    chan struct{} // closed and replaced when anything changes
	away      error         // why calls fail, or nil
	closed    bool
}

var _ registry.Registry = (*Registry)(nil)

// item is a stored object.
type item struct {
	value    []byte
	revision int64
	created  int64       // the revision at which there was nothing before
	expiry   *time.Timer // nil for one that stays
}

// change is an entry of the history. before is nil for a creation, after for a
// deletion.
type change struct {
	revision      int64
	path          string
	before, after *item
}

// New returns an empty registry. It reports values that do not decode to the
// default logger.
func New() *Registry {
	return &Registry{
		log:    slog.Default(),
		items:  map[string]*item{},
		leases: map[string]*lease{},
		notify: make(chan struct{}),
	}
}

// SetLog sets where values that do not decode are reported to. It must be
// called before the registry is used.
func (r *Registry) SetLog(log *slog.Logger) { r.log = log }

// begin locks the registry for a call, or returns why it cannot be served.
func (r *Registry) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	if r.away != nil {
		defer r.mu.Unlock()
		return r.away
	}
	return nil
}

// Serves implements registry.Registry: there is no kind that it cannot hold.
func (r *Registry) Serves(*registry.Kind) bool { return true }

// Get implements registry.Registry.
func (r *Registry) Get(ctx context.Context, k *registry.Kind, key registry.Key) (registry.Object, error) {
	if err := r.begin(ctx); err != nil {
		return nil, k.Errorf(key, err, nil)
	}
	defer r.mu.Unlock()
	_, at, err := r.find(k, key)
	if err != nil {
		return nil, err
	}
	return at.decode(k, key)
}

// find returns where an object is and what is there. The registry is locked.
func (r *Registry) find(k *registry.Kind, key registry.Key) (string, *item, error) {
	path, ok := k.Path("", key)
	if ok && r.items[path] != nil {
		return path, r.items[path], nil
	}
	return path, nil, k.Errorf(key, registry.ErrNotFound, nil)
}

func (i *item) decode(k *registry.Kind, key registry.Key) (registry.Object, error) {
	return k.Decode(key, i.value, registry.Stored{Expires: i.expiry != nil, Created: i.created}, version(i.revision))
}

func version(revision int64) string { return strconv.FormatInt(revision, 10) }

// List implements registry.Registry.
func (r *Registry) List(ctx context.Context, k *registry.Kind) ([]registry.Object, registry.Revision, error) {
	if err := r.begin(ctx); err != nil {
		return nil, "", fmt.Errorf("list %s: %w", k.Plural, err)
	}
	defer r.mu.Unlock()
	var objects []registry.Object
	for path, at := range r.items {
		key, ok := k.KeyAt("", path)
		if !ok {
			continue
		}
		o, err := at.decode(k, key)
		if err != nil {
			r.log.Warn("skipped", "error", err)
			continue
		}
		objects = append(objects, o)
	}
	slices.SortFunc(objects, func(a, b registry.Object) int {
		return registry.KeyOf(a).Compare(registry.KeyOf(b))
	})
	return objects, registry.Revision(version(r.revision)), nil
}

// Create implements registry.Registry.
func (r *Registry) Create(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	o, options, err := k.Admit(o, opts...)
	if err != nil {
		return nil, err
	}
	key := registry.KeyOf(o)
	if o.GetUID() == "" {
		o.SetUID(uuid.NewUUID())
	}
	if created := o.GetCreationTimestamp(); created.IsZero() {
		o.SetCreationTimestamp(metav1.Now())
	}
	if err := r.begin(ctx); err != nil {
		return nil, k.Errorf(key, err, nil)
	}
	defer r.mu.Unlock()
	path, at, _ := r.find(k, key)
	if at != nil {
		return nil, k.Errorf(key, registry.ErrExists, nil)
	}
	return r.put(k, path, o, options)
}

// Update implements registry.Registry.
func (r *Registry) Update(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	o, options, err := k.AdmitUpdate(o, func() (registry.Object, error) { return r.Get(ctx, k, registry.KeyOf(o)) }, opts...)
	if err != nil {
		return nil, err
	}
	key := registry.KeyOf(o)
	if o.GetResourceVersion() == "" {
		return nil, k.Errorf(key, registry.ErrInvalid, registry.ErrNoVersion)
	}
	if err := r.begin(ctx); err != nil {
		return nil, k.Errorf(key, err, nil)
	}
	defer r.mu.Unlock()
	path, at, err := r.find(k, key)
	if err != nil {
		return nil, err
	}
	if version(at.revision) != o.GetResourceVersion() {
		return nil, k.Errorf(key, registry.ErrConflict, nil)
	}
	if before, err := at.decode(k, key); err == nil {
		registry.KeepIdentity(o, before)
	}
	return r.put(k, path, o, options)
}

// item returns what is to be at path next. The registry is locked.
func (r *Registry) item(path string, value []byte) *item {
	at := &item{value: value, revision: r.revision + 1, created: r.revision + 1}
	if before := r.items[path]; before != nil {
		at.created = before.created
	}
	return at
}

// put stores an object. The registry is locked.
func (r *Registry) put(k *registry.Kind, path string, o registry.Object, options registry.WriteOptions) (registry.Object, error) {
	value, err := k.Encode(o)
	if err != nil {
		return nil, err
	}
	at := r.item(path, value)
	if options.TTL > 0 {
		at.expiry = time.AfterFunc(options.TTL, func() { r.expire(path, at) })
	}
	r.change(path, at)
	return at.decode(k, registry.KeyOf(o))
}

// expire removes an item at the end of its time to live, if it is still there.
func (r *Registry) expire(path string, at *item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.items[path] == at {
		r.change(path, nil)
	}
}

// Delete implements registry.Registry.
func (r *Registry) Delete(ctx context.Context, k *registry.Kind, key registry.Key, resourceVersion string) error {
	if err := r.begin(ctx); err != nil {
		return k.Errorf(key, err, nil)
	}
	defer r.mu.Unlock()
	path, at, err := r.find(k, key)
	if err != nil {
		return err
	}
	if resourceVersion != "" && resourceVersion != version(at.revision) {
		return k.Errorf(key, registry.ErrConflict, nil)
	}
	r.change(path, nil)
	return nil
}

// change records and announces that what is at path is now after; nil means
// nothing. The registry is locked.
func (r *Registry) change(path string, after *item) {
	before := r.items[path]
	if before != nil && before.expiry != nil {
		before.expiry.Stop()
	}
	r.revision++
	if after == nil {
		delete(r.items, path)
	} else {
		r.items[path] = after
	}
	r.history = append(r.history, change{r.revision, path, before, after})
	if n := len(r.history) - historyLimit; n > 0 {
		r.forget(r.history[n-1].revision)
	}
	r.announce()
}

// announce wakes all who wait for a change. The registry is locked.
func (r *Registry) announce() {
	close(r.notify)
	r.notify = make(chan struct{})
}

// forget drops the history up to a revision. The registry is locked.
func (r *Registry) forget(revision int64) {
	r.forgotten = revision
	r.history = slices.DeleteFunc(r.history, func(c change) bool { return c.revision <= revision })
}

// PutValue stores a value as some other program might, whatever it is, at a
// kind's key. It is for tests.
func (r *Registry) PutValue(k *registry.Kind, key registry.Key, value []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if path, ok := k.Path("", key); ok {
		r.change(path, r.item(path, slices.Clone(value)))
	}
}

// Compact forgets all history: whoever watches from a revision before now, or
// has not yet been delivered all, gets registry.ErrCompacted.
func (r *Registry) Compact() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(r.revision)
	r.announce()
}

// Stop makes the registry unavailable until Start: calls and watches fail with
// registry.ErrUnavailable, and leases are lost after their ttl.
func (r *Registry) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away != nil {
		return
	}
	r.away = fmt.Errorf("%w: the memory registry is stopped", registry.ErrUnavailable)
	for _, l := range r.leases {
		l.expiry = time.AfterFunc(l.ttl, func() { r.drop(l) })
	}
	r.announce()
}

// Start ends what Stop began.
func (r *Registry) Start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.away = nil
	for _, l := range r.leases {
		if l.expiry != nil {
			l.expiry.Stop()
		}
	}
	r.announce()
}

// Close implements registry.Registry.
func (r *Registry) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	r.away = fmt.Errorf("%w: the memory registry is closed", registry.ErrUnavailable)
	for _, at := range r.items {
		if at.expiry != nil {
			at.expiry.Stop()
		}
	}
	for _, l := range r.leases {
		l.end()
	}
	clear(r.leases)
	r.announce()
	return nil
}
