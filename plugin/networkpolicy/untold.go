package networkpolicy

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/policy"
)

// Other nodes know by NodePods what a pod is. Of one that is not in there yet, as it has
// just come, or that can get no Tag for its labels, they do not know which rules deny it
// something. So its own node denies it everything until they do, if there are rules that
// deny something to what it is. A rule that allows something needs nothing of that kind:
// who is not known is allowed nothing.

// untold is the label by which these pods are told apart. No pod can have it: "?" is not
// for labels (Kubernetes, apimachinery's validation of qualified names).
const untold = "weft.network/untold?"

// deniesUntold is the policy that denies them everything.
var deniesUntold = func() *policy.Policy {
	everything := []policy.Rule{{Origin: "what other nodes do not know yet of this pod, as policies deny something to such pods", Action: policy.Deny}}
	return &policy.Policy{
		Name: "Pods untold", Tier: policy.Admin, Priority: -1,
		Subject: policy.Selector{Pods: labels.SelectorFromSet(labels.Set{untold: ""})},
		Ingress: everything, Egress: everything,
	}
}()

// denying are the policies that deny something to pods by what they are.
type denying []*policy.Policy

// denyingAmong returns those among some policies. A namespace's own deny nothing.
func denyingAmong(policies []*policy.Policy) (found denying) {
	for _, p := range policies {
		if p.Subject.Namespace == "" && slices.ContainsFunc(slices.Concat(p.Ingress, p.Egress), deniesPods) {
			found = append(found, p)
		}
	}
	return found
}

func deniesPods(r policy.Rule) bool {
	return r.Action == policy.Deny && slices.ContainsFunc(r.Peers, func(p policy.Peer) bool { return p.Pods != nil })
}

// with returns policies with the one about untold pods, where it is needed, in order.
func (d denying) with(policies []*policy.Policy) []*policy.Policy {
	if len(d) == 0 {
		return policies
	}
	i, _ := slices.BinarySearchFunc(policies, deniesUntold.Name, func(p *policy.Policy, name string) int { return strings.Compare(p.Name, name) })
	return slices.Insert(slices.Clone(policies), i, deniesUntold)
}

// deny reports whether they deny something to what is a pod of an identity.
func (d denying) deny(id *policy.Identity, namespace labels.Set) bool {
	is := policy.Party{Identity: id, NamespaceLabels: namespace}
	return slices.ContainsFunc(d, func(p *policy.Policy) bool {
		return slices.ContainsFunc(slices.Concat(p.Ingress, p.Egress), func(r policy.Rule) bool { return deniesPods(r) && r.Holds(is) })
	})
}

// untoldPods are the node's own pods as they are until others know them.
type untoldPods struct {
	// from and said are the node's NodePods and which tags it says.
	from *api.NodePods
	said map[netip.Addr]plan.Tag
	// marked are the pods that have the label, by those without.
	marked map[*policy.Local]*policy.Local
}

// mark returns the node's pods, those with the label untold that policies deny something
// to and others do not know. What did not change is the same.
func (u *untoldPods) mark(in plugin.Input, v *view, d denying) []*policy.Local {
	if len(d) == 0 {
		*u = untoldPods{}
		return v.locals.list
	}
	if now := own(in); u.said == nil || u.from != now {
		u.from, u.said = now, saidOf(now)
	}
	before := u.marked
	u.marked = make(map[*policy.Local]*policy.Local)
	list := slices.Clone(v.locals.list)
	for i, l := range list {
		told := !slices.ContainsFunc(l.Addresses, func(a netip.Addr) bool { _, said := u.said[a]; return !said })
		if told || !counts(l) || !d.deny(l.Identity, namespaceLabels(v.namespaces.All(), l.Namespace)) {
			continue
		}
		if list[i] = before[l]; list[i] == nil {
			marked := *l
			id := *l.Identity
			id.Labels = maps.Clone(id.Labels)
			if id.Labels == nil {
				id.Labels = labels.Set{}
			}
			id.Labels[untold] = ""
			marked.Identity = &id
			list[i] = &marked
		}
		u.marked[l] = list[i]
	}
	return list
}
