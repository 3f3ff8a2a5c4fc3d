package service_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

func TestTriggers(t *testing.T) {
	at := func(second int) string {
		return time.Date(2026, 1, 1, 0, 0, second, 0, time.UTC).Format(time.RFC3339Nano)
	}
	var triggers service.Triggers
	for i, step := range []struct {
		slices map[string]string
		want   []int // seconds
	}{
		{map[string]string{"a": at(1), "b": ""}, nil}, // when the agent begins
		{map[string]string{"a": at(1), "b": ""}, nil},
		{map[string]string{"a": at(2), "b": "", "c": at(3)}, []int{2, 3}},
		{map[string]string{"a": at(2), "b": at(4), "c": "tomorrow"}, []int{4}},
		{map[string]string{"b": at(4)}, nil},
	} {
		objects := registry.Snapshot{}
		for name, value := range step.slices {
			s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
			if value != "" {
				s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: value}
			}
			objects.Put(api.EndpointSlice, s)
		}
		got := triggers.New(objects)
		if len(got) != len(step.want) {
			t.Errorf("step %d: got %v, want %v", i, got, step.want)
			continue
		}
		for j, second := range step.want {
			if got[j].Second() != second {
				t.Errorf("step %d: got %v, want %v", i, got, step.want)
			}
		}
	}
}
