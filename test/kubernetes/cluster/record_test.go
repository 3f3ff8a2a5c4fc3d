package cluster

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestARecordIsOfOneProcess(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	r, err := recordOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for name, other := range map[string]record{
		"started at another time": {r.PID, r.Started + 1, r.Boot},
		"of another boot":         {r.PID, r.Started, "another"},
		"of nobody":               {},
	} {
		if other.alive() {
			t.Errorf("a process %s is taken for it", name)
		}
		if err := other.kill(); err != nil {
			t.Errorf("kill a process %s: %v", name, err)
		}
	}
	if !r.alive() {
		t.Fatal("it was killed in another's place")
	}
	if err := r.kill(); err != nil {
		t.Fatal(err)
	}
	if r.alive() {
		t.Error("it is alive after it was killed")
	}
	if err := r.kill(); err != nil {
		t.Errorf("killed again: %v", err)
	}
}

func TestADirectoryOfSomethingElseStays(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "precious")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Down(dir); err == nil || !strings.Contains(err.Error(), "holds no cluster") {
		t.Errorf("got %v", err)
	}
	if !exists(file) {
		t.Error("the file was removed")
	}
}

func TestDownWithoutACluster(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	if err := Down(dir); err != nil {
		t.Error(err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrNone) {
		t.Errorf("got %v", err)
	}
	// What an Up leaves that was killed at once.
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".new-1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrNone) {
		t.Errorf("got %v", err)
	}
	if err := Down(dir); err != nil || exists(dir) {
		t.Errorf("it is left: %v", err)
	}
}
