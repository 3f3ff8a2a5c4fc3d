package traffic

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// Lookups look names up, as a pod's resolv.conf says.
type Lookups struct {
	Names []string
	// Rate is how many are looked up in a second, all in all.
	Rate int
	// Timeout is how long a look-up may take before it is lost. A resolver that gets no answer
	// asks again after 5 seconds, unless resolv.conf says otherwise, so that a question that was
	// lost is seen in how long the slowest took.
	Timeout time.Duration
}

// Run looks up until ctx ends, then waits for the answers that are due. It calls report every
// second, and when all is over.
func (l Lookups) Run(ctx context.Context, report func(Report)) error {
	if len(l.Names) == 0 || l.Rate <= 0 || l.Timeout <= 0 {
		return errors.New("look-ups need names, and a rate and a timeout above 0")
	}
	t := newTally()
	defer context.AfterFunc(ctx, t.end)()
	every := time.Second * time.Duration(len(l.Names)) / time.Duration(l.Rate)
	return run(t, report, func(asking *sync.WaitGroup) {
		for i, name := range l.Names {
			f := flow{name: "name " + name, timeout: l.Timeout, tally: t, every: every, next: time.Now().Add(every * time.Duration(i) / time.Duration(len(l.Names)))}
			asking.Go(func() { f.lookUp(ctx, name) })
		}
	})
}

// lookUp looks a name up again and again.
func (f flow) lookUp(ctx context.Context, name string) {
	r := net.Resolver{PreferGo: true, StrictErrors: true}
	var asking sync.WaitGroup
	defer asking.Wait()
	for f.wait(ctx) {
		asking.Go(func() {
			f.tally.add(f.name, Counts{Sent: 1})
			start := time.Now()
			// What was asked is waited for, also once no more is.
			asked, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.timeout)
			defer cancel()
			if _, err := r.LookupNetIP(asked, "ip4", name); err != nil {
				f.tally.failed(f.name, Counts{Lost: 1}, err)
				return
			}
			f.tally.answered(f.name, time.Since(start))
		})
	}
}
