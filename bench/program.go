package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// program is one that a worker runs. It ends with the worker, however that ends.
type program struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// start starts it. The worker does that from the thread that lasts as long as itself, as the
// kernel ends a child when the thread that made it ends.
func (p *program) start(log, name string, args ...string) (pid int, err error) {
	p.end()
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	p.cmd, p.ended = cmd, make(chan struct{})
	go func() {
		cmd.Wait() // how it ended is in its log
		close(p.ended)
	}()
	return cmd.Process.Pid, nil
}

// end ends it, if it runs: by SIGTERM, and by SIGKILL where that takes long.
func (p *program) end() {
	if p.cmd == nil {
		return
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(stuck):
		p.cmd.Process.Kill()
		<-p.ended
	}
	p.cmd = nil
}

// start has the worker run a program, whose output goes to a file, in the place of one that it
// runs.
func (w *worker) start(log, name string, args ...string) (pid int, err error) {
	answer, err := w.ask(request{Do: doRun, Log: log, Program: name, Args: args})
	if err != nil {
		return 0, fmt.Errorf("run %s: %w", name, err)
	}
	return answer.PID, nil
}

// end has the worker end the program that it runs.
func (w *worker) end() error {
	_, err := w.ask(request{Do: doEnd})
	return err
}
