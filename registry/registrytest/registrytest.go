// Package registrytest holds every implementation of registry.Registry to the
// contract. An implementation's test calls Run with a function that makes a
// Harness, and gets each clause of the contract as a subtest.
package registrytest

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/registry"
)

// Harness is a registry to test, with no objects of the suite's kinds in it,
// and hands on what is behind it. A nil function says that the implementation
// has no such thing; the suite says what it leaves out for that.
type Harness struct {
	// Registry is closed by the suite.
	Registry registry.Registry
	// Another returns another client of the same store. Closing it is to the
	// store as if its process had been killed.
	Another func(t *testing.T) registry.Registry
	// Compact makes the store forget its history up to now.
	Compact func(t *testing.T)
	// Stop takes the store away, Start brings it back as it was.
	Stop, Start func(t *testing.T)
	// PutValue stores a value that is not of Weft's making.
	PutValue func(t *testing.T, k *registry.Kind, key registry.Key, value string)
	// Lacks are clauses that cannot hold for the store by its nature. Where
	// the contract says what it does instead, the suite tests that.
	Lacks []Clause
}

// Clause is a part of the suite that a store may lack; its text says what.
type Clause string

// The clauses that a store may lack.
const (
	TimeToLive   Clause = "objects that vanish after a time"
	GivenUIDs    Clause = "UIDs that are given by who creates an object"
	AllNames     Clause = "namespaces whose names are no DNS labels"
	AllKinds     Clause = "kinds that the store was not told of"
	AllHistory   Clause = "a watch from before all revisions that brings all, and nothing from before the test"
	LastVersions Clause = "the version that a deleted object last had; it has that of its deletion"
)

// lacks says whether the store lacks a clause, and prints that it is left out.
func (s *suite) lacks(t *testing.T, c Clause) bool {
	if !slices.Contains(s.Lacks, c) {
		return false
	}
	t.Logf("left out, as this store has no such thing: %s", c)
	return true
}

// Make returns a harness whose registries report to log.
type Make func(t *testing.T, log *slog.Logger) Harness

// suite is the harness of one test.
type suite struct {
	Harness
	log *logBuffer
}

// Run runs the suite.
func Run(t *testing.T, setup Make) {
	for _, c := range []struct {
		name string
		test func(*testing.T, *suite)
	}{
		{"create, read, update and delete", crud},
		{"conflicting writes", conflicts},
		{"what is invalid is refused", invalid},
		{"what breaks a later rule can say so", brokenLater},
		{"objects are never shared", sharing},
		{"identity survives an update", identity},
		{"list is in key order and whole", listing},
		{"kinds with a layout", layouts},
		{"values that do not decode", undecodable},
		{"random operations agree with a model", model},
		{"modify under contention", modify},
		{"an ended context", contexts},
		{"time to live", timeToLive},
		{"watch tells the last state of the deleted", watchDeleted},
		{"watch without gap or duplicate", watchWriters},
		{"watch can be taken up from any event", watchResume},
		{"watch from a forgotten revision", watchCompacted},
		{"watch ends with its context", watchContext},
		{"outage", outage},
		{"cache", cache},
		{"cache after a compaction", cacheCompacted},
		{"lease excludes others", leaseExclusion},
		{"lease is refused", leaseRefused},
		{"lease of a killed process", leaseKilled},
		{"lease is taken over by its own holder", leaseSameHolder},
		{"lease is lost in an outage", leaseLost},
		{"nothing is left running", leaks},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &suite{log: new(logBuffer)}
			s.Harness = setup(t, slog.New(slog.NewTextHandler(s.log, nil)))
			t.Cleanup(func() {
				s.Registry.Close()
				if t.Failed() {
					t.Logf("log:\n%s", s.log)
				}
			})
			c.test(t, s)
		})
	}
}

// patience is how long the suite waits for what must come. It is far more than
// anything needs, so that a busy machine fails no test.
const patience = 30 * time.Second

// Setting is the suite's namespaced kind. It is exported for harnesses whose
// store holds objects of this kind that are not the suite's, and that have to
// narrow it.
var Setting = &registry.Kind{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap"),
	Plural:           "configmaps", Singular: "configmap", Namespaced: true,
	New: func() registry.Object { return &corev1.ConfigMap{} },
	Validate: func(o registry.Object) error {
		if v, bad := o.(*corev1.ConfigMap).Data["forbidden"]; bad {
			return errors.New("data.forbidden: " + v)
		}
		return nil
	},
}

var setting = Setting

// volume is the suite's kind without namespaces, in a group with a name.
var volume = &registry.Kind{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("PersistentVolume"),
	Plural:           "persistentvolumes", Singular: "persistentvolume",
	New: func() registry.Object { return &corev1.PersistentVolume{} },
}

func newSetting(namespace, name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string]string{"value": value},
	}
}

// newVolume returns an object of the kind without namespaces that satisfies
// Kubernetes, too.
func newVolume(name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/volumes"},
			},
		},
	}
}

func valueOf(o registry.Object) string { return o.(*corev1.ConfigMap).Data["value"] }

func (s *suite) create(t *testing.T, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) registry.Object {
	t.Helper()
	created, err := s.Registry.Create(t.Context(), k, o, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return created
}

func (s *suite) list(t *testing.T, k *registry.Kind) ([]registry.Object, registry.Revision) {
	t.Helper()
	objects, revision, err := s.Registry.List(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	return objects, revision
}

func (s *suite) watch(t *testing.T, k *registry.Kind, after registry.Revision) registry.Watch {
	t.Helper()
	w, err := s.Registry.Watch(t.Context(), k, after)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// next returns the next event of a watch.
func next(t *testing.T, w registry.Watch) registry.Event {
	t.Helper()
	select {
	case e, ok := <-w.Events():
		if !ok {
			t.Fatalf("the watch ended: %v", w.Err())
		}
		return e
	case <-time.After(patience):
		t.Fatal("no event came")
	}
	panic("unreachable")
}

// wait fails the test if ch delivers nothing and is not closed.
func wait[T any](t *testing.T, ch <-chan T, what string) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patience):
		t.Fatalf("waited in vain for: %s", what)
	}
}

// eventually fails the test if a condition does not come true. It is for what
// cannot be waited for.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

// retry calls a function until it returns anything but ErrUnavailable.
func retry(t *testing.T, call func() error) {
	t.Helper()
	var err error
	eventually(t, "the registry to come back", func() bool {
		err = call()
		return !errors.Is(err, registry.ErrUnavailable)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want one that wraps %q", err, want)
	}
}

func short(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// logBuffer is a log that may be read while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
