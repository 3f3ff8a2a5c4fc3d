package api

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Tag says what a cluster-wide tag stands for: all pods that no policy can tell
// apart, as they are of one namespace and have the same labels and named ports.
// Its name is its number in decimal digits, from MinTag to MaxTag, so that
// whoever creates it has that number to himself. Agents make Tags for their
// nodes' pods; the leading controller collects those that no NodePods names.
// Two Tags may say the same.
type Tag struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec TagSpec `json:"spec"`
}

// The least and the greatest number of a Tag.
const (
	MinTag = 10
	MaxTag = 1<<23 - 1
)

// TagSpec is what pods of one tag have in common. It never changes but for
// UnusedSince.
type TagSpec struct {
	Namespace string `json:"namespace"`
	// Labels are those of the pods' that policies can see.
	Labels map[string]string `json:"labels,omitempty"`
	// Ports are the pods' named ports, in the order of name, then protocol.
	Ports []TagPort `json:"ports,omitempty"`
	// UnusedSince is when the controller first found no pod of the tag. An agent
	// that takes the Tag into use again removes it first; so a controller that
	// is about to delete the Tag at an older resource version fails.
	UnusedSince *metav1.Time `json:"unusedSince,omitempty"`
}

// TagPort is a named port of pods.
type TagPort struct {
	Name string `json:"name"`
	// Protocol is TCP, UDP or SCTP.
	Protocol string `json:"protocol"`
	Port     int32  `json:"port"`
}

// DeepCopyObject implements runtime.Object.
func (t *Tag) DeepCopyObject() runtime.Object {
	out := *t
	t.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Labels = maps.Clone(t.Spec.Labels)
	out.Spec.Ports = slices.Clone(t.Spec.Ports)
	out.Spec.UnusedSince = t.Spec.UnusedSince.DeepCopy()
	return &out
}

// NodePods is what other nodes must know of a node's pods: which addresses have
// which tag. Its name is the node's. The node's agent writes it; it is one
// object for all of the node's pods, so that a pod costs those who follow it
// its address and no object of its own.
type NodePods struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Pods are in the order of their tags.
	Pods []TaggedPods `json:"pods,omitempty"`
}

// TaggedPods are a node's pods of one tag.
type TaggedPods struct {
	Tag int32 `json:"tag"`
	// Addresses are those of all these pods, in ascending order.
	Addresses []string `json:"addresses"`
}

// DeepCopyObject implements runtime.Object.
func (n *NodePods) DeepCopyObject() runtime.Object {
	out := *n
	n.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Pods = slices.Clone(n.Pods)
	for i := range out.Pods {
		out.Pods[i].Addresses = slices.Clone(out.Pods[i].Addresses)
	}
	return &out
}

// NodeReport is what a node's agent says of the policies in force there. Its
// name is the node's. Agents do not follow it.
type NodeReport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Enforced is, by the plural name of a kind of policies, the greatest
	// resource version of those that concern the node and are in its data plane.
	// A policy that selects pods of the node is in force there if its own
	// resource version is not greater.
	Enforced map[string]string `json:"enforced,omitempty"`
	// Problems are policies that the node cannot enforce as they are written.
	Problems []PolicyProblem `json:"problems,omitempty"`
	// Untold are the namespaces of policies with more such problems than are told,
	// "" for those of the cluster; UntoldAnywhere among them stands for all others.
	Untold []string `json:"untold,omitempty"`
}

// UntoldAnywhere stands for all namespaces.
const UntoldAnywhere = "*"

// PolicyProblem is a policy that cannot be enforced as it is written.
type PolicyProblem struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Message   string `json:"message"`
}

// DeepCopyObject implements runtime.Object.
func (n *NodeReport) DeepCopyObject() runtime.Object {
	out := *n
	n.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Enforced = maps.Clone(n.Enforced)
	out.Problems = slices.Clone(n.Problems)
	out.Untold = slices.Clone(n.Untold)
	return &out
}

// DomainName is what the leading controller found a domain name in a policy to
// stand for. Its name is the domain name in lower case, without a dot at its end.
type DomainName struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Addresses are in ascending order.
	Addresses []string `json:"addresses,omitempty"`
	// Problem is why the name could not be resolved of late, or empty. The
	// addresses found last stay.
	Problem string `json:"problem,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (d *DomainName) DeepCopyObject() runtime.Object {
	out := *d
	d.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Addresses = slices.Clone(d.Addresses)
	return &out
}

// tagName is for Tags, whose names are numbers.
func tagName(name string, _ bool) []string {
	if n, err := strconv.ParseUint(name, 10, 32); err != nil || n < MinTag || n > MaxTag || strconv.FormatUint(n, 10) != name {
		return []string{"must be a number from " + strconv.Itoa(MinTag) + " to " + strconv.Itoa(MaxTag)}
	}
	return nil
}

func validateTag(t *Tag) field.ErrorList {
	spec := field.NewPath("spec")
	var problems field.ErrorList
	for _, problem := range validation.NameIsDNSLabel(t.Spec.Namespace, false) {
		problems = append(problems, field.Invalid(spec.Child("namespace"), t.Spec.Namespace, problem))
	}
	problems = append(problems, metav1validation.ValidateLabels(t.Spec.Labels, spec.Child("labels"))...)
	for i, p := range t.Spec.Ports {
		at := spec.Child("ports").Index(i)
		if p.Name == "" {
			problems = append(problems, field.Required(at.Child("name"), "a port without a name is none that a policy can name"))
		}
		problems = append(problems, validateOneOf(at.Child("protocol"), corev1.Protocol(p.Protocol), transports)...)
		problems = append(problems, validatePortNumber(at.Child("port"), p.Port)...)
		if i > 0 && compareTagPorts(t.Spec.Ports[i-1], p) >= 0 {
			problems = append(problems, field.Invalid(at, p.Name, "must be in the order of name, then protocol, and there once"))
		}
	}
	return problems
}

// compareTagPorts orders by name, then protocol: TCP, UDP, SCTP.
func compareTagPorts(a, b TagPort) int {
	protocol := func(p TagPort) int { return slices.Index(transports, corev1.Protocol(p.Protocol)) }
	return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(protocol(a), protocol(b)))
}

func validateNodePods(n *NodePods) field.ErrorList {
	var problems field.ErrorList
	holder := map[netip.Addr]*field.Path{}
	for i, p := range n.Pods {
		at := field.NewPath("pods").Index(i)
		switch tag := at.Child("tag"); {
		case p.Tag < MinTag || p.Tag > MaxTag:
			problems = append(problems, field.Invalid(tag, p.Tag, "must be between "+strconv.Itoa(MinTag)+" and "+strconv.Itoa(MaxTag)))
		case i > 0 && p.Tag <= n.Pods[i-1].Tag:
			problems = append(problems, field.Invalid(tag, p.Tag, "must be greater than that before, "+strconv.Itoa(int(n.Pods[i-1].Tag))))
		}
		if len(p.Addresses) == 0 {
			problems = append(problems, field.Required(at.Child("addresses"), "leave out a tag that no pod has"))
		}
		addresses, wrong := validateAddresses(at.Child("addresses"), p.Addresses)
		problems = append(problems, wrong...)
		for _, a := range addresses {
			if other := holder[a]; other != nil {
				problems = append(problems, field.Invalid(at.Child("addresses"), a.String(), "is in "+other.String()+", too"))
			}
			holder[a] = at
		}
	}
	return problems
}

func validateDomainName(d *DomainName) field.ErrorList {
	_, problems := validateAddresses(field.NewPath("addresses"), d.Addresses)
	return problems
}

// validateAddresses returns those of a list of addresses that are some. They must
// be in the form that netip gives them and in ascending order.
func validateAddresses(path *field.Path, list []string) (addresses []netip.Addr, problems field.ErrorList) {
	var before netip.Addr
	for i, s := range list {
		a, err := netip.ParseAddr(s)
		switch {
		case err != nil || a.Is4In6() || a.Zone() != "":
			problems = append(problems, field.Invalid(path.Index(i), s, "must be an IP address"))
			continue
		case a.String() != s:
			problems = append(problems, field.Invalid(path.Index(i), s, "must be written as "+a.String()))
		case before.Compare(a) >= 0:
			problems = append(problems, field.Invalid(path.Index(i), s, "must be greater than that before, "+before.String()))
		}
		before = a
		addresses = append(addresses, a)
	}
	return addresses, problems
}
