package lab

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
)

// newNetwork makes a network namespace that lasts as long as the file at path
// stays mounted.
func newNetwork(path string) error {
	return netns.Thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w (this needs root)", err)
		}
		return bindFile("/proc/thread-self/ns/net", path)
	})
}

// newMounts makes a mount namespace at path like newNetwork does, in which
// setup has run, within the network namespace at network.
func newMounts(path, network string, setup func() error) error {
	ready, release := make(chan int), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- netns.Thread(func() error {
			// Unsharing mounts unshares root and working directory as well,
			// without which a thread may not do so.
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("make a mount namespace: %w (this needs root)", err)
			}
			if err := netns.Enter(network, unix.CLONE_NEWNET); err != nil {
				return err
			}
			if err := setup(); err != nil {
				return err
			}
			ready <- unix.Gettid()
			<-release
			return nil
		})
	}()
	select {
	case err := <-done:
		return err
	case tid := <-ready:
		// A mount namespace can be mounted only in an older one, so this is
		// done by a thread that has stayed outside.
		err := bindFile(fmt.Sprintf("/proc/self/task/%d/ns/mnt", tid), path)
		close(release)
		return errors.Join(err, <-done)
	}
}

// bindFile mounts the file at source over a new file at target.
func bindFile(source, target string) error {
	f, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	f.Close()
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return errors.Join(fmt.Errorf("mount %s on %s: %w", source, target, err), os.Remove(target))
	}
	return nil
}

// privateMount makes dir a mount of its own whose mounts no other namespace
// gets. The kernel wants that where mount namespaces are mounted.
func privateMount(dir string) error {
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on itself: %w", dir, err)
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mount at %s private: %w", dir, err)
	}
	return nil
}

// releaseFile undoes bindFile. It is no error when nothing is there.
func releaseFile(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil &&
		!errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// unmountBelow unmounts everything at dir and below, the innermost first.
func unmountBelow(dir string) error {
	points, err := mountPoints()
	if err != nil {
		return err
	}
	var errs []error
	for i := len(points) - 1; i >= 0; i-- {
		if p := points[i]; p == dir || strings.HasPrefix(p, dir+"/") {
			if err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil &&
				!errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("unmount %s: %w", p, err))
			}
		}
	}
	return errors.Join(errs...)
}

// mountPoints lists this mount namespace's mount points, a mount after the one
// that it is mounted on.
func mountPoints() ([]string, error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var points []string
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) > 4 {
			points = append(points, mountinfoUnescape.Replace(fields[4]))
		}
	}
	return points, nil
}

// mountinfoUnescape undoes what proc_pid_mountinfo(5) does to blanks.
var mountinfoUnescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// followHost makes mounts that the machine unmounts go away here too, and
// keeps what is mounted here from the machine.
func followHost() error {
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep mounts from the machine: %w", err)
	}
	return nil
}

// mountSys replaces /sys by one that shows the network namespace of the
// calling thread. The control groups stay. stage is a directory to work in.
func mountSys(stage string) error {
	if err := os.MkdirAll(stage, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("sysfs", stage, "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount sysfs: %w", err)
	}
	const groups = "fs/cgroup"
	if err := unix.Mount("/sys/"+groups, filepath.Join(stage, groups), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount control groups: %w", err)
	}
	if err := unix.Mount(stage, "/sys", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move sysfs to /sys: %w", err)
	}
	return os.Remove(stage)
}
