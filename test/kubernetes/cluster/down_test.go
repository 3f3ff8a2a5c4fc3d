package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/jsonfile"
)

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
	if err := os.WriteFile(filepath.Join(dir, jsonfile.TempPrefix+"1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrNone) {
		t.Errorf("got %v", err)
	}
	if err := Down(dir); err != nil || exists(dir) {
		t.Errorf("it is left: %v", err)
	}
}
