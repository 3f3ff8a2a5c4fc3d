package agent

import "testing"

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
