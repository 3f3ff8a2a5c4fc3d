package lab

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/internal/process"
)

// Command is a command to run in a pod or on a node.
type Command struct {
	Args   []string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// env is added to this process's environment, as NAME=VALUE.
	env []string
	// Signals are passed on to the command while it runs; nil passes on none.
	Signals <-chan os.Signal
}

func (c Command) run() error {
	if len(c.Args) == 0 {
		return errors.New("no command to run: put one after --")
	}
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			select {
			case s := <-c.Signals:
				_ = cmd.Process.Signal(s) // it may have ended
			case <-ended:
				return
			}
		}
	})
	defer passing.Wait()
	defer close(ended)
	return cmd.Wait()
}

// Exec runs a command in a pod's namespaces, with the pod's own environment besides that of
// this process, and returns when it has ended.
// The error is an *exec.ExitError where the command itself failed.
func (l *Lab) Exec(namespace, name string, c Command) error {
	p := Pod{Namespace: cmp.Or(namespace, DefaultNamespace), Name: name}
	r, err := l.podRecord(p.Namespace, p.Name)
	if err != nil {
		return l.noPod(p)
	}
	c.env = r.Environment
	proc := readProcess(l.processFile(p))
	return netns.Thread(func() error {
		var open []int
		defer func() {
			for _, fd := range open {
				unix.Close(fd)
			}
		}()
		kinds := []struct {
			file string
			kind int
		}{{"net", unix.CLONE_NEWNET}, {"uts", unix.CLONE_NEWUTS}, {"ipc", unix.CLONE_NEWIPC}, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}}
		for _, k := range kinds {
			fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", proc.PID, k.file), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				break // alive says so
			}
			open = append(open, fd)
		}
		if !proc.Alive() || len(open) < len(kinds) {
			return fmt.Errorf("pod %s does not run (see: weft lab status)%s", p.key(), process.Tail(l.podLog(p)))
		}
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare file system attributes: %w", err)
		}
		for i, k := range kinds {
			if err := unix.Setns(open[i], k.kind); err != nil {
				return fmt.Errorf("enter the %s namespace of pod %s: %w", k.file, p.key(), err)
			}
		}
		return c.run()
	})
}

// ExecNode runs a command in a node's namespaces, as Exec does in a pod's.
func (l *Lab) ExecNode(name string, c Command) error {
	m, err := l.node(name)
	if err != nil {
		return err
	}
	if !l.isOn(m) {
		return fmt.Errorf("node %s is off: start it with: weft lab start-node %s", name, name)
	}
	return l.onNode(name, c.run)
}

// ExecOutside runs a command outside the cluster, on the switch.
func (l *Lab) ExecOutside(c Command) error {
	return netns.Thread(func() error {
		if err := netns.Enter(l.dir.network(switchName), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return c.run()
	})
}

// Stdio is the caller's own input and output.
func Stdio(args []string) Command {
	return Command{Args: args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
}
