package openshift

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/subnet"
)

// host is what a HostSubnet means: the ends of the tunnels to a machine, and
// the pods' addresses behind it.
type host struct {
	object *networkv1.HostSubnet
	name   string
	// addresses are the machine's own, that of the tunnels first. Empty if
	// there is none, or if an older HostSubnet has the first.
	addresses []netip.Addr
	// subnets are those that are valid and that no older HostSubnet has.
	subnets []netip.Prefix
	// claims are all that are valid, held or not.
	claims []netip.Prefix
	// garbled: one is not valid, so that what it was meant to be is not known.
	garbled bool
	// ghost: no node stands behind it.
	ghost    bool
	problems []string
}

// origin says where entries made of the host come from.
func (h *host) origin() string { return api.HostSubnet.Kind + " " + h.name }

// uid is that of the Node that the HostSubnet was last written for.
func (h *host) uid() types.UID { return types.UID(h.object.Annotations[NodeUID]) }

func (h *host) problem(format string, args ...any) {
	h.problems = append(h.problems, fmt.Sprintf(format, args...))
}

// waits reports whether the HostSubnet is yet to be given its subnet.
func (h *host) waits() bool { return len(h.claims) == 0 && !h.garbled }

// claimsFamily reports whether a subnet of the family is claimed.
func (h *host) claimsFamily(f subnet.Family) bool {
	return slices.ContainsFunc(h.claims, func(p netip.Prefix) bool { return subnet.FamilyOf(p.Addr()) == f })
}

// reachedAt returns the addresses at which pods of other nodes reach the host under their
// own: where its tunnel ends, and of the other family the first. To the rest they get as to
// machines outside of the cluster, since a node that draws packets for whatever its Node
// lists could list anybody's.
func (h *host) reachedAt() []netip.Addr {
	out := h.addresses[:1:1]
	for _, a := range h.addresses[1:] {
		if a.Is4() != out[0].Is4() {
			return append(out, a)
		}
	}
	return out
}

// readHost returns what a HostSubnet says, without regard to others.
func readHost(hs *networkv1.HostSubnet) *host {
	h := &host{object: hs, name: hs.Name, ghost: hs.Annotations[NodeUID] == ""}
	if hs.Host != "" && hs.Host != hs.Name {
		h.problem("host is %q, which must be its name", hs.Host)
	}
	addresses, err := api.HostAddresses(hs)
	if err != nil {
		h.problem("%v; set hostIP and annotation %s to addresses", err, api.AdditionalHostIPs)
	}
	for _, a := range addresses {
		if !slices.Contains(h.addresses, a) {
			h.addresses = append(h.addresses, a)
		}
	}
	h.readSubnets()
	return h
}

// readSubnets reads each subnet for itself: beside one that is not valid the
// others are taken nevertheless.
func (h *host) readSubnets() {
	for _, s := range list(h.object.Subnet + "," + h.object.Annotations[api.AdditionalSubnets]) {
		p, err := netip.ParsePrefix(s)
		if err != nil || p.Addr().Is4In6() || p != p.Masked() || p.Addr().BitLen()-p.Bits() < subnet.MinHostBits {
			h.problem("subnet %q is not a CIDR such as 10.1.3.0/24, with at least %d host bits and none of them set", s, subnet.MinHostBits)
			h.garbled = true
			continue
		}
		h.claims = append(h.claims, p)
	}
	h.subnets = slices.Clone(h.claims)
}

// list splits the value of an annotation at its commas.
func list(s string) []string {
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// readHosts returns what HostSubnets say, with contradictions resolved: of two
// that claim one address, or subnets that overlap, the one created first holds
// it, or at the same second the one whose name comes first. The hosts are in
// that order, which does not depend on that of objects.
func readHosts(n network, objects iter.Seq[registry.Object]) []*host {
	var hosts []*host
	for o := range objects {
		if hs, ok := o.(*networkv1.HostSubnet); ok {
			hosts = append(hosts, readHost(hs))
		}
	}
	slices.SortFunc(hosts, func(a, b *host) int {
		return cmp.Or(a.object.CreationTimestamp.Compare(b.object.CreationTimestamp.Time), cmp.Compare(a.name, b.name))
	})
	resolveAddresses(hosts)
	resolveSubnets(n, hosts)
	return hosts
}

// resolveAddresses leaves each address with one host.
func resolveAddresses(hosts []*host) {
	holder := make(map[netip.Addr]*host, len(hosts))
	macs := make(map[plan.MAC]*host, len(hosts))
	for _, h := range hosts {
		kept := h.addresses[:0]
		for i, a := range h.addresses {
			other, alike := holder[a], (*host)(nil)
			if i == 0 {
				alike = macs[plan.MACOf(a)]
			}
			switch {
			case other != nil:
				h.problem("address %s is that of HostSubnet %s, which is older; give each node an address of its own", a, other.name)
			case alike != nil:
				h.problem("address %s has the MAC address %s in the overlay, which is that of HostSubnet %s, which is older; give the node another address", a, plan.MACOf(a), alike.name)
			default:
				holder[a] = h
				kept = append(kept, a)
				continue
			}
			if i == 0 {
				break // without the tunnels' end the others are of no use
			}
		}
		h.addresses = kept
		if len(h.addresses) > 0 {
			macs[plan.MACOf(h.addresses[0])] = h
		}
	}
}

// resolveSubnets leaves each host with subnets that overlap with no others and
// contain no host's address: those packets must go to the host.
func resolveSubnets(n network, hosts []*host) {
	var addresses, subnets subnet.Set
	for _, h := range hosts {
		for _, a := range h.addresses {
			addresses.Add(netip.PrefixFrom(a, a.BitLen()))
		}
	}
	holder := make(map[netip.Prefix]*host, len(hosts))
	for _, h := range hosts {
		h.subnets = slices.DeleteFunc(h.subnets, func(p netip.Prefix) bool {
			if other, overlaps := subnets.Overlap(p); overlaps {
				if holder[other] == h {
					h.problem("subnet %s overlaps with its subnet %s; remove one", p, other)
				} else {
					h.problem("subnet %s overlaps with %s of HostSubnet %s, which is older; delete one of the two", p, other, holder[other].name)
				}
				return true
			}
			if a, overlaps := addresses.Overlap(p); overlaps {
				h.problem("subnet %s contains the node address %s and is not used", p, a.Addr())
				return true
			}
			if len(n.ranges) > 0 && !n.covers(p) {
				h.problem("subnet %s is in no CIDR of ClusterNetwork %s; add a CIDR or delete the HostSubnet", p, api.DefaultName)
			}
			subnets.Add(p)
			holder[p] = h
			return false
		})
	}
}

// pluginProblems returns the problems in the form of package plugin.
func (h *host) pluginProblems() []plugin.Problem {
	out := make([]plugin.Problem, len(h.problems))
	for i, m := range h.problems {
		out[i] = plugin.Problem{Kind: api.HostSubnet, Key: registry.Key{Name: h.name}, Message: m}
	}
	return out
}
