package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"
)

// pair is a client and the server that it talks to.
type pair struct {
	from, to *worker
	address  netip.Addr
}

// variant is one way of connecting two pods.
type variant struct {
	name string
	// against is the variant that this one must not be slower than; empty
	// where there is none.
	against string
	pair    pair
}

// load is a kind of traffic.
type load struct {
	do string
	// offload is whether the pods' interfaces leave it to others to cut TCP
	// into packets (GSO and TSO).
	offload bool
}

var loads = []load{{doStream, true}, {doStream, false}, {doRoundTrip, true}, {doConnect, true}}

// quantity is one thing that is measured of a variant.
type quantity struct {
	name, unit string
	load       load
	moreBetter bool
	of         func(sample) float64
}

var quantities = []quantity{
	{"throughput with GSO", "Gbit/s", loads[0], true, gigabits},
	{"throughput without GSO", "Gbit/s", loads[1], true, gigabits},
	{"round trip p50", "µs", loads[2], false, func(s sample) float64 { return microseconds(s.Median) }},
	{"round trip p99", "µs", loads[2], false, func(s sample) float64 { return microseconds(s.P99) }},
	{"connections", "/s", loads[3], true, func(s sample) float64 { return float64(s.Count) / s.Took.Seconds() }},
	{"per CPU second with GSO", "Gbit", loads[0], true, gigabitsPerCPU},
	{"per CPU second without GSO", "Gbit", loads[1], true, gigabitsPerCPU},
}

func gigabits(s sample) float64       { return float64(s.Count) * 8 / 1e9 / s.Took.Seconds() }
func gigabitsPerCPU(s sample) float64 { return float64(s.Count) * 8 / 1e9 / s.CPU.Seconds() }
func microseconds(d time.Duration) float64 {
	return float64(d) / float64(time.Microsecond)
}

// traffic holds the samples: of each load and variant one for each round.
type traffic map[load]map[string][]sample

// values returns a quantity of a variant, round by round.
func (t traffic) values(q quantity, variant string) []float64 {
	var out []float64
	for _, s := range t[q.load][variant] {
		out = append(out, q.of(s))
	}
	return out
}

// measureTraffic takes samples of length d in rounds. In each round, each load
// visits all variants in an order drawn anew, so that what changes on the
// machine meanwhile falls on all of them alike.
func measureTraffic(ctx context.Context, variants []variant, loads []load, rounds int, d time.Duration, say func(string, ...any)) (traffic, error) {
	for _, v := range variants {
		if err := v.pair.to.serve(); err != nil {
			return nil, err
		}
	}
	t := make(traffic)
	for round := range rounds {
		say("traffic: round %d of %d", round+1, rounds)
		for _, l := range loads {
			if t[l] == nil {
				t[l] = make(map[string][]sample)
			}
			for _, i := range rand.Perm(len(variants)) {
				v := variants[i]
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				s, err := v.measure(l, d)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", v.name, err)
				}
				t[l][v.name] = append(t[l][v.name], s)
			}
		}
	}
	return t, nil
}

func (v variant) measure(l load, d time.Duration) (sample, error) {
	for _, w := range []*worker{v.pair.from, v.pair.to} {
		if _, err := w.do(request{Do: doOffload, On: l.offload}); err != nil {
			return sample{}, err
		}
	}
	return v.pair.from.do(request{Do: l.do, To: v.pair.address, For: d})
}
