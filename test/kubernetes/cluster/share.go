package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// What containerd keeps of images. It never changes these files: containers
// have layers of their own above.
var (
	containerdState = "/var/lib/containerd"
	immutable       = []string{"io.containerd.content.v1.content/blobs", "io.containerd.snapshotter.v1.overlayfs/snapshots"}
	// own tells one containerd from another.
	own = "io.containerd.grpc.v1.introspection"
)

// share gives what the node's containerd knows of images to other nodes, which
// have not been on yet: to load an image costs more than all else that a node
// does until it is ready. containerd stops meanwhile, for the sake of its
// databases.
func (m *machine) share(ctx context.Context, others []*machine) error {
	if len(others) == 0 || len(m.config.Images) == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.programs[containerd].stop(patience)
	for _, o := range others {
		if err := clone(m.config.disk(m.Name)+containerdState, m.config.disk(o.Name)+containerdState); err != nil {
			return fmt.Errorf("give the images of %s to %s: %w", m.Name, o.Name, err)
		}
		o.mu.Lock()
		o.loaded = true
		o.mu.Unlock()
	}
	return m.startContainerd(ctx)
}

// clone makes a copy of containerd's state that shares the files that do not
// change.
func clone(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		switch {
		case name == own:
			return fs.SkipDir
		case d.IsDir():
			return cloneDir(path, target)
		case below(name, immutable[0]) || below(name, immutable[1]):
			return os.Link(path, target)
		case d.Type().IsRegular():
			return copyFile(path, target)
		default:
			return fmt.Errorf("%s is neither a file nor a directory", path)
		}
	})
}

// cloneDir makes a directory like another, with what overlayfs keeps in its
// extended attributes.
func cloneDir(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	// The mode last: a change of the owner takes bits away.
	if err := errors.Join(os.Chown(to, int(owner.Uid), int(owner.Gid)), os.Chmod(to, info.Mode())); err != nil {
		return err
	}
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(from, list)
	if err != nil {
		return fmt.Errorf("list the attributes of %s: %w", from, err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(list[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(from, name, value)
		if err == nil {
			err = unix.Lsetxattr(to, name, value[:n], 0)
		}
		if err != nil {
			return fmt.Errorf("copy the attribute %s of %s: %w", name, from, err)
		}
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
