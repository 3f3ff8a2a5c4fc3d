package etcd

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/weftnet/weft/registry"
)

func version(revision int64) string { return strconv.FormatInt(revision, 10) }

func decode(k *registry.Kind, key registry.Key, kv *mvccpb.KeyValue) (registry.Object, error) {
	return k.Decode(key, kv.Value, registry.Stored{Expires: kv.Lease != 0, Created: kv.CreateRevision}, version(kv.ModRevision))
}

// Serves implements registry.Registry: there is no kind that it cannot hold.
func (r *Registry) Serves(*registry.Kind) bool { return true }

// Get implements registry.Registry.
func (r *Registry) Get(ctx context.Context, k *registry.Kind, key registry.Key) (registry.Object, error) {
	path, ok := k.Path(r.config.Prefix, key)
	if !ok {
		return nil, k.Errorf(key, registry.ErrNotFound, nil)
	}
	var found *clientv3.GetResponse
	err := r.call(ctx, func(ctx context.Context, c *clientv3.Client) (err error) {
		found, err = c.Get(ctx, path)
		return err
	})
	switch {
	case err != nil:
		return nil, k.Errorf(key, err, nil)
	case len(found.Kvs) == 0:
		return nil, k.Errorf(key, registry.ErrNotFound, nil)
	}
	return decode(k, key, found.Kvs[0])
}

// scope returns the key of the only object of a kind that matters, or what the keys of all
// begin with.
func (r *Registry) scope(k *registry.Kind) (key string, one bool) {
	if path, ok := k.Path(r.config.Prefix, k.Only); ok {
		return path, true
	}
	return k.Prefix(r.config.Prefix), k.Single()
}

// List implements registry.Registry. All pages are of one revision.
func (r *Registry) List(ctx context.Context, k *registry.Kind) ([]registry.Object, registry.Revision, error) {
	var objects []registry.Object
	from, one := r.scope(k)
	end := from + "\x00"
	if !one {
		end = clientv3.GetPrefixRangeEnd(from)
	}
	revision := int64(0) // of the first page
	for {
		var page *clientv3.GetResponse
		err := r.call(ctx, func(ctx context.Context, c *clientv3.Client) (err error) {
			page, err = c.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(pageSize), clientv3.WithRev(revision))
			return err
		})
		if err != nil {
			return nil, "", fmt.Errorf("list %s: %w", k.Plural, err)
		}
		if revision == 0 {
			revision = page.Header.Revision
		}
		for _, kv := range page.Kvs {
			o := r.decodeOrSkip(k, kv)
			if o != nil {
				objects = append(objects, o)
			}
		}
		if !page.More {
			break
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
	// etcd's order is that of whole paths, where "a-b/" comes before "a/".
	slices.SortFunc(objects, func(a, b registry.Object) int {
		return registry.KeyOf(a).Compare(registry.KeyOf(b))
	})
	return objects, registry.Revision(version(revision)), nil
}

// decodeOrSkip returns the object of a value, or nil where there is none or it
// does not decode, which is reported.
func (r *Registry) decodeOrSkip(k *registry.Kind, kv *mvccpb.KeyValue) registry.Object {
	if kv == nil {
		return nil
	}
	key, ok := k.KeyAt(r.config.Prefix, string(kv.Key))
	if !ok {
		r.log.Warn("skipped a key that is no name", "kind", k.Plural, "key", string(kv.Key))
		return nil
	}
	o, err := decode(k, key, kv)
	if err != nil {
		r.log.Warn("skipped", "key", string(kv.Key), "error", err)
		return nil
	}
	return o
}

// Create implements registry.Registry.
func (r *Registry) Create(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	o, options, err := k.Admit(o, opts...)
	if err != nil {
		return nil, err
	}
	if o.GetUID() == "" {
		o.SetUID(uuid.NewUUID())
	}
	if created := o.GetCreationTimestamp(); created.IsZero() {
		o.SetCreationTimestamp(metav1.Now())
	}
	return r.put(ctx, k, o, 0, options.TTL)
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
	revision, err := parseVersion(o.GetResourceVersion())
	if err != nil {
		return nil, k.Errorf(key, registry.ErrInvalid, err)
	}
	if o.GetUID() == "" && k.Layout == nil {
		before, err := r.Get(ctx, k, key)
		if err != nil {
			return nil, err
		}
		registry.KeepIdentity(o, before)
	}
	return r.put(ctx, k, o, revision, options.TTL)
}

func parseVersion(v string) (int64, error) {
	revision, err := strconv.ParseInt(v, 10, 64)
	if err != nil || revision <= 0 {
		return 0, fmt.Errorf("metadata.resourceVersion %q: not one that was given out", v)
	}
	return revision, nil
}

// put stores an object if the key's revision is still the given one; 0 means
// that there is no such key.
func (r *Registry) put(ctx context.Context, k *registry.Kind, o registry.Object, revision int64, ttl time.Duration) (registry.Object, error) {
	key := registry.KeyOf(o)
	path, _ := k.Path(r.config.Prefix, key) // Admit has seen to it
	value, err := k.Encode(o)
	if err != nil {
		return nil, err
	}
	// Each write with a time to live has an etcd lease of its own. The one of
	// the write before expires by itself: to revoke it would take other keys
	// with it if somebody shares it.
	var options []clientv3.OpOption
	lease := clientv3.NoLease
	if ttl > 0 {
		if lease, err = r.grant(ctx, ttl); err != nil {
			return nil, k.Errorf(key, err, nil)
		}
		options = append(options, clientv3.WithLease(lease))
	}
	var done *clientv3.TxnResponse
	err = r.call(ctx, func(ctx context.Context, c *clientv3.Client) (err error) {
		done, err = c.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(path), "=", revision)).
			Then(clientv3.OpPut(path, string(value), options...), clientv3.OpGet(path, clientv3.WithKeysOnly())).
			Else(clientv3.OpGet(path, clientv3.WithKeysOnly())).
			Commit()
		return err
	})
	switch {
	case err != nil:
		// Whether it was written is not known, and then the lease must stay.
		return nil, k.Errorf(key, err, nil)
	case done.Succeeded:
		stored := done.Responses[1].GetResponseRange().Kvs[0]
		return k.Decode(key, value, registry.Stored{Expires: ttl > 0, Created: stored.CreateRevision}, version(stored.ModRevision))
	}
	if lease != clientv3.NoLease {
		r.revoke(ctx, lease)
	}
	switch {
	case revision == 0:
		return nil, k.Errorf(key, registry.ErrExists, nil)
	case len(done.Responses[0].GetResponseRange().Kvs) == 0:
		return nil, k.Errorf(key, registry.ErrNotFound, nil)
	}
	return nil, k.Errorf(key, registry.ErrConflict, nil)
}

// grant makes an etcd lease of at least ttl; etcd counts in seconds.
func (r *Registry) grant(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	id := clientv3.NoLease
	err := r.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
		granted, err := c.Grant(ctx, int64((ttl+time.Second-1)/time.Second))
		if err == nil {
			id = granted.ID
		}
		return err
	})
	return clientv3.LeaseID(id), err
}

// revoke ends an etcd lease that is of no use. Should it fail, the lease
// expires.
func (r *Registry) revoke(ctx context.Context, id clientv3.LeaseID) {
	_ = r.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Revoke(ctx, id)
		return err
	})
}

// Delete implements registry.Registry.
func (r *Registry) Delete(ctx context.Context, k *registry.Kind, key registry.Key, resourceVersion string) error {
	path, ok := k.Path(r.config.Prefix, key)
	if !ok {
		return k.Errorf(key, registry.ErrNotFound, nil)
	}
	var conditions []clientv3.Cmp
	if resourceVersion != "" {
		revision, err := parseVersion(resourceVersion)
		if err != nil {
			return k.Errorf(key, registry.ErrInvalid, err)
		}
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(path), "=", revision))
	}
	var done *clientv3.TxnResponse
	err := r.call(ctx, func(ctx context.Context, c *clientv3.Client) (err error) {
		done, err = c.Txn(ctx).
			If(conditions...).
			Then(clientv3.OpDelete(path)).
			Else(clientv3.OpGet(path, clientv3.WithKeysOnly())).
			Commit()
		return err
	})
	switch {
	case err != nil:
		return k.Errorf(key, err, nil)
	case done.Succeeded && done.Responses[0].GetResponseDeleteRange().Deleted == 0,
		!done.Succeeded && len(done.Responses[0].GetResponseRange().Kvs) == 0:
		return k.Errorf(key, registry.ErrNotFound, nil)
	case !done.Succeeded:
		return k.Errorf(key, registry.ErrConflict, nil)
	}
	return nil
}
