// Package control does for Services what is done once for the cluster. It tells of each what
// nodes cannot do as it is written. Where Kubernetes' own controllers do not run, which is on
// registries that keep Grants, it gives Services their addresses in the cluster and their
// ports of nodes, and makes EndpointSlices of the pods that they select. What it does for those
// of type LoadBalancer, on all registries, package pools says. It runs in the controller that
// leads.
//
// What is to be done is a function of the objects, decide. Each round does it anew, so that
// whoever stopped at any line is followed by one that goes on from there. Two may run at once
// for a moment. What holds then: no two Services get one address or port, because its Grant is
// made first, and only one can make it. What a Service says itself that it has gets a Grant
// too. Where another Service has that already, it is said of the one that came too late, and
// nothing is taken away from it; nodes go by the Grant. A Grant is taken away from a Service
// that has no use for it by what was read of it before that was found. Who writes what it says
// into the Service writes the Grant as it is between reading and writing the Service, so that
// of the two one finds it changed.
//
// One write of a user may change what is to be said of very many Services of his. So namespaces
// take turns at all that is done for Services, kinds of work take turns within a namespace, and a round does what
// there is time for. What fails waits, ever longer, before it is tried again.
//
// Start reading at decide; grants.go has what Services get, slices.go their EndpointSlices,
// budget.go how many endpoints these have at most, nodes.go whose pods are ready no more as their node is dead,
// tell.go what is said of Services, and turns.go in which order it is done.
package control

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	networkv1 "github.com/openshift/api/network/v1"
	"golang.org/x/sync/errgroup"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/dns/compile"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
	"github.com/weftnet/weft/service/pools"
)

// kinds are those that are read. A registry that has Grants hands out whole objects, whether
// Pods are ready among what they say.
var kinds = []*registry.Kind{api.ClusterConfigKind, api.ClusterNetwork, api.Service, service.GrantKind, api.Pod, api.EndpointSlice, api.Node}

// Granted is the condition of a Service that says why it has no address, port or endpoints,
// where it is to get some. Where nothing is wrong it is not there.
const Granted = "weft.network/Granted"

const (
	// pause is the least time between two rounds. Besides, the controller rests four times as
	// long as it took to decide.
	pause = 50 * time.Millisecond
	// roundTime is how long a round does what it decided, at least. Where to decide takes long, it does so for as
	// long as it rests after that.
	roundTime = time.Second
	// callTimeout bounds each call to the registry.
	callTimeout = 10 * time.Second
)

var backoff = retry.Backoff{First: 100 * time.Millisecond, Last: 10 * time.Second}

// Run works until ctx ends: it tells of each Service what nodes cannot do, gives Services
// addresses of AddressPools, and where the registry has Grants, does for Services what else there
// is to do. metrics, which may be nil, shows of how many objects it says that something is wrong.
func Run(ctx context.Context, r registry.Registry, log *slog.Logger, metrics prometheus.Registerer) error {
	read := []*registry.Kind{api.ClusterConfigKind, api.Service, api.EndpointSlice, api.Node}
	serves := r.Serves(service.GrantKind)
	if serves {
		read = slices.Clone(kinds)
	}
	for _, k := range slices.Concat(service.Kinds, pools.Kinds, compile.Kinds) {
		if !slices.Contains(read, k) {
			read = append(read, k)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	cache := registry.NewCache(r, read, log)
	g.Go(func() error { cache.Run(ctx); return ctx.Err() })
	keep := func(part string, pause time.Duration, round func(registry.Objects) []call) {
		g.Go(func() error {
			changes, cancel := cache.Subscribe()
			defer cancel()
			if err := cache.WaitSynced(ctx); err != nil {
				return err
			}
			turn := turns{told: func(err error) { log.Warn("services: "+part+": trying again", "error", err) }}
			return retry.Loop{Changed: changes, Pause: pause, AfterError: backoff.First, Backoff: backoff, Told: failed(log, part)}.Run(ctx, func(ctx context.Context) (time.Duration, error) {
				began := time.Now()
				calls := round(cache.Snapshot())
				rest := 4 * time.Since(began)
				err := carryOut(ctx, r, turn.each(calls, max(roundTime, rest)))
				retry.Sleep(ctx, rest)
				// What failed alone waits alone.
				if _, is := errors.AsType[away](err); !is {
					err = nil
				}
				return turn.again(), err
			})
		})
	}
	if serves {
		keep("addresses and endpoints", pause, func(objects registry.Objects) []call { return decide(objects).calls() })
		g.Go(func() error {
			if err := cache.WaitSynced(ctx); err != nil {
				return err
			}
			var w watch
			return retry.Loop{Backoff: backoff, Told: failed(log, "which nodes live")}.Run(ctx, func(ctx context.Context) (time.Duration, error) {
				return watchPause, w.look(ctx, r, cache.Snapshot())
			})
		})
	}
	keep("addresses of pools", pause, pools.Calls)
	t, show := teller{compiler: service.Compiler{Grants: serves}, checker: service.Checker{Grants: serves}}, shows(metrics)
	keep("what is wrong", tellPause, func(objects registry.Objects) (calls []call) {
		show(objects)
		for _, s := range t.decide(objects) {
			calls = append(calls, call{Namespace: s.service.Namespace, About: s.service.Name, Do: s.write})
		}
		return calls
	})
	return g.Wait()
}

// failed returns what says in the log what keeps a part from working, once.
func failed(log *slog.Logger, part string) func(error) {
	said := ""
	return func(err error) {
		message := ""
		if err != nil {
			message = err.Error()
		}
		if message != said && err != nil {
			log.Warn("services: "+part+": trying again", "error", err)
		}
		said = message
	}
}

// decision is what is to be done.
type decision struct {
	// make are Grants that Services lack, remove those that none has a use for.
	make, remove []*service.Grant
	// fill are Services that get what their Grants say.
	fill []filling
	// say is what is to be said of others that cannot have all.
	say []saying
	// create, update and drop are EndpointSlices. A Service has all that it is to have before others of it are dropped.
	create, update, drop []*discoveryv1.EndpointSlice
}

// filling is a Service as it is to be, by Grants that it has. It is told what it cannot have by the same write: one
// that comes before would keep it from being filled as it was read.
type filling struct {
	service *corev1.Service
	uses    []*service.Grant
	says    saying
}

// ranges returns what Services get addresses from: of the ClusterConfig, or else of the
// ClusterNetwork.
func ranges(objects registry.Objects) []netip.Prefix {
	return api.ServiceRanges(api.Effective(objects.Get(api.ClusterConfigKind, registry.Key{Name: api.DefaultName})),
		registry.GetAs[*networkv1.ClusterNetwork](objects, api.ClusterNetwork, registry.Key{Name: api.DefaultName}))
}

// decide says what is to be done.
func decide(objects registry.Objects) (d decision) {
	services := make(map[registry.Key]*corev1.Service)
	var all []*corev1.Service
	for svc := range registry.Each[*corev1.Service](objects, api.Service) {
		services[registry.KeyOf(svc)] = svc
		all = append(all, svc)
	}
	var used []*service.Grant
	use := make(map[registry.Key]usage)
	for g := range registry.Each[*service.Grant](objects, service.GrantKind) {
		of := g.Spec.Service()
		if _, known := use[of]; !known {
			use[of] = usageOf(services[of])
		}
		if use[of].has(g) {
			used = append(used, g)
		} else {
			d.remove = append(d.remove, g)
		}
	}
	// What several say that they have the oldest gets, as on nodes.
	slices.SortStableFunc(all, func(a, b *corev1.Service) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	wrong := d.slices(objects, all)
	a := allot(ranges(objects), all, used, d.remove)
	for _, svc := range all {
		filled, uses, lacks, problems := a.serve(svc)
		if without := wrong[registry.KeyOf(svc)]; without != "" {
			problems = append(problems, without)
		}
		d.make = append(d.make, lacks...)
		fills := !reflect.DeepEqual(filled.Spec, svc.Spec)
		if fills {
			if refused := refusal(filled); refused != "" {
				problems, fills = append(problems, refused), false
			}
		}
		is := saying{service: registry.KeyOf(svc), uid: svc.UID, condition: Granted, problem: printable.Sentence(problems)}
		if fills {
			d.fill = append(d.fill, filling{filled, uses, is})
		} else if !is.isSaid(svc) {
			d.say = append(d.say, is)
		}
	}
	return d
}

// slices decides about EndpointSlices of Services, the oldest first. wrong says of Services why they have none.
func (d *decision) slices(objects registry.Objects, services []*corev1.Service) (wrong map[registry.Key]string) {
	wrong = make(map[registry.Key]string)
	pods := make(labelled)
	for p := range registry.Each[*corev1.Pod](objects, api.Pod) {
		pods.add(p)
	}
	nodes := places(objects)
	before := make(map[registry.Key][]*discoveryv1.EndpointSlice)
	there := make(map[registry.Key]bool)
	for s := range registry.Each[*discoveryv1.EndpointSlice](objects, api.EndpointSlice) {
		there[registry.KeyOf(s)] = true
		if of, ours := isOurs(s); ours {
			before[of] = append(before[of], s)
		}
	}
	spaces := make(map[string]*space)
	for _, svc := range services {
		key := registry.KeyOf(svc)
		if spaces[svc.Namespace] == nil {
			left := budget
			spaces[svc.Namespace] = &left
		}
		old := make(map[string]*discoveryv1.EndpointSlice)
		for _, s := range before[key] {
			old[s.Name] = s
		}
		taken := func(name string) bool { return there[registry.Key{Namespace: svc.Namespace, Name: name}] }
		members, problem := spaces[svc.Namespace].take(svc, pods)
		if problem != "" {
			wrong[key] = problem
		}
		asWanted := true
		for _, s := range slicesOf(svc, members, nodes, before[key], taken) {
			was := old[s.Name]
			delete(old, s.Name)
			if was == nil {
				d.create, asWanted = append(d.create, s), false
				continue
			}
			now := was.DeepCopy()
			now.Labels, now.OwnerReferences, now.Ports, now.Endpoints = s.Labels, s.OwnerReferences, s.Ports, s.Endpoints
			if !reflect.DeepEqual(now, was) {
				d.update, asWanted = append(d.update, now), false
			}
		}
		// Those that others replace go once these are there: the Service has its endpoints all the time.
		if asWanted {
			d.drop = slices.AppendSeq(d.drop, maps.Values(old))
		}
		delete(before, key)
	}
	for _, left := range before {
		d.drop = append(d.drop, left...)
	}
	slices.SortFunc(d.drop, func(a, b *discoveryv1.EndpointSlice) int { return registry.KeyOf(a).Compare(registry.KeyOf(b)) })
	return wrong
}

// call is something to do with a registry.
type call = pools.Call

// calls are what was decided, those of one kind in the order in which they are to be done. What tells nodes that an
// endpoint is gone begins.
func (d decision) calls() (calls []call) {
	add := func(namespace, verb, name string, do func(context.Context, registry.Registry) error) {
		calls = append(calls, call{Namespace: namespace, Kind: verb, About: verb + " " + name, Do: do})
	}
	for _, s := range d.update {
		add(s.Namespace, "update", s.Name, func(ctx context.Context, r registry.Registry) error {
			_, err := r.Update(ctx, api.EndpointSlice, s)
			return err
		})
	}
	for _, s := range d.drop {
		add(s.Namespace, "drop", s.Name, func(ctx context.Context, r registry.Registry) error {
			return r.Delete(ctx, api.EndpointSlice, registry.KeyOf(s), s.ResourceVersion)
		})
	}
	for _, s := range d.create {
		add(s.Namespace, "create", s.Name, func(ctx context.Context, r registry.Registry) error {
			return create(ctx, r, api.EndpointSlice, s)
		})
	}
	for _, g := range d.make {
		add(g.Spec.Namespace, "make", g.Name, func(ctx context.Context, r registry.Registry) error {
			return create(ctx, r, service.GrantKind, g)
		})
	}
	for _, f := range d.fill {
		add(f.service.Namespace, "fill", f.service.Name, f.write)
	}
	for _, s := range d.say {
		add(s.service.Namespace, "say", s.service.Name, s.write)
	}
	use := make(map[registry.Key]usage)
	for _, g := range d.remove {
		add(g.Spec.Namespace, "remove", g.Name, func(ctx context.Context, r registry.Registry) error { return remove(ctx, r, g, use) })
	}
	return calls
}

// away is what failed where the registry answers nothing.
type away struct{ error }

func (a away) Unwrap() error { return a.error }

// carryOut does calls one after the other, and ends where the registry is away. What somebody else did meanwhile is
// no error: what is left is decided again.
func carryOut(ctx context.Context, r registry.Registry, calls iter.Seq[call]) error {
	var failed []error
	for c := range calls {
		err := within(ctx, func(ctx context.Context) error { return c.Do(ctx, r) })
		if err != nil && !overtaken(err) {
			failed = append(failed, err)
		}
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, registry.ErrUnavailable) && isAway(ctx, r) {
			return away{errors.Join(failed...)}
		}
	}
	return errors.Join(failed...)
}

// within does something with the registry, for no longer than a call may take.
func within(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return do(ctx)
}

// isAway reports whether the registry does not answer either where it is asked for what is nobody's in particular.
// What it does not answer may be about one namespace alone, as where it has others admit what is written there.
func isAway(ctx context.Context, r registry.Registry) bool {
	return errors.Is(within(ctx, func(ctx context.Context) error {
		_, err := r.Get(ctx, api.ClusterConfigKind, registry.Key{Name: api.DefaultName})
		return err
	}), registry.ErrUnavailable)
}

// overtaken reports whether a call failed by what somebody else did meanwhile.
func overtaken(err error) bool {
	return errors.Is(err, registry.ErrConflict) || errors.Is(err, registry.ErrNotFound) || errors.Is(err, registry.ErrExists)
}

// create makes what was not there when that was decided. Where it is there by now, it must be
// something that can be read: else it would never be seen.
func create(ctx context.Context, r registry.Registry, k *registry.Kind, o registry.Object) error {
	_, err := r.Create(ctx, k, o)
	if !errors.Is(err, registry.ErrExists) {
		return err
	}
	if _, unreadable := r.Get(ctx, k, registry.KeyOf(o)); unreadable != nil {
		command := "weft delete " + k.Singular + " " + o.GetName()
		if k.Namespaced {
			command += " --namespace " + o.GetNamespace()
		}
		return fmt.Errorf("%w: it is in the way of one that is to be made: %s", unreadable, command)
	}
	return err
}

// write gives the Service what its Grants say, if it is as it was and has them still.
func (f filling) write(ctx context.Context, r registry.Registry) error {
	// What is refused is to change no Grant, as that begins the next round.
	if _, _, err := api.Service.Admit(f.service); err != nil {
		return err
	}
	for _, g := range f.uses {
		if _, err := r.Update(ctx, service.GrantKind, g); err != nil {
			return err
		}
	}
	svc := f.service.DeepCopy()
	f.says.put(svc)
	_, err := r.Update(ctx, api.Service, svc)
	return err
}

// remove takes a Grant away as it was seen, if its Service has no use for it, which is read
// after that. use is what was read so, of each Service once.
func remove(ctx context.Context, r registry.Registry, g *service.Grant, use map[registry.Key]usage) error {
	of := g.Spec.Service()
	if _, known := use[of]; !known {
		var svc *corev1.Service
		switch o, err := r.Get(ctx, api.Service, of); {
		case err == nil:
			svc = o.(*corev1.Service)
		case !errors.Is(err, registry.ErrNotFound):
			return err
		}
		use[of] = usageOf(svc)
	}
	if use[of].has(g) {
		return nil
	}
	return r.Delete(ctx, service.GrantKind, registry.KeyOf(g), g.ResourceVersion)
}
