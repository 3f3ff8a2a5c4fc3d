package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/trace"
)

// legacyTables returns the programs of iptables-legacy that have tables in the
// network namespace of the thread, with these. What they drop is in no trace.
func legacyTables() ([]string, error) {
	var found []string
	for _, program := range []struct{ name, tables string }{
		{"iptables-legacy", "ip_tables_names"}, {"ip6tables-legacy", "ip6_tables_names"},
	} {
		b, err := os.ReadFile("/proc/thread-self/net/" + program.tables)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // such a kernel has none
			return nil, fmt.Errorf("ask for the tables of %s: %w", program.name, err)
		}
		switch tables := slices.Sorted(slices.Values(strings.Fields(string(b)))); len(tables) {
		case 0:
		case 1:
			found = append(found, fmt.Sprintf("%s (table %s)", program.name, tables[0]))
		default:
			found = append(found, fmt.Sprintf("%s (tables %s)", program.name, strings.Join(tables, ", ")))
		}
	}
	return found, nil
}

// tellUntraced calls f with what may have dropped the probe untraced, as far as it
// can be listed: programs of tc, XDP and BPF are not.
func (o *Watching) tellUntraced(f func(trace.Event)) error {
	if err := o.names.refresh(); err != nil {
		return err
	}
	if err := o.names.readChains(); err != nil {
		return err
	}
	inOrder := func(a, b chainKey) int {
		return cmp.Or(cmp.Compare(a.family, b.family), cmp.Compare(a.table, b.table), cmp.Compare(a.chain, b.chain))
	}
	for _, k := range slices.SortedFunc(maps.Keys(o.names.chains), inOrder) {
		c := o.names.chains[k]
		e := trace.Event{Kind: trace.Untraced, Time: time.Now(), Hook: c.hook,
			Text: fmt.Sprintf("chain %s of table %s %s (%s)", k.chain, familyName(k.family), k.table, c.hook)}
		switch {
		case strings.HasPrefix(k.table, tablePrefix) || k.family == unix.NFPROTO_BRIDGE || k.family == unix.NFPROTO_ARP:
		case c.hook == "ingress":
			for _, device := range slices.Sorted(maps.Keys(o.devices)) {
				if c.on(device) {
					e.Device = device
					f(e)
				}
			}
		// Of chains of one priority the one that was made last comes first.
		case c.priority == markPriority && (c.hook == "prerouting" || c.hook == "output"):
			f(e)
		}
	}
	for _, program := range o.legacy {
		f(trace.Event{Kind: trace.Untraced, Time: time.Now(), Text: program})
	}
	return nil
}

// on reports whether a chain of hook ingress is for a device.
func (c hooked) on(device string) bool {
	return slices.ContainsFunc(c.devices, func(name string) bool {
		prefix, any := strings.CutSuffix(name, "*")
		return name == device || any && strings.HasPrefix(device, prefix)
	})
}
