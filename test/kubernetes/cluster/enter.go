package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
)

// Command is a command to run on a node.
type Command struct {
	Args   []string
	Env    []string // added to the node's environment
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
}

// place is where a node's processes are.
type place struct {
	// proc is the directory in /proc of a process that is there.
	proc   string
	groups groups
	bin    string
}

// namespaceKinds are the namespaces of a node, in the order in which they can
// be entered.
var namespaceKinds = []struct {
	file string
	kind int
}{
	{"cgroup", unix.CLONE_NEWCGROUP}, {"net", unix.CLONE_NEWNET}, {"uts", unix.CLONE_NEWUTS},
	{"ipc", unix.CLONE_NEWIPC}, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS},
}

// within calls f on a thread in the node's namespaces and control groups;
// commands that f starts, with attr, are there as well. Programs are looked up
// in the node's root.
func (p place) within(f func(attr *syscall.SysProcAttr) error) error {
	return netns.Thread(func() error {
		open := make([]int, 0, len(namespaceKinds))
		defer func() {
			for _, fd := range open {
				unix.Close(fd)
			}
		}()
		for _, k := range namespaceKinds {
			fd, err := unix.Open(filepath.Join(p.proc, "ns", k.file), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("the node does not run: %w", err)
			}
			open = append(open, fd)
		}
		unified, err := p.groups.child(daemons).enterThread()
		if err != nil {
			return err
		}
		attr := &syscall.SysProcAttr{}
		if unified >= 0 {
			defer unix.Close(unified)
			attr.UseCgroupFD, attr.CgroupFD = true, unified
		}
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare file system attributes: %w", err)
		}
		for i, k := range namespaceKinds {
			if err := unix.Setns(open[i], k.kind); err != nil {
				return fmt.Errorf("enter the node's %s namespace: %w", k.file, err)
			}
		}
		return f(attr)
	})
}

// command makes a command that runs on the node; it is for f of within.
func (p place) command(c Command, attr *syscall.SysProcAttr) *exec.Cmd {
	path := c.Args[0]
	if !strings.ContainsRune(path, '/') {
		// The programs of the cluster come before the machine's.
		if inBin := filepath.Join(p.bin, path); exists(inBin) {
			path = inBin
		}
	}
	cmd := exec.Command(path, c.Args[1:]...)
	cmd.Args[0] = c.Args[0]
	cmd.Dir = "/"
	cmd.Env = append([]string{
		"PATH=" + p.bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LANG=C.UTF-8",
	}, c.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	cmd.SysProcAttr = attr
	return cmd
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// run runs a command on the node and returns when it has ended; it is killed
// when ctx ends. The error is an *exec.ExitError where the command itself
// failed.
func (p place) run(ctx context.Context, c Command) error {
	if len(c.Args) == 0 {
		return errors.New("no command to run")
	}
	var cmd *exec.Cmd
	if err := p.within(func(attr *syscall.SysProcAttr) error {
		cmd = p.command(c, attr)
		return cmd.Start()
	}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		return cmp.Or(ctx.Err(), err)
	}
	return nil
}
