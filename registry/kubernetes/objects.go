package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/registry"
)

// Get implements registry.Registry.
func (r *Registry) Get(ctx context.Context, k *registry.Kind, key registry.Key) (registry.Object, error) {
	f := formatOf(k)
	data, err := r.get(ctx, k, key, f)
	if err != nil {
		return nil, err
	}
	o, err := decode(k, f, data)
	if err != nil {
		return nil, k.Errorf(key, registry.ErrInvalid, fmt.Errorf("the stored object: %w", err))
	}
	return o, nil
}

// get returns an object in a format.
func (r *Registry) get(ctx context.Context, k *registry.Kind, key registry.Key, f format) ([]byte, error) {
	if err := served(k); err != nil {
		return nil, err
	}
	if _, ok := k.Path("", key); !ok {
		return nil, k.Errorf(key, registry.ErrNotFound, nil)
	}
	data, err := r.object(ctx, request{verb: "get", kind: k, key: key}, f)
	if err != nil {
		return nil, k.Errorf(key, err, nil)
	}
	return data, nil
}

// selection returns the parameters that restrict List and Watch of a kind, and
// the namespace they are about.
func (r *Registry) selection(k *registry.Kind) (url.Values, registry.Key) {
	var fields []string
	if s := r.config.Fields[k]; s != "" {
		fields = append(fields, s)
	}
	if k.Only.Name != "" {
		fields = append(fields, "metadata.name="+k.Only.Name)
	}
	params := url.Values{}
	if len(fields) > 0 {
		params.Set("fieldSelector", strings.Join(fields, ","))
	}
	return params, registry.Key{Namespace: k.Only.Namespace}
}

// List implements registry.Registry. All pages are of one revision.
func (r *Registry) List(ctx context.Context, k *registry.Kind) ([]registry.Object, registry.Revision, error) {
	if err := served(k); err != nil {
		return nil, "", err
	}
	objects, revision, err := r.pages(ctx, k, pageSize)
	if errors.Is(err, registry.ErrCompacted) {
		// It took so long that the revision of the first page is forgotten.
		objects, revision, err = r.pages(ctx, k, 0)
	}
	if err != nil {
		return nil, "", fmt.Errorf("list %s: %w", k.Plural, err)
	}
	slices.SortFunc(objects, func(a, b registry.Object) int {
		return registry.KeyOf(a).Compare(registry.KeyOf(b))
	})
	return objects, revision, nil
}

// pages lists a kind in pages of some objects each, or in one where limit is 0.
func (r *Registry) pages(ctx context.Context, k *registry.Kind, limit int) ([]registry.Object, registry.Revision, error) {
	f := formatOf(k)
	var objects []registry.Object
	params, key := r.selection(k)
	if limit > 0 {
		params.Set("limit", strconv.Itoa(limit))
	}
	for {
		page, err := r.page(ctx, k, key, params, func(data []byte) {
			if o := r.decodeOrSkip(k, f, data); o != nil {
				objects = append(objects, o)
			}
		})
		if err != nil {
			return nil, "", err
		}
		if page.Continue == "" {
			return objects, registry.Revision(page.ResourceVersion), nil
		}
		params.Set("continue", page.Continue)
	}
}

// page lists one page of a kind, and calls item for each encoded object.
func (r *Registry) page(ctx context.Context, k *registry.Kind, key registry.Key, params url.Values, item func([]byte)) (page metav1.ListMeta, err error) {
	f := formatOf(k)
	err = r.within(ctx, pageTimeout, func(ctx context.Context, c *call) error {
		body, err := r.open(ctx, c, request{verb: "list", kind: k, key: key, params: params, accept: f.accept(false)})
		if err != nil {
			return err
		}
		defer body.Close()
		if page, err = f.list(body, item); err == nil && page.ResourceVersion == "" {
			err = errors.New("it sent a list without a resource version: is this the address of an API server?")
		}
		return unexpected(err)
	})
	return page, err
}

// decodeOrSkip returns an object, or nil where it does not decode, which is
// reported.
func (r *Registry) decodeOrSkip(k *registry.Kind, f format, data []byte) registry.Object {
	o, err := decode(k, f, data)
	if err != nil {
		r.log.Warn("skipped", "error", k.Errorf(keyAt(f, data), registry.ErrInvalid, err))
		return nil
	}
	return o
}

// stay refuses a time to live.
func stay(k *registry.Kind, key registry.Key, options registry.WriteOptions) error {
	if options.TTL == 0 {
		return nil
	}
	return k.Errorf(key, registry.ErrInvalid, errors.New("objects in Kubernetes have no time to live"))
}

// Create implements registry.Registry. The UID and the creation time are
// those that the API server gives, whatever o says. The status of a kind whose
// status is apart is a second request: should that fail, the object is there
// without it.
func (r *Registry) Create(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	if err := served(k); err != nil {
		return nil, err
	}
	o, options, err := k.Admit(o, opts...)
	if err != nil {
		return nil, err
	}
	key := registry.KeyOf(o)
	if err := stay(k, key, options); err != nil {
		return nil, err
	}
	o.SetUID("")
	o.SetResourceVersion("")
	o.SetManagedFields(nil)
	content, empty, err := toObjects(o, k.New())
	if err != nil {
		return nil, k.Errorf(key, registry.ErrInvalid, err)
	}
	delete(content["metadata"].(object), "creationTimestamp")
	var status object
	if k.StatusApart {
		after, _ := content["status"].(object)
		before, _ := empty["status"].(object)
		if status, err = difference(before, before, after); err != nil {
			return nil, k.Errorf(key, registry.ErrInvalid, err)
		}
		delete(content, "status")
	}
	body, err := json.Marshal(content)
	if err != nil {
		return nil, k.Errorf(key, registry.ErrInvalid, err)
	}
	f := formatOf(k)
	data, err := r.object(ctx, request{verb: "create", kind: k, key: key, body: body}, f)
	if err != nil {
		return nil, k.Errorf(key, err, nil)
	}
	created, err := decode(k, f, data)
	if err != nil {
		return nil, k.Errorf(key, registry.ErrInvalid, fmt.Errorf("what was stored: %w", err))
	}
	if len(status) == 0 {
		return created, nil
	}
	if created, err = r.patch(ctx, k, key, created.GetResourceVersion(), object{"status": status}, true); err != nil {
		return nil, fmt.Errorf("%w; it was created without its status", err)
	}
	return created, nil
}

// toObjects returns the JSON objects of two API objects.
func toObjects(a, b any) (object, object, error) {
	first, err := toObject(a)
	if err != nil {
		return nil, nil, err
	}
	second, err := toObject(b)
	return first, second, err
}

// Update implements registry.Registry. It writes what differs between o and
// what is stored, and nothing else: where nothing does, nothing is written and
// the resource version stays. Metadata other than labels, annotations,
// finalizers and owners is the API server's.
func (r *Registry) Update(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	if err := served(k); err != nil {
		return nil, err
	}
	o, options, err := k.AdmitUpdate(o, func() (registry.Object, error) { return r.Get(ctx, k, registry.KeyOf(o)) }, opts...)
	if err != nil {
		return nil, err
	}
	key := registry.KeyOf(o)
	if err := stay(k, key, options); err != nil {
		return nil, err
	}
	if o.GetResourceVersion() == "" {
		return nil, k.Errorf(key, registry.ErrInvalid, registry.ErrNoVersion)
	}
	// JSON shows the fields, too, that the Go type does not have.
	data, err := r.get(ctx, k, key, asJSON{})
	if err != nil {
		return nil, err
	}
	now, err := decode(k, asJSON{}, data)
	if err != nil {
		return nil, k.Errorf(key, registry.ErrInvalid, fmt.Errorf("the stored object: %w", err))
	}
	if now.GetResourceVersion() != o.GetResourceVersion() {
		return nil, k.Errorf(key, registry.ErrConflict, nil)
	}
	if k.Keep != nil {
		k.Keep(o)
	}
	patch, err := update(data, now, o)
	if err != nil {
		return nil, k.Errorf(key, registry.ErrInvalid, err)
	}
	status := object{}
	if s, ok := patch["status"]; ok && k.StatusApart {
		status["status"] = s
		delete(patch, "status")
	}
	if len(patch) > 0 {
		if now, err = r.patch(ctx, k, key, now.GetResourceVersion(), patch, false); err != nil {
			return nil, err
		}
	}
	if len(status) > 0 {
		return r.patch(ctx, k, key, now.GetResourceVersion(), status, true)
	}
	return now, nil
}

// update returns the merge patch that makes of a stored object what is wanted.
// known is what Weft keeps of the stored one.
func update(stored []byte, known, wanted registry.Object) (object, error) {
	all, err := toObject(stored)
	if err != nil {
		return nil, err
	}
	before, after, err := toObjects(known, wanted)
	if err != nil {
		return nil, err
	}
	return difference(all, writable(before), writable(after))
}

// patch applies a merge patch to an object, or its status subresource, if that
// has the given resource version.
func (r *Registry) patch(ctx context.Context, k *registry.Kind, key registry.Key, version string, patch object, status bool) (registry.Object, error) {
	body, err := json.Marshal(ifVersion(version, patch))
	if err != nil {
		return nil, k.Errorf(key, registry.ErrInvalid, err)
	}
	f := formatOf(k)
	data, err := r.object(ctx, request{verb: "patch", kind: k, key: key, status: status, body: body}, f)
	if err != nil {
		return nil, k.Errorf(key, err, nil)
	}
	o, err := decode(k, f, data)
	if err != nil {
		return nil, k.Errorf(key, registry.ErrInvalid, fmt.Errorf("what was stored: %w", err))
	}
	return o, nil
}

// Delete implements registry.Registry. An object with finalizers is there
// until those who set them have let go.
func (r *Registry) Delete(ctx context.Context, k *registry.Kind, key registry.Key, resourceVersion string) error {
	if err := served(k); err != nil {
		return err
	}
	if _, ok := k.Path("", key); !ok {
		return k.Errorf(key, registry.ErrNotFound, nil)
	}
	options := metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}}
	if resourceVersion != "" {
		options.Preconditions = &metav1.Preconditions{ResourceVersion: &resourceVersion}
	}
	body, err := json.Marshal(options)
	if err != nil {
		return k.Errorf(key, registry.ErrInvalid, err)
	}
	if _, err := r.object(ctx, request{verb: "delete", kind: k, key: key, body: body}, asJSON{}); err != nil {
		return k.Errorf(key, err, nil)
	}
	return nil
}
