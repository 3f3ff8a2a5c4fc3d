package plantest

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// moreRounds is how often cases are drawn again to meet what none has met: a name that one round in a hundred
// misses is then missed once in 10^22.
const moreRounds = 10

// CheckMeeting checks a property as [rapid.Check] does. It fails also where no case met one of the
// names, that is, called meets with it: then the generator has become too poor for the property
// to say anything. A name that the cases missed by chance is looked for in further cases before that.
func CheckMeeting(t *testing.T, names []string, property func(t *rapid.T, meets func(name string))) {
	t.Helper()
	met := make(map[string]int)
	missed := func(name string) bool { return met[name] == 0 }
	for round := 0; round == 0 || round <= moreRounds && slices.ContainsFunc(names, missed); round++ {
		rapid.Check(t, func(t *rapid.T) { property(t, func(name string) { met[name]++ }) })
		if t.Failed() {
			return
		}
	}
	for _, name := range names {
		if missed(name) {
			t.Errorf("never met: %s; the cases met %v", name, slices.Sorted(maps.Keys(met)))
		}
	}
}
