package agent

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestGarbageFor(t *testing.T) {
	for _, test := range []struct {
		share, want int
		live        uint64
	}{
		{30, 30, 1 << 30}, {30, 30, 14 << 20}, // of much, a share
		{30, 50, 8 << 20}, {30, 100, 4 << 20}, {15, 100, 4 << 20}, // of little, 4 MiB
		{30, 400, 1 << 20}, {30, 400, 0}, // of next to nothing, not without end
	} {
		if got := garbageFor(test.share, test.live); got != test.want {
			t.Errorf("share %d of %d bytes: %d percent, want %d", test.share, test.live, got, test.want)
		}
	}
}

func TestWhatIsCalledAfterEachCollection(t *testing.T) {
	calls := make(chan struct{}, 100)
	afterEachCollection(func() {
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
	if len(paces) == 0 { // which the program fills when it starts
		t.Error("a variable has lost its value")
	}
}
