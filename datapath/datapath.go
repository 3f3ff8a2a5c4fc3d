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
// the data plane, or this kernel, cannot do. Nothing is changed then. Possible
// and Enforceable make of a plan one that does not ask for it.
var ErrNotSupported = errors.New("not supported by the data plane")

// ErrMissing is wrapped by the error of Apply and Repair, within an
// EndpointError, when the interface of an endpoint is not there. All else was
// done, and the next call tries again.
var ErrMissing = errors.New("the endpoint's interface is missing")

// SwitchTime is for how long at most a switch to another data plane may drop what it
// may drop.
const SwitchTime = time.Second

// ErrNotTaken is wrapped by the error of an Apply that was to take over from other
// data planes and did not: what they have still decides about packets. Nothing passes
// that the plan does not let pass, but what passes is not sure: one of the others has
// to take over in turn, or the same call has to succeed. Until then none of them may be
// removed. An Apply has taken over where its error wraps something else: that is of
// single entries or endpoints, or says what is wrong with the node or the plan.
var ErrNotTaken = errors.New("the data plane has not taken over")

// DataPlane makes a node do what a plan says. It works in the network
// namespace it was made in. Its methods must not be called concurrently.
//
// Everything it puts into the kernel is named or stamped as Weft's. What is
// not so stamped it never touches; what is, and is no longer wanted, it
// removes. It makes no pod interfaces: an endpoint's interface is there when
// a plan names it, or the endpoint is left out and reported as Missing.
//
// # Another data plane
//
// A node changes its data plane while pods run. Each data plane's stamps are its own,
// so that state of two can be on a node; whoever drives them has at most one Applied,
// in these steps:
//
//  1. Prepare, of the one that comes, beside the state of the one that is there. No
//     packet notices. After an error the one that is there goes on, and Remove of the
//     one that comes takes back what there is of it; no packet notices that either.
//  2. Apply, of the one that comes: the switch. Nothing passes at any time that the
//     plan forbids. Connections that are open go on and are handed over with what is
//     known of them, so that none is reset, and none is judged as if it were new.
//     Packets that begin a connection may be dropped until Apply returns, and so may
//     those in tunnels, for SwitchTime at most; packets of open connections between
//     endpoints of the node are not. From here on nobody calls the one that was there,
//     but for Remove and Close.
//  3. Remove, of the one that was there. No packet notices.
//
// A process may be killed anywhere in this, also within a step. What is in the kernel
// then stays: open connections go on, what the plan forbids stays forbidden, and
// between the beginning and the end of a switch no new connections begin. Who starts
// next asks every data plane whether it is Present, and does the steps again, to
// whichever is to be in force, from all others that are there.
//
// # What changes at once
//
// A change of a plan is one step for every packet as far as it is about policies:
// which endpoint has which, what they say, and who has which class and tag. Routes and
// egress rules change after them, one by one; what of them drops from now on does so
// before policies allow more (see Between). So nothing passes, at any time, that
// neither of two plans lets pass, and open connections that both let pass go on as if
// nothing happened.
//
// What is not one step: a packet whose way changes, or who may send it by which way,
// may take the way of one plan by the policies of the other. So may one for which the
// egress rules of another tag come to count, as its endpoint gets that.
// One that begins a connection and is being judged in that very moment may be dropped,
// though both plans allow it. One that is within the node in that very moment, which is microseconds, may
// be let pass by the policies of the one plan and leave with the tag of the other. And
// the first Apply of an instance knows no plan before; it changes policies first, then
// all else.
//
// What is of other nodes is known by its address: where one changes hands there, who has
// it now goes on with the connections of who had it, and with the tag that these began
// with, until they end or nothing is heard of them for long. A plug-in gives addresses
// out again as late as it can.
type DataPlane interface {
	// Name is what a ClusterConfig calls it.
	Name() string
	// Capabilities says what it can do here.
	Capabilities() Capabilities
	// Apply makes the node do what p says. The first call reads what is
	// there and changes only what differs, so that no packet is lost when an
	// agent starts again: a new instance with an unchanged plan writes
	// nothing. Later calls touch only what changed since the last, and try again
	// what the node did not take. After an error of more than single entries, and
	// endpoints whose interface is missing, the next call reads everything again.
	//
	// An endpoint's interface may be down when it comes. Apply brings it up,
	// once all that holds for the endpoint is in place, and never before: so
	// whoever makes interfaces makes them down. It takes down one that leads to
	// no endpoint any more, before the policies go under which that was. A tunnel's
	// device is up only once it is judged what comes out of it. It changes settings of an endpoint's interface that
	// would make the node believe what an endpoint says of the network.
	//
	// What the node refuses to take of a plan keeps nothing else from being done. The
	// error names it, and is the same as long as the reason is; of a single entry it is
	// an EntryError. The next call tries it again. What is not there carries no packets,
	// unless it is in the way of what somebody else has, as a route: whose is there is
	// asked, and stays.
	//
	// The first call after Prepare is the switch.
	//
	// Policies, and egress rules that drop, are asked about the first packet of a
	// connection; its other packets and the replies pass until a plan forbids what the
	// connection began with, and then no longer than a second; whoever has such a TCP or
	// UDP connection is told, though it only waits. An endpoint that comes is
	// under its policies before the first packet can reach or leave it, and gets
	// nothing of the connections of whoever had its addresses before.
	Apply(ctx context.Context, p *plan.Plan) error
	// Repair compares the node with the plan applied last, puts right what
	// others changed, and says what that was, a line each. A data plane that is a
	// Watcher need not read what it has followed, without a gap, since Repair or
	// Apply last read all there is. It reads all where it told of a disturbance
	// since, where it may have overlooked something, while nobody watches, and now
	// and then for no reason, in case it is wrong about that.
	Repair(ctx context.Context) ([]string, error)
	// Present reports whether something with this data plane's stamps is on the node,
	// whoever made it and however little it is. It changes nothing.
	Present(ctx context.Context) (bool, error)
	// Prepare makes ready to take over from other data planes, each of which may have
	// something on the node: it finds out what can be found out before, and puts
	// beside what they have as much of p as no packet notices. The others need not be
	// in use; they are asked what their stamps are, and removed where nothing is known
	// of their kind. See the steps above.
	Prepare(ctx context.Context, p *plan.Plan, from ...DataPlane) error
	// Remove takes away all that has this data plane's stamps, except pods'
	// interfaces. What another has taken over it leaves alone.
	Remove(ctx context.Context) error
	// Close releases what the instance itself holds, such as sockets. What it
	// put into the kernel stays.
	Close() error
}

// Capabilities says which parts of a plan a data plane can do.
type Capabilities struct {
	IPv6 bool
	// NoIPv6 says why there is no IPv6 and what to do about it, where IPv6 is
	// false.
	NoIPv6 string
	// Tunnels: routes of the way "tunnel".
	Tunnels bool
	// Multipath: routes that lead to several peers.
	Multipath bool
	// EndpointsOnlyHere: routes for endpoints only that lead to an endpoint, the node
	// itself or the gateway. Those to peers and to nowhere always are done.
	EndpointsOnlyHere bool
	// OverlappingNetworks: more than one network whose addresses overlap.
	OverlappingNetworks bool
	// Tags travel in the tunnel's network identifier.
	Tags bool
	// Verdicts, Services: the tables of those names, Verdicts with Tags.
	Verdicts, Services bool
	// AnswersHere: frontends that the node itself answers (plan.Service.Here), beside other
	// Services.
	AnswersHere bool
	// SCTP: verdicts can tell SCTP's ports apart, connection by connection.
	// Where they cannot, Enforceable makes of a plan what can be done, as
	// Possible does for all other lack.
	SCTP bool
	// EgressActions that are done; Direct and Discard always are.
	EgressActions []plan.EgressAction
	// Bandwidth: Endpoint.IngressRate and EgressRate.
	Bandwidth bool
	// AntiSpoof: Endpoint.AntiSpoof.
	AntiSpoof bool
}

// Observer is a data plane that tells what policies denied, and what else it
// dropped. Its methods may be
// called at any time, from any goroutine.
type Observer interface {
	// Denied returns how many packets each verdict has denied since the kernel
	// got it. Numbers grow until a verdict leaves the kernel; what began to
	// count anew, as after Repair, begins at 0 again.
	Denied() (map[plan.VerdictKey]uint64, error)
	// Dropped returns how many packets were dropped for other reasons. A number
	// may begin at 0 again, and an interface with nothing dropped for long is
	// forgotten.
	Dropped() (map[Dropped]uint64, error)
	// Follow calls f for packets that policies deny, and for those dropped for
	// other reasons, as that happens, until ctx ends; it then returns nil.
	// Where there are more than can be told, some are left out; Denied and
	// Dropped count them all.
	Follow(ctx context.Context, f func(Drop)) error
}

// ServiceCounter is a data plane that counts what becomes of what is sent to Services. Its method
// may be called at any time, from any goroutine.
type ServiceCounter interface {
	// Counts returns what frontends and backends of the plan that was applied last have
	// counted; one that is not among them has counted nothing. Numbers grow while their
	// frontend or backend is in the plan, whatever changes beside it and whoever starts
	// again. One that has counted nothing for a day may begin at 0 again.
	Counts() (ServiceCounts, error)
}

// ServiceCounts is what Services have counted on a node.
type ServiceCounts struct {
	Frontends map[plan.ServiceKey]FrontendCount
	// Backends are how many new connections each was given.
	Backends map[plan.BackendKey]uint64
}

// FrontendCount is what became of what was sent to a frontend.
type FrontendCount struct {
	// Given are new connections that were given a backend, and, packet by packet, what was given one and then dropped.
	Given uint64
	// Refused are packets whose sender was told that there is no backend, and Dropped those
	// that were dropped as there is none.
	Refused, Dropped uint64
	// ForOthers are packets that were dropped as the frontend is for others than their sender.
	ForOthers uint64
}

// Watcher is a data plane that notices when others change what is Weft's. Its
// method may be called at any time, from any goroutine.
type Watcher interface {
	// Watch calls following once it follows what others do, and from then on f
	// when somebody else has changed something that Apply put into the kernel, or
	// something that it goes by: what Repair puts right. It does not call f for
	// what the data plane itself does. It returns nil when ctx ends. What it knows
	// that it overlooked it tells as a disturbance, and the next Repair finds it.
	Watch(ctx context.Context, following func(), f func(Disturbance)) error
}

// Surveyor is a data plane that sees what others' settings keep from working.
type Surveyor interface {
	// Obstacles says which settings of others those are, with what to do about
	// each, in an order that depends on them alone. With an error it returns those
	// that it found nevertheless.
	Obstacles() ([]string, error)
	// Others calls following once it follows what others do, and from then on f, from any
	// goroutine, soon after they have changed something of their own that Obstacles may
	// see, or that may have been in the way of Apply. It returns nil when ctx ends. It
	// calls f some times a second at most, and may call it for nothing. What it cannot
	// notice, Obstacles finds when it is called next.
	Others(ctx context.Context, following, f func()) error
}

// Disturbance is something of Weft's that somebody else changed.
type Disturbance struct {
	// What is for people: "route 10.1.2.0/24".
	What string
	// By is who did it, "nft (process 4711)"; empty where that is not known.
	By string
}

// Limiter is a data plane that keeps one endpoint from filling what all of the
// node share. Its method may be called at any time, from any goroutine.
type Limiter interface {
	// Limit holds endpoints, of this node and of others, to their share of what is
	// this node's, and calls f with how things are, every second or so, until ctx
	// ends; it then returns nil.
	Limit(ctx context.Context, f func(Occupancy)) error
}

// Occupancy is how full is what the endpoints of a node share.
type Occupancy struct {
	// Connections are those that are tracked, of MaxConnections that can be; both
	// are 0 where none are.
	Connections, MaxConnections int
	// Over are endpoints that have begun more than their share of these and may
	// begin none on this node, the one with the most first.
	Over []Share
	// Crowded are endpoints of the node that more than one endpoint's share of
	// these lead to, whoever began them, the one with the most first. They are
	// told for people alone: who is asked much is not to blame for it.
	Crowded []Share
}

// Share is what one endpoint has of what all share.
type Share struct {
	// Interface is the endpoint's key. It is empty for one of another node, of
	// which no more is known than its Address and that node's name, which are in
	// Name.
	Interface string
	Address   netip.Addr
	// Name is for people.
	Name        string
	Connections int
}

// Dropped is what is counted of packets that are dropped for a reason.
type Dropped struct {
	Reason Reason
	// Interface is the one of the node that the packets came from. It is empty for what the node itself sent.
	Interface string
}

// Drop is a packet that was dropped.
type Drop struct {
	Time time.Time
	// Reason says why; it is empty where a policy denied it.
	Reason Reason
	// Direction is Outgoing if the egress policy of the endpoint at Interface,
	// which sent it, denied it; Incoming if it was the ingress policy of the
	// endpoint at Interface, which was to get it. Where there is a Reason it is
	// empty, and Interface is the one that the packet came from, or empty where the node itself sent it.
	Direction plan.Direction
	Interface string
	Network   string
	// Peer is the VTEP that a packet came from through the tunnel, where that
	// is what is wrong with it.
	Peer netip.Addr
	// Source and Destination are the addresses in the packet when it was
	// denied, behind the translation of Services; of a tunnel packet with a
	// Peer, those of the packet in it.
	Source, Destination netip.Addr
	Protocol            plan.Protocol
	// SourcePort and Port are 0 for protocols without ports.
	SourcePort, Port uint16
}

// InterfacePrefix begins the name of every interface that Weft makes on a
// node, those of pods included. The gateways of a plan's pools are addresses of such
// interfaces as long as the plan is applied: so whoever starts can tell which subnets the
// node has.
const InterfacePrefix = "weft"

// OwnsInterface reports whether a node's interface is Weft's, by its name.
func OwnsInterface(name string) bool { return strings.HasPrefix(name, InterfacePrefix) }

// EndpointError is what keeps one endpoint from being reached or from reaching
// others, and concerns nothing else.
type EndpointError struct {
	// Interface is the endpoint's key, Name its name for people, Origin that of its entry
	// in the plan.
	Interface, Name, Origin string
	// Err is what is wrong, as ErrMissing.
	Err error
}

func (e *EndpointError) Error() string {
	return fmt.Sprintf("endpoint %s (%s): %v", e.Interface, e.Name, e.Err)
}

// Unwrap returns what is wrong.
func (e *EndpointError) Unwrap() error { return e.Err }

// EntryError is what keeps one entry of a plan from being done, as a route to some
// prefix, and concerns nothing else. Of an entry that an endpoint needs to be reached, it
// is within an EndpointError.
type EntryError struct {
	// Entry is what is not done, for people, Origin that of the entry in the plan.
	Entry, Origin string
	Err           error
}

func (e *EntryError) Error() string { return fmt.Sprintf("%s: %v", e.Entry, e.Err) }

// Unwrap returns what is wrong.
func (e *EntryError) Unwrap() error { return e.Err }

// Concerning returns what of an error of Apply matters to the endpoints with
// the given interfaces: all of it, but what concerns other endpoints, or a single
// entry, alone. What concerns one of these endpoints stays whatever it is, also that
// another program's route is in the way of the endpoint's own. Without interfaces it is
// what keeps the plan from being whole: all of it, but what concerns endpoints alone.
func Concerning(err error, interfaces ...string) error {
	return except(err, func(part error) fate {
		switch e := part.(type) {
		case *EntryError:
			return fateOf(len(interfaces) == 0)
		case *EndpointError:
			return fateOf(slices.Contains(interfaces, e.Interface))
		}
		return open
	})
}

// Refused returns what an error of Apply says of single entries whose origin is known, and
// the rest of it.
func Refused(err error) (refused []Refusal, rest error) {
	rest = except(err, func(part error) fate {
		origin := ""
		switch e := part.(type) {
		case *EntryError:
			origin = e.Origin
		case *EndpointError:
			origin = e.Origin
		}
		if origin == "" {
			return open
		}
		refused = append(refused, Refusal{Origin: origin, Message: part.Error()})
		return goes
	})
	return refused, rest
}

// Lasting returns what of an error of Apply is to be told to people, where before is that
// of the plan applied before: all of it, but what was not missing then. A pod may leave
// while a plan is applied that still has it, and the next plan knows.
func Lasting(err, before error) error {
	missed := make(map[string]bool)
	except(before, func(part error) fate {
		if name, ok := missing(part); ok {
			missed[name] = true
		}
		return open
	})
	return except(err, func(part error) fate {
		if name, ok := missing(part); ok {
			return fateOf(missed[name])
		}
		return open
	})
}

// missing returns the interface that a part of an error says is missing.
func missing(part error) (name string, ok bool) {
	e, ok := part.(*EndpointError)
	if !ok || !errors.Is(e, ErrMissing) {
		return "", false
	}
	return e.Interface, true
}

// fate is what becomes of a part of an error.
type fate int

const (
	open  fate = iota // its own parts are asked about
	stays             // with all that it wraps
	goes              // with all that it wraps
)

func fateOf(remains bool) fate {
	if remains {
		return stays
	}
	return goes
}

// except returns an error without those of its parts that go; nil where nothing is left.
func except(err error, of func(part error) fate) error {
	if err == nil {
		return nil
	}
	switch of(err) {
	case stays:
		return err
	case goes:
		return nil
	}
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		var left []error
		for _, part := range e.Unwrap() {
			left = append(left, except(part, of))
		}
		return errors.Join(left...)
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil && except(inner, of) == nil {
			return nil
		}
	}
	return err
}
