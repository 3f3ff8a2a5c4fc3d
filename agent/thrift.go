package agent

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// garbage is how much there may be, as a share in percent of what is known. What an
// agent knows of the cluster stays, and little comes and goes, so the node's
// memory is worth more than the processor's time. While everything is read and compiled for
// the first time it is garbageAtFirst: what is known grows all the while, and with half as much
// garbage the processor would look through it twice as often, and pods wait.
const garbage, garbageAtFirst = 20, 30

// garbageAlways is how much garbage there may be in any case, in bytes. Where little
// is known, a share of that is less than one change makes, and the processor would do
// nothing but collect it.
const garbageAlways = 4 << 20

// thrifty is called before a cluster is read, and the function it returns when
// all of it is known and in the data plane. Garbage is the process's, so that what
// is done about it is begun once, however often a cluster is read.
var thrifty = sync.OnceValue(func() func() { return sync.OnceFunc(beThrifty()) })

// beThrifty is what thrifty does the first time. Who sets GOGC decides instead.
func beThrifty() (settled func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	spare := &spareMemory{giveBack: func() {
		debug.FreeOSMemory()
		unmapProgram()
	}}
	var known atomic.Bool
	last := 0
	afterEachCollection(func() {
		share := garbageAtFirst
		if known.Load() {
			share = garbage
		}
		// What is known may become more or less at any time.
		if next := garbageFor(share, liveHeap()); next != last {
			last = next
			debug.SetGCPercent(next)
		}
		spare.collected()
	})
	return func() {
		known.Store(true)
		spare.keepSmall()
	}
}

// Memory that is not in use goes back to the kernel each seldom, but not while garbage
// is being collected more often than each calm: so an agent is as small after a burst of
// pods that came or went as it was before.
const (
	seldom = time.Minute
	calm   = 5 * time.Second
)

// spareMemory is given back now and then. Its methods may be called from any goroutine.
type spareMemory struct {
	giveBack func()
	// last is when garbage was collected last, in nanoseconds since the beginning of
	// 1970.
	last atomic.Int64
}

// collected notes that garbage was collected.
func (s *spareMemory) collected() { s.last.Store(time.Now().UnixNano()) }

// keepSmall gives back what is not in use, now and from now on.
func (s *spareMemory) keepSmall() {
	s.giveBack()
	var next func()
	next = func() {
		wait := calm
		if time.Since(time.Unix(0, s.last.Load())) >= calm {
			s.giveBack()
			wait = seldom
		}
		time.AfterFunc(wait, next)
	}
	time.AfterFunc(seldom, next)
}

// garbageFor returns how much garbage there may be where so many bytes are known, in
// percent of these, for a share in percent.
func garbageFor(share int, live uint64) int {
	return max(share, int(garbageAlways*100/max(live, garbageAlways/4)))
}

// liveHeap is how many bytes the last collection found in use.
func liveHeap() uint64 {
	sample := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	runtimemetrics.Read(sample)
	return sample[0].Value.Uint64()
}

// afterEachCollection has f called now and soon after each collection of garbage, one
// call at a time, as long as the process lives.
func afterEachCollection(f func()) {
	f()
	// What nobody refers to is found by the next collection. It has a pointer, as
	// small things without are kept together.
	runtime.AddCleanup(new(*byte), afterEachCollection, f)
}

// unmapProgram takes the pages of the program's file out of the process's memory. Most
// of them were needed at the start only; those that are needed again come back, one
// fault for some of them, from where the kernel keeps files. What cannot be taken out
// stays, and nothing is lost by it.
func unmapProgram() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.ReadFile("/proc/self/smaps") // proc_pid_smaps(5)
	if err != nil {
		return
	}
	var from, length uintptr
	for line := range strings.Lines(string(maps)) {
		var begin, end uintptr
		var mode string
		var changed int
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &begin, &end, &mode); n == 3 {
			from, length = begin, 0
			if mode[1] != 'w' && strings.HasSuffix(line, " "+program+"\n") {
				length = end - begin
			}
		} else if n, _ := fmt.Sscanf(line, "Anonymous: %d kB", &changed); n == 1 && changed == 0 && length > 0 {
			// Nothing in it was ever written to, so the file has all of it.
			unix.Syscall(unix.SYS_MADVISE, from, length, unix.MADV_DONTNEED)
		}
	}
}

// processorTime is what the process has used of the node's processors.
func processorTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
