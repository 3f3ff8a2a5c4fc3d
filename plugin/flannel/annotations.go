package flannel

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// The annotations by which a Node tells the others how it is reached.
const (
	annotationPrefix = "flannel.alpha.coreos.com/"

	// managedAnnotation is "true" on a Node that has told.
	managedAnnotation     = annotationPrefix + "kube-subnet-manager"
	backendTypeAnnotation = annotationPrefix + "backend-type"
	backendDataAnnotation = annotationPrefix + "backend-data"
	backendV6Annotation   = annotationPrefix + "backend-v6-data"
	publicIPAnnotation    = annotationPrefix + "public-ip"
	publicIPv6Annotation  = annotationPrefix + "public-ipv6"

	// An administrator says by these that others reach the node by an address
	// that it does not know of, or by which of its own.
	publicIPOverwriteAnnotation   = annotationPrefix + "public-ip-overwrite"
	publicIPv6OverwriteAnnotation = annotationPrefix + "public-ipv6-overwrite"
	nodePublicIPAnnotation        = annotationPrefix + "node-public-ip"
	nodePublicIPv6Annotation      = annotationPrefix + "node-public-ipv6"

	// configAnnotation holds the configuration that a Weft node last went by,
	// for when the ConfigMap is gone or wrong.
	configAnnotation = "weft.network/flannel-config"
)

// The values that need to be told from others.
const (
	managed = "true"
	noData  = "null" // of a backend that has nothing to tell
)

var nodeWords = words{
	backendType: backendTypeAnnotation, publicIP: publicIPAnnotation, publicIPv6: publicIPv6Annotation,
	data: backendDataAnnotation, dataV6: backendV6Annotation,
	otherSubnet: "delete the Node that is gone, or give kube-controller-manager another --cluster-cidr and make the Node anew",
}

// nodeLease returns the lease that a Node is, or nil where it has no podCIDR,
// and what of podCIDRs cannot be used. A Node that has not told how it is
// reached is as a reservation.
func nodeLease(n *corev1.Node) (*lease, []plugin.Problem) {
	at := reference{api.Node, registry.KeyOf(n)}
	var problems []plugin.Problem
	var s Subnet
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	for _, text := range cidrs {
		p, err := netip.ParsePrefix(text)
		family := &s.V4
		if p.Addr().Is6() {
			family = &s.V6
		}
		var wrong string
		switch {
		case err != nil || !suitsNode(p) || p.Addr().BitLen()-p.Bits() < minHostBits:
			wrong = "is not a prefix that pods can get addresses from"
		case family.IsValid():
			wrong = fmt.Sprintf("is of the family of %s, and a Node has one podCIDR of each", family)
		default:
			*family = p
			continue
		}
		problems = append(problems, plugin.Problem{Kind: at.kind, Key: at.key, Message: fmt.Sprintf("spec.podCIDRs: %q %s; make the Node anew", text, wrong)})
	}
	if s.IsZero() {
		return nil, problems
	}
	l := &lease{at: at, subnet: s, node: n, born: n.CreationTimestamp.UnixNano()}
	if n.Annotations[managedAnnotation] == managed {
		l.Attributes, l.err = nodeAttributes(n)
	}
	return l, problems
}

// minHostBits is how many bits a node's subnet must leave for its pods:
// network, gateway, broadcast and one pod.
const minHostBits = 2

// nodeAttributes reads what a Node says of itself. Errors name the annotation.
func nodeAttributes(n *corev1.Node) (Attributes, error) {
	a := n.Annotations
	v4, v6 := a[publicIPAnnotation], a[publicIPv6Annotation]
	return leaseJSON{
		PublicIP: &v4, PublicIPv6: &v6, BackendType: a[backendTypeAnnotation],
		BackendData: json.RawMessage(a[backendDataAnnotation]), BackendV6Data: json.RawMessage(a[backendV6Annotation]),
	}.attributes(nodeWords)
}

// announcement returns the annotations that a Node must have, given those that
// it has; an empty value stands for one that it must not have.
func (c configuration) announcement(node plugin.Node, has map[string]string) (map[string]string, error) {
	attributes, err := c.settings.attributes(node)
	if err != nil {
		return nil, err
	}
	if attributes.PublicIP, err = publicAddress(attributes.PublicIP, has, publicIPOverwriteAnnotation, nodePublicIPAnnotation); err != nil {
		return nil, err
	}
	if attributes.PublicIPv6, err = publicAddress(attributes.PublicIPv6, has, publicIPv6OverwriteAnnotation, nodePublicIPv6Annotation); err != nil {
		return nil, err
	}
	want := map[string]string{
		managedAnnotation: managed, backendTypeAnnotation: attributes.BackendType,
		publicIPAnnotation: "", backendDataAnnotation: "", publicIPv6Annotation: "", backendV6Annotation: "",
		configAnnotation: string(c.text),
	}
	if a := attributes.PublicIP; a.IsValid() {
		want[publicIPAnnotation], want[backendDataAnnotation] = a.String(), attributes.Tunnel.annotation()
	}
	if a := attributes.PublicIPv6; a.IsValid() {
		want[publicIPv6Annotation], want[backendV6Annotation] = a.String(), attributes.TunnelV6.annotation()
	}
	return want, nil
}

// annotation is the value for flanneld, which when it starts finds the MAC
// address by the order of the fields.
func (t *TunnelEnd) annotation() string {
	if t == nil {
		return noData
	}
	value, _ := json.Marshal(tunnelJSON{t.VNI, t.MAC.String()}) // always marshals
	return string(value)
}

// publicAddress returns the address by which others reach a node that has own:
// what the first of the annotations that is there says. Without an address of
// its own the node does not use that family.
func publicAddress(own netip.Addr, has map[string]string, overwrite, which string) (netip.Addr, error) {
	if !own.IsValid() {
		return own, nil
	}
	name := overwrite
	if has[overwrite] == "" {
		name = which
	}
	text := cmp.Or(has[name], own.String())
	a, err := netip.ParseAddr(text)
	if err != nil || a.Is4() != own.Is4() || a.IsUnspecified() || !ordinary(a) {
		return netip.Addr{}, fmt.Errorf("annotation %s: %q is not a node's address of the family of %s; correct or remove it", name, text, own)
	}
	return a, nil
}

// announces reports whether annotations are as wanted.
func announces(has, want map[string]string) bool {
	for name, value := range want {
		if has[name] != value {
			return false
		}
	}
	return true
}
