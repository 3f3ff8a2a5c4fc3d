package golden

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// judged is a test of which is kept what is said against it.
type judged struct {
	testing.TB
	said strings.Builder
}

func (j *judged) Helper()                         {}
func (j *judged) Fatal(args ...any)               { fmt.Fprintln(&j.said, args...) }
func (j *judged) Errorf(form string, args ...any) { fmt.Fprintf(&j.said, form, args...) }

func file(t *testing.T, name, got string, rewrite bool) (said string) {
	was := *update
	*update = rewrite
	defer func() { *update = was }()
	j := &judged{TB: t}
	File(j, name, []byte(got))
	return j.said.String()
}

func TestFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "golden")
	if said := file(t, name, "one\n", false); !strings.Contains(said, "no such file") {
		t.Errorf("of a file that is missing: %q", said)
	}
	if said := file(t, name, "one\n", true); said != "" {
		t.Errorf("it is not written: %s", said)
	}
	if said := file(t, name, "one\n", false); said != "" {
		t.Errorf("of a file that was written: %s", said)
	}
	for _, got := range []string{"two\n", "one", ""} {
		if said := file(t, name, got, false); !strings.Contains(said, name) || !strings.Contains(said, "one") {
			t.Errorf("of a file that differs: %q", said)
		}
	}
	if text, err := os.ReadFile(name); err != nil || string(text) != "one\n" {
		t.Errorf("the file became %q, %v", text, err)
	}
	if said := file(t, filepath.Join(name, "below"), "one\n", true); !strings.Contains(said, "not a directory") {
		t.Errorf("of a file that cannot be: %q", said)
	}
}

func TestAnswer(t *testing.T) {
	archive := txtar.Parse([]byte(`-- first --
1
-- first.out --
stale
-- nothing.yaml --
-- nothing.out --
-- second.yaml --
2
-- alone.out --
`))
	var asked []string
	archive.Files = Answer(archive.Files, func(name, question string) string {
		asked = append(asked, name)
		if question == "" {
			return ""
		}
		return "said " + question
	})
	const want = `-- first --
1
-- first.out --
said 1
-- nothing.yaml --
-- second.yaml --
2
-- second.out --
said 2
`
	if got := string(txtar.Format(archive)); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := strings.Join(asked, " "); got != "first nothing second" {
		t.Errorf("asked %s", got)
	}
}
