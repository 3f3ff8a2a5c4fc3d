package rtnl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/message"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/plan"
)

// Bytes that VXLAN (RFC 7348, section 5) puts in front of an inner packet: the
// outer IP header, UDP, VXLAN and the inner Ethernet header.
const (
	overhead4 = 20 + 8 + 8 + 14
	overhead6 = 40 + 8 + 8 + 14
)

// OverheadOver is what VXLAN puts in front of a packet to a VTEP, in bytes.
func OverheadOver(vtep netip.Addr) int {
	if vtep.Is4() {
		return overhead4
	}
	return overhead6
}

// Links is what interfaces there are.
type Links struct {
	stamps stamps.Stamps
	All    []netlink.Link
	ByName map[string]netlink.Link
	// Misnamed are those that cannot have their names, by these.
	Misnamed map[string]Misnamed
}

// Endpoint returns the interface of an endpoint by its name. One whose alias says that it
// is another's is none.
func (i *Links) Endpoint(name string) (netlink.Link, bool) {
	l, ok := i.ByName[name]
	return l, ok && MayBe(l, name) && !i.taken(name)
}

// taken reports whether another's interface has the name of one that ought to have it.
func (i *Links) taken(name string) bool {
	m, misnamed := i.Misnamed[name]
	return misnamed && !m.Copy
}

// MayBe reports whether an interface of a name is what ought to have that name, as far as
// it says itself.
func MayBe(l netlink.Link, name string) bool {
	right := Whose(l)
	return right == "" || right == name
}

// List returns what interfaces there are.
func (k *Kernel) List() (*Links, error) {
	links, err := message.Dump(k.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	inv := &Links{stamps: k.stamps, All: links, ByName: make(map[string]netlink.Link, len(links))}
	for _, l := range links {
		inv.ByName[l.Attrs().Name] = l
	}
	return inv, nil
}

// Index returns that of an interface, or 0.
func (i *Links) Index(name string) int {
	if l, ok := i.ByName[name]; ok {
		return l.Attrs().Index
	}
	return 0
}

// ByIndex returns the interface of an index, or nil.
func (i *Links) ByIndex(index int) netlink.Link {
	for _, l := range i.All {
		if l.Attrs().Index == index {
			return l
		}
	}
	return nil
}

// vxlanSpec is what cannot be changed about a VXLAN device once it is made.
type vxlanSpec struct {
	vni      uint32
	port     uint16
	local    netip.Addr
	learning bool
	external bool
	checksum bool
	lower    int
	group    netip.Addr
}

func specOf(v *netlink.Vxlan) vxlanSpec {
	return vxlanSpec{vni: uint32(v.VxlanId), port: uint16(v.Port), local: addrOf(v.SrcAddr), learning: v.Learning,
		external: v.FlowBased, checksum: v.UDPCSum, lower: v.VtepDevIndex, group: addrOf(v.Group)}
}

// Overlay is the node's end of a tunnel, and the network identifiers of what it takes
// there, as there is one network. The tunnel's device has the first; the others carry
// tags.
type Overlay struct {
	plan.Tunnel
	VNI, LastVNI uint32
	// Device is the name of its device.
	Device string
}

// Overlays returns those of a plan in the order of their names, whichever the node
// prefers.
func Overlays(s stamps.Stamps, p *plan.Plan) []Overlay {
	var all []Overlay
	for _, t := range p.Local.Tunnels {
		n, _ := p.Networks.Get(plan.NetworkKey{Name: plan.DefaultNetwork, Tunnel: t.Name})
		all = append(all, Overlay{t, n.FirstVNI, n.LastVNI, s.TunnelPrefix + t.Name})
	}
	slices.SortFunc(all, func(a, b Overlay) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// specFor is the device of a tunnel. It is bound to no underlay device, so
// that the node's routing table picks one for each peer. It learns nothing
// and floods nothing. Outer checksums are on, as with iproute2: the sender
// derives them from the inner one (local checksum offload), and the receiver
// can then merge packets of a stream (GRO) without computing the inner one.
func specFor(t Overlay) vxlanSpec {
	return vxlanSpec{vni: t.VNI, port: t.Port, local: t.VTEP, checksum: true}
}

// Own returns Weft's device of a name, if it is of the kind that Weft makes.
func (i *Links) Own(name, kind string) (netlink.Link, bool) {
	l, ok := i.ByName[name]
	return l, ok && l.Type() == kind && !i.taken(name)
}

// OwnTunnels are Weft's devices of tunnels, by the names of these.
func (i *Links) OwnTunnels() map[string]netlink.Link {
	own := map[string]netlink.Link{}
	for _, l := range i.All {
		if name, ok := strings.CutPrefix(l.Attrs().Name, i.stamps.TunnelPrefix); ok && l.Type() == VXLANKind && !i.taken(l.Attrs().Name) {
			own[name] = l
		}
	}
	return own
}

// OwnLinks are the indexes of Weft's own devices, in order.
func (i *Links) OwnLinks() []int {
	var own []int
	if l, ok := i.Own(i.stamps.Bridge, BridgeKind); ok {
		own = append(own, l.Attrs().Index)
	}
	own = append(own, i.TunnelLinks()...)
	slices.Sort(own)
	return own
}

// TunnelLinks are the indexes of the devices of tunnels.
func (i *Links) TunnelLinks() []int {
	var own []int
	for _, l := range i.OwnTunnels() {
		own = append(own, l.Attrs().Index)
	}
	return own
}

// The kinds of Weft's devices.
const (
	BridgeKind = "bridge"
	VXLANKind  = "vxlan"
)

// CheckName reports that another's device has the name of one of Weft's.
func CheckName(inv *Links, name, kind string) error {
	if inv.taken(name) {
		return fmt.Errorf("interface %s: %w", name, inv.Misnamed[name].Problem(name))
	}
	if l, ok := inv.ByName[name]; ok && l.Type() != kind {
		return fmt.Errorf("interface %s is in the way: Weft needs the name for a %s device, and it is a %s; delete it (ip link del %s) or rename it", name, kind, l.Type(), name)
	}
	return nil
}

// CheckTunnel reports another's device that receives what the tunnel should. The tunnel's own
// that cannot have its name is none. A copy, which only claims to be the tunnel's, is one.
func CheckTunnel(inv *Links, t Overlay) error {
	m, misnamed := inv.Misnamed[t.Device]
	for _, l := range inv.All {
		v, ok := l.(*netlink.Vxlan)
		if !ok || strings.HasPrefix(v.Name, inv.stamps.TunnelPrefix) || v.Port != int(t.Port) || misnamed && !m.Copy && v.Index == m.Index {
			continue
		}
		if v.FlowBased || int(t.VNI) <= v.VxlanId && v.VxlanId <= int(t.LastVNI) {
			return fmt.Errorf("interface %s is in the way: it receives VNI %d on UDP port %d already; stop what made it and delete it (ip link del %s)",
				v.Name, max(v.VxlanId, int(t.VNI)), t.Port, v.Name)
		}
	}
	return nil
}

// VXLANMTU returns what the VXLAN device may carry on the link of its VTEP.
func VXLANMTU(inv *Links, n *Node, t Overlay) (int, error) {
	lower := inv.ByIndex(n.Holding(t.VTEP))
	if lower == nil {
		return 0, fmt.Errorf("tunnel: no interface has the VTEP address %s", t.VTEP)
	}
	return lower.Attrs().MTU - OverheadOver(t.VTEP), nil
}

// EnsureBridge makes the device that holds the pools' gateways. It has no
// ports: it stands in for a dummy device, which not all kernels have.
func (k *Kernel) EnsureBridge(inv *Links, p *plan.Plan, ipv4, ipv6 bool) error {
	mac := plan.MACOf(p.Local.Pools[0].Gateway)
	l, ok := inv.ByName[k.stamps.Bridge]
	if !ok {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = k.stamps.Bridge, mac[:]
		if err := k.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("add bridge %s: %w", k.stamps.Bridge, noModule(err, "bridge"))
		}
		k.record("add bridge %s", k.stamps.Bridge)
		var err error
		if l, err = k.LinkByName(k.stamps.Bridge); err != nil {
			return fmt.Errorf("find bridge %s: %w", k.stamps.Bridge, err)
		}
	}
	if ok && plan.MAC(l.Attrs().HardwareAddr) != mac {
		if err := k.setMAC(l, mac); err != nil {
			return err
		}
	}
	if err := errors.Join(k.setAlias(l, k.stamps.Bridge), k.ownDeviceSettings(l.Attrs().Index, ipv4, ipv6)); err != nil || l.Attrs().Flags&net.FlagUp != 0 {
		return err
	}
	return k.SetUp(l)
}

// WasBridge reports whether an interface of the calling thread's network namespace is as the
// device that holds a plan's gateways: a bridge with its MAC address, and without ports.
func WasBridge(link int, p *plan.Plan) bool {
	links, err := message.Dump(netlink.LinkList)
	if err != nil || len(p.Local.Pools) == 0 {
		return false
	}
	mac := plan.MACOf(p.Local.Pools[0].Gateway)
	is := false
	for _, l := range links {
		if l.Attrs().MasterIndex == link {
			return false
		}
		is = is || l.Attrs().Index == link && isBridge(l, mac)
	}
	return is
}

func isBridge(l netlink.Link, mac plan.MAC) bool {
	return l.Type() == BridgeKind && slices.Equal(l.Attrs().HardwareAddr, mac[:])
}

// EnsureVXLAN makes a tunnel's device, anew if it differs in what cannot be
// changed. A new one is down: whoever guards what comes out of it brings it up then
// (see SetUp).
func (k *Kernel) EnsureVXLAN(inv *Links, t Overlay, mtu int, ipv4, ipv6 bool) error {
	l, ok := inv.ByName[t.Device]
	if ok {
		if v := l.(*netlink.Vxlan); specOf(v) != specFor(t) {
			if err := k.DeleteLink(l); err != nil {
				return err
			}
			ok = false
		}
	}
	if !ok {
		if err := k.clear(inv, t); err != nil {
			return err
		}
		var err error
		if l, err = k.addVXLAN(t, mtu); err != nil {
			return err
		}
	}
	if plan.MAC(l.Attrs().HardwareAddr) != t.MAC {
		if err := k.setMAC(l, t.MAC); err != nil {
			return err
		}
	}
	if l.Attrs().MTU != mtu {
		if err := k.LinkSetMTU(l, mtu); err != nil {
			return fmt.Errorf("set MTU %d of %s: %w", mtu, t.Device, err)
		}
		k.record("set MTU %d of %s, it was %d", mtu, t.Device, l.Attrs().MTU)
	}
	return errors.Join(k.setAlias(l, t.Device), k.ownDeviceSettings(l.Attrs().Index, ipv4, ipv6))
}

// clear deletes another device of Weft's that receives what a tunnel is to: one of
// an earlier name, or one whose own tunnel is another now.
func (k *Kernel) clear(inv *Links, t Overlay) error {
	for name, l := range inv.OwnTunnels() {
		if v, ok := l.(*netlink.Vxlan); ok && name != t.Name && v.VxlanId == int(t.VNI) && v.Port == int(t.Port) && addrOf(v.SrcAddr).Is4() == t.VTEP.Is4() {
			if err := k.DeleteLink(l); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k *Kernel) addVXLAN(t Overlay, mtu int) (netlink.Link, error) {
	spec := specFor(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = t.Device, mtu, net.HardwareAddr(t.MAC[:])
	device := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: int(spec.vni), Port: int(spec.port), SrcAddr: ip(spec.local), UDPCSum: spec.checksum}
	if err := k.LinkAdd(device); err != nil {
		if errors.Is(err, unix.EEXIST) {
			// The kernel asks where a device was made, and not where it is.
			return nil, fmt.Errorf("add %s: a device that was made in this network namespace and is in another one now receives VNI %d on UDP port %d, %s itself if somebody moved it; "+
				"find it in the others (ip netns exec NAME ip -d link show type vxlan; nsenter -n -t PID for those without a name) and delete it there, or end what runs there: %w",
				t.Device, spec.vni, spec.port, t.Device, err)
		}
		return nil, fmt.Errorf("add %s: %w", t.Device, noModule(err, "vxlan"))
	}
	k.record("add VXLAN device %s: VNI %d, UDP port %d, VTEP %s", t.Device, spec.vni, spec.port, spec.local)
	l, err := k.LinkByName(t.Device)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", t.Device, err)
	}
	return l, nil
}

// noModule says what to do where the kernel does not know a kind of device.
func noModule(err error, kind string) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: this kernel has no %s devices; load the module (modprobe %s), or boot a kernel that has it", err, kind, kind)
	}
	return err
}

func (k *Kernel) setMAC(l netlink.Link, mac plan.MAC) error {
	if err := k.LinkSetHardwareAddr(l, net.HardwareAddr(mac[:])); err != nil {
		return fmt.Errorf("set MAC %s of %s: %w", mac, l.Attrs().Name, err)
	}
	k.record("set MAC %s of %s", mac, l.Attrs().Name)
	return nil
}

// setAlias has a device say that it is the one of Weft's that ought to have a name.
func (k *Kernel) setAlias(l netlink.Link, name string) error {
	if Whose(l) == name {
		return nil
	}
	if err := k.LinkSetAlias(l, deviceAlias+name); err != nil {
		return fmt.Errorf("set the alias %q of %s: %w", deviceAlias+name, l.Attrs().Name, err)
	}
	k.record("set the alias %q of %s", deviceAlias+name, l.Attrs().Name)
	return nil
}

// setDown takes an interface down, unless it is gone.
func (k *Kernel) setDown(l netlink.Link) error {
	if err := k.LinkSetDown(l); err != nil && !Gone(err) {
		return fmt.Errorf("set %s down: %w", l.Attrs().Name, err)
	}
	k.record("set %s down", l.Attrs().Name)
	return nil
}

// SetUp brings an interface up.
func (k *Kernel) SetUp(l netlink.Link) error {
	if err := k.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", l.Attrs().Name, err)
	}
	k.record("set %s up", l.Attrs().Name)
	return nil
}

// DeleteLink deletes a device, unless it is gone.
func (k *Kernel) DeleteLink(l netlink.Link) error {
	if err := k.LinkDel(l); err != nil && !Gone(err) {
		return fmt.Errorf("delete %s: %w", l.Attrs().Name, err)
	}
	k.record("delete %s", l.Attrs().Name)
	return nil
}
