// Package netns runs functions inside other network and mount namespaces.
package netns

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Do runs f in the network namespace at path, on a thread of its own, and
// returns f's error. Processes that f starts begin in that namespace, and
// /proc/sys/net is that namespace's. Goroutines that f starts are not in it.
func Do(path string, f func() error) error {
	return inThread(f, func() error { return enter(path, unix.CLONE_NEWNET) })
}

// DoMount is Do with a mount namespace as well.
func DoMount(netPath, mountPath string, f func() error) error {
	return inThread(f, func() error {
		// A thread can enter a mount namespace only when it shares its
		// working directory and root with no other.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare file system attributes: %w", err)
		}
		if err := enter(netPath, unix.CLONE_NEWNET); err != nil {
			return err
		}
		return enter(mountPath, unix.CLONE_NEWNS)
	})
}

func enter(path string, kind int) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open namespace: %w", err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), kind); err != nil {
		return fmt.Errorf("enter namespace %s: %w", path, err)
	}
	return nil
}

// inThread runs prepare and f on a locked thread that ends with the call: a
// goroutine that ends while locked takes its thread with it, so a namespace
// never leaks into other goroutines.
func inThread(f, prepare func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := prepare(); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}
