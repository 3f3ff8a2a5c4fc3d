package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/registry"
)

// nodeState is what the agent wants its Node object to say.
type nodeState struct {
	Addresses []netip.Addr
	// OnLink is what the node's interfaces are on-link with.
	OnLink []netip.Prefix
	// Others are what it delivers to itself besides Addresses.
	Others []netip.Addr
	// Orphans are the pods that have an interface and no object, in the form of
	// api.OrphansAnnotation; nil while that is not known, and then what the Node says
	// stays, as such pods outlive an agent.
	Orphans *string
	// Announces are the addresses that the node answers for, in the form of
	// api.AnnouncesAnnotation.
	Announces string
	// MTU is that of pods' interfaces in bytes, in the last plan that the data plane
	// did wholly; 0 while there is none, and then what the Node says stays, as pods
	// keep their interfaces when an agent ends.
	MTU int
	// Capabilities are what the data plane can do, in the form of
	// datapath.Capabilities; empty while that is not known.
	Capabilities string
	// DataPlane is which one the node uses, in the form of
	// api.DataPlaneReportAnnotation; empty while that is not known.
	DataPlane string
	// NameServer is where the node's own name server answers, in the form of
	// api.NameServerAnnotation; nil while that is not known.
	NameServer *string
	// ServiceProxy is who does Services, in the form of api.ServiceProxyAnnotation; empty while
	// that is not known, and then what the Node says stays, as what is loaded does.
	ServiceProxy string
	// Plugins is what the data plane does of which plug-ins, in the form of
	// api.PluginsAnnotation; empty while that is not known, and then what the Node says
	// stays, as does what the data plane does. What a Node says first is that it does
	// nothing yet, see api.KnowsNoStages.
	Plugins string
	// NotReady is why pods cannot be networked; empty when they can.
	NotReady string
	// OutOfSync is what of the plan the node does not do, and why.
	OutOfSync string
	// Unloaded says that the data plane may not hold all of the plan that it can:
	// it could not take it, or somebody keeps changing it fast.
	Unloaded bool
	// Problems are all that is wrong, what keeps the node from being ready or in
	// sync among it.
	Problems []api.Problem
}

func (s nodeState) equal(o nodeState) bool {
	return slices.Equal(s.Addresses, o.Addresses) && slices.Equal(s.OnLink, o.OnLink) && slices.Equal(s.Others, o.Others) &&
		equalText(s.Orphans, o.Orphans) && equalText(s.NameServer, o.NameServer) &&
		s.Announces == o.Announces && s.MTU == o.MTU && s.Capabilities == o.Capabilities && s.DataPlane == o.DataPlane && s.ServiceProxy == o.ServiceProxy && s.Plugins == o.Plugins && s.NotReady == o.NotReady && s.OutOfSync == o.OutOfSync && s.Unloaded == o.Unloaded && slices.Equal(s.Problems, o.Problems)
}

// without returns the state with what another one says that others on the nodes' link can change all the time.
func (s nodeState) without(news nodeState) nodeState {
	s.Announces, s.Problems = news.Announces, news.Problems
	return s
}

// equalText reports whether both say the same, or are both not known.
func equalText(a, b *string) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }

// describe makes node say what state says, and reports whether that changed
// anything. Conditions that others own stay.
func (s nodeState) describe(node *corev1.Node, now metav1.Time) bool {
	changed := len(s.Addresses) > 0 && setAddresses(node, s.Addresses)
	all := map[string]string{api.OnLinkAnnotation: joined(s.OnLink), api.OtherAddressesAnnotation: joined(s.Others)}
	for name, text := range map[string]*string{api.OrphansAnnotation: s.Orphans, api.NameServerAnnotation: s.NameServer} {
		if text != nil {
			all[name] = *text
		}
	}
	for name, value := range all {
		if value != node.Annotations[name] {
			metav1.SetMetaDataAnnotation(&node.ObjectMeta, name, value)
			changed = true
		}
	}
	changed = api.SetNodeProblems(node, s.Problems) || changed
	changed = api.SetAnnounces(node, s.Announces) || changed
	if _, said := node.Annotations[api.DataPlaneAnnotation]; said && s.Capabilities != "" && api.AskedDataPlane(node) == "" {
		delete(node.Annotations, api.DataPlaneAnnotation) // an agent of an earlier version said what it could do there
		changed = true
	}
	known := map[string]string{api.CapabilitiesAnnotation: s.Capabilities, api.DataPlaneReportAnnotation: s.DataPlane, api.ServiceProxyAnnotation: s.ServiceProxy,
		api.PluginsAnnotation: cmp.Or(s.Plugins, node.Annotations[api.PluginsAnnotation], api.PluginReport{}.Text())}
	if s.MTU != 0 {
		known[api.MTUAnnotation] = strconv.Itoa(s.MTU)
	}
	for name, value := range known {
		if value != "" && value != node.Annotations[name] {
			metav1.SetMetaDataAnnotation(&node.ObjectMeta, name, value)
			changed = true
		}
	}
	ready := corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse,
		Reason: "WeftIsReady", Message: "pods can be networked"}
	if s.NotReady != "" {
		ready.Status, ready.Reason, ready.Message = corev1.ConditionTrue, "WeftIsNotReady", s.NotReady
	}
	sync := corev1.NodeCondition{Type: api.NodeInSync, Status: corev1.ConditionTrue, Reason: "PlanLoaded", Message: "the data plane holds the plan"}
	if s.OutOfSync != "" {
		sync.Status, sync.Reason, sync.Message = corev1.ConditionFalse, "NotAllInOrder", s.OutOfSync
		if s.Unloaded {
			sync.Reason = api.PlanNotLoaded
		}
	}
	for _, c := range []corev1.NodeCondition{ready, sync} {
		changed = setCondition(node, c, now) || changed
	}
	return changed
}

func joined[T fmt.Stringer](all []T) string {
	var words []string
	for _, v := range all {
		words = append(words, v.String())
	}
	return strings.Join(words, ",")
}

func setAddresses(node *corev1.Node, addresses []netip.Addr) bool {
	var want []corev1.NodeAddress
	for _, a := range addresses {
		want = append(want, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	for _, a := range node.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeHostName {
			want = append(want, a)
		}
	}
	want = append(want, corev1.NodeAddress{Type: corev1.NodeHostName, Address: node.Name})
	if slices.Equal(want, node.Status.Addresses) {
		return false
	}
	node.Status.Addresses = want
	return true
}

func setCondition(node *corev1.Node, want corev1.NodeCondition, now metav1.Time) bool {
	want.LastTransitionTime, want.LastHeartbeatTime = now, now
	for i, have := range node.Status.Conditions {
		if have.Type != want.Type {
			continue
		}
		if have.Status == want.Status && have.Reason == want.Reason && have.Message == want.Message {
			return false
		}
		if have.Status == want.Status {
			want.LastTransitionTime = have.LastTransitionTime
		}
		node.Status.Conditions[i] = want
		return true
	}
	node.Status.Conditions = append(node.Status.Conditions, want)
	return true
}

// registrar keeps the agent's Node object true and its lease held.
type registrar struct {
	registry registry.Registry
	name     string
	// register says that the agent creates the object; else it is somebody
	// else's, the kubelet's say, and only its conditions are the agent's.
	register bool
	state    func() nodeState
	// read, where it is not nil, is told of the object whenever it was read.
	read func(*corev1.Node)
	// leased says whether the agent holds the lease of the node's name; while
	// it does not, the object may be another's to write.
	leased func() bool
	// problem is told what is wrong with the object, or "".
	problem func(string)
	// contested, where it is not nil, is told what others keep writing that is the agent's
	// to say, or "".
	contested func(string)
	kick      chan struct{}
	log       *slog.Logger
}

// recheckEvery is how often the Node object is looked at though the agent has
// nothing new to say and nobody told that it changed. amendEvery is how often at most it is
// written for what others write there: who writes there again and again is answered ever
// less often, until it is once in recheckEvery. From the time on that contestedFrom passes
// between two answers it is said that there is a contest.
const (
	recheckEvery  = time.Minute
	amendEvery    = time.Second
	contestedFrom = 8 * time.Second
)

// What others on the nodes' link do can change all the time for which addresses a node answers, and what it says is
// wrong. newsBurst is how often that alone has the object be written, once in amendEvery at most, before it is written once
// in newsEvery: others read each time what is written.
const (
	newsBurst = 30
	newsEvery = 3 * time.Second
)

// linkPace says when the object may be written for such news.
type linkPace struct {
	// last is when it was written for that last, and spent when it will have been once in newsEvery, had it been written
	// so since.
	last, spent time.Time
}

// next is when the object may be written again for such news.
func (p linkPace) next() time.Time {
	next := p.last.Add(amendEvery)
	if t := p.spent.Add(-(newsBurst - 1) * newsEvery); t.After(next) {
		next = t
	}
	return next
}

// wrote takes note that the object is written for such news.
func (p *linkPace) wrote(now time.Time) {
	if p.last = now; p.spent.Before(now) {
		p.spent = now
	}
	p.spent = p.spent.Add(newsEvery)
}

// contest is what others write on the Node object that is the agent's to say.
type contest struct {
	// pause is how long after the object was written last it is written again.
	pause time.Duration
	// over is what they wrote last, as difference says it.
	over string
	// last is when that was found, and longer when pause became longer.
	last, longer time.Time
}

// looked takes note of what others were found to have written, "" for nothing, at a time
// when the object is written for that or for news of the agent's. The pause becomes no
// longer before it has passed: who has news answers sooner. What is over is forgotten.
func (c *contest) looked(over string, now time.Time) {
	switch {
	case over == "" && now.Sub(c.last) >= recheckEvery:
		c.pause, c.over = amendEvery, ""
	case over != "":
		if c.over, c.last = over, now; now.Sub(c.longer) >= c.pause {
			c.pause, c.longer = min(2*c.pause, recheckEvery), now
		}
	}
}

// String says that there is a contest; empty where there is none.
func (c *contest) String() string {
	if c.pause < contestedFrom {
		return ""
	}
	return fmt.Sprintf("others keep writing on the Node what is the agent's to say (%s), so it is written anew ever less often; see whose that is, and have them leave it", c.over)
}

// difference names what two states of a Node do not say alike, as the first says it.
func difference(is, should *corev1.Node) string {
	var words []string
	if !slices.Equal(is.Status.Addresses, should.Status.Addresses) {
		words = append(words, "status.addresses")
	}
	for _, want := range should.Status.Conditions {
		i := slices.IndexFunc(is.Status.Conditions, func(have corev1.NodeCondition) bool { return have.Type == want.Type })
		switch {
		case i < 0:
			words = append(words, fmt.Sprintf("condition %s: none", want.Type))
		case is.Status.Conditions[i] != want:
			words = append(words, fmt.Sprintf("condition %s: %s, %s", want.Type, is.Status.Conditions[i].Status, is.Status.Conditions[i].Reason))
		}
	}
	names := maps.Clone(is.Annotations)
	if names == nil {
		names = make(map[string]string)
	}
	maps.Copy(names, should.Annotations)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		said, there := is.Annotations[name]
		if want, wanted := should.Annotations[name]; there != wanted || said != want {
			words = append(words, "annotation "+name)
		}
	}
	return strings.Join(words, "; ")
}

// Kick says that the state may have changed.
func (r *registrar) Kick() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// Run works until ctx ends.
func (r *registrar) Run(ctx context.Context) {
	var written nodeState
	// wrote is when the object was written last, and again when it is to be looked at again
	// what others have done since.
	var wrote, again time.Time
	argued := contest{pause: amendEvery}
	var paced linkPace
	registered, failed, next := false, false, time.Now()
	kind := *api.Node
	kind.Only = registry.Key{Name: r.name}
	told := registry.NewCache(r.registry, []*registry.Kind{&kind}, r.log)
	changes, cancel := told.Subscribe()
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { told.Run(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wake := next
		if !again.IsZero() && again.Before(next) {
			wake = again
		}
		timer.Reset(time.Until(wake))
		select {
		case <-ctx.Done():
			return
		case <-r.kick:
		case <-changes:
		case <-timer.C:
		}
		state := r.state()
		due := !time.Now().Before(next)
		news := failed || !state.equal(written)
		again = time.Time{}
		restless := !due && !failed && news && state.without(written).equal(written)
		if at := paced.next(); restless && time.Now().Before(at) {
			// What others wrote meanwhile is looked at all the same.
			news, again = false, at
		}
		if node := registry.GetAs[*corev1.Node](told, &kind, kind.Only); node != nil && !due && !news && r.describe(state.without(written), node.DeepCopy()) {
			if answer := wrote.Add(argued.pause); time.Now().Before(answer) {
				if again.IsZero() || answer.Before(again) {
					again = answer
				}
				continue
			}
			due = true
		}
		switch {
		case len(state.Addresses) == 0 || !r.leased():
			next = time.Now().Add(retryAfter)
			continue
		case !due && (failed || !news):
			continue // in its time
		}
		wrote, again = time.Now(), time.Time{}
		if restless && news {
			paced.wrote(wrote)
		}
		over, err := r.write(ctx, state, written, r.register && !registered)
		known := registered && !failed // what it said when it was written last
		if failed = err != nil; !failed && known {
			argued.looked(over, wrote)
			if r.contested != nil {
				r.contested(argued.String())
			}
		}
		switch {
		case err == nil:
			written, registered, next = state, true, time.Now().Add(recheckEvery)
			r.problem("")
		case errors.Is(err, registry.ErrNotFound) && r.register && registered:
			// Somebody deleted it. To bring it back would undo what an
			// administrator did; a start of the agent registers again.
			next = time.Now().Add(recheckEvery)
			r.problem(fmt.Sprintf("Node %s was deleted: start the agent again to register it", r.name))
		case errors.Is(err, registry.ErrNotFound):
			registered, next = false, time.Now().Add(retryAfter)
			r.problem(fmt.Sprintf("Node %s does not exist yet", r.name))
		default:
			next = time.Now().Add(retryAfter)
			if ctx.Err() == nil {
				r.problem(fmt.Sprintf("cannot write Node %s: %v", r.name, err))
			}
		}
	}
}

// describe makes the agent's Node say what is the agent's to say, and reports whether that
// changed anything.
func (r *registrar) describe(state nodeState, node *corev1.Node) bool {
	if !r.register {
		state.Addresses = nil
	}
	return state.describe(node, metav1.Now())
}

// write has the Node say what state says, and returns what it did not say any more of what
// was written before.
func (r *registrar) write(ctx context.Context, state, written nodeState, create bool) (over string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		o, err := r.registry.Get(ctx, api.Node, registry.Key{Name: r.name})
		if errors.Is(err, registry.ErrNotFound) && create {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.name}}
			state.describe(node, metav1.Now())
			_, err = r.registry.Create(ctx, api.Node, node)
			if errors.Is(err, registry.ErrExists) {
				continue
			}
			return "", err
		}
		if err != nil {
			return "", err
		}
		node := o.(*corev1.Node)
		if r.read != nil {
			r.read(node)
		}
		over := ""
		if should := node.DeepCopy(); r.describe(written, should) {
			over = difference(node, should)
		}
		if !r.describe(state, node) {
			return over, nil
		}
		if _, err = r.registry.Update(ctx, api.Node, node); !errors.Is(err, registry.ErrConflict) {
			return over, err
		}
	}
}

// holdLease keeps the agent's lease until ctx ends. rival is told of another
// agent that holds it, problem why it cannot be had otherwise, held when this
// one holds it and when it no longer does.
func holdLease(ctx context.Context, r registry.Registry, node, holder string, ttl time.Duration, log *slog.Logger, rival, problem func(string), held func(bool)) {
	found := func(other string) {
		problem("") // the registry answers
		rival(other)
	}
	for ctx.Err() == nil {
		waiting, over := context.WithCancel(ctx)
		var told sync.WaitGroup
		told.Go(func() { tellOfRival(waiting, r, node, holder, ttl, found) })
		lease, err := r.Acquire(ctx, api.NodeLease(node), holder, ttl)
		over()
		told.Wait() // what is said of a rival comes before what is said below
		if err != nil {
			if ctx.Err() == nil {
				problem(fmt.Sprintf("cannot take the lease of node %s: %v", node, err))
				retry.Sleep(ctx, time.Second)
			}
			continue
		}
		rival("")
		problem("")
		held(true)
		select {
		case <-ctx.Done():
			release, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			if err := lease.Release(release); err != nil {
				log.Debug("cannot release the node's lease", "node", node, "error", err)
			}
			cancel()
		case <-lease.Lost():
			held(false)
			log.Warn("lost the node's lease", "node", node)
		}
	}
}

// tellOfRival says that another agent has the node's name, if one has it still
// when ctx has not ended after a while. It says so in the registry as well, by a
// lease, until ctx ends: the Node is the other's to write.
func tellOfRival(ctx context.Context, r registry.Registry, node, holder string, ttl time.Duration, rival func(string)) {
	retry.Sleep(ctx, ttl/5)
	other, err := r.Holder(ctx, api.NodeLease(node))
	if ctx.Err() != nil || err != nil || other == "" || other == holder {
		return
	}
	rival(fmt.Sprintf("another agent, %s, runs as node %s: give each node a name of its own", other, node))
	for ctx.Err() == nil {
		// Where agents may not hold it, as on Kubernetes, no two kubelets have one
		// name either.
		lease, err := r.Acquire(ctx, api.RivalLease(node), holder, ttl)
		if err != nil {
			retry.Sleep(ctx, ttl)
			continue
		}
		select {
		case <-ctx.Done():
			release, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			lease.Release(release) // else it ends by itself
			cancel()
		case <-lease.Lost():
		}
	}
}
