package cluster

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestNodesShareWhatDoesNotChange(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "node2", "containerd")
	const (
		blob     = "io.containerd.content.v1.content/blobs/sha256/0123"
		layer    = "io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs"
		database = "io.containerd.metadata.v1.bolt/meta.db"
	)
	for _, file := range []string{blob, layer + "/bin/sh", database, own + "/uuid"} {
		path := filepath.Join(from, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(file), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("sh", filepath.Join(from, layer, "bin/bash")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(from, layer, "tmp"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(from, layer, "tmp"), 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if err := clone(from, to); err != nil {
		t.Fatal(err)
	}
	for file, same := range map[string]bool{blob: true, layer + "/bin/sh": true, layer + "/bin/bash": true, database: false} {
		a, err := os.Lstat(filepath.Join(from, file))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.Lstat(filepath.Join(to, file))
		if err != nil {
			t.Fatal(err)
		}
		if os.SameFile(a, b) != same {
			t.Errorf("%s is shared: %v", file, !same)
		}
		if a.Size() != b.Size() || a.Mode().Type() != b.Mode().Type() {
			t.Errorf("%s is another: %v, %v", file, a, b)
		}
	}
	info, err := os.Stat(filepath.Join(to, layer, "tmp"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := info.Mode(), 0o777|fs.ModeSticky|fs.ModeDir; got != want {
		t.Errorf("mode %v, want %v", got, want)
	}
	if exists(filepath.Join(to, own)) {
		t.Error("two nodes have the same containerd")
	}
}
