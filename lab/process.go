package lab

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// process is a process that the lab started, by what tells it from another
// that gets its number later.
type process struct {
	PID int `json:"pid"`
	// Started is when, in clock ticks since the machine booted
	// (proc_pid_stat(5), field 22).
	Started uint64 `json:"started"`
}

// stage is what a new process is told to do before and when it becomes the
// program it is for. It gets that over a pipe only after its number is on
// disk; when the pipe ends without, it exits. So no process escapes the
// records, wherever its parent is killed.
type stage struct {
	// Hostname, where not empty, is set; the process has a UTS namespace.
	Hostname string
	// Pod makes the mounts of a pod.
	Pod  bool
	Args []string
}

// File descriptors of a new process.
const (
	stageFD  = 3 // reads the stage
	statusFD = 4 // ends without a word when the program runs, else says why not
	readyFD  = 5 // the program says that it serves, if asked to
)

// launch is how to start a process.
type launch struct {
	// Weft is the weft binary, whose "lab stage" command the process begins as.
	Weft  string
	Stage stage
	// Log is the file for the process's output.
	Log string
	// Record is the file for the process's number.
	Record string
	// Env is added to the environment.
	Env []string
	// Clone are the namespaces to make.
	Clone uintptr
	// Within runs its argument in the namespaces in which to start; nil
	// means those of the caller.
	Within func(func() error) error
	// Ready makes start wait until the program writes to readyFD.
	Ready bool
}

// start starts a process and returns once the program runs, or serves.
func (s launch) start(ctx context.Context) (process, error) {
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return process{}, err
	}
	defer log.Close()
	stageR, stageW, err := os.Pipe()
	if err != nil {
		return process{}, err
	}
	defer stageW.Close()
	statusR, statusW, err := os.Pipe()
	if err != nil {
		stageR.Close()
		return process{}, err
	}
	defer statusR.Close()
	readyR, readyW, err := os.Pipe()
	if err != nil {
		stageR.Close()
		statusW.Close()
		return process{}, err
	}
	defer readyR.Close()

	cmd := exec.Command(s.Weft, "lab", "stage")
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	// What configures the weft command that starts the lab is not for the lab.
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "WEFT_") }), s.Env...)
	cmd.ExtraFiles = []*os.File{stageR, statusW}
	if s.Ready {
		cmd.ExtraFiles = append(cmd.ExtraFiles, readyW)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: s.Clone}
	within := s.Within
	if within == nil {
		within = func(f func() error) error { return f() }
	}
	err = within(cmd.Start)
	for _, f := range []*os.File{stageR, statusW, readyW} {
		f.Close()
	}
	if err != nil {
		return process{}, fmt.Errorf("start %s: %w", strings.Join(s.Stage.Args, " "), err)
	}
	go cmd.Wait() // as long as this process lives, it is the one to reap it
	p, err := s.admit(ctx, cmd.Process.Pid, stageW, statusR, readyR)
	if err != nil {
		// Closing the pipe ends a process that has not begun; one that has is
		// in the record.
		stageW.Close()
		if p.PID != 0 {
			err = errors.Join(err, p.kill(), os.Remove(s.Record))
		}
		return process{}, err
	}
	return p, nil
}

func (s launch) admit(ctx context.Context, pid int, stageW, statusR, readyR *os.File) (process, error) {
	started, err := startTime(pid)
	if err != nil {
		return process{}, fmt.Errorf("start %s: %w%s", strings.Join(s.Stage.Args, " "), err, tail(s.Log))
	}
	p := process{pid, started}
	if err := writeJSON(s.Record, p); err != nil {
		return p, err
	}
	if err := json.NewEncoder(stageW).Encode(s.Stage); err != nil {
		return p, fmt.Errorf("start %s: %w%s", strings.Join(s.Stage.Args, " "), err, tail(s.Log))
	}
	stop := context.AfterFunc(ctx, func() {
		statusR.Close()
		readyR.Close()
	})
	defer stop()
	message, err := io.ReadAll(io.LimitReader(statusR, 4096))
	if err == nil && len(message) > 0 {
		err = errors.New(string(message))
	}
	if err == nil && s.Ready {
		if n, _ := readyR.Read(make([]byte, 1)); n == 0 && ctx.Err() == nil {
			err = errors.New("it ended before it served" + tail(s.Log))
		}
	}
	if err = cmp.Or(ctx.Err(), err); err != nil {
		return p, fmt.Errorf("start %s: %w", strings.Join(s.Stage.Args, " "), err)
	}
	return p, nil
}

// RunStage is what a process that the lab starts does first: it reads what it
// is to become, prepares that, and becomes it. It returns only on failure.
func RunStage() error {
	status := os.NewFile(statusFD, "status")
	err := runStage()
	if err != nil && status != nil {
		fmt.Fprint(status, err)
	}
	return err
}

func runStage() error {
	unix.CloseOnExec(stageFD)
	unix.CloseOnExec(statusFD)
	var s stage
	if err := json.NewDecoder(os.NewFile(stageFD, "stage")).Decode(&s); err != nil || len(s.Args) == 0 {
		return errors.New("this command is for the lab's own use")
	}
	if s.Hostname != "" {
		if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
			return fmt.Errorf("set host name %s: %w", s.Hostname, err)
		}
	}
	if s.Pod {
		if err := podMounts(); err != nil {
			return err
		}
	} else if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-900"), 0); err != nil && !errors.Is(err, os.ErrPermission) {
		// A daemon goes after the pods when memory is short, where the
		// machine lets root say so.
		return err
	}
	path, err := exec.LookPath(s.Args[0])
	if err != nil {
		return err
	}
	return &os.PathError{Op: "execute", Path: path, Err: unix.Exec(path, s.Args, os.Environ())}
}

// podMounts gives a pod its own /proc, /sys and /run. What lies in the node's
// /run is the agent's and the runtime's business.
func podMounts() error {
	if err := followHost(); err != nil {
		return err
	}
	if err := unix.Unmount("/run", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the node's /run: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	if err := mountSys("/run/sys"); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// startTime reads when a process started; a process that has ended and was
// not waited for yet counts as gone.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	// The program's name, in parentheses, may hold blanks and parentheses.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// alive reports whether the process runs.
func (p process) alive() bool {
	if p.PID == 0 {
		return false
	}
	started, err := startTime(p.PID)
	return err == nil && started == p.Started
}

// kill ends the process and returns when it has gone.
func (p process) kill() error {
	if p.PID == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.alive() { // what the descriptor stands for is another, or has ended
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// readProcess reads a record; a missing one is the zero process, which is not
// alive.
func readProcess(path string) process {
	var p process
	if err := readJSON(path, &p); err != nil {
		return process{}
	}
	return p
}

// tail returns the last lines of a log for an error message.
func tail(path string) string {
	b, err := os.ReadFile(path)
	b = bytes.TrimSpace(b)
	if err != nil || len(b) == 0 {
		return ""
	}
	lines := bytes.Split(b, []byte("\n"))
	lines = lines[max(0, len(lines)-8):]
	return fmt.Sprintf("\n  the end of %s:\n    %s", filepath.Base(path), bytes.Join(lines, []byte("\n    ")))
}
