package printable

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestLine(t *testing.T) {
	for said, want := range map[string]string{
		"no route to 10.1.0.2: “é”\nand\tmore": "no route to 10.1.0.2: “é”; and more",
		"\x1b[2J\x1b[HNo problems.\r\a":        `\u001b[2J\u001b[HNo problems.\u000d\u0007`,
		"\u009b2J\x7f":                         `\u009b2J\u007f`,
		"\u202eenod\xff":                       `\u202eenod` + "\ufffd",
		"\U000e0041":                           `\U000e0041`,
	} {
		if got := Line(said); got != want {
			t.Errorf("%q is shown as %q, not %q", said, got, want)
		}
	}
	if got := Lines("a\x1b\nb\n"); got != "a\\u001b\nb\n" {
		t.Errorf("lines are shown as %q", got)
	}
}

func TestBrief(t *testing.T) {
	most := strings.Repeat("é", MaxBrief)
	for message, want := range map[string]string{"": "", "é\n": "é\n", most: most, most + "é": most + "…"} {
		if got := Brief(message); got != want {
			t.Errorf("of %d bytes are left %d", len(message), len(got))
		}
	}
}

func TestFew(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e"}
	for _, test := range []struct {
		named, others int
		want          string
	}{{1, 0, "a"}, {3, 0, "a, b, c"}, {4, 0, "a, b, c and 1 more"}, {2, 7, "a, b and 7 more"}, {5, 7, "a, b, c and 9 more"}} {
		if got := Few(names[:test.named], test.others); got != test.want {
			t.Errorf("of %d names and %d others it says %q, not %q", test.named, test.others, got, test.want)
		}
	}
}

func TestSentence(t *testing.T) {
	for want, messages := range map[string][]string{"": nil, "a": {"a"}, "a; b; c": {"a", "b", "c"}, "a; b; c; and 2 more": {"a", "b", "c", "d", "e"}} {
		if got := Sentence(messages); got != want {
			t.Errorf("of %q it says %q, not %q", messages, got, want)
		}
	}
}

type named string

// The format's own tabs and newlines stay; those of values of any type do not.
func TestFprintf(t *testing.T) {
	var b strings.Builder
	n, err := Fprintf(&b, "%-*s|\t%s %v %d %q %5.1f\n%v", 4, "a\n", named("\x1b"), errors.New("b\tc"), uint16(7), "\x1b", 1.25, nil)
	want := "a;   |\t\\u001b b c 7 \"\\x1b\"   1.2\n<nil>"
	if b.String() != want || n != len(want) || err != nil {
		t.Errorf("it is %q, and not %q; %d, %v", b.String(), want, n, err)
	}
}

// JSON reads as what was written, and has nothing in it that a terminal obeys.
func TestJSON(t *testing.T) {
	said := map[string]string{"a\u009b": "\x1b[2J\x7f\u202e\U000e0041\n\t<é😀"}
	for _, indent := range []string{"", "  "} {
		var b strings.Builder
		if err := JSON(&b, indent, said); err != nil {
			t.Fatal(err)
		}
		if strings.ReplaceAll(Line(b.String()), "; ", "\n") != b.String() {
			t.Errorf("it has what is not printable: %q", b.String())
		}
		var read map[string]string
		if err := json.Unmarshal([]byte(b.String()), &read); err != nil || fmt.Sprint(read) != fmt.Sprint(said) {
			t.Errorf("%q is read from %q, %v", read, b.String(), err)
		}
	}
}
