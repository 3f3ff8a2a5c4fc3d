package main

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// quantile returns the smallest of the sorted values that a share q of them,
// 0 to 1, does not exceed (the nearest-rank method); the zero value of none.
func quantile[T cmp.Ordered](sorted []T, q float64) T {
	if len(sorted) == 0 {
		var zero T
		return zero
	}
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// spread is the middle of some values and the half of them around it.
type spread struct{ Low, Median, High float64 }

// spreadOf returns the quartiles of values; all zero of none.
func spreadOf(values []float64) spread {
	s := slices.Sorted(slices.Values(values))
	return spread{quantile(s, 0.25), median(s), quantile(s, 0.75)}
}

// median of sorted values is the mean of the two in the middle where there is
// an even number, so that swapping what is compared inverts the ratio.
func median(sorted []float64) float64 {
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return math.Sqrt(sorted[(n-1)/2] * sorted[n/2])
}

// ratios divides what two measured in the same round by one another. Rounds
// that one of them lacks are left out.
func ratios(of, by []float64) []float64 {
	out := make([]float64, 0, len(of))
	for i := range min(len(of), len(by)) {
		if of[i] > 0 && by[i] > 0 {
			out = append(out, of[i]/by[i])
		}
	}
	return out
}

// outcome is how a ratio stands to its target.
type outcome string

const (
	met outcome = "met"
	// within: missed by less than the rounds differ from one another.
	within outcome = "met within noise"
	missed outcome = "**missed**"
)

// judge says whether a ratio reaches 1, which is the better side when
// moreIsBetter, or falls short by no more than a part of it, as 0.05; and whether
// the middle half of the rounds could tell.
func judge(s spread, moreIsBetter bool, short float64) outcome {
	worst, best := s.Median, s.High
	if !moreIsBetter {
		worst, best = 1/s.Median, 1/s.Low
	}
	switch least := 1 / (1 + short); {
	case worst >= least:
		return met
	case best >= least:
		return within
	}
	return missed
}

// atMost says whether a value stays within a limit.
func atMost[T cmp.Ordered](v, limit T) outcome {
	if v <= limit {
		return met
	}
	return missed
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
