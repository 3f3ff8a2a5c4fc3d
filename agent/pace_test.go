package agent

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var paces = map[string]func() pace{"changes": paceOfChanges, "rest": paceOfTheRest}

func TestALoneChangeDoesNotWait(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := paces[rapid.SampledFrom([]string{"changes", "rest"}).Draw(t, "pace")]()
		took := rapid.Int64Range(1, int64(100*time.Millisecond)).Draw(t, "took")
		every := time.Duration(took) * rapid.SampledFrom([]time.Duration{time.Duration(p.share), 50}).Draw(t, "parts")
		now := time.Unix(0, 0)
		p.took(rapid.SampledFrom([]time.Duration{0, paceBurst - 100*time.Millisecond}).Draw(t, "first"), now)
		for range 200 {
			now = now.Add(every)
			if b := p.breath(now); b != 0 {
				t.Fatalf("a change every %s waits %s, though its round takes %s", every, b, time.Duration(took))
			}
			now = now.Add(time.Duration(took))
			p.took(time.Duration(took), now)
		}
	})
}

// However long rounds take, and however often changes come, rounds get their
// share of the time, and none waits longer than it may.
func TestManyChangesGather(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := paces[rapid.SampledFrom([]string{"changes", "rest"}).Draw(t, "pace")]()
		share := time.Duration(p.share)
		now := time.Unix(0, 0)
		var busy time.Duration
		for range 2000 {
			b := p.breath(now)
			if b < 0 || b > p.longest {
				t.Fatalf("a round waits %s", b)
			}
			now = now.Add(b)
			took := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(p.longest/share)).Draw(t, "took"))
			now = now.Add(took)
			busy += took
			p.took(took, now)
		}
		if most := paceBurst + 2*p.longest/share + now.Sub(time.Unix(0, 0))/share; busy > most {
			t.Errorf("rounds took %s of %s", busy, now.Sub(time.Unix(0, 0)))
		}
	})
}

// After a round as long as the first of a large cluster, the next waits once.
func TestALongRoundIsForgiven(t *testing.T) {
	for name, make := range paces {
		p := make()
		now := time.Unix(0, 0)
		p.took(time.Minute, now)
		if b := p.breath(now); b != p.longest {
			t.Errorf("%s: the next round waits %s", name, b)
		}
		if b := p.breath(now.Add(p.longest)); b != 0 {
			t.Errorf("%s: a change after that waits %s", name, b)
		}
	}
}
