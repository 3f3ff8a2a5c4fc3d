package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	kubetraffic "github.com/weftnet/weft/test/kubernetes/traffic"
)

// The load that goes on while something breaks. Other than the load of load.go it is not what is
// timed, and waits in many places at once: so it is of goroutines, and of Go's own sockets.

// backendArgument makes this program a backend: it answers each request with its name.
const backendArgument = "backend"

// faultPort is where backends answer, TCP and UDP.
const faultPort = 7010

// runBackend is the program of a backend with a name.
func runBackend(name string) error {
	return kubetraffic.Server{Name: name, Port: faultPort}.Run(context.Background())
}

const (
	// askHeldEvery is how often something is asked over a connection that stays open, and over
	// a socket for datagrams.
	askHeldEvery = 100 * time.Millisecond
	// openedPatience is how long a new connection may take until it has its answer.
	openedPatience = 3 * time.Second
	// lateAfter is how long the answer takes of what is counted as late. TCP repeats its first
	// packet after a second.
	lateAfter = 500 * time.Millisecond
	// lostAfter is how long an answer by UDP is waited for.
	lostAfter = time.Second
	// hangsAfter is since when a connection that stays open has waited when the load ends, if it
	// counts as one that hangs.
	hangsAfter = time.Second
)

// loading is what load one client makes.
type loading struct {
	// Fronts are where the Service is asked, in turns.
	Fronts []netip.AddrPort `json:",omitempty"`
	// Opened is how many connections a second are opened for one request each, and Fresh how many
	// sockets for one datagram.
	Opened, Fresh int `json:",omitzero"`
	// Held is how many connections stay open, and Kept how many sockets for datagrams.
	Held, Kept int `json:",omitzero"`
	// Names are backends: all that are to be met, or those whose connections are to be ended.
	Names []string `json:",omitempty"`
}

// way is how something is asked.
type way string

const (
	opened way = "opened" // over a connection of its own
	held   way = "held"   // over one that stays open
	kept   way = "kept"   // by a socket for datagrams that stays
	fresh  way = "fresh"  // by one of its own
)

// fate is what became of something that was not answered well.
type fate string

const (
	refused  fate = "refused" // told that there is nobody, or no way
	broken   fate = "reset"   // ended by the other side, or in its name
	timedOut fate = "timed out"
	late     fate = "late"  // answered, after long
	hangs    fate = "hangs" // it waited for an answer still, when all ended
)

// failure is something that was not answered well. The times are of the clock of monotonic.
type failure struct {
	Way          way
	Fate         fate
	Begun, Ended time.Duration
	// By is the backend, where it is known.
	By string `json:",omitzero"`
}

// loaded is what became of load.
type loaded struct {
	// Asked is how often something was asked each way; of what is held, how many connections were
	// made.
	Asked    map[way]int
	Failures []failure
	// Waits is the longest time that an answer over a held connection took, by its backend.
	Waits map[string]time.Duration
	// Last is when the last connection was opened that came to a backend.
	Last map[string]time.Duration
}

// faultLoad is load under way.
type faultLoad struct {
	loading
	ctx   context.Context
	end   context.CancelFunc
	tasks sync.WaitGroup
	first sync.WaitGroup // what is held at first

	mu    sync.Mutex
	leave []string
	loaded
}

// theLoad is the worker's.
var theLoad *faultLoad

// clock is the time of monotonic, which cannot fail on Linux.
func clock() time.Duration {
	t, err := monotonic()
	if err != nil {
		panic(err)
	}
	return t
}

// beginLoad begins load, and returns once all is connected that stays.
func beginLoad(what loading) error {
	if theLoad != nil {
		return errors.New("there is load already")
	}
	l := &faultLoad{loading: what, loaded: loaded{Asked: make(map[way]int), Waits: make(map[string]time.Duration), Last: make(map[string]time.Duration)}}
	l.ctx, l.end = context.WithCancel(context.Background())
	for i := range what.Held {
		l.first.Add(1)
		l.tasks.Go(func() { l.hold(l.front(i)) })
	}
	connected := make(chan struct{})
	go func() { l.first.Wait(); close(connected) }()
	select {
	case <-connected:
	case <-time.After(stuck):
		l.end()
		return fmt.Errorf("not all %d connections were made in %v", what.Held, stuck)
	}
	for i := range what.Kept {
		l.tasks.Go(func() { l.keep(l.front(i)) })
	}
	l.tasks.Go(func() { l.pace(what.Opened, l.open) })
	l.tasks.Go(func() { l.pace(what.Fresh, l.send) })
	theLoad = l
	return nil
}

// endLoad ends load, and says what became of it.
func endLoad() (*loaded, error) {
	l := theLoad
	if l == nil {
		return nil, errors.New("there is no load")
	}
	theLoad = nil
	l.end()
	l.tasks.Wait()
	return &l.loaded, nil
}

// partLoad has held connections to some backends ended and others made, and sockets for datagrams
// that came to them.
func partLoad(names []string) error {
	if theLoad == nil {
		return errors.New("there is no load")
	}
	theLoad.mu.Lock()
	defer theLoad.mu.Unlock()
	theLoad.leave = names
	return nil
}

func (l *faultLoad) front(i int) netip.AddrPort { return l.Fronts[i%len(l.Fronts)] }

// leaves reports whether a backend is to be parted with.
func (l *faultLoad) leaves(by string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.leave, by)
}

func (l *faultLoad) count(w way) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Asked[w]++
}

func (l *faultLoad) failed(w way, f fate, begun time.Duration, by string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Failures = append(l.Failures, failure{w, f, begun, clock(), by})
}

// pace does something so many times a second. What comes late is done at once, so that the rate
// holds.
func (l *faultLoad) pace(rate int, do func(to netip.AddrPort)) {
	if rate == 0 {
		return
	}
	every := time.Second / time.Duration(rate)
	next := time.Now()
	for i := 0; l.pause(time.Until(next)); i++ {
		next = next.Add(every)
		l.tasks.Go(func() { do(l.front(i)) })
	}
}

// pause waits, and reports whether the load goes on.
func (l *faultLoad) pause(d time.Duration) bool {
	if d > 0 {
		select {
		case <-l.ctx.Done():
		case <-time.After(d):
		}
	}
	return l.ctx.Err() == nil
}

// fateOf is what an error says of a connection.
func fateOf(err error) fate {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return timedOut
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return refused
	}
	return broken
}

// exchange asks over a connection of TCP, and says which backend answers.
func exchange(c net.Conn, in *bufio.Reader) (by string, err error) {
	if _, err := fmt.Fprintln(c, 1); err != nil {
		return "", err
	}
	line, err := in.ReadString('\n')
	if err != nil {
		return "", err
	}
	_, by = readAnswer(line)
	return by, nil
}

// readAnswer reads what traffic.Answer writes: a number, an address and a name.
func readAnswer(line string) (number int, by string) {
	words := strings.Fields(line)
	if len(words) != 3 {
		return 0, ""
	}
	number, _ = strconv.Atoi(words[0])
	return number, words[2]
}

// connect opens a connection and asks once. Where it fails, it is closed.
func connect(to netip.AddrPort) (c *net.TCPConn, in *bufio.Reader, by string, err error) {
	d := net.Dialer{Deadline: time.Now().Add(openedPatience)}
	conn, err := d.Dial("tcp", to.String())
	if err != nil {
		return nil, nil, "", err
	}
	c = conn.(*net.TCPConn)
	c.SetDeadline(d.Deadline)
	in = bufio.NewReader(c)
	if by, err = exchange(c, in); err != nil {
		c.Close()
		return nil, nil, "", err
	}
	return c, in, by, nil
}

// newConnection opens a connection that counts as one.
func (l *faultLoad) newConnection(to netip.AddrPort) (c *net.TCPConn, in *bufio.Reader, by string, err error) {
	begun := clock()
	l.count(opened)
	if c, in, by, err = connect(to); err != nil {
		l.failed(opened, fateOf(err), begun, "")
		return nil, nil, "", err
	}
	if clock()-begun > lateAfter {
		l.failed(opened, late, begun, by)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Last[by] = max(l.Last[by], begun)
	return c, in, by, nil
}

// open opens a connection, asks, and closes it.
func (l *faultLoad) open(to netip.AddrPort) {
	c, _, _, err := l.newConnection(to)
	if err != nil {
		return
	}
	c.SetLinger(0) // neither side keeps a port waiting (TIME_WAIT)
	c.Close()
}

// hold keeps a connection, and makes another where it breaks.
func (l *faultLoad) hold(to netip.AddrPort) {
	connected := sync.OnceFunc(l.first.Done)
	for more := true; more; more = l.pause(askHeldEvery) {
		c, in, by, err := l.newConnection(to)
		if err != nil {
			continue
		}
		connected()
		l.count(held)
		l.converse(c, in, by)
		c.Close()
	}
	connected()
}

// converse asks over a connection until it breaks, is to be left, or all ends.
func (l *faultLoad) converse(c *net.TCPConn, in *bufio.Reader, by string) {
	c.SetDeadline(time.Time{})
	defer context.AfterFunc(l.ctx, func() { c.SetDeadline(time.Unix(1, 0)) })()
	for l.pause(askHeldEvery) {
		if l.leaves(by) {
			return
		}
		begun := clock()
		_, err := exchange(c, in)
		took := clock() - begun
		switch {
		case err == nil:
			l.mu.Lock()
			l.Waits[by] = max(l.Waits[by], took)
			l.mu.Unlock()
			continue
		case l.ctx.Err() == nil:
			l.failed(held, fateOf(err), begun, by)
		case took > hangsAfter:
			l.failed(held, hangs, begun, by)
		}
		return
	}
}

// keep asks by one socket for datagrams again and again.
func (l *faultLoad) keep(to netip.AddrPort) {
	for more := true; more; more = l.pause(askHeldEvery) {
		c, err := net.Dial("udp", to.String())
		if err != nil {
			l.failed(kept, refused, clock(), "")
			continue
		}
		by := ""
		for number := 1; !l.leaves(by) && l.pause(askHeldEvery); number++ {
			if answered := l.datagram(c, kept, number, by); answered != "" {
				by = answered
			}
		}
		c.Close()
	}
}

// send asks by a socket for datagrams of its own.
func (l *faultLoad) send(to netip.AddrPort) {
	c, err := net.Dial("udp", to.String())
	if err != nil {
		l.failed(fresh, refused, clock(), "")
		return
	}
	defer c.Close()
	l.datagram(c, fresh, 1, "")
}

// datagram asks once, and returns who answers.
func (l *faultLoad) datagram(c net.Conn, w way, number int, known string) (by string) {
	begun := clock()
	l.count(w)
	c.SetDeadline(time.Now().Add(lostAfter))
	_, err := fmt.Fprint(c, number)
	b := make([]byte, 256)
	for err == nil {
		var n int
		if n, err = c.Read(b); err != nil {
			break
		}
		// An answer to what was asked before comes late, and was counted as lost.
		if answered, by := readAnswer(string(b[:n])); answered == number {
			return by
		}
	}
	l.failed(w, fateOf(err), begun, known)
	return ""
}

// meet waits until all fronts lead to all of some backends, and to no other.
func meet(what loading, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for _, front := range what.Fronts {
		met := make(map[string]bool)
		for len(met) < len(what.Names) {
			c, _, by, err := connect(front)
			if err == nil {
				c.SetLinger(0)
				c.Close()
				if !slices.Contains(what.Names, by) {
					err = fmt.Errorf("%s leads to %s", front, by)
				}
			}
			if met[by] = true; err == nil {
				continue
			}
			clear(met)
			if time.Now().After(deadline) {
				return fmt.Errorf("backends %v were not met in %v: %w", what.Names, patience, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}
