package networkpolicy

import "time"

// sooner returns the lesser of two times to wait, 0 being without end.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
