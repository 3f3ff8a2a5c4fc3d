package worst

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weftnet/weft/policy"
)

var (
	searchFor  = flag.Duration("search", 0, "how long to search for worse policies")
	searchSeed = flag.Uint64("seed", 1, "the search's seed")
)

// allowed reports whether the policies of a recipe are within the limits, where
// those beyond cost next to nothing.
func allowed(r Recipe) bool {
	var sum policy.Size
	for _, p := range Scene(r).Policies[Others:] {
		if p.Size().Beyond(policy.MaxOfPolicy) != "" {
			return false
		}
		sum = sum.Plus(p.Size())
	}
	return sum.Beyond(policy.MaxOfNamespace) == ""
}

// TestSearch climbs to worse policies for as long as it is told, by turns by how
// long they take to compile and by how many entries they make, and tells what it
// found.
func TestSearch(t *testing.T) {
	if *searchFor == 0 {
		t.Skip("without -search")
	}
	g := rand.New(rand.NewPCG(*searchSeed, 0))
	type best struct {
		Recipe
		Cost
		worth float64
	}
	worth := []func(Cost) float64{
		func(c Cost) float64 { return float64(c.Compile) },
		func(c Cost) float64 { return float64(c.Verdicts + c.Classes + c.Within) },
	}
	sizes := []int{43 << 10, 256 << 10}
	all := map[[2]int]best{}
	tried := 0
	for end := time.Now().Add(*searchFor); time.Now().Before(end); {
		for s, size := range sizes {
			for w := range worth {
				r := all[[2]int{s, w}].Recipe
				if r.Size == 0 || g.IntN(8) == 0 {
					r = Issue(size).Mutate(g).Mutate(g).Mutate(g)
				} else {
					r = r.Mutate(g)
				}
				if !allowed(r) {
					continue
				}
				tried++
				c := Measure(r)
				if v := worth[w](c); v > all[[2]int{s, w}].worth {
					if again := Measure(r); again.Compile < c.Compile { // not by chance
						c = again
					}
					if v := worth[w](c); v > all[[2]int{s, w}].worth {
						all[[2]int{s, w}] = best{r, c, v}
					}
				}
			}
		}
	}
	fmt.Println("tried", tried)
	for k, b := range all {
		fmt.Printf("size %d, by %d: %+v\n\t%#v\n", sizes[k[0]], k[1], b.Cost, b.Recipe)
	}
}

// What was found to cost much stays within what there may be.
func TestFound(t *testing.T) {
	for _, r := range Found {
		if !allowed(r) {
			t.Errorf("%+v is beyond the limits", r)
		}
		if c := Measure(r); c.Verdicts > policy.MaxVerdicts+c.Classes {
			t.Errorf("%+v makes %+v", r, c)
		}
	}
}
