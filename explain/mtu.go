package explain

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// DifferentMTUs returns what is wrong where pods of some nodes have a smaller MTU than
// those of others, by what agents that live told, and plans as Plans compiled them;
// false where none have.
//
// Where the objects name an MTU, nothing is compared: a node with another than that of
// its plan has not taken it yet, or its agent says why it cannot.
func (c Cluster) DifferentMTUs(plans map[string]*plan.Plan) (api.Problem, bool) {
	nodes := make(map[int][]string)
	for node := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		p := plans[node.Name]
		if c.Lost[node.Name] || p == nil || p.Local.MTU != 0 {
			continue
		}
		if mtu, _ := api.NodeMTU(node); mtu != 0 { // who asks says what cannot be read
			nodes[mtu] = append(nodes[mtu], node.Name)
		}
	}
	if len(nodes) < 2 {
		return api.Problem{}, false
	}
	mtus := slices.Sorted(maps.Keys(nodes))
	least, next, most := mtus[0], mtus[1], mtus[len(mtus)-1]
	var others []string
	for _, mtu := range mtus[1:] {
		others = append(others, nodes[mtu]...)
	}
	slices.Sort(others)
	small, theirs := printable.Few(nodes[least], 0), fmt.Sprint(most)
	if next != most {
		theirs = fmt.Sprintf("%d to %d", next, most)
	}
	return api.Problem{
		Name: "mtu",
		Message: fmt.Sprintf("pods of %s have %d bytes, those of %s %s: larger packets to the former vanish where nothing on the way says that they are too large",
			small, least, printable.Few(others, 0), theirs),
		Remedy: fmt.Sprintf("give the network of %s the MTU of the others, or all pods the smaller one: set spec.mtu of ClusterConfig %s to %d",
			small, api.DefaultName, least),
	}, true
}
