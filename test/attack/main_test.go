package attack

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/await"
)

// bin holds the binaries under test; self is a copy of this test binary that
// every user can execute: it is also the program that runs in pods, on nodes
// and elsewhere (see hand_test.go).
var bin, self string

// patience is how long what must come true may take. It is long so that a busy
// machine does not look like a fault; what comes at once is not waited for.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && runProgram(os.Args[1:]) {
		return
	}
	code := run(m)
	report(os.Stdout)
	os.Exit(code)
}

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "weft-attack-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin, self = dir+"/bin/", dir+"/attack"
	if err := prepare(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// prepare builds the binaries and copies this one.
func prepare(dir string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	build := exec.Command("go", "build", "-trimpath", "-o", bin, "github.com/weftnet/weft/cmd/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	me, err := os.Executable()
	if err != nil {
		return err
	}
	from, err := os.Open(me)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(filepath.Clean(self), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	if e := to.Close(); err == nil {
		err = e
	}
	return err
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes clusters of network namespaces")
	}
}

// eventually tries until it works.
func eventually(t testing.TB, try func() error) {
	t.Helper()
	await.NoError(t, patience, "what must come true", try)
}
