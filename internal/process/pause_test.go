package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// spinning, as an argument of this binary, makes it a program with many threads
// that are never idle.
const spinning = "spin"

// spinners is how many of them there are: more than a machine runs at a time.
var spinners = 16 * runtime.NumCPU()

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == spinning {
		spin()
		return
	}
	os.Exit(m.Run())
}

// spin says on standard output when all threads run, and never returns.
func spin() {
	runtime.GOMAXPROCS(spinners + 1)
	ready := make(chan struct{})
	var turns atomic.Int64
	for range spinners {
		go func() {
			runtime.LockOSThread()
			ready <- struct{}{}
			for {
				turns.Add(1)
			}
		}()
	}
	for range spinners {
		<-ready
	}
	fmt.Println("all run")
	select {}
}

// startSpinning starts such a program, and ends it when the test ends.
func startSpinning(t *testing.T) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, spinning)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// Once Pause has returned, no thread runs; and so again after the process went on.
func TestWhatIsPausedDoesNothing(t *testing.T) {
	cmd := startSpinning(t)
	for range 3 {
		if err := Pause(cmd.Process); err != nil {
			t.Fatal(err)
		}
		if stopped, all := threads(t, cmd.Process.Pid); stopped < all || all < spinners {
			t.Errorf("%d of %d threads have stopped", stopped, all)
		}
		if err := Pause(cmd.Process); err != nil {
			t.Errorf("paused again: %v", err)
		}
		if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
}

// threads counts the threads of a process, and those that have stopped.
func threads(t *testing.T, pid int) (stopped, all int) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all++
		if bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" T ")) {
			stopped++
		}
	}
	return stopped, all
}

// A process that has ended is not paused, and whoever waits for its end learns
// how it ended.
func TestWhatHasEndedIsNotPaused(t *testing.T) {
	cmd := exec.Command("sh", "-c", "exit 3")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if err := Pause(cmd.Process); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("nobody has waited for it: %v", err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("it ended with %v", err)
	}
	if err := Pause(cmd.Process); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("its end was waited for: %v", err)
	}
}
