package drops

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Choice is which of the packets of a Report are shown. Counts are of all.
type Choice struct {
	// Since is when the first of them may have been dropped.
	Since time.Time
	// Last is how many there are at most, the last ones; less than 0 for all.
	Last int
}

// All chooses all packets.
var All = Choice{Last: -1}

// Of returns those of some records, which are in the order of time, that are chosen.
func (c Choice) Of(records []Record) []Record {
	for len(records) > 0 && records[0].Time.Before(c.Since) {
		records = records[1:]
	}
	if c.Last >= 0 && len(records) > c.Last {
		records = records[len(records)-c.Last:]
	}
	return records
}

// shownLast is how many packets people are shown who ask for no others.
const shownLast = 20

// ChoiceFlags adds the flags by which people choose. What it returns says what they have
// chosen: where that is nothing, a program gets all packets and people the last ones.
func ChoiceFlags(f *pflag.FlagSet) func(now time.Time, people bool) (Choice, error) {
	tail := f.Int("tail", shownLast, "show the last `N` packets; -1 for all, as with --since or -o json alone")
	since := f.Duration("since", 0, "show packets of this `TIME` until now alone, as 10m")
	return func(now time.Time, people bool) (Choice, error) {
		c := All
		if f.Changed("since") {
			if *since <= 0 {
				return c, fmt.Errorf("--since %s: a time such as 10m or 1h30m", *since)
			}
			c.Since = now.Add(-*since)
		}
		if f.Changed("tail") || people && !f.Changed("since") {
			c.Last = *tail
		}
		return c, nil
	}
}
