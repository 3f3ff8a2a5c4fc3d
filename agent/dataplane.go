package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// standing is all by which it is decided what becomes of a node's data plane. It is
// a value: what follows from it is next, and what follows from what was done is after.
type standing struct {
	// known are the data planes that there are, in order.
	known []string
	// annotated is the one that the Node asks for, empty where it asks for none, and
	// configured the one that the ClusterConfig asks for.
	annotated, configured string
	// inForce is the one that decides about packets, as far as this agent knows; empty
	// while it has brought none into force.
	inForce string
	// present are those of which there is something on the node.
	present map[string]bool
	// prepared is the one that is ready to take over.
	prepared string
	// failed are those that could not take over, and stuck those of which something
	// is left that could not be removed.
	failed, stuck map[string]failure
}

// failure is what went wrong.
type failure struct {
	why   string
	until time.Time // before that it is not tried again
	wait  retry.Backoff
}

// The second attempt at what failed comes after takeOverFirst. Each later one waits
// twice as long as the one before, up to takeOverMost.
const (
	takeOverFirst = time.Second
	takeOverMost  = time.Minute
)

func (f failure) again(why string, now time.Time) failure {
	f.wait.First, f.wait.Last = takeOverFirst, takeOverMost
	f.why, f.until = why, now.Add(f.wait.Next())
	return f
}

// errNotOpened says that a data plane cannot even be opened, and has done nothing.
var errNotOpened = errors.New("it cannot be opened here")

// deed is what is done with a data plane.
type deed string

const (
	prepare  deed = "prepare"
	switchTo deed = "switch to"
	remove   deed = "remove"
)

// step is what is to be done next; the zero value is nothing.
type step struct {
	deed
	plane string
	// from are those that it takes over from.
	from []string
}

func (s step) String() string {
	if s.deed == "" {
		return "nothing"
	}
	text := string(s.deed) + " " + s.plane
	if len(s.from) > 0 {
		text += " from " + strings.Join(s.from, ", ")
	}
	return text
}

// asked is the data plane that is asked for, and who asks.
func (s standing) asked() (name, by string) {
	if s.annotated != "" {
		return s.annotated, "annotation " + api.DataPlaneAnnotation
	}
	return s.configured, "ClusterConfig " + api.DefaultName
}

// candidates are the data planes that may be in force, the one that is wanted most
// first: what is asked for, then what the node has.
func (s standing) candidates() []string {
	name, _ := s.asked()
	all := []string{name, s.inForce}
	if s.present[s.configured] {
		all = append(all, s.configured)
	}
	all = append(all, slices.Sorted(maps.Keys(s.present))...)
	if s.annotated != "" && len(s.present) == 0 {
		all = append(all, s.configured)
	}
	var known []string
	for _, c := range all {
		if slices.Contains(s.known, c) && !slices.Contains(known, c) {
			known = append(known, c)
		}
	}
	return known
}

// next is what is to be done at a time.
func (s standing) next(now time.Time) step {
	waits := func(f map[string]failure) func(string) bool {
		return func(name string) bool { return now.Before(f[name].until) }
	}
	able := slices.DeleteFunc(s.candidates(), waits(s.failed))
	if len(able) == 0 {
		return step{}
	}
	plane := able[0]
	var others []string
	for _, name := range slices.Sorted(maps.Keys(s.present)) {
		if name != plane {
			others = append(others, name)
		}
	}
	switch {
	case s.inForce == plane:
		if gone := slices.DeleteFunc(others, waits(s.stuck)); len(gone) > 0 {
			return step{deed: remove, plane: gone[0]}
		}
		return step{}
	case len(others) > 0 && s.prepared != plane:
		return step{prepare, plane, others}
	default:
		return step{switchTo, plane, others}
	}
}

// after is what stands after a step that ended with err.
func (s standing) after(done step, err error, now time.Time) standing {
	s.present, s.failed, s.stuck = maps.Clone(s.present), maps.Clone(s.failed), maps.Clone(s.stuck)
	switch done.deed {
	case remove:
		if err != nil {
			s.stuck[done.plane] = s.stuck[done.plane].again(err.Error(), now)
			return s
		}
		delete(s.present, done.plane)
		delete(s.stuck, done.plane)
		return s
	case prepare:
		s.prepared = done.plane
	case switchTo:
		s.inForce, s.prepared = done.plane, ""
	}
	if !errors.Is(err, errNotOpened) {
		s.present[done.plane] = true
	}
	switch {
	case err != nil:
		s.failed[done.plane] = s.failed[done.plane].again(err.Error(), now)
		if s.prepared = ""; done.deed == switchTo {
			s.inForce = "" // it is not sure which decides
		}
	case done.deed == switchTo:
		delete(s.failed, done.plane)
		delete(s.stuck, done.plane) // what it has on the node is in use
	}
	return s
}

// wants is what stands when others ask for a data plane than before: what failed then
// is tried at once.
func (s standing) wants(annotated, configured string) standing {
	if annotated != s.annotated || configured != s.configured {
		s.annotated, s.configured = annotated, configured
		s.failed, s.prepared = map[string]failure{}, ""
	}
	return s
}

// due is when something that failed is to be tried again; zero where nothing is. It is
// asked when there is nothing to do before.
func (s standing) due() time.Time {
	var ends []time.Time
	for _, failures := range []map[string]failure{s.failed, s.stuck} {
		for _, f := range failures {
			ends = append(ends, f.until)
		}
	}
	slices.SortFunc(ends, time.Time.Compare)
	for _, end := range ends {
		if s.next(end).deed != "" {
			return end
		}
	}
	return time.Time{}
}

// report is what the Node says of its data plane.
func (s standing) report() api.DataPlaneReport {
	r := api.DataPlaneReport{Uses: s.inForce}
	if name, _ := s.asked(); name != s.inForce && slices.Contains(s.known, name) {
		r.Wants = name
	}
	return r
}

// trouble says what is wrong; empty where nothing is.
func (s standing) trouble() string {
	var words []string
	goesOn := "the node has none"
	if s.inForce != "" {
		goesOn = "the node goes on with " + s.inForce
	}
	switch name, by := s.asked(); {
	case !slices.Contains(s.known, name):
		verb := "is"
		if len(s.known) > 1 {
			verb = "are"
		}
		words = append(words, fmt.Sprintf("%s asks for data plane %q, which is unknown: there %s %s; %s", by, name, verb, strings.Join(s.known, ", "), goesOn))
	case s.failed[name].why != "" && s.inForce != name:
		words = append(words, fmt.Sprintf("%s asks for data plane %s, which cannot take over: %s; %s, and it is tried again", by, name, s.failed[name].why, goesOn))
	}
	for _, name := range slices.Sorted(maps.Keys(s.stuck)) {
		words = append(words, fmt.Sprintf("what data plane %s had on the node cannot be removed: %s", name, s.stuck[name].why))
	}
	return strings.Join(words, "; ")
}

// dataPlanes is the data plane of a node, whichever is in force. It is used by one
// goroutine, but for each, report and close.
type dataPlanes struct {
	// DataPlane is the one in force.
	datapath.DataPlane
	open func(name string) (datapath.DataPlane, error)
	log  *slog.Logger
	// problem is told what is wrong, or "", and wake what to call when something that
	// failed is to be tried again.
	problem func(string)
	wake    func()

	// looked says that the node was asked what is on it.
	looked bool
	timer  *time.Timer
	opened map[string]datapath.DataPlane

	mu       sync.Mutex
	standing standing
	// using is what each runs on; nil while none is in force.
	using *inUse
	// changed is closed, and replaced, when using changes.
	changed chan struct{}
}

// inUse is a data plane in force, and who uses it besides the one who applies plans.
type inUse struct {
	plane datapath.DataPlane
	ended context.Context
	end   context.CancelFunc
	users sync.WaitGroup
}

// newDataPlanes returns those with some names, which open opens, with none in force.
func newDataPlanes(names []string, open func(name string) (datapath.DataPlane, error), log *slog.Logger, problem func(string), wake func()) *dataPlanes {
	return &dataPlanes{open: open, log: log, problem: problem, wake: wake, opened: map[string]datapath.DataPlane{}, changed: make(chan struct{}),
		standing: standing{known: slices.Sorted(slices.Values(names)), present: map[string]bool{}, failed: map[string]failure{}, stuck: map[string]failure{}}}
}

// choose brings into force the data plane that is asked for, with a plan, and takes
// the others' from the node. It returns whether another is in force than before, and
// an error where none is.
func (c *dataPlanes) choose(ctx context.Context, annotated, configured string, p *plan.Plan) (changed bool, err error) {
	c.set(c.standing.wants(annotated, configured))
	before := c.standing.inForce
	if err := c.look(ctx); err != nil {
		return false, err
	}
	for {
		next := c.standing.next(time.Now())
		if next.deed == "" {
			break
		}
		err := c.do(ctx, next, p)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if next.deed == remove || len(next.from) > 0 {
			c.log.Info("data plane", "step", next.String(), "error", err)
		}
		c.set(c.standing.after(next, err, time.Now())) // a step may take longer than the wait for the next attempt
		if next.deed == switchTo {
			if err != nil {
				c.closeAll() // an instance that was taken from does not know what is on the node
			} else {
				c.use(next.plane)
			}
		}
	}
	for name := range c.opened {
		if name != c.standing.inForce {
			c.shut(name)
		}
	}
	trouble := c.standing.trouble()
	c.problem(trouble)
	if due := c.standing.due(); !due.IsZero() {
		c.wakeAt(due)
	}
	if c.standing.inForce == "" {
		return false, errors.New("no data plane: " + cmp.Or(trouble, c.failures()))
	}
	return c.standing.inForce != before, nil
}

// look finds out, once, what the data planes have on the node.
func (c *dataPlanes) look(ctx context.Context) error {
	if c.looked {
		return nil
	}
	present := map[string]bool{}
	for _, name := range c.standing.known {
		plane, err := c.plane(name)
		if err != nil {
			// One that cannot even be opened here has done nothing here; if it is asked
			// for, its step fails.
			c.log.Debug("cannot open a data plane", "name", name, "error", err)
			continue
		}
		is, err := plane.Present(ctx)
		if err != nil {
			return fmt.Errorf("see whether data plane %s has something on the node: %w", name, err)
		}
		if is {
			present[name] = true
		}
	}
	next := c.standing
	next.present = present
	c.set(next)
	c.looked = true
	return nil
}

// found reports whether the data planes have something on the node: what was loaded by an agent
// before.
func (c *dataPlanes) found(ctx context.Context) bool {
	if err := c.look(ctx); err != nil {
		c.log.Debug("cannot see what there is on the node", "error", err)
		return false
	}
	return len(c.standing.present) > 0
}

func (c *dataPlanes) do(ctx context.Context, s step, p *plan.Plan) error {
	plane, err := c.plane(s.plane)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotOpened, err)
	}
	switch s.deed {
	case remove:
		if err := plane.Remove(ctx); err != nil {
			return err
		}
		c.shut(s.plane)
		return nil
	case prepare:
		var from []datapath.DataPlane
		for _, name := range s.from {
			other, err := c.plane(name)
			if err != nil {
				return err
			}
			from = append(from, other)
		}
		return plane.Prepare(ctx, fit(p, plane.Capabilities()), from...)
	}
	if len(s.from) == 0 {
		return nil // the round that follows applies the plan
	}
	c.release()
	if err := plane.Apply(ctx, fit(p, plane.Capabilities())); errors.Is(err, datapath.ErrNotTaken) {
		return err
	} else if err != nil {
		// Of single entries, which the round that follows says.
		c.log.Debug("the data plane has taken over, but for some entries", "name", s.plane, "error", err)
	}
	return nil
}

// fit is what of a plan a data plane of some capabilities can do.
func fit(p *plan.Plan, able datapath.Capabilities) *plan.Plan {
	possible, _ := datapath.Possible(p, able)
	fitting, _ := datapath.Enforceable(possible, able, nil)
	return fitting
}

// plane returns an open data plane.
func (c *dataPlanes) plane(name string) (datapath.DataPlane, error) {
	if plane, ok := c.opened[name]; ok {
		return plane, nil
	}
	plane, err := c.open(name)
	if err == nil {
		c.opened[name] = plane
	}
	return plane, err
}

// shut closes a data plane if it is open.
func (c *dataPlanes) shut(name string) {
	plane, ok := c.opened[name]
	if !ok {
		return
	}
	delete(c.opened, name)
	if err := plane.Close(); err != nil {
		c.log.Warn("cannot close a data plane", "name", name, "error", err)
	}
}

func (c *dataPlanes) set(s standing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.standing = s
}

func (c *dataPlanes) failures() string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(c.standing.failed)) {
		words = append(words, name+": "+c.standing.failed[name].why)
	}
	return strings.Join(words, "; ")
}

func (c *dataPlanes) wakeAt(due time.Time) {
	if c.timer != nil {
		c.timer.Stop()
	}
	c.timer = time.AfterFunc(time.Until(due), c.wake)
}

// use has each run on a data plane.
func (c *dataPlanes) use(name string) {
	u := &inUse{plane: c.opened[name]}
	u.ended, u.end = context.WithCancel(context.Background())
	c.release()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.DataPlane, c.using = u.plane, u
	close(c.changed)
	c.changed = make(chan struct{})
}

// release returns when nobody uses the data plane in force any more.
func (c *dataPlanes) release() {
	c.mu.Lock()
	u := c.using
	c.using = nil
	c.mu.Unlock()
	if u != nil {
		u.end()
		u.users.Wait()
	}
}

// errNoneInForce is what Repair returns where no data plane is in force.
var errNoneInForce = errors.New("no data plane is in force")

// Repair implements datapath.DataPlane, for the one in force. Where a switch failed, there
// is none: the one that was before has been closed, and another may decide about packets.
func (c *dataPlanes) Repair(ctx context.Context) ([]string, error) {
	if c.standing.inForce == "" {
		return nil, errNoneInForce
	}
	return c.DataPlane.Repair(ctx)
}

// each runs f on the data plane in force, and again whenever another is, until ctx
// ends.
func (c *dataPlanes) each(ctx context.Context, f func(context.Context, datapath.DataPlane)) {
	for ctx.Err() == nil {
		c.mu.Lock()
		u, changed := c.using, c.changed
		if u != nil {
			u.users.Add(1)
		}
		c.mu.Unlock()
		if u != nil {
			using, end := context.WithCancel(ctx)
			stop := context.AfterFunc(u.ended, end)
			f(using, u.plane)
			stop()
			end()
			u.users.Done()
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// report is what the Node says of its data plane.
func (c *dataPlanes) report() api.DataPlaneReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.standing.report()
}

func (c *dataPlanes) closeAll() {
	for name := range c.opened {
		c.shut(name)
	}
}

// close lets go of all. What is in the kernel stays.
func (c *dataPlanes) close() {
	if c.timer != nil {
		c.timer.Stop()
	}
	c.release()
	c.closeAll()
	c.problem("")
}

// askedDataPlane is the data plane that the node's own object asks for. It is read once
// where no plug-in follows Nodes; from then on the registrar says what it has read.
func (a *agent) askedDataPlane(ctx context.Context, in plugin.Input) (string, error) {
	if node, ok := in.Objects.Get(api.Node, registry.Key{Name: a.Node}).(*corev1.Node); ok {
		return api.AskedDataPlane(node), nil
	}
	a.mu.Lock()
	asked := a.asked
	a.mu.Unlock()
	if asked != nil {
		return *asked, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	switch o, err := a.Registry.Get(ctx, api.Node, registry.Key{Name: a.Node}); {
	case err == nil:
		a.readNode(o.(*corev1.Node))
		return api.AskedDataPlane(o.(*corev1.Node)), nil
	case errors.Is(err, registry.ErrNotFound):
		return "", nil
	default:
		return "", fmt.Errorf("see which data plane Node %s asks for: %w", a.Node, err)
	}
}

// readNode takes note of what the node's own object asks for.
func (a *agent) readNode(node *corev1.Node) {
	asked := api.AskedDataPlane(node)
	a.mu.Lock()
	same := a.asked != nil && *a.asked == asked
	a.asked = &asked
	a.mu.Unlock()
	if !same {
		a.kick()
	}
}
