package agent

import "time"

// interlude is the time in which the node comes from one choice of plug-ins and data
// plane to another. Until the first round of the next, all that the last one did is in the
// kernel, and pods are networked as they were: so what was said of the node is said
// still, to the runtime, at the Node and at /readyz. Else the kubelet would call the node
// not ready, and its pods would leave their Services, for a change that no packet
// notices. Who wants a pod attached is asked for patience meanwhile.
type interlude struct {
	// until is when it ends though there was no round; zero where there is none.
	until time.Time
	state nodeState
	// after is who did the rounds before it, which do not end it.
	after *syncer
}

// mostInterlude is how long a node is believed to be what it was though nothing of the
// next choice works yet.
const mostInterlude = 15 * time.Second

// beginInterlude begins one, where pods can be networked. One that goes on is not longer
// for that.
func (a *agent) beginInterlude() {
	a.mu.Lock()
	goesOn := time.Now().Before(a.interlude.until)
	if goesOn {
		a.interlude.after = a.syncer
	}
	a.mu.Unlock()
	if goesOn || a.Ready() != nil {
		return
	}
	state := a.nodeState()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.interlude = interlude{time.Now().Add(mostInterlude), state, a.syncer}
}

// endInterlude has said what is, from now on, after a round by someone, or where there will
// be none.
func (a *agent) endInterlude(by *syncer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if by == nil || by != a.interlude.after {
		a.interlude = interlude{}
	}
}

// between returns what is said of the node while one choice follows another.
func (a *agent) between() (nodeState, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.interlude.state, time.Now().Before(a.interlude.until)
}
