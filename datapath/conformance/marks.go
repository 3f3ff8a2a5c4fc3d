package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
)

// marks checks that others' marks and priorities of packets are not taken for tags, and
// that no tag is among what others take for marks of theirs, as rules that route by them.
func (s *suite) marks(t *testing.T) {
	for _, ipv4 := range []bool{true, false} {
		b := s.newTagBench(t, 0, plan.MaxVNI, ipv4)
		b.listen(b.server.host, service{plan.UDP, sourcePort})
		answered := func(name string, family int, within time.Duration) bool {
			from := b.nodes["node2"].pods[name]
			c, err := from.dial("udp", from.addresses[family], netip.AddrPortFrom(b.server.addresses[family], sourcePort), within)
			must(t, err)
			defer c.Close()
			word, _ := b.expect()
			_, err = c.Write([]byte(word))
			must(t, err)
			must(t, c.SetReadDeadline(time.Now().Add(within)))
			_, err = c.Read(make([]byte, 100))
			return err == nil
		}
		seen, port := b.listenTo(t, "node2"), b.plans["node2"].Local.Tunnels[0].Port
		for _, n := range []*node{b.node, b.nodes["node2"]} {
			must(t, n.Do(func() error { return somebodysMarks(dropMarked) }))
		}
		for family := range 2 {
			if !answered("five", family, patience) {
				t.Errorf("what wears tag 5 is not answered where somebody drops what has a mark (over IPv4: %t)", ipv4)
			}
		}
		for _, n := range []*node{b.node, b.nodes["node2"]} {
			must(t, n.Do(func() error { return loseMarked(true) }))
		}
		for family := range 2 {
			if !answered("five", family, patience) {
				t.Errorf("what wears tag 5 is not answered where what has a mark is routed to nowhere (over IPv4: %t)", ipv4)
			}
		}
		for _, n := range []*node{b.node, b.nodes["node2"]} {
			must(t, n.Do(func() error { return loseMarked(false) }))
		}
		for _, mark := range []uint32{5, 5 << 8, 5<<24 | 1, 1<<24 | 5, 5 << 16, 1<<32 - 1} {
			for _, n := range []*node{b.node, b.nodes["node2"]} {
				must(t, n.Do(func() error { return somebodysMarks(setMarkAndPriority(mark)) }))
			}
			for family := range 2 {
				b.sendsAs(t, seen, "the node itself", b.nodes["node2"].host, netip.Addr{}, b.node.pods["untagged"].addresses[family], port, 0)
				if answered("six", family, disappointment) {
					t.Errorf("what wears tag 6 is answered where somebody marks all packets with %#x (over IPv4: %t)", mark, ipv4)
				}
				if !answered("five", family, patience) {
					t.Errorf("what wears tag 5 is not answered where somebody marks all packets with %#x (over IPv4: %t)", mark, ipv4)
				}
			}
		}
	}
}

// somebodysMarks replaces somebody's table that does something about marks wherever
// packet filters usually do.
func somebodysMarks(rule []expr.Any) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	t := conn.AddTable(&nftables.Table{Name: "somebody", Family: nftables.TableFamilyINet})
	conn.DelTable(t)
	conn.AddTable(t)
	for _, place := range []struct {
		hook     *nftables.ChainHook
		priority *nftables.ChainPriority
	}{
		{nftables.ChainHookPrerouting, nftables.ChainPriorityMangle}, {nftables.ChainHookInput, nftables.ChainPriorityFilter},
		{nftables.ChainHookForward, nftables.ChainPriorityFilter}, {nftables.ChainHookOutput, nftables.ChainPriorityFilter},
		{nftables.ChainHookPostrouting, nftables.ChainPriorityMangle},
	} {
		c := conn.AddChain(&nftables.Chain{Table: t, Name: fmt.Sprintf("hook-%d", *place.hook), Type: nftables.ChainTypeFilter, Hooknum: place.hook, Priority: place.priority})
		conn.AddRule(&nftables.Rule{Table: t, Chain: c, Exprs: rule})
	}
	return conn.Flush()
}

var dropMarked = []expr.Any{
	&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	&expr.Verdict{Kind: expr.VerdictDrop},
}

func setMarkAndPriority(mark uint32) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: binary.NativeEndian.AppendUint32(nil, mark)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: 1, SourceRegister: true},
	}
}

// loseMarked adds somebody's routing rules by which what has any bit of a mark leads
// nowhere, or takes them away again.
func loseMarked(add bool) error {
	const table = 4711
	var errs []error
	change := func(do, undo func() error) {
		if add {
			errs = append(errs, do())
		} else {
			errs = append(errs, undo())
		}
	}
	for _, everything := range []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")} {
		family := netlink.FAMILY_V4
		if everything.Addr().Is6() {
			family = netlink.FAMILY_V6
		}
		route := &netlink.Route{Dst: ipNet(everything), Table: table, Type: unix.RTN_UNREACHABLE}
		change(func() error { return netlink.RouteAdd(route) }, func() error { return netlink.RouteDel(route) })
		for bit := range 32 {
			mask := uint32(1) << bit
			rule := netlink.NewRule()
			rule.Family, rule.Priority, rule.Table, rule.Mark, rule.Mask = family, 100+bit, table, mask, &mask
			change(func() error { return netlink.RuleAdd(rule) }, func() error { return netlink.RuleDel(rule) })
		}
	}
	return errors.Join(errs...)
}

// othersNetworks checks that somebody's VXLAN network on the tunnel's port, whose
// identifier is none of the node's own, keeps that, whatever marks and priorities its
// packets have.
func (s *suite) othersNetworks(t *testing.T) {
	const vni = 200
	for _, ipv4 := range []bool{true, false} {
		b := s.newTagBench(t, 0, 100, ipv4)
		n, seen := b.nodes["node2"], b.listenTo(t, "node2")
		own, to := b.plans["node2"].Local.Tunnels[0], b.plans["node1"].Local.Tunnels[0]
		far := netip.MustParseAddr("192.0.2.1")
		must(t, n.Do(func() error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.MTU = "others", 1300
			if err := errors.Join(netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, VxlanId: vni, Port: int(own.Port),
				SrcAddr: own.VTEP.AsSlice(), Group: to.VTEP.AsSlice()}), setUp("others")); err != nil {
				return err
			}
			l, err := netlink.LinkByName("others")
			if err != nil {
				return err
			}
			return errors.Join(addAddress("others", netip.MustParsePrefix("192.0.2.2/24")),
				netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, HardwareAddr: to.MAC[:], IP: far.AsSlice()}))
		}))
		for _, mark := range []uint32{0, 5 << 8, 5 << 16, 1<<24 | 5<<16, 1<<32 - 1} {
			must(t, n.Do(func() error { return somebodysMarks(setMarkAndPriority(mark)) }))
			c, err := n.dial("udp", netip.Addr{}, netip.AddrPortFrom(far, sourcePort), patience)
			must(t, err)
			word, _ := b.expect()
			_, err = c.Write([]byte(word))
			must(t, err)
			must(t, c.Close())
			if is, ok := seen.of(word, own.Port); !ok || is != vni {
				t.Errorf("a packet with mark and priority %#x of somebody's network %d has identifier %d on the wire (seen: %t)", mark, vni, is, ok)
			}
		}
	}
}
