package lab

import (
	"fmt"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"

	"github.com/weftnet/weft/internal/netns"
)

// TestTheWorldOutsideKeepsItsAddress has machines come and go, which remember where the world outside is on the link.
func TestTheWorldOutsideKeepsItsAddress(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	d := t.TempDir()
	l := &Lab{dir: dir(d), options: Options{Nodes: 3, MTU: 1500, IPv6: true}}
	if err := os.MkdirAll(l.dir.namespaces(), 0o755); err != nil {
		t.Fatal(err)
	}
	machines := []machine{nodeMachine(1), nodeMachine(2), nodeMachine(3)}
	if err := l.makeSwitch(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, m := range append(machines, switchMachine) {
			if err := releaseFile(l.dir.network(m.name)); err != nil {
				t.Error(err)
			}
		}
	})
	is := func(what string) {
		t.Helper()
		err := netns.Netlink(l.dir.network(switchName), func(h *netlink.Handle, _ vnetns.NsHandle) error {
			bridge, err := h.LinkByName(bridgeName)
			if err != nil {
				return err
			}
			ports, err := h.LinkList()
			if err != nil {
				return err
			}
			ports = slices.DeleteFunc(ports, func(p netlink.Link) bool { return p.Attrs().MasterIndex != bridge.Attrs().Index })
			if got, want := bridge.Attrs().HardwareAddr, switchMachine.mac(); got.String() != want.String() {
				return fmt.Errorf("with the ports %v it is %s, not %s", addressesOf(ports), got, want)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	is("no machine")
	for _, m := range machines {
		if err := l.plugIn(m); err != nil {
			t.Fatal(err)
		}
		is(m.name + " came")
	}
	for _, m := range machines {
		if err := releaseFile(l.dir.network(m.name)); err != nil {
			t.Fatal(err)
		}
		is(m.name + " went")
		if err := l.plugIn(m); err != nil {
			t.Fatal(err)
		}
		is(m.name + " came again")
	}
}

func addressesOf(links []netlink.Link) (all []net.HardwareAddr) {
	for _, l := range links {
		all = append(all, l.Attrs().HardwareAddr)
	}
	return all
}
