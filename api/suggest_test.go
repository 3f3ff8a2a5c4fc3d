package api

import (
	"errors"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A field whose name is right but for its case is named as it is written, wherever it is in
// the object. Of others nothing is said.
func TestSuggest(t *testing.T) {
	for _, test := range []struct {
		of          any
		field, want string
	}{
		{&ClusterConfig{}, "spec.dataplane", "spec.dataPlane"},
		{&corev1.Pod{}, "spec.containers[2].imagepullpolicy", "spec.containers[2].imagePullPolicy"},
		{&corev1.Pod{}, "spec.containers[2].env[0].valuefrom", "spec.containers[2].env[0].valueFrom"},
		{&corev1.Node{}, "Metadata", "metadata"},
		{&ClusterConfig{}, "spec.plugn", ""},
		{&corev1.Pod{}, "metadata.labels.x.y", ""},
	} {
		err := errors.New(`unknown field "` + test.field + `"`)
		want := err.Error()
		if test.want != "" {
			want += `: write "` + test.want + `"`
		}
		if got := suggest(err, reflect.TypeOf(test.of)).Error(); got != want {
			t.Errorf("of %s it is said %s", test.field, got)
		}
	}
	if err := errors.New("something else"); suggest(err, reflect.TypeFor[*corev1.Pod]()) != err {
		t.Error("another error is changed")
	}
}
