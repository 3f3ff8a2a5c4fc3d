package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Scene is all whom policies can be about.
type Scene struct {
	Namespaces []*Namespace
	// Pods are in the order of their names.
	Pods     []Pod
	Machines []*Machine
	Domains  []*Domain
}

// Pod is a pod with all that policies can tell of it.
type Pod struct {
	// Name is "namespace/pod".
	Name      string
	Identity  *Identity
	Addresses []netip.Addr
}

// Side is one side of connections: pods that no policy can tell apart, or
// something that is no pod.
type Side struct {
	// Name is that of the pod, or what those of several begin with:
	// "default/web-*". What is no pod is "world", a prefix, an address with its
	// domain name, or a node.
	Name string `json:"name"`
	// Pods is how many pods it is.
	Pods int `json:"pods,omitempty"`
}

func (s Side) String() string {
	if s.Pods > 1 {
		return fmt.Sprintf("%s (%d pods)", s.Name, s.Pods)
	}
	return s.Name
}

// sideClass is one side as what policies see of it.
type sideClass struct {
	side Side
	// Party is without an address.
	Party
	// addresses are one of IPv4 and one of IPv6, the zero Addr where the side
	// has none.
	addresses [2]netip.Addr
	seats     [4]*seat
}

// classify finds the classes: pods of one identity that are in the same of the
// prefixes that policies mention, and of the rest of the world what these
// prefixes and the policies' nodes tell apart.
func (c *comparison) classify(before, after []*Policy, s Scene) {
	var mentions prefixMap[struct{}]
	mention := func(p netip.Prefix) { mentions.set(p, struct{}{}) }
	var nodes []labels.Selector
	domains := make(map[string]bool)
	seen := make(map[*Policy]bool)
	for _, list := range [...][]*Policy{before, after} {
		for _, p := range list {
			if seen[p] {
				continue
			}
			seen[p] = true
			for _, rules := range [...][]Rule{p.Ingress, p.Egress} {
				for _, r := range rules {
					for _, peer := range r.Peers {
						switch {
						case peer.Block != nil:
							mention(peer.Block.Prefix)
							for _, e := range peer.Block.Except {
								mention(e)
							}
						case peer.Nodes != nil:
							nodes = append(nodes, peer.Nodes)
						case peer.Domain != "":
							domains[peer.Domain] = true
						}
					}
				}
			}
		}
	}
	domainsOf := make(map[netip.Addr][]string)
	for _, d := range s.Domains {
		if domains[d.Name] {
			for _, a := range d.Addresses {
				mention(netip.PrefixFrom(a, a.BitLen()))
				domainsOf[a] = append(domainsOf[a], d.Name)
			}
		}
	}
	families := c.classifyPods(s.Pods, &mentions, domainsOf)
	taken := c.classifyNodes(s.Machines, nodes, &mentions, domainsOf)
	for p := range taken {
		mention(p)
	}
	for f, root := range roots {
		if !families[f] {
			continue
		}
		mention(root)
		ordered := slices.SortedFunc(maps.Keys(mentions.at), netip.Prefix.Compare)
		for i, p := range ordered {
			if family(p.Addr()) != f || taken[p] {
				continue
			}
			a := firstOutside(p, ordered[i+1:])
			if !a.IsValid() {
				continue
			}
			k := &sideClass{side: Side{Name: p.String()}}
			switch {
			case p == root:
				k.side.Name = outsides[f]
			case p.IsSingleIP():
				k.side.Name = strings.Join(append(slices.Clone(domainsOf[a]), a.String()), " ")
			}
			k.Domains, k.addresses[f] = domainsOf[a], a
			c.classes = append(c.classes, k)
		}
	}
}

var (
	roots    = [2]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	outsides = [2]string{"world", "world (IPv6)"}
)

// classifyPods returns which families pods have.
func (c *comparison) classifyPods(pods []Pod, around *prefixMap[struct{}], domainsOf map[netip.Addr][]string) (families [2]bool) {
	known := make(map[string]*sideClass)
	names := make(map[*sideClass][]string)
	for _, p := range pods {
		var key strings.Builder
		fmt.Fprint(&key, p.Identity.Namespace, "\x00", p.Identity.Labels, "\x00", p.Identity.Ports)
		k := &sideClass{Party: Party{Identity: p.Identity, NamespaceLabels: c.namespaces[p.Identity.Namespace]}}
		for _, a := range p.Addresses {
			if f := family(a); !k.addresses[f].IsValid() {
				k.addresses[f], families[f] = a, true
				fmt.Fprint(&key, f, prefixesOf(a, around))
				k.Domains = append(k.Domains, domainsOf[a]...)
			}
		}
		if before := known[key.String()]; before != nil {
			k = before
		} else {
			known[key.String()] = k
			c.classes = append(c.classes, k)
		}
		k.side.Pods++
		names[k] = append(names[k], p.Name)
	}
	for k, n := range names {
		k.side.Name = together(n)
	}
	return families
}

// classifyNodes makes classes of the nodes if policies select some, and returns
// the prefixes of their addresses.
func (c *comparison) classifyNodes(machines []*Machine, selectors []labels.Selector, around *prefixMap[struct{}], domainsOf map[netip.Addr][]string) map[netip.Prefix]bool {
	taken := make(map[netip.Prefix]bool)
	if len(selectors) == 0 {
		return taken
	}
	known := make(map[string]*sideClass)
	names := make(map[*sideClass][]string)
	for _, m := range machines {
		k := &sideClass{Party: Party{Machines: []labels.Set{m.Labels}}}
		var key strings.Builder
		for _, s := range selectors {
			fmt.Fprint(&key, s.Matches(m.Labels))
		}
		for _, a := range m.Addresses {
			taken[netip.PrefixFrom(a, a.BitLen())] = true
			if f := family(a); !k.addresses[f].IsValid() {
				k.addresses[f] = a
				fmt.Fprint(&key, f, prefixesOf(a, around))
				k.Domains = append(k.Domains, domainsOf[a]...)
			}
		}
		if before := known[key.String()]; before != nil {
			k = before
		} else {
			known[key.String()] = k
			c.classes = append(c.classes, k)
		}
		names[k] = append(names[k], m.Name)
	}
	for k, n := range names {
		if k.side.Name = "node " + n[0]; len(n) > 1 {
			k.side.Name = "nodes " + enumerate(shortened(n, strings.Clone))
		}
	}
	return taken
}

// together names several pods by what their names begin with, up to a dash.
func together(names []string) string {
	slices.Sort(names)
	first, last := names[0], names[len(names)-1]
	if len(names) == 1 {
		return first
	}
	same := 0
	for same < min(len(first), len(last)) && first[same] == last[same] {
		same++
	}
	return first[:strings.LastIndexAny(first[:same], "-/")+1] + "*"
}

// prefixesOf returns those that contain an address.
func prefixesOf(a netip.Addr, mentions *prefixMap[struct{}]) (all []netip.Prefix) {
	for p := range mentions.around(netip.PrefixFrom(a, a.BitLen())) {
		all = append(all, p)
	}
	return all
}

// firstOutside returns the first address of a prefix that is in none of the
// prefixes within it, which follow it in their order; the zero Addr if there is
// none.
func firstOutside(p netip.Prefix, following []netip.Prefix) netip.Addr {
	a := p.Addr()
	for _, f := range following {
		if !p.Contains(f.Addr()) {
			break
		}
		if f.Contains(a) {
			if a = last(f).Next(); !a.IsValid() || !p.Contains(a) {
				return netip.Addr{}
			}
		}
	}
	return a
}

// last returns the last address of a prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
