package oracle

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// selects: "The result of matchLabels and matchExpressions are ANDed. An empty
// label selector matches all objects."
func selects(s *metav1.LabelSelector, labels map[string]string) bool {
	for key, want := range s.MatchLabels {
		if value, ok := labels[key]; !ok || value != want {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		value, ok := labels[e.Key]
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			ok = ok && slices.Contains(e.Values, value)
		case metav1.LabelSelectorOpNotIn:
			ok = !ok || !slices.Contains(e.Values, value)
		case metav1.LabelSelectorOpExists:
		case metav1.LabelSelectorOpDoesNotExist:
			ok = !ok
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}
