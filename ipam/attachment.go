package ipam

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"strings"
	"time"

	"github.com/weftnet/weft/plan"
)

// Key names an attachment as runtimes do: one interface of one container.
type Key struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

func (k Key) String() string { return k.ContainerID + "/" + k.IfName }

// Compare orders keys.
func (k Key) Compare(o Key) int {
	return cmp.Or(strings.Compare(k.ContainerID, o.ContainerID), strings.Compare(k.IfName, o.IfName))
}

// Request is what is known of an attachment before it has addresses.
type Request struct {
	Key
	// Network is the plan's network that the interface is in, and in which its
	// addresses mean something. In the journal it is the record's.
	Network string `json:"-"`
	// Configuration is the name of the CNI configuration that asked; empty where
	// not known.
	Configuration string `json:"configuration,omitempty"`
	// NetNS is the path of the pod's network namespace.
	NetNS string `json:"netns,omitempty"`
	// ID is the request's own: the same request sent again has the same.
	ID string `json:"id,omitempty"`
	PodName
	// Unidentified says that the pod's names are not known because the record
	// of them was lost. A UID may still be.
	Unidentified bool `json:"unidentified,omitempty"`
	// Unrecorded says that the record was lost, and with it Ports and Bandwidth, which the
	// interface does not tell.
	Unrecorded bool `json:"unrecorded,omitempty"`
	// HostInterface is the node's end of the pod's interface.
	HostInterface string `json:"hostInterface"`
	// MTU of both ends in bytes; 0 leaves it to the kernel.
	MTU int `json:"mtu,omitempty"`
	// Ports are the node's that lead to the container. Not known, as for one whose record
	// was lost or is of an agent that left them to others, is nil, and none is not.
	Ports []Port `json:"ports"`
	// Bandwidth is what the interface is limited to. Not known, as with Ports, is nil.
	Bandwidth *Bandwidth `json:"bandwidth,omitempty"`
	// Secondary says that another interface of the container leads to all that no
	// route is for, and this one to Prefixes alone.
	Secondary bool           `json:"secondary,omitempty"`
	Prefixes  []netip.Prefix `json:"prefixes,omitempty"`
}

// Port is a port of the node that leads to one of a container.
type Port struct {
	// Address is the node's own that the port is at, invalid for all of them.
	Address   netip.Addr    `json:"address,omitzero"`
	Protocol  plan.Protocol `json:"protocol"`
	Node      uint16        `json:"node"`
	Container uint16        `json:"container"`
}

// Bandwidth limits what goes to a container's interface and what comes from it, in bits per
// second; 0 is no limit.
type Bandwidth struct {
	Ingress uint64 `json:"ingress"`
	Egress  uint64 `json:"egress"`
}

// PodName is whose an attachment is. All may be empty.
type PodName struct {
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// Phase says how far an attachment has come.
type Phase string

// The phases.
const (
	// Pending: addresses are reserved, the interface may or may not be there.
	Pending Phase = "pending"
	// Ready: the runtime was, or is about to be, told that all is done.
	Ready Phase = "ready"
)

// Attachment is a pod's interface that holds addresses. Its slices must not be
// changed.
type Attachment struct {
	Request
	// Addresses has one of each family for which the network has a pool; the
	// first is the primary.
	Addresses []netip.Addr `json:"addresses"`
	// Gateways holds for each address the gateway of its pool; empty where
	// not known.
	Gateways []netip.Addr `json:"gateways,omitempty"`
	// Router is the gateway of the network's primary pool, after which the MAC
	// address of the node's end is made; invalid where not known.
	Router netip.Addr `json:"router,omitzero"`
	Phase  Phase      `json:"phase"`
	// Created is when the addresses were reserved.
	Created time.Time `json:"created"`
}

// MAC is the address of the pod's end.
func (a Attachment) MAC() plan.MAC { return plan.MACOf(a.Addresses[0]) }

// held yields the addresses with the network that they are in.
func (a Attachment) held() iter.Seq[plan.Address] {
	return func(yield func(plan.Address) bool) {
		for _, ip := range a.Addresses {
			if !yield(plan.Address{Network: a.Network, IP: ip}) {
				return
			}
		}
	}
}

func (a Attachment) validate() error {
	if a.ContainerID == "" || a.IfName == "" {
		return fmt.Errorf("attachment %q has no container ID or no interface name", a.Key)
	}
	if a.Network == "" {
		return fmt.Errorf("attachment %s is in no network", a.Key)
	}
	if len(a.Addresses) == 0 {
		return fmt.Errorf("attachment %s has no address", a.Key)
	}
	seen := make(map[netip.Addr]bool, len(a.Addresses))
	for _, addr := range a.Addresses {
		if !addr.IsValid() || addr.Zone() != "" || addr.Is4In6() || seen[addr] {
			return fmt.Errorf("attachment %s has the address %q, which is none or there twice", a.Key, addr)
		}
		seen[addr] = true
	}
	if n := len(a.Gateways); n != 0 && n != len(a.Addresses) {
		return fmt.Errorf("attachment %s has %d addresses and %d gateways", a.Key, len(a.Addresses), n)
	}
	if a.Phase != Pending && a.Phase != Ready {
		return fmt.Errorf("attachment %s has the phase %q, which is neither pending nor ready", a.Key, a.Phase)
	}
	return nil
}
