package main

import (
	"io"
	"os"
	"syscall"
	"time"
)

// conversation is a connection to the agent's Unix socket. It is made of system calls,
// as package net takes as long to start as all else that weft-cni does.
type conversation struct {
	fd int
	// deadline is when reading and writing end with os.ErrDeadlineExceeded.
	deadline time.Time
}

// dial connects to the socket at path within patience.
func dial(path string, patience time.Duration) (*conversation, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	c := &conversation{fd, time.Now().Add(patience)}
	_, err = c.within(syscall.SO_SNDTIMEO, func() (int, error) { return 0, syscall.Connect(fd, &syscall.SockaddrUnix{Name: path}) })
	if err != nil {
		c.close()
		return nil, os.NewSyscallError("connect", err)
	}
	return c, nil
}

func (c *conversation) close() { syscall.Close(c.fd) }

// within repeats a call that a signal interrupted, and ends it at the deadline, which
// the socket's option is told.
func (c *conversation) within(option int, call func() (int, error)) (int, error) {
	for {
		left := time.Until(c.deadline)
		if left <= 0 {
			return 0, os.ErrDeadlineExceeded
		}
		// 0 would mean to wait for ever.
		timeout := syscall.NsecToTimeval(int64(max(left, time.Microsecond)))
		if err := syscall.SetsockoptTimeval(c.fd, syscall.SOL_SOCKET, option, &timeout); err != nil {
			return 0, os.NewSyscallError("setsockopt", err)
		}
		n, err := call()
		switch err {
		case syscall.EINTR:
		case syscall.EAGAIN:
			return max(n, 0), os.ErrDeadlineExceeded
		default:
			return max(n, 0), err
		}
	}
}

// Write implements io.Writer.
func (c *conversation) Write(b []byte) (written int, err error) {
	for written < len(b) {
		n, err := c.within(syscall.SO_SNDTIMEO, func() (int, error) {
			// The write of the system call would end the process where the agent is gone.
			return syscall.SendmsgN(c.fd, b[written:], nil, nil, syscall.MSG_NOSIGNAL)
		})
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// Read implements io.Reader.
func (c *conversation) Read(b []byte) (int, error) {
	n, err := c.within(syscall.SO_RCVTIMEO, func() (int, error) { return syscall.Read(c.fd, b) })
	if n == 0 && err == nil && len(b) > 0 {
		return 0, io.EOF
	}
	return n, err
}
