package controlplane

import (
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
)

// starter starts processes from one thread, in a network namespace. The
// processes get SIGKILL when that thread ends, so that none outlives a program
// that was killed; the thread lasts until stop, or until the program's end.
type starter chan func()

func newStarter(path string) (starter, error) {
	s, ready := make(starter), make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with this
		if path != "" {
			if err := netns.Enter(path, unix.CLONE_NEWNET); err != nil {
				ready <- err
				return
			}
		}
		ready <- nil
		for f := range s {
			f()
		}
	}()
	return s, <-ready
}

func (s starter) stop() { close(s) }

// child is a program that was started.
type child struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has ended
	// told says that it was told to end.
	told atomic.Bool
}

// start starts a program whose output is added to the file at log.
func (s starter) start(log, program string, args ...string) (*child, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd := exec.Command(program, args...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = f, f
	// A process group of its own, so that what a terminal sends does not reach it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	s <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	p := &child{cmd: cmd, log: log, done: make(chan struct{})}
	go func() {
		cmd.Wait() // how it ended is in its log
		close(p.done)
	}()
	return p, nil
}

func (p *child) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// stop ends the process and returns when it has gone: by SIGTERM, and by
// SIGKILL if it takes longer than patience.
func (p *child) stop(patience time.Duration) {
	if !p.running() {
		return
	}
	p.told.Store(true)
	if patience > 0 {
		p.cmd.Process.Signal(syscall.SIGTERM)
		p.cmd.Process.Signal(syscall.SIGCONT) // it may have been paused
		select {
		case <-p.done:
			return
		case <-time.After(patience):
		}
	}
	p.cmd.Process.Kill()
	<-p.done
}
