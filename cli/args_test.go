package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestFlagsSayWhatTheyTake gives every flag of every command what nobody would mean. Whoever
// refuses that names the flag and the value, says what to give, and leaves out how programs put
// it.
func TestFlagsSayWhatTheyTake(t *testing.T) {
	refused := 0
	var look func(cmd *cobra.Command)
	look = func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			for _, value := range []string{"nonsense", "99999999999999999999"} {
				err := cmd.Flags().Set(f.Name, value)
				if err == nil {
					continue
				}
				refused++
				text := cmd.FlagErrorFunc()(cmd, err).Error()
				if !strings.HasPrefix(text, fmt.Sprintf("--%s %q: ", f.Name, value)) || !strings.HasSuffix(text, " --help)") {
					t.Errorf("%s: it does not name the flag, the value and where to read more: %s", cmd.CommandPath(), text)
				}
				for _, raw := range []string{"strconv.", "time: ", "invalid "} {
					if strings.Contains(text, raw) {
						t.Errorf("%s: it says %q as programs do: %s", cmd.CommandPath(), raw, text)
					}
				}
			}
		})
		for _, c := range cmd.Commands() {
			look(c)
		}
	}
	look(newRoot())
	if refused == 0 {
		t.Error("no flag refuses anything")
	}
	for in, want := range map[string]string{
		"--nodes=x": `--nodes "x": give a whole number such as 3 (see: weft lab up --help)`,
		"--colour":  "unknown flag: --colour (see: weft lab up --help)",
	} {
		cmd, _, err := newRoot().Find([]string{"lab", "up"})
		if err == nil {
			err = cmd.ParseFlags([]string{in})
		}
		if err != nil {
			err = cmd.FlagErrorFunc()(cmd, err)
		}
		if err == nil || err.Error() != want {
			t.Errorf("of %s it says %v, and not %s", in, err, want)
		}
	}
}
