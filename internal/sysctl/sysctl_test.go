package sysctl

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weftnet/weft/internal/netns"
	"golang.org/x/sys/unix"
)

func TestTheMountIsUsedWhereItIs(t *testing.T) {
	dir := t.TempDir()
	if got := choose(dir, "usual"); got != "usual" {
		t.Errorf("an empty directory was taken for the node's settings: %s", got)
	}
	if err := os.Mkdir(filepath.Join(dir, "core"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := choose(dir, "usual"); got != dir {
		t.Errorf("got %s, want %s", got, dir)
	}
}

func TestGetAndSet(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "forward"), []byte("0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := set(dir, "forward", "1"); err != nil {
		t.Fatal(err)
	}
	if got, err := get(dir, "forward"); err != nil || got != "1" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := set(dir, "none", "1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a setting that the kernel lacks: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "none")); err == nil {
		t.Error("a file was made of a setting that the kernel lacks")
	}
	if _, err := get(dir, "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a setting that the kernel lacks: %v", err)
	}
}

// TestReadOnly has the settings mounted as a container runtime does.
func TestReadOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts /proc/sys/net")
	}
	dir := t.TempDir()
	err := netns.Thread(func() error {
		if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_NEWNET|unix.CLONE_FS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount(usual, dir, "", unix.MS_BIND, "")); err != nil {
			return err
		}
		// Writable, the mount shows and changes the thread's own namespace.
		if err := set(dir, "ipv4/conf/lo/forwarding", "1"); err != nil {
			t.Error(err)
		}
		if got, err := get(usual, "ipv4/conf/lo/forwarding"); got != "1" {
			t.Errorf("got %q, %v", got, err)
		}
		if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return err
		}
		err := set(dir, "ipv4/conf/lo/forwarding", "0")
		if !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), Mount) {
			t.Errorf("the error does not say what to mount: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
