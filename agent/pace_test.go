package agent

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var paces = map[string]func() pace{"changes": paceOfChanges, "rest": paceOfTheRest, "owner": paceOfOwner}

func TestALoneChangeDoesNotWait(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := paces[rapid.SampledFrom([]string{"changes", "owner", "rest"}).Draw(t, "pace")]()
		took := rapid.Int64Range(1, int64(100*time.Millisecond)).Draw(t, "took")
		every := time.Duration(took) * rapid.SampledFrom([]time.Duration{time.Duration(p.share), 100}).Draw(t, "parts")
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
		p := paces[rapid.SampledFrom([]string{"changes", "owner", "rest"}).Draw(t, "pace")]()
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

// Of those to whom something is owed all the time, each gets a hundredth of the time
// and what it may take at once. Who comes anew waits for none of them.
func TestWhoTakesMuchWaits(t *testing.T) {
	turns := newTurns()
	const took = 100 * time.Millisecond
	spent := map[string]time.Duration{}
	begin := time.Unix(0, 0)
	now := begin
	greedy := []string{"blue", "green"}
	for now.Sub(begin) < time.Hour {
		owner, wait := turns.next(greedy, now)
		now = now.Add(wait + took)
		turns.took(owner, took, now)
		spent[owner] += took
		slices.Reverse(greedy)
	}
	for owner, sum := range spent {
		if most := paceBurst + took + now.Sub(begin)/100; sum > most {
			t.Errorf("%s took %s of %s", owner, sum, now.Sub(begin))
		}
	}
	if owner, wait := turns.next([]string{"blue", "shop", "green"}, now); owner != "shop" || wait > paceOfTheRest().longest {
		t.Errorf("after %s, it is the turn of %s", wait, owner)
	}
	now = now.Add(time.Hour)
	turns.took("shop", took, now)
	if len(turns.owners) != 1 {
		t.Errorf("%d owners are known long after they took something", len(turns.owners)-1)
	}
}

// Whose changes take no longer than ordinary ones never rests. Whose take much longer
// does, until its hundredth of the time has made up for it.
func TestWhoIsCharged(t *testing.T) {
	turns := newTurns()
	now := time.Unix(0, 0)
	for range 1000 {
		now = now.Add(10 * time.Millisecond)
		turns.hurried([]string{"shop"}, ordinary, now)
	}
	if resting := turns.resting(now); len(resting) > 0 {
		t.Errorf("%v rest", resting)
	}
	for range 4 {
		now = now.Add(500 * time.Millisecond)
		turns.hurried([]string{"blue"}, 400*time.Millisecond, now)
	}
	if resting := turns.resting(now); !resting["blue"] || len(resting) != 1 {
		t.Errorf("%v rest, want blue", resting)
	}
	if resting := turns.resting(now.Add(paceOfOwner().longest)); len(resting) > 0 {
		t.Errorf("%v still rest", resting)
	}
}
