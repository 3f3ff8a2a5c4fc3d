package cluster

import (
	"testing"

	"github.com/weftnet/weft/lab"
)

// TestOneEtcdUnderSeveral has several controllers on an etcd with one member.
// What one machine's loss would cost is said as long as the others suggest that it
// costs nothing.
func TestOneEtcdUnderSeveral(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 1, Controllers: 2})
	c.wantStatus(1, "etcd: it has one member, weft, under 2 controllers (controller1, controller2): who loses that machine loses the registry; run three members")
	if err := c.lab.Kill("controller2"); err != nil {
		t.Fatal(err)
	}
	c.wantStatus(0, "No problems.")
}
