package stories

import (
	"bufio"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/weftnet/weft/test/kubernetes/traffic"
)

// ParseReports reads what weft-traffic load printed.
func ParseReports(text string) ([]traffic.Report, error) {
	var reports []traffic.Report
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r traffic.Report
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("line %q of a load: %w", lines.Text(), err)
		}
		reports = append(reports, r)
	}
	return reports, lines.Err()
}

// Span is what became of a load's requests between two moments.
type Span struct {
	traffic.Counts
	// Took is the time between the reports that the counts are from.
	Took time.Duration
	// Worst is the longest time to an answer.
	Worst time.Duration
	// Silence is the longest time between two reports.
	Silence time.Duration
	Errors  []string
}

// SpanOf returns what reports say of the time from one moment to another. It is
// an error if the reports do not cover it.
func SpanOf(reports []traffic.Report, from, to time.Time) (Span, error) {
	var s Span
	var first, last *traffic.Report
	for i := range reports {
		r := &reports[i]
		switch {
		case !r.Time.After(from):
			first = r
			continue
		case first == nil:
			return s, fmt.Errorf("the first report is of %s, after %s", r.Time, from)
		}
		s.Worst = max(s.Worst, time.Duration(r.Worst*float64(time.Millisecond)))
		before := first
		if last != nil {
			before = last
		}
		s.Silence = max(s.Silence, r.Time.Sub(before.Time))
		if last = r; !r.Time.Before(to) {
			s.Counts, s.Took = last.Sub(first.Counts), last.Time.Sub(first.Time)
			s.Errors = last.Errors
			return s, nil
		}
	}
	return s, fmt.Errorf("there is no report after %s", to)
}

// Rate is how many requests were sent in a second.
func (s Span) Rate() float64 { return float64(s.Sent) / s.Took.Seconds() }

// longestGap is how long nothing that may not be disturbed waits for an answer: no longer
// than TCP waits before it sends the first packet of a connection once more.
const longestGap = time.Second

// Faults says what a load that nothing may disturb shows of a disturbance; rate
// is how many requests a second should have been sent.
func (s Span) Faults(rate float64) []string {
	var faults []string
	if s.Lost != 0 || s.Resets != 0 || s.Reconnects != 0 {
		faults = append(faults, fmt.Sprintf("%d of %d requests lost, %d connections reset, %d made anew: %q", s.Lost, s.Sent, s.Resets, s.Reconnects, s.Errors))
	}
	if s.Rate() < rate*0.9 {
		faults = append(faults, fmt.Sprintf("%.0f requests a second were sent, not %.0f", s.Rate(), rate))
	}
	if s.Worst > longestGap {
		faults = append(faults, fmt.Sprintf("an answer took %s, and %s is the most", s.Worst.Round(time.Millisecond), longestGap))
	}
	if s.Waiting() > int64(rate*5) {
		faults = append(faults, fmt.Sprintf("%d requests wait for an answer", s.Waiting()))
	}
	return faults
}

func (s Span) String() string {
	return fmt.Sprintf("%d requests in %s (%.0f/s), %d lost, %d reset, %d reconnects, worst %s",
		s.Sent, s.Took.Round(time.Second), s.Rate(), s.Lost, s.Resets, s.Reconnects, s.Worst.Round(time.Millisecond))
}

// betweenNodes is how much must be sent in all, from a pod on each node to each address of
// a pod on each node, so that a number of requests a second go between nodes, and over how
// many connections to each address, so that a number of these are between nodes.
func betweenNodes(nodes, addresses, requests, connections int) (rate, held int) {
	ceil := func(a, b int) int { return (a + b - 1) / b }
	return ceil(requests*nodes, nodes-1), ceil(connections, nodes*(nodes-1)*addresses)
}
