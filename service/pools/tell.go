package pools

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/registry"
)

// Pooled is the condition of a Service of type LoadBalancer that says which addresses of
// AddressPools it cannot have, or has although they are not its own to have any more. Where
// nothing is wrong it is not there.
const Pooled = "weft.network/Pooled"

// The reasons of that condition, and of api.PoolUsable.
const (
	// ReasonLacks: it has not what it is to have.
	ReasonLacks = "Impossible"
	// ReasonKeeps: it has what it would not be given now.
	ReasonKeeps = "Kept"
	// ReasonAll: all addresses of a pool can be given.
	ReasonAll = "AllUsable"
	// ReasonPart: some cannot.
	ReasonPart = "PartUnusable"
)

// statement is what a condition is to say; the zero statement is that there is to be none.
type statement struct {
	reason, message string
	parts           []string
}

// lacks is a statement of one part.
func lacks(format string, args ...any) (s statement) {
	s.lack(format, args...)
	return s
}

// lack says what a Service has not.
func (s *statement) lack(format string, args ...any) { s.add(ReasonLacks, format, args...) }

// keep says what a Service has that it would not be given now.
func (s *statement) keep(format string, args ...any) {
	reason := ReasonKeeps
	if s.reason != "" {
		reason = s.reason
	}
	s.add(reason, format, args...)
}

func (s *statement) add(reason, format string, args ...any) {
	s.parts = append(s.parts, fmt.Sprintf(format, args...))
	s.reason, s.message = reason, printable.Sentence(s.parts)
}

// said is what was said of a Service before; nil where nothing was.
func said(svc *corev1.Service) *metav1.Condition {
	return meta.FindStatusCondition(svc.Status.Conditions, Pooled)
}

// saying is what is to be said of a Service.
type saying struct {
	service registry.Key
	uid     types.UID
	is      statement
}

// write has the Service say it.
func (s saying) write(ctx context.Context, r registry.Registry) error {
	_, err := registry.ModifyOnce(ctx, r, api.Service, s.service, func(svc *corev1.Service) error {
		switch {
		case svc.UID != s.uid:
		case s.is.message == "":
			meta.RemoveStatusCondition(&svc.Status.Conditions, Pooled)
		default:
			meta.SetStatusCondition(&svc.Status.Conditions, metav1.Condition{Type: Pooled, Status: metav1.ConditionFalse, Reason: s.is.reason, Message: s.is.message})
		}
		return nil
	})
	if errors.Is(err, registry.ErrNotFound) {
		return nil
	}
	return err
}

// report is what a pool's status is to say.
type report struct {
	// kind is api.AddressPoolKind, or the one that writes to pools that Weft would refuse.
	kind        *registry.Kind
	pool        registry.Key
	uid         types.UID
	total, used int64
	condition   metav1.Condition
}

// reports returns what is to be said of pools, where it is not said yet.
func (a *allotment) reports() (all []report) {
	for _, p := range a.pools {
		r := report{api.AddressPoolKind, registry.KeyOf(p), p.UID, p.total, a.used[p.Name], metav1.Condition{Type: api.PoolUsable, Status: metav1.ConditionTrue, Reason: ReasonAll}}
		wrong := p.wrong()
		// An API server lets more in than is understood.
		if err := api.AddressPoolKind.Validate(p.AddressPool); err != nil {
			r.kind, wrong = api.StoredAddressPool, append([]string{err.Error()}, wrong...)
		}
		if len(wrong) > 0 {
			r.condition.Status, r.condition.Reason, r.condition.Message = metav1.ConditionFalse, ReasonPart, printable.Sentence(wrong)
		}
		was := meta.FindStatusCondition(p.Status.Conditions, api.PoolUsable)
		if p.Status.Total != r.total || p.Status.Used != r.used || was == nil || was.Status != r.condition.Status || was.Reason != r.condition.Reason || was.Message != r.condition.Message {
			all = append(all, r)
		}
	}
	return all
}

// wrong says what of a pool cannot be given.
func (p *pool) wrong() (all []string) {
	for _, name := range slices.Sorted(slices.Values(p.shared)) {
		all = append(all, fmt.Sprintf("it has addresses of AddressPool %s, and no Service is given these by either: have each in one", name))
	}
	for _, lost := range slices.Sorted(slices.Values(p.lost)) {
		all = append(all, lost+", which no Service is given")
	}
	return all
}

// write has the pool say it.
func (p report) write(ctx context.Context, r registry.Registry) error {
	_, err := registry.ModifyOnce(ctx, r, p.kind, p.pool, func(pool *api.AddressPool) error {
		if pool.UID != p.uid {
			return nil
		}
		pool.Status.Total, pool.Status.Used = p.total, p.used
		p.condition.ObservedGeneration = pool.Generation
		meta.SetStatusCondition(&pool.Status.Conditions, p.condition)
		return nil
	})
	if errors.Is(err, registry.ErrNotFound) {
		return nil
	}
	return err
}
