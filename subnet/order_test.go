package subnet

import (
	"bytes"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/weftnet/weft/internal/golden"
)

// TestOrder shows the order in which some ranges are given out.
func TestOrder(t *testing.T) {
	golden.Archives(t, "testdata/order.txtar", func(t *testing.T, ranges []txtar.File) []txtar.File {
		for i, f := range ranges {
			cidr, hostBits, _ := strings.Cut(f.Name, " ")
			bits, err := strconv.Atoi(hostBits)
			if err != nil {
				t.Fatal(err)
			}
			r := Range{netip.MustParsePrefix(cidr), bits}
			if err := r.Check(); err != nil {
				t.Fatal(err)
			}
			o := r.order()
			numbers, _, _ := bytes.Cut(f.Data, []byte("\n"))
			data := append(bytes.Clone(numbers), '\n')
			for field := range bytes.FieldsSeq(numbers) {
				n, err := strconv.ParseUint(string(field), 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				s := o.subnet(n)
				data = fmt.Appendln(data, s)
				if got := o.number(s.Addr()); got != n {
					t.Errorf("%s: subnet %s has number %d, not %d", r, s, got, n)
				}
			}
			ranges[i].Data = data
		}
		return ranges
	})
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		r    Range
		want string
	}{
		{Range{}, "missing"},
		{Range{netip.MustParsePrefix("10.1.2.0/16"), 8}, "use 10.1.0.0/16"},
		{Range{netip.MustParsePrefix("::ffff:10.1.0.0/112"), 8}, "IPv4-mapped"},
		{Range{netip.MustParsePrefix("10.1.0.0/31"), 2}, "too small"},
		{Range{netip.MustParsePrefix("10.1.0.0/16"), 1}, "use 2 to 16"},
		{Range{netip.MustParsePrefix("10.1.0.0/16"), 17}, "use 2 to 16"},
		{Range{netip.MustParsePrefix("fd01::/64"), 65}, "use 2 to 64"},
	} {
		if err := c.r.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Check of %v = %v, want %q in it", c.r.CIDR, err, c.want)
		}
	}
}
