package linux

import (
	"slices"
	"testing"
)

func TestTooMany(t *testing.T) {
	const most = 1000
	for _, c := range []struct {
		what   string
		counts map[string]int
		was    map[string]bool
		want   []string
	}{
		{"none", nil, nil, nil},
		{"a quarter is not too much", map[string]int{"a": 250}, nil, nil},
		{"more than that is", map[string]int{"a": 251, "b": 10}, nil, []string{"a"}},
		{"those with the most first", map[string]int{"a": 300, "b": 400, "c": 300}, nil, []string{"b", "a", "c"}},
		{"who had too many still has", map[string]int{"a": 126, "b": 126}, map[string]bool{"a": true}, []string{"a"}},
		{"until it is half of that", map[string]int{"a": 125}, map[string]bool{"a": true}, nil},
		{"who had too many and is gone", nil, map[string]bool{"a": true}, nil},
	} {
		if got := tooMany(c.counts, c.was, most); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.what, got, c.want)
		}
	}
}
