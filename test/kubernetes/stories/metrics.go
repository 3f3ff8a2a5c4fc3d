package stories

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics are those of a process at some moment.
type Metrics map[string]*dto.MetricFamily

// ParseMetrics reads the text form of metrics.
func ParseMetrics(text string) (Metrics, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	return families, err
}

// matching returns the values of a metric that have certain labels.
func (m Metrics) matching(name string, labels map[string]string) []*dto.Metric {
	var found []*dto.Metric
	for _, metric := range m[name].GetMetric() {
		have := make(map[string]string)
		for _, l := range metric.GetLabel() {
			have[l.GetName()] = l.GetValue()
		}
		if !slices.ContainsFunc(slices.Collect(maps.Keys(labels)), func(l string) bool { return have[l] != labels[l] }) {
			found = append(found, metric)
		}
	}
	return found
}

// Value is the sum of a counter's or a gauge's values that have certain labels.
func (m Metrics) Value(name string, labels map[string]string) float64 {
	var sum float64
	for _, metric := range m.matching(name, labels) {
		sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
	}
	return sum
}

// Each returns a counter's values by some of its labels, joined by a space.
func (m Metrics) Each(name string, labels ...string) map[string]float64 {
	values := make(map[string]float64)
	for _, metric := range m[name].GetMetric() {
		words := make([]string, len(labels))
		for _, l := range metric.GetLabel() {
			if i := slices.Index(labels, l.GetName()); i >= 0 {
				words[i] = l.GetValue()
			}
		}
		values[strings.Join(words, " ")] += metric.GetCounter().GetValue()
	}
	return values
}

// Durations are how long something took, many times.
type Durations struct {
	Count uint64
	Sum   time.Duration
	// upTo holds for the upper bounds of buckets, in seconds, how many took no
	// longer.
	upTo map[float64]uint64
}

// Durations returns a histogram of seconds; those with certain labels are
// added up.
func (m Metrics) Durations(name string, labels map[string]string) Durations {
	d := Durations{upTo: make(map[float64]uint64)}
	for _, metric := range m.matching(name, labels) {
		h := metric.GetHistogram()
		d.Count += h.GetSampleCount()
		d.Sum += time.Duration(h.GetSampleSum() * float64(time.Second))
		for _, b := range h.GetBucket() {
			d.upTo[b.GetUpperBound()] += b.GetCumulativeCount()
		}
	}
	return d
}

// Since returns what came after an earlier state of the same histogram.
func (d Durations) Since(before Durations) Durations {
	since := Durations{Count: d.Count - before.Count, Sum: d.Sum - before.Sum, upTo: make(map[float64]uint64)}
	for bound, n := range d.upTo {
		since.upTo[bound] = n - before.upTo[bound]
	}
	return since
}

// Mean is the average; 0 if there is none.
func (d Durations) Mean() time.Duration {
	if d.Count == 0 {
		return 0
	}
	return d.Sum / time.Duration(d.Count)
}

// Quantile estimates the time within which a part q, from 0 to 1, was done:
// within its bucket, times are taken to be spread evenly. Beyond the last
// bucket it is the bound of that.
func (d Durations) Quantile(q float64) time.Duration {
	want := q * float64(d.Count)
	var lower float64
	var below uint64
	for _, bound := range slices.Sorted(maps.Keys(d.upTo)) {
		if math.IsInf(bound, 1) {
			break
		}
		n := d.upTo[bound]
		if float64(n) >= want && n > below {
			part := (want - float64(below)) / float64(n-below)
			return time.Duration((lower + part*(bound-lower)) * float64(time.Second))
		}
		lower, below = bound, n
	}
	return time.Duration(lower * float64(time.Second))
}

// Percentile returns the smallest of some durations that a part q of them does
// not exceed.
func Percentile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// Calls lists the differences of two states of a counter, the greatest first.
func Calls(before, after map[string]float64) string {
	type call struct {
		what string
		n    float64
	}
	var calls []call
	for what, n := range after {
		if n -= before[what]; n > 0 {
			calls = append(calls, call{what, n})
		}
	}
	slices.SortFunc(calls, func(a, b call) int {
		if a.n != b.n {
			return int(b.n - a.n)
		}
		return strings.Compare(a.what, b.what)
	})
	var words []string
	for _, c := range calls {
		words = append(words, fmt.Sprintf("%.0f %s", c.n, c.what))
	}
	return strings.Join(words, ", ")
}
