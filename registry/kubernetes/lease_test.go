package kubernetes

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"pgregory.net/rapid"
)

func TestLeaseNames(t *testing.T) {
	for name, want := range map[string]string{
		"controller":                       "controller",
		"node/node1":                       "node--node1",
		"node/ip-10-0-0-1.ec2.internal":    "node--ip-10-0-0-1.ec2.internal",
		"node/Upper":                       "node--0x5570706572",
		"node--node1":                      "0x6e6f64652d2d6e6f646531",
		"0x61":                             "0x30783631",
		"a/":                               "a--0x",
		"node/" + strings.Repeat("a", 253): "0hecf00c7795c2c82e4d7acfcaa3fb794d45cb47253920a3fab4ce03a7db0fc3f1",
	} {
		if got := leaseName(name); got != want {
			t.Errorf("the object of lease %s is %s, want %s", name, got, want)
		}
	}
}

func TestLeaseNamesAreValidAndDiffer(t *testing.T) {
	name := rapid.OneOf(rapid.StringMatching(`[a0hx./-]{1,8}`), rapid.StringMatching(`(node/)?(0[hx])?[0-9a-f]{1,6}`), rapid.StringN(1, -1, 300))
	rapid.Check(t, func(t *rapid.T) {
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		if problems := content.IsDNS1123Subdomain(leaseName(a)); len(problems) > 0 {
			t.Fatalf("the object of lease %q would be %q: %v", a, leaseName(a), problems)
		}
		if a != b && leaseName(a) == leaseName(b) {
			t.Fatalf("leases %q and %q are both %q", a, b, leaseName(a))
		}
	})
}
