package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/cni"
	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Ready says why pods cannot be networked; nil when they can. Between two choices of what
// the node runs it wraps cni.ErrChanging. It implements cni.Node.
func (a *agent) Ready() error {
	a.mu.Lock()
	trouble, s := maps.Clone(a.trouble), a.syncer
	a.mu.Unlock()
	if rival := trouble[rivalPart]; rival != "" {
		return errors.New(rival)
	}
	if _, between := a.between(); between {
		return cni.ErrChanging
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
	if len(open(last.Plan)) == 0 {
		words := []string{"the node has no subnet yet"}
		for _, p := range slices.Concat(last.Problems, last.Undone) {
			words = append(words, p.String())
		}
		words = append(words, a.degraded()...)
		return errors.New(strings.Join(words, "; "))
	}
	return datapath.Concerning(last.Err, noInterface)
}

// noInterface stands for the endpoint of a pod that is still to come.
const noInterface = ""

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
		return open(p)
	}
	return nil
}

// Has implements cni.Node.
func (*agent) Has(a netip.Addr) bool { return has(a) }

// open returns the pools that pods get addresses of.
func open(p *plan.Plan) []plan.Pool {
	return slices.DeleteFunc(slices.Clone(p.Local.Pools), func(pool plan.Pool) bool { return pool.Closed })
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
		err := a.Ready() // the next one has not begun
		if !errors.Is(err, cni.ErrChanging) {
			err = errors.Join(cni.ErrChanging, err)
		}
		return err
	}
	return s.Publish(ctx, interfaces...)
}

func (a *agent) observe(command, result string, took time.Duration) {
	a.metrics.requests.WithLabelValues(command, result).Observe(took.Seconds())
}

// maxMessage bounds what goes into a Node condition, in bytes.
const maxMessage = 1024

func (a *agent) nodeState() nodeState {
	if state, between := a.between(); between && errors.Is(a.Ready(), cni.ErrChanging) {
		return state
	}
	u := a.underlayNow()
	state := nodeState{Addresses: u.Addresses, OnLink: u.Prefixes, Others: u.Others}
	state.Announces = a.announcer.announces()
	a.mu.Lock()
	state.Orphans, state.Plugins = a.orphans, a.plugins
	planes := a.planes
	a.mu.Unlock()
	if planes != nil {
		if r := planes.report(); r.Uses != "" {
			state.DataPlane = r.Text()
		}
	}
	applied := a.applied()
	if applied != nil {
		// By what is in force: the configuration may say something else that is still to come.
		state.MTU, state.ServiceProxy = applied.Plan.Local.MTU, api.WeftProxy
		if applied.Plan.Local.ServicesLeft {
			state.ServiceProxy = api.KubeProxy
		}
		at := nameServerIn(applied.Plan, plugin.NameServerOf(applied.Input.Config, applied.Input.Objects, applied.Input.Node.Addresses))
		state.NameServer = &at
	}
	if err := a.Ready(); err != nil {
		state.NotReady = truncate(err.Error())
	}
	if s := a.running(); s != nil {
		last := s.Last()
		if last.Able != nil {
			state.Capabilities = last.Able.String()
			if !last.Able.Services && state.ServiceProxy == api.WeftProxy {
				state.ServiceProxy = api.NoProxy
			}
		}
		state.Unloaded = !last.Whole || s.Contested()
	}
	undone, found := a.problems()
	var words []string
	for _, p := range undone {
		words = append(words, strings.TrimPrefix(p.String(), a.own("").Object()+": "))
	}
	state.OutOfSync = truncate(strings.Join(words, "; "))
	state.Problems = a.bounded(slices.Concat(undone, found))
	if state.NotReady != "" && len(state.Problems) == 0 {
		state.Problems = []api.Problem{a.own("not ready: " + state.NotReady)}
	}
	return state
}

// own is a problem of the node itself.
func (a *agent) own(message string) api.Problem {
	return api.Problem{Kind: api.Node.Kind, Name: a.Node, Message: message}
}

// problems says what keeps the node from doing all that its plan says, and what
// was found in objects, by which the plan is what it should be.
func (a *agent) problems() (undone, found []api.Problem) {
	a.mu.Lock()
	trouble, s, cutOff, obstacles, unready := maps.Clone(a.trouble), a.syncer, slices.Clone(a.cutOff), a.obstacles, a.unready
	for _, message := range []string{a.hidden, a.unanswered} {
		if message != "" {
			found = append(found, a.own(message))
		}
	}
	a.mu.Unlock()
	// What keeps the object from being written would never be read there, but
	// once it can be written again.
	delete(trouble, nodePart)
	// The node does all that its plan says, whatever others write of it, and whether pods' questions
	// for names are answered.
	for _, part := range []string{saidPart, namesPart, recordsPart} {
		message := trouble[part]
		if message == "" {
			continue
		}
		delete(trouble, part)
		if part != saidPart {
			message = part + ": " + message
		}
		found = append(found, a.own(message))
	}
	for _, message := range a.outages(true) {
		undone = append(undone, a.own(message))
	}
	for _, part := range slices.Sorted(maps.Keys(trouble)) {
		p := a.own(part + ": " + trouble[part])
		if part == configPart {
			p = api.Problem{Kind: api.ClusterConfigKind.Kind, Name: api.DefaultName, Message: trouble[part]}
		}
		undone = append(undone, p)
	}
	for _, line := range obstacles {
		undone = append(undone, a.own(line))
	}
	for _, line := range a.absent() {
		found = append(found, a.own(line))
	}
	if s == nil {
		return append(undone, cutOff...), found
	}
	last := s.Last()
	undone = append(undone, a.untold(last.Undone)...)
	refused, rest := datapath.Refused(last.Told)
	undone = append(undone, a.untold(problems(s.kinds, refused))...)
	if rest != nil {
		undone = append(undone, a.own(rest.Error()))
	}
	found = append(found, a.announcer.problems()...)
	// They come before what others could make many.
	for _, line := range unready {
		found = append(found, a.own(line))
	}
	return append(undone, cutOff...), append(found, a.untold(last.Problems)...)
}

// untold are those problems of which nobody else tells.
func (a *agent) untold(problems []plugin.Problem) (untold []api.Problem) {
	for _, p := range problems {
		switch {
		case p.Told:
		case p.Kind == nil:
			untold = append(untold, a.own(p.Message))
		default:
			untold = append(untold, api.Problem{Kind: p.Kind.Kind, Namespace: p.Key.Namespace, Name: p.Key.Name, Message: p.Message})
		}
	}
	return untold
}

// bounded returns problems as they go into the Node object: none too long, each
// in one line, and not too many. That there are more is a problem of the node:
// they may be of anything.
func (a *agent) bounded(problems []api.Problem) []api.Problem {
	if len(problems) > api.MaxNodeProblems {
		more := len(problems) - (api.MaxNodeProblems - 1)
		problems = append(slices.Clone(problems[:api.MaxNodeProblems-1]), a.own(fmt.Sprintf("there are %d more problems: see the agent's log", more)))
	}
	for i := range problems {
		problems[i].Message = truncate(strings.ReplaceAll(problems[i].Message, "\n", "; "))
	}
	return problems
}

// degraded says what is wrong though pods can be networked.
func (a *agent) degraded() []string {
	a.mu.Lock()
	trouble, obstacles := maps.Clone(a.trouble), a.obstacles
	a.mu.Unlock()
	lines := append(a.outages(false), a.absent()...)
	for _, part := range slices.Sorted(maps.Keys(trouble)) {
		lines = append(lines, part+": "+trouble[part])
	}
	return append(lines, obstacles...)
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

// absent says without which kinds the node goes on, as the registry does not know them.
func (a *agent) absent() (words []string) {
	a.mu.Lock()
	caches := slices.Collect(maps.Keys(a.caches))
	a.mu.Unlock()
	for _, c := range caches {
		for _, o := range c.Absent() {
			words = append(words, fmt.Sprintf("the node goes on as if there were no %s: %v", o.Kind.Plural, o.Err))
		}
	}
	slices.Sort(words)
	return slices.Compact(words)
}

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
