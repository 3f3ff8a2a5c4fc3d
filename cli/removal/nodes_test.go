package removal

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
)

// TestNodePatches takes off Nodes what agents said there, and with --purge alone what users did.
func TestNodePatches(t *testing.T) {
	for name, test := range map[string]struct {
		annotations    map[string]string
		without, purge []string
	}{
		"nothing of Weft":              {map[string]string{"mine": "stays"}, nil, nil},
		"a user's data plane":          {map[string]string{api.DataPlaneAnnotation: "linux"}, nil, []string{api.DataPlaneAnnotation}},
		"an agent's words as well":     {map[string]string{api.DataPlaneAnnotation: "linux", api.MTUAnnotation: "1450"}, []string{api.MTUAnnotation}, []string{api.DataPlaneAnnotation, api.MTUAnnotation}},
		"what agents once said as one": {map[string]string{api.DataPlaneAnnotation: `{"tags": true}`}, []string{api.DataPlaneAnnotation}, []string{api.DataPlaneAnnotation}},
	} {
		for purge, want := range map[bool][]string{false: test.without, true: test.purge} {
			metadata, status := nodePatches(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: test.annotations}}, purge)
			var got []string
			if metadata != nil {
				got = slices.Sorted(maps.Keys(metadata["metadata"].(map[string]any)["annotations"].(map[string]any)))
			}
			if !slices.Equal(got, want) || status != nil {
				t.Errorf("%s, --purge=%t: it takes off %q and %v, want %q", name, purge, got, status, want)
			}
		}
	}
}
