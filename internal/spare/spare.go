// Package spare gives memory back to the kernel that a process has and does not need: what its
// garbage was in, and pages of its program, which the kernel brings back where they are needed. So a
// process is as small after a burst of work as it was before.
package spare

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// Memory goes back each seldom, but not while garbage is being collected more often than each calm.
const (
	seldom = time.Minute
	calm   = 5 * time.Second
)

// Keep gives memory back after a time, and from then on as long as the process lives.
func Keep(after time.Duration) {
	m := &memory{giveBack: func() {
		debug.FreeOSMemory()
		unmapProgram()
	}}
	AfterEachCollection(m.collected)
	m.keep(after)
}

// memory is given back now and then. Its methods may be called from any goroutine.
type memory struct {
	giveBack func()
	// last is when garbage was collected last, in nanoseconds since the beginning of
	// 1970.
	last atomic.Int64
}

// collected notes that garbage was collected.
func (m *memory) collected() { m.last.Store(time.Now().UnixNano()) }

// keep gives back what is not in use after a time, at once if that is none, and then now and then.
func (m *memory) keep(after time.Duration) {
	var next func()
	next = func() {
		wait := calm
		if time.Since(time.Unix(0, m.last.Load())) >= calm {
			m.giveBack()
			wait = seldom
		}
		time.AfterFunc(wait, next)
	}
	if after == 0 {
		m.giveBack()
		after = seldom
	}
	time.AfterFunc(after, next)
}

// AfterEachCollection has f called now and soon after each collection of garbage, one
// call at a time, as long as the process lives.
func AfterEachCollection(f func()) {
	f()
	// What nobody refers to is found by the next collection. It has a pointer, as
	// small things without are kept together.
	runtime.AddCleanup(new(*byte), AfterEachCollection, f)
}
