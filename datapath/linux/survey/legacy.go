package survey

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// legacyTable is a table of iptables-legacy, which nftables does not
// show. The kernel has it as entries one behind the other (struct ipt_entry in
// linux/netfilter_ipv4/ip_tables.h), and jumps lead to where one begins.
type legacyTable struct {
	entries []legacyEntry
	// hooks are the base chains by the number of their hook.
	hooks map[uint32]legacyChain
}

// legacyEntry is one entry, as nftables would have it.
type legacyEntry struct {
	offset uint32
	rule   []expr.Any
	// end says that the chain before ends here, as another of a user's begins.
	end bool
}

// legacyChain is where a base chain begins, where its policy is, and which.
type legacyChain struct {
	begin, end uint32
	drops      bool
}

// legacyFamily is how the kernel lays out what is of one family.
type legacyFamily struct {
	command, names      string
	family              xt.TableFamily
	domain, level       int
	address             int // how long one is
	source, destination uint32
	// interfaces is where the names are in an entry, protocol where that is,
	// inverted where the flags of what is not to be so are, and next where the
	// offsets of the target and of the next entry are, before the matches.
	interfaces, protocol, inverted, next, matches int
	goes                                          byte // the flag of goto
}

var legacyFamilies = map[bool]*legacyFamily{
	false: {command: "iptables-legacy", names: "ip_tables_names", family: unix.NFPROTO_IPV4, domain: unix.AF_INET, level: unix.IPPROTO_IP,
		address: 4, source: 12, destination: 16, interfaces: 16, protocol: 80, inverted: 83, next: 88, matches: 112, goes: 2},
	true: {command: "ip6tables-legacy", names: "ip6_tables_names", family: unix.NFPROTO_IPV6, domain: unix.AF_INET6, level: unix.IPPROTO_IPV6,
		address: 16, source: 8, destination: 24, interfaces: 64, protocol: 128, inverted: 132, next: 140, matches: 168, goes: 4},
}

// legacyPriorities are the tables of iptables in which rules may drop packets,
// and their priorities among the chains of nftables.
var legacyPriorities = map[string]int32{"raw": -300, "mangle": -150, "filter": 0, "security": 50}

// inUse returns those of these tables that somebody has.
func (f *legacyFamily) inUse() (used []string, _ error) {
	names, err := os.ReadFile("/proc/thread-self/net/" + f.names)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the kernel has none, or this family's is not loaded
	} else if err != nil {
		return nil, fmt.Errorf("see whether tables of %s are in use: %w", f.command, err)
	}
	for name := range strings.FieldsSeq(string(names)) {
		if _, ok := legacyPriorities[name]; ok {
			used = append(used, name)
		}
	}
	return used, nil
}

const (
	legacyInfo    = 64 // IPT_SO_GET_INFO and IP6T_SO_GET_INFO
	legacyEntries = 65 // IPT_SO_GET_ENTRIES and IP6T_SO_GET_ENTRIES
	legacyName    = 32 // XT_TABLE_MAXNAMELEN
	infoLength    = 84 // of struct ipt_getinfo
	headLength    = 40 // of struct ipt_get_entries, before the entries
)

// read asks the kernel for a table.
func (f *legacyFamily) read(table string) (*legacyTable, error) {
	info, entries, err := f.ask(table)
	if err != nil {
		return nil, fmt.Errorf("read the table %s of %s: %w", table, f.command, err)
	}
	t, err := f.parse(info, entries)
	if err != nil {
		return nil, fmt.Errorf("understand the table %s of %s: %w", table, f.command, err)
	}
	return t, nil
}

// ask returns what the kernel says of a table, and its entries.
func (f *legacyFamily) ask(table string) (info, entries []byte, err error) {
	fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	for range 10 { // EAGAIN: it has changed between the two
		info = make([]byte, infoLength)
		copy(info, table)
		if err = getsockopt(fd, f.level, legacyInfo, info); err != nil {
			break
		}
		b := make([]byte, headLength+int(binary.NativeEndian.Uint32(info[infoLength-4:])))
		copy(b, info[:legacyName])
		copy(b[legacyName:], info[infoLength-4:])
		if err = getsockopt(fd, f.level, legacyEntries, b); err == nil {
			return info, b[headLength:], nil
		} else if !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return nil, nil, os.NewSyscallError("getsockopt", err)
}

func getsockopt(fd, level, option int, b []byte) error {
	length := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// parse makes of what the kernel returned what nftables would have.
func (f *legacyFamily) parse(info, b []byte) (*legacyTable, error) {
	if len(info) < infoLength {
		return nil, fmt.Errorf("the kernel's description of the table has %d bytes", len(info))
	}
	t := &legacyTable{hooks: map[uint32]legacyChain{}}
	verdicts := map[uint32]int32{}
	for offset := 0; offset < len(b); {
		e := b[offset:]
		if len(e) < f.matches {
			return nil, fmt.Errorf("the entry at %d is cut off", offset)
		}
		target, next := int(binary.NativeEndian.Uint16(e[f.next:])), int(binary.NativeEndian.Uint16(e[f.next+2:]))
		if target < f.matches || target > next || next > len(e) {
			return nil, fmt.Errorf("the entry at %d has its target at %d and its end at %d", offset, target, next)
		}
		entry := legacyEntry{offset: uint32(offset), rule: f.conditions(e)}
		for at := f.matches; at < target; {
			name, revision, data, err := extension(e[at:target])
			if err != nil {
				return nil, fmt.Errorf("the entry at %d: %w", offset, err)
			}
			m := &expr.Match{Name: name, Rev: revision}
			if info, err := xt.Unmarshal(name, f.family, revision, data); err == nil {
				m.Info = info
			}
			entry.rule = append(entry.rule, m)
			at += extensionHead + len(data)
		}
		name, _, data, err := extension(e[target:next])
		if err != nil {
			return nil, fmt.Errorf("the entry at %d: %w", offset, err)
		}
		switch {
		case name == "ERROR":
			entry.end = true
		case name != "":
			entry.rule = append(entry.rule, &expr.Target{Name: name})
		case len(data) < 4:
			return nil, fmt.Errorf("the entry at %d has no verdict", offset)
		default:
			v := int32(binary.NativeEndian.Uint32(data))
			verdicts[entry.offset] = v
			if v != int32(offset+next) || e[f.inverted-1]&f.goes != 0 { // else it has no target
				entry.rule = append(entry.rule, legacyVerdict(v, e[f.inverted-1]&f.goes != 0))
			}
		}
		t.entries = append(t.entries, entry)
		offset += next
	}
	if n := binary.NativeEndian.Uint32(info[infoLength-8:]); int(n) != len(t.entries) {
		return nil, fmt.Errorf("%d entries of %d", len(t.entries), n)
	}
	for hook := range uint32(5) {
		if binary.NativeEndian.Uint32(info[legacyName:])&(1<<hook) == 0 {
			continue
		}
		begin := binary.NativeEndian.Uint32(info[legacyName+4+4*hook:])
		end := binary.NativeEndian.Uint32(info[legacyName+24+4*hook:])
		policy, ok := verdicts[end]
		if !ok {
			return nil, fmt.Errorf("the chain of hook %d has no policy", hook)
		}
		t.hooks[hook] = legacyChain{begin: begin, end: end, drops: policy == legacyDrop}
	}
	return t, nil
}

const (
	legacyDrop    = -1 // -NF_DROP - 1
	legacyAccept  = -2 // -NF_ACCEPT - 1
	legacyReturn  = -5 // XT_RETURN
	extensionHead = 32 // of struct xt_entry_match and xt_entry_target
)

func legacyVerdict(v int32, goes bool) *expr.Verdict {
	switch {
	case v == legacyDrop:
		return &expr.Verdict{Kind: expr.VerdictDrop}
	case v == legacyAccept:
		return &expr.Verdict{Kind: expr.VerdictAccept}
	case v == legacyReturn:
		return &expr.Verdict{Kind: expr.VerdictReturn}
	case v < 0:
		return &expr.Verdict{Kind: expr.VerdictQueue}
	case goes:
		return &expr.Verdict{Kind: expr.VerdictGoto, Chain: strconv.Itoa(int(v))}
	}
	return &expr.Verdict{Kind: expr.VerdictJump, Chain: strconv.Itoa(int(v))}
}

// extension returns the match or target that b begins with.
func extension(b []byte) (name string, revision uint32, data []byte, err error) {
	if len(b) < extensionHead {
		return "", 0, nil, fmt.Errorf("an extension has %d bytes", len(b))
	}
	size := int(binary.NativeEndian.Uint16(b))
	if size < extensionHead || size > len(b) {
		return "", 0, nil, fmt.Errorf("an extension of %d bytes says that it has %d", len(b), size)
	}
	return unix.ByteSliceToString(b[2 : extensionHead-1]), uint32(b[extensionHead-1]), b[extensionHead:size], nil
}

// conditions are those of an entry beside its matches.
func (f *legacyFamily) conditions(e []byte) (rule []expr.Any) {
	const viaIn, viaOut, tos, source, destination, fragment, protocol = 1, 2, 4, 8, 16, 32, 64 // IPT_INV_*
	inverted := e[f.inverted]
	masked := func(load expr.Any, flag byte, value, mask []byte) {
		if len(bytes.Trim(mask, "\x00")) == 0 {
			return
		}
		op := expr.CmpOpEq
		if inverted&flag != 0 {
			op = expr.CmpOpNeq
		}
		rule = append(rule, load,
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))},
			&expr.Cmp{Register: 1, Op: op, Data: wholly(value).masked(mask, make([]byte, len(mask))).value}) // "weft+" has its plus
	}
	n, name := f.address, unix.IFNAMSIZ
	address := func(offset uint32) expr.Any {
		return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(n)}
	}
	masked(address(f.source), source, e[:n], e[2*n:3*n])
	masked(address(f.destination), destination, e[n:2*n], e[3*n:4*n])
	in, out := e[f.interfaces:], e[f.interfaces+name:]
	masked(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, viaIn, in[:name], in[2*name:3*name])
	masked(&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, viaOut, out[:name], out[2*name:3*name])
	if p := binary.NativeEndian.Uint16(e[f.protocol:]); p != 0 {
		masked(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, protocol, []byte{byte(p)}, []byte{0xff})
	}
	const fragments, typeOfService = 1, 2 // IPT_F_FRAG, IP6T_F_TOS
	flags := e[f.inverted-1]
	if f.family == unix.NFPROTO_IPV4 && flags&fragments != 0 || f.family == unix.NFPROTO_IPV6 && flags&typeOfService != 0 || inverted&(tos|fragment) != 0 {
		rule = append(rule, &expr.Match{Name: "fragment"}) // which is not followed
	}
	return rule
}

// rules returns those of the chain that begins at an offset.
func (t *legacyTable) rules(chain string) ([][]expr.Any, bool, error) {
	begin, err := strconv.ParseUint(chain, 10, 32)
	if err != nil {
		return nil, false, err
	}
	first, ok := slices.BinarySearchFunc(t.entries, uint32(begin), func(e legacyEntry, offset uint32) int {
		return int(int64(e.offset) - int64(offset))
	})
	if !ok {
		return nil, false, nil
	}
	var rules [][]expr.Any
	for _, e := range t.entries[first:] {
		if e.end || t.policyAt(e.offset) {
			break
		}
		rules = append(rules, e.rule)
	}
	return rules, true, nil
}

// policyAt reports whether the policy of a base chain is at an offset.
func (t *legacyTable) policyAt(offset uint32) bool {
	for _, c := range t.hooks {
		if c.end == offset {
			return true
		}
	}
	return false
}

// find knows no sets: those of ipset are an extension's.
func (t *legacyTable) find(string) (finder, bool) { return nil, false }
