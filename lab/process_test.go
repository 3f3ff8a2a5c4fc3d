package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/process"
)

// TestMain lets the test binary stand for weft: a process of the lab begins
// as "lab stage".
func TestMain(m *testing.M) {
	if slices.Equal(os.Args[1:], []string{"lab", "stage"}) {
		if err := RunStage(); err != nil {
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func testLaunch(t *testing.T, args ...string) launch {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d := t.TempDir()
	return launch{Weft: self, Log: filepath.Join(d, "log"), Record: filepath.Join(d, "process.json"), Stage: stage{Args: args}}
}

func TestProcessIsRecordedAndKilled(t *testing.T) {
	l := testLaunch(t, "sh", "-c", "echo started; exec sleep 1000")
	p, err := l.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !p.Alive() || readProcess(l.Record) != p {
		t.Errorf("alive: %v, recorded: %v, started: %v", p.Alive(), readProcess(l.Record), p)
	}
	// A record of a process that had the number before does not name it.
	before := process.ID{PID: p.PID, Started: p.Started - 1, Boot: p.Boot}
	if err := before.Kill(); err != nil || !p.Alive() {
		t.Errorf("another's record killed it: %v", err)
	}
	for range 2 {
		if err := p.Kill(); err != nil || p.Alive() {
			t.Errorf("kill: %v, alive: %v", err, p.Alive())
		}
	}
}

func TestProcessThatCannotStartSaysWhy(t *testing.T) {
	l := testLaunch(t, "/no/such/program")
	if _, err := l.start(t.Context()); err == nil || !strings.Contains(err.Error(), "/no/such/program: ") {
		t.Errorf("the error is %v", err)
	}
	if _, err := os.Stat(l.Record); err == nil {
		t.Error("its record is still there")
	}
	l = testLaunch(t, "sh", "-c", "echo out of paper >&2; exit 1")
	l.Ready = true
	if _, err := l.start(t.Context()); err == nil || !strings.Contains(err.Error(), "out of paper") {
		t.Errorf("the error is %v", err)
	}
}

// A process whose parent dies before it is on record must not go on.
func TestProcessWithoutAStageEnds(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "lab", "stage")
	cmd.ExtraFiles = []*os.File{r}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if _, err := w.WriteString(`{"Args":["sleep",`); err != nil { // killed in the middle of a word
		t.Fatal(err)
	}
	w.Close()
	if err := cmd.Wait(); err == nil {
		t.Error("it went on")
	}
}

func TestReadyProcessStaysUp(t *testing.T) {
	l := testLaunch(t, "sh", "-c", "echo yes >&5; exec sleep 1000")
	l.Ready = true
	p, err := l.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if !p.Alive() {
		t.Error("it ended")
	}
}

func TestMountPointsAreUnescaped(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	d := filepath.Join(t.TempDir(), "with a blank")
	if err := os.Mkdir(d, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := privateMount(d); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(d, unix.MNT_DETACH)
	if err := newNetwork(filepath.Join(d, "n")); err != nil {
		t.Fatal(err)
	}
	points, err := mountPoints()
	if err != nil || !slices.Contains(points, d) || !slices.Contains(points, d+"/n") {
		t.Errorf("%s is not in %q (%v)", d, points, err)
	}
	for range 2 {
		if err := unmountBelow(d); err != nil {
			t.Error(err)
		}
	}
	if points, _ := mountPoints(); slices.Contains(points, d) || slices.Contains(points, d+"/n") {
		t.Error("still mounted")
	}
}
