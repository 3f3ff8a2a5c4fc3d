package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestAnIDIsOfOneProcess(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for name, other := range map[string]ID{
		"started at another time": {p.PID, p.Started + 1, p.Boot},
		"of another boot":         {p.PID, p.Started, "another"},
		"of nobody":               {},
	} {
		if other.Alive() {
			t.Errorf("a process %s is taken for it", name)
		}
		if err := other.Kill(); err != nil {
			t.Errorf("kill a process %s: %v", name, err)
		}
	}
	if !p.Alive() {
		t.Fatal("it was killed in another's place")
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if p.Alive() {
		t.Error("it is alive after it was killed")
	}
	if _, err := Identify(p.PID); err == nil {
		t.Error("a process that nobody has waited for yet is identified")
	}
	if err := p.Kill(); err != nil {
		t.Errorf("killed again: %v", err)
	}
}

func TestTail(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	if got := Tail(log); got != "" {
		t.Errorf("the end of no log is %q", got)
	}
	var lines []string
	for i := range 20 {
		lines = append(lines, fmt.Sprint("line ", i))
	}
	for _, c := range []struct{ text, want string }{
		{" \n", ""},
		{"out of paper\n", "\n  the end of " + log + ":\n    out of paper"},
		{strings.Join(lines, "\n"), "\n  the end of " + log + ":\n    " + strings.Join(lines[12:], "\n    ")},
	} {
		if err := os.WriteFile(log, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Tail(log); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
