package control

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Registries refuse to write such a slice now, and may still have one.
func TestAnEndpointWithoutAddressesGoesFromItsSlice(t *testing.T) {
	svc := newService(0)
	svc.Spec.Selector = map[string]string{"app": "web"}
	pod := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.1.2"}}
	before := slicesOf(svc, []*corev1.Pod{pod}, nil, nil, func(string) bool { return false })
	if len(before) != 1 {
		t.Fatalf("there are %d slices", len(before))
	}
	before[0].Endpoints = append([]discoveryv1.Endpoint{{}}, before[0].Endpoints...)
	after := slicesOf(svc, []*corev1.Pod{pod}, nil, before, func(string) bool { return false })
	if len(after) != 1 || len(after[0].Endpoints) != 1 || len(after[0].Endpoints[0].Addresses) != 1 {
		t.Errorf("the slices become %v", after)
	}
}
