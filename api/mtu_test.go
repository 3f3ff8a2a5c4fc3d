package api

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNodeMTU(t *testing.T) {
	long := strings.Repeat("9", 1000)
	for text, want := range map[string]struct {
		mtu int
		err string
	}{
		"": {}, "576": {mtu: 576}, "1450": {mtu: 1450}, "65535": {mtu: 65535},
		"575": {err: `"575"`}, "65536": {err: `"65536"`}, "-1450": {err: `"-1450"`}, "+1450": {err: `"+1450"`}, "01450": {err: `"01450"`},
		" 1450": {err: `" 1450"`}, "1450.0": {err: `"1450.0"`}, long: {err: `"` + long[:64] + `…"`},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Annotations: map[string]string{MTUAnnotation: text}}}
		if want.err != "" {
			want.err = "annotation weft.network/mtu of Node node1 is " + want.err + ", not a number of bytes from 576 to 65535"
		}
		if mtu, err := NodeMTU(node); mtu != want.mtu || errorText(err) != want.err {
			t.Errorf("%.80q is %d, %v", text, mtu, err)
		}
	}
}
