package stories

import (
	"regexp"
	"slices"
	"strings"
)

// Inventory is what there is on a node, a line for each thing: interfaces,
// routes, rules, tables of packet filters, files.
type Inventory []string

// inventoryScript prints an inventory's lines. The arguments are directories of
// which every file is listed.
const inventoryScript = `
ip -o link | sed 's/^[0-9]*: \([^:@]*\).*/link \1/'
ip -4 route show table all | sed 's/^/route4 /'
ip -6 route show table all | sed 's/^/route6 /'
ip -4 rule | sed 's/^/rule4 /'
ip -6 rule | sed 's/^/rule6 /'
nft list tables | sed 's/^table/nft/'
for d; do find "$d" -xdev ! -type d 2>/dev/null | sed 's/^/file /'; done
exit 0`

// passing are the parts of a line that change by themselves.
var passing = regexp.MustCompile(` (expires \S+|pref medium|linkdown|error -?\d+)`)

// ParseInventory reads what inventoryScript printed.
func ParseInventory(text string) Inventory {
	var i Inventory
	for line := range strings.Lines(text) {
		line = passing.ReplaceAllString(strings.TrimSpace(line), "")
		line = strings.Join(strings.Fields(line), " ")
		if line != "" {
			i = append(i, line)
		}
	}
	slices.Sort(i)
	return slices.Compact(i)
}

// Since returns what an inventory has more than an earlier one, and what it
// lacks.
func (i Inventory) Since(before Inventory) (more, less []string) {
	missing := func(from, in Inventory) (lines []string) {
		for _, line := range from {
			if _, found := slices.BinarySearch(in, line); !found {
				lines = append(lines, line)
			}
		}
		return lines
	}
	return missing(i, before), missing(before, i)
}
