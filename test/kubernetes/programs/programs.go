// Package programs knows where the programs of a real Kubernetes cluster are,
// which the script build beside it makes out of the pinned modules in the
// folders below.
package programs

import (
	"os"
	"path/filepath"
	"testing"
)

// Dir is the directory of the binaries: what $WEFT_KUBERNETES_BIN says, or else
// weft/kubernetes/bin in the user's cache.
func Dir() (string, error) {
	if dir := os.Getenv("WEFT_KUBERNETES_BIN"); dir != "" {
		return dir, nil
	}
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "weft/kubernetes/bin"), err
}

// Need returns Dir, and skips a test where one of the programs is not there.
func Need(t testing.TB, names ...string) string {
	t.Helper()
	dir, err := Dir()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Skipf("%s is not built: make kubernetes-programs (%v)", name, err)
		}
	}
	return dir
}
