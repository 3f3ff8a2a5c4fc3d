// Package cni is the agent's side of the Container Network Interface: it
// gives pods their interfaces when the container runtime asks.
//
// The runtime starts weft-cni (cmd/weft-cni), which hands the request to the
// agent over a Unix socket in the words of package protocol. A Server answers
// it. An ADD is four steps, each of which the one before survives: an address
// is reserved in the journal (package ipam), the interface is made (package
// podlink), the data plane takes the pod up (Node.Publish) and brings the
// interface up once its rules hold, and the journal
// says that the attachment is ready. An agent that is killed between them
// leaves a record from which the next goes on: weft-cni sends the same
// request again, or nobody does and the attachment is rolled back. A DEL goes
// the other way, and frees the address only when the interface is gone.
//
// Start reading at Server; what requests may say is in decode, what happens
// then in the file of commands. Conflist and Install are what a runtime needs
// to find weft-cni.
package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/cni/protocol"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
)

// Node is what a Server needs of the agent. Its methods are called
// concurrently.
type Node interface {
	// Ready says why pods cannot be networked, in a sentence for people; nil
	// when they can. It wraps ErrChanging where the ones that are there are, and new
	// ones will be in a moment.
	Ready() error
	// Pools are the prefixes that pods get addresses from, of each network the
	// primary one first.
	Pools() []plan.Pool
	// Has reports whether the node takes what is sent to an address for its own, so that
	// no pod that had it would be reached.
	Has(netip.Addr) bool
	// Networks are the names of the networks that pods can be in, in order.
	Networks() []string
	// Prefixes are what has a way in a network, on this node and elsewhere, but
	// for the rest of the world.
	Prefixes(network string) []netip.Prefix
	// Admit says what is wrong with the settings of a pod, where its object is
	// known; nil where it is not, or nothing is. uid is the runtime's, and may
	// be empty.
	Admit(namespace, name, uid string) error
	// MTU is what pods' interfaces get, in bytes; 0 leaves it to the kernel.
	MTU() int
	// Publish returns when the data plane holds what Server.Endpoints says
	// now, as far as it concerns the given interfaces, or why it does not. What
	// concerns single interfaces, or single entries of the plan, is of no account
	// to others, nor where no interface is given. The error wraps ErrChanging where
	// the node comes to have another network instead.
	Publish(ctx context.Context, interfaces ...string) error
}

// ErrChanging says that the node is about to have another network, which may give
// other addresses: an ADD that meets that ends, and is to be sent again.
var ErrChanging = errors.New("the node's network is being changed")

// Config is what a Server is made of. Journal and Node are required.
type Config struct {
	Journal *ipam.Journal
	Node    Node
	// Taken, if set, says what a port of the node is for that can lead to no pod;
	// "" where it can.
	Taken func(ipam.Port) string
	// Log is slog.Default() by default.
	Log *slog.Logger
	// Observe, if set, is called after each request: result is "ok" or the
	// number of the error code.
	Observe func(command, result string, took time.Duration)
	// Misfit, if set, is told which pods have another MTU than the node's, or an
	// interface that could not be put right, and why; "" when none has.
	Misfit func(string)
	// MaxInFlight is how many requests are worked on at a time; those beyond
	// are refused, to be sent again. 256 by default.
	MaxInFlight int
	// Timeout bounds the work on one request. 30 s by default, which is less
	// than weft-cni waits.
	Timeout time.Duration
	// RetryWindow is how long an ADD that was interrupted waits to be sent
	// again before it is rolled back. By default it is twice as long as
	// weft-cni tries.
	RetryWindow time.Duration
}

// Server answers CNI requests.
type Server struct {
	Config
	locks    locks
	slots    chan struct{}
	plumbing chan struct{}
	recovery sync.Once
	// changed has the data plane follow what nobody waits for.
	changed chan struct{}
	// unfitted has the pods' interfaces be as they ought to be.
	unfitted chan struct{}
	// misfits says that one could not.
	misfits atomic.Bool

	mu sync.Mutex
	// links holds the index of the host end of each attachment whose
	// interface is there.
	links map[ipam.Key]int
	// collected are the attachments that GC took away, until Collected is asked.
	collected []ipam.Attachment
	// leaving are the attachments that went and that the data plane may not have
	// let go of, each with the number of the removals up to it. None of them is in
	// links.
	leaving  map[ipam.Key]uint64
	removals uint64
}

// NewServer returns a server.
func NewServer(c Config) *Server {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Taken == nil {
		c.Taken = func(ipam.Port) string { return "" }
	}
	if c.Observe == nil {
		c.Observe = func(string, string, time.Duration) {}
	}
	if c.Misfit == nil {
		c.Misfit = func(string) {}
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = 256
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.RetryWindow == 0 {
		c.RetryWindow = 2 * protocol.SendWindow
	}
	return &Server{Config: c, slots: make(chan struct{}, c.MaxInFlight), plumbing: make(chan struct{}, runtime.GOMAXPROCS(0)), changed: make(chan struct{}, 1), unfitted: make(chan struct{}, 1),
		links: map[ipam.Key]int{}, leaving: map[ipam.Key]uint64{}}
}

// Endpoints returns the pods' interfaces that are there, in the
// order of their names.
func (s *Server) Endpoints() []plugin.Endpoint {
	s.Recover()
	s.mu.Lock()
	endpoints := make([]plugin.Endpoint, 0, len(s.links))
	s.mu.Unlock()
	s.Journal.Each(func(a ipam.Attachment) {
		if s.link(a.Key) != 0 {
			endpoints = append(endpoints, endpointOf(a))
		}
	})
	slices.SortFunc(endpoints, func(a, b plugin.Endpoint) int { return strings.Compare(a.Interface, b.Interface) })
	return endpoints
}

func endpointOf(a ipam.Attachment) plugin.Endpoint {
	e := plugin.Endpoint{Interface: a.HostInterface, Network: a.Network, Addresses: a.Addresses, MAC: a.MAC(), Created: a.Created,
		Namespace: a.Namespace, Pod: a.Pod, UID: a.UID, Unidentified: a.Unidentified}
	if a.Ports != nil {
		e.Ports = make([]plugin.Port, 0, len(a.Ports))
		for _, p := range a.Ports {
			e.Ports = append(e.Ports, plugin.Port(p))
		}
	}
	if a.Bandwidth != nil {
		limit := plugin.Bandwidth(*a.Bandwidth)
		e.Bandwidth = &limit
	}
	return e
}

// Serve answers the requests that come in through l until ctx ends, then
// closes l and waits for the work on requests, which it does not let go on.
// It must be called once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.Recover()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	wg.Go(func() { s.follow(ctx) })
	wg.Go(func() { s.watchLinks(ctx) })
	wg.Go(func() { s.sweep(ctx) })
	wg.Go(func() { s.fit(ctx) })

	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("the CNI socket was closed: %w", err)
		case err != nil:
			// Out of file descriptors, as a rule: let requests end.
			s.Log.Warn("cannot accept a CNI request", "error", err)
			if !retry.Sleep(ctx, 100*time.Millisecond) {
				return nil
			}
			continue
		}
		select {
		case s.slots <- struct{}{}:
			wg.Go(func() {
				defer func() { <-s.slots }()
				s.converse(ctx, conn)
			})
		default:
			s.refuse(conn)
		}
	}
}

// talkTimeout bounds how long a client may take to say its request or to hear
// the answer.
const talkTimeout = 5 * time.Second

// refuse tells a client to come again, without reading its request and
// without waiting: the kernel takes so short an answer.
func (s *Server) refuse(conn net.Conn) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
	refusal := protocol.Errorf(protocol.TryAgainLater, "the agent works on %d requests already", s.MaxInFlight)
	protocol.Write(conn, &protocol.Response{Version: protocol.Version, Error: refusal})
	s.Observe("none", strconv.Itoa(int(refusal.Code)), 0)
}

// converse reads one request, has it answered, and sends the answer.
func (s *Server) converse(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	began := time.Now()
	conn.SetDeadline(began.Add(talkTimeout))
	var req protocol.Request
	resp := protocol.Response{Version: protocol.Version}
	hurry := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })
	err := protocol.Read(conn, &req)
	hurry()
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || ctx.Err() != nil {
			return // The client is gone, or is to ask the next agent.
		}
		resp.Error = protocol.Errorf(protocol.ProtocolFailure, "read the request: %v", err)
	} else if req.Version != protocol.Version {
		resp.Error = protocol.Errorf(protocol.ProtocolFailure, "weft-cni speaks version %d of the protocol and the agent version %d: install the weft-cni that came with the agent", req.Version, protocol.Version)
	} else {
		resp.Stdout, resp.Error = s.answer(ctx, conn, &req)
	}
	outcome, took := "ok", time.Since(began)
	if resp.Error != nil {
		outcome = strconv.Itoa(int(resp.Error.Code))
		s.Log.Warn("CNI request failed", "command", clip(req.Command), "container", clip(req.ContainerID), "interface", clip(req.IfName),
			"code", resp.Error.Code, "error", resp.Error.Error(), "took", took)
	}
	if _, known := since[req.Command]; !known {
		req.Command = "none"
	}
	s.Observe(req.Command, outcome, took)
	conn.SetDeadline(time.Now().Add(talkTimeout))
	if err := protocol.Write(conn, &resp); err != nil {
		// The client comes again with the same request, or the runtime with DEL.
		s.Log.Warn("the answer to a CNI request was not heard", "command", req.Command, "container", req.ContainerID, "error", err)
	}
}

// errGone is the cause of a context that ended because the client did.
var errGone = errors.New("the runtime gave the request up")

// answer does what a request asks for.
func (s *Server) answer(ctx context.Context, conn net.Conn, req *protocol.Request) (stdout []byte, failure *protocol.Error) {
	defer func() {
		if cause := recover(); cause != nil {
			s.Log.Error("a CNI request met a fault in the agent", "command", req.Command, "fault", cause, "stack", string(debug.Stack()))
			failure = protocol.Errorf(protocol.ProtocolFailure, "the agent has a fault, see its log: %v", cause)
		}
	}()
	c, failure := decode(req)
	if failure != nil {
		return nil, failure
	}
	ctx, cancelTimeout := context.WithTimeoutCause(ctx, s.Timeout, fmt.Errorf("the agent gave up after %v", s.Timeout))
	defer cancelTimeout()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The client says nothing more, so the next that can be read is its end.
	conn.SetDeadline(time.Time{})
	go func() {
		conn.Read(make([]byte, 1))
		cancel(errGone)
	}()
	return s.do(ctx, c, func() bool { return hungUp(conn) })
}

// hungUp reports whether the client is gone, of which ctx may not know yet.
func hungUp(conn net.Conn) bool {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return true
	}
	gone := true
	if err := raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(poll, 0)
		gone = err == nil && n > 0
	}); err != nil {
		return true
	}
	return gone
}

// link returns the index of an attachment's host end; 0 when it is not there.
func (s *Server) link(k ipam.Key) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.links[k]
}

func (s *Server) setLink(k ipam.Key, index int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if index == 0 {
		delete(s.links, k)
		return
	}
	s.links[k] = index
}

// leave takes note that an attachment went, which the data plane is not told yet.
// The caller holds the lock.
func (s *Server) leave(k ipam.Key) {
	s.removals++
	s.leaving[k] = s.removals
}

// replaced takes note that an attachment has another interface of the same name, where it
// had one.
func (s *Server) replaced(k ipam.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.links[k] != 0 {
		delete(s.links, k)
		s.leave(k)
	}
}

// mayKnow reports whether the data plane may still have an interface of an
// attachment that went.
func (s *Server) mayKnow(k ipam.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaving[k] != 0
}

// letGo has the data plane let go of what went so far.
func (s *Server) letGo(ctx context.Context) error {
	s.mu.Lock()
	until := s.removals
	s.mu.Unlock()
	if err := s.Node.Publish(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.leaving, func(_ ipam.Key, n uint64) bool { return n <= until })
	return nil
}

// nudge has the data plane follow without anybody waiting.
func (s *Server) nudge() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// follow has the data plane follow after each nudge.
func (s *Server) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		}
		limited, cancel := context.WithTimeout(ctx, s.Timeout)
		if err := s.letGo(limited); err != nil && ctx.Err() == nil && !errors.Is(err, ErrChanging) {
			// Whoever applies plans tries again by itself.
			s.Log.Warn("the data plane does not know yet that pods are gone", "error", err)
		}
		cancel()
	}
}
