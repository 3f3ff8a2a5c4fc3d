package compile

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weftnet/weft/dns/records"
	"github.com/weftnet/weft/registry"
)

// named is what of a Service is compiled, but for its endpoints.
type named struct {
	records.Service
	// created is when it was made.
	created time.Time
	// exists says that it has a name.
	exists   bool
	problems []string
}

var protocols = map[corev1.Protocol]string{"": records.TCP, corev1.ProtocolTCP: records.TCP, corev1.ProtocolUDP: records.UDP, corev1.ProtocolSCTP: records.SCTP}

// readService reads a Service; nil where nothing of it can be a name.
func readService(o registry.Object, before *named) *named {
	svc := o.(*corev1.Service)
	if !isLabel(svc.Namespace) || !isLabel(svc.Name) {
		return nil
	}
	n := &named{Service: records.Service{Key: records.Key{Namespace: svc.Namespace, Name: svc.Name}}, created: svc.CreationTimestamp.Time}
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		n.External, n.exists = nameOf(svc.Spec.ExternalName)
		if !n.exists {
			n.problems = append(n.problems, fmt.Sprintf("spec.externalName: %q is not the name of a machine such as db.example.com, and the Service's own name stands for nothing", svc.Spec.ExternalName))
		}
	case svc.Spec.ClusterIP == corev1.ClusterIPNone || len(svc.Spec.ClusterIPs) > 0 && svc.Spec.ClusterIPs[0] == corev1.ClusterIPNone:
		n.exists = true // its endpoints say which ports there are
	default:
		n.addresses(svc)
		n.ports(svc)
		n.exists = len(n.Addresses) > 0 // else it has none yet
	}
	if before != nil && n.exists == before.exists && n.created.Equal(before.created) && n.Service.Equal(&before.Service) && slices.Equal(n.problems, before.problems) {
		return before
	}
	return n
}

// addresses reads those of a Service in the cluster, of which it has one of each family.
func (n *named) addresses(svc *corev1.Service) {
	texts := svc.Spec.ClusterIPs
	if len(texts) == 0 && svc.Spec.ClusterIP != "" {
		texts = []string{svc.Spec.ClusterIP}
	}
	for _, text := range texts {
		// What is wrong with an address that is one of a Service's package service says.
		a, ok := addressOf(text)
		if ok && !slices.ContainsFunc(n.Addresses, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			n.Addresses = append(n.Addresses, a)
		}
	}
}

// ports reads those of a Service that has addresses of its own.
func (n *named) ports(svc *corev1.Service) {
	for _, p := range svc.Spec.Ports {
		protocol, known := protocols[p.Protocol]
		if known && p.Port >= 1 && p.Port <= 65535 && (p.Name == "" || isLabel(p.Name)) {
			n.Ports = append(n.Ports, records.Port{Name: p.Name, Protocol: protocol, Port: uint16(p.Port)})
		}
	}
	n.Ports = once(n.Ports)
}

// slice is what of an EndpointSlice is compiled.
type slice struct {
	key registry.Key
	// of is the Service that it belongs to.
	of records.Key
	// endpoints are in order, each once. All have the same ports.
	endpoints []records.Endpoint
	// hostnames and refused are the host names and the addresses that name nothing, in order, each once.
	hostnames, refused []string
}

// size is how many endpoints the slice has, counted once for each port.
func (s *slice) size() int {
	if len(s.endpoints) == 0 {
		return 0
	}
	return len(s.endpoints) * max(1, len(s.endpoints[0].Ports))
}

// readSlice reads an EndpointSlice; nil where it is of no Service, or has no addresses.
func readSlice(o registry.Object, before *slice) *slice {
	es := o.(*discoveryv1.EndpointSlice)
	name := es.Labels[discoveryv1.LabelServiceName]
	if !isLabel(es.Namespace) || !isLabel(name) || es.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	s := &slice{key: registry.KeyOf(es), of: records.Key{Namespace: es.Namespace, Name: name}}
	ports := portsOf(es)
	hostnames, refused := make(map[string]bool), make(map[string]bool)
	for _, e := range es.Endpoints {
		if e.Conditions.Ready != nil && !*e.Conditions.Ready {
			continue
		}
		hostname := ""
		if e.Hostname != nil && *e.Hostname != "" {
			if hostname = *e.Hostname; !isLabel(hostname) {
				hostname = "" // it still has the name that its address gives it
				hostnames[*e.Hostname] = true
			}
		}
		for _, text := range e.Addresses {
			a, ok := addressOf(text)
			if !ok {
				refused[text] = true
				continue
			}
			s.endpoints = append(s.endpoints, records.Endpoint{Address: a, Hostname: hostname, Ports: ports})
		}
	}
	slices.SortFunc(s.endpoints, compareEndpoints)
	// What was made room for and not needed would be kept as long as the slice.
	s.endpoints = slices.Clone(slices.CompactFunc(s.endpoints, func(a, b records.Endpoint) bool { return compareEndpoints(a, b) == 0 }))
	s.hostnames, s.refused = slices.Sorted(maps.Keys(hostnames)), slices.Sorted(maps.Keys(refused))
	if before != nil && before.of == s.of && equalEndpoints(before.endpoints, s.endpoints) && slices.Equal(before.hostnames, s.hostnames) && slices.Equal(before.refused, s.refused) {
		return before
	}
	return s
}

// equalEndpoints reports whether two slices' endpoints are the same. Within each all have the
// same ports.
func equalEndpoints(a, b []records.Endpoint) bool {
	return slices.EqualFunc(a, b, func(a, b records.Endpoint) bool { return compareEndpoints(a, b) == 0 }) &&
		(len(a) == 0 || slices.Equal(a[0].Ports, b[0].Ports))
}

// portsOf returns the ports of an EndpointSlice that have a number, each once.
func portsOf(es *discoveryv1.EndpointSlice) (all []records.Port) {
	for _, p := range es.Ports {
		protocol, known := records.TCP, true
		if p.Protocol != nil {
			protocol, known = protocols[*p.Protocol]
		}
		name := ""
		if p.Name != nil {
			name = *p.Name
		}
		if known && p.Port != nil && *p.Port >= 1 && *p.Port <= 65535 && (name == "" || isLabel(name)) {
			all = append(all, records.Port{Name: name, Protocol: protocol, Port: uint16(*p.Port)})
		}
	}
	return once(all)
}

func readNamespace(o registry.Object, before *string) *string {
	name := o.GetName()
	switch {
	case !isLabel(name):
		return nil
	case before != nil:
		return before // its key is its name
	}
	return &name
}

// maxLabel and maxName are how long a label and a name may be, the latter as text without the
// dot at its end (RFC 1035, section 2.3.4).
const (
	maxLabel = 63
	maxName  = 253
)

// isLabel reports whether a text is a label of a name as Kubernetes writes them (RFC 1123).
func isLabel(text string) bool {
	return isLabelWith(text, "-") && text[0] != '-' && text[len(text)-1] != '-'
}

// isLabelWith reports whether a text is a label of letters in lower case, digits, and others.
func isLabelWith(text, others string) bool {
	if text == "" || len(text) > maxLabel {
		return false
	}
	for i := range len(text) {
		if c := text[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && strings.IndexByte(others, c) < 0 {
			return false
		}
	}
	return true
}

// nameOf reads the name that a Service stands for, in whichever case and with or without a dot
// at its end. An address is no name.
func nameOf(text string) (name string, ok bool) {
	name = strings.ToLower(strings.TrimSuffix(text, "."))
	if len(name) > maxName {
		return "", false
	}
	for label := range strings.SplitSeq(name, ".") {
		if !isLabelWith(label, "-_") {
			return "", false
		}
	}
	if last := name[strings.LastIndexByte(name, '.')+1:]; strings.Trim(last, "0123456789") == "" {
		return "", false // no domain of the first level is a number (RFC 3696, section 2)
	}
	return name, true
}

func compareServices(a, b *named) int { return a.Key.Compare(b.Key) }

func compareSlices(a, b *slice) int {
	return cmp.Or(a.of.Compare(b.of), a.key.Compare(b.key))
}

func comparePointers(a, b *string) int { return strings.Compare(*a, *b) }
