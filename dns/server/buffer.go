package server

import (
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// buffer is what the kernel says of the queries that wait at a socket to be read.
type buffer struct {
	// size is how much of its memory they may take, in bytes.
	size uint32
	// dropped is how many it had no room for since the socket was opened, modulo 1<<32.
	dropped uint32
}

// bufferOf returns that of a socket.
func bufferOf(c *net.UDPConn) (b buffer, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return buffer{}, err
	}
	// See enum sk_meminfo_vars in the kernel's linux/sock_diag.h.
	const receiveSize, drops, all = 1, 8, 9
	var said [all]uint32
	length := uint32(unsafe.Sizeof(said))
	var failed unix.Errno
	if err := raw.Control(func(fd uintptr) {
		_, _, failed = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&said)), uintptr(unsafe.Pointer(&length)), 0)
	}); err != nil {
		return buffer{}, err
	}
	if failed != 0 {
		return buffer{}, os.NewSyscallError("getsockopt", failed)
	}
	return buffer{said[receiveSize], said[drops]}, nil
}

// buffers returns that of the smallest size, and how many queries all together had no room since the
// server began, or before at sockets that it was given then.
func (s *Server) buffers() (smallest, dropped uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dropped = s.unread
	for _, p := range s.pairs {
		b, err := bufferOf(p.udp)
		if err != nil {
			continue // it is being closed
		}
		if smallest == 0 || uint64(b.size) < smallest {
			smallest = uint64(b.size)
		}
		dropped += uint64(b.dropped)
	}
	return smallest, dropped
}

// leave takes note of how many queries had no room at sockets that are read no more. mu is held.
func (s *Server) leave(p *pair) {
	if b, err := bufferOf(p.udp); err == nil {
		s.unread += uint64(b.dropped)
	}
}
