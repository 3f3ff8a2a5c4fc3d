package agent

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"

	"github.com/weftnet/weft/internal/netns"
)

// TestChooseUnderlay walks testdata/underlay.txtar. In a story's "links" each
// line is an interface: name, MTU, addresses, and "default METRIC" for each
// family with a default route ("default6" for IPv6); "wanted" lists addresses
// given by flag, "previous" those that were chosen before.
func TestChooseUnderlay(t *testing.T) {
	archive, err := txtar.ParseFile(filepath.Join("testdata", "underlay.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	var links []link
	var wanted, previous []netip.Addr
	for _, f := range archive.Files {
		story, part := filepath.Split(f.Name)
		switch part {
		case "links":
			links, wanted, previous = parseLinks(t, string(f.Data)), nil, nil
		case "wanted":
			for _, w := range strings.Fields(string(f.Data)) {
				wanted = append(wanted, netip.MustParseAddr(w))
			}
		case "previous":
			for _, w := range strings.Fields(string(f.Data)) {
				previous = append(previous, netip.MustParseAddr(w))
			}
		case "result":
			t.Run(strings.Trim(story, "/"), func(t *testing.T) {
				u, err := chooseUnderlay(links, wanted, previous)
				got := fmt.Sprintf("addresses %v mtu %d prefixes %v\n", u.Addresses, u.MTU, u.Prefixes)
				if err != nil {
					got = "error: " + err.Error() + "\n"
				}
				if got != string(f.Data) {
					t.Errorf("got\n%swant\n%s", got, f.Data)
				}
			})
		default:
			t.Fatalf("unknown part %q", f.Name)
		}
	}
}

func parseLinks(t *testing.T, text string) []link {
	t.Helper()
	var links []link
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		l := link{Name: words[0], Metrics: [2]int{-1, -1}}
		l.MTU, _ = strconv.Atoi(words[1])
		for i := 2; i < len(words); i++ {
			switch words[i] {
			case "default", "default6":
				family := len(words[i]) - len("default")
				i++
				l.Metrics[family], _ = strconv.Atoi(words[i])
			default:
				l.Addresses = append(l.Addresses, netip.MustParsePrefix(words[i]))
			}
		}
		links = append(links, l)
	}
	return links
}

// TestWhatANodeDeliversToItself holds what the agent reads against what the kernel
// does: how it looks up each address of a few interfaces and beside them. What is Weft's
// own it reads apart from that.
func TestWhatANodeDeliversToItself(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes a network namespace")
	}
	const (
		its = "192.0.2.0 192.0.2.5 192.0.2.99 192.0.2.130 192.0.2.255 198.51.100.5 198.51.100.77 198.51.100.255 " +
			"203.0.113.9 203.0.113.65 fd00:1:: fd00:1::5"
		nobodys = "192.0.2.1 192.0.2.131 198.51.100.0 203.0.113.10 203.0.113.127 fd00:1::1 fd00:2::5"
	)
	err := netns.Thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		ip := func(words string) error {
			if out, err := exec.Command("ip", strings.Fields(words)...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %s: %w: %s", words, err, out)
			}
			return nil
		}
		// Only who forwards IPv6 answers to a subnet's anycast address.
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0); err != nil {
			return err
		}
		for _, words := range []string{
			"link set lo up",
			"address add 203.0.113.9/32 dev lo",
			"link add eth0 type veth peer name end0",
			"link set end0 up", "link set eth0 up",
			"address add 192.0.2.5/24 dev eth0",
			"address add 192.0.2.130/31 dev eth0",
			"address add 198.51.100.5/24 broadcast 198.51.100.77 dev eth0",
			"address add fd00:1::5/64 dev eth0 nodad",
			"route add local 192.0.2.99 dev lo",
			// As Linux before 5.14 has it by itself.
			"route add broadcast 192.0.2.0 dev eth0 table local",
			// What is down takes IPv4 for its own addresses, and nothing else.
			"link add down0 type bridge",
			"address add 203.0.113.65/26 dev down0",
			"address add fd00:2::5/64 dev down0",
			// What is Weft's is told otherwise; of kube-proxy's, Services decide.
			"link add weft-gw type bridge", "link set weft-gw up",
			"address add 10.1.1.1/24 dev weft-gw", "address add fd01::1/64 dev weft-gw nodad",
			"link add kube-ipvs0 type bridge",
			"address add 10.96.0.1/32 dev kube-ipvs0",
		} {
			if err := ip(words); err != nil {
				return err
			}
		}
		isLocal := func(a string) bool { return has(netip.MustParseAddr(a)) }
		// The kernel takes an IPv6 address for its own once it has noticed, by a work
		// queue, that the link has a carrier.
		for deadline := time.Now().Add(time.Minute); !isLocal("fd00:1::5") && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
		_, local, err := readLinks()
		if err != nil {
			return err
		}
		got := othersOf(local, nil)
		if text := strings.Trim(fmt.Sprint(got), "[]"); text != its {
			t.Errorf("got  %s\nwant %s", text, its)
		}
		if gateways, err := readGateways(); err != nil || fmt.Sprint(gateways) != "[10.1.1.1 fd01::1]" {
			t.Errorf("the gateways are %v; %v", gateways, err)
		}
		for a := range strings.FieldsSeq(its + " " + nobodys) {
			if told, local := slices.Contains(got, netip.MustParseAddr(a)), isLocal(a); told != local {
				t.Errorf("%s is told to be the node's: %t; the kernel takes it for that: %t", a, told, local)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestWhatConcernsTheUnderlay(t *testing.T) {
	link := func(kind uint16, name string) syscall.NetlinkMessage {
		// As the kernel, with other attributes around the name.
		data := nl.NewIfInfomsg(unix.AF_UNSPEC).Serialize()
		data = append(data, nl.NewRtAttr(unix.IFLA_TXQLEN, nl.Uint32Attr(1000)).Serialize()...)
		data = append(data, nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)).Serialize()...)
		data = append(data, nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(1500)).Serialize()...)
		return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: kind}, Data: data}
	}
	address := func(scope uint8) syscall.NetlinkMessage {
		m := nl.NewIfAddrmsg(unix.AF_INET6)
		m.Scope = scope
		return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWADDR}, Data: m.Serialize()}
	}
	route := func(bits, table, kind uint8) syscall.NetlinkMessage {
		m := nl.NewRtMsg()
		m.Dst_len, m.Table, m.Type = bits, table, kind
		return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWROUTE}, Data: m.Serialize()}
	}
	for name, test := range map[string]struct {
		message syscall.NetlinkMessage
		want    bool
	}{
		"the node's interface": {link(unix.RTM_NEWLINK, "eth0"), true},
		"one that vanished":    {link(unix.RTM_DELLINK, "eth1"), true},
		"a pod's":              {link(unix.RTM_NEWLINK, "weft0123456789a"), false},
		"Weft's own":           {link(unix.RTM_NEWLINK, "weft-vxlan"), false},
		"a global address":     {address(unix.RT_SCOPE_UNIVERSE), true},
		"a link's own":         {address(unix.RT_SCOPE_LINK), false},
		"a default route":      {route(0, unix.RT_TABLE_MAIN, unix.RTN_UNICAST), true},
		"a pod's route":        {route(32, unix.RT_TABLE_MAIN, unix.RTN_UNICAST), false},
		"a broadcast address":  {route(32, unix.RT_TABLE_LOCAL, unix.RTN_BROADCAST), true},
		"a pod's link's group": {route(8, unix.RT_TABLE_LOCAL, unix.RTN_MULTICAST), false},
		"a neighbour":          {syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWNEIGH}}, false},
	} {
		if got := concernsUnderlay(test.message); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func FuzzNameIn(f *testing.F) {
	f.Add([]byte{})
	f.Add(append(make([]byte, unix.SizeofIfInfomsg), 8, 0, 3, 0, 'l', 'o', 0, 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		if name := nameIn(data); strings.Contains(name, "\x00") || len(name) > len(data) {
			t.Errorf("%q is in %v", name, data)
		}
	})
}

// BenchmarkHas is what an ADD asks the kernel for each of the pod's addresses.
func BenchmarkHas(b *testing.B) {
	a := netip.MustParseAddr("10.1.2.7")
	for b.Loop() {
		has(a)
	}
}
