package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultSocket is where a node's keeper is asked.
const DefaultSocket = "/run/weft/dns/keeper/keeper.sock"

// askTime is how long a keeper has to answer.
const askTime = 5 * time.Second

// State is how a node's name server is doing.
type State struct {
	// Serving says that queries to all Addresses are answered, of which there is one at least.
	Serving bool `json:"serving"`
	// Idle says that there is no address at which to serve, and that this is as it should be.
	Idle bool `json:"idle,omitempty"`
	// StandsBy says that another keeper serves in the place of this one.
	StandsBy bool `json:"standsBy,omitempty"`
	// Addresses are where there are sockets.
	Addresses []netip.AddrPort `json:"addresses,omitempty"`
	// Problem is what keeps queries from being answered as they should; empty if nothing does.
	Problem string `json:"problem,omitempty"`
}

// Ask asks the keeper at a socket. An error means that there is none that answers.
func Ask(ctx context.Context, socket string) (State, error) {
	s, _, err := ask(ctx, socket)
	if err == nil && s.StandsBy {
		// It had the question before it handed over: now the other one is there.
		s, _, err = ask(ctx, socket)
	}
	return s, err
}

// Check asks the keeper at a socket, and returns an error unless it serves, or has nothing to. It is also one if the
// keeper is in another container, as during an upgrade, when that one still serves: then this
// one does not yet.
func Check(ctx context.Context, socket string) error {
	s, pid, err := ask(ctx, socket)
	switch {
	case err != nil:
		return err
	case pid == 0:
		return errors.New("the name server of another container serves still, and this one does not yet")
	case !s.Serving && !s.Idle:
		return fmt.Errorf("the name server does not serve: %s", s.Problem)
	}
	return nil
}

// Alive asks the keeper that has the socket for itself (Options.Own), and returns an error unless
// that does what is due, whatever that is: it may serve, wait for another, or stand by.
func Alive(ctx context.Context, own string) error {
	_, _, err := ask(ctx, own)
	return err
}

// ask returns the pid of the keeper as well, as it is here; 0 if it has none here.
func ask(ctx context.Context, socket string) (s State, pid int32, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	c, err := dial(ctx, socket)
	if err != nil {
		return State{}, 0, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	them, err := credentials(c)
	if err != nil {
		return State{}, 0, err
	}
	if err := send(c, message{Ask: true}); err != nil {
		return State{}, 0, fmt.Errorf("ask the name server's keeper at %s: %w", socket, err)
	}
	m, files, err := receive(c)
	closeAll(files)
	if err == nil && m.State == nil {
		err = errors.New("it does not say how it is")
	}
	if err != nil {
		return State{}, 0, fmt.Errorf("ask the name server's keeper at %s: %w", socket, err)
	}
	return *m.State, them.Pid, nil
}

func dial(ctx context.Context, socket string) (*net.UnixConn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unixpacket", socket)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("no keeper of a name server is at %s: is weft-dns running? %w", socket, err)
	case err != nil:
		return nil, fmt.Errorf("ask the name server's keeper: %w", err)
	}
	return c.(*net.UnixConn), nil
}

// credentials says who the other side is.
func credentials(c *net.UnixConn) (them *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	if other := raw.Control(func(fd uintptr) {
		them, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); other != nil {
		return nil, other
	}
	return them, os.NewSyscallError("getsockopt", err)
}
