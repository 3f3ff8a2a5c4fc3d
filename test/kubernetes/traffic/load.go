package traffic

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// The ways in which a load asks a target.
const (
	Kept      = "tcp"     // over connections that stay open
	Renewed   = "tcp-new" // each over a connection of its own
	Datagrams = "udp"
)

// Ways says which part of a target's requests goes which way.
var Ways = map[string]float64{Kept: 0.7, Renewed: 0.1, Datagrams: 0.2}

// Load sends requests to servers.
type Load struct {
	Targets []netip.AddrPort
	// Rate is how many requests are sent in a second, all in all: as many to
	// each target, and to that as [Ways] says.
	Rate int
	// Held is how many connections to each target stay open; 0 means 2.
	Held int
	// Timeout is how long a request waits for its answer, or a connection for
	// being made, before it is lost.
	Timeout time.Duration
}

// split is of how many flows a way to a target consists, and how many requests a second
// go over each of them.
func (l Load) split(way string) (flows int, rate float64) {
	flows = 1
	if way == Kept {
		flows = cmp.Or(l.Held, 2)
	}
	return flows, float64(l.Rate) / float64(len(l.Targets)) * Ways[way] / float64(flows)
}

// Due is how many requests should have been sent at least to each target in one way,
// after some time of sending. Each flow may have waited for one interval before its first
// request.
func (l Load) Due(way string, sending time.Duration) float64 {
	flows, rate := l.split(way)
	return float64(flows) * max(0, rate*sending.Seconds()-1)
}

// flows returns those of a load that begins now. They begin at different moments of their
// intervals.
func (l Load) flows(t *tally) (all []flow) {
	now := time.Now()
	for i, to := range l.Targets {
		for way := range Ways {
			n, rate := l.split(way)
			f := flow{way: way, name: way + " " + to.String(), to: to, timeout: l.Timeout, tally: t, every: time.Duration(float64(time.Second) / rate)}
			for k := range n {
				f.next = now.Add(f.every * time.Duration(i*n+k) / time.Duration(len(l.Targets)*n))
				all = append(all, f)
			}
		}
	}
	return all
}

// Run sends until ctx ends, then waits for the answers that are due. It calls
// report every second, and when all is over.
func (l Load) Run(ctx context.Context, report func(Report)) error {
	if len(l.Targets) == 0 || l.Rate <= 0 || l.Timeout <= 0 || l.Held < 0 {
		return errors.New("a load needs targets, and a rate and a timeout above 0")
	}
	t := newTally()
	defer context.AfterFunc(ctx, t.end)()
	ways := map[string]func(flow, context.Context){Kept: flow.keep, Renewed: flow.renew, Datagrams: flow.datagrams}
	return run(t, report, func(flows *sync.WaitGroup) {
		for _, f := range l.flows(t) {
			flows.Go(func() { ways[f.way](f, ctx) })
		}
	})
}

// run has flows begin, which end with ctx, and reports every second, and when all have ended.
func run(t *tally, report func(Report), begin func(flows *sync.WaitGroup)) error {
	var flows sync.WaitGroup
	begin(&flows)
	done := make(chan struct{})
	go func() { flows.Wait(); close(done) }()
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for {
		select {
		case <-second.C:
			report(t.report())
		case <-done:
			last := t.report()
			last.Last = true
			report(last)
			return nil
		}
	}
}

// flow is requests to one target in one way.
type flow struct {
	way     string // one of Ways
	name    string // way and target, as a Report names it
	to      netip.AddrPort
	timeout time.Duration
	tally   *tally
	// next is when the next request is due, and every the time between two.
	next  time.Time
	every time.Duration
}

// wait waits until the next request is due, or reports that ctx has ended. A
// flow that is late sends at once what is due, so that the rate holds.
func (f *flow) wait(ctx context.Context) bool {
	timer := time.NewTimer(time.Until(f.next))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		f.next = f.next.Add(f.every)
		return ctx.Err() == nil
	}
}

// reset reports whether an error says that the other end refused or broke a
// connection, rather than that nothing was heard of it.
func reset(err error) bool {
	return !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, syscall.ETIMEDOUT)
}

// lost are the counts of n requests that an error lost.
func lost(n int64, err error) Counts {
	c := Counts{Lost: n}
	if reset(err) {
		c.Resets = 1
	}
	return c
}

// keep sends over a connection that stays open, and over another where it
// breaks.
func (f flow) keep(ctx context.Context) {
	for attempt := 0; f.wait(ctx); attempt++ {
		if attempt > 0 {
			f.tally.add(f.name, Counts{Reconnects: 1})
		}
		// The request that is due makes the connection.
		f.tally.add(f.name, Counts{Sent: 1})
		start := time.Now()
		c, err := net.DialTimeout("tcp", f.to.String(), f.timeout)
		if err != nil {
			f.tally.failed(f.name, lost(1, err), err)
			continue
		}
		f.tally.answered(f.name, time.Since(start))
		f.converse(ctx, c)
	}
}

// request is one that waits for its answer.
type request struct {
	number uint64
	sent   time.Time
}

// converse sends over a connection until it breaks or ctx ends.
func (f *flow) converse(ctx context.Context, c net.Conn) {
	defer c.Close()
	// Room for all that is sent within a timeout: sending does not wait.
	waiting := make(chan request, 2*int(f.timeout/f.every)+16)
	broken := make(chan struct{})
	var listened error
	var listening sync.WaitGroup
	listening.Go(func() {
		listened = f.listen(c, waiting, broken)
	})
	var sending error
	for number := uint64(1); sending == nil && f.wait(ctx); number++ {
		select {
		case <-broken:
		default:
			f.tally.add(f.name, Counts{Sent: 1})
			r := request{number, time.Now()}
			waiting <- r
			c.SetWriteDeadline(r.sent.Add(f.timeout))
			_, sending = fmt.Fprintln(c, number)
			continue
		}
		break
	}
	if sending != nil {
		c.Close() // what waits for an answer is lost
	}
	close(waiting)
	listening.Wait()
	if sending != nil && !errors.Is(sending, net.ErrClosed) {
		f.tally.failed(f.name, lost(0, sending), sending)
	} else if listened != nil {
		f.tally.failed(f.name, lost(0, listened), listened)
	}
}

// listen waits for the answer to each request. When one fails, it closes broken
// and the connection; that request and all that follow are lost.
func (f *flow) listen(c net.Conn, waiting <-chan request, broken chan<- struct{}) (err error) {
	in := bufio.NewReader(c)
	for r := range waiting {
		if err != nil {
			f.tally.add(f.name, Counts{Lost: 1})
			continue
		}
		c.SetReadDeadline(r.sent.Add(f.timeout))
		var line string
		if line, err = in.ReadString('\n'); err == nil {
			_, err = expect(line, r.number)
		}
		if err == nil {
			f.tally.answered(f.name, time.Since(r.sent))
			continue
		}
		f.tally.add(f.name, Counts{Lost: 1})
		close(broken)
		c.Close()
	}
	return err
}

// renew sends each request over a connection of its own.
func (f flow) renew(ctx context.Context) {
	var asking sync.WaitGroup
	defer asking.Wait()
	for f.wait(ctx) {
		asking.Go(func() {
			f.tally.add(f.name, Counts{Sent: 1})
			start := time.Now()
			if err := f.once(start.Add(f.timeout)); err != nil {
				f.tally.failed(f.name, lost(1, err), err)
				return
			}
			f.tally.answered(f.name, time.Since(start))
		})
	}
}

// once makes a connection, asks and ends it.
func (f *flow) once(deadline time.Time) error {
	d := net.Dialer{Deadline: deadline}
	c, err := d.Dial("tcp", f.to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(deadline)
	_, err = question(c, bufio.NewReader(c), 1)
	return err
}

// datagrams sends over UDP, each request once.
func (f flow) datagrams(ctx context.Context) {
	c, err := net.Dial("udp", f.to.String())
	if err != nil {
		f.tally.failed(f.name, Counts{}, err)
		return
	}
	type waiter struct {
		sent  time.Time
		given *time.Timer
	}
	var mu sync.Mutex
	waiting := make(map[uint64]waiter)
	var listening, due sync.WaitGroup
	// Who takes a request counts what became of it, and then says that it is no
	// longer due.
	take := func(number uint64) (waiter, bool) {
		mu.Lock()
		defer mu.Unlock()
		w, ok := waiting[number]
		delete(waiting, number)
		return w, ok
	}
	listening.Go(func() {
		buf := make([]byte, 512)
		for {
			n, err := c.Read(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // as that nobody listens there; requests get lost
				continue
			}
			a, err := parseAnswer(string(buf[:n]))
			if err != nil {
				continue
			}
			if w, ok := take(a.Number); ok {
				w.given.Stop()
				f.tally.answered(f.name, time.Since(w.sent))
				due.Done()
			}
		}
	})
	for number := uint64(1); f.wait(ctx); number++ {
		f.tally.add(f.name, Counts{Sent: 1})
		due.Add(1)
		mu.Lock()
		waiting[number] = waiter{time.Now(), time.AfterFunc(f.timeout, func() {
			if _, ok := take(number); ok {
				f.tally.failed(f.name, Counts{Lost: 1}, os.ErrDeadlineExceeded)
				due.Done()
			}
		})}
		mu.Unlock()
		fmt.Fprint(c, number)
	}
	due.Wait()
	c.Close()
	listening.Wait()
}
