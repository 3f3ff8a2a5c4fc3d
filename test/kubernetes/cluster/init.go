package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// boot is what a node's first process is told.
type boot struct {
	Hostname string
	// Root is where the node's root is assembled: an overlay over the
	// machine's, whose changes are in Upper, with Work beside it.
	Root, Upper, Work string
	// Binds are directories of the machine that the node has at a path of its
	// own: path to directory.
	Binds map[string]string
	// Shown are directories of the machine that the node sees where they are,
	// on whatever file system, and cannot write to.
	Shown []string
	// Files are written at the node's first boot: path to content.
	Files map[string]string
	// Groups are the node's control groups, of which it sees nothing above.
	Groups groups
}

// daemons is the group, within its node's, of the node's own programs. A group
// of version 2 that has children with controllers cannot have processes.
const daemons = "daemons"

// sysctls of the whole machine that the kubelet wants to set: the node has
// files that hold what it wants instead.
var sysctls = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// runInit is the first process of a node's process namespace: it makes the
// node's root, says "ok" on standard output, and waits for what nobody else
// waits for. Its end is the node's. It runs on the main thread.
func runInit() error {
	var b boot
	if err := json.NewDecoder(os.Stdin).Decode(&b); err != nil {
		return fmt.Errorf("this command is for the cluster's own use: %w", err)
	}
	if err := b.prepare(); err != nil {
		return err
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	if _, err := fmt.Println("ok"); err != nil {
		return err
	}
	for range children {
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if pid <= 0 && !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
	return nil
}

// mount mounts, and makes the directory to mount at.
func mount(source, target, kind string, flags uintptr, data string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}

const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// prepare makes the node's root the process's root.
func (b boot) prepare() error {
	if err := unix.Sethostname([]byte(b.Hostname)); err != nil {
		return fmt.Errorf("set host name %s: %w", b.Hostname, err)
	}
	// The root of the new namespace is where the process is.
	if err := b.Groups.enter(); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("make a control group namespace: %w", err)
	}
	if err := b.Groups.child(daemons).enter(); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep mounts from the machine: %w", err)
	}
	layers := fmt.Sprintf("lowerdir=/,upperdir=%s,workdir=%s", b.Upper, b.Work)
	if err := mount("overlay", b.Root, "overlay", 0, layers); err != nil {
		return err
	}
	if err := b.fill(); err != nil {
		return err
	}
	if err := b.mountGroups(); err != nil {
		return err
	}
	for _, dir := range b.Shown {
		target := b.Root + dir
		if err := mount(dir, target, "", unix.MS_BIND, ""); err != nil {
			return err
		}
		if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("protect %s: %w", target, err)
		}
	}
	for path, dir := range b.Binds {
		if err := mount(dir, b.Root+path, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	for path, content := range b.Files {
		if err := writeFile(b.Root+path, content); err != nil {
			return err
		}
	}
	// The old root is mounted on the new one, and then let go.
	if err := unix.Chdir(b.Root); err != nil {
		return fmt.Errorf("enter %s: %w", b.Root, err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("make %s the root: %w", b.Root, err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the machine's root: %w", err)
	}
	// Volumes that pods mount are to be seen in others, as on a machine.
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share mounts within the node: %w", err)
	}
	return unix.Chdir("/")
}

// fill mounts what a machine's root has besides files.
func (b boot) fill() error {
	if err := mount("/dev", b.Root+"/dev", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	for _, m := range []struct {
		kind, path string
		flags      uintptr
		data       string
	}{
		{"tmpfs", "/dev/shm", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"proc", "/proc", safe, ""},
		{"sysfs", "/sys", safe, ""},
		{"tmpfs", "/run", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
		{"tmpfs", "/tmp", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	} {
		if err := mount(m.kind, b.Root+m.path, m.kind, m.flags, m.data); err != nil {
			return err
		}
	}
	// Absent in a kernel without BPF, which a data plane that needs it says.
	if err := unix.Mount("bpf", b.Root+"/sys/fs/bpf", "bpf", safe, "mode=700"); err != nil &&
		!errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("mount bpf: %w", err)
	}
	for name, value := range sysctls {
		if !exists("/proc/sys/" + name) {
			continue // this kernel does not have it
		}
		file := b.Root + "/run/sysctl/" + name
		if err := writeFile(file, value+"\n"); err != nil {
			return err
		}
		if err := unix.Mount(file, b.Root+"/proc/sys/"+name, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("cover the sysctl %s: %w", name, err)
		}
	}
	return nil
}

// mountGroups mounts the machine's hierarchies where the machine has them.
func (b boot) mountGroups() error {
	const top = "/sys/fs/cgroup"
	all := b.Groups.Hierarchies
	if len(all) != 1 || all[0].Path != top {
		if err := mount("tmpfs", b.Root+top, "tmpfs", safe, "mode=755"); err != nil {
			return err
		}
	}
	for _, h := range all {
		kind := "cgroup"
		if h.unified() {
			kind = "cgroup2"
		}
		if err := mount(kind, b.Root+h.Path, kind, safe, h.Options); err != nil {
			return err
		}
	}
	return nil
}

// writeFile writes a file that only its owner reads, unless all must.
func writeFile(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if strings.HasSuffix(path, ".key") || strings.HasSuffix(path, ".kubeconfig") {
		mode = 0o600
	}
	return os.WriteFile(path, []byte(content), mode)
}
