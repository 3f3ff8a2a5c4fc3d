// Package await waits in tests for what must come true.
package await

import (
	"testing"
	"time"
)

// How long to wait before trying again, at first and at most.
const (
	firstPause   = 10 * time.Millisecond
	longestPause = 200 * time.Millisecond
)

// NoError tries until try returns nil, and ends the test with what it said last
// where that is not so within a time. what says what is waited for.
func NoError(t testing.TB, within time.Duration, what string, try func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so after %s: %v", what, within, err)
		}
		time.Sleep(pause)
	}
}
