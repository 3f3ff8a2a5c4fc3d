package compile_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/dns/compile"
	"github.com/weftnet/weft/registry"
)

// TestNamespaceIsFull has Services with more endpoints than those of a namespace may have together:
// the older ones have theirs, and the younger ones that fit beside them. Of the others it is told.
func TestNamespaceIsFull(t *testing.T) {
	defer compile.SetBudget(10)()
	w := world{}
	for i, endpoints := range []int{6, 6, 4, 1} {
		name := fmt.Sprint("s", i)
		s := serviceOf(name, "10.96.0.1")
		s.CreationTimestamp = metav1.Unix(int64(100-i), 0) // the last is the oldest
		w.put(api.Service, s)
		w.put(api.EndpointSlice, sliceOf(name, 0, endpoints))
	}
	var c compile.Compiler
	want := func(what, want string) {
		t.Helper()
		var got []string
		for _, s := range c.Compile(w.snapshot()).Services {
			got = append(got, fmt.Sprintf("%s:%d", s.Name, len(s.Endpoints)))
		}
		for _, p := range c.Problems() {
			if !strings.Contains(p.Message, "of namespace default have more than 10 endpoints together, each counted once for each of its ports, and this one's names have none") {
				t.Errorf("%s: of %s it is told %q", what, p.Service, p.Message)
			}
			got = append(got, "without "+p.Service.Name)
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%s they are %s, and should be %s", what, got, want)
		}
	}
	want("at first", "s0:0 s1:0 s2:4 s3:1 without s0 without s1")
	delete(w[api.Service], registry.Key{Namespace: "default", Name: "s2"})
	want("without s2", "s0:0 s1:6 s3:1 without s0")
	w.put(api.EndpointSlice, sliceOf("s1", 0, 3))
	want("with less of s1", "s0:6 s1:3 s3:1")
}

// TestHeadlessHaveRoom has a namespace whose Services have more endpoints than they may: those that have
// a name by their endpoints alone have them, also where others are older.
func TestHeadlessHaveRoom(t *testing.T) {
	defer compile.SetBudget(10)()
	w := world{}
	for i, address := range []string{"None", "10.96.0.1", "None"} {
		name := fmt.Sprint("s", i)
		s := serviceOf(name, address)
		s.CreationTimestamp = metav1.Unix(int64(100-i), 0)
		w.put(api.Service, s)
		w.put(api.EndpointSlice, sliceOf(name, 0, 4))
	}
	var c compile.Compiler
	var got []string
	for _, s := range c.Compile(w.snapshot()).Services {
		got = append(got, fmt.Sprintf("%s:%d", s.Name, len(s.Endpoints)))
	}
	if got := strings.Join(got, " "); got != "s0:4 s1:0 s2:4" {
		t.Errorf("they are %s", got)
	}
}
