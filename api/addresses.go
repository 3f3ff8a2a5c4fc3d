package api

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	networkv1 "github.com/openshift/api/network/v1"
)

// Annotations of a HostSubnet, whose type has room for one subnet and one
// address only.
const (
	// AdditionalSubnets holds the subnets beyond HostSubnet.subnet, separated
	// by commas.
	AdditionalSubnets = "weft.network/additional-subnets"
	// AdditionalHostIPs holds the addresses of the node beyond
	// HostSubnet.hostIP, separated by commas.
	AdditionalHostIPs = "weft.network/additional-host-ips"
)

// Subnets returns a HostSubnet's subnets, that of HostSubnet.subnet first;
// none where none is assigned yet. An error names the first that is none.
func Subnets(h *networkv1.HostSubnet) ([]netip.Prefix, error) {
	return parseAll(h.Subnet, h.Annotations[AdditionalSubnets], parseSubnet)
}

// HostAddresses returns the addresses of a HostSubnet's node, that of
// HostSubnet.hostIP first. An error names the first that is none.
func HostAddresses(h *networkv1.HostSubnet) ([]netip.Addr, error) {
	return parseAll(h.HostIP, h.Annotations[AdditionalHostIPs], parseAddress)
}

// MaxNodeAddresses is how many addresses in a Node's status are believed. Who owns a
// node's agent or kubelet writes there what he likes, and each address is work for all
// other nodes.
const MaxNodeAddresses = 16

// NodeAddresses returns the internal addresses in a Node's status, the primary
// one first, as AddressesOf does.
func NodeAddresses(n *corev1.Node) []netip.Addr {
	addresses, _ := AddressesOf(n, corev1.NodeInternalIP)
	return addresses
}

// AddressesOf returns the addresses of some types in a Node's status, each once. What
// does not parse, which Validate would refuse, is left out. Of more than
// MaxNodeAddresses it returns the first, and an error that says so.
func AddressesOf(n *corev1.Node, types ...corev1.NodeAddressType) ([]netip.Addr, error) {
	var addresses []netip.Addr
	for _, a := range n.Status.Addresses {
		if !slices.Contains(types, a.Type) {
			continue
		}
		address, err := parseAddress(a.Address)
		switch {
		case err != nil || slices.Contains(addresses, address):
		case len(addresses) == MaxNodeAddresses:
			return addresses, fmt.Errorf("address %s in its status.addresses is one more than the %d that are used, and it and those behind it are left out; list no more there", address, MaxNodeAddresses)
		default:
			addresses = append(addresses, address)
		}
	}
	return addresses, nil
}

// OnLink returns the prefixes that a Node's agent says its interfaces are on-link
// with. What does not parse is left out.
func OnLink(n *corev1.Node) []netip.Prefix {
	var prefixes []netip.Prefix
	for s := range strings.SplitSeq(n.Annotations[OnLinkAnnotation], ",") {
		if p, err := netip.ParsePrefix(strings.TrimSpace(s)); err == nil {
			prefixes = append(prefixes, p.Masked())
		}
	}
	return prefixes
}

// parseAll parses a first value, which may be empty, and others separated by
// commas.
func parseAll[T any](first, others string, parse func(string) (T, error)) ([]T, error) {
	var all []T
	for s := range strings.SplitSeq(first+","+others, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		v, err := parse(s)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// parseAddress parses an address that a node can have.
func parseAddress(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return a, fmt.Errorf("%q is not an IP address", s)
	case a.Is4In6(), a.Zone() != "", a.IsUnspecified(), a.IsMulticast(), a.IsLoopback(),
		a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return a, fmt.Errorf("%s is not an address that a node can be reached at", s)
	}
	return a, nil
}

// parseCIDR parses a CIDR whose host bits are zero.
func parseCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil || p.Addr().Is4In6():
		return p, fmt.Errorf("%q is not a CIDR such as 10.1.0.0/16", s)
	case p != p.Masked():
		return p, fmt.Errorf("%s has host bits set; write %s", s, p.Masked())
	}
	return p, nil
}

// minHostBits is how many bits a node's subnet must leave for its pods:
// network, gateway, broadcast and one pod.
const minHostBits = 2

// parseSubnet parses the CIDR of a node's subnet.
func parseSubnet(s string) (netip.Prefix, error) {
	p, err := parseCIDR(s)
	if err == nil && p.Addr().BitLen()-p.Bits() < minHostBits {
		err = fmt.Errorf("%s is too small: a node's subnet needs %d host bits", s, minHostBits)
	}
	return p, err
}

// ClusterAddresses returns those that a Service has in the cluster, as it says itself. One with a zone,
// which an earlier registry let in, is none: no machine has it.
func ClusterAddresses(s *corev1.Service) (all []netip.Addr) {
	texts := s.Spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{s.Spec.ClusterIP}
	}
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// ServiceRanges returns where Services get their addresses, as they are written: what a ClusterConfig
// says, or else the ClusterNetwork, which is nil where there is none.
func ServiceRanges(config *ClusterConfig, network *networkv1.ClusterNetwork) (all []netip.Prefix) {
	texts := config.Spec.ServiceNetworks
	if len(texts) == 0 && network != nil {
		texts = []string{network.ServiceNetwork}
	}
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Masked())
		}
	}
	return all
}
