package cli

import (
	"strings"
	"testing"

	"github.com/weftnet/weft/lab"
)

// A lab in a directory that a flag names is found by its variable, which all commands know.
func TestNextStepsNameTheLab(t *testing.T) {
	t.Setenv(lab.DirVariable, "")
	nodes := []string{"node1"}
	for _, x := range []struct{ asked, dir, want string }{
		{"", lab.DefaultDir, ""},
		{lab.DefaultDir, lab.DefaultDir, ""},
		{"mine", "/srv/mine", "  export WEFT_LAB_DIR='/srv/mine'\n"},
		{"it's", "/srv/it's", "  export WEFT_LAB_DIR='/srv/it'\\''s'\n"},
	} {
		if got := nextSteps(x.asked, x.dir, nodes); !strings.HasPrefix(got, "\nNext:\n"+x.want+"  weft lab run web --node node1\n") {
			t.Errorf("after --dir %q it says %s", x.asked, got)
		}
	}
}
