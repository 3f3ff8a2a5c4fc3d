package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/trace"
	"github.com/weftnet/weft/trace/kernel"
)

// tracer looks for probes on the node, and sends them, for root on the node.
type tracer struct {
	node string
	// plan returns what the data plane does, or nil.
	plan func() *plan.Plan
	// attachments calls f for each pod's.
	attachments func(f func(ipam.Attachment))

	mu sync.Mutex
	// probes are those that are looked for, by their IDs.
	probes map[string]*lookout
}

// lookout is what can be done with a probe that is looked for.
type lookout struct {
	// send has it sent; nil where the node only looks. end has the node tell what
	// there is yet.
	send, end    func()
	sent, ending chan struct{}
}

const (
	// maxProbes is how many probes are looked for at a time.
	maxProbes = 4
	// answerTime is how long a probe waits for what comes back: longer than TCP
	// takes to try again.
	answerTime = 2500 * time.Millisecond
)

// watch answers with trace.Events until the time is over or who asks is gone.
func (t *tracer) watch(w http.ResponseWriter, r *http.Request) {
	var watch trace.Watch
	err := json.NewDecoder(io.LimitReader(r.Body, 4096)).Decode(&watch)
	if err == nil {
		err = watch.Validate()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	l, err := t.begin(watch)
	if err != nil {
		http.Error(w, err.Error(), http.StatusTooManyRequests)
		return
	}
	defer t.forget(watch.ID)
	ctx, cancel := context.WithTimeout(r.Context(), watch.For)
	defer cancel()
	var probe *kernel.Probe
	if watch.Sends() {
		path, err := t.namespace(watch)
		if err == nil {
			probe, watch, err = kernel.Prepare(path, watch)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		defer probe.Close()
	}
	watching, err := kernel.Open(watch)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer watching.Close()

	// Where the reader is slow the kernel has to keep what it tells, and says
	// when it cannot.
	events := make(chan trace.Event)
	say := func(e trace.Event) {
		select {
		case events <- e:
		case <-ctx.Done():
		}
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		say(trace.Event{Kind: trace.Watching, Time: time.Now(), Source: watch.Source, SourcePort: watch.SourcePort})
		if err := watching.Run(ctx, l.ending, say); err != nil {
			say(trace.Event{Kind: trace.Failed, Time: time.Now(), Text: err.Error()})
		}
		select {
		case <-ctx.Done():
		case <-l.ending: // who sends may have more to tell until then
			say(trace.Event{Kind: trace.Ended, Time: time.Now()})
		}
	})
	if probe != nil {
		running.Go(func() {
			select {
			case <-ctx.Done():
			case <-l.sent:
				say(probe.Send(answerTime))
			}
		})
	}
	t.pass(ctx, w, events)
}

// pass writes events as they come, until the node has ended.
func (t *tracer) pass(ctx context.Context, w http.ResponseWriter, events <-chan trace.Event) {
	control := http.NewResponseController(w)
	// The server's own deadline would end this as a request that takes too long.
	if err := control.SetReadDeadline(time.Time{}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	encode := json.NewEncoder(w)
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			e.Node = t.node
			e.Endpoint = t.endpoint(e.Device)
			if control.SetWriteDeadline(time.Now().Add(readTimeout)) != nil || encode.Encode(e) != nil || control.Flush() != nil {
				return
			}
			if e.Kind == trace.Ended {
				return
			}
		}
	}
}

// send has a probe sent that is looked for.
func (t *tracer) send(w http.ResponseWriter, r *http.Request) {
	t.tell(w, r, "waits to be sent here", func(l *lookout) func() { return l.send })
}

// end has the node tell what there is yet of a probe, and end.
func (t *tracer) end(w http.ResponseWriter, r *http.Request) {
	t.tell(w, r, "is looked for here", func(l *lookout) func() { return l.end })
}

func (t *tracer) tell(w http.ResponseWriter, r *http.Request, what string, of func(*lookout) func()) {
	id, err := io.ReadAll(io.LimitReader(r.Body, 64))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.probes[string(id)]; l == nil || of(l) == nil {
		http.Error(w, fmt.Sprintf("no probe %q %s", id, what), http.StatusNotFound)
	} else {
		of(l)()
	}
}

func (t *tracer) begin(watch trace.Watch) (*lookout, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, taken := t.probes[watch.ID]
	switch {
	case taken:
		return nil, fmt.Errorf("probe %q is being looked for already", watch.ID)
	case len(t.probes) >= maxProbes:
		return nil, fmt.Errorf("%d probes are being looked for already: try again in %s", maxProbes, trace.MostTime)
	}
	if t.probes == nil {
		t.probes = make(map[string]*lookout)
	}
	l := &lookout{sent: make(chan struct{}), ending: make(chan struct{})}
	l.end = sync.OnceFunc(func() { close(l.ending) })
	if watch.Sends() {
		l.send = sync.OnceFunc(func() { close(l.sent) })
	}
	t.probes[watch.ID] = l
	return l, nil
}

func (t *tracer) forget(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.probes, id)
}

// namespace returns the path of the network namespace to send from; "" is the
// node's.
func (t *tracer) namespace(watch trace.Watch) (string, error) {
	if watch.Host {
		return "", nil
	}
	path, known := "", false
	t.attachments(func(a ipam.Attachment) {
		if a.Namespace+"/"+a.Pod == watch.Pod && slices.Contains(a.Addresses, watch.Source) {
			path, known = cmp.Or(path, a.NetNS), true // all its interfaces are in one
		}
	})
	switch {
	case !known:
		return "", fmt.Errorf("node %s has no pod %s with address %s", t.node, watch.Pod, watch.Source)
	case path == "":
		return "", fmt.Errorf("node %s has lost where the network namespace of pod %s is", t.node, watch.Pod)
	}
	return path, nil
}

// endpoint returns the pod that a device leads to.
func (t *tracer) endpoint(device string) string {
	p := t.plan()
	if p == nil || device == "" {
		return ""
	}
	e, _ := p.Endpoints.Get(plan.EndpointKey{Interface: device})
	return e.Name
}
