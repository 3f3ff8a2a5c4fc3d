// Package kernel looks for a probe in the kernel of the machine it runs on, and
// sends one. It shows what packets passed which devices, by a packet socket, and
// what nftables decided about them, by a table of the probe's own that has the
// kernel trace it, and nothing else. All of it goes with the process.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/trace"
)

// Watching is a node that looks for a probe.
type Watching struct {
	watch   trace.Watch
	table   *netlink.Conn
	traces  *netlink.Conn
	packets *os.File
	names   *ruleset
	// legacy are the programs of iptables-legacy that have tables there.
	legacy []string
	// devices are those on which packets came in, by their names.
	devices map[string]bool
	// ending says that each source is to be read until it has nothing more.
	ending atomic.Bool
}

const (
	// traceBuffer is how much the kernel keeps of what it tells until that is
	// read, in bytes: some thousand decisions.
	traceBuffer = 4 << 20
	// settle is how long a source has nothing more to tell of the probe before it is
	// at its end, for packets that are still on their way.
	settle = 200 * time.Millisecond
	// mostSettle bounds that, where what looks like the probe does not end: who asked
	// waits little longer.
	mostSettle = 3 * time.Second
)

// Open begins to look. It must be closed.
func Open(w trace.Watch) (*Watching, error) {
	if err := w.Validate(); err != nil {
		return nil, err
	}
	o := &Watching{watch: w, devices: make(map[string]bool)}
	err := o.open()
	if err != nil {
		o.Close()
		return nil, err
	}
	return o, nil
}

func (o *Watching) open() (err error) {
	if o.names, err = openRuleset(); err != nil {
		return fmt.Errorf("open a netfilter netlink socket: %w", err)
	}
	if o.legacy, err = legacyTables(); err != nil {
		return err
	}
	if o.traces, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
		return fmt.Errorf("open a netfilter netlink socket: %w", err)
	}
	if err = o.traces.SetReadBuffer(traceBuffer); err != nil {
		return fmt.Errorf("make room for what the kernel traces: %w", err)
	}
	if err = o.traces.JoinGroup(unix.NFNLGRP_NFTRACE); err != nil {
		return fmt.Errorf("follow what the kernel traces: %w", err)
	}
	if o.packets, err = openCapture(o.watch); err != nil {
		return err
	}
	o.table, err = openTable(o.watch)
	return err
}

// Close ends it. Nothing is left in the kernel.
func (o *Watching) Close() {
	for _, c := range []*netlink.Conn{o.table, o.traces} {
		if c != nil {
			c.Close()
		}
	}
	if o.packets != nil {
		o.packets.Close()
	}
	if o.names != nil {
		o.names.close()
	}
}

// Run calls f with what happens, one event at a time. It returns nil once ctx
// ends; or after ending is closed, when all that the kernel had to tell was
// told. An error says that from here on something is missing.
func (o *Watching) Run(ctx context.Context, ending <-chan struct{}, f func(trace.Event)) error {
	var mu sync.Mutex
	one := func(e trace.Event) {
		mu.Lock()
		defer mu.Unlock()
		f(e)
	}
	wake := func() {
		past := time.Unix(1, 0)
		_ = o.traces.SetReadDeadline(past)
		_ = o.packets.SetReadDeadline(past)
	}
	looking, stop := context.WithCancelCause(ctx)
	var running, waiting sync.WaitGroup
	defer waiting.Wait()
	defer stop(nil)
	waiting.Go(func() {
		select {
		case <-ending:
			wake()
			o.ending.Store(true) // readers that see it set deadlines of their own
			<-looking.Done()
		case <-looking.Done():
		}
		wake()
	})
	for _, read := range []func(context.Context, func(trace.Event)) error{o.readDecisions, o.readPackets} {
		running.Go(func() {
			if err := read(looking, one); err != nil {
				stop(err)
			}
		})
	}
	running.Wait()
	if ctx.Err() != nil {
		return nil
	}
	if err := context.Cause(looking); err != nil {
		return err
	}
	return o.tellUntraced(f)
}

// source is what is read.
type source interface {
	syscall.Conn
	SetReadDeadline(time.Time) error
}

// each calls next, which waits for something to be read and says whether that was of
// the probe, until ctx ends; or once the end was asked for, until nothing of the probe
// has come for a while and all that came beside it is read. Others may send without end.
func (o *Watching) each(ctx context.Context, from source, next func() (own bool, err error)) error {
	return each(ctx, &o.ending, from.SetReadDeadline, func() (bool, error) { return isReadable(from) }, next)
}

func each(ctx context.Context, asked *atomic.Bool, deadline func(time.Time) error, readable func() (bool, error), next func() (own bool, err error)) error {
	var quiet, last time.Time // once the end was asked for
	for ctx.Err() == nil {
		ending := asked.Load()
		if now := time.Now(); ending {
			if last.IsZero() {
				quiet, last = now.Add(settle), now.Add(mostSettle)
			}
			until := quiet
			if !now.Before(quiet) {
				if more, err := readable(); err != nil || !more {
					return err
				}
				until = last
			}
			if !now.Before(last) {
				return fmt.Errorf("%s after the end more of what looks like the probe was still to be read: others send too much between these addresses, ask again when it is less", mostSettle)
			}
			if until.After(last) {
				until = last
			}
			if err := deadline(until); err != nil {
				return err
			}
		}
		own, err := next()
		switch {
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case own && ending:
			quiet = time.Now().Add(settle)
		}
	}
	return nil
}

// isReadable reports whether there is something to be read now.
func isReadable(from source) (is bool, err error) {
	conn, err := from.SyscallConn()
	if err != nil {
		return false, err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		var n int
		if n, failed = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0); errors.Is(failed, unix.EINTR) {
			n, failed = 1, nil // to be asked again after a read, which waits no longer than it may
		}
		is = n > 0
	})
	return is, os.NewSyscallError("poll", errors.Join(err, failed))
}
