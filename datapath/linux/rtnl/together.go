package rtnl

// Many requests by one system call: a node with ten thousand Services has as many routes.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/message"
)

// requestsTogether is how many requests the kernel gets at once. Where it refuses all of them, its
// answers take some 80 KiB of the socket's room, which is less than half of what kernels give it: what
// does not fit into it, they do not say. longestAnswer is more than any takes, in bytes.
const (
	requestsTogether = 64
	longestAnswer    = 4 << 10
)

// errUnanswered is what is said of a request of which the kernel said nothing.
var errUnanswered = errors.New("the kernel did not answer")

// executeTogether has the kernel do n requests, in their order and whether or not it refuses
// others of them, and returns what it says of each.
func (k *Kernel) executeTogether(n int, request func(i int) *nl.NetlinkRequest) []error {
	said := make([]error, 0, n)
	chunk := make([]*nl.NetlinkRequest, 0, min(n, requestsTogether))
	for i := range n {
		if chunk = append(chunk, request(i)); len(chunk) == cap(chunk) || i == n-1 {
			said, chunk = append(said, k.executeChunk(chunk)...), chunk[:0]
		}
	}
	return said
}

// executeChunk is executeTogether for requestsTogether at most.
func (k *Kernel) executeChunk(requests []*nl.NetlinkRequest) []error {
	socket := k.raw.Socket
	socket.Lock()
	defer socket.Unlock()
	last := atomic.AddUint32(&k.raw.Seq, uint32(len(requests)))
	first := last - uint32(len(requests)) + 1
	var all []byte
	for i, r := range requests {
		// What is refused is always said, and of the last one, that it was done as well.
		if r.Seq, r.Flags = first+uint32(i), r.Flags&^unix.NLM_F_ACK; r.Seq == last {
			r.Flags |= unix.NLM_F_ACK
		}
		all = append(all, r.Serialize()...)
	}
	said := make([]error, len(requests))
	fail := func(err error) []error {
		for i := range said {
			// Of what was refused before, it is known why.
			if said[i] == nil {
				said[i] = fmt.Errorf("%w: %w", errUnanswered, err)
			}
		}
		return said
	}
	if err := uninterrupted(func() error {
		return unix.Sendto(socket.GetFd(), all, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}); err != nil {
		return fail(err)
	}
	buffer := make([]byte, longestAnswer)
	for {
		var n int
		var from unix.Sockaddr
		// All that the kernel says is there by now.
		err := uninterrupted(func() (err error) {
			n, from, err = unix.Recvfrom(socket.GetFd(), buffer, unix.MSG_DONTWAIT)
			return err
		})
		if err != nil {
			return fail(err)
		}
		if kernel, ok := from.(*unix.SockaddrNetlink); !ok || kernel.Pid != nl.PidKernel {
			continue
		}
		answers, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return fail(err)
		}
		for _, a := range answers {
			// The distance of an answer to an earlier request is a large number.
			i := a.Header.Seq - first
			if i >= uint32(len(requests)) || a.Header.Type != unix.NLMSG_ERROR {
				continue
			}
			if said[i] = refusalIn(a); a.Header.Seq == last {
				return said
			}
		}
	}
}

// uninterrupted does a system call again where a signal came first.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// refusalIn is what an answer, struct nlmsgerr of linux/netlink.h, says of a request; nil where it was
// done. The kernel's own words come behind the request, or behind its header alone.
func refusalIn(a syscall.NetlinkMessage) error {
	const numberBytes = 4
	if len(a.Data) < numberBytes+unix.SizeofNlMsghdr {
		return errUnanswered
	}
	number := message.Int(a.Data[:numberBytes])
	if number == 0 {
		return nil
	}
	err := error(unix.Errno(-number))
	if a.Header.Flags&unix.NLM_F_ACK_TLVS == 0 {
		return err
	}
	behind := unix.SizeofNlMsghdr
	if a.Header.Flags&unix.NLM_F_CAPPED == 0 {
		behind = int(binary.NativeEndian.Uint32(a.Data[numberBytes:]))
	}
	for kind, v := range message.Attributes(a.Data[min(len(a.Data), max(0, numberBytes+behind)):]) {
		if kind == unix.NLMSGERR_ATTR_MSG {
			err = fmt.Errorf("%w: %s", err, unix.ByteSliceToString(v))
		}
	}
	return err
}
