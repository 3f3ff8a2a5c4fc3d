// Package records says what a node's name server answers by: what the names of the cluster's
// Services stand for, which pods of the node ask, and how the server is set up. It is what
// passes from the agent, which compiles it (package compile), by way of a file (package
// journal) to the server, which answers (package answer). All of it are values.
package records

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Protocols of ports, as names of SRV records have them without the underscore.
const (
	TCP  = "tcp"
	UDP  = "udp"
	SCTP = "sctp"
)

// Key names a Service.
type Key struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Compare orders keys.
func (k Key) Compare(o Key) int {
	return cmp.Or(strings.Compare(k.Namespace, o.Namespace), strings.Compare(k.Name, o.Name))
}

// String returns "namespace/name".
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Service is what the names of one Service stand for. It is never changed once made.
type Service struct {
	Key
	// Addresses are the Service's own in the cluster; a headless Service has none.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// External is the name that a Service of type ExternalName stands for, without the dot
	// at its end; empty for all others.
	External string `json:"external,omitempty"`
	// Ports are the Service's own.
	Ports []Port `json:"ports,omitempty"`
	// Endpoints are those that get connections, or all where the Service publishes those
	// that are not ready. They are in order of their addresses.
	Endpoints []Endpoint `json:"endpoints,omitempty"`
}

// Port is a port that has a name of its own, or none.
type Port struct {
	Name     string `json:"name,omitempty"`
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
}

// Endpoint is one of a Service's.
type Endpoint struct {
	Address netip.Addr `json:"address"`
	// Hostname is the endpoint's own within the Service; empty where it has none.
	Hostname string `json:"hostname,omitempty"`
	// Ports are where the endpoint has those of the Service.
	Ports []Port `json:"ports,omitempty"`
}

// Equal reports whether both mean the same.
func (s *Service) Equal(o *Service) bool {
	if s == o || s == nil || o == nil {
		return s == o
	}
	return s.Key == o.Key && s.External == o.External && slices.Equal(s.Addresses, o.Addresses) && slices.Equal(s.Ports, o.Ports) &&
		slices.EqualFunc(s.Endpoints, o.Endpoints, func(a, b Endpoint) bool {
			return a.Address == b.Address && a.Hostname == b.Hostname && slices.Equal(a.Ports, b.Ports)
		})
}

// Headless reports whether the Service's name stands for its endpoints.
func (s *Service) Headless() bool { return len(s.Addresses) == 0 && s.External == "" }

// Settings say how a node's server answers.
type Settings struct {
	// Domain is the cluster's, as "cluster.local", in lower case and without the dot at its
	// end.
	Domain string `json:"domain"`
	// Addresses are where pods find the server. It listens at port 53 of each.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Upstreams are who is asked for all other names, in this order; empty means those that
	// the node's own resolv.conf names.
	Upstreams []netip.AddrPort `json:"upstreams,omitempty"`
	// Stubs are who is asked for names in certain domains; of two that fit, the longer
	// domain counts.
	Stubs []Stub `json:"stubs,omitempty"`
	// Searches are the domains in which the node itself looks for a name, which are behind
	// those of the cluster in the list of each Client; in order, in lower case and without the
	// dot at their ends.
	Searches []string `json:"searches,omitempty"`
	// Prefixes says that what is in front of the name of a Service with addresses of its own
	// stands for them as well, as in OpenShift 3. A Service called "com" then has all names of
	// that domain that pods of its namespace look for.
	Prefixes bool `json:"prefixes,omitempty"`
	// Pods says which names "1-2-3-4.namespace.pod" have addresses.
	Pods PodNames `json:"pods,omitempty"`
	// StaleFor is for how many seconds an answer from outside may be given after its time
	// is over, where nobody who could say it anew answers in time, and also that there is no such
	// name; 0 means never.
	StaleFor uint32 `json:"staleFor,omitempty"`
}

// Stub is a domain that others than Upstreams answer for.
type Stub struct {
	// Domain is without the dot at its end, in lower case.
	Domain  string           `json:"domain"`
	Servers []netip.AddrPort `json:"servers"`
}

// PodNames says what is answered for the names of pods by their addresses.
type PodNames string

// The ways to answer for names of pods.
const (
	// NoPods has no such names.
	NoPods PodNames = ""
	// AnyPods answers for every address, asked or not (CoreDNS: "insecure").
	AnyPods PodNames = "insecure"
)

// Client is a pod of the node, as its server knows it by the address that it asks from. Those
// are none that look for names in other domains than most: whose dnsPolicy is not ClusterFirst,
// who have a dnsConfig with searches or the option ndots, or the address of the node.
type Client struct {
	Address netip.Addr `json:"address"`
	// Namespace is the pod's. Its searches begin there, so that the server can answer for
	// the whole list of domains that the pod would search one after the other: its namespace's
	// svc, svc, the cluster's Domain, and the Searches of the Settings.
	Namespace string `json:"namespace"`
}
