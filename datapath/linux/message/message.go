// Package message reads the messages that a kernel sends on netlink sockets, those
// that the libraries do not read, or not in full: an iterator over the attributes of
// one, the numbers in these, and lists that are asked for until nothing interrupts
// them.
package message

import (
	"encoding/binary"
	"errors"
	"iter"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Attributes yields the attributes of a message.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofRtAttr {
			length := int(binary.NativeEndian.Uint16(b))
			if length < unix.SizeofRtAttr || length > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&nl.NLA_TYPE_MASK, b[unix.SizeofRtAttr:length]) {
				return
			}
			b = b[min(len(b), (length+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1)):]
		}
	}
}

// Int is a number of four bytes in the machine's order; 0 for any other length.
func Int(b []byte) int {
	if len(b) != 4 {
		return 0
	}
	return int(int32(binary.NativeEndian.Uint32(b)))
}

// Octet is a number of one byte; 0 for any other length.
func Octet(b []byte) uint8 {
	if len(b) != 1 {
		return 0
	}
	return b[0]
}

// BigEndian is a number of four bytes in the network's order; 0 for any other length.
func BigEndian(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// Dump repeats a dump that others' changes interrupted (NLM_F_DUMP_INTR). One
// that never comes through is an error.
func Dump[T any](f func() (T, error)) (T, error) {
	var result T
	var err error
	for range 20 {
		result, err = f()
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return result, err
}
