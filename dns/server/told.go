package server

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/internal/printable"
)

const (
	// toldTime is for how long a question that has failed is not logged again.
	toldTime = time.Minute
	// maxFailuresTold is how many questions are logged meanwhile.
	maxFailuresTold = 10
)

// failureLog logs which questions failed that others were asked, as far as there is room for that:
// pods decide what is asked, and how often. A nil one logs nothing.
type failureLog struct {
	log *slog.Logger

	mu sync.Mutex
	// told are the questions that were logged since toldTime began, as same calls them; nil if it has not.
	told map[string]bool
	// more is how often others failed since then, or these once more.
	more int
}

// add logs that a question has failed, and why.
func (f *failureLog) add(q *dns.Msg, asked []target, why string) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.told == nil {
		f.told = map[string]bool{}
		time.AfterFunc(toldTime, f.end)
	}
	question := same(q)
	if f.told[question] || len(f.told) == maxFailuresTold {
		f.more++
		return
	}
	f.told[question] = true
	var servers []string
	for _, t := range asked {
		servers = append(servers, t.at.String())
	}
	ask := q.Question[0]
	f.log.Info("a question that others are asked has failed", "name", printable.Line(ask.Name), "type", dns.Type(ask.Qtype).String(),
		"servers", strings.Join(servers, " "), "error", printable.Brief(printable.Line(why)))
}

// end logs how much was not logged, and has the next failures be.
func (f *failureLog) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.more > 0 {
		f.log.Info("more questions have failed, or the same ones again", "times", f.more, "within", toldTime)
	}
	f.told, f.more = nil, 0
}

// why says why what is said to a question is no help, or nothing is said.
func why(a answered, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case a.said.Rcode == dns.RcodeSuccess:
		return a.by.String() + " says only whom else to ask"
	}
	return a.by.String() + " answers " + dns.RcodeToString[a.said.Rcode]
}
