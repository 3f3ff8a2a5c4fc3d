// Package openshift is the plug-in "openshift-subnet": the flat network of
// OpenShift SDN, in which every pod reaches every pod, on OpenShift's own
// objects.
//
// ClusterNetwork "default" says which CIDRs the pods' addresses come from, and
// each node has a HostSubnet with its part of them. Compile turns both into a
// node's plan; network.go and host.go say what the objects mean and which of
// two that contradict each other holds. RunCluster, in the controller that
// leads, gives nodes their HostSubnets: what to write is decided by the pure
// function reconcile, and carried out by the loop in run.go.
package openshift

import (
	"time"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Name is what a ClusterConfig calls the plug-in.
const Name = "openshift-subnet"

// The annotations.
const (
	// AssignSubnet set to "true" asks the controller to give a HostSubnet its
	// subnets, and goes when it has them.
	AssignSubnet = networkv1.AssignHostSubnetAnnotation
	// NodeUID is the UID of the Node that a HostSubnet belongs to. A
	// HostSubnet without it, and without a Node of its name, is a ghost: the
	// place of an appliance in the network, which an administrator made.
	NodeUID = networkv1.NodeUIDAnnotation
	// FixedVNID is the network identifier that packets to a ghost carry.
	FixedVNID = networkv1.FixedVNIDHostAnnotation
)

// What a zero Subnet and an incomplete ClusterNetwork use.
const (
	DefaultQuarantine   = 5 * time.Minute
	DefaultCIDR         = "10.1.0.0/16"
	DefaultHostBits     = 8
	DefaultHostBitsIPv6 = 64
	// DefaultPort is VXLAN's (RFC 7348, section 5).
	DefaultPort = 4789
)

// Subnet is the plug-in. The zero value is ready to use.
type Subnet struct {
	// Quarantine is how long a subnet that was taken back from a node is kept
	// from other nodes; 0 means DefaultQuarantine. It should be longer than
	// any node that was cut off from the registry may go on using it.
	Quarantine time.Duration
}

var (
	_ plugin.Plugin        = Subnet{}
	_ plugin.ClusterRunner = Subnet{}
	_ plugin.Admitter      = Subnet{}
	_ plugin.Beginner      = Subnet{}
)

// Name implements plugin.Plugin.
func (Subnet) Name() string { return Name }

// AdoptsSubnets implements plugin.Adopter.
func (Subnet) AdoptsSubnets() {}

// Admits implements plugin.Admitter: whom a HostSubnet is for that nobody made for a Node.
func (Subnet) Admits(o registry.Object) bool { return !api.MadeForNode(o) }

// Begins implements plugin.Beginner: with a ClusterNetwork that says nothing but what goes
// without saying.
func (Subnet) Begins(k *registry.Kind) registry.Object {
	if k != api.ClusterNetwork {
		return nil
	}
	return withDefaults(nil)
}

// Kinds implements plugin.Plugin.
func (Subnet) Kinds() []*registry.Kind {
	return []*registry.Kind{api.ClusterNetwork, api.HostSubnet}
}
