package agent

import (
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// How much garbage there may be, as a share in percent of what is known. What an
// agent knows of the cluster stays, and little comes and goes, so the node's
// memory is worth more than the processor's time; all the more while everything
// is read and compiled for the first time, as what is kept must not be strewn
// among what is not.
const (
	garbageAtFirst = 15
	garbage        = 30
)

// beThrifty is called before a cluster is read, and the function it returns when
// all of it is known and in the data plane. Who sets GOGC decides instead.
func beThrifty() (settled func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	debug.SetGCPercent(garbageAtFirst)
	return func() {
		debug.SetGCPercent(garbage)
		debug.FreeOSMemory()
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
