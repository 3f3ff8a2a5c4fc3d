package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weftnet/weft/cni"
	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// Ready says why pods cannot be networked; nil when they can. It implements
// cni.Node.
func (a *agent) Ready() error {
	a.mu.Lock()
	trouble, s := maps.Clone(a.trouble), a.syncer
	a.mu.Unlock()
	if rival := trouble[rivalPart]; rival != "" {
		return errors.New(rival)
	}
	if s == nil || s.Last().Plan == nil {
		if words := sentences(trouble); words != "" {
			return errors.New(words)
		}
		if s != nil && s.Last().Err != nil {
			return s.Last().Err
		}
		return errors.New("the agent is starting")
	}
	last := s.Last()
	if len(last.Plan.Local.Pools) == 0 {
		words := []string{"the node has no subnet yet"}
		for _, p := range last.Problems {
			words = append(words, p.String())
		}
		words = append(words, a.degraded()...)
		return errors.New(strings.Join(words, "; "))
	}
	return datapath.Concerning(last.Err)
}

// Admit implements cni.Node.
func (a *agent) Admit(namespace, name, uid string) error {
	if a.pods == nil || name == "" {
		return nil
	}
	return a.pods.admit(namespace, name, uid)
}

// Pools implements cni.Node.
func (a *agent) Pools() []plan.Pool {
	if p := a.plan(); p != nil {
		return p.Local.Pools
	}
	return nil
}

// MTU implements cni.Node.
func (a *agent) MTU() int {
	if p := a.plan(); p != nil {
		return p.Local.MTU
	}
	return 0
}

// Publish implements cni.Node.
func (a *agent) Publish(ctx context.Context, interfaces ...string) error {
	a.tell()
	s := a.running()
	if s == nil {
		return a.Ready()
	}
	return s.Publish(ctx, interfaces...)
}

func (a *agent) observe(command, result string, took time.Duration) {
	a.metrics.requests.WithLabelValues(command, result).Observe(took.Seconds())
}

// maxMessage bounds what goes into a Node condition, in bytes.
const maxMessage = 1024

func (a *agent) nodeState() nodeState {
	u := a.underlayNow()
	state := nodeState{Addresses: u.Addresses, OnLink: u.Prefixes}
	if err := a.Ready(); err != nil {
		state.NotReady = truncate(err.Error())
	}
	a.mu.Lock()
	trouble, s := maps.Clone(a.trouble), a.syncer
	a.mu.Unlock()
	// What keeps the object from being written would never be read there, but
	// once it can be written again.
	delete(trouble, nodePart)
	words := a.outages(true)
	if t := sentences(trouble); t != "" {
		words = append(words, t)
	}
	if s != nil {
		last := s.Last()
		for _, p := range last.Problems {
			if !p.Told {
				words = append(words, p.String())
			}
		}
		if last.Err != nil {
			words = append(words, last.Err.Error())
		}
	}
	state.OutOfSync = truncate(strings.Join(words, "; "))
	return state
}

// degraded says what is wrong though pods can be networked.
func (a *agent) degraded() []string {
	a.mu.Lock()
	trouble := maps.Clone(a.trouble)
	a.mu.Unlock()
	lines := a.outages(false)
	for _, part := range slices.Sorted(maps.Keys(trouble)) {
		lines = append(lines, part+": "+trouble[part])
	}
	return lines
}

func sentences(trouble map[string]string) string {
	var words []string
	for _, part := range slices.Sorted(maps.Keys(trouble)) {
		words = append(words, part+": "+trouble[part])
	}
	return strings.Join(words, "; ")
}

func truncate(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage-len("…")], "") + "…"
}

var _ cni.Node = (*agent)(nil)

// outages says which kinds cannot be followed, and why. With refused, those are
// left out that cannot be just because the registry is away.
func (a *agent) outages(refused bool) []string {
	a.mu.Lock()
	caches := slices.Collect(maps.Keys(a.caches))
	a.mu.Unlock()
	var words []string
	for _, c := range caches {
		if err := c.Err(); err != nil && !(refused && errors.Is(err, registry.ErrUnavailable)) {
			words = append(words, err.Error())
		}
	}
	slices.Sort(words)
	return words
}
