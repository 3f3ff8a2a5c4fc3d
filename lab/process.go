package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/jsonfile"
	"github.com/weftnet/weft/internal/process"
)

// stage is what a new process is told to do before and when it becomes the
// program it is for. It gets that over a pipe only after its number is on
// disk; when the pipe ends without, it exits. So no process escapes the
// records, wherever its parent is killed.
type stage struct {
	// Hostname, where not empty, is set; the process has a UTS namespace.
	Hostname string
	// Pod makes the mounts of a pod, in which Files are seen in place of the machine's.
	Pod   bool
	Files []file
	// Env is added to the environment, as NAME=VALUE.
	Env []string
	// Ended has the program's exit code written to endFD when it ends.
	Ended bool
	Args  []string
}

// File descriptors of a new process.
const (
	stageFD  = 3 // reads the stage
	statusFD = 4 // ends without a word when the program runs, else says why not
	readyFD  = 5 // the program says that it serves, if asked to
	endFD    = 6 // takes the program's exit code, if asked for
)

// toTheEnd is what runs a program and writes down its exit code. The first
// process of a pod is a shell, as that takes a hundredth of the memory of a
// program written in Go.
const toTheEnd = `"$@" 6>&-; echo $? >&6`

// launch is how to start a process.
type launch struct {
	// Weft is the weft binary, whose "lab stage" command the process begins as.
	Weft  string
	Stage stage
	// Log is the file for the process's output.
	Log string
	// Record is the file for the process's number.
	Record string
	// Clone are the namespaces to make.
	Clone uintptr
	// Within runs its argument in the namespaces in which to start; nil
	// means those of the caller.
	Within func(func() error) error
	// End is the file for the program's exit code; empty for none.
	End string
	// Ready makes start wait until the program writes to readyFD.
	Ready bool
}

// start starts a process and returns once the program runs, or serves.
func (s launch) start(ctx context.Context) (process.ID, error) {
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return process.ID{}, err
	}
	defer log.Close()
	stageR, stageW, err := os.Pipe()
	if err != nil {
		return process.ID{}, err
	}
	defer stageW.Close()
	statusR, statusW, err := os.Pipe()
	if err != nil {
		stageR.Close()
		return process.ID{}, err
	}
	defer statusR.Close()
	readyR, readyW, err := os.Pipe()
	if err != nil {
		stageR.Close()
		statusW.Close()
		return process.ID{}, err
	}
	defer readyR.Close()

	cmd := exec.Command(s.Weft, "lab", "stage")
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	// What configures the weft command that starts the lab is not for the lab.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "WEFT_") })
	cmd.ExtraFiles = []*os.File{stageR, statusW}
	if s.Ready {
		cmd.ExtraFiles = append(cmd.ExtraFiles, readyW)
	} else {
		cmd.ExtraFiles = append(cmd.ExtraFiles, nil)
	}
	if s.End != "" {
		end, err := os.OpenFile(s.End, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		if err != nil {
			stageR.Close()
			statusW.Close()
			readyW.Close()
			return process.ID{}, err
		}
		defer end.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, end)
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
		return process.ID{}, fmt.Errorf("start %s: %w", strings.Join(s.Stage.Args, " "), err)
	}
	go cmd.Wait() // as long as this process lives, it is the one to reap it
	p, err := s.admit(ctx, cmd.Process.Pid, stageW, statusR, readyR)
	if err != nil {
		// Closing the pipe ends a process that has not begun; one that has is
		// in the record.
		stageW.Close()
		if p.PID != 0 {
			err = errors.Join(err, p.Kill(), os.Remove(s.Record))
		}
		return process.ID{}, err
	}
	return p, nil
}

func (s launch) admit(ctx context.Context, pid int, stageW, statusR, readyR *os.File) (process.ID, error) {
	p, err := process.Identify(pid)
	if err != nil {
		return process.ID{}, fmt.Errorf("start %s: %w%s", strings.Join(s.Stage.Args, " "), err, process.Tail(s.Log))
	}
	if err := jsonfile.Write(s.Record, p); err != nil {
		return p, err
	}
	if err := json.NewEncoder(stageW).Encode(s.Stage); err != nil {
		return p, fmt.Errorf("start %s: %w%s", strings.Join(s.Stage.Args, " "), err, process.Tail(s.Log))
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
			err = errors.New("it ended before it served" + process.Tail(s.Log))
		}
	}
	if err = cmp.Or(context.Cause(ctx), err); err != nil {
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
		for _, f := range s.Files {
			if err := cover(f); err != nil {
				return err
			}
		}
	} else if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-900"), 0); err != nil && !errors.Is(err, os.ErrPermission) {
		// A daemon goes after the pods when memory is short, where the
		// machine lets root say so.
		return err
	}
	for _, variable := range s.Env {
		name, value, _ := strings.Cut(variable, "=")
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("set variable %s: %w", name, err)
		}
	}
	path, err := exec.LookPath(s.Args[0])
	if err != nil {
		return err
	}
	args := s.Args
	if s.Ended {
		args = append([]string{"sh", "-c", toTheEnd, "sh", path}, s.Args[1:]...)
		path = "/bin/sh"
	}
	err = unix.Exec(path, args, os.Environ())
	if errors.Is(err, unix.E2BIG) && len(s.Env) > 0 {
		return fmt.Errorf("execute %s: %w: the environment has %d variables, most of them maybe of Services: do without these with --enable-service-links=false", path, err, len(os.Environ()))
	}
	return &os.PathError{Op: "execute", Path: path, Err: err}
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

// readProcess reads a record; a missing one is the zero process, which is not
// alive.
func readProcess(path string) process.ID {
	var p process.ID
	if err := jsonfile.Read(path, &p); err != nil {
		return process.ID{}
	}
	return p
}
