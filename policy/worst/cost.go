package worst

import (
	"math/rand/v2"
	"time"

	"github.com/weftnet/weft/policy"
)

// Cost is what the policies of a recipe add to a node.
type Cost struct {
	Rules, Classes, Within, Verdicts int
	// Compile is how long they take to be compiled when they are new, Removal
	// when they go.
	Compile, Removal time.Duration
}

// Measure compiles a Scene with and without the policies of a recipe.
func Measure(r Recipe) Cost {
	with := Scene(r)
	without := *with
	without.Policies = with.Policies[:Others]
	var c policy.Compiler
	before := c.Compile(&without)
	start := time.Now()
	after := c.Compile(with)
	cost := Cost{Compile: time.Since(start)}
	start = time.Now()
	c.Compile(&without)
	cost.Removal = time.Since(start)
	for _, p := range with.Policies[Others:] {
		cost.Rules += len(p.Ingress) + len(p.Egress)
	}
	cost.Classes = after.Classes.Len() - before.Classes.Len()
	cost.Within = after.Within.Len() - before.Within.Len()
	cost.Verdicts = after.Verdicts.Len() - before.Verdicts.Len()
	return cost
}

// Mutate returns a recipe that differs in little, of the same size in all.
func (r Recipe) Mutate(g *rand.Rand) Recipe {
	for range 1 + g.IntN(3) {
		switch g.IntN(8) {
		case 0:
			r.Seed = g.Uint64()
		case 1:
			r.Policies = 1 + g.IntN(20)
		case 2, 3:
			r.Peers[g.IntN(PeerKinds)] = g.IntN(4)
		case 4, 5:
			r.Ports[g.IntN(PortKinds)] = g.IntN(4)
		case 6:
			r.PeersOfRule, r.PortsOfRule = 1+g.IntN(8), 1+g.IntN(8)
		default:
			r.Labels = g.IntN(400)
			r.Egress = !r.Egress
		}
	}
	return r
}

// Found are the worst recipes that a search found, for each of which a policy has
// to be compiled as fast as for another's to take effect.
var Found = []Recipe{
	// These are closed for their work.
	{Seed: 0x6533da2abb85ca1b, Size: 43 << 10, Policies: 17, Peers: [PeerKinds]int{3, 1, 0, 1, 0, 3}, Ports: [PortKinds]int{1, 0, 2, 2, 1, 1},
		PeersOfRule: 6, PortsOfRule: 6, Labels: 213, Egress: true},
	{Seed: 0xd25f47d317c67242, Size: 43 << 10, Policies: 1, Peers: [PeerKinds]int{0, 0, 0, 3, 0, 3}, Ports: [PortKinds]int{3, 0, 2, 2, 1, 1},
		PeersOfRule: 2, PortsOfRule: 5, Labels: 327, Egress: true},
	// Almost as many verdicts as there may be.
	{Seed: 0xab9dc68726b18076, Size: 43 << 10, Policies: 2, Peers: [PeerKinds]int{1, 0, 1, 1, 3, 0, 2}, Ports: [PortKinds]int{1, 1, 3, 2, 0, 3, 3},
		PeersOfRule: 2, PortsOfRule: 8, Labels: 340, Egress: true},
	// Closed for its work, and the longest to compile.
	{Seed: 0xea9f036d852e374b, Size: 43 << 10, Policies: 10, Peers: [PeerKinds]int{0, 2, 2, 0, 3, 2, 2}, Ports: [PortKinds]int{2, 0, 2, 0, 0, 1},
		PeersOfRule: 6, PortsOfRule: 5, Labels: 326, Egress: true},
}
