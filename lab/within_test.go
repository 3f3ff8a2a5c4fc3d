package lab

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/internal/process"
)

// TestNothingRunsOn ends what runs in one network namespace, with what that has started,
// and nothing that runs in another.
func TestNothingRunsOn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	start := func(name string) (*exec.Cmd, *bufio.Reader) {
		path := filepath.Join(dir, name)
		if err := newNetwork(path); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := releaseFile(path); err != nil {
				t.Error(err)
			}
		})
		cmd := exec.Command("sh", "-c", "sleep 1000 & echo $!; wait")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := netns.Do(path, cmd.Start); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(out)
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		return cmd, r
	}
	gone, output := start("gone")
	stays, _ := start("stays")
	if err := os.WriteFile(filepath.Join(dir, "nothing"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := endWithin(filepath.Join(dir, "gone"), filepath.Join(dir, "nothing"), filepath.Join(dir, "missing")); err != nil {
		t.Fatal(err)
	}
	// Both processes had the pipe.
	if _, err := output.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the output goes on: %v", err)
	}
	if err := gone.Wait(); gone.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Errorf("it ended by itself: %v", err)
	}
	if _, err := process.Identify(stays.Process.Pid); err != nil {
		t.Errorf("what is in another namespace: %v", err)
	}
	if err := endWithin(filepath.Join(dir, "stays")); err != nil {
		t.Fatal(err)
	}
	_ = stays.Wait()
}

// TestSignalsArePassedOn has a command end by a signal as it says itself. Its child says that
// it is ready, as before it has begun the child still takes signals as its parent does.
func TestSignalsArePassedOn(t *testing.T) {
	signals := make(chan os.Signal, 1)
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := Command{Args: []string{"sh", "-c", `trap 'kill $!; exit 7' TERM; sh -c 'echo ready; exec sleep 1000' & wait`}, Stdout: w, Signals: signals}.run()
		w.Close()
		done <- err
	}()
	out := bufio.NewReader(r)
	if _, err := out.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	signals <- unix.SIGTERM
	if _, err := out.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the output goes on: %v", err)
	}
	var exit *exec.ExitError
	if err := <-done; !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("it ended with %v", err)
	}
}
