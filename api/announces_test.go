package api_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
)

// What a Node says that it answers for is read as it was written, and is bounded.
func TestAnnounces(t *testing.T) {
	for _, count := range []int{0, 1, api.MaxAnnounced, api.MaxAnnounced + 1, api.MaxAnswered} {
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

// What no agent writes is not believed: a few addresses and very many that are not named, more than a node has, one address
// many times.
func TestAnnouncesWrong(t *testing.T) {
	var all []netip.Addr
	for i := range api.MaxAnnounced {
		all = append(all, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	named := api.AnnouncesText(all)
	for text, test := range map[string]struct {
		count int
		wrong string
	}{
		"":                                       {0, ""},
		"192.0.2.1":                              {1, ""},
		named:                                    {256, ""},
		named + ",+3840":                         {4096, ""},
		named + ",+3841":                         {256, `for "+3841" addresses beside 256 that it names, and a node has 4096 at most`},
		named + ",+0":                            {256, "a node has 4096 at most"},
		named + ",+":                             {256, "a node has 4096 at most"},
		named + ",192.0.2.1":                     {256, "more than 256 addresses"},
		"192.0.2.1,+1":                           {1, "names 1 of 256 that it can"},
		"192.0.2.1,+60000":                       {1, "a node has 4096 at most"},
		"+7":                                     {0, "names 0 of 256"},
		strings.Repeat("192.0.2.1,", 256) + "+7": {1, "names 1 of 256"},
	} {
		n := &corev1.Node{}
		api.SetAnnounces(n, text)
		wrong := api.AnnouncesWrong(n)
		if _, more := api.Announces(n); api.AnnouncedCount(n) != test.count || (wrong == "") != (test.wrong == "") || !strings.Contains(wrong, test.wrong) || more != (test.count > 256) {
			t.Errorf("%.60q: %d addresses, more: %v, wrong: %q; want %d, %q", text, api.AnnouncedCount(n), more, wrong, test.count, test.wrong)
		}
	}
}
