// Package datapath is the contract of a data plane: something that makes a
// node's kernel or switch do what a plan says.
//
// A data plane knows neither plug-ins nor the registry. Package conformance
// below this one holds each data plane, with real packets, against the
// interpreter in package plan.
package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weftnet/weft/plan"
)

// ErrNotSupported is wrapped by the error of Apply when the plan asks for what
// the data plane, or this kernel, cannot do. Nothing is changed then.
var ErrNotSupported = errors.New("not supported by the data plane")

// ErrMissing is wrapped by the error of Apply and Repair when the interface of
// an endpoint is not there. All else was done, and the next call tries again.
var ErrMissing = errors.New("the endpoint's interface is missing")

// DataPlane makes a node do what a plan says. It works in the network
// namespace it was made in. Its methods must not be called concurrently.
//
// Everything it puts into the kernel is named or stamped as Weft's. What is
// not so stamped it never touches; what is, and is no longer wanted, it
// removes. It makes no pod interfaces: an endpoint's interface is there when
// a plan names it, or the endpoint is left out and reported as Missing.
type DataPlane interface {
	// Name is what a ClusterConfig calls it.
	Name() string
	// Capabilities says what it can do here.
	Capabilities() Capabilities
	// Apply makes the node do what p says. The first call reads what is
	// there and changes only what differs, so that no packet is lost when an
	// agent starts again: a new instance with an unchanged plan writes
	// nothing. Later calls touch only what changed since the last. After an
	// error the next call reads everything again. It may change settings of an
	// endpoint's interface (forwarding; who checks its sources).
	//
	// Policies are asked about the first packet of a connection; its other
	// packets and the replies pass until a plan forbids what the connection
	// began with, and then no longer than a second. An endpoint that comes is
	// under its policies before the first packet can reach or leave it.
	Apply(ctx context.Context, p *plan.Plan) error
	// Repair compares the node with the plan applied last, puts right what
	// others changed, and says what that was, a line each.
	Repair(ctx context.Context) ([]string, error)
	// Remove takes away all that is Weft's, except pods' interfaces.
	Remove(ctx context.Context) error
	// Close releases what the instance itself holds, such as sockets. What it
	// put into the kernel stays.
	Close() error
}

// Capabilities says which parts of a plan a data plane can do.
type Capabilities struct {
	IPv6 bool
	// Tunnels: routes of the way "tunnel".
	Tunnels bool
	// OverlappingNetworks: more than one network whose addresses overlap.
	OverlappingNetworks bool
	// Tags travel in the tunnel's network identifier.
	Tags bool
	// Verdicts, Services: the tables of those names, Verdicts with Tags.
	Verdicts, Services bool
	// SCTP: verdicts can tell SCTP's ports apart, connection by connection.
	// Where they cannot, Enforceable makes of a plan what can be done.
	SCTP bool
	// EgressActions that are done; Direct always is.
	EgressActions []plan.EgressAction
	// Bandwidth: Endpoint.IngressRate and EgressRate.
	Bandwidth bool
	// AntiSpoof: Endpoint.AntiSpoof.
	AntiSpoof bool
}

// Observer is a data plane that tells what policies denied. Its methods may be
// called at any time, from any goroutine.
type Observer interface {
	// Denied returns how many packets each verdict has denied since the kernel
	// got it. Numbers grow until a verdict leaves the kernel; what began to
	// count anew, as after Repair, begins at 0 again.
	Denied() (map[plan.VerdictKey]uint64, error)
	// Follow calls f for packets that policies deny, as they are denied, until
	// ctx ends; it then returns nil. Where there are more than can be told,
	// some are left out; Denied counts them all.
	Follow(ctx context.Context, f func(Drop)) error
}

// Drop is a packet that a policy denied.
type Drop struct {
	Time time.Time
	// Direction is Outgoing if the egress policy of the endpoint at Interface,
	// which sent it, denied it; Incoming if it was the ingress policy of the
	// endpoint at Interface, which was to get it.
	Direction plan.Direction
	Interface string
	Network   string
	// Source and Destination are the addresses in the packet when it was
	// denied, behind the translation of Services.
	Source, Destination netip.Addr
	Protocol            plan.Protocol
	// SourcePort and Port are 0 for protocols without ports.
	SourcePort, Port uint16
}

// InterfacePrefix begins the name of every interface that Weft makes on a
// node, those of pods included.
const InterfacePrefix = "weft"

// OwnsInterface reports whether a node's interface is Weft's, by its name.
func OwnsInterface(name string) bool { return strings.HasPrefix(name, InterfacePrefix) }

// MissingError says which endpoint's interface is missing. It is an ErrMissing.
type MissingError struct {
	// Interface is the endpoint's key, Name its name for people.
	Interface, Name string
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("endpoint %s (%s): %v", e.Interface, e.Name, ErrMissing)
}

// Unwrap returns ErrMissing.
func (e *MissingError) Unwrap() error { return ErrMissing }

// Concerning returns what of an error of Apply matters to the endpoints with
// the given interfaces: all of it, but that interfaces of others are missing.
func Concerning(err error, interfaces ...string) error {
	switch e := err.(type) {
	case *MissingError:
		if !slices.Contains(interfaces, e.Interface) {
			return nil
		}
	case interface{ Unwrap() []error }:
		var left []error
		for _, part := range e.Unwrap() {
			left = append(left, Concerning(part, interfaces...))
		}
		return errors.Join(left...)
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil && Concerning(inner, interfaces...) == nil {
			return nil
		}
	}
	return err
}
