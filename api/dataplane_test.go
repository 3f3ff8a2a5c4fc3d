package api

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNodeDataPlane(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want DataPlaneReport
		err  string
	}{
		"nothing":            {},
		"one in force":       {text: DataPlaneReport{Uses: "linux"}.Text(), want: DataPlaneReport{Uses: "linux"}},
		"another wanted":     {text: DataPlaneReport{Uses: "linux", Wants: "ovs"}.Text(), want: DataPlaneReport{Uses: "linux", Wants: "ovs"}},
		"of a later version": {text: `{"uses":"linux","since":7}`, want: DataPlaneReport{Uses: "linux"}},
		"no JSON":            {text: "linux", err: "invalid character"},
		"no name":            {text: `{"uses":"linux\u001b[2J"}`, err: `uses: "linux\x1b[2J" is no name of a data plane`},
		"no other name":      {text: `{"wants":"A B"}`, err: `wants: "A B" is no name of a data plane`},
		"long":               {text: `{"uses":"` + strings.Repeat("x", 600) + `"}`, err: "more than 512"},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
		if test.text != "" {
			node.Annotations = map[string]string{DataPlaneReportAnnotation: test.text}
		}
		got, err := NodeDataPlane(node)
		message := ""
		if err != nil {
			message = err.Error()
		}
		if got != test.want || !strings.Contains(message, test.err) || (test.err == "") != (message == "") {
			t.Errorf("%s: %+v, %q; expected %+v, %q", name, got, message, test.want, test.err)
		}
	}
}

func TestAskedDataPlane(t *testing.T) {
	for text, want := range map[string]string{"": "", "ovs": "ovs", " ovs ": "ovs", `{"IPv6":true,"Tunnels":true}`: ""} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{DataPlaneAnnotation: text}}}
		// What is not used is stripped of objects as they arrive, and this is used.
		Node.Keep(node)
		if got := AskedDataPlane(node); got != want {
			t.Errorf("%q asks for %q; expected %q", text, got, want)
		}
	}
}
