package keeper

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// server is a process that serves.
type server struct {
	process *os.Process
	line    *net.UnixConn
	started time.Time
	// report is what it said last; nil if it said nothing yet.
	report *Report
	// handed says that it has the sockets.
	handed bool
	// asked is the number of the last question, and silent how many in a row had no answer.
	asked  uint64
	silent int
	// gone is closed once it has ended, and how says how.
	gone chan struct{}
	how  string
}

// start starts a server.
func (k *Keeper) start(ctx context.Context) {
	if k.memory == nil {
		var err error
		if k.memory, err = newMemory(); err != nil {
			k.o.Log.Warn("a server that is killed loses the queries that it has read", "error", err)
		}
	}
	// The one before has ended, to its last thread, as it was waited for: it has the memory no more.
	s, err := launch(k.o.Server, k.memory)
	if err != nil {
		k.down(fmt.Sprintf("the server cannot be started: %v", err))
		return
	}
	k.o.Log.Info("started the server", "pid", s.process.Pid)
	k.server = s
	go func() {
		for {
			m, files, err := receive(s.line)
			closeAll(files)
			if err != nil || !k.do(ctx, func() { k.reported(s, m.Report) }) {
				return
			}
		}
	}()
	go func() {
		<-s.gone
		k.do(ctx, func() { k.lost(s) })
	}()
}

// hand gives the server all sockets. While another keeper's server reads them, one that does not
// know yet what names stand for gets none: it would have no answer.
func (k *Keeper) hand() {
	s := k.server
	if s == nil || s.handed || k.role == taking && k.before != nil && (s.report == nil || s.report.Addresses == nil) {
		return
	}
	s.handed = true
	if at, files := k.all(); len(at) > 0 {
		s.say(message{Sockets: &at}, files...)
	}
}

// launch starts a process that has its end of the conversation as file 3, and memory, if there is
// any, as file 4, and ends with this one.
func launch(argv []string, memory *os.File) (*server, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "server"), os.NewFile(uintptr(fds[1]), "keeper")
	defer ours.Close()
	defer theirs.Close()
	line, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	argv = append(argv[:len(argv):len(argv)], "--keeper-file=3")
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr, theirs}
	if memory != nil {
		files = append(files, memory)
	}
	process, err := os.StartProcess(argv[0], argv, &os.ProcAttr{Files: files,
		Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}})
	if err != nil {
		line.Close()
		return nil, err
	}
	s := &server{process: process, line: line.(*net.UnixConn), started: time.Now(), gone: make(chan struct{})}
	go func() {
		state, err := process.Wait()
		if s.how = fmt.Sprint(err); err == nil {
			s.how = state.String()
		}
		s.line.Close()
		close(s.gone)
	}()
	return s, nil
}

// say tells the server something. One that does not hear is found by the questions that it
// leaves unanswered.
func (s *server) say(m message, files ...int) { send(s.line, m, files...) }

// stop asks the server to end, and ends it if it does not within the grace.
func (s *server) stop() {
	s.process.Signal(syscall.SIGTERM)
	go func() {
		select {
		case <-s.gone:
		case <-time.After(grace):
			s.process.Kill()
		}
	}()
}

// wait waits until the server has ended.
func (s *server) wait() { <-s.gone }

// reported is what a server said.
func (k *Keeper) reported(s *server, r *Report) {
	if k.server != s || r == nil {
		return
	}
	s.report = r
	if r.Answer == s.asked {
		s.silent = 0
	}
	if r.Addresses != nil && (k.role == taking || k.role == owning) {
		k.wanted = []netip.Addr{}
		for _, a := range r.Addresses {
			if a = a.Unmap(); !slices.Contains(k.wanted, a) && len(k.wanted) < maxAddresses {
				k.wanted = append(k.wanted, a)
			}
		}
	}
}

// lost is that a server has ended.
func (k *Keeper) lost(s *server) {
	if k.server != s {
		return
	}
	k.server = nil
	if k.role == standingBy {
		k.crashes, k.again = 0, time.Time{}
		return
	}
	if time.Since(s.started) > steady {
		k.crashes = 0
	}
	k.down("the server ended: " + s.how)
}

// down says why there is no server, and when the next is due.
func (k *Keeper) down(why string) {
	pause := time.Duration(0)
	if k.crashes > 0 {
		pause = min(firstPause<<min(k.crashes-1, 10), lastPause)
	}
	k.crashes++
	k.again, k.ended = time.Now().Add(pause), why
	k.o.Log.Warn(why, "again in", pause)
}

// question asks the server whether it works, and kills one that has not answered for too long.
func (k *Keeper) question() {
	s := k.server
	if s == nil || k.role == standingBy {
		return
	}
	if s.asked > 0 && (s.report == nil || s.report.Answer != s.asked) {
		s.silent++
	}
	if s.silent >= k.o.Patience {
		k.o.Log.Warn("the server does not answer, and is killed", "pid", s.process.Pid, "questions", s.silent)
		s.process.Kill()
		return
	}
	s.asked++
	s.say(message{Question: s.asked})
}
