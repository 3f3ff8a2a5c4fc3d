package api

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	names "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/weftnet/weft/registry"
)

// Who answers at the addresses at which pods ask for names, see DNSSpec.Server.
const (
	NamesByNodes = "nodes"
	NamesByPods  = "pods"
)

// NodeAddress stands, among DNSSpec.Addresses, for each node's own.
const NodeAddress = "node"

// What of names holds where a ClusterConfig does not say.
const (
	DefaultDomain       = "cluster.local"
	DefaultDNSService   = "kube-system/kube-dns"
	DefaultStaleSeconds = 3600
)

// DNSPort is where name servers are asked (RFC 1035, section 4.2).
const DNSPort = 53

// NameServerAnnotation holds, on a Node, the addresses at which the node's own name server
// answers what the node and its pods ask, separated by commas; it is empty where none does.
const NameServerAnnotation = "weft.network/name-server"

// NameServerAddresses returns the addresses at which a Node says that its own name server answers.
func NameServerAddresses(node *corev1.Node) (all []netip.Addr) {
	for text := range strings.SplitSeq(node.Annotations[NameServerAnnotation], ",") {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// DNSSpec says how pods' questions for names are answered.
type DNSSpec struct {
	// Server is who answers at the addresses of Service: "nodes", on each node its own name
	// server, as long as one runs there, or "pods", those that the Service selects. Default
	// "pods", so that no cluster loses what its own name servers were told.
	Server string `json:"server,omitempty"`
	// Service is the Service at whose addresses pods ask, as "namespace/name". Default
	// "kube-system/kube-dns".
	Service string `json:"service,omitempty"`
	// Domain is that of the cluster's names. Default "cluster.local".
	Domain string `json:"domain,omitempty"`
	// Addresses are more of them at which each node's name server answers, 4 at most:
	// addresses that nobody else has, as 169.254.20.10, or "node" for the node's own.
	Addresses []string `json:"addresses,omitempty"`
	// Upstreams are asked for all other names, each as "192.0.2.1" or "192.0.2.1:53", in this
	// order, 8 at most. Empty means those that the resolv.conf of each node names.
	Upstreams []string `json:"upstreams,omitempty"`
	// StubDomains are domains that others are asked for, 64 at most. Of two that fit a name
	// the longer one counts.
	StubDomains []StubDomain `json:"stubDomains,omitempty"`
	// PodNames is whether names such as 10-1-2-3.default.pod.cluster.local have an address:
	// "disabled", or "insecure", which gives the one that it says whoever has it. Default
	// "disabled".
	PodNames string `json:"podNames,omitempty"`
	// AnyPrefix has names with anything in front of a Service's stand for it as well, as in
	// OpenShift 3. A Service that is called as a domain of the world, "com", then has all names
	// of that domain that pods of its namespace look for.
	AnyPrefix bool `json:"anyPrefix,omitempty"`
	// StaleSeconds is for how long after its time is over an answer from outside is given
	// where nobody there answers in time, and also that there is no such name, up to 86400; 0 means not at all. Default 3600.
	StaleSeconds *int32 `json:"staleSeconds,omitempty"`
}

// StubDomain is a domain that others than the rest are asked for.
type StubDomain struct {
	Domain string `json:"domain"`
	// Servers are as Upstreams, 1 to 8.
	Servers []string `json:"servers"`
}

// The ways to answer for names of pods, see DNSSpec.PodNames.
const (
	PodNamesDisabled = "disabled"
	PodNamesInsecure = "insecure"
)

// Limits of DNSSpec.
const (
	maxDNSAddresses = 4
	maxDNSServers   = 8
	maxStubDomains  = 64
	maxStaleSeconds = 86400
)

func (s DNSSpec) deepCopy() DNSSpec {
	s.Addresses, s.Upstreams, s.StubDomains = slices.Clone(s.Addresses), slices.Clone(s.Upstreams), slices.Clone(s.StubDomains)
	for i, stub := range s.StubDomains {
		s.StubDomains[i].Servers = slices.Clone(stub.Servers)
	}
	if s.StaleSeconds != nil {
		seconds := *s.StaleSeconds
		s.StaleSeconds = &seconds
	}
	return s
}

// effective returns what holds, with defaults filled in.
func (s DNSSpec) effective() DNSSpec {
	s.Server, s.Service = cmp.Or(s.Server, NamesByPods), cmp.Or(s.Service, DefaultDNSService)
	s.Domain = strings.TrimSuffix(strings.ToLower(cmp.Or(s.Domain, DefaultDomain)), ".")
	s.PodNames = cmp.Or(s.PodNames, PodNamesDisabled)
	if s.StaleSeconds == nil {
		s.StaleSeconds = new(int32)
		*s.StaleSeconds = DefaultStaleSeconds
	}
	return s
}

// ServiceKey is that of the Service at whose addresses pods ask.
func (s DNSSpec) ServiceKey() registry.Key {
	namespace, name, _ := strings.Cut(cmp.Or(s.Service, DefaultDNSService), "/")
	return registry.Key{Namespace: namespace, Name: name}
}

// AnswersAt returns the addresses beside those of Service at which a node's name server is to answer,
// as far as they are some, where the node has addresses of its own.
func (s DNSSpec) AnswersAt(node []netip.Addr) (all []netip.Addr) {
	for _, text := range s.Addresses {
		if text == NodeAddress {
			all = append(all, node...)
		} else if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// ParseNameServer reads the address of a name server, "192.0.2.1", "192.0.2.1:53",
// "2001:db8::1" or "[2001:db8::1]:53".
func ParseNameServer(text string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return netip.AddrPort{}, fmt.Errorf("is no address of a name server: give one such as 192.0.2.1, 192.0.2.1:53 or [2001:db8::1]:53")
		}
		at = netip.AddrPortFrom(a, DNSPort)
	}
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	if a := at.Addr(); a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || at.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("is no address of a name server that every node can ask: give one without a zone, of one machine, with a port from 1 to 65535")
	}
	return at, nil
}

func validateDNS(s DNSSpec, path *field.Path) (problems field.ErrorList) {
	if s.Server != "" && s.Server != NamesByNodes && s.Server != NamesByPods {
		problems = append(problems, field.NotSupported(path.Child("server"), s.Server, []string{NamesByNodes, NamesByPods}))
	}
	if s.PodNames != "" && s.PodNames != PodNamesDisabled && s.PodNames != PodNamesInsecure {
		problems = append(problems, field.NotSupported(path.Child("podNames"), s.PodNames, []string{PodNamesDisabled, PodNamesInsecure}))
	}
	if key := s.ServiceKey(); len(names.IsDNS1123Label(key.Namespace)) > 0 || len(names.IsDNS1123Label(key.Name)) > 0 {
		problems = append(problems, field.Invalid(path.Child("service"), s.Service, "names no Service: give its namespace and name, as kube-system/kube-dns"))
	}
	if s.Domain != "" {
		problems = append(problems, validateDomain(path.Child("domain"), s.Domain, "cluster.local")...)
	}
	problems = append(problems, validateDNSAddresses(path.Child("addresses"), s.Addresses)...)
	problems = append(problems, validateNameServers(path.Child("upstreams"), s.Upstreams)...)
	stubs := path.Child("stubDomains")
	if n := len(s.StubDomains); n > maxStubDomains {
		problems = append(problems, field.TooMany(stubs, n, maxStubDomains))
	}
	seen := make(map[string]bool)
	for i, stub := range s.StubDomains[:min(len(s.StubDomains), maxStubDomains)] {
		at := stubs.Index(i)
		problems = append(problems, validateDomain(at.Child("domain"), stub.Domain, "corp.example")...)
		if seen[stub.Domain] {
			problems = append(problems, field.Duplicate(at.Child("domain"), stub.Domain))
		}
		seen[stub.Domain] = true
		if len(stub.Servers) == 0 {
			problems = append(problems, field.Required(at.Child("servers"), "name who is asked for names in the domain"))
		}
		problems = append(problems, validateNameServers(at.Child("servers"), stub.Servers)...)
	}
	if n := s.StaleSeconds; n != nil && (*n < 0 || *n > maxStaleSeconds) {
		problems = append(problems, field.Invalid(path.Child("staleSeconds"), *n, fmt.Sprintf("must be between 0 and %d", maxStaleSeconds)))
	}
	return problems
}

// validateDomain holds a domain to what names of hosts are, as they are written in lower case.
func validateDomain(path *field.Path, domain, example string) field.ErrorList {
	if wrong := names.IsDNS1123Subdomain(domain); len(wrong) > 0 {
		return field.ErrorList{field.Invalid(path, domain, "is no domain: give one in lower case, without a dot at its end, such as "+example)}
	}
	return nil
}

func validateDNSAddresses(path *field.Path, addresses []string) (problems field.ErrorList) {
	if n := len(addresses); n > maxDNSAddresses {
		problems = append(problems, field.TooMany(path, n, maxDNSAddresses))
	}
	for i, text := range addresses[:min(len(addresses), maxDNSAddresses)] {
		at := path.Index(i)
		a, err := netip.ParseAddr(text)
		switch {
		case slices.Contains(addresses[:i], text):
			problems = append(problems, field.Duplicate(at, text))
		case text == NodeAddress:
		case err != nil || a.Zone() != "" || a.Unmap().String() != text:
			problems = append(problems, field.Invalid(at, text, `is neither an address such as 169.254.20.10 nor "node"`))
		case a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a.Is6() && a.IsLinkLocalUnicast():
			problems = append(problems, field.Invalid(at, text, "is no address at which pods can ask their node: give one such as 169.254.20.10 or fd00::53"))
		}
	}
	return problems
}

func validateNameServers(path *field.Path, servers []string) (problems field.ErrorList) {
	if n := len(servers); n > maxDNSServers {
		problems = append(problems, field.TooMany(path, n, maxDNSServers))
	}
	for i, text := range servers[:min(len(servers), maxDNSServers)] {
		at := path.Index(i)
		if slices.Contains(servers[:i], text) {
			problems = append(problems, field.Duplicate(at, text))
		} else if _, err := ParseNameServer(text); err != nil {
			problems = append(problems, field.Invalid(at, text, err.Error()))
		}
	}
	return problems
}
