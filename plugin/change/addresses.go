package change

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Covered says which addresses of nodes are in the ranges that a plug-in gives subnets from.
func Covered(p plugin.Plugin, config *api.ClusterConfig, objects registry.Objects) []string {
	return landOf(p, config, objects).covers(objects)
}

// covers says which addresses of nodes are in the ranges that a plug-in gives subnets
// from. What is there, and all that is beside it on the nodes' network, would be taken for
// pods: what pods send to it is no longer masqueraded, or leads nowhere.
func (l land) covers(objects registry.Objects) (out []string) {
	for _, r := range l.ranges {
		var covered []string
		for n := range registry.Each[*corev1.Node](objects, api.Node) {
			for _, a := range api.NodeAddresses(n) {
				if r.Contains(a) {
					covered = append(covered, fmt.Sprintf("%s of %s", a, n.Name))
				}
			}
		}
		if len(covered) > 0 {
			slices.Sort(covered)
			out = append(out, fmt.Sprintf("%s gives subnets from %s, in which nodes have their own addresses (%s), so pods would lose what is on the nodes' network: give %s another range",
				l.plugin, r, printable.Few(covered, 0), l.plugin))
		}
	}
	return out
}

// otherAddresses says what becomes otherwise for new pods, as their addresses are of other
// ranges than those of the plug-ins before: that they have none of a family any more, and
// which policies name the old ranges.
func (c Change) otherAddresses(to land, lands survey) (effects []string) {
	if len(to.ranges) == 0 {
		return nil // it is not configured yet
	}
	for _, p := range plugin.BasesOf(c.Beside) {
		from := lands.land(p)
		if from.plugin == to.plugin {
			continue
		}
		for _, v6 := range []bool{false, true} {
			of := func(r netip.Prefix) bool { return r.Addr().Is6() == v6 }
			if slices.ContainsFunc(from.ranges, of) && !slices.ContainsFunc(to.ranges, of) {
				effects = append(effects, fmt.Sprintf("new pods get no %s addresses under %s, as they do under %s: configure %s with a range of that family, too, if they need them",
					family(v6), c.To.Name(), c.standingOn(from), to.plugin))
			}
		}
		effects = append(effects, c.namingOld(from, to, lands.objects)...)
	}
	return effects
}

// standingOn names the plug-in that gives addresses of a land, first the one that is used.
func (c Change) standingOn(l land) string {
	for _, p := range slices.Concat(c.Before, c.Beside) {
		if plugin.BaseOf(p).Name() == l.plugin {
			return p.Name()
		}
	}
	return l.plugin
}

func family(v6 bool) string {
	if v6 {
		return "IPv6"
	}
	return "IPv4"
}

// namingOld says which policies in force after the change have a block that overlaps a
// range of one plug-in, and not all of those of the other: they mean old pods, and no new
// ones.
func (c Change) namingOld(from, to land, objects registry.Objects) (effects []string) {
	for _, k := range api.PolicyKinds {
		if enforcer(c.After, k) == nil {
			continue
		}
		named := make(map[netip.Prefix]bool)
		var policies []string
		for o := range objects.All(k) {
			names := false
			for b := range blocks(o) {
				if r, ok := overlapping(b, from.ranges); ok && !all(b, to.ranges) {
					named[r], names = true, true
				}
			}
			if names {
				policies = append(policies, registry.KeyOf(o).String())
			}
		}
		if len(policies) == 0 {
			continue
		}
		verb := "name"
		if len(policies) == 1 {
			verb = "names"
		}
		effects = append(effects, fmt.Sprintf("%d %s %s addresses of %s, from which %s gives pods theirs, and new pods have theirs from %s: name pods by labels instead, or both ranges (%s)",
			len(policies), plural(k, len(policies)), verb, text(slices.SortedFunc(maps.Keys(named), comparePrefixes)), c.standingOn(from), text(to.ranges), printable.Few(policies, 0)))
	}
	return effects
}

// overlapping returns the first of some ranges that a block overlaps.
func overlapping(b netip.Prefix, ranges []netip.Prefix) (netip.Prefix, bool) {
	i := slices.IndexFunc(ranges, b.Overlaps)
	if i < 0 {
		return netip.Prefix{}, false
	}
	return ranges[i], true
}

// all reports whether a block holds all ranges of its family.
func all(b netip.Prefix, ranges []netip.Prefix) bool {
	return !slices.ContainsFunc(ranges, func(r netip.Prefix) bool {
		return r.Addr().Is4() == b.Addr().Is4() && (!b.Contains(r.Addr()) || b.Bits() > r.Bits())
	})
}

func text(ranges []netip.Prefix) string {
	words := make([]string, len(ranges))
	for i, r := range ranges {
		words[i] = r.String()
	}
	return cmp.Or(strings.Join(words, ", "), "nowhere")
}

// blocks yields the prefixes that a policy names, those that cannot be read left out.
func blocks(o registry.Object) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for _, s := range cidrs(o) {
			if p, err := netip.ParsePrefix(s); err == nil && !yield(p.Masked()) {
				return
			}
		}
	}
}

func cidrs(o registry.Object) (all []string) {
	switch p := o.(type) {
	case *networkingv1.NetworkPolicy:
		var peers []networkingv1.NetworkPolicyPeer
		for _, r := range p.Spec.Ingress {
			peers = append(peers, r.From...)
		}
		for _, r := range p.Spec.Egress {
			peers = append(peers, r.To...)
		}
		for _, peer := range peers {
			if b := peer.IPBlock; b != nil {
				all = append(append(all, b.CIDR), b.Except...)
			}
		}
	case *policyv1alpha2.ClusterNetworkPolicy:
		for _, r := range p.Spec.Egress {
			for _, peer := range r.To {
				for _, n := range peer.Networks {
					all = append(all, string(n))
				}
			}
		}
	}
	return all
}
