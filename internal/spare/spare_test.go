package spare

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// filled is a variable that is not zero.
var filled = map[string]bool{"one": true}

func TestWhatIsCalledAfterEachCollection(t *testing.T) {
	calls := make(chan struct{}, 100)
	AfterEachCollection(func() {
		select {
		case calls <- struct{}{}:
		default: // the test is over
		}
	})
	<-calls // at once
	for range 3 {
		for called := false; !called; {
			runtime.GC()
			select {
			case <-calls:
				called = true
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

// Memory is given back at once and seldom, and not while much is collected.
func TestSpareMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		given := 0
		s := &memory{}
		s.giveBack = func() {
			given++
			s.collected()
		}
		s.keep(0)
		for _, c := range []struct {
			after     time.Duration
			collected bool // then
			want      int
		}{
			{0, false, 1},
			{seldom - 1, false, 1},
			{1, false, 2},
			{10 * seldom, false, 12},
			{seldom - 1, true, 12}, // it is busy
			{calm, true, 12},       // and still is
			{calm, false, 12},
			{calm, false, 13},
			{seldom - calm, false, 13},
			{2 * calm, false, 14},
		} {
			time.Sleep(c.after)
			synctest.Wait()
			if c.collected {
				s.collected()
			}
			if given != c.want {
				t.Errorf("%s later memory was given back %d times, want %d", c.after, given, c.want)
			}
		}
	})
}

// The pages of the program's file that nobody needs go, and what was written to stays.
func TestUnmapProgram(t *testing.T) {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	resident := func() (kilobytes int) {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(status)) {
			fmt.Sscanf(line, "RssFile: %d kB", &kilobytes)
		}
		return kilobytes
	}
	before := resident()
	unmapProgram()
	if after := resident(); after >= before {
		t.Errorf("%d kB of the program of %d kB are in memory, as many as before, %d kB", after, len(program)>>10, before)
	}
	if len(filled) == 0 { // which the program fills when it starts
		t.Error("a variable has lost its value")
	}
}
