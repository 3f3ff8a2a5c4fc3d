package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/cni/protocol"
	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/podlink"
)

// refusing is a node that refuses some plans, as one by which it has no subnet: what it
// holds stays what it is. The first that it is asked for has the number 1.
type refusing struct {
	Node
	refused func(n int) bool
	asked   int
}

var errRefused = errors.New("plan not loaded")

func (r *refusing) Publish(ctx context.Context, interfaces ...string) error {
	if r.asked++; r.refused(r.asked) {
		return errRefused
	}
	return r.Node.Publish(ctx, interfaces...)
}

// openJournal returns a journal that lives as long as the test.
func openJournal(t *testing.T) *ipam.Journal {
	t.Helper()
	journal, err := ipam.Open(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { journal.Close() })
	return journal
}

// TestAnInterfaceMadeAnewIsBroughtUp makes a pod's interface anew under its name and with its
// address, in each way, on a node that refuses one of the plans meanwhile. A data plane that
// is told the same as before looks at nothing. So an ADD succeeds only behind a plan without
// the interface, and says that this was refused where it was.
func TestAnInterfaceMadeAnewIsBroughtUp(t *testing.T) {
	needRoot(t)
	key := ipam.Key{ContainerID: "c1", IfName: "eth0"}
	name := podlink.HostName(key.ContainerID, key.IfName)
	unplug := func(*Server) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	}
	hear := func(s *Server) error {
		s.vanished(func(k ipam.Key, _ int) bool { return k == key })
		return nil
	}
	del := func(s *Server) error {
		if failure := s.del(key); failure != nil {
			return failure
		}
		return nil
	}
	for what, steps := range map[string][]func(*Server) error{
		"DEL":                       {del},
		"somebody deletes it":       {unplug},
		"the server hears of that":  {unplug, hear},
		"DEL comes for it":          {unplug, del},
		"DEL comes when it is told": {unplug, hear, del},
	} {
		for refused := range 4 {
			t.Run(fmt.Sprintf("%s, plan %d is refused", what, refused), func(t *testing.T) {
				pod := newNetNS(t)
				plane := &hostRoutes{settings: settings{Dir: t.TempDir(), Pools: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/30")}}}
				node := &refusing{Node: plane, refused: func(int) bool { return false }}
				s := NewServer(Config{Journal: openJournal(t), Node: node, Log: slog.New(slog.DiscardHandler)})
				plane.server = s
				add := func(id string) error {
					c := &call{id: id, command: protocol.Add, version: "1.1.0", key: key, netns: pod, configuration: "weft", network: plan.DefaultNetwork}
					if _, failure := s.do(t.Context(), c, func() bool { return false }); failure != nil {
						return failure
					}
					return checkUp(name, "10.1.0.2")
				}
				if err := netns.Do(newNetNS(t), func() error {
					if err := add("one"); err != nil {
						return err
					}
					node.asked, node.refused = 0, func(n int) bool { return n == refused }
					for _, step := range steps {
						if err := step(s); err != nil {
							return err
						}
					}
					err := add("one")
					var failure *protocol.Error
					if !errors.As(err, &failure) {
						return err
					}
					if known, ok := s.Journal.Get(key); ok || failure.Code != protocol.DataPlaneFailure || failure.Details != errRefused.Error() {
						return fmt.Errorf("where the plan is refused ADD says %v, and leaves %v", failure, known)
					}
					return add("two")
				}); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// checkUp says what keeps packets from an interface.
func checkUp(name, address string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("ADD succeeded, and %s is down", name)
	}
	dst := &net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(32, 32)}
	routes, err := netlink.RouteListFiltered(unix.AF_INET, &netlink.Route{Dst: dst, LinkIndex: link.Attrs().Index}, netlink.RT_FILTER_DST|netlink.RT_FILTER_OIF)
	if err == nil && len(routes) == 0 {
		err = fmt.Errorf("ADD succeeded, and no route leads to %s", name)
	}
	return err
}

// TestWhatWentIsRememberedUntilItIsLetGo has pods go while the node refuses plans. Once it
// takes one, nothing is left to remember of them.
func TestWhatWentIsRememberedUntilItIsLetGo(t *testing.T) {
	const pods = 100
	refuses := true
	s := NewServer(Config{Journal: openJournal(t), Log: slog.New(slog.DiscardHandler),
		Node: &refusing{Node: nothing{}, refused: func(int) bool { return refuses }}})
	for i := range pods {
		s.setLink(ipam.Key{ContainerID: fmt.Sprint("c", i), IfName: "eth0"}, i+1)
	}
	s.vanished(func(_ ipam.Key, index int) bool { return index <= pods/2 })
	if err := s.letGo(t.Context()); err == nil || len(s.leaving) != pods/2 {
		t.Errorf("while plans are refused %d are remembered, of %d that went; %v", len(s.leaving), pods/2, err)
	}
	refuses = false
	s.vanished(func(ipam.Key, int) bool { return true })
	if err := s.letGo(t.Context()); err != nil || len(s.leaving) != 0 {
		t.Errorf("%d are remembered of which the data plane knows nothing any more; %v", len(s.leaving), err)
	}
}
