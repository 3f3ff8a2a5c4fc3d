package derived

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// domain is what is made of a DomainName, of one without addresses nothing.
type domain struct {
	name      string
	addresses []string
}

func read(o registry.Object, before *domain) *domain {
	d := o.(*api.DomainName)
	switch {
	case len(d.Addresses) == 0:
		return nil
	case before != nil && slices.Equal(before.addresses, d.Addresses):
		return before
	}
	return &domain{d.Name, d.Addresses}
}

// TestList changes objects at random: what is derived step by step is what is
// derived at once, and what did not change stays the same pointer.
func TestList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		objects := map[string]*api.DomainName{}
		var d List[*domain]
		backwards := func(a, b *domain) int { return strings.Compare(b.name, a.name) }
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			for range rapid.IntRange(0, 5).Draw(t, "changes") {
				name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "name")
				if rapid.Bool().Draw(t, "gone") {
					delete(objects, name)
					continue
				}
				objects[name] = &api.DomainName{ObjectMeta: metav1.ObjectMeta{Name: name},
					Addresses: rapid.SampledFrom([][]string{nil, {"10.0.0.1"}, {"10.0.0.2"}}).Draw(t, "addresses")}
			}
			var list []registry.Object
			for _, o := range objects {
				list = append(list, o)
			}
			s := registry.NewSnapshot(map[*registry.Kind][]registry.Object{api.DomainNameKind: list})
			before := map[string]*domain{}
			for _, v := range d.All() {
				before[v.name] = v
			}
			was := d.All()
			gone, came := d.Update(s.All(api.DomainNameKind), read, backwards)
			var fresh List[*domain]
			fresh.Update(s.All(api.DomainNameKind), read, backwards)
			same := func(a, b *domain) bool { return a.name == b.name && slices.Equal(a.addresses, b.addresses) }
			if !slices.EqualFunc(fresh.All(), d.All(), same) {
				t.Fatalf("at once %v, step by step %v", fresh.All(), d.All())
			}
			for _, v := range d.All() {
				if b := before[v.name]; b != nil && slices.Equal(b.addresses, v.addresses) != (b == v) {
					t.Fatalf("%s was %v and is %v, the same: %t", v.name, b.addresses, v.addresses, b == v)
				}
			}
			if len(was)-len(gone)+len(came) != len(d.All()) {
				t.Fatalf("of %d went %d and came %d, and %d are there", len(was), len(gone), len(came), len(d.All()))
			}
		}
	})
}
