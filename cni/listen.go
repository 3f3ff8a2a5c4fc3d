package cni

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxSocketPath is the longest path of a Unix socket, in bytes (unix(7)).
const maxSocketPath = 107

// Listen makes the Unix socket at path and accepts only what root connects.
// A socket that a dead agent left is replaced; it is an error if somebody
// still listens. The directory is made if it is not there, and may be written
// by root only. The socket's file stays when the listener closes, because by
// then it may be the next agent's.
func Listen(path string) (net.Listener, error) {
	dir, temp := filepath.Dir(path), path+".new"
	if len(temp) > maxSocketPath {
		return nil, fmt.Errorf("the socket's path %s has %d characters; at most %d are possible", path, len(path), maxSocketPath-len(".new"))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if st.Mode&0o022 != 0 || st.Uid != uint32(os.Geteuid()) {
		return nil, fmt.Errorf("the socket's directory %s may be written by others than its owner root: choose another, or chmod go-w it", dir)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("%s is there and is not a socket: remove it or choose another path", path)
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		conn.Close()
		return nil, fmt.Errorf("somebody listens at %s: is an agent running on this node already?", path)
	} else if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("try the socket %s: %w", path, err)
	}
	// Renaming a socket that is ready and has its mode means that there is
	// never a moment in which a client finds less.
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(temp, 0o600)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the socket %s: %w", path, err), l.Close(), os.Remove(temp))
	}
	return rootOnly{l}, nil
}

// rootOnly accepts connections from processes of root.
type rootOnly struct{ *net.UnixListener }

func (l rootOnly) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if uid, err := peerUID(conn); err == nil && uid == 0 {
			return conn, nil
		}
		conn.Close()
	}
}

// peerUID returns the user of the process that connected (SO_PEERCRED in
// unix(7)).
func peerUID(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if ctlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); ctlErr != nil {
		return 0, ctlErr
	}
	if err != nil {
		return 0, err
	}
	return cred.Uid, nil
}
