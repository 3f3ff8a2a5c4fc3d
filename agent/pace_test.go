package agent

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/plugin"
)

var paces = map[string]func() pace{"changes": paceOfChanges, "rest": paceOfTheRest, "owner": paceOfOwner, "slices": paceOfSlices}

func TestALoneChangeDoesNotWait(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := paces[rapid.SampledFrom([]string{"changes", "owner", "rest", "slices"}).Draw(t, "pace")]()
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
		p := paces[rapid.SampledFrom([]string{"changes", "owner", "rest", "slices"}).Draw(t, "pace")]()
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

// debtsOf are debts of one kind, of some owners.
func debtsOf(slices bool, owners ...string) (debts []plugin.Debt) {
	for _, owner := range owners {
		debts = append(debts, plugin.Debt{Of: "what is asked for", Owner: owner, Slices: slices})
	}
	return debts
}

// Of those to whom something is owed all the time, each gets a hundredth of the time
// and what it may take at once. Of slices all together get a third, and each as much as another.
// Who comes anew waits for none of them.
func TestWhoTakesMuchWaits(t *testing.T) {
	for _, sliced := range []bool{false, true} {
		turns := newTurns()
		const took = 100 * time.Millisecond
		spent := map[plugin.Debt]time.Duration{}
		begin := time.Unix(0, 0)
		now := begin
		greedy := debtsOf(sliced, "blue", "green")
		for now.Sub(begin) < time.Hour {
			d, wait := turns.next(greedy, now)
			now = now.Add(wait + took)
			turns.took(d, took, took, nil, now)
			spent[d] += took
			slices.Reverse(greedy)
		}
		most := now.Sub(begin) / 100
		if sliced {
			most = now.Sub(begin) / 6
		}
		for d, sum := range spent {
			if sum > most+paceBurst+took || sliced && sum < most-took {
				t.Errorf("%s took %s of %s", d.Owner, sum, now.Sub(begin))
			}
		}
		if d, wait := turns.next(debtsOf(sliced, "blue", "shop", "green"), now); d.Owner != "shop" || wait > paceOfTheRest().longest {
			t.Errorf("after %s, it is the turn of %s", wait, d.Owner)
		}
		now = now.Add(time.Hour)
		turns.took(debtsOf(sliced, "shop")[0], took, took, nil, now)
		if len(turns.debts) != 1 {
			t.Errorf("%d are known long after they took something", len(turns.debts)-1)
		}
	}
}

// What takes long keeps its pace where there are slices as well, and these keep theirs; who waits
// for the one kind does not wait for what it had of the other.
func TestEachKindHasItsPace(t *testing.T) {
	turns := newTurns()
	long, short := debtsOf(false, "blue")[0], debtsOf(true, "blue")[0]
	spent := map[plugin.Debt]time.Duration{}
	const took = 50 * time.Millisecond
	begin := time.Unix(0, 0)
	now := begin
	for now.Sub(begin) < time.Hour {
		d, wait := turns.next([]plugin.Debt{long, short}, now)
		now = now.Add(wait + took)
		turns.took(d, took, took, nil, now)
		spent[d] += took
	}
	for d, share := range map[plugin.Debt]time.Duration{long: 100, short: 3} {
		if most := now.Sub(begin) / share; spent[d] < most*9/10 || spent[d] > most+paceBurst+took {
			t.Errorf("of %s, that which comes in slices being %t took %s", now.Sub(begin), d.Slices, spent[d])
		}
	}
	if resting := turns.resting(now); !resting[long] {
		t.Errorf("%v rest", resting)
	}
}

// A slice that waited for a processor has taken none from pods.
func TestASliceCostsWhatItUses(t *testing.T) {
	turns := newTurns()
	now := time.Unix(0, 0)
	d := debtsOf(true, "blue")
	for range 20 {
		now = now.Add(time.Second)
		turns.took(d[0], time.Second, 40*time.Millisecond, nil, now)
		if _, wait := turns.next(d, now); wait > 0 {
			t.Fatalf("waits for %s", wait)
		}
	}
}

// Whose changes are followed beside a slice has what is more than that takes on him, as if they had been
// followed alone.
func TestWhoHurriesBesideASlice(t *testing.T) {
	turns := newTurns()
	now := time.Unix(0, 0)
	slice, shop, blue := debtsOf(true, "green")[0], debtsOf(false, "shop"), debtsOf(false, "blue")
	for range 100 {
		now = now.Add(300 * time.Millisecond)
		turns.took(slice, 500*time.Millisecond, 2*ordinary, shop, now)
	}
	if resting := turns.resting(now); resting[shop[0]] {
		t.Errorf("%v rest", resting)
	}
	for range 4 {
		now = now.Add(time.Second)
		turns.took(slice, 500*time.Millisecond, 400*time.Millisecond, blue, now)
	}
	if resting := turns.resting(now); !resting[blue[0]] {
		t.Errorf("%v rest, want blue", resting)
	}
}

// Whose changes take no longer than ordinary ones never rests. Whose take much longer
// does, until its hundredth of the time has made up for it.
func TestWhoIsCharged(t *testing.T) {
	turns := newTurns()
	now := time.Unix(0, 0)
	shop, blue := debtsOf(false, "shop"), debtsOf(false, "blue")
	for range 1000 {
		now = now.Add(10 * time.Millisecond)
		turns.hurried(shop, ordinary, now)
	}
	if resting := turns.resting(now); len(resting) > 0 {
		t.Errorf("%v rest", resting)
	}
	for range 4 {
		now = now.Add(500 * time.Millisecond)
		turns.hurried(blue, 400*time.Millisecond, now)
	}
	if resting := turns.resting(now); !resting[blue[0]] || len(resting) != 1 {
		t.Errorf("%v rest, want blue", resting)
	}
	if resting := turns.resting(now.Add(paceOfOwner().longest)); len(resting) > 0 {
		t.Errorf("%v still rest", resting)
	}
}
