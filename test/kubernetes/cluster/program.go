package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/weftnet/weft/internal/process"
)

// program is one of a node's programs, which is started again when it ends, as
// systemd does with Restart=always and RestartSec=1.
type program struct {
	name  string
	start func() (*exec.Cmd, error)
	say   func(message string, args ...any)

	mu      sync.Mutex
	cmd     *exec.Cmd     // the process, nil between two
	stopped chan struct{} // closed to have it end for good
	ended   chan struct{} // closed when it has
}

// restartDelay is how long a program that ended stays away.
const restartDelay = time.Second

// patience is how long a program has to end after SIGTERM.
const patience = 5 * time.Second

// run starts the program and keeps it running, until stop.
func (p *program) run() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped != nil {
		return errors.New("it runs already")
	}
	cmd, err := p.start()
	if err != nil {
		return err
	}
	p.cmd, p.stopped, p.ended = cmd, make(chan struct{}), make(chan struct{})
	go p.keep(cmd, p.stopped, p.ended)
	return nil
}

func (p *program) keep(cmd *exec.Cmd, stopped, ended chan struct{}) {
	defer close(ended)
	for {
		if cmd != nil {
			cmd.Wait()
			p.say("program ended", "program", p.name, "how", cmd.ProcessState.String())
		}
		p.mu.Lock()
		p.cmd = nil
		p.mu.Unlock()
		select {
		case <-stopped:
			return
		case <-time.After(restartDelay):
		}
		p.mu.Lock()
		select {
		case <-stopped:
			p.mu.Unlock()
			return
		default:
		}
		var err error
		if cmd, err = p.start(); err != nil {
			p.say("program does not start", "program", p.name, "err", err)
			cmd = nil
		}
		p.cmd = cmd
		p.mu.Unlock()
	}
}

// stop ends the program and keeps it from being started again: by SIGTERM, and
// by SIGKILL if that takes longer than patience; 0 is SIGKILL at once.
func (p *program) stop(patience time.Duration) {
	p.mu.Lock()
	stopped, ended := p.stopped, p.ended
	if stopped == nil {
		p.mu.Unlock()
		return
	}
	p.stopped = nil
	close(stopped)
	if p.cmd != nil && patience > 0 {
		p.cmd.Process.Signal(syscall.SIGTERM)
		p.cmd.Process.Signal(syscall.SIGCONT) // it may have been paused
	}
	p.mu.Unlock()
	select {
	case <-ended:
		return
	case <-time.After(patience):
	}
	p.signal(syscall.SIGKILL)
	<-ended
}

// signal sends a signal to the program's process.
func (p *program) signal(s syscall.Signal) error {
	return p.with(func(p *os.Process) error { return p.Signal(s) })
}

// pause stops the program's process until it gets SIGCONT.
func (p *program) pause() error { return p.with(process.Pause) }

// with does something to the program's process.
func (p *program) with(f func(*os.Process) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return errors.New("it does not run")
	}
	return f(p.cmd.Process)
}

// pid is the number of the program's process in the supervisor's namespace, 0
// when there is none.
func (p *program) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// startAt starts a program at a place, with its output added to a log.
func startAt(at place, log string, c Command) (*exec.Cmd, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c.Stdout, c.Stderr = f, f
	var cmd *exec.Cmd
	err = at.within(func(attr *syscall.SysProcAttr) error {
		attr.Setsid = true
		cmd = at.command(c, attr)
		return cmd.Start()
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(c.Args[0]), err)
	}
	return cmd, nil
}
