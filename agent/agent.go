// Package agent is the process that runs on each node: it answers the
// container runtime's CNI requests, follows the registry, compiles the node's
// plan with the plug-in that the cluster chose, and has a data plane load it.
//
// Everything is level-triggered. Run starts a few loops that each bring one
// thing to what it should be and that can be killed at any line: the syncer
// (plan to data plane), the registrar (what the Node object says), the lease
// (the agent lives), the underlay watch (what the node's own network is) and
// the plug-in's own work on the node. They meet in the agent's state, and
// nothing in them knows which plug-in, data plane or registry it works with.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/cni"
	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Config is what an agent is told. All fields without a stated default are
// required.
type Config struct {
	// Node is the node's name.
	Node string
	// NodeIPs are the node's own addresses, at most one of each family; by
	// default they are found (see chooseUnderlay).
	NodeIPs []netip.Addr
	// RegisterNode makes the agent create its Node object, for clusters in
	// which no kubelet does. Where one does, it also makes pods of the node's
	// Pod objects, and the agent follows those: it refuses pods whose
	// annotations cannot be, with an Event, and frees addresses of which no
	// runtime knows any more.
	RegisterNode bool
	Registry     registry.Registry
	// Plugin and DataPlane find one by name; the errors name those there are.
	// DataPlanes are the names of those that DataPlane finds.
	Plugin     func(name string) (plugin.Plugin, error)
	DataPlane  func(name string, log *slog.Logger) (datapath.DataPlane, error)
	DataPlanes []string
	// RunDir holds the sockets and the journal of addresses, and should not
	// survive a reboot of the node.
	RunDir string
	// SubnetFile is plugin.NodeEnv.SubnetFile.
	SubnetFile string
	// CNI says where the runtime looks for plug-ins.
	CNI cni.Install
	// Listen is the TCP address of /healthz, /readyz and /metrics; empty for
	// none.
	Listen string
	// AnswerChecks has the node answer load balancers, where it does Services: see package
	// health.
	AnswerChecks bool
	// LeaseTTL is how long after the agent's end the node still counts as
	// alive. RepairEvery is how often the data plane is compared with the plan.
	LeaseTTL, RepairEvery time.Duration
	// Collectors are metrics of others to serve with the agent's own.
	Collectors []prometheus.Collector
	Log        *slog.Logger
}

// SocketName is the name of the CNI socket in RunDir, HTTPSocketName that of
// the socket which serves HTTP to root on the node, JournalName that of the
// journal of pods' addresses.
const (
	SocketName     = "agent.sock"
	HTTPSocketName = "http.sock"
	JournalName    = "journal"
)

type agent struct {
	Config
	metrics *metrics
	denials *denials
	served  *served
	tracer  *tracer
	server  *cni.Server
	// endpoints is that of the server, and held are the addresses that pods have,
	// those whose interface is not there yet among them.
	endpoints func() []plugin.Endpoint
	held      func() []plan.Address
	node      *registrar
	// announcer has the node answer for addresses on its links.
	announcer *announcer
	// pods is nil where they are not followed.
	pods  *podWatch
	names *names

	mu       sync.Mutex
	underlay underlay
	// trouble is what keeps a part from working, by the part's name.
	trouble map[string]string
	// syncer is that of the plug-in in use; nil before there is one. So is planes,
	// the node's data plane.
	syncer *syncer
	planes *dataPlanes
	// asked is the data plane that the Node asks for, as far as it was read; nil while
	// it was not.
	asked *string
	// changed is plugin.NodeEnv.Changed; nil before there is a plug-in.
	changed chan struct{}
	// interlude is that between two plug-ins.
	interlude interlude
	// caches are those in use.
	caches map[*registry.Cache]bool
	// cutOff says which pods have an address and no interface.
	cutOff []api.Problem
	// obstacles say what others keep from working.
	obstacles []string
	// hidden says which pods answer those who ask the node about Services, and unanswered that
	// nobody answers pods that ask for names.
	hidden, unanswered string
	// orphans says which pods have an interface and no object, in the form of
	// api.OrphansAnnotation; nil while that is not known.
	orphans *string

	// plugins says what the data plane does of which plug-ins, in the form of
	// api.PluginsAnnotation; empty while that is not known.
	plugins string
	// unready says what keeps the node from being ready for plug-ins of the mix.
	unready []string
	// status is what nodes were last told to do of which plug-ins.
	status lastStatus
	// pluginReport is tellPlugins' own: what it said last, or the Node before the agent
	// started; nil where that is nothing.
	pluginReport *api.PluginReport

	// leased says that the agent holds the lease of its node's name; first is
	// closed when it does for the first time.
	leased atomic.Bool
	first  chan struct{}

	// installed is report's own, and so is said: the last error that was
	// logged.
	installed bool
	said      string
	// mtu is what running pods were last told to have, in bytes.
	mtu int
}

// Run runs an agent until ctx ends. What it did to the node stays: pods go on
// without an agent.
func Run(ctx context.Context, cfg Config) error {
	if err := makeRunDir(cfg.RunDir); err != nil {
		return err
	}
	journal, err := ipam.Open(filepath.Join(cfg.RunDir, JournalName))
	if err != nil {
		return err
	}
	defer journal.Close()
	listener, err := cni.Listen(filepath.Join(cfg.RunDir, SocketName))
	if err != nil {
		return err
	}
	defer listener.Close()

	a := &agent{Config: cfg, metrics: newMetrics(cfg.Collectors...), trouble: make(map[string]string), caches: make(map[*registry.Cache]bool), first: make(chan struct{})}
	a.tracer = &tracer{node: cfg.Node, plan: a.plan, attachments: journal.Each}
	a.denials = &denials{log: cfg.Log, node: cfg.Node, plans: a.plans}
	a.metrics.registry.MustRegister(a.denials)
	a.served = &served{plan: a.plan}
	a.metrics.services.MustRegister(a.served)
	a.node = &registrar{registry: cfg.Registry, name: cfg.Node, register: cfg.RegisterNode,
		state: a.nodeState, read: a.readNode, leased: a.leased.Load, problem: a.problem(nodePart), contested: a.problem(saidPart), kick: make(chan struct{}, 1), log: cfg.Log}
	a.server = cni.NewServer(cni.Config{Journal: journal, Node: a, Taken: a.taken, Log: cfg.Log, Observe: a.observe, Misfit: a.problem("pods' interfaces")})
	a.announcer = newAnnouncer(a)
	a.endpoints = func() []plugin.Endpoint { return a.pods.withAsked(a.server.Endpoints()) }
	a.held = func() (held []plan.Address) {
		journal.Each(func(at ipam.Attachment) {
			for _, ip := range at.Addresses {
				held = append(held, plan.Address{Network: at.Network, IP: ip})
			}
		})
		return held
	}
	if !cfg.RegisterNode {
		a.pods = newPodWatch(a)
	}
	if a.names, err = a.newNames(); err != nil {
		return err
	}

	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop(nil)

	a.readUnderlay()
	wg.Go(func() { watchUnderlay(ctx, cfg.RepairEvery, cfg.Log, a.readUnderlay) })
	if err := a.serveHTTP(ctx, &wg); err != nil {
		return err
	}
	wg.Go(func() {
		// DEL must work from the first moment, registry or not.
		if err := a.server.Serve(ctx, listener); err != nil && ctx.Err() == nil {
			stop(fmt.Errorf("CNI server: %w", err))
		}
	})
	wg.Go(func() { a.node.Run(ctx) })
	wg.Go(func() { a.identify(ctx) })
	if a.pods == nil {
		wg.Go(func() { a.regret(ctx) })
	}
	wg.Go(func() { a.announcer.run(ctx) })
	wg.Go(func() { newCutOffWatch(a).run(ctx) })
	wg.Go(func() { newOrphanWatch(a).run(ctx) })
	wg.Go(func() { a.names.run(ctx) })
	if a.pods != nil {
		wg.Go(func() { a.follow(ctx, a.pods.pods) })
		wg.Go(func() { a.pods.run(ctx) })
	}
	wg.Go(func() {
		holder := cfg.Node
		if u := a.underlayNow(); len(u.Addresses) > 0 {
			holder += " at " + u.Addresses[0].String()
		}
		holdLease(ctx, cfg.Registry, cfg.Node, holder, cfg.LeaseTTL, cfg.Log, a.problem(rivalPart), a.problem("lease"), a.setLeased)
	})
	a.followConfig(ctx)
	return ignoreCanceled(context.Cause(ctx))
}

// makeRunDir makes a directory that only its owner can enter, also of one that
// others could: a kubelet makes the directories of a pod's volumes with 0755.
func makeRunDir(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if err := os.Chmod(path, 0o700); err != nil {
		return fmt.Errorf("run directory: its sockets would be open to others: %w", err)
	}
	return nil
}

// The parts whose trouble is told apart: that another agent has the node's
// name, that the Node object cannot be written, and that the ClusterConfig names
// what there is not.
const (
	rivalPart = "node name"
	nodePart  = "node"
	// saidPart is that others write on the Node what is the agent's to say.
	saidPart   = "Node"
	configPart = "config"
	// disputePart is that others keep changing what is Weft's, and watchPart that
	// it cannot be seen whether they do.
	disputePart = "repair"
	watchPart   = "watch"
	// surveyPart is that it cannot be followed what others change of their own.
	surveyPart = "survey"
	// nextPart is that the node cannot load yet what it is asked to.
	nextPart = "plug-in"
	// dataPlanePart is that the node has not the data plane that it is asked to have.
	dataPlanePart = "data plane"
)

// setLeased takes note that the agent holds the lease of its node's name, or
// no longer does.
func (a *agent) setLeased(held bool) {
	a.leased.Store(held)
	if !held {
		return
	}
	select {
	case <-a.first:
	default:
		close(a.first)
	}
	a.node.Kick()
}

// follow runs a cache that the node goes by until ctx ends.
func (a *agent) follow(ctx context.Context, c *registry.Cache) {
	defer a.goBy(c)()
	c.Run(ctx)
}

// goBy has it be said what keeps a cache from following the registry, until end is called.
func (a *agent) goBy(c *registry.Cache) (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.caches[c] = true
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.caches, c)
	}
}

// waitSynced waits until the objects of a cache have been read, and says
// meanwhile what keeps them from being.
func (a *agent) waitSynced(ctx context.Context, c *registry.Cache) error {
	problem := a.problem("registry")
	for {
		wait, cancel := context.WithTimeout(ctx, time.Second)
		err := c.WaitSynced(wait)
		cancel()
		if err == nil {
			problem("")
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		if outage := c.Err(); outage != nil {
			problem(outage.Error())
		}
	}
}

func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// followConfig runs the plug-ins that the ClusterConfig has the node run, and others
// when it has others, until ctx ends.
func (a *agent) followConfig(ctx context.Context) {
	configs := registry.NewCache(a.Registry, []*registry.Kind{api.ClusterConfigKind}, a.Log)
	changes, cancel := configs.Subscribe()
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { a.follow(ctx, configs) })
	a.problem("registry")("has not answered yet")
	if err := a.waitSynced(ctx, configs); err != nil {
		return
	}
	// Whoever has the name of another node must not act as that: it would give
	// its addresses out a second time.
	select {
	case <-a.first:
	case <-ctx.Done():
		return
	}
	if err := a.readReport(ctx); err != nil {
		return
	}
	effective := func() *api.ClusterConfig {
		return a.status.heard(configs.Get(api.ClusterConfigKind, registry.Key{Name: api.DefaultName}))
	}
	f := a.newFollower(ctx, &wg)
	for ctx.Err() == nil {
		now := a.choice(effective())
		objects := f.use(a.kindsOf(now))
		epoch, end := context.WithCancel(ctx)
		awaited := make(chan struct{})
		go func() {
			defer close(awaited)
			defer end()
			if a.awaitNext(epoch, f, now, changes, effective) {
				a.beginInterlude()
			}
		}()
		if err := a.run(epoch, now, objects, effective); err != nil {
			a.endInterlude(nil)
			a.Log.Error("cannot run the cluster's network", "error", err)
			a.problem(configPart)(err.Error())
			<-epoch.Done()
			a.problem(configPart)("")
		}
		end()
		<-awaited
		objects.end()
	}
}

// readReport reads what the Node says that the node did before the agent started. It fails
// when ctx ends.
func (a *agent) readReport(ctx context.Context) error {
	problem := a.problem("registry")
	for {
		o, err := a.Registry.Get(ctx, api.Node, registry.Key{Name: a.Node})
		if err == nil {
			r, err := api.NodePlugins(o.(*corev1.Node))
			if err != nil {
				a.Log.Warn("what the node did before the agent started is not known", "error", err)
			}
			a.status.reported(r)
			a.pluginReport = r
		}
		if err == nil || errors.Is(err, registry.ErrNotFound) {
			problem("")
			return nil
		}
		problem(err.Error())
		if !retry.Sleep(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

// run runs plug-ins until ctx ends, on the node's data plane.
func (a *agent) run(ctx context.Context, what plugin.Choice, objects *followed, effective func() *api.ClusterConfig) error {
	all, unknown, err := what.Find(a.Plugin)
	if err != nil {
		return err
	}
	if err := errors.Join(unknown...); err != nil {
		a.problem(configPart)(fmt.Sprintf("%v; the node goes on with %s", err, what.Used))
		defer a.problem(configPart)("")
	}
	a.status.uses(what.Used)
	mix, plug := mixedOf(what, all), plugin.Mix(all[0], all[1:]...)
	a.Log.Info("starting", "node", a.Node, "plugin", what.Used, "mix", what.Mix, "loading", what.Loading)
	planes := newDataPlanes(a.DataPlanes, func(name string) (datapath.DataPlane, error) { return a.DataPlane(name, a.Log) },
		a.Log, a.problem(dataPlanePart), a.kick)
	defer planes.close()

	var wg sync.WaitGroup
	defer wg.Wait()
	input := func() (plugin.Input, bool) {
		now, complete := objects.snapshot()
		return plugin.Input{Config: effective(), Objects: now, Node: a.facts()}, complete
	}

	// The plug-in's own work may be what makes the objects complete, so it
	// starts before they are. That is so at the agent's start: what a node comes to
	// later has been read.
	changed := make(chan struct{}, 1)
	a.setRunning(nil, planes, changed)
	defer a.setRunning(nil, nil, nil)
	if runner, ok := plug.(plugin.NodeRunner); ok {
		wg.Go(func() { a.runPlugin(ctx, plug, runner, input, changed) })
	}
	wg.Go(func() { a.gather(ctx, objects) })
	wg.Go(func() { a.withdraw(ctx, mix) })
	wg.Go(func() {
		planes.each(ctx, func(ctx context.Context, plane datapath.DataPlane) {
			if observer, ok := plane.(datapath.Observer); ok {
				a.denials.run(ctx, observer)
			}
		})
	})
	wg.Go(func() {
		planes.each(ctx, func(ctx context.Context, plane datapath.DataPlane) {
			if counter, ok := plane.(datapath.ServiceCounter); ok {
				a.served.run(ctx, counter)
			}
		})
	})
	read, loaded := a.answerChecks(ctx, &wg, what, planes.found(ctx))
	for _, c := range objects.caches {
		// A plan without the node's pods, say, would cut those off that run.
		if err := a.waitSynced(ctx, c); err != nil {
			return nil
		}
	}

	if a.pods != nil && slices.ContainsFunc(a.endpoints(), func(e plugin.Endpoint) bool { return e.Ports == nil || e.Bandwidth == nil }) {
		// Without them, these would lose their ports until they are known.
		if err := a.waitSynced(ctx, a.pods.pods); err != nil {
			return nil
		}
	}

	var ports plugin.Ports
	var latest plugin.Applied // what was compiled last
	a.names.look(ctx)         // so that the first plan has it answer
	compiler := plugin.CompilerOf(plug)
	compile := func(previous *plan.Plan) (plugin.Applied, error) {
		in, _ := input()
		if len(in.Node.Addresses) == 0 {
			return plugin.Applied{}, errors.New("the node's own address is not known")
		}
		out := plugin.Applied{Input: in}
		in.Previous = previous
		var more []plugin.Problem
		out.Plan, out.Problems = compiler.Compile(in)
		out.Plan, more = ports.Put(out.Plan, in.Node, plugin.KeptServers(plug, in.Objects))
		out.Plan = what.Leave(out.Plan)
		var wrong []plugin.Problem
		out.Plan, wrong = a.putNames(out.Plan, in)
		out.Problems = slices.Concat(out.Problems, more, wrong)
		latest = out
		a.announcer.loading(out.Plan)
		read(in.Objects)
		return out, nil
	}
	var first sync.Once
	settled := thrifty()
	var s *syncer
	report := func(r round) {
		a.tellPlugins(mix, r.Whole)
		a.endInterlude(s) // only now may pods get addresses of what the Node is to say
		a.report(r)
		if r.Able != nil {
			a.names.able(r.Able.AnswersHere)
		}
		if r.Loaded {
			a.names.load(r.Plan)
			loaded(&plugin.Applied{Input: latest.Input, Plan: r.Plan})
			a.announcer.loaded(plugin.Applied{Input: latest.Input, Plan: r.Plan})
		}
		if r.Whole {
			first.Do(func() { wg.Go(settled) })
		}
	}
	s = newSyncer(planes, a.Log, a.RepairEvery, a.metrics, plug.Kinds(), compile, report)
	s.choose = func(ctx context.Context, compiled plugin.Applied) (bool, error) {
		asked, err := a.askedDataPlane(ctx, compiled.Input)
		if err != nil {
			return false, err
		}
		return planes.choose(ctx, asked, compiled.Input.Config.Spec.DataPlane, compiled.Plan)
	}
	if gradual, ok := compiler.(plugin.Gradual); ok {
		gradual.LeaveForLater()
		s.gradual = gradual
	}
	for _, use := range []func(context.Context, datapath.DataPlane){
		func(ctx context.Context, plane datapath.DataPlane) {
			if limiter, ok := plane.(datapath.Limiter); ok {
				a.limit(ctx, limiter)
			}
		},
		func(ctx context.Context, plane datapath.DataPlane) {
			if watcher, ok := plane.(datapath.Watcher); ok {
				a.watch(ctx, s, watcher)
			}
		},
		func(ctx context.Context, plane datapath.DataPlane) {
			if surveyor, ok := plane.(datapath.Surveyor); ok {
				a.survey(ctx, s, surveyor)
			}
		},
	} {
		wg.Go(func() { planes.each(ctx, use) })
	}
	a.setRunning(s, planes, changed)
	s.Run(ctx)
	a.problem(disputePart)("")
	return nil
}

// gather has the data plane and the plug-in's own work follow what changes in
// the registry, until ctx ends.
func (a *agent) gather(ctx context.Context, f *followed) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.changes:
		}
		if s := a.running(); s != nil {
			if breath := s.Note(); breath > 0 {
				retry.Sleep(ctx, breath)
				f.drain() // the same round has what came meanwhile
			}
		}
		a.kick()
	}
}

// tellPlugins has the Node say what the data plane does of which plug-ins. Where it does
// not hold the whole of the last plan, the node is ready for none, whatever it said before.
func (a *agent) tellPlugins(mix mixed, whole bool) {
	if done := a.applied(); done != nil {
		// All that have an address now: one may have got it by the plan of before.
		if r, unready := mix.report(done.Input, a.choice(done.Input.Config), done.Plan, a.held()); r != nil {
			a.status.reported(r)
			a.pluginReport = r
			a.mu.Lock()
			a.unready = unready
			a.mu.Unlock()
		}
	}
	if a.pluginReport == nil {
		return
	}
	r := *a.pluginReport
	if !whole {
		r.Ready = nil
	}
	text := r.Text()
	a.mu.Lock()
	a.plugins = text
	a.mu.Unlock()
}

func (a *agent) setRunning(s *syncer, planes *dataPlanes, changed chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.syncer, a.planes, a.changed = s, planes, changed
}

// runPlugin runs a plug-in's own work, and again when it fails.
func (a *agent) runPlugin(ctx context.Context, plug plugin.Plugin, runner plugin.NodeRunner, input func() (plugin.Input, bool), changed <-chan struct{}) {
	problem := a.problem(plug.Name())
	defer problem("")
	for ctx.Err() == nil {
		err := runner.RunNode(ctx, plugin.NodeEnv{
			Registry: a.Registry, Log: a.Log.With("plugin", plug.Name()), Input: input, Applied: a.applied, Changed: changed,
			SubnetFile: a.SubnetFile, Problem: problem,
		})
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			a.Log.Warn("the plug-in's work on this node failed; trying again", "plugin", plug.Name(), "error", err)
			problem(err.Error())
		}
		retry.Sleep(ctx, time.Second)
	}
}

// facts is what the node knows of itself.
func (a *agent) facts() plugin.Node {
	u := a.underlayNow()
	return plugin.Node{Name: a.Node, Addresses: u.Addresses, MTU: u.MTU, Prefixes: u.Prefixes, Others: u.Others, Endpoints: a.endpoints(), Held: a.held()}
}

// kick has the data plane synced again, and the plug-in's own work look again.
func (a *agent) kick() {
	if s := a.running(); s != nil {
		s.Kick()
	}
	a.tell()
}

// tell has the plug-in's own work look again.
func (a *agent) tell() {
	a.mu.Lock()
	changed := a.changed
	a.mu.Unlock()
	select {
	case changed <- struct{}{}:
	default: // it has not looked since the last one, or there is none
	}
}

// applied is plugin.NodeEnv.Applied.
func (a *agent) applied() *plugin.Applied {
	if s := a.running(); s != nil {
		return s.Applied()
	}
	return nil
}

func (a *agent) running() *syncer {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.syncer
}

// taken says what a port of the node is for that can lead to no pod, or "".
func (a *agent) taken(port ipam.Port) string {
	if p := a.plan(); p != nil {
		return tunnelHas(p.Local.Tunnels, port)
	}
	return ""
}

// tunnelHas says that a port is a tunnel's: what came in there would be the
// pod's, and none of it other nodes'.
func tunnelHas(tunnels []plan.Tunnel, port ipam.Port) string {
	isIts := func(t plan.Tunnel) bool { return port.Node == t.Port }
	if port.Protocol != plan.UDP || !slices.ContainsFunc(tunnels, isIts) {
		return ""
	}
	return "by the VXLAN tunnel between nodes"
}

// plan returns what the data plane was told to do last, or nil.
func (a *agent) plan() *plan.Plan {
	if s := a.running(); s != nil {
		return s.Last().Plan
	}
	return nil
}

// plans are what the data plane does, and what it is being brought to, as far as there is
// either.
func (a *agent) plans() (all []*plan.Plan) {
	s := a.running()
	if s == nil {
		return nil
	}
	for _, p := range []*plan.Plan{s.Last().Plan, s.Coming()} {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// problem returns a function that says what keeps a part from working, or ""
// when nothing does.
func (a *agent) problem(part string) func(string) {
	return func(message string) {
		a.mu.Lock()
		changed := a.trouble[part] != message
		if message == "" {
			delete(a.trouble, part)
		} else {
			a.trouble[part] = message
		}
		a.mu.Unlock()
		if changed {
			if message != "" {
				a.Log.Warn("trouble", "part", part, "problem", message)
			}
			a.node.Kick()
		}
	}
}

// logError says once what keeps the node out of sync, and that nothing does any
// more.
func (a *agent) logError(err error) {
	said := ""
	if err != nil {
		said = err.Error()
	}
	switch {
	case said == a.said:
	case said == "":
		a.Log.Info("the node is in sync again")
	default:
		a.Log.Error("the node is out of sync", "error", err)
	}
	a.said = said
}

// report takes note of a round of the syncer.
func (a *agent) report(r round) {
	a.logError(r.Told)
	if s := a.running(); s != nil {
		a.problem(disputePart)(s.Disputed())
	}
	if r.Whole {
		a.tell()
		// Others may have changed that of a pod's interface, or its MAC address, which the
		// data plane does not know.
		if mtu := r.Plan.Local.MTU; mtu != a.mtu || r.Repaired {
			a.mtu = mtu
			a.server.Fit()
		}
	}
	err := a.Ready()
	a.metrics.report(r, err == nil || errors.Is(err, cni.ErrChanging))
	a.node.Kick()
	if err != nil {
		return
	}
	if a.installed {
		return
	}
	// Only now may a runtime find the plug-in.
	install := a.CNI
	// Only an agent from before has not taken note of these, or a loss of that note.
	install.Followed = slices.ContainsFunc(a.server.Journal.All(), func(at ipam.Attachment) bool { return at.Ports == nil || at.Bandwidth == nil })
	if err := install.Write(filepath.Join(a.RunDir, SocketName)); err != nil {
		a.problem("cni")(err.Error())
		return
	}
	a.problem("cni")("")
	a.installed = true
	a.Log.Info("pods can be networked", "node", a.Node)
}
