package agent

import (
	"os"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/spare"
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
	var known atomic.Bool
	last := 0
	spare.AfterEachCollection(func() {
		share := garbageAtFirst
		if known.Load() {
			share = garbage
		}
		// What is known may become more or less at any time.
		if next := garbageFor(share, liveHeap()); next != last {
			last = next
			debug.SetGCPercent(next)
		}
	})
	return func() {
		known.Store(true)
		spare.Keep(0)
	}
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

// processorTime is what the process has used of the node's processors.
func processorTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
