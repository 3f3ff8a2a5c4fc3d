package agent

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"
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
	route := func(bits uint8) syscall.NetlinkMessage {
		m := nl.NewRtMsg()
		m.Dst_len = bits
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
		"a default route":      {route(0), true},
		"a pod's route":        {route(32), false},
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
