package unanswered

import (
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// message is the kernel's struct mmsghdr, with the struct iovec that it refers to. The kernel writes
// the client's address and the query to where these say, and the length last.
type message struct {
	header unix.Msghdr
	length uint32
	_      uint32
	into   unix.Iovec
}

// lengthIn is where in a message its length is, in bytes.
const lengthIn = int(unsafe.Offsetof(message{}.length))

// A message lies before the client's address.
const _ = uint(nameAt - messageAt - int(unsafe.Sizeof(message{})))

// messageOf returns that of a page. Its pointers are those that the process wrote that reads.
func messageOf(page []byte) *message { return (*message)(unsafe.Pointer(&page[messageAt])) }

// word returns a number in a slot that others may read at any time, as if this process ended.
func word(slot []byte, at int) *uint32 { return (*uint32)(unsafe.Pointer(&slot[at])) }

// Reader reads queries from a socket. It is not for more than one goroutine.
type Reader struct {
	m    *Memory
	at   netip.AddrPort
	most int
	raw  syscall.RawConn
	// slot is the one into which it reads, or -1 where that is a page of its own.
	slot int
	page []byte
	// receive is the method receiveFrom.
	receive func(fd uintptr) bool
	label   label
	failed  unix.Errno
}

// Reader returns one of a socket that has an address, for queries of most bytes; of longer ones it
// reads as much.
func (m *Memory) Reader(c *net.UDPConn, at netip.AddrPort, most int) (*Reader, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &Reader{m: m, at: at, most: min(most, room), raw: raw}
	r.receive = r.receiveFrom
	if slot, ok := m.take(&m.pages); ok {
		r.use(slot)
		return r, nil
	}
	page, err := unix.Mmap(-1, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	r.slot = -1
	r.prepare(page)
	return r, nil
}

// use has the kernel write into a slot from now on.
func (r *Reader) use(slot int) {
	r.slot = slot
	r.prepare(r.m.layout.slot(r.m.bytes, slot))
}

func (r *Reader) prepare(page []byte) {
	r.page = page
	m := messageOf(page)
	atomic.StoreUint32(&m.length, 0)
	m.into.Base = &page[dataAt]
	m.into.SetLen(r.most)
	m.header = unix.Msghdr{Name: &page[nameAt], Iov: &m.into}
	m.header.SetIovlen(1)
	r.label = label{at: r.at}
	r.label.put(page)
	atomic.StoreUint32(word(page, stateAt), reading)
}

// receiveFrom reads a query, and reports whether there was one, or an error.
func (r *Reader) receiveFrom(fd uintptr) bool {
	m := messageOf(r.page)
	for {
		// The page is written to, so that it is there: if the kernel had to wait for it, the end of the
		// process would cut that short, and the query would be lost.
		r.label.number, r.label.read = r.m.number.Add(1), r.m.now()
		order.PutUint64(r.page[numberAt:], r.label.number)
		order.PutUint64(r.page[readAt:], uint64(r.label.read))
		m.header.Namelen = dataAt - nameAt
		n, _, failed := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(m)), 1, unix.MSG_DONTWAIT, 0, 0)
		switch {
		case failed == unix.EINTR:
			continue
		case failed == unix.EAGAIN, failed == 0 && n == 0:
			return false
		}
		r.failed = failed
		return true
	}
}

// Read waits for a query, and returns its client. Its errors are those of net.UDPConn.ReadFrom. What is
// not held before the next one is read is dropped.
func (r *Reader) Read() (client netip.AddrPort, err error) {
	atomic.StoreUint32(&messageOf(r.page).length, 0)
	if err := r.raw.Read(r.receive); err != nil {
		return netip.AddrPort{}, err
	}
	if r.failed != 0 {
		return netip.AddrPort{}, os.NewSyscallError("recvmmsg", r.failed)
	}
	r.label.from, r.label.length = source(r.page), min(int(messageOf(r.page).length), r.most)
	return r.label.from, nil
}

// Hold returns the query that was read last. What does not fit into a small slot stays in the page,
// and the next query gets another one. It is called once.
func (r *Reader) Hold() Query {
	length := &messageOf(r.page).length
	data := r.page[dataAt : dataAt+r.label.length]
	q := Query{At: r.at, From: r.label.from, Read: r.m.started.Add(r.label.read - r.m.base)}
	if len(data) == 0 {
		return q // It is in no slot, as the kernel has written no length.
	}
	if len(data) <= slotRoom {
		if slot, ok := r.m.take(&r.m.small); ok {
			into := r.m.layout.slot(r.m.bytes, slot)
			r.label.put(into)
			q.Data, q.Held = into[labelSize:labelSize+len(data):labelSize+len(data)], Held{r.m, slot}
			copy(q.Data, data)
			atomic.StoreUint32(word(into, stateAt), held)
			atomic.StoreUint32(length, 0)
			return q
		}
	} else if r.slot >= 0 {
		if next, ok := r.m.takeLarge(r.slot, q.From.Addr()); ok {
			r.label.put(r.page)
			q.Data, q.Held = data[:len(data):len(data)], Held{r.m, r.slot}
			atomic.StoreUint32(word(r.page, stateAt), held)
			r.use(next)
			return q
		}
	}
	q.Data = append([]byte(nil), data...)
	atomic.StoreUint32(length, 0)
	return q
}

// Close gives back what the reader had. Nothing is read any more.
func (r *Reader) Close() {
	if r.slot < 0 {
		unix.Munmap(r.page)
		return
	}
	Held{r.m, r.slot}.Free()
}

// monotonic returns CLOCK_MONOTONIC, which is the same in all processes.
func monotonic() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, os.NewSyscallError("clock_gettime", err)
	}
	return time.Duration(t.Nano()), nil
}
