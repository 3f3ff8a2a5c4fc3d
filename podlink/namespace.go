package podlink

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrOwnNetNS says that a path leads to the network namespace of this process
// itself, into which no pod may be put.
var ErrOwnNetNS = errors.New("this is the node's own network namespace")

// notMounted is the reason why a path that is right for the runtime is not so
// here: what is seen is the file below the mount.
const notMounted = "; for an agent in a container, its directory must be mounted with the propagation HostToContainer"

// CheckNetNS says why path cannot be a pod's network namespace; nil when it
// can. The errors it wraps are fs.ErrNotExist and ErrOwnNetNS.
func CheckNetNS(path string) error {
	// Opening a named pipe would block without O_NONBLOCK.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.EACCES) {
		return fmt.Errorf("open %s: %w%s", path, err, notMounted)
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	var pod, own unix.Stat_t
	if err := unix.Fstat(fd, &pod); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if fs.Type != unix.NSFS_MAGIC {
		why := ""
		if pod.Mode&unix.S_IFMT == unix.S_IFREG && pod.Size == 0 {
			why = notMounted
		}
		return fmt.Errorf("%s is not a network namespace%s", path, why)
	}
	if kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		return fmt.Errorf("%s is a namespace, but not a network namespace", path)
	}
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		return &os.PathError{Op: "stat", Path: "/proc/thread-self/ns/net", Err: err}
	}
	if pod.Dev == own.Dev && pod.Ino == own.Ino {
		return fmt.Errorf("%s: %w", path, ErrOwnNetNS)
	}
	return nil
}
