package registry

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSnapshotPut puts objects in any order, one of them twice, and looks whether what was
// there before is still what it was.
func TestSnapshotPut(t *testing.T) {
	kind := new(Kind)
	node := func(name, label string) Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"is": label}}}
	}
	said := func(s Snapshot) (all []string) {
		for o := range s.All(kind) {
			all = append(all, o.GetName()+" "+o.GetLabels()["is"])
		}
		return all
	}
	s := make(Snapshot)
	for _, name := range []string{"c", "a", "b"} {
		s.Put(kind, node(name, "first"))
	}
	before := maps.Clone(s)
	s.Put(kind, node("b", "second"))
	s.Put(kind, node("d", "second"))
	if got, want := said(s), []string{"a first", "b second", "c first", "d second"}; !slices.Equal(got, want) {
		t.Errorf("it has %q, not %q", got, want)
	}
	if got, want := said(before), []string{"a first", "b first", "c first"}; !slices.Equal(got, want) {
		t.Errorf("what shares its objects has %q, not %q", got, want)
	}
	if o := s.Get(kind, Key{Name: "b"}); o == nil || o.GetLabels()["is"] != "second" {
		t.Errorf("b is %v", o)
	}
}
