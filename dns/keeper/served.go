package keeper

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
)

// Line is a server's end of the conversation with its keeper.
type Line struct {
	// Memory is what the keeper has for queries that are read and not answered; what is in it when
	// the server ends the next one finds there. It is nil if there is none.
	Memory *os.File

	c  *net.UnixConn
	mu sync.Mutex
	// answer is the number of the last question, which every report repeats.
	answer uint64
}

// Sockets are those of one address, which are the receiver's to close.
type Sockets struct {
	At       netip.AddrPort
	UDP, TCP *os.File
}

// Inherited returns the conversation with the keeper that started this process, which has the
// number of its file. It is to be called before other files are opened.
func Inherited(fd uintptr) (*Line, error) {
	memory := inheritedMemory(fd + 1)
	f := os.NewFile(fd, "keeper")
	if f == nil {
		return nil, fmt.Errorf("there is no file %d", fd)
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("file %d is no conversation with a keeper: %w", fd, err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("file %d is no conversation with a keeper", fd)
	}
	return &Line{Memory: memory, c: u}, nil
}

// Hear waits for what the keeper says: sockets to be read from now on, addresses to be
// read no more, or a question, which the next report answers, and which is to be given once the
// server has seen to it that it still works. An error means that the keeper is gone.
func (l *Line) Hear() (open []Sockets, closed []netip.AddrPort, question uint64, err error) {
	m, files, err := receive(l.c)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("the keeper of this name server is gone: %w", err)
	}
	if m.Sockets != nil {
		for i, at := range *m.Sockets {
			open = append(open, Sockets{at, os.NewFile(uintptr(files[2*i]), "udp"), os.NewFile(uintptr(files[2*i+1]), "tcp")})
		}
	}
	return open, m.Close, m.Question, nil
}

// Answer says that the server still works, as a question asked.
func (l *Line) Answer(question uint64, r Report) error {
	l.mu.Lock()
	l.answer = max(l.answer, question)
	l.mu.Unlock()
	return l.Tell(r)
}

// Tell says how the server is. It may be called by several goroutines.
func (l *Line) Tell(r Report) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Answer = l.answer
	if err := send(l.c, message{Report: &r}); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// Close ends the conversation.
func (l *Line) Close() error { return l.c.Close() }
