// Package sysctl reads and writes the kernel's network settings: the files
// below /proc/sys/net.
//
// A container that is not privileged sees /proc/sys read-only. For such a one,
// the node's own /proc/sys/net is mounted at Mount, and used from there. Either
// way the settings are those of the network namespace of the thread that opens
// the file.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Mount is where a container may have the node's /proc/sys/net.
const Mount = "/host/proc/sys/net"

// usual is where it is for everybody.
const usual = "/proc/sys/net"

// root is the directory in use.
var root = sync.OnceValue(func() string { return choose(Mount, usual) })

// choose returns mount if there are network settings, or else usual.
func choose(mount, usual string) string {
	// Any process has this one; an empty directory that waits for its mount
	// has it not.
	if _, err := os.Stat(filepath.Join(mount, "core")); err == nil {
		return mount
	}
	return usual
}

// Get returns a setting's value, as Get("ipv4/ip_forward"). Its error wraps
// fs.ErrNotExist when the kernel, or the interface in the name, has no such
// setting.
func Get(name string) (string, error) { return get(root(), name) }

// Set gives a setting a value. Its error wraps fs.ErrNotExist as that of Get.
func Set(name, value string) error { return set(root(), name, value) }

// Ensure is Set for a setting that may have the value already: where it has,
// nothing is written, so that settings that are right may be read-only.
func Ensure(name, value string) error {
	if old, err := Get(name); err != nil || old == value {
		return err
	}
	return Set(name, value)
}

func get(root, name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return "", fmt.Errorf("read the setting net/%s: %w", name, reason(err))
	}
	return strings.TrimSpace(string(b)), nil
}

// set does without an os.File, which would ask the poller for a file that is never
// polled: it takes half as long so, and every endpoint has a few of them.
func set(root, name, value string) error {
	// Without O_CREATE, as a name that is not there must not become a file.
	f, err := unix.Open(filepath.Join(root, name), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(f, []byte(value))
		err = errors.Join(err, unix.Close(f))
	}
	if err != nil {
		return fmt.Errorf("set net/%s to %s: %w", name, value, reason(err))
	}
	return nil
}

// reason says what to do about an error, where that is known.
func reason(err error) error {
	switch {
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: mount the node's %s, writable, at %s", err, usual, Mount)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: the capability NET_ADMIN is needed", err)
	}
	return err
}
