package jsonfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWriteLeavesNoHalfFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.json")
	type value struct{ N int }
	for _, v := range []value{{1}, {2}} {
		if err := Write(path, v); err != nil {
			t.Fatal(err)
		}
		var got value
		if err := Read(path, &got); err != nil || got != v {
			t.Errorf("the file holds %v, %v; want %v", got, err, v)
		}
	}
	if err := Write(path, func() {}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a function was written: %v", err)
	}
	if err := Write(dir, value{3}); err == nil {
		t.Error("a directory was replaced")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if entries, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), TempPrefix+"*")); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.json")
	var v map[string]int
	if err := Read(path, &v); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a file that is missing: %v", err)
	}
	if err := os.WriteFile(path, []byte(`{"a": `), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Read(path, &v); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("of half a file: %v", err)
	}
}
