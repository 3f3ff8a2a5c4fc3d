package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// Grant says which Service has an address of the cluster, or a port of all nodes. Its name is
// the address, or the port and protocol as "30080-tcp", so that none is given twice.
//
// Nodes read Grants, and go by nothing that a Service says of itself: where there are Grants,
// who writes a Service writes all of it, its age, its UID, its status and its annotations. A
// Grant the controller alone writes, and there is one. It costs a node one more watch, and for
// each address and port of nodes some hundred bytes; agents may read all keys of Weft's there.
type Grant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec GrantSpec `json:"spec"`
}

// GrantSpec is the value of a Grant's key.
type GrantSpec struct {
	// Namespace and Name are the Service's, UID tells it from an earlier one of that name.
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Port is what the port of nodes is for, a port of the Service, as "80/TCP", or HealthPort;
	// empty for an address.
	Port string `json:"port,omitempty"`
}

// Service is the key of the Service.
func (s GrantSpec) Service() registry.Key {
	return registry.Key{Namespace: s.Namespace, Name: s.Name}
}

// IsOf reports whether the Grant is a Service's. The UID alone says nothing: who writes a
// Service can give it another's.
func (g *Grant) IsOf(svc *corev1.Service) bool {
	return g.Spec.Service() == registry.KeyOf(svc) && g.Spec.UID == svc.UID
}

// DeepCopyObject implements runtime.Object.
func (g *Grant) DeepCopyObject() runtime.Object {
	out := *g
	g.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// GrantKind is the kind of Grants. Kubernetes does not have it, as its API server gives Services
// their addresses by itself.
var GrantKind = &registry.Kind{
	GroupVersionKind: api.GroupVersion.WithKind("ServiceGrant"), Plural: "servicegrants", Singular: "servicegrant",
	New: func() registry.Object { return &Grant{} },
	Validate: func(o registry.Object) error {
		if s := o.(*Grant).Spec; s.Namespace == "" || s.Name == "" || s.UID == "" {
			return fmt.Errorf("spec: it names no Service, but %s/%s with UID %q", s.Namespace, s.Name, s.UID)
		}
		return nil
	},
	Layout: &registry.Layout{},
}

// NodePortGrant is the name of the Grant of a port of nodes.
func NodePortGrant(port int32, protocol corev1.Protocol) string {
	return fmt.Sprintf("%d-%s", port, strings.ToLower(string(cmp.Or(protocol, corev1.ProtocolTCP))))
}

// grant is what of a Grant is compiled.
type grant struct {
	of  registry.Key
	uid types.UID
	what
}

// what is an address of the cluster, or a port of nodes.
type what struct {
	address  netip.Addr
	port     uint16
	protocol plan.Protocol
}

// readGrant reads a Grant; nil where its name is none that the controller gives.
func readGrant(o registry.Object, before *grant) *grant {
	g := o.(*Grant)
	made := &grant{of: g.Spec.Service(), uid: g.Spec.UID}
	if a, err := netip.ParseAddr(g.Name); err == nil {
		made.address = a
	} else {
		number, protocol, _ := strings.Cut(g.Name, "-")
		n, err := strconv.ParseUint(number, 10, 16)
		known := false
		if made.protocol, known = protocols[corev1.Protocol(strings.ToUpper(protocol))]; !known || err != nil {
			return nil
		}
		made.port = uint16(n)
	}
	if made.name() != g.Name {
		return nil
	}
	if before != nil && *before == *made {
		return before
	}
	return made
}

// name is that of the Grant.
func (w what) name() string {
	if w.address.IsValid() {
		return w.address.String()
	}
	return NodePortGrant(int32(w.port), corev1.Protocol(w.protocol.String()))
}

func compareGrants(a, b *grant) int {
	return cmp.Or(a.of.Compare(b.of), a.what.compare(b.what))
}

func (w what) compare(o what) int {
	return cmp.Or(w.address.Compare(o.address), cmp.Compare(w.port, o.port), cmp.Compare(w.protocol, o.protocol))
}

// granted is what a Service has Grants of.
type granted struct {
	// all are those of Services of its name, in order.
	all []*grant
	uid types.UID
}

// has reports whether the Service has the Grant of something.
func (g granted) has(w what) bool {
	i, found := slices.BinarySearchFunc(g.all, w, func(one *grant, w what) int { return one.what.compare(w) })
	return found && g.all[i].uid == g.uid
}

// granted returns what a Service has Grants of.
func (c *Compiler) granted(s *service) granted {
	all := c.grants.All()
	first, _ := slices.BinarySearchFunc(all, s.key, func(g *grant, k registry.Key) int { return g.of.Compare(k) })
	end := first
	for end < len(all) && all[end].of == s.key {
		end++
	}
	return granted{all[first:end], s.uid}
}
