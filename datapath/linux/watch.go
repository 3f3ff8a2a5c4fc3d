package linux

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/internal/rtnetlink"
)

const (
	// lookAfter is how long changes that belong together may take to come: an
	// interface that goes takes its routes with it, one after the other. Changes
	// of the packet filter come at once, and are not waited for.
	lookAfter = 5 * time.Millisecond
	// overlooked is what is said of when there was more to tell than the socket
	// could hold.
	overlooked = "more than could be followed"
)

// Watch tells of what others change that is Weft's; see datapath.Watcher.
func (d *DataPlane) Watch(ctx context.Context, following func(), f func(datapath.Disturbance)) error {
	var w *watcher
	if err := d.in(func() (err error) { w, err = openWatcher(d.stamps); return err }); err != nil {
		return err
	}
	defer w.close()
	d.setWatcher(w)
	defer d.setWatcher(nil)
	stop := context.AfterFunc(ctx, w.wake)
	defer stop()
	following()
	for {
		urgent, err := w.wait()
		if err != nil || ctx.Err() != nil {
			return err
		}
		if !urgent {
			time.Sleep(lookAfter)
		}
		found := d.disturbed(w)
		// A device that goes takes what may be thousands of things with it.
		for _, what := range found[:min(len(found), 10)] {
			f(what)
		}
	}
}

// disturbed returns what others changed that was not returned yet.
func (d *DataPlane) disturbed(w *watcher) []datapath.Disturbance {
	d.state.Lock()
	defer d.state.Unlock()
	d.hear(w)
	found := w.found
	w.found = nil
	return found
}

// hear judges what the kernel has told so far. What the data plane itself
// does is whole when the lock is had, so that what it told last of an object
// is what the data plane wants, unless somebody else had a hand in it.
func (d *DataPlane) hear(w *watcher) {
	w.drain()
	seen := w.news
	w.news = seen.next()
	if d.compiler == nil {
		return // what there is will be read
	}
	found := d.judge(seen)
	w.found = append(w.found, found...)
	if len(found) > 0 || d.untold(seen) {
		d.follows = nil
	}
}

// looksInARow is how many calls of Repair in a row may go by what Watch heard.
// The next reads everything: a net under errors in Watch itself. One is known. The
// kernel numbers sockets by their processes, each as in its own container, so that
// what a process of another container does to nftables may look like our own.
const looksInARow = 9

// followed reports whether Watch has heard of all that others did since the data
// plane has read all there is.
func (d *DataPlane) followed() (bool, error) {
	w := d.watcher
	if w == nil || d.follows != w || d.looks >= looksInARow {
		return false, nil
	}
	d.hear(w)
	if len(w.found) > 0 {
		w.wake() // it tells of that
	}
	// Of a transaction that was not told yet nobody knows whose it is.
	now, err := nft.Generation()
	return d.follows == w && w.news.generation == now, err
}

func (d *DataPlane) setWatcher(w *watcher) {
	d.state.Lock()
	defer d.state.Unlock()
	d.watcher, d.follows = w, nil
}

// manyElements is how many elements of one change are too many to be told each.
const manyElements = 1000

// unheard writes nftables, and returns what each transaction did. The kernel need not tell Watch and
// Others each of many elements then, which would take longer than to write them, though Others has it
// pass over them: what others do meanwhile shows in the number of the ruleset's generation.
func (d *DataPlane) unheard(write func() ([][]string, error)) ([][]string, error) {
	w := d.watcher
	if w == nil {
		return write()
	}
	fd := w.filter.GetFd()
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_DROP_MEMBERSHIP, unix.NFNLGRP_NFTABLES); err != nil {
		return write()
	}
	others := d.others
	if others != nil && others.Hear(false) != nil {
		others = nil // it hears all
	}
	// Others' transactions must have been told until here, of which the kernel
	// tells a moment after they have got their number.
	w.drain()
	before, err := nft.Generation()
	heard := err == nil && w.news.generation == before
	done, failure := write()
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES); err != nil {
		failure = errors.Join(failure, os.NewSyscallError("follow the packet filter again", err))
	}
	if others != nil {
		failure = errors.Join(failure, others.Hear(true))
	}
	after, err := nft.Generation()
	alone := heard && err == nil && after == before+uint32(len(done))
	if others != nil && !alone {
		others.Miss()
	}
	w.news.overlooked = w.news.overlooked || !alone
	w.wake() // for what was read here
	w.news.generation = after
	return done, failure
}

// watcher has the sockets of one call of Watch.
type watcher struct {
	routing, filter *nl.NetlinkSocket
	// wakeRead gets a byte from wake.
	wakeRead, wakeWrite *os.File
	buffer              []byte
	news                *news
	// found is what was found in earlier news, until Watch tells it.
	found []datapath.Disturbance
}

func openWatcher(stamps Stamps) (_ *watcher, err error) {
	w := &watcher{buffer: make([]byte, 64<<10), news: newNews(stamps)}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	w.routing, err = rtnetlink.Subscribe(rtnetlink.Owned(stamps.Protocol), unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF, unix.RTNLGRP_TC)
	if err != nil {
		return nil, err
	}
	if w.filter, err = nl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES); err != nil {
		return nil, fmt.Errorf("subscribe to changes of the packet filter: %w", err)
	}
	for _, s := range []*nl.NetlinkSocket{w.routing, w.filter} {
		// A bound only, and where it cannot be had, there is less to follow.
		_ = s.SetReceiveBufferSize(nft.BufferSize, true)
	}
	if w.wakeRead, w.wakeWrite, err = os.Pipe(); err != nil {
		return nil, fmt.Errorf("open a pipe: %w", err)
	}
	// Where it cannot be had, nothing counts as followed until it is told.
	w.news.generation, _ = nft.Generation()
	return w, nil
}

func (w *watcher) close() {
	for _, s := range []*nl.NetlinkSocket{w.routing, w.filter} {
		if s != nil {
			s.Close()
		}
	}
	for _, f := range []*os.File{w.wakeRead, w.wakeWrite} {
		if f != nil {
			f.Close()
		}
	}
}

// wake ends a wait.
func (w *watcher) wake() { w.wakeWrite.Write([]byte{0}) }

// wait returns when there is something to read. It is urgent where that is
// about the packet filter.
func (w *watcher) wait() (urgent bool, err error) {
	fds := []unix.PollFd{{Fd: int32(w.routing.GetFd()), Events: unix.POLLIN}, {Fd: int32(w.filter.GetFd()), Events: unix.POLLIN},
		{Fd: int32(w.wakeRead.Fd()), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return false, os.NewSyscallError("poll", err)
		}
		if fds[2].Revents != 0 {
			w.wakeRead.Read(make([]byte, 16))
		}
		return fds[1].Revents != 0, nil
	}
}

// drain reads all that was told until now.
func (w *watcher) drain() {
	w.read(w.routing.GetFd(), w.news.Take)
	w.read(w.filter.GetFd(), w.news.filter)
}

func (w *watcher) read(fd int, take func(header unix.NlMsghdr, data []byte)) {
	for {
		n, from, err := unix.Recvfrom(fd, w.buffer, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS):
			w.news.overlooked = true
			continue
		case err != nil:
			return
		}
		if kernel, ok := from.(*unix.SockaddrNetlink); !ok || kernel.Pid != nl.PidKernel {
			continue
		}
		for b := w.buffer[:n]; len(b) >= unix.SizeofNlMsghdr; {
			h := unix.NlMsghdr{Len: binary.NativeEndian.Uint32(b), Type: binary.NativeEndian.Uint16(b[4:]), Flags: binary.NativeEndian.Uint16(b[6:]),
				Seq: binary.NativeEndian.Uint32(b[8:]), Pid: binary.NativeEndian.Uint32(b[12:])}
			if h.Len < unix.SizeofNlMsghdr || int(h.Len) > len(b) {
				break
			}
			take(h, b[unix.SizeofNlMsghdr:h.Len])
			b = b[min(len(b), int(h.Len+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
		}
	}
}
