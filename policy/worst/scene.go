package worst

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/policy/kubernetes"
)

// Others is how many tenants' pods are on the node beside those of the worst, and
// Pods how many there are elsewhere of each.
const (
	Others = 100
	Pods   = 20
)

// Scene returns a node on which one tenant's pod is under the policies of a
// recipe, and the pods of Others under ordinary ones: from their own namespace,
// and from everywhere but the private networks. Elsewhere are Pods of each, and of
// the tenant one of each label.
func Scene(r Recipe) *policy.World {
	w := &policy.World{Network: plan.DefaultNetwork}
	node := &policy.Node{Name: "elsewhere", Origin: "NodePods elsewhere"}
	tenant := func(n int) string { return fmt.Sprintf("tenant%03d", n) }
	for n := range Others {
		name := tenant(n)
		w.Namespaces = append(w.Namespaces, &policy.Namespace{Name: name, Labels: labels.Set{"kubernetes.io/metadata.name": name}})
		id := policy.Identity{Namespace: name, Labels: labels.Set{"app": "web"}}
		w.Groups = append(w.Groups, &policy.Group{Tag: plan.Tag(100 + n), Identity: id})
		t := policy.TaggedAddresses{Tag: plan.Tag(100 + n)}
		for i := range Pods {
			t.Addresses = append(t.Addresses, netip.AddrFrom4([4]byte{10, 2, byte(n), byte(i + 2)}))
		}
		node.Pods = append(node.Pods, t)
		w.Local = append(w.Local, &policy.Local{Interface: fmt.Sprintf("weft%03d", n), Name: name + "/web", Namespace: name, Identity: &id,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(n + 2)})}})
		p := &policy.Policy{Name: "NetworkPolicy " + name + "/web", Tier: policy.Isolating, Subject: policy.Selector{Namespace: name}, IsolatesIngress: true}
		p.Ingress = []policy.Rule{
			{Origin: p.Name + " ingress[0]", Peers: []policy.Peer{{Pods: &policy.Selector{Namespace: name}}}},
			{Origin: p.Name + " ingress[1]", Peers: []policy.Peer{{Block: &policy.Block{Prefix: netip.MustParsePrefix("0.0.0.0/0"),
				Except: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.0.0/16")}}}},
				Ports: []policy.Port{{Protocol: plan.TCP, Range: plan.PortRange{First: 443, Last: 443}}}},
		}
		w.Policies = append(w.Policies, p)
	}
	w.Namespaces = append(w.Namespaces, &policy.Namespace{Name: Namespace})
	subject := policy.Identity{Namespace: Namespace, Labels: labels.Set{"app": "subject"}}
	w.Local = append(w.Local, &policy.Local{Interface: "weftworst", Name: Namespace + "/subject", Namespace: Namespace, Identity: &subject,
		Addresses: []netip.Addr{netip.MustParseAddr("10.1.1.2")}})
	for i := range r.Labels {
		tag := plan.Tag(1000 + i)
		id := policy.Identity{Namespace: Namespace, Labels: labels.Set{Label: Value(i)},
			Ports: []policy.NamedPort{{Name: fmt.Sprintf("p%d", i%16), Protocol: plan.TCP, Port: uint16(1000 + i)}}}
		w.Groups = append(w.Groups, &policy.Group{Tag: tag, Identity: id})
		node.Pods = append(node.Pods, policy.TaggedAddresses{Tag: tag, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 3, byte(i >> 8), byte(i)})}})
	}
	w.Nodes = []*policy.Node{node}
	for _, o := range r.Make() {
		p, _ := kubernetes.NetworkPolicy(o)
		w.Policies = append(w.Policies, p)
	}
	return w
}
