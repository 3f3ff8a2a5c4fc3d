package linux

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/stamps"
)

// TestNothingIsAllowedBeforeItIsDropped has a plan that drops by its routes what its
// policies allow from now on, and a kernel that does not tell what it has. The policies
// stay as they are then, and the next call goes the same way.
func TestNothingIsAllowedBeforeItIsDropped(t *testing.T) {
	b := newBench(t)
	p := mustParse(t, policedPlan)
	q := mustParse(t, strings.NewReplacer("c1 any deny", "c1 any allow", "10.1.3.0/24 tunnel node3", "10.1.3.0/24 drop").Replace(policedPlan))
	b.mustApply(p)
	b.current = nil // what there is has to be read
	failure := errors.New("not now")
	hear(t, func(table string) error {
		if table != stamps.Default.Table {
			return nil
		}
		err := failure
		failure = nil // once
		return err
	})
	if err := b.Apply(t.Context(), q); err == nil {
		t.Error("it is not said that the kernel could not be read")
	}
	if now := b.enforced.Load(); now != p {
		t.Errorf("policies in force are those of\n%s", now)
	}
	if b.previous != p {
		t.Errorf("the next way begins at\n%s", b.previous)
	}
	b.mustApply(q)
	b.loaded(map[string]int{"10.1.3.0/24": unix.RTN_UNREACHABLE})
	b.nothingToRepair()
}
