package survey

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/internal/rtnetlink"
)

const (
	// gather is how long changes that belong together may take to come, and how often
	// at most it is told that there are any.
	gather = 100 * time.Millisecond
	// manyMessages is how many messages are read at once. What does not fit into a
	// socket is lost, which is as good as told.
	manyMessages = 64
	// room is how many bytes a socket holds.
	room = 32 << 10
)

// Changes are sockets that get what others change of what Obstacles looks at.
type Changes struct {
	files []*os.File
	// filter is that of them that is told of the packet filter.
	filter *os.File
	// missed gets something where the kernel may not have told all.
	missed chan struct{}
}

// Listen opens Changes in the calling thread's network namespace. What is stamped does
// not come, nor do rules of iptables-legacy, of which the kernel does not tell.
func Listen(own stamps.Stamps) (_ *Changes, err error) {
	c := &Changes{missed: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	routing, err := rtnetlink.Subscribe(rtnetlink.Others(own.Protocol, [4]byte([]byte(datapath.InterfacePrefix))), unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return nil, err
	}
	if err := c.take(routing); err != nil {
		return nil, err
	}
	filter, err := nft.SubscribeOthers(own.Tables()...)
	if err != nil {
		return nil, err
	}
	err = c.take(filter)
	c.filter = c.files[len(c.files)-1]
	return c, err
}

// Hear has the kernel tell of the packet filter, as it does at first, or not. It must not be called
// behind Close.
func (c *Changes) Hear(does bool) error {
	option := unix.NETLINK_DROP_MEMBERSHIP
	if does {
		option = unix.NETLINK_ADD_MEMBERSHIP
	}
	conn, err := c.filter.SyscallConn()
	if err != nil {
		return fmt.Errorf("follow the packet filter: %w", err)
	}
	var failure error
	err = conn.Control(func(fd uintptr) {
		failure = os.NewSyscallError("follow the packet filter", unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, option, unix.NFNLGRP_NFTABLES))
	})
	return errors.Join(err, failure)
}

// Miss has Follow tell of a change that the kernel may not have told.
func (c *Changes) Miss() {
	select {
	case c.missed <- struct{}{}:
	default:
	}
}

// take reads a socket from now on by Go's poller, with room for few messages.
func (c *Changes) take(s *nl.NetlinkSocket) error {
	defer s.Close()
	fd, err := unix.FcntlInt(uintptr(s.GetFd()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("duplicate a socket", err)
	}
	err = errors.Join(os.NewSyscallError("set a socket's buffer", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, room)),
		os.NewSyscallError("have a socket not block", unix.SetNonblock(fd, true)))
	c.files = append(c.files, os.NewFile(uintptr(fd), "netlink"))
	return err
}

// Close closes the sockets.
func (c *Changes) Close() {
	for _, f := range c.files {
		f.Close()
	}
}

// Follow calls f, from several goroutines, soon after others have changed something,
// until ctx ends; it then returns nil.
func (c *Changes) Follow(ctx context.Context, f func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	failed := make([]error, len(c.files))
	for i, file := range c.files {
		stop := context.AfterFunc(ctx, func() { file.SetReadDeadline(time.Unix(1, 0)) })
		defer stop()
		wg.Go(func() {
			defer cancel()
			for ctx.Err() == nil {
				if err := wait(file); errors.Is(err, os.ErrDeadlineExceeded) {
					return
				} else if err != nil {
					failed[i] = err
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(gather):
					f()
				}
			}
		})
	}
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-c.missed:
				f()
			}
		}
	})
	wg.Wait()
	return errors.Join(failed...)
}

// wait returns once there was something to read.
func wait(file *os.File) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("read a netlink socket: %w", err)
	}
	var failure error
	buffer := make([]byte, 1)
	err = conn.Read(func(fd uintptr) (something bool) {
		for range manyMessages {
			// What is longer than the buffer is cut off.
			_, _, err := unix.Recvfrom(int(fd), buffer, unix.MSG_DONTWAIT)
			switch {
			case errors.Is(err, unix.EAGAIN):
				return something
			case err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR):
				failure = os.NewSyscallError("read a netlink socket", err)
				return true
			}
			something = true
		}
		return true
	})
	return errors.Join(err, failure)
}
