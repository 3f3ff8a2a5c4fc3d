package agent

import (
	"strings"
	"testing"

	"github.com/weftnet/weft/datapath"
)

func TestOvercrowded(t *testing.T) {
	share := func(names ...string) (all []datapath.Share) {
		for _, n := range names {
			all = append(all, datapath.Share{Interface: "weft" + n, Name: n, Connections: 300})
		}
		return all
	}
	for _, c := range []struct {
		what string
		o    datapath.Occupancy
		want string
	}{
		{"nothing is tracked", datapath.Occupancy{}, ""},
		{"there is no limit", datapath.Occupancy{Connections: 5}, ""},
		{"there is room", datapath.Occupancy{Connections: 900, MaxConnections: 1000}, ""},
		{"it is full of everybody's", datapath.Occupancy{Connections: 901, MaxConnections: 1000}, "no pod has begun more than a quarter of them: many have together"},
		{"of what leads to one", datapath.Occupancy{Connections: 901, MaxConnections: 1000, Crowded: share("shop/web")}, "more than a quarter lead to shop/web: see who uses it; raise"},
		{"there is room, and one is popular", datapath.Occupancy{Connections: 900, MaxConnections: 1000, Crowded: share("shop/web")}, ""},
		{"of one's", datapath.Occupancy{Connections: 500, MaxConnections: 1000, Over: share("shop/web")}, "shop/web has begun more than a quarter"},
		{"of many", datapath.Occupancy{Connections: 950, MaxConnections: 1000, Over: share("a", "b", "c", "d")}, "a, b, c and 1 more has"},
	} {
		got := overcrowded(c.o)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}
