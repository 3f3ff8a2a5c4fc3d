package explain

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/announce"
	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/registry"
)

// Announced is which nodes say that they answer for an address on the link. It is one, but
// for the moment in which it changes.
type Announced struct {
	Address netip.Addr `json:"address"`
	Nodes   []string   `json:"nodes"`
	// Unnamed says that it may be a node that answers for more addresses than it names.
	Unnamed bool `json:"unnamed,omitempty"`
}

// String writes it for people.
func (a Announced) String() string {
	switch {
	case a.Unnamed:
		return fmt.Sprintf("which node answers for %s on the link is not known: nodes answer for more addresses than they name", a.Address)
	case len(a.Nodes) == 0:
		return nobodyAnswers(a.Address.String())
	}
	return fmt.Sprintf("%s is answered for on the link by %s", a.Address, printable.Few(a.Nodes, 0))
}

// nobodyAnswers says that no node answers for some addresses.
func nobodyAnswers(what string) string {
	return fmt.Sprintf("no node says that it answers for %s on the link", what)
}

// AnnouncedBy returns which nodes say that they answer for an address, those whose agents are
// lost left out: another has it by now. known is false where one answers for more addresses
// than it names, so that it may be that one.
func (c Cluster) AnnouncedBy(a netip.Addr) (by Announced, known bool) {
	by, known = Announced{Address: a, Nodes: []string{}}, true
	for node := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		if c.Lost[node.Name] {
			continue
		}
		addresses, more := api.Announces(node)
		if slices.Contains(addresses, a) {
			by.Nodes = append(by.Nodes, node.Name)
		} else if more {
			known = false
		}
	}
	return by, known || len(by.Nodes) > 0
}

// AnsweredFor returns what AnnouncedBy does, of VirtualAddresses: where nodes say that none may answer
// for an address by that object, as a Service has it, none does, whoever answers for the address.
func (c Cluster) AnsweredFor() func(*api.VirtualAddress) (by Announced, known bool) {
	said := c.answers()
	return func(v *api.VirtualAddress) (Announced, bool) {
		if said.refused[v.Name] {
			return Announced{Address: v.Address(), Nodes: []string{}}, true
		}
		return c.AnnouncedBy(v.Address())
	}
}

// several says what is wrong where several nodes answer for an address, "" where they do not.
func (a Announced) several() string {
	if len(a.Nodes) < 2 {
		return ""
	}
	return a.String() + untilHeard
}

// untilHeard is what is said of addresses for which several nodes say that they answer. A Node
// goes on to say so for a while after its agent has died.
const untilHeard = ": either the agent of one has died, and another has taken over, which shows when the lease of the dead one has run out, " +
	"or they do not hear each other, as one stops as soon as they do: where it stays so, see whether all nodes that are selected are on one link, and its switches pass frames of EtherType 0x88b5"

// answered is who says to answer for addresses on the link.
type answered struct {
	by map[netip.Addr][]string
	// unnamed is for how many addresses nodes answer that they do not name, and silent which nodes these are.
	unnamed int
	silent  []string
	// wrong are the nodes that say what no agent writes, with what that is.
	wrong []api.Problem
	// refused are the VirtualAddresses of which nodes say that none may answer for them.
	refused map[string]bool
	// spoken are the words that may be addresses of what nodes say of themselves, as that somebody else has one.
	spoken map[string]bool
}

// answers returns who says to answer for what, those whose agents are lost left out.
func (c Cluster) answers() answered {
	said := answered{by: make(map[netip.Addr][]string), refused: make(map[string]bool), spoken: make(map[string]bool)}
	for node := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		if c.Lost[node.Name] {
			continue
		}
		addresses, more := api.Announces(node)
		for _, a := range addresses {
			said.by[a] = append(said.by[a], node.Name)
		}
		if said.unnamed += api.AnnouncedCount(node) - len(addresses); more {
			said.silent = append(said.silent, node.Name)
		}
		if wrong := api.AnnouncesWrong(node); wrong != "" {
			said.wrong = append(said.wrong, api.Problem{Kind: api.Node.Kind, Name: node.Name,
				Message: "its annotation " + api.AnnouncesAnnotation + " is not what an agent writes, and is believed of the addresses that it names alone: " + wrong + ": see who writes it"})
		}
		for _, p := range api.NodeProblems(node) {
			if p.Kind == api.VirtualAddressKind.Kind && strings.Contains(p.Message, announce.NobodyMay) {
				said.refused[p.Name] = true
			}
			for _, word := range addressesOf(node, p) {
				said.spoken[word] = true
			}
		}
	}
	return said
}

// announceProblems returns what is wrong with who answers for addresses on the link: those for
// which several nodes do, and those for which none does. There is a line for each VirtualAddress,
// and for all addresses of an AddressPool that lack the same. Where nodes answer for more addresses than
// they name, those are told that no node may answer for, and how many others at least nobody does; all are told where
// nodes say that they answer for more than there are.
func (c Cluster) announceProblems() (all []api.Problem) {
	said := c.answers()
	of := make(map[netip.Addr]string)
	// open are the addresses of which no node says that it answers for them: some of the unnamed ones
	// may be among them.
	var open []api.Problem
	count := 0
	for v := range registry.Each[*api.VirtualAddress](c.Objects, api.VirtualAddressKind) {
		a := v.Address()
		of[a] = v.Name
		if a.IsValid() && len(said.by[a]) == 0 && !said.refused[v.Name] && !c.asksStill(v) {
			count++
			open = append(open, api.Problem{Kind: api.VirtualAddressKind.Kind, Name: v.Name,
				Message: nobodyAnswers(a.String()) + ": see whether a node is selected, has an interface next to it, and has a program that answers at the port of spec.check"})
		}
	}
	never, some, n := c.unanswered(said)
	all, open, count = append(said.wrong, never...), append(open, some...), count+n
	switch {
	case said.unnamed == 0:
		all = append(all, open...)
	case count < said.unnamed:
		// So it is for a while where a node has died, too.
		for _, p := range open {
			p.Message += fmt.Sprintf("; or one does of those that do not name all of theirs (%s), which say that they answer for %d others, and there are %d", printable.Few(said.silent, 0), said.unnamed, count)
			all = append(all, p)
		}
	case count > said.unnamed:
		all = append(all, api.Problem{Name: "addresses", Message: fmt.Sprintf(
			"of %d addresses that nodes are to answer for on the link and that no Node names, nodes answer for %d, and so for %d nobody does: see weft service of Services that are not reached", count, said.unnamed, count-said.unnamed)})
	}
	return append(all, said.several(of)...)
}

// several returns for which addresses several nodes answer, a line for all that the same nodes
// have. of are the VirtualAddresses.
func (said answered) several(of map[netip.Addr]string) (all []api.Problem) {
	groups := make(map[string][]netip.Addr)
	for a, nodes := range said.by {
		if len(nodes) > 1 {
			by := strings.Join(nodes, ",")
			groups[by] = append(groups[by], a)
		}
	}
	for _, by := range slices.Sorted(maps.Keys(groups)) {
		addresses := slices.SortedFunc(slices.Values(groups[by]), netip.Addr.Compare)
		nodes := said.by[addresses[0]]
		if len(addresses) > 1 {
			all = append(all, api.Problem{Name: "addresses", Message: fmt.Sprintf("%s are each answered for on the link by %s", printable.Few(words(addresses), 0), printable.Few(nodes, 0)) + untilHeard})
			continue
		}
		p := api.Problem{Kind: api.AddressGrantKind.Kind, Name: api.GrantName(addresses[0]), Message: Announced{Address: addresses[0], Nodes: nodes}.several()}
		if name := of[addresses[0]]; name != "" {
			p.Kind, p.Name = api.VirtualAddressKind.Kind, name
		}
		all = append(all, p)
	}
	return all
}

// saidOf returns what nodes say of themselves that speaks of an address, as that somebody else has it.
func (c Cluster) saidOf(a netip.Addr) (all []string) {
	for node := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		for _, p := range api.NodeProblems(node) {
			if slices.Contains(addressesOf(node, p), a.String()) {
				all = append(all, node.Name+" says: "+p.Message)
			}
		}
	}
	return all
}

// addressesOf returns the words of what a node says that may be addresses, where it says it of itself.
func addressesOf(node *corev1.Node, p api.Problem) []string {
	if p.Kind != "" && (p.Kind != api.Node.Kind || p.Name != node.Name) {
		return nil
	}
	return strings.FieldsFunc(p.Message, notOfAddress)
}

// notOfAddress reports whether no address has a rune in its text.
func notOfAddress(r rune) bool {
	return r != '.' && r != ':' && (r < '0' || r > '9') && (r < 'a' || r > 'f')
}

func words[T fmt.Stringer](all []T) (texts []string) {
	for _, one := range all {
		texts = append(texts, one.String())
	}
	return texts
}

// unanswered returns for which of the addresses of Services no node says that it answers, a line
// for all of an AddressPool for which that is for one reason: first those for which no node may, and
// then others, of which it also returns how many they are.
func (c Cluster) unanswered(said answered) (never, others []api.Problem, count int) {
	type group struct {
		pool, why string
		noneMay   bool
	}
	groups := make(map[group][]string)
	why := c.whyUnanswered()
	for g, svc := range OnLink(c.Objects) {
		a := g.Address()
		if len(said.by[a]) > 0 {
			continue
		}
		text, noneMay := why(g, svc)
		if text == "" || !noneMay && c.asksStill(g) {
			continue
		}
		if !noneMay && said.spoken[a.String()] {
			text = "the problems of nodes say why"
		}
		at := group{g.Spec.Pool, text, noneMay}
		groups[at] = append(groups[at], fmt.Sprintf("%s of Service %s", a, g.Spec.Service()))
		if !noneMay {
			count++
		}
	}
	for at, addresses := range groups {
		slices.Sort(addresses)
		p := api.Problem{Kind: api.AddressPoolKind.Kind, Name: at.pool, Message: nobodyAnswers(printable.Few(addresses, 0)) + ": " + at.why}
		if at.noneMay {
			never = append(never, p)
		} else {
			others = append(others, p)
		}
	}
	for _, list := range [][]api.Problem{never, others} {
		slices.SortFunc(list, func(a, b api.Problem) int { return strings.Compare(a.String(), b.String()) })
	}
	return never, others, count
}

// answerWithin is how long after its object was made the Node of the one that answers for an address says so, as it first
// listens and asks on the link whether somebody else has it. An object says in which second it was made.
const answerWithin = 2*time.Second + time.Second

// asksStill reports whether the object that gives nodes an address is so new that none of them need answer for it yet.
// Where the clock is behind the cluster's, an object of the future is not new, so that its problems are not kept back for long.
func (c Cluster) asksStill(o registry.Object) bool {
	made := o.GetCreationTimestamp()
	return !made.IsZero() && c.Now.Sub(made.Time).Abs() < answerWithin
}

// OnLink yields the grants of addresses that nodes are to answer for on the link where they do
// Services, each with the Service that has the address. Those of a pool that is no more are among
// them.
func OnLink(objects registry.Objects) iter.Seq2[*api.AddressGrant, *corev1.Service] {
	return func(yield func(*api.AddressGrant, *corev1.Service) bool) {
		for g := range registry.Each[*api.AddressGrant](objects, api.AddressGrantKind) {
			svc := registry.GetAs[*corev1.Service](objects, api.Service, g.Spec.Service())
			pool := registry.GetAs[*api.AddressPool](objects, api.AddressPoolKind, registry.Key{Name: g.Spec.Pool})
			if svc == nil || !g.IsOf(svc) || !hasBalanced(svc, g.Address()) || pool != nil && !pool.OnLink() {
				continue
			}
			if !yield(g, svc) {
				return
			}
		}
	}
}

// hasBalanced reports whether a Service says that a load balancer gave it an address.
func hasBalanced(svc *corev1.Service, a netip.Addr) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && slices.ContainsFunc(svc.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool {
		has, err := netip.ParseAddr(i.IP)
		return err == nil && has.Unmap() == a
	})
}

// whyUnanswered returns what says, of an address that a Service has and no node says to answer for,
// what is to be looked at, and whether no node may, whatever nodes say; "" where none is to.
func (c Cluster) whyUnanswered() func(*api.AddressGrant, *corev1.Service) (why string, noneMay bool) {
	left := Config(c.Objects, c.Plugin).Spec.ServiceProxy == api.KubeProxy
	of := make(map[string]string) // by the name of the AddressPool
	return func(g *api.AddressGrant, svc *corev1.Service) (string, bool) {
		pool := registry.GetAs[*api.AddressPool](c.Objects, api.AddressPoolKind, registry.Key{Name: g.Spec.Pool})
		if pool != nil && !pool.OnLink() {
			return "", false
		}
		if left {
			return "Services are left to kube-proxy, and nodes answer for what they serve themselves alone: set spec.serviceProxy of the ClusterConfig to " + api.WeftProxy + ", or announce of the pool to " + api.AnnounceNone, true
		}
		why, known := of[g.Spec.Pool]
		if !known {
			why = c.nobodyMay(pool)
			of[g.Spec.Pool] = why
		}
		switch {
		case why != "":
			return why, true
		case svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal:
			return "with externalTrafficPolicy Local only a node does that has an endpoint which is ready: see whether one has that the pool selects, and an interface next to the address", false
		}
		return "see whether a node that the pool selects serves it, and has an interface next to it", false
	}
}

// nobodyMay says why no node may answer for addresses of a pool, which is nil where there is none
// any more; "" where one may.
func (c Cluster) nobodyMay(pool *api.AddressPool) string {
	selected, able, allowed, living := 0, 0, 0, 0
	for node := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		if pool != nil && !pool.MayAnnounce(node.Labels) {
			continue
		}
		selected++
		if c.Agentless(node) {
			continue
		}
		able++
		if !announce.MayAnnounce(node) {
			continue
		}
		if allowed++; !c.Lost[node.Name] {
			living++
		}
	}
	switch {
	case selected == 0:
		return "spec.nodes selects no node: correct it"
	case able == 0:
		return "no agent can run on the nodes that may have them, as their label " + corev1.LabelOSStable + " says: have the pool select others"
	case allowed == 0:
		return fmt.Sprintf("each node that may have them has the label %s: take it off one, or have the pool select others", api.NotAnnouncingLabel)
	case living == 0:
		return "the agent of each node that may have them does not run: start one"
	}
	return ""
}

// announce adds who answers for the Service's addresses that nodes announce, as far as that is known,
// and which of those nobody answers for, or several nodes do.
func (c Cluster) announce(s *Serving, svc *corev1.Service) {
	why := c.whyUnanswered()
	for _, i := range svc.Status.LoadBalancer.Ingress {
		a, err := netip.ParseAddr(i.IP)
		if err != nil {
			continue
		}
		by, known := c.AnnouncedBy(a)
		if len(by.Nodes) > 0 {
			s.Announced = append(s.Announced, by)
			if text := by.several(); text != "" {
				s.Problems = append(s.Problems, text)
			}
		} else if g := registry.GetAs[*api.AddressGrant](c.Objects, api.AddressGrantKind, registry.Key{Name: api.GrantName(a)}); g != nil && g.IsOf(svc) {
			text, noneMay := why(g, svc)
			switch {
			case text == "":
			case !known && !noneMay:
				by.Unnamed = true
				s.Announced = append(s.Announced, by)
			default:
				s.Announced = append(s.Announced, by)
				spoken := c.saidOf(a)
				if s.Problems = append(s.Problems, spoken...); len(spoken) > 0 && !noneMay {
					s.Problems = append(s.Problems, fmt.Sprintf("%s, which is of AddressPool %s", by, g.Spec.Pool))
					continue
				}
				if noneMay || !c.asksStill(g) {
					s.Problems = append(s.Problems, fmt.Sprintf("%s, which is of AddressPool %s: %s", by, g.Spec.Pool, text))
				}
			}
		}
	}
	if why := c.pending(svc); why != (lack{}) {
		s.Problems = append(s.Problems, "no load balancer has given it an address, and "+why.of1+": "+why.remedy)
	}
}
