// Package netns runs functions inside other network and mount namespaces.
package netns

import (
	"fmt"
	"runtime"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The main thread is kept for the main goroutine. A thread that entered a
// namespace ends with its goroutine, except the main thread, which cannot: it
// would stay there, keep the namespace alive after its end, and be what
// /proc/PID/ns shows of the process.
func init() { runtime.LockOSThread() }

// Do runs f in the network namespace at path, on a thread of its own, and
// returns f's error. Processes that f starts begin in that namespace, and
// /proc/sys/net is that namespace's. Goroutines that f starts are not in it.
func Do(path string, f func() error) error {
	return Thread(func() error {
		if err := Enter(path, unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// Visit is Do for work that starts no processes. It brings the thread back to
// where it was, for others to use, which is quicker than to make another.
func Visit(path string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("open the thread's own network namespace: %w", err)
			return
		}
		defer unix.Close(home)
		if err = Enter(path, unix.CLONE_NEWNET); err == nil {
			err = f()
		}
		// A thread that cannot come back ends with this goroutine.
		if unix.Setns(home, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// DoMount is Do with a mount namespace as well.
func DoMount(netPath, mountPath string, f func() error) error {
	return Thread(func() error {
		// A thread can enter a mount namespace only when it shares its
		// working directory and root with no other.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare file system attributes: %w", err)
		}
		if err := Enter(netPath, unix.CLONE_NEWNET); err != nil {
			return err
		}
		if err := Enter(mountPath, unix.CLONE_NEWNS); err != nil {
			return err
		}
		return f()
	})
}

// Enter moves the calling thread, which must be one of Thread's, into the
// namespace at path. kind is the CLONE_NEW… flag of what the path must be.
func Enter(path string, kind int) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open namespace %s: %w", path, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, kind); err != nil {
		return fmt.Errorf("enter namespace %s: %w", path, err)
	}
	return nil
}

// Thread runs f on a thread that ends with it, so that f may change the
// thread's namespaces: a goroutine that ends while locked takes its thread with
// it. A child that f starts with a parent-death signal gets it at f's end.
func Thread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock
		done <- f()
	}()
	return <-done
}

// Netlink calls f with a routing netlink handle in the namespace at path, and
// with the namespace's own.
func Netlink(path string, f func(*netlink.Handle, vnetns.NsHandle) error) error {
	ns, err := vnetns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink in network namespace %s: %w", path, err)
	}
	defer h.Close()
	return f(h, ns)
}
