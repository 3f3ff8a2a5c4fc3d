package main

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The load generator uses blocking sockets of the plain system calls: Go's
// poller would add its own wake-ups to every round trip, and its listeners
// speak MPTCP.

// The ports on which every worker serves.
const (
	streamPort    = 7001 // reads all it gets
	roundTripPort = 7002 // sends back each byte
	connectPort   = 7003 // closes each connection at once
)

const (
	// settle is how long a sample runs before it counts: neighbours are
	// learnt and TCP's window has opened by then.
	settle = 100 * time.Millisecond
	// stuck is how long a socket call may take before the sample fails.
	stuck = 10 * time.Second
	// chunk is how much one call sends or receives, in bytes.
	chunk = 128 << 10
)

// sample is what one run of one kind of load came to.
type sample struct {
	// Count is the bytes sent, the round trips, the connections, the answers, or the look-ups.
	Count uint64
	Took  time.Duration
	// CPU is how much processor time the whole machine spent meanwhile.
	CPU time.Duration
	// Median and P99 are of the single round trips, or of how long it took to be connected.
	Median, P99 time.Duration
	// Sent is how many queries look-ups took, and Lost how many were not answered in time.
	Sent, Lost uint64 `json:",omitzero"`
	// At is when what was awaited came, on a clock that all processes share.
	At time.Duration `json:",omitzero"`
}

// serve listens on the ports. It returns once clients can connect.
func serve() error {
	for port, handle := range map[int]func(fd int){streamPort: drain, roundTripPort: echo, connectPort: func(int) {}} {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			return fmt.Errorf("socket: %w", err)
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port}); err != nil {
			return fmt.Errorf("bind to port %d: %w", port, err)
		}
		if err := unix.Listen(fd, 1024); err != nil {
			return fmt.Errorf("listen on port %d: %w", port, err)
		}
		go func() {
			for {
				conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
				if err != nil {
					continue
				}
				if port == connectPort { // no goroutine: that is not what is measured
					unix.Close(conn)
					continue
				}
				go func() {
					defer unix.Close(conn)
					handle(conn)
				}()
			}
		}()
	}
	return nil
}

func drain(fd int) {
	b := make([]byte, chunk)
	for {
		if n, err := read(fd, b); n == 0 || err != nil {
			return
		}
	}
}

func echo(fd int) {
	if unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) != nil {
		return
	}
	var b [1]byte
	for {
		if n, err := read(fd, b[:]); n == 0 || err != nil {
			return
		}
		if _, err := write(fd, b[:]); err != nil {
			return
		}
	}
}

// dial connects, and fails where a call takes longer than so long.
func dial(to netip.AddrPort, patience time.Duration) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	timeout := unix.NsecToTimeval(int64(patience))
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &timeout); err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("set the socket's timeouts: %w", err)
		}
	}
	for {
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
		if err == unix.EINTR {
			continue
		}
		if err != nil && err != unix.EISCONN {
			unix.Close(fd)
			return -1, fmt.Errorf("connect to %s: %w", to, err)
		}
		return fd, nil
	}
}

// stream sends as fast as it can.
func stream(to netip.Addr, d time.Duration) (sample, error) {
	fd, err := dial(netip.AddrPortFrom(to, streamPort), stuck)
	if err != nil {
		return sample{}, err
	}
	defer unix.Close(fd)
	b := make([]byte, chunk)
	return measure(d, func(s *sample) error {
		n, err := write(fd, b)
		s.Count += uint64(n)
		return err
	})
}

// roundTrips sends a byte and waits for it, again and again.
func roundTrips(to netip.Addr, d time.Duration) (sample, error) {
	fd, err := dial(netip.AddrPortFrom(to, roundTripPort), stuck)
	if err != nil {
		return sample{}, err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return sample{}, err
	}
	var b [1]byte
	times := make([]time.Duration, 0, 1<<20)
	s, err := measure(d, func(s *sample) error {
		if s.Count == 0 {
			times = times[:0]
		}
		start := time.Now()
		if _, err := write(fd, b[:]); err != nil {
			return err
		}
		if n, err := read(fd, b[:]); err != nil {
			return err
		} else if n == 0 {
			return unix.ECONNRESET
		}
		times = append(times, time.Since(start))
		s.Count++
		return nil
	})
	slices.Sort(times)
	s.Median, s.P99 = quantile(times, 0.5), quantile(times, 0.99)
	return s, err
}

// connects opens connections that the server closes, one after the other.
func connects(to netip.Addr, d time.Duration) (sample, error) {
	var b [1]byte
	times := make([]time.Duration, 0, 1<<18)
	s, err := measure(d, func(s *sample) error {
		if s.Count == 0 {
			times = times[:0]
		}
		start := time.Now()
		fd, err := dial(netip.AddrPortFrom(to, connectPort), stuck)
		if err != nil {
			return err
		}
		times = append(times, time.Since(start))
		defer unix.Close(fd)
		if n, err := read(fd, b[:]); err != nil || n != 0 {
			return fmt.Errorf("wait for the server to close: %d bytes, %w", n, err)
		}
		s.Count++
		// A reset, so that neither side keeps a port waiting (TIME_WAIT).
		return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	})
	slices.Sort(times)
	s.Median, s.P99 = quantile(times, 0.5), quantile(times, 0.99)
	return s, err
}

// reach tries to connect until it can, for d at most, and says how long that took.
func reach(to netip.Addr, d time.Duration) (sample, error) {
	const pause, patience = 10 * time.Millisecond, 100 * time.Millisecond
	start := time.Now()
	for {
		fd, err := dial(netip.AddrPortFrom(to, connectPort), patience)
		took := time.Since(start)
		if err == nil {
			unix.Close(fd)
			return sample{Took: took}, nil
		}
		if took > d {
			return sample{}, err
		}
		time.Sleep(pause)
	}
}

// measure runs step again and again for settle, and then for d, of which it
// takes the time.
func measure(d time.Duration, step func(*sample) error) (sample, error) {
	var s sample
	run := func(d time.Duration) (time.Duration, error) {
		start := time.Now()
		for {
			if err := step(&s); err != nil {
				return 0, err
			}
			if took := time.Since(start); took >= d {
				return took, nil
			}
		}
	}
	if _, err := run(settle); err != nil {
		return s, err
	}
	s = sample{}
	before, err := processorTime()
	if err != nil {
		return s, err
	}
	if s.Took, err = run(d); err != nil {
		return s, err
	}
	after, err := processorTime()
	s.CPU = after - before
	return s, err
}

func read(fd int, b []byte) (int, error) {
	return again(func() (int, error) { return unix.Read(fd, b) })
}

func write(fd int, b []byte) (int, error) {
	return again(func() (int, error) { return unix.Write(fd, b) })
}

// again calls f until no signal interrupts it. Go preempts by signals.
func again(f func() (int, error)) (int, error) {
	for {
		if n, err := f(); err != unix.EINTR {
			return n, err
		}
	}
}

// processorTime is how long the machine's processors have worked, for anybody
// and in interrupts, since it booted.
func processorTime() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseProcessorTime(string(b))
}

// ticksPerSecond is USER_HZ, which is 100 on every architecture of Go's.
const ticksPerSecond = 100

// parseProcessorTime reads the first line of proc_stat(5): user, nice, system,
// idle, iowait, irq, softirq and more that a guest does not have.
func parseProcessorTime(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q, not with the times of all processors", line)
	}
	var ticks uint64
	for i, f := range fields[1:8] {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: field %d: %w", i+1, err)
		}
		if i != 3 && i != 4 {
			ticks += n
		}
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}
