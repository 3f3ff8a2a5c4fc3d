package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weftnet/weft/daemon"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/trace"
)

const (
	// mostLive bounds how long all of it takes: the registry is read before the
	// probe, and after it where the kernels did something else than the plans say.
	mostLive = 2*readTime + probeTime
	// readTime is how long the registry may take to tell all that an answer is found
	// from.
	readTime = 15 * time.Second
	// probeTime bounds what agents do, and how long they look for a probe, should
	// nobody tell them to end. Five times an agent is waited for, for nodeTime at
	// most: to prepare the sender, to have the others look, to have the probe sent,
	// for what came back, and for the end.
	probeTime = trace.MostTime
	// nodeTime is how long an agent may take to answer a request.
	nodeTime = 5 * time.Second
	// backTime is how long the sender may take to tell what came back: it waits
	// half of that for it.
	backTime = nodeTime
)

// errUnread is of a registry that has not told all in time.
var errUnread = fmt.Errorf("the registry has not told in %s all that an answer is found from: it may hang, or be slow for a cluster of this size (without --live it has longer)", readTime)

// within asks, and bounds how long that may take; late is the error of what took
// longer.
func within(ctx context.Context, limit time.Duration, late error, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	err := ask(ctx)
	if err != nil && errors.Is(context.Cause(ctx), late) {
		return late
	}
	return err
}

// live is a question that is put to the nodes' kernels as well.
type live struct {
	question explain.Question
	// open connects to the registry, and agents finds those that can be asked.
	open   func(context.Context) (daemon.Registry, error)
	agents func(context.Context, registry.Registry) ([]askedAgent, error)
}

// run answers the question, and says what became of a probe. What changed while that
// was on its way cannot be held against it, so the question is asked again where the
// two differ.
func (l live) run(ctx context.Context) (a explain.Answer, report trace.Report, err error) {
	var reg daemon.Registry
	var agents []askedAgent
	var sender, watch trace.Watch
	err = within(ctx, readTime, errUnread, func(ctx context.Context) (err error) {
		if reg, err = l.open(ctx); err != nil {
			return err
		}
		if a, err = askWhy(ctx, reg, l.question); err != nil {
			return err
		}
		if sender, watch, err = probeFor(a); err != nil {
			return err
		}
		agents, err = l.agents(ctx, reg)
		return err
	})
	if reg != nil {
		defer reg.Close()
	}
	if err != nil {
		return a, report, err
	}
	if report, err = probe(ctx, agents, a, sender, watch); err != nil || report.Agree || report.Open {
		return a, report, err
	}
	var now explain.Answer
	err = within(ctx, readTime, errUnread, func(ctx context.Context) (err error) {
		now, err = askWhy(ctx, reg, l.question)
		return err
	})
	// That a node doubts itself meanwhile, as of what it has found in its way, makes no
	// other plan.
	now.Explanation.Allowed = a.Explanation.Allowed
	switch {
	case err != nil:
		report.Changed(err.Error())
	case now.Explanation.String() != a.Explanation.String():
		report.Changed(now.Reason)
	}
	return a, report, nil
}

// showLive shows an answer and what became of a probe.
func showLive(out io.Writer, a explain.Answer, report trace.Report, format string, verbose bool) (err error) {
	switch {
	case format != "":
		err = printValue(out, format, struct {
			explain.Answer
			Live trace.Report `json:"live"`
		}{a, report})
	case verbose:
		_, err = fmt.Fprintf(out, "%s%s", a.Verbose(), report)
	default:
		_, err = fmt.Fprintf(out, "%s%s", a, report)
	}
	switch {
	case err != nil || report.Arrived && report.Lost == "":
		return err
	case report.Open:
		return exitError{code: exitFailed}
	}
	return exitError{code: 1}
}

// probeFor says what to send for a question that was answered, and what to look for.
func probeFor(a explain.Answer) (sender, watch trace.Watch, err error) {
	if a.Service != nil && !a.AnsweredHere() {
		return sender, watch, fmt.Errorf("%s is translated on the way: name one of the pods behind it to send to that", a.Service.Name)
	}
	watch = trace.Watch{ID: probeID(), Source: a.Source.Address, Destination: a.Destination.Address,
		Protocol: a.Protocol, Port: a.Port, For: probeTime}
	sender = watch
	pod, isPod := strings.CutPrefix(a.Source.Name, "pod ")
	switch {
	case a.Source.Attached() && isPod:
		sender.Pod = pod
	case a.Source.Node != "":
		sender.Host = true
	default:
		return sender, watch, fmt.Errorf("%s is neither a pod nor a node of the cluster: nothing can be sent from there", a.Source)
	}
	return sender, watch, sender.Validate()
}

// probe has the agents send a probe and look for it.
func probe(ctx context.Context, all []askedAgent, a explain.Answer, sender, watch trace.Watch) (trace.Report, error) {
	from := slices.IndexFunc(all, func(x askedAgent) bool { return x.node == a.Source.Node })
	if from < 0 {
		return trace.Report{}, fmt.Errorf("no agent runs on node %s, which is to send (see: weft status)", a.Source.Node)
	}
	asked := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &probing{ctx: ctx, changed: make(chan struct{}, 1)}
	defer p.running.Wait()
	defer cancel()
	// Where who asks has ended it, no node is to blame.
	failed := func(err error) (trace.Report, error) {
		if asked.Err() != nil {
			return trace.Report{}, context.Cause(asked)
		}
		return trace.Report{}, fmt.Errorf("node %s, which sends: %w", a.Source.Node, err)
	}
	begun, err := p.open(all[from], sender)
	if err != nil {
		return failed(err)
	}
	watch.Source, watch.SourcePort = begun.Source, begun.SourcePort
	if a.SeenSource.IsValid() && a.SeenSource != a.Source.Address && !sender.Host {
		watch.Source, watch.SourcePort = a.SeenSource, 0 // it is translated on the way
	}
	blind := p.openAll(all, slices.DeleteFunc(nodesOnTheWay(a), func(node string) bool { return node == a.Source.Node }), watch)
	if asked.Err() != nil {
		return failed(nil)
	}
	if err := p.answered(func(ctx context.Context) error { return all[from].send(ctx, watch.ID) }); err != nil {
		return failed(err)
	}
	if err := p.awaitAnswer(); err != nil {
		return failed(err)
	}
	p.end(watch.ID)
	if asked.Err() != nil {
		return failed(nil)
	}
	return trace.Compare(a.Explanation, ownerOf(a.Destination), p.events, blind), nil
}

// ownerOf is who has the address that a probe is sent to.
func ownerOf(to explain.Party) trace.Owner {
	if pod, isPod := strings.CutPrefix(to.Name, "pod "); isPod && !to.OnHost() {
		return trace.Owner{Pod: pod, Node: to.Node}
	}
	return trace.Owner{Node: to.Node}
}

func probeID() string {
	var b [6]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// nodesOnTheWay are those that the packet should meet, and where it should end.
func nodesOnTheWay(a explain.Answer) []string {
	nodes := []string{a.Source.Node, a.Destination.Node}
	for _, s := range a.Steps {
		nodes = append(nodes, s.Node)
	}
	slices.Sort(nodes)
	return slices.DeleteFunc(slices.Compact(nodes), func(n string) bool { return n == "" })
}

// probing is what nodes tell of one probe.
type probing struct {
	ctx     context.Context
	running sync.WaitGroup
	changed chan struct{}
	looking []*lookingAgent

	mu     sync.Mutex
	events []trace.Event
}

// lookingAgent is an agent that looks for a probe.
type lookingAgent struct {
	askedAgent
	// ended is closed once it tells no more, and failed says why that was too
	// early, where it was.
	ended  chan struct{}
	failed error
	cancel context.CancelFunc
}

// openAll has nodes look for the probe, and returns once each does or has said why
// it cannot, which is returned by node.
func (p *probing) openAll(all []askedAgent, nodes []string, w trace.Watch) map[string]string {
	blind := make(map[string]string)
	var mu sync.Mutex
	var opening sync.WaitGroup
	for _, node := range nodes {
		i := slices.IndexFunc(all, func(x askedAgent) bool { return x.node == node })
		if i < 0 {
			blind[node] = "no agent runs there that could look"
			continue
		}
		opening.Go(func() {
			if _, err := p.open(all[i], w); err != nil {
				mu.Lock()
				defer mu.Unlock()
				blind[node] = err.Error()
			}
		})
	}
	opening.Wait()
	return blind
}

// errSilent is of an agent that has not answered a request in time.
var errSilent = fmt.Errorf("it has not answered in %s: its agent may hang (see: weft status)", nodeTime)

// answered asks an agent, and bounds how long it may take to answer.
func (p *probing) answered(ask func(context.Context) error) error {
	return within(p.ctx, nodeTime, errSilent, ask)
}

// begin asks an agent, and waits for the beginning of its answer no longer than ctx:
// a websocket's handshake heeds the deadline of a context, and nothing else of it. A
// deadline would end the answer, too, which is read for longer.
func begin(ctx context.Context, ask func(context.Context) (io.ReadCloser, error)) (io.ReadCloser, error) {
	type result struct {
		answer io.ReadCloser
		err    error
	}
	results := make(chan result, 1)
	go func() {
		answer, err := ask(ctx)
		results <- result{answer, err}
	}()
	select {
	case r := <-results:
		return r.answer, r.err
	case <-ctx.Done():
		go func() {
			if r := <-results; r.err == nil {
				r.answer.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// open has a node look for the probe, and returns once it does.
func (p *probing) open(agent askedAgent, w trace.Watch) (begins trace.Event, err error) {
	ctx, cancel := context.WithCancelCause(p.ctx)
	silent := time.AfterFunc(nodeTime, func() { cancel(errSilent) })
	defer func() {
		silent.Stop()
		if err == nil {
			return
		}
		if errors.Is(context.Cause(ctx), errSilent) {
			err = errSilent
		}
		cancel(nil)
	}()
	answer, err := begin(ctx, func(ctx context.Context) (io.ReadCloser, error) { return agent.trace(ctx, w) })
	if err != nil {
		return trace.Event{}, err
	}
	l := &lookingAgent{askedAgent: agent, ended: make(chan struct{}), cancel: func() { cancel(nil) }}
	begun := make(chan trace.Event, 1)
	p.running.Go(func() {
		defer close(l.ended)
		defer answer.Close()
		defer cancel(nil)
		l.failed = errors.New("its answer ended before it had told all")
		if err := trace.ReadEvents(answer, func(e trace.Event) error {
			e.Node = agent.node
			switch e.Kind {
			case trace.Watching:
				select {
				case begun <- e:
				default:
				}
			case trace.Ended:
				l.failed = nil
			}
			p.take(e)
			return nil
		}); err != nil && l.failed != nil {
			l.failed = fmt.Errorf("%w: %w", l.failed, err)
		}
	})
	select {
	case e := <-begun:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.looking = append(p.looking, l)
		return e, nil
	case <-l.ended:
		return trace.Event{}, fmt.Errorf("it does not look for the probe: %w", l.failed)
	case <-ctx.Done():
		return trace.Event{}, context.Cause(ctx)
	}
}

// take keeps an event.
func (p *probing) take(e trace.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, e)
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// awaitAnswer returns when the sender has told what came back, or that it could
// not send.
func (p *probing) awaitAnswer() error {
	over := time.NewTimer(backTime)
	defer over.Stop()
	from := p.looking[0]
	for {
		var ended bool
		select {
		case <-from.ended:
			ended = true
		default:
		}
		p.mu.Lock()
		i := slices.IndexFunc(p.events, func(e trace.Event) bool { return e.Kind == trace.Answered || e.Kind == trace.Unsent })
		p.mu.Unlock()
		switch {
		case i >= 0:
			return nil
		case ended:
			return from.failed
		}
		select {
		case <-p.changed:
		case <-from.ended:
		case <-over.C:
			return fmt.Errorf("it has not told in %s what came back", backTime)
		case <-p.ctx.Done():
			return p.ctx.Err()
		}
	}
}

// end has all that look tell what there is yet, and waits for it. Of those that
// do not is not known what they saw beside what they told.
func (p *probing) end(id string) {
	for _, l := range p.looking {
		p.running.Go(func() {
			defer l.cancel()
			err := p.answered(func(ctx context.Context) error {
				if err := l.end(ctx, id); err != nil {
					return err
				}
				select {
				case <-l.ended:
					return l.failed
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			})
			if err != nil {
				p.take(trace.Event{Kind: trace.Failed, Node: l.node, Text: err.Error()})
			}
		})
	}
	p.running.Wait()
}
