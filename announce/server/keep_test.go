package server

import (
	"log/slog"
	"testing"
	"time"
)

// What a node had it keeps until it may own it again, also where it takes long to find out what it is a candidate
// for, but not for longer than others wait for it.
func TestKeeps(t *testing.T) {
	for _, c := range []struct {
		stood        bool
		stoodAt, now int // in seconds since the start
		want         bool
	}{
		{false, 0, 4, true},
		{false, 0, 5, false},
		{true, 0, 2, true},
		{true, 0, 3, false},
		{true, 2, 4, true},
		{true, 4, 5, false},
	} {
		s := New("node1", slog.New(slog.DiscardHandler))
		s.stood, s.stoodAt, s.now = c.stood, time.Duration(c.stoodAt)*time.Second, time.Duration(c.now)*time.Second
		if got := s.keeps(); got != c.want {
			t.Errorf("%+v: it keeps what it had is %t", c, got)
		}
	}
}
