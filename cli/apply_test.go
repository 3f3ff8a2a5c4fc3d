package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weftnet/weft/api"
)

// TestTooLargeToKeep applies policies of which apply's copy has room in the object's
// annotations, and of which it has none.
func TestTooLargeToKeep(t *testing.T) {
	for rules, want := range map[int]string{
		100: "",
		20000: "networkpolicy default/large: what the file says of it is 1389042 bytes long, and apply keeps it in the annotation " +
			"kubectl.kubernetes.io/last-applied-configuration, where an object has room for 262144 bytes with all its annotations: split it into several objects",
	} {
		var text strings.Builder
		text.WriteString("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: large}\nspec:\n  podSelector: {}\n  ingress:\n")
		for i := range rules {
			fmt.Fprintf(&text, "  - {ports: [{port: %d}], from: [{ipBlock: {cidr: 10.0.0.0/8}}]}\n", i+1)
		}
		decoded, err := api.Decode([]byte(text.String()), kinds())
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		o, err := newTarget(decoded[0], "default").merge(nil)
		if err == nil {
			_, _, err = api.NetworkPolicy.Admit(o)
		}
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("of %d rules it says\n%.300s\nnot\n%s", rules, got, want)
		}
	}
}
