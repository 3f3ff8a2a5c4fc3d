package service

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/derived"
	"github.com/weftnet/weft/registry"
)

// Triggers tells when what is new in EndpointSlices began: Kubernetes says in an annotation of
// each when the last Pod, or the Service, changed that it was written for. It is not safe for
// concurrent use. The zero Triggers knows nothing yet.
type Triggers struct {
	slices derived.List[*trigger]
	known  bool
}

type trigger struct {
	slice registry.Key
	at    time.Time
}

// New returns the times of what came since the last call, none at the first.
func (t *Triggers) New(objects registry.Objects) (times []time.Time) {
	_, came := t.slices.Update(objects.All(api.EndpointSlice), func(o registry.Object, before *trigger) *trigger {
		at, err := time.Parse(time.RFC3339Nano, o.GetAnnotations()[corev1.EndpointsLastChangeTriggerTime])
		switch {
		case err != nil:
			return nil
		case before != nil && before.at.Equal(at):
			return before
		}
		return &trigger{registry.KeyOf(o), at}
	}, func(a, b *trigger) int { return a.slice.Compare(b.slice) })
	for _, c := range came {
		if t.known {
			times = append(times, c.at)
		}
	}
	t.known = true
	return times
}
