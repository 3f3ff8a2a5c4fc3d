package lab

import (
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"
)

// TestAskAll has a hundred agents be asked, each of which answers after five seconds or not at
// all: all have been asked when the first would have answered.
func TestAskAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const late = 5 * time.Second
		var nodes []string
		want := make(map[string]int)
		for i := range 100 {
			node := fmt.Sprint("node", i)
			if nodes = append(nodes, node); i%2 == 1 {
				want[node] = i
			}
		}
		began := time.Now()
		got := askAll(nodes, func(node string) int {
			time.Sleep(late)
			return want[node]
		})
		if took := time.Since(began); took != late {
			t.Errorf("to ask %d took %v, and not %v as to ask one does", len(nodes), took, late)
		}
		if !maps.Equal(got, want) {
			t.Errorf("the answers are %v, and not %v", got, want)
		}
	})
}
