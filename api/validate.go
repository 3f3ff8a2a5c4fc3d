package api

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	names "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	networkv1 "github.com/openshift/api/network/v1"
	"github.com/weftnet/weft/registry"
)

// validator returns a registry.Kind's Validate: the rules for names, labels
// and annotations that Kubernetes has, and then those of the type itself.
func validator[T registry.Object](namespaced bool, name validation.ValidateNameFunc, rules func(T) field.ErrorList) func(registry.Object) error {
	return func(o registry.Object) error {
		// The object is of the kind's own type: registries see to that first.
		problems := validation.ValidateObjectMetaAccessor(o, namespaced, name, field.NewPath("metadata"))
		if rules != nil {
			problems = append(problems, rules(o.(T))...)
		}
		if len(problems) == 0 {
			return nil // ToAggregate would make an error of it
		}
		return problems.ToAggregate()
	}
}

// onlyDefault is for kinds with one object.
func onlyDefault(name string, _ bool) []string {
	if name != DefaultName {
		return []string{"the only one is called " + DefaultName}
	}
	return nil
}

// maxPluginNodes is how many nodes spec.pluginNodes of a ClusterConfig may name.
const maxPluginNodes = 1000

// maxServiceNetworks is how many ranges Services may get addresses from: one of each family.
const maxServiceNetworks = 2

// minServiceBits is the least length of such a range. What leads nowhere in there is dropped.
const minServiceBits = 8

func validateClusterConfig(c *ClusterConfig) field.ErrorList {
	var problems field.ErrorList
	spec := field.NewPath("spec")
	nodes := spec.Child("pluginNodes")
	if n := len(c.Spec.PluginNodes); n > maxPluginNodes {
		problems = append(problems, field.TooMany(nodes, n, maxPluginNodes))
	}
	for i, name := range c.Spec.PluginNodes[:min(len(c.Spec.PluginNodes), maxPluginNodes)] {
		switch {
		case slices.Contains(c.Spec.PluginNodes[:i], name):
			problems = append(problems, field.Duplicate(nodes.Index(i), name))
		case len(validation.NameIsDNSSubdomain(name, false)) > 0:
			problems = append(problems, field.Invalid(nodes.Index(i), name, "is no valid name of a node, which has lower-case letters, digits, \"-\" and \".\", and begins and ends with a letter or a digit"))
		}
	}
	if m := c.Spec.MTU; m != 0 && (m < MinMTU || m > MaxMTU) {
		problems = append(problems, field.Invalid(spec.Child("mtu"), m, fmt.Sprintf("must be between %d and %d, or 0 to take that of the nodes' interfaces", MinMTU, MaxMTU)))
	}
	if p := c.Spec.ServiceProxy; p != "" && p != WeftProxy && p != KubeProxy {
		problems = append(problems, field.NotSupported(spec.Child("serviceProxy"), p, []string{WeftProxy, KubeProxy}))
	}
	families := make(map[bool]bool)
	for i, text := range c.Spec.ServiceNetworks[:min(len(c.Spec.ServiceNetworks), maxServiceNetworks)] {
		path := spec.Child("serviceNetworks").Index(i)
		p, err := parseCIDR(text)
		switch {
		case err != nil:
			problems = append(problems, field.Invalid(path, text, err.Error()))
		case families[p.Addr().Is4()]:
			problems = append(problems, field.Invalid(path, text, "is of the same family as the one before: give one of IPv4 and one of IPv6"))
		case p.IsSingleIP() || p.Bits() < minServiceBits:
			problems = append(problems, field.Invalid(path, text, fmt.Sprintf("is no range for Services, which has a length of %d at least, and more than one address: give one such as 10.96.0.0/16", minServiceBits)))
		default:
			families[p.Addr().Is4()] = true
		}
	}
	if n := len(c.Spec.ServiceNetworks); n > maxServiceNetworks {
		problems = append(problems, field.TooMany(spec.Child("serviceNetworks"), n, maxServiceNetworks))
	}
	problems = append(problems, validateDNS(c.Spec.DNS, spec.Child("dns"))...)
	if p := c.Spec.VXLANPort; p < 0 || p > 65535 {
		problems = append(problems, field.Invalid(spec.Child("vxlanPort"), p, "must be between 1 and 65535, or 0 for the plug-in's own"))
	}
	return problems
}

func validateClusterNetwork(n *networkv1.ClusterNetwork) field.ErrorList {
	var problems field.ErrorList
	type named struct {
		path   *field.Path
		prefix netip.Prefix
	}
	var before []named
	cidr := func(path *field.Path, value string) (netip.Prefix, bool) {
		p, err := parseCIDR(value)
		if err != nil {
			problems = append(problems, field.Invalid(path, value, err.Error()))
			return p, false
		}
		for _, other := range before {
			if other.prefix.Overlaps(p) {
				problems = append(problems, field.Invalid(path, value, "overlaps with "+other.path.String()+" "+other.prefix.String()))
			}
		}
		before = append(before, named{path, p})
		return p, true
	}
	// entry holds one range and the host bits of the subnets cut from it, 0
	// for the default.
	entry := func(path *field.Path, cidrField, value, bitsField string, bits uint32) {
		p, ok := cidr(path.Child(cidrField), value)
		if most := uint32(p.Addr().BitLen() - p.Bits()); ok && bits != 0 && (bits < minHostBits || bits > most) {
			problems = append(problems, field.Invalid(path.Child(bitsField), bits,
				fmt.Sprintf("must be between %d and %d, the host bits of %s", minHostBits, most, value)))
		}
	}
	if n.ServiceNetwork != "" {
		cidr(field.NewPath("serviceNetwork"), n.ServiceNetwork)
	}
	for i, e := range n.ClusterNetworks {
		entry(field.NewPath("clusterNetworks").Index(i), "CIDR", e.CIDR, "hostSubnetLength", e.HostSubnetLength)
	}
	switch {
	case len(n.ClusterNetworks) == 0:
		if n.Network != "" {
			entry(nil, "network", n.Network, "hostsubnetlength", n.HostSubnetLength)
		}
	default:
		first := n.ClusterNetworks[0]
		if n.Network != "" && n.Network != first.CIDR {
			problems = append(problems, field.Invalid(field.NewPath("network"), n.Network, fmt.Sprintf(`must be empty or clusterNetworks[0].CIDR, %s: to change the range, say network: "" and hostsubnetlength: 0 with it, which are then filled in anew`, first.CIDR)))
		}
		if n.HostSubnetLength != 0 && first.HostSubnetLength != 0 && n.HostSubnetLength != first.HostSubnetLength {
			problems = append(problems, field.Invalid(field.NewPath("hostsubnetlength"), n.HostSubnetLength, "must be 0 or that of clusterNetworks[0]: say hostsubnetlength: 0 with it, which is then filled in anew"))
		}
	}
	if p := n.VXLANPort; p != nil && (*p < 1 || *p > 65535) {
		problems = append(problems, field.Invalid(field.NewPath("vxlanPort"), *p, "must be between 1 and 65535"))
	}
	if m := n.MTU; m != nil && (*m < MinMTU || *m > MaxMTU) {
		problems = append(problems, field.Invalid(field.NewPath("mtu"), *m, fmt.Sprintf("must be between %d and %d", MinMTU, MaxMTU)))
	}
	return problems
}

func validateHostSubnet(h *networkv1.HostSubnet) field.ErrorList {
	var problems field.ErrorList
	if h.Host != "" && h.Host != h.Name {
		problems = append(problems, field.Invalid(field.NewPath("host"), h.Host, "must be the object's name, "+h.Name))
	}
	annotations := field.NewPath("metadata", "annotations")
	check := func(path *field.Path, value string, err error) {
		if err != nil {
			problems = append(problems, field.Invalid(path, value, err.Error()))
		}
	}
	_, err := parseAll(h.HostIP, "", parseAddress)
	check(field.NewPath("hostIP"), h.HostIP, err)
	_, err = parseAll("", h.Annotations[AdditionalHostIPs], parseAddress)
	check(annotations.Key(AdditionalHostIPs), h.Annotations[AdditionalHostIPs], err)
	_, err = parseAll(h.Subnet, "", parseSubnet)
	check(field.NewPath("subnet"), h.Subnet, err)
	_, err = parseAll("", h.Annotations[AdditionalSubnets], parseSubnet)
	check(annotations.Key(AdditionalSubnets), h.Annotations[AdditionalSubnets], err)
	if subnets, err := Subnets(h); err == nil {
		for i, p := range subnets {
			for _, other := range subnets[:i] {
				if p.Overlaps(other) {
					problems = append(problems, field.Invalid(annotations.Key(AdditionalSubnets), p.String(), "overlaps with "+other.String()))
				}
			}
		}
	}
	if v, ok := h.Annotations[networkv1.AssignHostSubnetAnnotation]; ok && v != "true" {
		problems = append(problems, field.NotSupported(annotations.Key(networkv1.AssignHostSubnetAnnotation), v, []string{"true"}))
	}
	return problems
}

func validateNode(n *corev1.Node) field.ErrorList {
	var problems field.ErrorList
	for i, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		if _, err := parseAddress(a.Address); err != nil {
			problems = append(problems, field.Invalid(field.NewPath("status", "addresses").Index(i).Child("address"), a.Address, err.Error()))
		}
	}
	return problems
}

func validatePod(p *corev1.Pod) field.ErrorList {
	var problems field.ErrorList
	address := func(path *field.Path, value string) {
		if _, err := netip.ParseAddr(value); err != nil {
			problems = append(problems, field.Invalid(path, value, "must be an IP address"))
		}
	}
	status := field.NewPath("status")
	if p.Status.PodIP != "" {
		address(status.Child("podIP"), p.Status.PodIP)
	}
	for i, ip := range p.Status.PodIPs {
		address(status.Child("podIPs").Index(i).Child("ip"), ip.IP)
	}
	if n := p.Spec.NodeName; n != "" {
		for _, problem := range validation.NameIsDNSSubdomain(n, false) {
			problems = append(problems, field.Invalid(field.NewPath("spec", "nodeName"), n, problem))
		}
	}
	return problems
}

// Which protocols the ports of Services have.
var serviceProtocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}

// maxClusterIPs is how many addresses a Service has in the cluster: one of each family.
const maxClusterIPs = 2

// validateService refuses what an API server refuses of any Service. The range of node ports is
// none of that: each API server has its own, and what it let in is written back with what is
// said of it.
func validateService(s *corev1.Service) field.ErrorList {
	spec := field.NewPath("spec")
	problems := validateServicePorts(spec.Child("ports"), s.Spec.Ports)
	families := make(map[corev1.IPFamily]bool)
	for i, f := range s.Spec.IPFamilies {
		path := spec.Child("ipFamilies").Index(i)
		switch {
		case f != corev1.IPv4Protocol && f != corev1.IPv6Protocol:
			problems = append(problems, field.NotSupported(path, f, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}))
		case families[f]:
			problems = append(problems, field.Duplicate(path, f))
		}
		families[f] = true
	}
	problems = append(problems, validateClusterIPs(spec, s)...)
	return append(problems, validateServiceKind(spec, s)...)
}

func validateServicePorts(path *field.Path, ports []corev1.ServicePort) (problems field.ErrorList) {
	type numbered struct {
		number   int32
		protocol corev1.Protocol
	}
	called, numbers, nodePorts := make(map[string]bool), make(map[numbered]bool), make(map[numbered]bool)
	for i, p := range ports {
		path := path.Index(i)
		port := numbered{p.Port, cmp.Or(p.Protocol, corev1.ProtocolTCP)}
		nodePort := numbered{p.NodePort, port.protocol}
		if p.Port < 1 || p.Port > 65535 {
			problems = append(problems, field.Invalid(path.Child("port"), p.Port, "must be between 1 and 65535"))
		}
		if !slices.Contains(serviceProtocols, port.protocol) {
			problems = append(problems, field.NotSupported(path.Child("protocol"), p.Protocol, serviceProtocols))
		}
		if t := p.TargetPort; t.StrVal != "" {
			for _, message := range names.IsValidPortName(t.StrVal) {
				problems = append(problems, field.Invalid(path.Child("targetPort"), t.StrVal, message))
			}
		} else if t.IntVal < 0 || t.IntVal > 65535 {
			problems = append(problems, field.Invalid(path.Child("targetPort"), t.IntVal, "must be between 1 and 65535, a name, or left out to be that of port"))
		}
		if p.AppProtocol != nil {
			for _, message := range names.IsQualifiedName(*p.AppProtocol) {
				problems = append(problems, field.Invalid(path.Child("appProtocol"), *p.AppProtocol, message))
			}
		}
		if p.NodePort < 0 || p.NodePort > 65535 {
			problems = append(problems, field.Invalid(path.Child("nodePort"), p.NodePort, "must be between 1 and 65535, or 0 to be given one"))
		}
		switch {
		case p.Name == "" && len(ports) > 1:
			problems = append(problems, field.Required(path.Child("name"), "only a port that is alone can do without: endpoints are found by it"))
		case p.Name == "":
		case len(names.IsDNS1123Label(p.Name)) > 0:
			problems = append(problems, field.Invalid(path.Child("name"), p.Name, "must be a name of lower-case letters, digits and \"-\", which begins and ends with a letter or a digit, of 63 characters at most"))
		case called[p.Name]:
			problems = append(problems, field.Duplicate(path.Child("name"), p.Name))
		}
		if numbers[port] {
			problems = append(problems, field.Duplicate(path, fmt.Sprintf("%d/%s", port.number, port.protocol)))
		}
		if p.NodePort != 0 && nodePorts[nodePort] {
			problems = append(problems, field.Duplicate(path.Child("nodePort"), fmt.Sprintf("%d/%s", nodePort.number, nodePort.protocol)))
		}
		called[p.Name], numbers[port], nodePorts[nodePort] = true, true, true
	}
	return problems
}

const notClusterIP = "must be an IP address without a zone, or None"

// isClusterIP reports whether a text is an address that means the same on all machines, which
// one with a zone does not.
func isClusterIP(text string) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && a.Zone() == ""
}

func validateClusterIPs(spec *field.Path, s *corev1.Service) (problems field.ErrorList) {
	one, all := s.Spec.ClusterIP, s.Spec.ClusterIPs
	if one != "" && one != corev1.ClusterIPNone && !isClusterIP(one) {
		problems = append(problems, field.Invalid(spec.Child("clusterIP"), one, notClusterIP))
	}
	// Who applies a Service without the clusterIP that it had leaves clusterIPs, which say it too.
	if len(all) > 0 && one != all[0] && (one != "" || all[0] == corev1.ClusterIPNone) {
		problems = append(problems, field.Invalid(spec.Child("clusterIP"), one, fmt.Sprintf("must be clusterIPs[0], %s, which a Service that is there keeps where clusterIPs is not given: give both or neither", all[0])))
	}
	if len(all) > maxClusterIPs {
		problems = append(problems, field.TooMany(spec.Child("clusterIPs"), len(all), maxClusterIPs))
		return problems
	}
	if len(all) == 0 && one != "" {
		all = []string{one}
	}
	var before corev1.IPFamily
	for i, ip := range all {
		path := spec.Child("clusterIPs").Index(i)
		family := corev1.IPv6Protocol
		if a, err := netip.ParseAddr(ip); err == nil && a.Unmap().Is4() {
			family = corev1.IPv4Protocol
		}
		switch {
		case ip == corev1.ClusterIPNone && len(all) > 1:
			problems = append(problems, field.Invalid(path, ip, "must be the only one: a Service without an address has none"))
		case ip == corev1.ClusterIPNone:
		case !isClusterIP(ip) && len(s.Spec.ClusterIPs) > 0:
			problems = append(problems, field.Invalid(path, ip, notClusterIP))
		case !isClusterIP(ip): // that of clusterIP is said already
		case family == before:
			problems = append(problems, field.Invalid(path, ip, "is of the same family as the one before: give one of IPv4 and one of IPv6"))
		case i < len(s.Spec.IPFamilies) && family != s.Spec.IPFamilies[i]:
			problems = append(problems, field.Invalid(spec.Child("ipFamilies").Index(i), s.Spec.IPFamilies[i], fmt.Sprintf("is not the family of %s, which is %s: put both in the same order", ip, family)))
		}
		before = family
	}
	return problems
}

// What an EndpointSlice may have, as in Kubernetes.
const (
	maxSliceEndpoints    = 1000
	maxSlicePorts        = 20_000
	maxEndpointAddresses = 100
)

var addressTypes = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN}

func validateEndpointSlice(s *discoveryv1.EndpointSlice) (problems field.ErrorList) {
	if !slices.Contains(addressTypes, s.AddressType) {
		problems = append(problems, field.NotSupported(field.NewPath("addressType"), s.AddressType, addressTypes))
	}
	endpoints, ports := field.NewPath("endpoints"), field.NewPath("ports")
	if n := len(s.Endpoints); n > maxSliceEndpoints {
		problems = append(problems, field.TooMany(endpoints, n, maxSliceEndpoints))
	}
	for i, e := range s.Endpoints[:min(len(s.Endpoints), maxSliceEndpoints)] {
		path := endpoints.Index(i).Child("addresses")
		switch n := len(e.Addresses); {
		case n == 0:
			problems = append(problems, field.Required(path, "an endpoint has at least one"))
		case n > maxEndpointAddresses:
			problems = append(problems, field.TooMany(path, n, maxEndpointAddresses))
		}
		for j, text := range e.Addresses[:min(len(e.Addresses), maxEndpointAddresses)] {
			problems = append(problems, validateEndpoint(path.Index(j), text, s.AddressType)...)
		}
	}
	if n := len(s.Ports); n > maxSlicePorts {
		problems = append(problems, field.TooMany(ports, n, maxSlicePorts))
	}
	for i, p := range s.Ports[:min(len(s.Ports), maxSlicePorts)] {
		if p.Port != nil && (*p.Port < 1 || *p.Port > 65535) {
			problems = append(problems, field.Invalid(ports.Index(i).Child("port"), *p.Port, "must be between 1 and 65535"))
		}
		if p.Protocol != nil && !slices.Contains(serviceProtocols, *p.Protocol) {
			problems = append(problems, field.NotSupported(ports.Index(i).Child("protocol"), *p.Protocol, serviceProtocols))
		}
	}
	return problems
}

// validateEndpoint checks an address of an endpoint, where its type is known.
func validateEndpoint(path *field.Path, text string, is discoveryv1.AddressType) field.ErrorList {
	a, err := netip.ParseAddr(text)
	switch is {
	case discoveryv1.AddressTypeFQDN:
		return names.IsFullyQualifiedDomainName(path, text)
	case discoveryv1.AddressTypeIPv4:
		if err != nil || !a.Unmap().Is4() {
			return field.ErrorList{field.Invalid(path, text, "must be an IPv4 address, as addressType says")}
		}
	case discoveryv1.AddressTypeIPv6:
		if err != nil || a.Unmap().Is4() || a.Zone() != "" {
			return field.ErrorList{field.Invalid(path, text, "must be an IPv6 address without a zone, as addressType says")}
		}
	}
	return nil
}
