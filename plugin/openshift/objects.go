package openshift

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// writeHosts writes HostSubnets: what they were given, where their nodes are,
// and what is wrong with them. Those of nodes that are gone go.
func (r *reconciliation) writeHosts() {
	for _, h := range r.ordered {
		if r.gone(h) {
			r.write(write{verb: doDelete, kind: api.HostSubnet, object: h.object, why: "there is no Node of this name"})
			continue
		}
		out := h.object.DeepCopy()
		var why []string
		for _, g := range r.grantsFor(h) {
			addSubnet(out, g.subnet)
			why = append(why, "it gets subnet "+g.subnet.String())
		}
		if out.Annotations[AssignSubnet] != "" && r.complete(readHost(out)) {
			delete(out.Annotations, AssignSubnet)
			why = append(why, "it needs no more")
		}
		if n := r.nodes[h.name]; n != nil && follow(out, n, r.addresses[h.name]) {
			why = append(why, "the Node changed")
		}
		problem := strings.Join(slices.Concat(h.problems, r.reasons[h.name]), "; ")
		if problem != "" {
			r.problems[h.origin()] = problem
		}
		if setProblem(out, problem) {
			why = append(why, cmp.Or(problem, "what was wrong is over"))
		}
		if len(why) > 0 {
			r.write(write{verb: doUpdate, kind: api.HostSubnet, object: out, why: strings.Join(why, ", ")})
		}
	}
}

// complete reports whether a HostSubnet has a subnet of each family.
func (r *reconciliation) complete(h *host) bool {
	return !h.waits() && !h.garbled && len(r.needs(h, families(r.network.ranges))) == 0
}

// grantsFor returns what a HostSubnet is to get, in the order of the cluster's
// families. The first that it gets is of the first family; others wait for it.
func (r *reconciliation) grantsFor(h *host) []grant {
	var grants []grant
	for _, f := range families(r.network.ranges) {
		i := slices.IndexFunc(r.ledger.pending, func(g grant) bool { return g.node == h.name && g.family() == f })
		if h.claimsFamily(f) {
			continue
		}
		if i >= 0 {
			grants = append(grants, r.ledger.pending[i])
		} else if h.waits() && len(grants) == 0 {
			return nil
		}
	}
	return grants
}

// addSubnet adds a subnet to what a HostSubnet has.
func addSubnet(hs *networkv1.HostSubnet, p netip.Prefix) {
	if hs.Subnet == "" {
		hs.Subnet = p.String()
		return
	}
	setAnnotation(hs, api.AdditionalSubnets, strings.Join(append(list(hs.Annotations[api.AdditionalSubnets]), p.String()), ","))
}

// follow makes a HostSubnet that of a node with these addresses, and reports
// whether it was not.
func follow(hs *networkv1.HostSubnet, n *corev1.Node, addresses []netip.Addr) bool {
	before := hs.DeepCopy()
	hs.Host = n.Name
	setAnnotation(hs, NodeUID, string(n.UID))
	// A node that does not know its address for a while keeps the last.
	if len(addresses) > 0 {
		hs.HostIP = addresses[0].String()
		var others []string
		for _, a := range addresses[1:] {
			others = append(others, a.String())
		}
		setAnnotation(hs, api.AdditionalHostIPs, strings.Join(others, ","))
	}
	return hs.Host != before.Host || hs.HostIP != before.HostIP || !maps.Equal(hs.Annotations, before.Annotations)
}

// writeNodes makes HostSubnets for the nodes that have none, still without a
// subnet, and tells those that cannot have one why.
func (r *reconciliation) writeNodes() {
	for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
		n, h := r.nodes[name], r.hosts[name]
		var problems []string
		switch {
		case h == nil && len(api.NodeAddresses(n)) == 0:
			problems = []string{"it has no subnet, because it has no InternalIP address that can be used in status.addresses"}
		case h == nil && len(r.addresses[name]) == 0:
			problems = append([]string{"it has no subnet"}, r.disbelieved[name]...)
		case h == nil:
			hs := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{AssignSubnet: "true"}}}
			follow(hs, n, r.addresses[name])
			r.write(write{verb: doCreate, kind: api.HostSubnet, object: hs, why: "there is a Node of this name"})
		case len(r.network.ranges) == 0 && h.waits():
			problems = []string{"it has no subnet, because ClusterNetwork " + api.DefaultName + " has no CIDR that can be used"}
		case len(h.subnets) == 0 || len(h.addresses) == 0:
			problems = slices.Concat(h.problems, r.reasons[name])
		}
		problem := strings.Join(problems, "; ")
		if problem != "" {
			r.problems[api.Node.Kind+" "+name] = problem
		}
		r.annotate(api.Node, n, problem)
	}
}

// writeNetwork fills in what the ClusterNetwork leaves open, and says in it
// what is wrong with it.
func (r *reconciliation) writeNetwork(cn *networkv1.ClusterNetwork) {
	filled := withDefaults(cn)
	out := filled.DeepCopy()
	if setProblem(out, r.networkProblems()) || filled != cn {
		r.write(write{verb: doUpdate, kind: api.ClusterNetwork, object: out, why: cmp.Or(r.networkProblems(), "filled in what was left open")})
	}
}

// annotate writes an object if its problem is another than it says.
func (r *reconciliation) annotate(k *registry.Kind, o registry.Object, problem string) {
	if o.GetAnnotations()[api.ProblemAnnotation] == problem {
		return
	}
	o = o.DeepCopyObject().(registry.Object)
	setProblem(o, problem)
	r.write(write{verb: doUpdate, kind: k, object: o, why: cmp.Or(problem, "what was wrong is over")})
}

// setProblem says in an object what is wrong with it, and reports whether that
// is something new.
func setProblem(o registry.Object, problem string) bool {
	if o.GetAnnotations()[api.ProblemAnnotation] == problem {
		return false
	}
	setAnnotation(o, api.ProblemAnnotation, problem)
	return true
}

// setAnnotation sets an annotation, or removes it if the value is empty.
func setAnnotation(o registry.Object, name, value string) {
	annotations := maps.Clone(o.GetAnnotations())
	if value == "" {
		delete(annotations, name)
	} else {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[name] = value
	}
	o.SetAnnotations(annotations)
}
