package api

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/weftnet/weft/registry"
)

// NotAnnouncingLabel, on a Node, keeps the node from answering for addresses on the link, as it
// keeps load balancers of clouds from sending to it. Kubernetes gives the label no value.
const NotAnnouncingLabel = "node.kubernetes.io/exclude-from-external-load-balancers"

// VirtualAddress is an address that one of several nodes has, and another one when that dies:
// for programs of the nodes themselves, as a router that listens on each of them. No Service
// is behind it.
type VirtualAddress struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualAddressSpec `json:"spec"`
}

// VirtualAddressSpec is what users say of a VirtualAddress.
type VirtualAddressSpec struct {
	// Address is one that no node, pod or Service has. No Service is given it of an AddressPool.
	Address string `json:"address"`
	// Nodes selects those that may have it. Empty means all.
	Nodes *metav1.LabelSelector `json:"nodes,omitempty"`
	// Check is what a node must answer to have the address. Empty means nothing.
	Check *AddressCheck `json:"check,omitempty"`
}

// AddressCheck is what a program on a node must answer.
type AddressCheck struct {
	// Port is the one of TCP, 1 to 65535, at which something must accept connections that the
	// node makes to its own loopback address.
	Port int32 `json:"port"`
}

// VirtualAddressKind is the kind of VirtualAddresses.
var VirtualAddressKind = &registry.Kind{GroupVersionKind: GroupVersion.WithKind("VirtualAddress"),
	Plural: "virtualaddresses", Singular: "virtualaddress", New: func() registry.Object { return &VirtualAddress{} },
	Validate: validator(false, validation.NameIsDNSSubdomain, validateVirtualAddress), Keep: keep[*VirtualAddress](nil), Optional: true}

// DeepCopyObject implements runtime.Object.
func (v *VirtualAddress) DeepCopyObject() runtime.Object {
	out := *v
	v.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Nodes = v.Spec.Nodes.DeepCopy()
	if c := v.Spec.Check; c != nil {
		check := *c
		out.Spec.Check = &check
	}
	return &out
}

// Address is the address; the zero Addr where there is none that a node can have, which
// Validate refuses.
func (v *VirtualAddress) Address() netip.Addr {
	if r, err := parseRange(v.Spec.Address + "-" + v.Spec.Address); err == nil {
		return r.First
	}
	return netip.Addr{}
}

// MayHave reports whether a node may have the address; of is its Node's labels.
func (v *VirtualAddress) MayHave(of map[string]string) bool {
	if v.Spec.Nodes == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(v.Spec.Nodes)
	return err == nil && selector.Matches(labels.Set(of))
}

func validateVirtualAddress(v *VirtualAddress) (problems field.ErrorList) {
	spec := field.NewPath("spec")
	if address := spec.Child("address"); v.Spec.Address == "" {
		problems = append(problems, field.Required(address, "write one such as 192.0.2.7"))
	} else if !v.Address().IsValid() {
		problems = append(problems, field.Invalid(address, v.Spec.Address, "must be an address at which others reach one machine, such as 192.0.2.7"))
	}
	problems = append(problems, validateSelector(spec.Child("nodes"), v.Spec.Nodes)...)
	if c := v.Spec.Check; c != nil && (c.Port < 1 || c.Port > 65535) {
		problems = append(problems, field.Invalid(spec.Child("check", "port"), c.Port, "must be between 1 and 65535"))
	}
	return problems
}
