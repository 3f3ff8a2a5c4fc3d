// Package traffic is load between pods, and how much of it arrived.
//
// A [Server] answers each request with its number, whom it came from, and who
// answers. A [Load] sends requests at a steady rate, over connections that stay
// open, over new ones and over UDP, and its [Report] says what became of them.
// The command weft-traffic is both in a container; tests read its reports.
package traffic

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Answer is what a server says to a request.
type Answer struct {
	// Number is that of the request.
	Number uint64
	// Seen is where the request came from, as the server saw it.
	Seen netip.AddrPort
	// By is the host name of the server, which in a pod is the pod's.
	By string
}

// String is the answer on the wire, without the end of the line.
func (a Answer) String() string { return fmt.Sprintf("%d %s %s", a.Number, a.Seen, a.By) }

// parseAnswer reads what String wrote.
func parseAnswer(line string) (Answer, error) {
	words := strings.Fields(line)
	if len(words) != 3 {
		return Answer{}, fmt.Errorf("answer %q: it is not NUMBER ADDRESS NAME", line)
	}
	number, err := strconv.ParseUint(words[0], 10, 64)
	if err != nil {
		return Answer{}, fmt.Errorf("answer %q: %w", line, err)
	}
	seen, err := netip.ParseAddrPort(words[1])
	if err != nil {
		return Answer{}, fmt.Errorf("answer %q: %w", line, err)
	}
	return Answer{Number: number, Seen: seen, By: words[2]}, nil
}

// Reply is what came of one question; see [Ask].
type Reply struct {
	To string `json:"to"`
	// Seen and By are those of the Answer.
	Seen netip.Addr `json:"seen,omitzero"`
	By   string     `json:"by,omitempty"`
	// Error says why there was no answer.
	Error string `json:"error,omitempty"`
}

// Counts is what became of requests. Sent is the sum of Answered, Lost and
// those that are still waited for.
type Counts struct {
	Sent     int64 `json:"sent"`
	Answered int64 `json:"answered"`
	// Lost requests were not answered in time, or their connection broke.
	Lost int64 `json:"lost"`
	// Resets are connections that were refused, or that the other end broke.
	Resets int64 `json:"resets"`
	// Reconnects are attempts to replace a connection that should have stayed
	// open.
	Reconnects int64 `json:"reconnects"`
}

// Add returns the sum of two.
func (c Counts) Add(d Counts) Counts {
	return Counts{c.Sent + d.Sent, c.Answered + d.Answered, c.Lost + d.Lost, c.Resets + d.Resets, c.Reconnects + d.Reconnects}
}

// Sub returns what c has more than an earlier state d of the same counts.
func (c Counts) Sub(d Counts) Counts {
	return Counts{c.Sent - d.Sent, c.Answered - d.Answered, c.Lost - d.Lost, c.Resets - d.Resets, c.Reconnects - d.Reconnects}
}

// Waiting is how many requests may still be answered.
func (c Counts) Waiting() int64 { return c.Sent - c.Answered - c.Lost }

// Report is what a load has done since it began.
type Report struct {
	Time time.Time `json:"time"`
	Counts
	// Sending is for how long requests have been sent: until now, or until the load was
	// told to end. In JSON it is in nanoseconds.
	Sending time.Duration `json:"sending,omitempty"`
	// Worst is the longest time to an answer since the report before, in
	// milliseconds.
	Worst float64 `json:"worst"`
	// Flows are the counts of each way to each target, as
	// "udp 10.244.1.5:7000".
	Flows map[string]Counts `json:"flows,omitempty"`
	// Slowest is the longest time to an answer that each way ever took, in
	// milliseconds.
	Slowest map[string]float64 `json:"slowest,omitempty"`
	// Errors are the first that happened, at most [maxErrors].
	Errors []string `json:"errors,omitempty"`
	// Last says that the load has ended, and nothing is waited for.
	Last bool `json:"last,omitempty"`
}

// maxErrors bounds what a report says of errors.
const maxErrors = 10
