package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/message"
	"github.com/weftnet/weft/internal/sysctl"
)

// Settings are those of an interface below net/ipv4/conf and net/ipv6/conf. The
// kernel tells all of them in one message about the interface, where to read
// their files would take three system calls for each.
type Settings struct {
	Name string
	link int
	// ipv4 and ipv6 hold a number of four bytes for each setting. One is empty
	// where the interface has nothing to do with the protocol, and has no files
	// then; an older kernel has fewer.
	ipv4, ipv6 []byte
}

// places are where the settings that Weft goes by are among the numbers:
// IPV4_DEVCONF_… of linux/ip.h, less one, and DEVCONF_… of linux/ipv6.h.
var places = map[string]int{
	"ipv4/forwarding": 0, "ipv4/proxy_arp": 2, "ipv4/accept_redirects": 3, "ipv4/secure_redirects": 4, "ipv4/send_redirects": 5,
	"ipv4/rp_filter": 7, "ipv4/accept_source_route": 8, "ipv4/bootp_relay": 9, "ipv4/arp_ignore": 18, "ipv4/arp_accept": 20,
	"ipv4/accept_local": 22, "ipv4/proxy_arp_pvlan": 24, "ipv4/route_localnet": 25,
	"ipv6/forwarding": 0, "ipv6/accept_ra": 3, "ipv6/accept_redirects": 4, "ipv6/autoconf": 5, "ipv6/proxy_ndp": 22,
	"ipv6/accept_source_route": 24, "ipv6/disable_ipv6": 26, "ipv6/seg6_enabled": 44, "ipv6/addr_gen_mode": 47, "ipv6/rpl_seg_enabled": 51,
}

// withoutStatistics asks for interfaces without their counters
// (RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h).
const withoutStatistics = 1 << 3

// Settings reads those of an interface. One that is gone has none.
func (k *Kernel) Settings(link int) (*Settings, error) {
	req := k.request(unix.RTM_GETLINK, 0)
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index = int32(link)
	req.AddData(m)
	req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(withoutStatistics)))
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil && !Gone(err) {
		return nil, fmt.Errorf("read the settings of interface %d: %w", link, err)
	}
	s := &Settings{link: link}
	for _, m := range messages {
		s.parse(m)
	}
	return s, nil
}

// parse reads a message about an interface.
func (s *Settings) parse(m []byte) {
	for kind, v := range message.Attributes(m[min(len(m), unix.SizeofIfInfomsg):]) {
		switch kind {
		case unix.IFLA_IFNAME:
			s.Name = strings.TrimRight(string(v), "\x00")
		case unix.IFLA_AF_SPEC:
			for family, v := range message.Attributes(v) {
				for kind, v := range message.Attributes(v) {
					switch {
					case family == unix.AF_INET && kind == unix.IFLA_INET_CONF:
						s.ipv4 = v
					case family == unix.AF_INET6 && kind == unix.IFLA_INET6_CONF:
						s.ipv6 = v
					}
				}
			}
		}
	}
}

// at returns where the value of a setting is; nil where there is none.
func (s *Settings) at(setting string) []byte {
	all := s.ipv4
	if strings.HasPrefix(setting, "ipv6/") {
		all = s.ipv6
	}
	place, ok := places[setting]
	if end := 4 * (place + 1); ok && end <= len(all) {
		return all[end-4 : end]
	}
	return nil
}

// value returns that of a setting, as its file shows it; false where the kernel,
// or the interface, has no such setting.
func (s *Settings) value(setting string) (string, bool) {
	at := s.at(setting)
	if at == nil {
		return "", false
	}
	return strconv.Itoa(int(int32(binary.NativeEndian.Uint32(at)))), true
}

// assignment is a setting and the value that it is to have.
type assignment struct{ setting, value string }

// assign gives an interface settings, those that it has, and writes only what has
// another value: IPv4's in one message where that does all that the files do, the
// others by their files, each of which takes three system calls.
func (k *Kernel) assign(s *Settings, wanted ...assignment) error {
	var errs []error
	told := nl.NewRtAttr(unix.IFLA_INET_CONF, nil)
	var done []string
	for _, a := range wanted {
		old, ok := s.value(a.setting)
		if !ok || old == a.value {
			continue
		}
		family, name, _ := strings.Cut(a.setting, "/")
		file := family + "/conf/" + s.Name + "/" + name
		line := fmt.Sprintf("set %s to %s, it was %s", file, a.value, old)
		if n, err := strconv.ParseUint(a.value, 10, 31); err == nil && family == "ipv4" && !fileDoesMore(name, n) {
			told.AddRtAttr(places[a.setting]+1, nl.Uint32Attr(uint32(n)))
			done = append(done, line)
			continue
		}
		switch err := sysctl.Set(file, a.value); {
		case errors.Is(err, fs.ErrNotExist): // the interface is gone
		case err != nil:
			errs = append(errs, err)
		default:
			k.record("%s", line)
		}
	}
	if len(done) > 0 {
		err := k.tell(s.link, told)
		switch {
		case Gone(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", strings.Join(done, ", "), err))
		default:
			for _, line := range done {
				k.record("%s", line)
			}
		}
	}
	return errors.Join(errs...)
}

// fileDoesMore reports whether writing the file of an IPv4 setting does more than a
// message to the kernel: it lets go of routes that sockets remember, or tells those who
// listen.
func fileDoesMore(name string, value uint64) bool {
	switch name {
	case "forwarding":
		return true
	case "accept_local", "route_localnet":
		return value == 0
	}
	return false
}

// tell gives an interface IPv4 settings, attributes of IFLA_INET_CONF.
func (k *Kernel) tell(link int, settings *nl.RtAttr) error {
	req := k.request(unix.RTM_SETLINK, unix.NLM_F_ACK)
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index = int32(link)
	req.AddData(m)
	families := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	families.AddRtAttr(unix.AF_INET, nil).AddChild(settings)
	req.AddData(families)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
