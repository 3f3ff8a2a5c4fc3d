package server

import (
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// failureTime is for how long a question that has failed fails at once, without that others are
	// asked: a second is the least that resolvers are to wait (RFC 9520, section 3.2).
	failureTime = time.Second
	// maxFailures is how many such questions are known for one domain. Of more the oldest are
	// forgotten, and others are asked for them.
	maxFailures = 1024
)

// failures are the questions for names of a domain that have just failed. Clients that ask again
// and again would have others asked as often, all of a domain's servers each time, and would wait each
// time where these are silent. The cache knows none of them: it would take a failure for an answer
// that is stale, an hour later.
type failures struct {
	// lasts is failureTime. Only tests set it.
	lasts time.Duration

	mu  sync.Mutex
	all map[string]failure
	// order are the keys of all, the oldest first.
	order line[string]
}

// failure is what became of a question: what was said, or that nothing was.
type failure struct {
	rcode int
	err   error
	until time.Time
}

func newFailures() *failures { return &failures{lasts: failureTime, all: map[string]failure{}} }

// find returns what has just become of a question, as same calls it.
func (f *failures) find(question string) (failure, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	one, is := f.all[question]
	return one, is && time.Now().Before(one.until)
}

// add takes note of what became of a question.
func (f *failures) add(question string, one failure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for f.order.waiting() > 0 && (len(f.all) >= maxFailures || !now.Before(f.all[f.order.next()].until)) {
		delete(f.all, f.order.take())
	}
	one.until = now.Add(f.lasts)
	if _, is := f.all[question]; !is {
		f.order.add(question)
	}
	f.all[question] = one
}

// failureOf returns what became of a question that was answered with nothing that helps.
func failureOf(said *dns.Msg) failure {
	if said.Rcode == dns.RcodeSuccess {
		return failure{rcode: dns.RcodeServerFailure} // it says whom else to ask
	}
	return failure{rcode: said.Rcode}
}

// says returns what a question is answered that has just failed.
func (f *failure) says(q *dns.Msg) (*dns.Msg, error) {
	if f.err != nil {
		return nil, f.err
	}
	return new(dns.Msg).SetRcode(q, f.rcode), nil
}
