package stories

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"
)

// load is requests from pods, which begin with startLoad and end with the
// story.
type load struct {
	x    *story
	pods []string
	// rate is how many requests each of the pods sends in a second.
	rate int
}

// startLoad has a pod on each of some nodes send requests to a pod on each of
// some nodes, all in all so many in a second, and waits until it is under way. Flags are
// more for weft-traffic load.
func (x *story) startLoad(rate int, from, to []*node, flags ...string) *load {
	x.Helper()
	var targets []netip.Addr
	for _, n := range to {
		x.run("server-"+n.name, on(n))
	}
	for _, n := range to {
		addresses := x.ready("server-" + n.name)
		x.dualStack("pod server-"+n.name, addresses)
		targets = append(targets, addresses...)
	}
	return x.startLoadOf(rate, from, targets, flags...)
}

// startLoadOf is startLoad with the addresses that requests go to.
func (x *story) startLoadOf(rate int, from []*node, targets []netip.Addr, flags ...string) *load {
	x.Helper()
	l := &load{x: x, rate: rate / len(from)}
	args := append([]string{"load", "-rate", strconv.Itoa(l.rate)}, flags...)
	for _, a := range targets {
		args = append(args, netip.AddrPortFrom(a, port).String())
	}
	for _, n := range from {
		name := "load-" + n.name
		x.run(name, on(n), running(args...))
		l.pods = append(l.pods, name)
	}
	for _, name := range l.pods {
		x.ready(name)
	}
	l.underWay()
	return l
}

// underWay waits until all pods have had answers.
func (l *load) underWay() {
	l.x.Helper()
	l.x.eventually("the load is under way", patience, func() error {
		for _, name := range l.pods {
			out, err := l.x.command(l.x.kubectl, "logs", "-n", l.x.namespace, name, "--tail=2")
			if err != nil {
				return err
			}
			reports, err := ParseReports(out)
			if err != nil {
				return err
			}
			if len(reports) < 2 || reports[1].Answered == 0 {
				return fmt.Errorf("%s has reported %d times", name, len(reports))
			}
		}
		return nil
	})
}

// settle is how long after a request it is known what became of it.
const settle = 6 * time.Second

// undisturbed fails the test if a request that was sent between two moments was
// lost, or a connection broke, and says what went on.
func (l *load) undisturbed(what string, from, to time.Time) {
	l.x.Helper()
	for _, name := range l.pods {
		s := l.span(name, what, from, to)
		for _, fault := range s.Faults(float64(l.rate)) {
			l.x.Errorf("%s, from %s: %s", what, name, fault)
		}
	}
}

// span returns what became of the requests of a pod that were sent between two moments, and says
// so.
func (l *load) span(name, what string, from, to time.Time) (s Span) {
	l.x.Helper()
	l.x.eventually("the reports of "+name+" cover "+what, patience, func() error {
		out, err := l.x.command(l.x.kubectl, "logs", "-n", l.x.namespace, name)
		if err != nil {
			return err
		}
		reports, err := ParseReports(out)
		if err != nil {
			return err
		}
		s, err = SpanOf(reports, from.Add(-time.Second), to.Add(settle))
		return err
	})
	l.x.measured("%s, from %s: %s", what, name, s)
	return s
}
