package api

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	names "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/weftnet/weft/registry"
)

// AddressesAnnotation asks, on a Service of type LoadBalancer, for addresses of AddressPools,
// one of each family at most, separated by commas.
const AddressesAnnotation = "weft.network/addresses"

// LinkClass is the spec.loadBalancerClass that all AddressPools serve, whatever class else.
const LinkClass = "weft.network/link"

// Who announces the addresses of an AddressPool.
const (
	// AnnounceLink has one node, of those that may, answer for each address on the link
	// (ARP, RFC 826; neighbour discovery, RFC 4861).
	AnnounceLink = "link"
	// AnnounceNone leaves it to others, such as a router with a route to the nodes.
	AnnounceNone = "none"
)

// PoolUsable is the condition of an AddressPool that says whether Services may be given all
// of its addresses, and why not.
const PoolUsable = "Usable"

// AddressPool is a set of addresses outside of the cluster that Services of type LoadBalancer
// get theirs from. Which Service has which says its AddressGrant.
type AddressPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   AddressPoolSpec   `json:"spec"`
	Status AddressPoolStatus `json:"status,omitempty"`
}

// StoredAddressPool is the kind AddressPool for who writes the status of pools as they are: an
// API server takes some that Weft refuses, and it is of these that it has something to say.
var StoredAddressPool = func() *registry.Kind {
	k := *AddressPoolKind
	k.Validate = nil
	return &k
}()

// AddressPoolSpec is what users say of an AddressPool.
type AddressPoolSpec struct {
	// Addresses are prefixes, as "192.0.2.0/24", and ranges, as "192.0.2.10-192.0.2.40", of
	// both families; between one and MaxPoolRanges, and none overlaps with another.
	Addresses []string `json:"addresses"`
	// Announce is AnnounceLink or AnnounceNone. Default AnnounceLink.
	Announce string `json:"announce,omitempty"`
	// Nodes selects those that may announce. Empty means all.
	Nodes *metav1.LabelSelector `json:"nodes,omitempty"`
	// Namespaces are those whose Services may have addresses of the pool. Empty means all.
	Namespaces *PoolNamespaces `json:"namespaces,omitempty"`
	// LoadBalancerClass is the spec.loadBalancerClass of the Services that the pool serves,
	// beside those of LinkClass. Empty means those that have none.
	LoadBalancerClass string `json:"loadBalancerClass,omitempty"`
	// AutoAssign says whether Services get addresses that ask neither for a certain one nor for
	// the pool by its name. Default true.
	AutoAssign *bool `json:"autoAssign,omitempty"`
}

// PoolNamespaces are the namespaces that are named and those that are selected.
type PoolNamespaces struct {
	// Names are MaxPoolNamespaces at most.
	Names []string `json:"names,omitempty"`
	// Selector selects by the labels of Namespaces; nil selects none.
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// The bounds of an AddressPool.
const (
	MaxPoolRanges     = 64
	MaxPoolNamespaces = 256
)

// MaxPoolTotal stands in an AddressPool's status for as many addresses or more: what programs
// that read JSON can count to.
const MaxPoolTotal = 1<<53 - 1

// AddressPoolStatus is what the controller says of an AddressPool.
type AddressPoolStatus struct {
	// Total is how many addresses Services may be given, MaxPoolTotal at most, and Used is of
	// how many of the pool's addresses there are AddressGrants.
	Total int64 `json:"total"`
	Used  int64 `json:"used"`
	// Conditions are PoolUsable.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (p *AddressPool) DeepCopyObject() runtime.Object {
	out := *p
	p.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Addresses = slices.Clone(p.Spec.Addresses)
	out.Spec.Nodes = p.Spec.Nodes.DeepCopy()
	if n := p.Spec.Namespaces; n != nil {
		out.Spec.Namespaces = &PoolNamespaces{Names: slices.Clone(n.Names), Selector: n.Selector.DeepCopy()}
	}
	if p.Spec.AutoAssign != nil {
		auto := *p.Spec.AutoAssign
		out.Spec.AutoAssign = &auto
	}
	out.Status.Conditions = slices.Clone(p.Status.Conditions)
	return &out
}

// Assigns reports whether Services get addresses of the pool that do not ask for them.
func (p *AddressPool) Assigns() bool { return p.Spec.AutoAssign == nil || *p.Spec.AutoAssign }

// OnLink reports whether nodes announce the pool's addresses on the link.
func (p *AddressPool) OnLink() bool {
	return p.Spec.Announce == "" || p.Spec.Announce == AnnounceLink
}

// ServesClass reports whether the pool serves a Service of type LoadBalancer that has this
// spec.loadBalancerClass, nil for none.
func (p *AddressPool) ServesClass(class *string) bool {
	switch {
	case class == nil || *class == "":
		return p.Spec.LoadBalancerClass == ""
	default:
		return *class == LinkClass || *class == p.Spec.LoadBalancerClass
	}
}

// ServesNamespace reports whether Services of a namespace may have addresses of the pool; of
// is its Namespace's labels.
func (p *AddressPool) ServesNamespace(name string, of map[string]string) bool {
	n := p.Spec.Namespaces
	return n == nil || slices.Contains(n.Names, name) || selects(n.Selector, of)
}

// MayAnnounce reports whether a node may announce the pool's addresses, if it is ready; of is
// its Node's labels.
func (p *AddressPool) MayAnnounce(of map[string]string) bool {
	return p.OnLink() && (p.Spec.Nodes == nil || selects(p.Spec.Nodes, of))
}

// selects reports whether a selector is one, and selects what has some labels.
func selects(s *metav1.LabelSelector, of map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(of))
}

// AddressRange is a range of addresses of one family, First and Last among them.
type AddressRange struct{ First, Last netip.Addr }

func (r AddressRange) String() string {
	if r.First == r.Last {
		return r.First.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

// Contains reports whether an address is in the range.
func (r AddressRange) Contains(a netip.Addr) bool {
	return a.BitLen() == r.First.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// Overlaps reports whether two ranges have an address in common.
func (r AddressRange) Overlaps(o AddressRange) bool {
	return r.First.BitLen() == o.First.BitLen() && r.First.Compare(o.Last) <= 0 && o.First.Compare(r.Last) <= 0
}

// Len is how many addresses the range has, MaxPoolTotal at most.
func (r AddressRange) Len() int64 {
	first, last := r.First.As16(), r.Last.As16()
	n, borrow := uint64(0), 0
	for i := 15; i >= 0; i-- {
		digit := int(last[i]) - int(first[i]) - borrow
		borrow = 0
		if digit < 0 {
			digit, borrow = digit+256, 1
		}
		switch at := 8 * (15 - i); {
		case digit != 0 && at >= 56:
			return MaxPoolTotal
		default:
			n |= uint64(digit) << at
		}
	}
	return int64(min(n, math.MaxInt64-1, MaxPoolTotal-1)) + 1
}

// RangeOf is a prefix as a range.
func RangeOf(p netip.Prefix) AddressRange {
	p = p.Masked()
	last := p.Addr().AsSlice()
	for i := range last {
		if host := p.Bits() - 8*i; host < 8 {
			last[i] |= byte(0xff >> max(host, 0))
		}
	}
	end, _ := netip.AddrFromSlice(last)
	return AddressRange{p.Addr(), end}
}

// Ranges returns the pool's addresses in the order in which they are written. What is no
// prefix or range, which Validate refuses, is left out.
func (p *AddressPool) Ranges() (ranges []AddressRange) {
	for _, text := range p.Spec.Addresses[:min(len(p.Spec.Addresses), MaxPoolRanges)] {
		if r, err := parseRange(text); err == nil {
			ranges = append(ranges, r)
		}
	}
	return ranges
}

// notPooled are addresses that are nobody's to announce: of no network, of the machine itself,
// of one link, of groups, and those of IPv4 in the form of IPv6.
var notPooled = func() (all []AddressRange) {
	for _, text := range []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/127", "::ffff:0:0/96", "fe80::/10", "ff00::/8"} {
		all = append(all, RangeOf(netip.MustParsePrefix(text)))
	}
	return all
}()

// parseRange parses a prefix or a range of an AddressPool.
func parseRange(s string) (AddressRange, error) {
	var r AddressRange
	if first, last, isRange := strings.Cut(s, "-"); isRange {
		var errs [2]error
		r.First, errs[0] = netip.ParseAddr(strings.TrimSpace(first))
		r.Last, errs[1] = netip.ParseAddr(strings.TrimSpace(last))
		switch {
		case errs[0] != nil || errs[1] != nil || r.First.Zone() != "" || r.Last.Zone() != "":
			return r, fmt.Errorf("%q is no range such as 192.0.2.10-192.0.2.40", s)
		case r.First.BitLen() != r.Last.BitLen():
			return r, fmt.Errorf("%q begins in one family and ends in the other: write a range for each", s)
		case r.Last.Less(r.First):
			return r, fmt.Errorf("%q ends before it begins: write %s-%s", s, r.Last, r.First)
		}
	} else {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		switch {
		case err != nil:
			return r, fmt.Errorf("%q is neither a prefix such as 192.0.2.0/24 nor a range such as 192.0.2.10-192.0.2.40", s)
		case p != p.Masked():
			return r, fmt.Errorf("%s has host bits set: write %s, or %s-%s for that address alone", s, p.Masked(), p.Addr(), p.Addr())
		}
		r = RangeOf(p)
	}
	for _, n := range notPooled {
		if r.Overlaps(n) {
			return r, fmt.Errorf("%s has addresses of %s, at which nobody outside of a machine or link can be reached", s, n)
		}
	}
	return r, nil
}

func validateAddressPool(p *AddressPool) (problems field.ErrorList) {
	spec := field.NewPath("spec")
	addresses := spec.Child("addresses")
	switch n := len(p.Spec.Addresses); {
	case n == 0:
		problems = append(problems, field.Required(addresses, "write prefixes such as 192.0.2.0/24 or ranges such as 192.0.2.10-192.0.2.40"))
	case n > MaxPoolRanges:
		problems = append(problems, field.TooMany(addresses, n, MaxPoolRanges))
	}
	var before []AddressRange
	for i, text := range p.Spec.Addresses[:min(len(p.Spec.Addresses), MaxPoolRanges)] {
		r, err := parseRange(text)
		if err != nil {
			problems = append(problems, field.Invalid(addresses.Index(i), text, err.Error()))
		} else if j := slices.IndexFunc(before, r.Overlaps); j >= 0 {
			problems = append(problems, field.Invalid(addresses.Index(i), text, "has addresses of "+before[j].String()+", which is written before: write each once"))
		} else {
			before = append(before, r)
		}
	}
	if a := p.Spec.Announce; a != "" {
		problems = append(problems, validateOneOf(spec.Child("announce"), a, []string{AnnounceLink, AnnounceNone})...)
	}
	problems = append(problems, validateSelector(spec.Child("nodes"), p.Spec.Nodes)...)
	if n := p.Spec.Namespaces; n != nil {
		path := spec.Child("namespaces")
		if len(n.Names) == 0 && n.Selector == nil {
			problems = append(problems, field.Required(path, "write names or a selector, or leave it out for all namespaces"))
		}
		if many := len(n.Names); many > MaxPoolNamespaces {
			problems = append(problems, field.TooMany(path.Child("names"), many, MaxPoolNamespaces))
		}
		for i, name := range n.Names[:min(len(n.Names), MaxPoolNamespaces)] {
			for _, problem := range validation.NameIsDNSLabel(name, false) {
				problems = append(problems, field.Invalid(path.Child("names").Index(i), name, problem))
			}
		}
		problems = append(problems, validateSelector(path.Child("selector"), n.Selector)...)
	}
	if c := p.Spec.LoadBalancerClass; c != "" {
		for _, problem := range names.IsQualifiedName(c) {
			problems = append(problems, field.Invalid(spec.Child("loadBalancerClass"), c, problem))
		}
	}
	return problems
}

// AddressGrant says which Service has an address of an AddressPool. Its name is GrantName of
// the address, so that none is given twice. The controller alone writes it. Nodes go by it,
// and not by what a Service says of itself: they serve and announce a pool's address for the
// Service that has the grant, and for no other.
type AddressGrant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec AddressGrantSpec `json:"spec"`
}

// AddressGrantSpec is who has the address.
type AddressGrantSpec struct {
	// Namespace and Name are the Service's, UID tells it from an earlier one of that name.
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Pool is the name of the AddressPool that the address is of. It may be there no more,
	// or have the address no more: the Service keeps it.
	Pool string `json:"pool"`
	// Turn is another each time the controller begins to write the address into the Service's
	// status, but for the first, so that who takes the grant away by what was read before
	// finds it changed.
	Turn bool `json:"turn,omitempty"`
}

// Service is the key of the Service.
func (s AddressGrantSpec) Service() registry.Key {
	return registry.Key{Namespace: s.Namespace, Name: s.Name}
}

// IsOf reports whether the grant is a Service's. The UID alone says nothing: who writes a
// Service may be able to give it another's.
func (g *AddressGrant) IsOf(svc *corev1.Service) bool {
	return g.Spec.Service() == registry.KeyOf(svc) && g.Spec.UID == svc.UID
}

// Address is what is granted; the zero Addr where the name is none of GrantName's.
func (g *AddressGrant) Address() netip.Addr {
	a, err := netip.ParseAddr(strings.ReplaceAll(g.Name, "-", ":"))
	if err != nil || GrantName(a) != g.Name {
		return netip.Addr{}
	}
	return a
}

// GrantName is the name of the AddressGrant of an address: the address itself, with "-" for
// ":", and "0" before or behind where it would begin or end with that.
func GrantName(a netip.Addr) string {
	name := strings.ReplaceAll(a.Unmap().WithZone("").String(), ":", "-")
	if strings.HasPrefix(name, "-") {
		name = "0" + name
	}
	if strings.HasSuffix(name, "-") {
		name += "0"
	}
	return name
}

// DeepCopyObject implements runtime.Object.
func (g *AddressGrant) DeepCopyObject() runtime.Object {
	out := *g
	g.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

func validateAddressGrant(g *AddressGrant) (problems field.ErrorList) {
	if !g.Address().IsValid() {
		problems = append(problems, field.Invalid(field.NewPath("metadata", "name"), g.Name, `must be an IP address, with "-" for ":", such as 192.0.2.7 or 2001-db8--7`))
	}
	spec := field.NewPath("spec")
	for _, f := range []struct{ name, value string }{{"namespace", g.Spec.Namespace}, {"name", g.Spec.Name}, {"uid", string(g.Spec.UID)}, {"pool", g.Spec.Pool}} {
		if f.value == "" {
			problems = append(problems, field.Required(spec.Child(f.name), "a grant says whose the address is, and of which pool"))
		}
	}
	return problems
}
