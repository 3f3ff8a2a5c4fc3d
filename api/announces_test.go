package api_test

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
)

// What a Node says that it answers for is read as it was written, and is bounded.
func TestAnnounces(t *testing.T) {
	for _, count := range []int{0, 1, api.MaxAnnounced, api.MaxAnnounced + 1, 5000} {
		var all []netip.Addr
		for i := range count {
			all = append(all, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
		}
		n := &corev1.Node{}
		text := api.AnnouncesText(all)
		if changed := api.SetAnnounces(n, text); changed != (count > 0) {
			t.Errorf("%d addresses change the Node: %v", count, changed)
		}
		if api.SetAnnounces(n, text) {
			t.Errorf("%d addresses change the Node twice", count)
		}
		got, more := api.Announces(n)
		if !slices.Equal(got, all[:min(count, api.MaxAnnounced)]) || more != (count > api.MaxAnnounced) {
			t.Errorf("of %d addresses %d are read, more: %v", count, len(got), more)
		}
		if counted := api.AnnouncedCount(n); counted != count {
			t.Errorf("%d addresses are counted as %d", count, counted)
		}
		if len(text) > 5000 {
			t.Errorf("%d addresses take %d bytes", count, len(text))
		}
		api.SetAnnounces(n, "")
		if len(n.Annotations) > 0 {
			t.Error("the annotation stays")
		}
	}
}
