// Package flannel is the plug-in "flannel": nodes that run flanneld and nodes
// that run Weft form one network. A node has a lease, which is its subnets and
// how it is reached, and flannel has two forms of it: keys in etcd, which is
// Plugin, and Nodes of Kubernetes, which is Kubernetes. What follows from leases
// is the same for both.
//
// # Leases in etcd
//
// The keys below the prefix (by default /coreos.com/network) are "config",
// which the administrator writes, and "subnets/10.5.1.0-24", one for each
// node, with a time to live that its node renews. A lease without one is a
// reservation. Settings is what a configuration means, Subnet what a lease's
// name means and Attributes what its value means.
//
// Compile turns configuration and leases into a plan. RunNode takes the node's
// own lease and keeps it; what it does next is decided by the pure function
// decide. Backends vxlan (with DirectRouting) and host-gw are spoken.
//
// # Nodes as leases
//
// On Kubernetes, kube-controller-manager gives each Node its podCIDRs, and the
// node says in annotations how it is reached: nodeLease reads both, and
// announcement makes the annotations that RunNode keeps true.
//
// # What becomes of a node that loses its lease
//
// A node whose lease was deleted, or expired while its agent was down, takes
// the same subnet again: its pods live on it. If another node has taken that
// subnet meanwhile, there is no way to make both right, so the harm is kept
// small: new pods get addresses from a new lease, and the old ones keep theirs
// until they are deleted. On their own node they stay reachable, and what they
// send to the cluster goes behind the node's address, so that the replies find
// back; connections to them from other nodes reach the new owner of the subnet.
// Compile names each such pod as a problem. The same holds for a lease that a
// changed configuration no longer allows, except that it is kept for as long
// as a pod lives on it.
//
// # Leases that overlap
//
// Nodes that take subnets at the same moment may make leases that overlap, under
// different names: where the network has two families, or just got another length of
// subnets. The one that is reserved, or else the older, stays. Whoever sees his own lease
// sees all older ones, so the node of the other gives it back before a pod can have an
// address of it; where pods live on it, it does so once they are gone, and Compile says
// that they live there. Of one without an end, which is an administrator's to remove, the
// node takes another in the same way. flanneld does not look: a lease that it makes on a
// part of an older one of Weft's stays, and Compile names it as a problem.
//
// # Whose a lease is
//
// A node finds its lease again by what others cannot make so: that an administrator
// reserved it for the node, that the node's pods live on it, and that it is older than
// others that name the node or its address. A node that comes back with another address
// goes by its name in the lease, where no other lease names its address. Where it has no
// lease at all, it takes what names it, as one of flanneld's or an administrator's names
// its address and nothing more: whoever may make leases can give such a node a subnet of
// his choice, which the configuration must allow, unless one is reserved for it.
package flannel

import (
	"cmp"
	"math/rand/v2"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Name is what a ClusterConfig calls the plug-in.
const Name = "flannel"

// What a zero Plugin uses; the values are flanneld's.
const (
	DefaultPrefix      = "/coreos.com/network"
	DefaultTTL         = 24 * time.Hour
	DefaultRenewMargin = time.Hour
	DefaultSubnetFile  = "/run/flannel/subnet.env"
)

// ConfigKind, LeaseKind and ReservationKind are the kinds below DefaultPrefix.
var ConfigKind, LeaseKind, ReservationKind = Kinds(DefaultPrefix)

// Plugin is the plug-in in the form that flannel has on etcd. The zero value does what flanneld does by default;
// its fields must not be changed once it is used.
type Plugin struct {
	// Config, Leases and Reservations are what Kinds returned for flanneld's
	// -etcd-prefix; nil for ConfigKind, LeaseKind and ReservationKind.
	Config, Leases, Reservations *registry.Kind
	// TTL is how long a lease lives that is not renewed; at least a second.
	TTL time.Duration
	// RenewMargin is how long before its expiry a lease is renewed, flanneld's
	// -subnet-lease-renew-margin; less than TTL.
	RenewMargin time.Duration
	// Pick returns a number from 0 to n-1, for choosing one of n free subnets;
	// nil picks at random.
	Pick func(n int) int
}

var (
	_ plugin.Plugin     = Plugin{}
	_ plugin.NodeRunner = Plugin{}
	_ plugin.Adopter    = Plugin{}
	_ plugin.Admitter   = Plugin{}
)

// withDefaults returns p with no field left zero.
func (p Plugin) withDefaults() Plugin {
	p.Config = cmp.Or(p.Config, ConfigKind)
	p.Leases = cmp.Or(p.Leases, LeaseKind)
	p.Reservations = cmp.Or(p.Reservations, ReservationKind)
	p.TTL = cmp.Or(p.TTL, DefaultTTL)
	p.RenewMargin = cmp.Or(p.RenewMargin, min(DefaultRenewMargin, p.TTL/2))
	if p.Pick == nil {
		p.Pick = rand.IntN
	}
	return p
}

// Name implements plugin.Plugin.
func (Plugin) Name() string { return Name }

// AdoptsSubnets implements plugin.Adopter.
func (Plugin) AdoptsSubnets() {}

// Admits implements plugin.Admitter: whoever holds a lease that no agent of Weft's wrote.
func (Plugin) Admits(o registry.Object) bool {
	l, ok := o.(*Lease)
	if !ok {
		return false
	}
	a, err := ParseAttributes(l.Spec)
	return err == nil && a.Weft == nil
}

// Kinds implements plugin.Plugin: the configuration, the leases and whom they
// are reserved for, and the nodes for their names and addresses.
func (p Plugin) Kinds() []*registry.Kind {
	p = p.withDefaults()
	return []*registry.Kind{p.Config, p.Leases, p.Reservations, api.Node}
}
