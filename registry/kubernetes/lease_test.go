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
		"node/a--b":                        "node--a--b",
		"node/0x612d2d62":                  "node--0x612d2d62",
		"node/0h61":                        "node--0h61",
		"node/" + strings.Repeat("a", 247): "node--" + strings.Repeat("a", 247),
		"node/Upper":                       "0x6e6f64652f5570706572",
		"node/a/b":                         "0x6e6f64652f612f62",
		"node--node1":                      "0x6e6f64652d2d6e6f646531",
		"0x61":                             "0x30783631",
		"a/":                               "0x612f",
		"node/" + strings.Repeat("a", 248): "0h3ff163603a7660f0d059a643f3de5bdeadb8664fdc3e360017ea6a4ede4817e2",
	} {
		if got := leaseName(name); got != want {
			t.Errorf("the object of lease %s is %s, want %s", name, got, want)
		}
	}
}

var leaseNames = rapid.OneOf(rapid.StringMatching(`[a0hx./-]{1,8}`), rapid.StringMatching(`(node/)?(0[hx])?[0-9a-f]{1,6}`),
	rapid.StringMatching(`(node|a|0x)/[a0hx-]{0,3}(--|/|-)[a0hx-]{0,3}`), rapid.StringN(1, -1, 300))

func TestLeaseNamesAreValidAndDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := leaseNames.Draw(t, "a"), leaseNames.Draw(t, "b")
		if problems := content.IsDNS1123Subdomain(leaseName(a)); len(problems) > 0 {
			t.Fatalf("the object of lease %q would be %q: %v", a, leaseName(a), problems)
		}
		if a != b && leaseName(a) == leaseName(b) {
			t.Fatalf("leases %q and %q are both %q", a, b, leaseName(a))
		}
		if back, known := leaseNamed(leaseName(a)); known && back != a || !known && !strings.HasPrefix(leaseName(a), "0h") {
			t.Fatalf("the lease of object %q is %q (%t), want %q", leaseName(a), back, known, a)
		}
		// Whatever the lease, its object is not that of a Node unless it is the
		// Node's: this is what the admission policy relies on.
		if node, is := strings.CutPrefix(leaseName(a), "node--"); is && a != "node/"+node {
			t.Fatalf("the object of lease %q is %q, which is that of Node %q", a, leaseName(a), node)
		}
	})
}

// The object of a Node's lease is the one that the admission policy computes.
func TestLeaseNameOfANode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		node := rapid.StringMatching(`(0x|0h)?[a-z0-9]([a-z0-9-]{0,4}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,4}[a-z0-9])?){0,2}`).Draw(t, "node")
		if got := leaseName("node/" + node); got != "node--"+node {
			t.Fatalf("the object of the lease of Node %q is %q", node, got)
		}
	})
}

func FuzzLeaseNames(f *testing.F) {
	f.Add("node/a--b", "node--a/b")
	f.Add("node/0x61", "0x61")
	f.Fuzz(func(t *testing.T, a, b string) {
		if a != b && leaseName(a) == leaseName(b) {
			t.Fatalf("leases %q and %q are both %q", a, b, leaseName(a))
		}
	})
}
