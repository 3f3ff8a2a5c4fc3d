package survey

import (
	"encoding/binary"
	"errors"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// TestDamagedLegacyTable has the kernel's table of iptables-legacy be cut off
// and changed everywhere. It is followed, or refused.
func TestDamagedLegacyTable(t *testing.T) {
	if _, err := exec.LookPath("iptables-legacy"); err != nil {
		t.Skip("needs iptables-legacy")
	}
	path := namespace(t)
	f := legacyFamilies[false]
	var info, entries []byte
	do(t, path, func() error {
		if used, err := f.inUse(); err != nil || len(used) > 0 {
			t.Errorf("before there is a table, it is in use: %v, %v", used, err)
		}
		out, err := exec.Command("sh", "-ec", `iptables-legacy -N one
iptables-legacy -A one -p udp --dport 8472 -m conntrack --ctstate NEW -j ACCEPT
iptables-legacy -A INPUT -i eth+ -j one
iptables-legacy -A INPUT -m comment --comment 'all the others' -j REJECT`).CombinedOutput()
		if err != nil {
			return errors.New(string(out))
		}
		if used, err := f.inUse(); err != nil || !slices.Contains(used, "filter") {
			t.Errorf("there is a table, and it is in use: %v, %v", used, err)
		}
		info, entries, err = f.ask("filter")
		return err
	})
	p := newPacket(false, unix.IPPROTO_UDP, unix.RTN_UNICAST, unix.RTN_LOCAL)
	follow := func(info, entries []byte) (fate, error) {
		table, err := f.parse(info, entries)
		if err != nil {
			return isUnknown, err
		}
		return p.through(table, strconv.FormatUint(uint64(table.hooks[1].begin), 10))
	}
	// Of this packet the port is not known, which may be that of the tunnel.
	p.state = expr.CtStateBitNEW
	if end, err := follow(info, entries); err != nil || end != isUnknown {
		t.Errorf("the packet's fate is %d, %v", end, err)
	}
	p.state = expr.CtStateBitUNTRACKED
	if end, err := follow(info, entries); err != nil || end != isDropped {
		t.Errorf("the fate of a packet that is not tracked is %d, %v", end, err)
	}
	for n := range len(entries) {
		if _, err := follow(info, entries[:n]); err == nil {
			t.Errorf("of %d bytes, the first %d make a table", len(entries), n)
		}
	}
	for i := range entries {
		for _, v := range []byte{0, 1, 0x7f, 0x80, 0xff} {
			damaged := slices.Clone(entries)
			damaged[i] = v
			follow(info, damaged)
		}
	}
	for i := legacyName; i+4 <= len(info); i += 4 {
		for _, v := range []uint32{0, 1, 1 << 31, 1<<32 - 1} {
			damaged := slices.Clone(info)
			binary.NativeEndian.PutUint32(damaged[i:], v)
			follow(damaged, entries)
		}
	}
}
