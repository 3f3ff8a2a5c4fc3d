package linux

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/stamps"
)

// TestAlternatives checks that rules take devices with either's stamps for their own,
// and that nothing else of them changes.
func TestAlternatives(t *testing.T) {
	a, b := stamps.Default, OtherStamps
	group := func(s Stamps) []expr.Any { return nft.MetaEqual(expr.MetaKeyIIFGROUP, nft.HostEndian(s.Group)) }
	notGroup := func(s Stamps) []expr.Any { return nft.MetaNotEqual(expr.MetaKeyIIFGROUP, nft.HostEndian(s.Group)) }
	tunnel := func(s Stamps) []expr.Any { return nft.MetaEqual(expr.MetaKeyOIFNAME, []byte(s.TunnelPrefix)) }
	bridge := func(s Stamps) []expr.Any {
		return nft.MetaEqual(expr.MetaKeyIIFNAME, []byte(nft.InterfaceKey(s.Bridge)))
	}
	device := func(s Stamps) []expr.Any {
		return nft.MetaEqual(expr.MetaKeyOIFNAME, []byte(nft.InterfaceKey(s.TunnelPrefix+"vxlan")))
	}
	other := nft.MetaEqual(expr.MetaKeyIIFNAME, []byte(nft.InterfaceKey("lo")))
	drop := nft.Decide(nft.Accept)
	for name, test := range map[string]struct {
		rule []expr.Any
		want [][]expr.Any
	}{
		"nothing of ours":   {slices.Concat(other, drop), [][]expr.Any{slices.Concat(other, drop)}},
		"a group":           {slices.Concat(group(a), drop), [][]expr.Any{slices.Concat(group(a), drop), slices.Concat(group(b), drop)}},
		"a tunnel's device": {slices.Concat(device(a), drop), [][]expr.Any{slices.Concat(device(a), drop), slices.Concat(device(b), drop)}},
		"the bridge":        {slices.Concat(bridge(a), drop), [][]expr.Any{slices.Concat(bridge(a), drop), slices.Concat(bridge(b), drop)}},
		"another group": {slices.Concat(notGroup(a), drop), [][]expr.Any{slices.Concat(notGroup(a),
			[]expr.Any{&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: nft.HostEndian(b.Group)}}, drop)}},
		"a group, and the tunnel": {slices.Concat(group(a), other, tunnel(a), drop), [][]expr.Any{
			slices.Concat(group(a), other, tunnel(a), drop), slices.Concat(group(b), other, tunnel(a), drop),
			slices.Concat(group(a), other, tunnel(b), drop), slices.Concat(group(b), other, tunnel(b), drop)}},
	} {
		if got := alternatives(test.rule, a, b); expressions(got) != expressions(test.want) {
			t.Errorf("%s:\n%s\nexpected\n%s", name, expressions(got), expressions(test.want))
		}
	}
}

func expressions(rules [][]expr.Any) string {
	var b strings.Builder
	for _, rule := range rules {
		for _, e := range rule {
			data, err := expr.Marshal(byte(nftables.TableFamilyINet), e)
			fmt.Fprintf(&b, "%T %x %v ", e, data, err)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// TestNotTaken has a data plane that cannot take over, as somebody has its bridge's
// name, or the tunnel's packets: it says so before anything has changed, and leaves
// nothing once it is removed.
func TestNotTaken(t *testing.T) {
	for what, foreign := range map[string]netlink.Link{
		OtherStamps.Bridge: &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: OtherStamps.Bridge}, PeerName: "elsewhere"},
		"flannel.1":        &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "flannel.1"}, VxlanId: 7, Port: 8472},
	} {
		t.Run(what, func(t *testing.T) {
			b := newBench(t)
			p := mustParse(t, policedPlan)
			b.mustApply(p)
			before := b.stamped(stamps.Default)
			b.do(func() error { return b.link(foreign) })
			next := p
			if what == "flannel.1" {
				// With another network identifier, which somebody has.
				next = mustParse(t, strings.Replace(policedPlan, "vni 1", "vni 7", 1))
			}
			d, err := NewAt(b.path, Config{Stamps: OtherStamps})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if err := d.Prepare(t.Context(), next, b.DataPlane); err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "in the way") {
				t.Errorf("the error is %v; expected that %s is in the way", err, what)
			}
			if err := d.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			if present, err := d.Present(t.Context()); present || err != nil {
				t.Errorf("something is left: %v, %v", present, err)
			}
			if is := b.stamped(stamps.Default); !slices.Equal(is, before) {
				t.Errorf("the one that is there has %q; it had %q", is, before)
			}
			b.nothingToRepair()
		})
	}
}

// unknownKind is a data plane of which nothing is known.
type unknownKind struct{ datapath.DataPlane }

func (unknownKind) Name() string { return "unknown" }

// TestAnotherKind has a data plane of another kind taken over from: it is removed when
// this one is in force, and where that fails, this one has not taken over.
func TestAnotherKind(t *testing.T) {
	b := newBench(t)
	p := mustParse(t, policedPlan)
	b.mustApply(p)
	d, err := NewAt(b.path, Config{Stamps: OtherStamps})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Prepare(t.Context(), p, unknownKind{failing{b.DataPlane}}); err != nil {
		t.Fatal(err)
	}
	if err := d.Apply(t.Context(), p); !errors.Is(err, datapath.ErrNotTaken) {
		t.Errorf("the other cannot be removed, and the error is %v", err)
	}
	if err := d.Prepare(t.Context(), p, unknownKind{b.DataPlane}); err != nil {
		t.Fatal(err)
	}
	// Which of the interface's settings the other had is its own matter; it takes the
	// interface down, and this one brings it up again.
	if err := d.Apply(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if is := b.stamped(stamps.Default); len(is) > 0 {
		t.Errorf("of the other there is %q", is)
	}
	(&bench{t: t, path: b.path, DataPlane: d}).nothingToRepair()
}

// failing is a data plane that cannot be removed.
type failing struct{ datapath.DataPlane }

func (failing) Remove(ctx context.Context) error { return errors.New("device is busy") }

// TestTakenInPart has a take-over that fails where this data plane is in force and has not
// written what packets need: it says so each time, until the same call succeeds. What
// concerns a single entry is no such failure.
func TestTakenInPart(t *testing.T) {
	b := newBench(t)
	p := mustParse(t, policedPlan)
	b.mustApply(p)
	d, err := NewAt(b.path, Config{Stamps: OtherStamps})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Prepare(t.Context(), p, b.DataPlane); err != nil {
		t.Fatal(err)
	}
	unable := mustParse(t, policedPlan+"egress default any 198.51.100.0/24 via node2\n")
	if err := d.Apply(t.Context(), unable); !errors.Is(err, datapath.ErrNotTaken) || !errors.Is(err, datapath.ErrNotSupported) {
		t.Errorf("a plan is asked for that cannot be done, and the error is %v", err)
	}
	failure := errors.New("not now")
	hear(t, func(table string) error {
		if table == OtherStamps.Table {
			return failure
		}
		return nil
	})
	for range 2 {
		if err := d.Apply(t.Context(), p); !errors.Is(err, datapath.ErrNotTaken) || !errors.Is(err, failure) {
			t.Errorf("the packet filter cannot be read, and the error is %v", err)
		}
	}
	failure = nil
	foreign := &netlink.Route{Dst: ipNet(netip.MustParsePrefix("10.1.9.0/24")), Gw: ip(netip.MustParseAddr("172.30.0.9")), Protocol: unix.RTPROT_STATIC, Priority: OtherStamps.Metric + metric4}
	b.do(func() error { return netlink.RouteAdd(foreign) })
	p = mustParse(t, policedPlan+"route default 10.1.9.0/24 tunnel node2\n")
	var entry *datapath.EntryError
	for range 2 {
		if err := d.Apply(t.Context(), p); !errors.As(err, &entry) || errors.Is(err, datapath.ErrNotTaken) {
			t.Errorf("somebody has a route of the plan's, and the error is %v", err)
		}
	}
	if err := b.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if is := b.stamped(stamps.Default); len(is) > 0 {
		t.Errorf("of the other there is %q", is)
	}
	b.do(func() error { return netlink.RouteDel(foreign) })
	if err := d.Apply(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	(&bench{t: t, path: b.path, DataPlane: d}).nothingToRepair()
}
