package networkpolicy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/registry"
)

// Enforced is the condition of a ClusterNetworkPolicy that says whether it is in
// force. It is true if it is on every node with a pod that the policy selects.
const Enforced = "Enforced"

// The reasons of the condition.
const (
	// ReasonInForce: it is true.
	ReasonInForce = "InForce"
	// ReasonNotEnforceable: something in the policy cannot be enforced as it is
	// written, and fails closed.
	ReasonNotEnforceable = "NotEnforceable"
	// ReasonPending: there are nodes that do not say yet that it is in force.
	ReasonPending = "Pending"
)

const (
	// sayPending is how long a policy must be pending until that is said, and
	// repeatPending how often what is said may change. Each write makes all nodes
	// concerned say that they have seen it.
	sayPending    = 2 * time.Second
	repeatPending = 10 * time.Second
	// maxNamed is how many nodes a condition names, maxEvents how many problems
	// of a policy get Events.
	maxNamed, maxEvents = 5, 10
)

// conditionOf says whether a ClusterNetworkPolicy is in force. The text does not
// tell on how many nodes, as it would change with every pod.
func conditionOf(s State, generation int64) metav1.Condition {
	c := metav1.Condition{Type: Enforced, Status: metav1.ConditionFalse, ObservedGeneration: generation}
	switch {
	case len(s.Problems) > 0:
		c.Reason, c.Message = ReasonNotEnforceable, truncate(strings.Join(s.Problems, "; "))
	case len(s.Pending) > 0:
		named := s.Pending[:min(len(s.Pending), maxNamed)]
		c.Reason, c.Message = ReasonPending, fmt.Sprintf("waiting for %d of %d nodes: %s", len(s.Pending), len(s.Nodes), strings.Join(named, ", "))
		if others := len(s.Pending) - len(named); others > 0 {
			c.Message += fmt.Sprintf(" and %d others", others)
		}
	case len(s.Unresolved) > 0:
		c.Reason, c.Message = ReasonNotEnforceable, truncate(unresolved(s.Unresolved))
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonInForce, "it is in force on every node with a pod that it selects"
	}
	return c
}

// unresolved says what becomes of domain names without an address. Why they have
// none is in their DomainNames: it may be worded otherwise at each attempt.
func unresolved(names []string) string {
	return fmt.Sprintf("no address was found for %s (see: weft get domainnames), so that the rules with that hold for nobody", strings.Join(names, ", "))
}

func sameCondition(a *metav1.Condition, b metav1.Condition) bool {
	return a != nil && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message && a.ObservedGeneration == b.ObservedGeneration
}

// judge says of policies whether they are in force.
type judge struct {
	overview
	// known is what the controller has seen of each policy.
	known map[policyKey]*history
	// started says that the policies were seen before.
	started bool
}

type policyKey struct {
	kind *registry.Kind
	key  registry.Key
}

// history is what happened to a policy.
type history struct {
	policy *policy.Policy
	// changed is when the controller saw it change; zero once it was in force
	// after that.
	changed time.Time
	// pending is since when it is without a break; zero while it is not.
	pending time.Time
	// said is when the last condition was written that says so.
	said time.Time
}

// judgment is what is to be said.
type judgment struct {
	conditions []judged
	warnings   []*corev1.Event
	// delays are how long policies took to be in force that are now.
	delays []time.Duration
	// pending is how many policies are not yet.
	pending int
	// next is when to look again though nothing changed; zero for never.
	next time.Time
}

// judged is a condition for a policy.
type judged struct {
	policy    *policyv1alpha2.ClusterNetworkPolicy
	condition metav1.Condition
}

// decide says what is to be said of policies.
func (j *judge) decide(objects registry.Objects, now time.Time) judgment {
	j.update(objects)
	var d judgment
	before := j.known
	j.known = make(map[policyKey]*history, len(before))
	states := j.states(func(t *translated) string { return t.since })
	i := 0
	for t := range j.policies.all() {
		s := states[i]
		i++
		key := policyKey{t.kind, s.Key}
		h := before[key]
		if h == nil {
			h = &history{}
		}
		j.known[key] = h
		if h.policy != t.policy {
			h.policy, h.pending = t.policy, time.Time{}
			if j.started {
				h.changed = now
			}
		}
		switch {
		case len(s.Pending) > 0:
			d.pending++
			if h.pending.IsZero() {
				h.pending = now
			}
		default:
			if !h.changed.IsZero() && len(s.Nodes) > 0 {
				d.delays = append(d.delays, now.Sub(h.changed))
			}
			h.changed, h.pending = time.Time{}, time.Time{}
		}
		switch o := t.object.(type) {
		case *policyv1alpha2.ClusterNetworkPolicy:
			j.sayOf(&d, s, h, o, now)
		default:
			for _, message := range s.Problems[:min(len(s.Problems), maxEvents)] {
				d.warnings = append(d.warnings, warning(t.kind, o, message, now))
			}
		}
	}
	j.started = true
	return d
}

// sayOf decides on the condition of a ClusterNetworkPolicy.
func (j *judge) sayOf(d *judgment, s State, h *history, o *policyv1alpha2.ClusterNetworkPolicy, now time.Time) {
	c := conditionOf(s, o.Generation)
	if sameCondition(meta.FindStatusCondition(o.Status.Conditions, Enforced), c) {
		return
	}
	if c.Reason == ReasonPending {
		when := h.pending.Add(sayPending)
		if again := h.said.Add(repeatPending); again.After(when) {
			when = again
		}
		if when.After(now) {
			if d.next.IsZero() || when.Before(d.next) {
				d.next = when
			}
			return
		}
		h.said = now
	}
	d.conditions = append(d.conditions, judged{o, c})
}

// errChanged says that a policy is no longer what was judged.
var errChanged = errors.New("it changed meanwhile")

// write writes a condition, unless the policy has changed.
func (j judged) write(ctx context.Context, r registry.Registry) error {
	err := call(ctx, func(ctx context.Context) error {
		_, err := registry.Modify(ctx, r, api.StoredClusterNetworkPolicy, registry.KeyOf(j.policy), func(o *policyv1alpha2.ClusterNetworkPolicy) error {
			if o.Generation != j.policy.Generation || !reflect.DeepEqual(o.Spec, j.policy.Spec) {
				return errChanged
			}
			meta.SetStatusCondition(&o.Status.Conditions, j.condition)
			return nil
		})
		return err
	})
	if errors.Is(err, errChanged) || errors.Is(err, registry.ErrNotFound) {
		return nil
	}
	return err
}

// eventSource is who Events come from.
const eventSource = "weft-controller"

// warning is an Event that warns of a policy. The same message for the same
// policy gives the same name, so that it is said once.
func warning(k *registry.Kind, o registry.Object, message string, now time.Time) *corev1.Event {
	sum := sha256.Sum256([]byte(k.Kind + "\x00" + string(o.GetUID()) + "\x00" + message))
	// A name has 253 characters at most, and none of its parts ends with '-'.
	name := o.GetName()
	name = strings.TrimRight(name[:min(len(name), 236)], "-.")
	at := metav1.NewTime(now)
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: name + "." + hex.EncodeToString(sum[:8])},
		InvolvedObject: corev1.ObjectReference{APIVersion: k.GroupVersion().String(), Kind: k.Kind, Namespace: o.GetNamespace(), Name: o.GetName(),
			UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()},
		Reason: ReasonNotEnforceable, Message: truncate(message), Type: corev1.EventTypeWarning, Count: 1,
		FirstTimestamp: at, LastTimestamp: at,
		Source: corev1.EventSource{Component: eventSource}, ReportingController: eventSource, ReportingInstance: eventSource,
	}
}
