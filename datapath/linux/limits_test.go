package linux

import (
	"testing"
	"time"

	"github.com/google/nftables/expr"

	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/plan"
)

// TestBeginningsFollowTheTable checks that who is counted when he has just not
// too many connections, and has not begun any at once before, takes so long to
// fill the table, of whatever size, that the next count is before that on a machine
// that is very busy.
func TestBeginningsFollowTheTable(t *testing.T) {
	const late = 15 // seconds
	p, err := plan.Parse(`node node1 addresses 172.30.0.2 mtu 1450
pool default 10.1.1.0/24 gateway 10.1.1.1
endpoint a network default addresses 10.1.1.2 mac 0a:58:0a:01:01:02
route default 10.1.1.2/32 endpoint a
egress default any 0.0.0.0/0 masquerade
`)
	if err != nil {
		t.Fatal(err)
	}
	c := compileFor(t, p)
	for _, most := range []int{1, 65_536, usualConnections, 4 << 20} {
		var limit *expr.Limit
		for _, rule := range compileRuleset(stamps.Default, p, c.sourcesOf(), most, true).Chains["beginnings"].Rules {
			for _, e := range rule.Exprs {
				if d, ok := e.(*expr.Dynset); ok {
					limit = d.Exprs[0].(*expr.Limit)
				}
			}
		}
		switch {
		case limit == nil:
			t.Errorf("of %d connections, an endpoint may begin any number in a second", most)
		case limit.Rate == 0 || limit.Burst == 0:
			t.Errorf("of %d connections, an endpoint may begin none", most)
		case most > late && most/tooManyOf+int(limit.Burst)+late*int(limit.Rate) > most:
			t.Errorf("of %d connections, an endpoint may begin %d at once and %d in a second, and so fill the table in less than %d seconds", most, limit.Burst, limit.Rate, late)
		}
	}
}

// TestHopsLeaveRoom checks that an endpoint that looks for as many machines as it
// may, and sends to all that count as known again and again, leaves room in the
// kernel's table, also where each is in it twice.
func TestHopsLeaveRoom(t *testing.T) {
	known := hopBurst + hopRate*int((hopTimeout+neighbourTimeout)/time.Second)
	if 2*known > mostNeighbours-mostNeighbours/8 {
		t.Errorf("an endpoint keeps %d neighbours alive at a time, of %d", known, mostNeighbours)
	}
}
