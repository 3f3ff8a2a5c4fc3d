package linux

import (
	"errors"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/plan"
)

const dualPlan = `node node1 addresses 172.30.0.2 mtu 1450
pool default 10.1.1.0/24 gateway 10.1.1.1 tunnel vxlan
pool default fd00:1::/64 gateway fd00:1::1 tunnel vxlan
tunnel vxlan port 8472 vtep 172.30.0.2 mac 0a:58:ac:1e:00:02
network default in vxlan vni 1
endpoint weftaaa network default addresses 10.1.1.2,fd00:1::2 mac 0a:58:0a:01:01:02 anti-spoof
route default 0.0.0.0/0 gateway
route default ::/0 gateway
route default 10.1.1.2/32 endpoint weftaaa
route default fd00:1::2/128 endpoint weftaaa
peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03
route default 10.1.2.0/24 tunnel node2
route default fd00:2::/64 tunnel node2
egress default any 0.0.0.0/0 masquerade
egress default any ::/0 masquerade
`

// TestNoIPv6 has a node on which IPv6 is turned off, as on many servers. What
// there is of IPv4 is loaded, and IPv6 comes as soon as it is turned on.
func TestNoIPv6(t *testing.T) {
	b := newBench(t)
	set := func(v string) {
		b.do(func() error {
			return errors.Join(os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte(v), 0),
				os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte(v), 0))
		})
	}
	possible := func(text string) (*plan.Plan, []datapath.Refusal) {
		return datapath.Possible(mustParse(t, text), b.Capabilities())
	}
	set("1")
	p, refusals := possible(tunnelPlan + "route default ::/0 gateway\negress default any ::/0 masquerade\n")
	if len(refusals) > 0 {
		t.Errorf("nobody asked for IPv6, and it is said that %v", refusals)
	}
	b.mustApply(p)
	b.nothingToRepair()
	p, refusals = possible(dualPlan)
	if len(refusals) != 2 || !strings.Contains(refusals[0].Message, "fd00:1::/64") || !strings.Contains(refusals[0].Message, "disable_ipv6") {
		t.Errorf("of the subnet that cannot be, this is said: %v", refusals)
	}
	b.mustApply(p)
	b.nothingToRepair()
	b.loaded(map[string]int{"10.1.1.2/32": unix.RTN_UNICAST, "10.1.2.0/24": unix.RTN_UNICAST})
	set("0")
	if is := b.Capabilities(); !is.IPv6 || is.NoIPv6 != "" {
		t.Errorf("IPv6 is turned on (%v), and why there is none is said: %q", is.IPv6, is.NoIPv6)
	}
	if p, refusals = possible(dualPlan); len(refusals) > 0 {
		t.Errorf("IPv6 is turned on, and it is said that %v", refusals)
	}
	b.mustApply(p)
	b.loaded(map[string]int{"10.1.1.2/32": unix.RTN_UNICAST, "fd00:1::2/128": unix.RTN_UNICAST, "fd00:2::/64": unix.RTN_UNICAST})
	b.nothingToRepair()
}

// TestSmallMTU has an uplink of the least MTU that IPv6 can do with, which is
// too little with a tunnel's headers.
func TestSmallMTU(t *testing.T) {
	b := newBench(t)
	setMTU := func(mtu int) {
		b.do(func() error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(l, mtu)
		})
	}
	setMTU(1280)
	err := b.Apply(t.Context(), mustParse(t, dualPlan))
	if want := "no IPv6 to other nodes: the MTU of weft-vxlan is 1230, and IPv6 needs 1280; raise the MTU of the node's interface by 50"; err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
	b.loaded(map[string]int{"10.1.1.2/32": unix.RTN_UNICAST, "10.1.2.0/24": unix.RTN_UNICAST, "fd00:1::2/128": unix.RTN_UNICAST, "fd00:2::/64": unix.RTN_UNREACHABLE})
	setMTU(9000)
	b.mustApply(mustParse(t, dualPlan))
	b.loaded(map[string]int{"fd00:2::/64": unix.RTN_UNICAST})
	b.nothingToRepair()
}

// TestNoNftables has a kernel that knows no nftables, in whose place a filter
// of system calls refuses the socket as such a kernel does. No endpoint is
// opened, as nothing would check what it sends, and it is said what to do.
func TestNoNftables(t *testing.T) {
	b := newBench(t)
	b.do(func() error { return b.DataPlane.kernel.LinkSetDown(mustLink(t, "weftaaa")) })
	err := netns.Do(b.path, func() error {
		if err := refuseNetfilter(); err != nil {
			return err
		}
		d, err := New(Config{})
		if err != nil {
			return err
		}
		defer d.Close()
		if err := d.Apply(t.Context(), mustParse(t, tunnelPlan)); err == nil || !strings.Contains(err.Error(), "nf_tables") {
			t.Errorf("the error is %v; expected one that names the module", err)
		}
		if mustLink(t, "weftaaa").Attrs().Flags&unix.IFF_UP != 0 {
			t.Error("an endpoint was opened without a packet filter")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b.mustApply(mustParse(t, tunnelPlan))
	b.nothingToRepair()
}

func mustLink(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// refuseNetfilter makes the calling thread, until it ends, get
// EPROTONOSUPPORT for sockets of NETLINK_NETFILTER (seccomp(2)).
func refuseNetfilter() error {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	unless := func(value uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: skip}
	}
	end := func(value uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: value} }
	const number, firstArgument, thirdArgument = 0, 16, 32 // in struct seccomp_data
	filter := []unix.SockFilter{
		load(number), unless(unix.SYS_SOCKET, 5),
		load(firstArgument), unless(unix.AF_NETLINK, 3),
		load(thirdArgument), unless(unix.NETLINK_NETFILTER, 1),
		end(unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)),
		end(unix.SECCOMP_RET_ALLOW),
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	return nil
}

// TestReadOnlySettings has a node whose settings cannot be written, as in a
// container that is not privileged. What is right already need not be; of what
// is not, it is said what it should be, and the endpoint is not opened.
func TestReadOnlySettings(t *testing.T) {
	for name, right := range map[string]bool{"right already": true, "wrong": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			p := mustParse(t, tunnelPlan)
			if right {
				b.mustApply(p)
				b.do(func() error { return b.DataPlane.kernel.LinkSetDown(mustLink(t, "weftaaa")) })
			} else {
				b.do(func() error {
					return errors.Join(netlink.LinkSetDown(mustLink(t, "weftaaa")),
						os.WriteFile("/proc/sys/net/ipv6/conf/weftaaa/accept_ra", []byte("2"), 0))
				})
			}
			err := netns.Do(b.path, func() error {
				if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_FS),
					unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
					unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, ""),
					unix.Mount("", "/proc/sys", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
					return err
				}
				d, err := New(Config{})
				if err != nil {
					return err
				}
				defer d.Close()
				err = d.Apply(t.Context(), p)
				up := mustLink(t, "weftaaa").Attrs().Flags&unix.IFF_UP != 0
				if right && (err != nil || !up) {
					t.Errorf("nothing is to be written, and it is up: %t, with the error %v", up, err)
				}
				if !right && (up || err == nil || !strings.Contains(err.Error(), "set net/ipv6/conf/weftaaa/accept_ra to 0: ")) {
					t.Errorf("it is up: %t, with the error %v; expected one that names the setting", up, err)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
