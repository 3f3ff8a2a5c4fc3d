// Package registry is where the cluster's objects live: typed objects with
// get, list, watch, create, compare-and-swap update, delete and lease.
//
// Registry is the contract, and the comments on it say what every
// implementation must do; registrytest holds each of them to it. Packages
// below this one implement it: etcd (external or embedded) and memory. Cache
// keeps a local copy of a kind that goes on serving while the registry is
// away; that is what loops should read.
//
// The contract is what Kubernetes' API server offers and etcd can, no more:
// no transaction over two objects, no order between two kinds.
package registry

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// What a call may fail with. Errors wrap one of these and name the object.
var (
	// ErrNotFound: there is no such object.
	ErrNotFound = errors.New("not found")
	// ErrExists: Create found an object of that name.
	ErrExists = errors.New("already exists")
	// ErrConflict: the object changed since it was read. Read it again.
	ErrConflict = errors.New("changed meanwhile")
	// ErrCompacted: the revision asked for is no longer known. List again.
	ErrCompacted = errors.New("revision compacted")
	// ErrUnavailable: the registry could not be reached or did not answer in
	// time; whether a write took effect is not known. Try again.
	ErrUnavailable = errors.New("registry unavailable")
	// ErrNotInstalled: the registry does not know the kind yet, and somebody must tell it. It is
	// ErrUnavailable as well.
	ErrNotInstalled = errors.New("is not installed")
	// ErrInvalid: the object is not one that its kind allows.
	ErrInvalid = errors.New("invalid")
)

// Object is what a registry stores: any Kubernetes API type. Its
// metadata.resourceVersion is the revision it was last written at.
type Object interface {
	runtime.Object
	metav1.Object
}

// Kind is a type of object. Kinds are compared by pointer and live in package
// variables.
type Kind struct {
	schema.GroupVersionKind
	// Plural is the lower-case name of the resource, "hostsubnets".
	Plural string
	// Singular is the lower-case name of one, "hostsubnet".
	Singular string
	// Namespaced says that names are unique within a namespace only.
	Namespaced bool
	// New returns an empty object.
	New func() Object
	// Validate says what is wrong with an object, naming the field and the
	// value; nil accepts all that decodes. A registry calls it before each
	// write and refuses with ErrInvalid.
	Validate func(Object) error
	// Keep reduces an object to what Weft uses of it; nil keeps all. A registry
	// that others write to as well, as Kubernetes' is, may hand out objects so
	// reduced, and then its Update leaves what Keep drops as it is.
	Keep func(Object)
	// StatusApart says that Kubernetes keeps the status of this kind behind a
	// resource of its own ("the status subresource"). Other registries write
	// it with the rest.
	StatusApart bool
	// Optional says that a Cache goes on without objects of the kind where the registry does not
	// know it: one that came with a later version, as whoever replaces programs may do so before
	// the definitions of kinds.
	Optional bool
	// Only, if not the zero value, is the only object of the kind that
	// matters: a registry may leave all others out of List and Watch.
	Only Key
	// Layout is where and how a key-value registry keeps the kind; nil for
	// the ordinary place and form. It lets Weft share keys with systems that
	// have their own. A Kubernetes registry does not serve kinds that have one.
	Layout *Layout
}

// Layout is a form that another system gave a kind's keys and values.
type Layout struct {
	// Prefix is the start of all the kind's keys, "/coreos.com/network/subnets/".
	// For a kind with a single object it is the key itself, and then Name is
	// that object's name. Empty means the ordinary place.
	Prefix string
	// Name is the name of the only object, or empty where there may be many,
	// whose names are what follows the prefix.
	Name string
	// Encode returns the value to store; nil means the ordinary form, and then Decode is nil.
	Encode func(Object) ([]byte, error)
	// Decode returns the object of a stored value. Name and resource version
	// are set by the caller. An error makes the registry skip the key and report
	// it.
	Decode func(name string, value []byte, stored Stored) (Object, error)
}

// Stored is what a key-value registry knows of a value beyond the value, and
// who wrote that cannot choose.
type Stored struct {
	// Expires says whether the key has a time to live.
	Expires bool
	// Created is the point in the registry's history at which the key came into
	// being; greater than 0. It stays when the value is replaced, and a key that
	// was deleted gets another when it comes back. Those of one registry compare.
	Created int64
}

// Key names an object of a kind.
type Key struct{ Namespace, Name string }

func (k Key) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// KeyOf returns an object's key.
func KeyOf(o Object) Key { return Key{o.GetNamespace(), o.GetName()} }

// Revision is a point in a registry's history. It is opaque but for "", which
// is before all others. One kind's revisions do not compare with another's.
type Revision string

// Registry stores objects. All methods are safe for concurrent use; a context
// bounds each call. Objects passed in and handed out are never shared: callee
// and caller may change theirs.
type Registry interface {
	// Serves says whether the registry can hold objects of a kind. What it
	// does not serve, every other method refuses with ErrInvalid.
	Serves(k *Kind) bool

	// Get returns the object, or ErrNotFound.
	Get(ctx context.Context, k *Kind, key Key) (Object, error)

	// List returns all objects of a kind in key order, and the revision that
	// a watch must start after to miss nothing. Values that do not decode are
	// left out and reported; for a watch they are as none.
	List(ctx context.Context, k *Kind) ([]Object, Revision, error)

	// Watch delivers every change to a kind after a revision, in order and
	// without gaps, until ctx ends or the watch fails. Changes to one object
	// may be merged only if the last state is delivered. A revision that is
	// no longer known fails with ErrCompacted, either at once or through
	// Watch.Err. A lost connection is taken up again without a gap or fails.
	Watch(ctx context.Context, k *Kind, after Revision) (Watch, error)

	// Create stores a new object and returns it as stored, or ErrExists. A
	// UID and a creation time are given to it where it has none.
	Create(ctx context.Context, k *Kind, o Object, opts ...WriteOption) (Object, error)

	// Update replaces the object if its resource version is still that of o,
	// and returns it as stored; else ErrConflict, or ErrNotFound. An empty
	// resource version is ErrInvalid: there are no blind writes. A UID and a
	// creation time that o lacks are kept. What was stored before there was a
	// rule that it breaks can be given another status (Kind.AdmitUpdate).
	Update(ctx context.Context, k *Kind, o Object, opts ...WriteOption) (Object, error)

	// Delete removes the object, or returns ErrNotFound. With a resource
	// version other than "" it removes just that one, else ErrConflict.
	Delete(ctx context.Context, k *Kind, key Key, resourceVersion string) error

	// Acquire takes the named lease for holder, waiting until whoever holds it
	// lets go or has not renewed it for its ttl. The lease is then renewed
	// until Release, the end of the process or a loss of the registry of ttl.
	// ttl is at least a second. ctx bounds the waiting only; a registry that
	// goes away ends it with ErrUnavailable.
	//
	// What the same holder has already is taken over at once, and lost to who
	// had it: a process that was killed and starts again need not wait.
	Acquire(ctx context.Context, name, holder string, ttl time.Duration) (Lease, error)

	// Holder returns who holds the named lease now, or "" if nobody does.
	Holder(ctx context.Context, name string) (string, error)

	// Holders returns who holds each lease whose name begins with prefix now,
	// by the leases' names. Those that nobody holds are not in it.
	Holders(ctx context.Context, prefix string) (map[string]string, error)

	// Close releases the connection. Watches and leases end.
	Close() error
}

// WriteOption changes how an object is written.
type WriteOption func(*WriteOptions)

// WriteOptions is what WriteOptions set; for implementations.
type WriteOptions struct {
	// TTL removes the object when it is not written again within it; 0 keeps
	// it. A later write without a TTL makes it permanent.
	TTL time.Duration
}

// WithTTL lets the object vanish when it is not written again within d, at
// least a second. A Kubernetes registry has no such thing and refuses it with
// ErrInvalid.
func WithTTL(d time.Duration) WriteOption { return func(o *WriteOptions) { o.TTL = d } }

// EventType says what happened to an object.
type EventType int

// The types of events.
const (
	// Put: the object was created or changed; Event.Object is its new state.
	Put EventType = iota
	// Deleted: the object is gone; Event.Object is its last known state, or
	// holds just its key where that is not known.
	Deleted
)

// Event is a change to an object.
type Event struct {
	Type   EventType
	Object Object
	// Revision is where a watch that saw this event can be taken up again.
	Revision Revision
}

// Watch is a running watch.
type Watch interface {
	// Events is closed when the watch ends.
	Events() <-chan Event
	// Err says why, once Events is closed: ctx.Err(), ErrCompacted,
	// ErrUnavailable.
	Err() error
}

// Lease is a lease held.
type Lease interface {
	// Lost is closed when the lease is no longer held. The holder must stop
	// what the lease protects before the ttl is over.
	Lost() <-chan struct{}
	// Release lets go at once.
	Release(ctx context.Context) error
}
