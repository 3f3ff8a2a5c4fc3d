package subnet

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "write what the golden files should say")

// TestOrder shows the order in which some ranges are given out.
func TestOrder(t *testing.T) {
	const path = "testdata/order.txtar"
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out := &txtar.Archive{Comment: archive.Comment}
	for _, f := range archive.Files {
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
		out.Files = append(out.Files, txtar.File{Name: f.Name, Data: data})
	}
	if *update {
		if err := os.WriteFile(path, txtar.Format(out), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(string(txtar.Format(archive)), string(txtar.Format(out))); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
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
