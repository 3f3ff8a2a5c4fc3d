package main

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestQuantile(t *testing.T) {
	ten := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for _, c := range []struct {
		of   []int
		q    float64
		want int
	}{
		{nil, 0.5, 0},
		{[]int{7}, 0.99, 7},
		{ten, 0, 1},
		{ten, 0.5, 5},
		{ten, 0.51, 6},
		{ten, 0.99, 10},
		{ten, 1, 10},
	} {
		if got := quantile(c.of, c.q); got != c.want {
			t.Errorf("quantile(%v, %v) = %d, want %d", c.of, c.q, got, c.want)
		}
	}
}

// A quantile is one of the values, at least that share of them does not
// exceed it, and no smaller value would do.
func TestQuantileIsTheSmallestThatHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.IntRange(0, 50), 1, 200).Draw(t, "values")
		q := rapid.Float64Range(0, 1).Draw(t, "q")
		slices.Sort(values)
		got := quantile(values, q)
		if !slices.Contains(values, got) {
			t.Fatalf("%d is none of the values", got)
		}
		upTo, below := 0, 0
		for _, v := range values {
			if v <= got {
				upTo++
			}
			if v < got {
				below++
			}
		}
		n := float64(len(values))
		if float64(upTo) < q*n || below > 0 && float64(below) >= q*n {
			t.Fatalf("%d of %v: %d values up to it, %d below", got, values, upTo, below)
		}
	})
}

// Which of two is divided by which must not change what is said.
func TestRatiosInvert(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.Float64Range(0.1, 1000)
		a := rapid.SliceOfN(value, 1, 30).Draw(t, "a")
		b := rapid.SliceOfN(value, len(a), len(a)).Draw(t, "b")
		there, back := spreadOf(ratios(a, b)), spreadOf(ratios(b, a))
		if math.Abs(there.Median*back.Median-1) > 1e-9 {
			t.Fatalf("%v and %v", there, back)
		}
		if there.Low > there.Median || there.Median > there.High {
			t.Fatalf("%v is not in order", there)
		}
	})
}

func TestRatiosLeaveOutWhatIsMissing(t *testing.T) {
	got := ratios([]float64{2, 0, 9, 8}, []float64{1, 5, 3})
	if want := []float64{2, 3}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		s          spread
		moreBetter bool
		short      float64
		want       outcome
	}{
		{spread{0.9, 1.01, 1.1}, true, 0, met},
		{spread{0.9, 0.99, 1.01}, true, 0, within},
		{spread{0.9, 0.95, 0.99}, true, 0, missed},
		{spread{0.9, 0.99, 1.1}, false, 0, met},
		{spread{0.98, 1.01, 1.1}, false, 0, within},
		{spread{1.01, 1.05, 1.1}, false, 0, missed},
		{spread{0.9, 0.96, 0.99}, true, 0.05, met},
		{spread{0.9, 0.94, 0.96}, true, 0.05, within},
		{spread{1.01, 1.05, 1.1}, false, 0.05, met},
		{spread{1.06, 1.07, 1.1}, false, 0.05, missed},
	} {
		if got := judge(c.s, c.moreBetter, c.short); got != c.want {
			t.Errorf("judge(%v, %v) = %s, want %s", c.s, c.moreBetter, got, c.want)
		}
	}
	if got := atMost(20*time.Millisecond, 20*time.Millisecond); got != met {
		t.Errorf("a value at the limit is %s", got)
	}
	if got := atMost(21, 20); got != missed {
		t.Errorf("a value beyond the limit is %s", got)
	}
}
