// Package plugin is the contract of a network plug-in: something that owns
// its users' objects, in the form those users already know, and compiles them
// into the plan of each node.
//
// A plug-in knows neither data planes nor the kernel. Compile is a pure
// function; what needs a clock or writes to the registry is in the two
// optional interfaces, NodeRunner and ClusterRunner. Package plugins lists
// the plug-ins there are.
package plugin

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/subnet"
)

// Plugin is a network plug-in.
type Plugin interface {
	// Name is what a ClusterConfig calls it.
	Name() string
	// Kinds are the kinds that Compile reads, beyond ClusterConfig.
	Kinds() []*registry.Kind
	// Compile returns what a node must do. It is pure: equal input gives an
	// equal plan. It always returns a plan, which does as much of what was
	// asked as can be done, and says in problems what could not. Before the
	// node has a subnet, the plan has no pools.
	Compile(in Input) (*plan.Plan, []Problem)
}

// Incremental is a plug-in whose plans are so large that compiling one anew
// after each change would take too long.
type Incremental interface {
	Plugin
	// NewCompiler returns a compiler that knows nothing yet.
	NewCompiler() Compiler
}

// Layer is a plug-in that adds to another one: it overwrites nothing that the other
// states. Its RunNode does the other's work, too; its RunCluster does not, as the
// cluster may use the other besides, or the same layer on a third.
type Layer interface {
	Plugin
	// Base is the plug-in that it stands on.
	Base() Plugin
	// Adds names what it adds, as "networkpolicy". Layers that add the same do the same
	// work for the cluster, whatever they stand on. No plug-in has such a name.
	Adds() string
	// On returns what adds the same to another plug-in, under a name.
	On(base Plugin, name string) Plugin
	// Standby returns the layer as it is while all nodes load it and none may use it yet:
	// it adds nothing to the plan, and its RunNode tells others of the node what they
	// must know once it does.
	Standby() Layer
	// Announced reports whether the objects say of the node what others must know of it.
	Announced(in Input) bool
}

// Standby returns a plug-in with all of its layers on standby.
func Standby(p Plugin) Plugin {
	layer, ok := p.(Layer)
	if !ok {
		return p
	}
	return layer.Standby().On(Standby(layer.Base()), p.Name())
}

// Announced reports whether the objects say of a node what others must know of it for
// all layers of a plug-in.
func Announced(p Plugin, in Input) bool {
	layer, ok := p.(Layer)
	return !ok || layer.Announced(in) && Announced(layer.Base(), in)
}

// Stack returns a plug-in of a given name: a base with layers on it, the lowest first, each
// the function that puts it onto another.
func Stack(name string, base Plugin, layers ...func(base Plugin, name string) Plugin) Plugin {
	for _, on := range layers {
		base = on(base, name)
	}
	return base
}

// BaseOf returns the plug-in that gives addresses and ways under a plug-in: what it
// stands on, or itself.
func BaseOf(p Plugin) Plugin {
	if layer, ok := p.(Layer); ok {
		return BaseOf(layer.Base())
	}
	return p
}

// ClusterWork returns what is to run for a cluster that uses some plug-ins: the work of
// each, and of those that they stand on, once. It is known by the plug-in's name, or by
// what a layer adds.
func ClusterWork(plugins ...Plugin) map[string]ClusterRunner {
	work := make(map[string]ClusterRunner)
	for _, p := range plugins {
		for p != nil {
			name, below := p.Name(), Plugin(nil)
			if layer, ok := p.(Layer); ok {
				name, below = layer.Adds(), layer.Base()
			}
			if runner, ok := p.(ClusterRunner); ok {
				work[name] = runner
			}
			p = below
		}
	}
	return work
}

// Compiler compiles the plans of one node, one after the other. It is not safe
// for concurrent use.
type Compiler interface {
	// Compile is as Plugin.Compile, and what it returns does the same to every
	// packet, whatever was compiled before; classes of the node's own (from
	// plan.FirstOwnClass) alone may have other numbers. It costs in proportion
	// to what changed since the last call, if the objects that did not change
	// are the same pointers.
	Compile(in Input) (*plan.Plan, []Problem)
}

// Gradual is a Compiler that can leave for later what takes long, so that what
// changes meanwhile need not wait for it. Until then what is left has an older version
// of what users asked for, or nothing is allowed.
type Gradual interface {
	Compiler
	// LeaveForLater has it do so from now on.
	LeaveForLater()
	// Waiting returns what the last plan owes. Of those that are alike but for the owner the first
	// is whose turn it is.
	Waiting() []Debt
	// Advance has the next call of Compile do one thing of what is left.
	Advance(Debt)
	// Hasty returns what would have been left, as it may be much, and was followed at once by the
	// last call of Compile.
	Hasty() []Debt
	// Rest has what changes of some be left for later, however little it is, from the next call of
	// Compile on.
	Rest(map[Debt]bool)
}

// CompilerOf returns what compiles the plans of one node with a plug-in.
func CompilerOf(p Plugin) Compiler {
	if i, ok := p.(Incremental); ok {
		return i.NewCompiler()
	}
	return p
}

// NodeRunner is a plug-in that does work of its own on each node, such as
// keeping a lease.
type NodeRunner interface {
	// RunNode works until ctx ends, and returns early only with an error
	// after which it is to be called again. It is killed and started again at
	// will.
	RunNode(ctx context.Context, n NodeEnv) error
}

// ClusterRunner is a plug-in that does work once for the cluster, such as
// allocating subnets; it runs in the controller that leads.
type ClusterRunner interface {
	// RunCluster is to the leading controller what RunNode is to an agent.
	// Two may run at once for a moment: what they write must bear it.
	RunCluster(ctx context.Context, c ClusterEnv) error
}

// Input is all that a plan is compiled from.
type Input struct {
	// Previous is the plan compiled before, to share with, or nil.
	Previous *plan.Plan
	// Config is the cluster's configuration, never nil.
	Config *api.ClusterConfig
	// Objects holds the kinds that Plugin.Kinds named, and Services in any case. They must not
	// be changed.
	Objects registry.Objects
	// Node is the node to compile for.
	Node Node
}

// Node is what is known of a node without asking the registry.
type Node struct {
	Name string
	// Addresses are the node's own, the primary one first.
	Addresses []netip.Addr
	// MTU is that of the interface that has the primary address, in bytes.
	MTU int
	// Prefixes are those that the node's interfaces are on-link with: a peer
	// with an address in one can be a next hop.
	Prefixes []netip.Prefix
	// Others are whatever else the node delivers to itself: the addresses of its
	// other interfaces, the broadcast addresses of all.
	Others []netip.Addr
	// Endpoints are those attached to the node, in any order.
	Endpoints []Endpoint
	// Held are the addresses that pods have, those of which the interface is still to be
	// made among them.
	Held []plan.Address
	// Beside says that the node uses another plug-in than the one that this is given to.
	Beside bool
	// Kept are the subnets that the node has by other plug-ins while the cluster changes
	// from one to another, see Mix, and Taken are those of others by them.
	Kept  []netip.Prefix
	Taken Holdings
	// Ranges are what other plug-ins give subnets from then, as their configurations say.
	// An address in there is a pod's, even if no node has that subnet yet.
	Ranges []netip.Prefix
}

// RangeOf returns the range of another plug-in that an address is in. What ranges the node
// itself is in tell nothing of an address: others may be there, too.
func (n Node) RangeOf(a netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(n.Ranges, func(r netip.Prefix) bool { return r.Contains(a) && !slices.ContainsFunc(n.Addresses, r.Contains) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return n.Ranges[i], true
}

// Keeps reports whether an address is in a subnet that the node has by another plug-in.
func (n Node) Keeps(a netip.Addr) bool {
	return slices.ContainsFunc(n.Kept, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Elsewhere returns the subnets that the node and others have by other plug-ins, and whose
// each is. An address in there is a pod's, and no machine's.
func (n Node) Elsewhere() (all *subnet.Set, whose func(netip.Prefix) string) {
	all = &subnet.Set{}
	for _, p := range slices.SortedFunc(maps.Keys(n.Taken), netip.Prefix.Compare) {
		all.Add(p)
	}
	for _, p := range n.Kept {
		all.Add(p)
	}
	return all, func(p netip.Prefix) string { return cmp.Or(n.Taken[p], n.Name) }
}

// Endpoint is a pod's interface as the node knows it.
type Endpoint struct {
	// Interface is the node's end.
	Interface string
	// Network is the one that Addresses mean something in. A pod may have an
	// interface in each of several.
	Network   string
	Addresses []netip.Addr
	MAC       plan.MAC
	// Namespace and Pod name the pod, UID is the one that the container runtime
	// knows it by (see api.IsPod); all may be empty.
	Namespace, Pod, UID string
	// Ports are the node's that lead to the endpoint (see PutPorts), nil where that is not
	// known. Of two pods that ask for one the later has it.
	Ports []Port
	// Bandwidth is what the interface is limited to, nil where that is not known.
	Bandwidth *Bandwidth
	Created   time.Time
	// Unidentified says that the node has lost whose the interface is: it may be
	// any pod's, and whatever could forbid it something does.
	Unidentified bool
}

// Bandwidth limits what goes to an endpoint, Ingress, and what comes from it, in bits per second;
// 0 is no limit.
type Bandwidth struct{ Ingress, Egress uint64 }

// Name is the endpoint's name for people.
func (e Endpoint) Name() string {
	if e.Pod == "" {
		return e.Interface
	}
	return e.Namespace + "/" + e.Pod
}

// Problem is something asked for that cannot be done.
type Problem struct {
	// Kind and Key name the object to blame.
	Kind *registry.Kind
	Key  registry.Key
	// Message names the value and says what to do.
	Message string
	// Told says that the plug-in sees to it that the object's owner learns of
	// it, as of a rule that a user wrote: the node is not out of sync for that.
	Told bool
	// Passing says that an agent puts it right by itself as soon as its node does the
	// plug-in, so it keeps no node from getting ready for it.
	Passing bool
}

func (p Problem) String() string {
	if p.Kind == nil {
		return p.Message
	}
	return fmt.Sprintf("%s %s: %s", p.Kind.Kind, p.Key, p.Message)
}

// NodeEnv is what RunNode may use.
type NodeEnv struct {
	Registry registry.Registry
	Log      *slog.Logger
	// Input returns what Compile would be given now, without a Previous.
	// complete says whether each of Plugin.Kinds has been read at least once;
	// until it is, and RunNode may be what makes it so, Objects holds those
	// kinds alone that have been read. It does not wait. A node that changes
	// to a plug-in has read them before.
	//
	// The agent follows these kinds already, and RunNode should not follow
	// them once more: there may be thousands of nodes. Objects is behind the
	// registry, at times behind what RunNode itself has written: it tells that
	// something is to be done, and what is written must follow from an object
	// as the registry has it, as registry.Modify reads it.
	Input func() (in Input, complete bool)
	// Applied returns what was last in the data plane whole, nil while nothing
	// was. An endpoint whose interface is missing takes nothing from that: no
	// packet comes from there or goes there. Who gets an address of a pool that
	// is open no more in what it returns is in Node.Held of each later Input.
	Applied func() *Applied
	// Changed delivers after one or several changes to what Input returns,
	// complete included, or to what Applied returns. It is never closed.
	Changed <-chan struct{}
	// SubnetFile is where other programs expect the node's subnet in the
	// form of flannel's subnet.env.
	SubnetFile string
	// Problem reports what keeps the work from being done, to the node's
	// readiness and its Node object; "" when nothing does any more.
	Problem func(string)
}

// Applied is a plan that a data plane does, and what it was compiled from.
type Applied struct {
	Input Input
	Plan  *plan.Plan
	// Problems are those of Compile, and what of the plan the data plane cannot
	// do as it is written.
	Problems []Problem
}

// ClusterEnv is what RunCluster may use.
type ClusterEnv struct {
	Registry registry.Registry
	Log      *slog.Logger
	// Metrics takes the plug-in's own metrics, which are served while
	// RunCluster runs. It is a new one for each call.
	Metrics prometheus.Registerer
	// Elsewhere returns what other plug-ins give while the cluster changes from one to
	// another, as the registry has it; it may be nil, for nothing.
	Elsewhere func(ctx context.Context) (Elsewhere, error)
}

// Elsewhere is what plug-ins give besides the one that asks.
type Elsewhere struct {
	// Holdings are who has which subnets by them.
	Holdings Holdings
	// Ranges are what they give subnets from.
	Ranges []netip.Prefix
	// Foreign are what those of them give subnets from that are no Adopter: the ranges,
	// as far as they are known, and the subnets. Any node may get any subnet there at
	// any moment, so no other plug-in can know of one that it stays free.
	Foreign []netip.Prefix
}

// Holdings are who has which subnets: nodes by their names, other machines by what they
// are known by.
type Holdings map[netip.Prefix]string

// Adopter is a plug-in that gives each node the subnet that it has by another plug-in of
// the mix, where that is one that it could give, and nobody one that another has. So two
// may have one range.
type Adopter interface {
	Plugin
	AdoptsSubnets()
}

// Beginner is a plug-in whose work for the cluster makes objects that users may leave out, as
// its configuration. So what it will do is known before it has begun.
type Beginner interface {
	Plugin
	// Begins returns the object of a kind that it makes where there is none of that name,
	// nil for a kind of which it makes none. It is not to be changed.
	Begins(k *registry.Kind) registry.Object
}

// Admitter is a plug-in in whose network there may be machines that are no nodes, as an
// administrator's appliance. No agent speaks for these, so whoever takes the plug-in away
// must know of them.
type Admitter interface {
	Plugin
	// Admits reports whether an object that a route comes from gives a subnet to such a
	// machine. Of a Node that is gone it does not.
	Admits(registry.Object) bool
}
