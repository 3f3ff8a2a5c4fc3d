package rtnl

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

// TestRenamesComeToRightNames has interfaces called anything that there is to be called: by
// their own names, each other's, and those of nobody, with others' interfaces among them.
// Whoever is stopped behind any step and starts again comes to the same names. No
// step gives a name that is taken. What stays without its name stays so because another's
// interface has that, and stands under nobody else's.
func TestRenamesComeToRightNames(t *testing.T) {
	right := map[int]string{1: "a", 2: "b", 3: "c", 4: "d"}
	const others = 2 // interfaces of others, 5 and 6
	names := []string{"a", "b", "c", "d", "e", "f", "x0"}
	cases := 0
	for called := range namings(len(right)+others, names) {
		cases++
		end, stuck := follow(t, called, right)
		for index, name := range right {
			holder, taken := end[name]
			if at := nameOf(end, index); at != name && (!taken || right[holder] != "" || !slices.Contains(stuck, index)) {
				t.Fatalf("%v: interface %d ends as %s, and %s is that of %d", called, index, at, name, holder)
			} else if at != name && slices.Contains(slices.Collect(maps.Values(right)), at) && end[at] == index && !isStuck(right, stuck, at) {
				t.Fatalf("%v: interface %d ends as %s, which is another's name", called, index, at)
			}
		}
		for index := len(right) + 1; index <= len(right)+others; index++ {
			if nameOf(end, index) != nameOf(called, index) {
				t.Fatalf("%v: another's interface %d is renamed to %s", called, index, nameOf(end, index))
			}
		}
	}
	if cases < 5000 {
		t.Errorf("only %d cases", cases)
	}
}

// isStuck reports whether the interface whose name it is cannot have it.
func isStuck(right map[int]string, stuck []int, name string) bool {
	return slices.ContainsFunc(stuck, func(index int) bool { return right[index] == name })
}

// follow takes the steps, begins anew behind each, and returns what everything is called
// then.
func follow(t *testing.T, named map[string]int, right map[int]string) (end map[string]int, stuck []int) {
	t.Helper()
	end = maps.Clone(named)
	for n := 0; ; n++ {
		steps, stuck := renames(end, right, func(int) string { return "x" })
		if len(steps) == 0 {
			return end, stuck
		}
		if _, taken := end[steps[0].to]; taken || n > 20 {
			t.Fatalf("%v: step %d is %v", named, n, steps[0])
		}
		delete(end, nameOf(end, steps[0].index))
		end[steps[0].to] = steps[0].index
	}
}

// namings yields all ways to give n interfaces names.
func namings(n int, names []string) func(func(map[string]int) bool) {
	return func(yield func(map[string]int) bool) {
		called := map[string]int{}
		var name func(index int) bool
		name = func(index int) bool {
			if index > n {
				return yield(maps.Clone(called))
			}
			for _, s := range names {
				if called[s] != 0 {
					continue
				}
				called[s] = index
				if !name(index + 1) {
					return false
				}
				delete(called, s)
			}
			return true
		}
		name(1)
	}
}

func nameOf(named map[string]int, index int) string {
	for name, i := range named {
		if i == index {
			return name
		}
	}
	return fmt.Sprintf("none of %d", index)
}
