package keeper_test

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// tight is how much room a server of that name gives its sockets, in bytes.
const tight = 4096

// room says how much room a socket has.
func room(c *net.UDPConn) string {
	raw, err := c.SyscallConn()
	if err != nil {
		panic(err)
	}
	size := 0
	if failed := raw.Control(func(fd uintptr) { size, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF) }); failed != nil || err != nil {
		panic(failed)
	}
	if size <= 2*tight { // the kernel takes twice of it
		return "its socket is tight"
	}
	return "its socket has room"
}

// TestTakenSocketsHaveRoom: sockets that a keeper takes over have the room that it would give new ones,
// as the node's limit may be another one since they were opened.
func TestTakenSocketsHaveRoom(t *testing.T) {
	s := socket(t)
	begin(t, s, "tight", "127.0.0.1")
	serving(t, s, 1)
	begin(t, s, "room", "127.0.0.1")
	problem(t, s, "its socket has room")
}
