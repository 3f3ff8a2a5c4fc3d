package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// tags checks that tags travel in the tunnel's network identifiers, as the
// interpreter says, whoever sends them and whoever believes them.
func (s *suite) tags(t *testing.T) {
	if !s.able.Tags {
		t.Log("left out: tags, as the data plane sends none through tunnels; it hears what others send")
		t.Run("who lies", s.liars)
		return
	}
	if !s.able.OverlappingNetworks {
		t.Log("left out: several networks in a tunnel, as the data plane has one")
	}
	t.Run("clusters", s.taggedClusters)
	t.Run("on the wire", s.wire)
	for _, ipv4 := range []bool{true, false} {
		t.Run("a foreign end"+map[bool]string{true: "", false: " over IPv6"}[ipv4], func(t *testing.T) { s.foreignEnd(t, ipv4) })
	}
	t.Run("who lies", s.liars)
	t.Run("the first packet", s.firstTag)
	t.Run("of no connection", s.untracked)
	t.Run("who was a peer", s.formerPeer)
	t.Run("others' marks", s.marks)
	t.Run("others' networks", s.othersNetworks)
	t.Run("turned on and off", s.beliefs)
	t.Run("of what began before", s.before)
	t.Run("changed", s.retagged)
}

// taggedClusters loads random clusters with tags in tunnels, and others with other
// beliefs on the same nodes while they run.
func (s *suite) taggedClusters(t *testing.T) {
	count, seed := number(t, "WEFT_CONFORMANCE_CLUSTERS", defaultClusters), number(t, "WEFT_CONFORMANCE_SEED", defaultSeed)
	for i := range count {
		t.Run(strconv.Itoa(seed+i), func(t *testing.T) {
			draw := (seed + i) * 1000
			shape := plantest.Tagged().Example(draw)
			l := newTopology(t, s.make)
			for round := range 2 {
				if round > 0 {
					shape = shape.Recarried().Example(draw)
				}
				plans := shape.Plans()
				if lacks := s.lacks(plans); len(lacks) > 0 {
					t.Skipf("left out: the data plane has no %s", strings.Join(lacks, ", "))
				}
				var flows []plan.Flow
				for i := range flowsPerCluster {
					flows = append(flows, plantest.Flows(plans).Example(draw+i))
				}
				l.load(plans)
				l.try(t, plans, flows)
				l.restart(plans)
				if t.Failed() {
					t.Fatalf("round %d, plans:\n%s", round, plan.FormatAll(plans))
				}
			}
		})
	}
}

// tagPlans are three nodes. The server of the first takes what wears tag 5. It
// believes the tags of the second node, and not of the third; all send them.
const tagPlans = `node node1 addresses 172.30.0.2,fd01::2 mtu 1400
pool default 10.1.1.0/24 gateway 10.1.1.1 tunnel vxlan
pool default fd00:1::/64 gateway fd00:1::1 tunnel vxlan
tunnel vxlan port 4789 vtep VTEP1 mac 0a:58:ac:1e:00:02 carries-tags
network default in vxlan vni FIRST-LAST
endpoint server network default addresses 10.1.1.2,fd00:1::2 mac 0a:58:0a:01:01:02 tag 7 ingress-policy server
endpoint untagged network default addresses 10.1.1.3,fd00:1::3 mac 0a:58:0a:01:01:03
route default 10.1.1.2/32 endpoint server
route default 10.1.1.3/32 endpoint untagged
route default fd00:1::2/128 endpoint server
route default fd00:1::3/128 endpoint untagged
route default 10.1.2.0/24 tunnel node2
route default 10.1.3.0/24 tunnel node3
route default fd00:2::/64 tunnel node2
route default fd00:3::/64 tunnel node3
peer node2 ends vxlan@VTEP2@0a:58:ac:1e:00:03 carries-tags
peer node3 ends vxlan@VTEP3@0a:58:ac:1e:00:04
verdict server ingress from 5 any allow

node node2 addresses 172.30.0.3,fd01::3 mtu 1400
pool default 10.1.2.0/24 gateway 10.1.2.1 tunnel vxlan
pool default fd00:2::/64 gateway fd00:2::1 tunnel vxlan
tunnel vxlan port 4789 vtep VTEP2 mac 0a:58:ac:1e:00:03 carries-tags
network default in vxlan vni FIRST-LAST
endpoint five network default addresses 10.1.2.2,fd00:2::2 mac 0a:58:0a:01:02:02 tag 5
endpoint six network default addresses 10.1.2.3,fd00:2::3 mac 0a:58:0a:01:02:03 tag 6
endpoint hidden network default addresses 10.1.2.4,fd00:2::4 mac 0a:58:0a:01:02:04 tag 5
endpoint beyond network default addresses 10.1.2.5,fd00:2::5 mac 0a:58:0a:01:02:05 tag 1000
route default 10.1.2.2/32 endpoint five
route default 10.1.2.3/32 endpoint six
route default 10.1.2.4/32 endpoint hidden
route default 10.1.2.5/32 endpoint beyond
route default fd00:2::2/128 endpoint five
route default fd00:2::3/128 endpoint six
route default fd00:2::4/128 endpoint hidden
route default fd00:2::5/128 endpoint beyond
route default 10.1.1.0/24 tunnel node1
route default 10.1.3.0/24 tunnel node3
route default fd00:1::/64 tunnel node1
route default fd00:3::/64 tunnel node3
peer node1 ends vxlan@VTEP1@0a:58:ac:1e:00:02 carries-tags
peer node3 ends vxlan@VTEP3@0a:58:ac:1e:00:04 carries-tags
egress default endpoint hidden 10.1.1.0/24 masquerade
egress default endpoint hidden fd00:1::/64 masquerade

node node3 addresses 172.30.0.4,fd01::4 mtu 1400
pool default 10.1.3.0/24 gateway 10.1.3.1 tunnel vxlan
pool default fd00:3::/64 gateway fd00:3::1 tunnel vxlan
tunnel vxlan port 4789 vtep VTEP3 mac 0a:58:ac:1e:00:04 carries-tags
network default in vxlan vni FIRST-LAST
endpoint liar network default addresses 10.1.3.2,fd00:3::2 mac 0a:58:0a:01:03:02 tag 5
route default 10.1.3.2/32 endpoint liar
route default fd00:3::2/128 endpoint liar
route default 10.1.1.0/24 tunnel node1
route default 10.1.2.0/24 tunnel node2
route default fd00:1::/64 tunnel node1
route default fd00:2::/64 tunnel node2
peer node1 ends vxlan@VTEP1@0a:58:ac:1e:00:02 carries-tags
peer node2 ends vxlan@VTEP2@0a:58:ac:1e:00:03 carries-tags
`

// tagBench is tagPlans, loaded.
type tagBench struct {
	*topology
	plans  map[string]*plan.Plan
	node   *node
	server *pod
}

// newTagBench gives the network the identifiers from first to last, and a tunnel over
// IPv4 or IPv6. Where the data plane can do no tags, the server takes what comes from anybody.
func (s *suite) newTagBench(t *testing.T, first, last uint32, ipv4 bool) *tagBench {
	t.Helper()
	words := []string{"FIRST", fmt.Sprint(first), "LAST", fmt.Sprint(last)}
	for i := 1; i <= 3; i++ {
		vtep := underlayAddresses(i)[0]
		if !ipv4 {
			vtep = underlayAddresses(i)[1]
		}
		words = append(words, "VTEP"+strconv.Itoa(i), vtep.String())
	}
	if !s.able.Tags {
		words = append(words, "verdict server ingress from 5 any allow", "verdict server ingress from any any allow")
	}
	plans, err := plan.ParseAll(strings.NewReplacer(words...).Replace(tagPlans))
	must(t, err)
	if !s.able.Tags {
		for name, p := range plans {
			plans[name], _ = datapath.Possible(p, s.able)
		}
	}
	if lacks := s.lacks(plans); len(lacks) > 0 {
		t.Skipf("left out: the data plane has no %s", strings.Join(lacks, ", "))
	}
	b := &tagBench{topology: newTopology(t, s.make), plans: plans}
	b.load(plans)
	b.node = b.nodes["node1"]
	b.server = b.node.pods["server"]
	return b
}

// wire checks what others see of what a node sends: the first identifier of the
// network and the tag of the endpoint that sent it, also where nobody can tell by the
// source who that was; and the first alone for all else.
func (s *suite) wire(t *testing.T) {
	for _, c := range []struct {
		name        string
		first, last uint32
		ipv4        bool
	}{
		{"all identifiers", 0, plan.MaxVNI, true},
		{"from a power of two", 1 << 12, 1<<12 + 100, true},
		{"from another number", 4095, 4095 + 100, true},
		{"over IPv6", 0, 100, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := s.newTagBench(t, c.first, c.last, c.ipv4)
			seen := b.listenTo(t, "node2")
			port := b.plans["node2"].Local.Tunnels[0].Port
			senders := map[string]plan.Tag{"five": 5, "six": 6, "hidden": 5, "beyond": 1000}
			for _, family := range []int{0, 1} {
				for name, tag := range senders {
					from := b.nodes["node2"].pods[name]
					want, _ := b.plans["node2"].Encode("vxlan", plan.DefaultNetwork, tag)
					b.sendsAs(t, seen, name, from.host, from.addresses[family], b.node.pods["untagged"].addresses[family], port, want)
				}
				b.sendsAs(t, seen, "the node itself", b.nodes["node2"].host, netip.Addr{}, b.node.pods["untagged"].addresses[family], port, c.first)
			}
		})
	}
}

// sendsAs checks that a datagram gets to its receiver, and which identifier it has on
// its way.
func (b *tagBench) sendsAs(t *testing.T, seen *wiretap, name string, from *host, source, to netip.Addr, port uint16, want uint32) {
	t.Helper()
	b.listen(b.node.pods["untagged"].host, service{plan.UDP, sourcePort})
	word, arrived := b.expect()
	c, err := from.dial("udp", source, netip.AddrPortFrom(to, sourcePort), patience)
	must(t, err)
	defer c.Close()
	_, err = c.Write([]byte(word))
	must(t, err)
	select {
	case <-arrived:
	case <-time.After(patience):
		t.Errorf("what %s sends to %s does not arrive", name, to)
	}
	if vni, ok := seen.of(word, port); !ok || vni != want {
		t.Errorf("what %s sends to %s has network identifier %d on the wire (seen: %t); expected %d", name, to, vni, ok, want)
	}
}

// wiretap is what passes the link of a node.
type wiretap struct {
	mu     sync.Mutex
	frames [][]byte
}

// listenTo notes what a node sends and gets.
func (l *topology) listenTo(t *testing.T, node string) *wiretap {
	t.Helper()
	w := &wiretap{}
	must(t, l.out.Do(func() error {
		link, err := netlink.LinkByName(node)
		if err != nil {
			return err
		}
		all := int(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL)))
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		wait := unix.Timeval{Usec: 50000}
		err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: link.Attrs().Index}))
		if err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		done := make(chan struct{})
		l.keep(closer(done), func() {
			defer unix.Close(fd)
			for b := make([]byte, 65536); ; {
				if n, _, err := unix.Recvfrom(fd, b, 0); err == nil {
					w.mu.Lock()
					w.frames = append(w.frames, slices.Clone(b[:n]))
					w.mu.Unlock()
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
		return nil
	}))
	return w
}

// of returns the network identifier of the tunnel packet, sent to a port, that carries
// a word.
func (w *wiretap) of(word string, port uint16) (vni uint32, ok bool) {
	const ethernet, udpHeader, vxlanHeader = 14, 8, 8
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		w.mu.Lock()
		frames := w.frames
		w.mu.Unlock()
		for _, f := range frames {
			if !strings.Contains(string(f), word) || len(f) < ethernet+1 {
				continue
			}
			outer := f[ethernet:]
			header := 20
			if outer[0]>>4 == 6 {
				header = 40
			}
			if len(outer) < header+udpHeader+vxlanHeader || binary.BigEndian.Uint16(outer[header+2:]) != port {
				continue
			}
			return binary.BigEndian.Uint32(outer[header+udpHeader+4:]) >> 8, true
		}
	}
	return 0, false
}

// foreignEnd checks that another end of the tunnel, which is the kernel's own VXLAN
// device and has nothing of Weft's, and whose network identifiers are tags as OpenShift
// SDN's are, gets what endpoints send, and that its tags are believed. The nodes'
// links compute no checksums: that of each tunnel packet is in it, and is looked at.
func (s *suite) foreignEnd(t *testing.T, ipv4 bool) {
	b := s.newTagBench(t, 0, plan.MaxVNI, ipv4)
	other := b.addNode("foreign", underlayAddresses(8))
	vtep, mine := underlayAddresses(8)[0], underlayAddresses(1)[0]
	if !ipv4 {
		vtep, mine = underlayAddresses(8)[1], underlayAddresses(1)[1]
	}
	mac := plan.MACOf(underlayAddresses(8)[0])
	p, err := plan.Parse(b.plans["node1"].String() + fmt.Sprintf(`peer foreign ends vxlan@%s@%s carries-tags
route default 10.1.9.0/24 tunnel foreign
route default fd00:9::/64 tunnel foreign
`, vtep, mac))
	must(t, err)
	b.apply(b.node, p)
	for _, n := range []*node{b.node, other} {
		must(t, n.Do(func() error { return noTransmitChecksums("eth0") }))
	}
	// One device for each identifier; the server's comes with its own.
	pool := func(tag byte) []netip.Addr {
		return []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 9, tag}), netip.AddrFrom16([16]byte{0: 0xfd, 3: 9, 15: tag})}
	}
	for _, tag := range []byte{5, 6, 7} {
		must(t, other.Do(func() error {
			return foreignDevice(tag, vtep, mine, mac, pool(tag), b.plans["node1"], b.server.addresses)
		}))
	}
	b.listen(b.server.host, service{plan.TCP, sourcePort})
	b.listen(b.server.host, service{plan.UDP, sourcePort})
	b.listen(other.host, service{plan.TCP, sourcePort})
	says := func(network string, from *host, source, to netip.Addr, within time.Duration) error {
		c, err := from.dial(network, source, netip.AddrPortFrom(to, sourcePort), within)
		if err != nil {
			return err
		}
		defer c.Close()
		must(t, c.SetDeadline(time.Now().Add(within)))
		word, _ := b.expect()
		// What is longer than one segment, too: the kernel takes such apart late.
		long := word + strings.Repeat(" ", 20000) + "\n"
		if network == "udp" {
			long = word
		}
		if _, err := c.Write([]byte(long)); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 100))
		return err
	}
	for i, server := range b.server.addresses {
		for _, network := range []string{"tcp", "udp"} {
			if err := says(network, other.host, pool(5)[i], server, patience); err != nil {
				t.Errorf("%s from the foreign end to %s, with tag 5, which is allowed: %v", network, server, err)
			}
			if err := says(network, other.host, pool(6)[i], server, disappointment); err == nil {
				t.Errorf("%s from the foreign end to %s, with tag 6, is answered", network, server)
			}
		}
		// It gets what has the server's tag by the device of that one.
		if err := says("tcp", b.server.host, server, pool(7)[i], patience); err != nil {
			t.Errorf("TCP to the foreign end from %s, with tag 7: %v", server, err)
		}
	}
	must(t, other.Do(func() error {
		for _, name := range []string{"vx5", "vx6"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if n := l.Attrs().Statistics.RxPackets; n > 0 {
				t.Errorf("%d packets come with the identifier of %s, and none has its tag", n, name)
			}
		}
		return nil
	}))
}

// foreignDevice makes a VXLAN device for one identifier, with addresses that it sends
// from to a server.
func foreignDevice(tag byte, vtep, to netip.Addr, mac plan.MAC, addresses []netip.Addr, p *plan.Plan, server []netip.Addr) error {
	name := fmt.Sprintf("vx%d", tag)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = name, mac[:], p.Local.MTU
	device := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: int(tag), Port: int(p.Local.Tunnels[0].Port), SrcAddr: vtep.AsSlice(), UDPCSum: true}
	if err := errors.Join(netlink.LinkAdd(device), setUp(name)); err != nil {
		return fmt.Errorf("add %s: %w", name, err)
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	index, far := link.Attrs().Index, p.Local.Tunnels[0].MAC
	errs := []error{netlink.NeighSet(&netlink.Neigh{LinkIndex: index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF,
		State: netlink.NUD_PERMANENT, HardwareAddr: far[:], IP: to.AsSlice()})}
	for i, a := range addresses {
		errs = append(errs, addAddress(name, netip.PrefixFrom(a, a.BitLen())),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, HardwareAddr: far[:], IP: server[i].AsSlice()}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: ipNet(netip.PrefixFrom(server[i], server[i].BitLen())), Table: int(tag)}))
		rule := netlink.NewRule()
		rule.Src, rule.Table, rule.Priority, rule.Family = ipNet(netip.PrefixFrom(a, a.BitLen())), int(tag), int(tag), netlink.FAMILY_V4
		if a.Is6() {
			rule.Family = netlink.FAMILY_V6
		}
		errs = append(errs, netlink.RuleAdd(rule))
	}
	return errors.Join(errs...)
}

// noTransmitChecksums has the kernel compute checksums before an interface sends.
func noTransmitChecksums(name string) error {
	const setTransmitChecksums = 0x17 // ETHTOOL_STXCSUM
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	command := struct{ command, data uint32 }{command: setTransmitChecksums}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&command)}
	copy(request.name[:], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("turn off checksums of %s: %w", name, errno)
	}
	return nil
}

// liars checks that of tunnel packets made by hand those pass that the interpreter's
// rules let through, and no others.
func (s *suite) liars(t *testing.T) {
	for _, first := range []uint32{0, 4095} {
		t.Run(fmt.Sprintf("from %d", first), func(t *testing.T) { s.liarsTo(t, first) })
	}
}

func (s *suite) liarsTo(t *testing.T, first uint32) {
	b := s.newTagBench(t, first, first+100, true)
	b.listen(b.server.host, service{plan.UDP, sourcePort})
	p := b.plans["node1"]
	mine := p.Local.Tunnels[0]
	verdict := func(vtep, source netip.Addr, vni uint32) bool {
		network, tag, ok := p.Decode(mine.Name, vni)
		if !ok || !p.TakesFromPeer(mine.Name, network, vtep, source) {
			return false
		}
		for _, peer := range p.Peers.All() {
			if end, ok := peer.End(mine.Name); ok && end.VTEP == vtep && !peer.CarriesTags {
				tag = 0
			}
		}
		class, known := p.ClassAt(network, source)
		if !known {
			class = plan.ClassOf(tag)
		}
		_, v, _ := p.Verdict("server", plan.Incoming, class, plan.UDP, sourcePort)
		return v.Allow
	}
	random := rand.New(rand.NewPCG(uint64(first), 1))
	made := func(from *node, source netip.Addr, vni uint32, word string) []byte {
		return b.byHand(from, netip.AddrPortFrom(source, uint16(20000+random.IntN(20000))), vni, word)
	}
	node2, node3 := b.nodes["node2"], b.nodes["node3"]
	type sent struct {
		what    string
		allowed bool
		arrived <-chan arrival
	}
	var all []sent
	// What is short, or says that it has no identifier, gets nowhere.
	word, arrived := b.expect()
	whole := made(node2, node2.pods["five"].addresses[0], first+5, word)
	for _, length := range []int{1, 7, 8, 12, 21, 22, 30, 40, 49} {
		b.sendTunnel(t, node2, whole[:length])
	}
	unset := slices.Clone(whole)
	unset[0] = 0
	b.sendTunnel(t, node2, unset)
	reserved := slices.Clone(whole)
	reserved[7] = 1
	b.sendTunnel(t, node2, reserved)
	all = append(all, sent{"what is short, or has no identifier", false, arrived})

	sources := []netip.Addr{p.Local.Pools[0].Gateway, b.server.addresses[0], netip.MustParseAddr("198.51.100.7")}
	for _, of := range b.plans {
		for _, e := range of.Endpoints.All() {
			sources = append(sources, e.Addresses[0])
		}
	}
	slices.SortFunc(sources, netip.Addr.Compare)
	passed := 0
	for i := range 120 {
		from := []*node{node2, node3}[i%2]
		vni := first + []uint32{0, 5, 5, 6, 7, 100, 101, plan.MaxVNI - first, uint32(random.IntN(plan.MaxVNI))}[random.IntN(9)]
		vni &= plan.MaxVNI
		source := sources[random.IntN(len(sources))]
		vtep := b.plans[from.name].Local.Tunnels[0].VTEP
		word, arrived := b.expect()
		allowed := verdict(vtep, source, vni)
		if allowed {
			passed++
		}
		b.sendTunnel(t, from, made(from, source, vni, word))
		all = append(all, sent{fmt.Sprintf("what %s sends from %s with identifier %d", from.name, source, vni), allowed, arrived})
	}
	if passed == 0 {
		t.Error("nothing of all that was sent is allowed")
	}
	// Behind all that, in the same way.
	word, arrived = b.expect()
	b.sendTunnel(t, node2, made(node2, node2.pods["five"].addresses[0], first+5, word))
	all = append(all, sent{"what comes after all that", true, arrived})
	slices.SortStableFunc(all, func(a, b sent) int { // what arrives first
		return map[bool]int{true: 0, false: 1}[a.allowed] - map[bool]int{true: 0, false: 1}[b.allowed]
	})
	for _, k := range all {
		wait := time.Duration(0)
		if k.allowed {
			wait = patience
		}
		select {
		case <-k.arrived:
			if !k.allowed {
				t.Errorf("%s arrives", k.what)
			}
		case <-time.After(wait):
			if k.allowed {
				t.Errorf("%s does not arrive", k.what)
			}
		}
	}
}

// byHand returns a tunnel packet of a node's to the server, from an address and port,
// with an identifier.
func (b *tagBench) byHand(from *node, source netip.AddrPort, vni uint32, word string) []byte {
	return vxlan(vni, frame(b.plans[from.name].Local.Tunnels[0].MAC, b.plans["node1"].Local.Tunnels[0].MAC,
		udp(source, netip.AddrPortFrom(b.server.addresses[0], sourcePort), word)))
}

// sendTunnel sends a tunnel packet made by hand from a node to the server's.
func (b *tagBench) sendTunnel(t *testing.T, from *node, payload []byte) {
	t.Helper()
	own, to := b.plans[from.name].Local.Tunnels[0].VTEP, b.plans["node1"].Local.Tunnels[0]
	c, err := from.dial("udp", own, netip.AddrPortFrom(to.VTEP, to.Port), patience)
	must(t, err)
	defer c.Close()
	_, err = c.Write(payload)
	must(t, err)
}

// untracked checks that what is of no connection, as somebody keeps it from connection
// tracking, is not taken for what has no tag where tags are believed.
func (s *suite) untracked(t *testing.T) {
	for _, ipv4 := range []bool{true, false} {
		b := s.newTagBench(t, 0, plan.MaxVNI, ipv4)
		b.edit(t, "node1", "verdict server ingress from 5 any allow\n", "verdict server ingress from 0 any allow\n")
		b.listen(b.server.host, service{plan.UDP, sourcePort})
		must(t, b.node.Do(func() error {
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			in := conn.AddTable(&nftables.Table{Name: "somebody", Family: nftables.TableFamilyINet})
			c := conn.AddChain(&nftables.Chain{Table: in, Name: "raw", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw})
			conn.AddRule(&nftables.Rule{Table: in, Chain: c, Exprs: []expr.Any{&expr.Notrack{}}})
			return conn.Flush()
		}))
		for family := range 2 {
			arrives := map[string]<-chan arrival{}
			for _, from := range []struct{ node, pod string }{{"node2", "six"}, {"node3", "liar"}} {
				c, err := b.nodes[from.node].pods[from.pod].dial("udp", netip.Addr{}, netip.AddrPortFrom(b.server.addresses[family], sourcePort), patience)
				must(t, err)
				word, arrived := b.expect()
				arrives[from.pod] = arrived
				_, err = c.Write([]byte(word))
				must(t, errors.Join(err, c.Close()))
			}
			select {
			case <-arrives["liar"]:
			case <-time.After(patience):
				t.Errorf("what has no tag that is believed does not arrive (over IPv4: %t)", ipv4)
			}
			select {
			case <-arrives["six"]:
				t.Errorf("what wears tag 6 arrives, as if it had none (over IPv4: %t)", ipv4)
			case <-time.After(disappointment):
			}
		}
	}
}

// formerPeer checks that nothing leaves through a tunnel with tags to who is no peer any
// more, whatever still leads there.
func (s *suite) formerPeer(t *testing.T) {
	for _, ipv4 := range []bool{true, false} {
		b := s.newTagBench(t, 0, plan.MaxVNI, ipv4)
		n, seen, port := b.nodes["node2"], b.listenTo(t, "node2"), b.plans["node2"].Local.Tunnels[0].Port
		leaves := func(node string) bool {
			word, _ := b.expect()
			last, _ := b.expect()
			for _, send := range [][2]string{{node, word}, {"node3", last}} {
				c, err := n.dial("udp", b.plans["node2"].Local.Tunnels[0].VTEP, netip.AddrPortFrom(b.plans[send[0]].Local.Tunnels[0].VTEP, port), patience)
				must(t, err)
				_, err = c.Write(vxlan(0, []byte(send[1])))
				if err != nil && !errors.Is(err, unix.EPERM) {
					t.Fatal(err)
				}
				must(t, c.Close())
			}
			if _, ok := seen.of(last, port); !ok {
				t.Fatal("what is sent to a peer does not leave")
			}
			return seen.has(word)
		}
		if !leaves("node1") {
			t.Error("what is sent to node1, which is a peer, does not leave")
		}
		var lines []string
		for line := range strings.Lines(b.plans["node2"].String()) {
			if !strings.Contains(line, "tunnel node1") && !strings.HasPrefix(line, "peer node1 ") {
				lines = append(lines, line)
			}
		}
		p, err := plan.Parse(strings.Join(lines, ""))
		must(t, err)
		b.apply(n, p)
		if leaves("node1") {
			t.Error("what is sent to node1, which was a peer, leaves")
		}
	}
}

// has reports whether a packet with a word has passed.
func (w *wiretap) has(word string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.frames, func(f []byte) bool { return strings.Contains(string(f), word) })
}

// firstTag checks that a connection has the tag of its first packet, whatever comes
// behind it: all of these are new to connection tracking, as none is answered.
func (s *suite) firstTag(t *testing.T) {
	b := s.newTagBench(t, 0, plan.MaxVNI, true)
	var silent net.PacketConn
	must(t, b.server.Do(func() (err error) {
		silent, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", sourcePort))
		return err
	}))
	defer silent.Close()
	node2 := b.nodes["node2"]
	source := netip.AddrPortFrom(node2.pods["five"].addresses[0], 7777)
	arrives := func(vni uint32) bool {
		t.Helper()
		b.sendTunnel(t, node2, b.byHand(node2, source, vni, "first"))
		b.sendTunnel(t, node2, b.byHand(node2, netip.AddrPortFrom(source.Addr(), 8888), 5, "last"))
		must(t, silent.SetReadDeadline(time.Now().Add(patience)))
		came := false
		for data := make([]byte, 100); ; came = true {
			n, _, err := silent.ReadFrom(data)
			must(t, err)
			if string(data[:n]) == "last" {
				return came
			}
		}
	}
	if arrives(6) {
		t.Error("what wears tag 6 arrives")
	}
	for _, vni := range []uint32{5, 6, 0, 5} {
		if !arrives(vni) {
			t.Errorf("a packet with identifier %d of a connection that began with tag 5 does not arrive", vni)
		}
	}
}

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

// beliefs checks what becomes of connections when tags are sent and believed and then
// not: those go on that either plan allows, those end that only a tag allowed, and
// nothing passes meanwhile that neither plan allows.
func (s *suite) beliefs(t *testing.T) {
	b := s.newTagBench(t, 0, plan.MaxVNI, true)
	b.edit(t, "node1", "verdict server ingress from 5 any allow\n", "verdict server ingress from 5 any allow\nverdict server ingress from 0 tcp 8080 allow\n")
	var l net.Listener
	must(t, b.server.Do(func() (err error) {
		config := net.ListenConfig{}
		config.SetMultipathTCP(false)
		l, err = config.Listen(t.Context(), "tcp4", ":0")
		return err
	}))
	defer l.Close()
	either := b.connect(t, b.listener(t, ":8080"), "five")
	either.alive(t, "five, which either plan allows,")
	tagged := b.connect(t, l, "five")
	tagged.alive(t, "five, which its tag allows,")
	stop := b.pester(t, "six")

	const believed, not = "carries-tags", ""
	b.edit(t, "node1", "peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03 "+believed, "peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03"+not)
	tagged.ends(t, "five, whose tag is not believed any more,")
	either.alive(t, "five, when its tag is not believed,")
	b.edit(t, "node1", "peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03", "peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03 "+believed)
	either.alive(t, "five, when its tag is believed again,")
	tagged = b.connect(t, l, "five")
	for range 2 {
		b.edit(t, "node2", "mac 0a:58:ac:1e:00:03 "+believed, "mac 0a:58:ac:1e:00:03")
		tagged.alive(t, "five, when its node sends no tags any more,")
		b.edit(t, "node2", "mac 0a:58:ac:1e:00:03", "mac 0a:58:ac:1e:00:03 "+believed)
		tagged.alive(t, "five, when its node sends tags again,")
		either.alive(t, "five, when its node sends tags again,")
	}
	b.edit(t, "node1", "verdict server ingress from 0 tcp 8080 allow\n", "")
	either.alive(t, "five, when what has no tag is forbidden,")
	b.edit(t, "node1", "verdict server ingress from 5 any allow\n", "verdict server ingress from 6 tcp 9 allow\n")
	tagged.ends(t, "five, whose tag is forbidden,")
	either.ends(t, "five, whose tag is forbidden,")
	stop()
}

// before checks what becomes of datagrams that nobody answers, and that were sent before
// there were tags: they count as having the tag that they have now.
func (s *suite) before(t *testing.T) {
	b := s.newTagBench(t, 0, 0, true)
	b.edit(t, "node1", "verdict server ingress from 5 any allow\n", "verdict server ingress from 5 any allow\nverdict server ingress from 0 any allow\n")
	arrived := map[string]*atomic.Int64{}
	for i, from := range []string{"five", "six"} {
		count := &atomic.Int64{}
		arrived[from] = count
		var silent net.PacketConn
		must(t, b.server.Do(func() (err error) {
			silent, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", sourcePort+1+i))
			return err
		}))
		c, err := b.nodes["node2"].pods[from].dial("udp", netip.Addr{}, netip.AddrPortFrom(b.server.addresses[0], uint16(sourcePort+1+i)), patience)
		must(t, err)
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				case <-time.After(pause):
					_, _ = c.Write([]byte("x")) // it may be told that nobody takes it
				}
			}
		}()
		go func() {
			for data := make([]byte, 10); ; count.Add(1) {
				if _, _, err := silent.ReadFrom(data); err != nil {
					return
				}
			}
		}()
		t.Cleanup(func() {
			close(stop)
			<-stopped
			c.Close()
			silent.Close()
		})
	}
	arrives := func(from string) bool {
		before := arrived[from].Load()
		for deadline := time.Now().Add(patience); arrived[from].Load() == before; time.Sleep(pause) {
			if time.Now().After(deadline) {
				return false
			}
		}
		return true
	}
	for _, from := range []string{"five", "six"} {
		if !arrives(from) {
			t.Fatalf("nothing arrives from %s, when there are no tags", from)
		}
	}
	const none, some = "in vxlan vni 0\n", "in vxlan vni 0-1000\n"
	b.edit(t, "node2", none, some)
	b.edit(t, "node1", none, some)
	// What has no tag may do so still.
	time.Sleep(afterlife)
	if !arrives("five") {
		t.Error("nothing arrives from five, which has the tag that is allowed")
	}
	was := arrived["six"].Load()
	time.Sleep(disappointment)
	if n := arrived["six"].Load() - was; n > 0 {
		t.Errorf("%d datagrams arrived from six, which has another tag", n)
	}
}

// retagged checks that an endpoint's tag changes with its policies: what five sends its
// own policy forbids while it wears the tag that the server takes, and the server's while
// it wears another.
func (s *suite) retagged(t *testing.T) {
	for name, pool := range map[string]string{"alone": "", "with all else": "pool default 10.7.1.0/24 gateway 10.7.1.1\n"} {
		t.Run(name, func(t *testing.T) {
			b := s.newTagBench(t, 0, plan.MaxVNI, true)
			const five, policed = "mac 0a:58:0a:01:02:02 tag 5\n", "mac 0a:58:0a:01:02:02 tag 5 egress-policy shut\n"
			text := strings.Replace(b.plans["node2"].String(), five, policed, 1)
			shut, err := plan.Parse(text + "verdict shut egress otherwise deny\n")
			must(t, err)
			open, err := plan.Parse(strings.Replace(text, policed, strings.Replace(policed, "tag 5", "tag 6", 1), 1) + pool + "verdict shut egress otherwise allow\n")
			must(t, err)
			n := b.nodes["node2"]
			for range flips {
				b.apply(n, shut)
				// On the way back, what is between two chains in that moment may take the
				// policy of one plan and the tag of the other.
				stop := b.pester(t, "five")
				b.apply(n, open)
				stop()
			}
			b.apply(n, shut)
			b.plans["node2"] = shut
			// With the tag of one and the policy of the other it would arrive.
			b.edit(t, "node2", "verdict shut egress otherwise deny\n", "verdict shut egress otherwise allow\n")
			word, arrived := b.expect()
			c, err := n.pods["five"].dial("udp", netip.Addr{}, netip.AddrPortFrom(b.server.addresses[0], sourcePort), patience)
			must(t, err)
			_, err = c.Write([]byte(word))
			must(t, errors.Join(err, c.Close()))
			select {
			case <-arrived:
			case <-time.After(patience):
				t.Error("what neither plan lets pass would not be noticed")
			}
		})
	}
}

// edit applies a node's plan with some words replaced.
func (b *tagBench) edit(t *testing.T, node, old, with string) {
	t.Helper()
	text := b.plans[node].String()
	changed := strings.Replace(text, old, with, 1)
	if changed == text {
		t.Fatalf("the plan of %s has no %q:\n%s", node, old, text)
	}
	p, err := plan.Parse(changed)
	must(t, err)
	b.apply(b.nodes[node], p)
	b.plans[node] = p
	if lines := b.repair(b.nodes[node]); len(lines) > 0 {
		t.Errorf("after a change there is something to repair: %q", lines)
	}
}

func (b *tagBench) listener(t *testing.T, address string) net.Listener {
	t.Helper()
	var l net.Listener
	must(t, b.server.Do(func() (err error) {
		config := net.ListenConfig{}
		config.SetMultipathTCP(false)
		l, err = config.Listen(t.Context(), "tcp4", address)
		return err
	}))
	t.Cleanup(func() { l.Close() })
	return l
}

// connect opens a TCP connection from a pod of the second node to a listener of the
// server.
func (b *tagBench) connect(t *testing.T, l net.Listener, from string) talk {
	t.Helper()
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	client, err := b.nodes["node2"].pods[from].dial("tcp", netip.Addr{}, netip.AddrPortFrom(b.server.addresses[0], port), patience)
	if err != nil {
		t.Fatalf("connect from %s: %v", from, err)
	}
	t.Cleanup(func() { client.Close() })
	must(t, l.(*net.TCPListener).SetDeadline(time.Now().Add(patience)))
	server, err := l.Accept()
	if err != nil {
		t.Fatalf("the connection from %s is not accepted: %v", from, err)
	}
	t.Cleanup(func() { server.Close() })
	return talk{client, server}
}

// pester sends to the server from a pod of the second node, each time from another
// port, what no plan allows, until the function is called that it returns, which checks
// that nothing of it arrived.
func (b *tagBench) pester(t *testing.T, from string) (stop func()) {
	t.Helper()
	b.listen(b.server.host, service{plan.UDP, sourcePort})
	word, arrived := b.expect()
	ctx, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-ctx:
				return
			default:
			}
			c, err := b.nodes["node2"].pods[from].dial("udp", netip.Addr{}, netip.AddrPortFrom(b.server.addresses[0], sourcePort), patience)
			if err != nil {
				continue
			}
			_, _ = c.Write([]byte(word))
			c.Close()
		}
	}()
	return func() {
		t.Helper()
		close(ctx)
		<-stopped
		select {
		case got := <-arrived:
			t.Errorf("what no plan allows arrives from %s", got.source)
		default:
		}
	}
}
