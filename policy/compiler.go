package policy

import (
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/weftnet/weft/plan"
)

// Tables are what a World means for the node.
type Tables struct {
	Classes  plan.Table[plan.ClassKey, plan.Membership]
	Within   plan.Table[plan.WithinKey, plan.Within]
	Verdicts plan.Table[plan.VerdictKey, plan.Verdict]
	// Endpoints holds, by interface, the policies of those pods of the node for
	// which there are any.
	Endpoints map[string]EndpointPolicies
	// Costly are the sets that deny everything because of what they would cost, in the
	// order of their names.
	Costly []Costly
	// Waiting are the policies that are not in force yet for some pod of the node that
	// they are about, or towards some peer of it, in the order of their names; see
	// Compiler.Waiting.
	Waiting []*Policy
}

// EndpointPolicies are the names of the sets of verdicts that hold for a pod;
// empty where everything is allowed.
type EndpointPolicies struct{ Ingress, Egress string }

// Compiler compiles the tables of one node, World after World. The zero Compiler
// is ready to use. It is not safe for concurrent use.
//
// It costs in proportion to what changed since the last World: it keeps which
// selectors select which groups, which prefixes lie in which, and whose each
// address is. The tables of one World share with those of the last what is the
// same, and which number a class has may depend on those before.
type Compiler struct {
	// Gradual has what takes long wait until Advance is called, so that what changes
	// meanwhile need not wait for it; see Waiting. The first World is always compiled
	// whole.
	Gradual bool

	advance bool
	owner   string
	resting map[string]bool
	state   *state
}

// Compile returns the tables of a world. Nothing in them may be changed.
func (c *Compiler) Compile(w *World) Tables {
	gradual, advance := c.Gradual, c.advance
	c.advance = false
	if c.state == nil || c.state.world.Network != w.Network {
		c.state, gradual = newState(w.Network), false
	}
	q := &c.state.queue
	q.gradual, q.advance, q.owner, q.resting = gradual, advance, c.owner, c.resting
	c.state.update(w)
	return c.state.tables
}

// Waiting returns the namespaces, and "" for the cluster, to whom something is owed
// that the tables that Compile returned last do not have of what the World means: for
// some pods an older version of their policies holds, and for some new pods, or towards
// some new peers, that nothing is allowed. The first is whose turn it is.
func (c *Compiler) Waiting() []string {
	if c.state == nil {
		return nil
	}
	return c.state.queue.owners()
}

// Rest has what changes of the policies of some namespaces wait for its turn from the
// next call of Compile on, however small they are.
func (c *Compiler) Rest(namespaces map[string]bool) { c.resting = namespaces }

// Hasty returns the namespaces of which policies changed for the last call of Compile
// and did not wait for a turn.
func (c *Compiler) Hasty() []string {
	if c.state == nil {
		return nil
	}
	return slices.Collect(maps.Keys(c.state.queue.hasty))
}

// Advance has the next call of Compile, for the same World or the next one, work off
// one thing that is owed to an owner, if there is anything.
func (c *Compiler) Advance(owner string) { c.advance, c.owner = true, owner }

// state is what the tables of the last World were made from.
//
// Policies choose sets of verdicts for subjects, the node's own pods; the rules
// of a set name peers. Pod selectors among these give members, the groups of
// pods, their profiles; blocks, nodes and domains give prefixes their zones. A
// profile and a zone make a class, which has a number. Whose an address is, and
// the prefixes around it, say which class it is of; which peers contain a
// class, what a set says about it.
type state struct {
	world    World
	tables   Tables
	subjects map[string]*subject
	sets     sets
	names    portNames
	peers    peers
	members  membership
	prefixes prefixes
	owners   owners
	classes  classes
	queue    queue
	// What is to be done yet for the World that is being compiled.
	endpointsChanged, namesChanged bool
	staleSets                      map[*set]struct{}
	// apart are the sets of pods that have come to who waits, by interface.
	apart map[string]*apart
	// rewidens says that it is the turn of classes to get other wide ones.
	rewidens bool
}

func newState(network string) *state {
	return &state{
		world:    World{Network: network},
		subjects: map[string]*subject{},
		sets:     sets{byKey: map[string]*set{}, byName: map[string]*set{}, wild: map[*set]struct{}{}},
		names:    portNames{map[string]int{}, map[string]int{}},
		peers:    peers{byKey: map[string]*peer{}},
		members: membership{
			groups: map[plan.Tag]*member{}, namespaces: map[string]labels.Set{},
			members: map[string]map[*member]struct{}{}, selectors: map[string]map[*peer]struct{}{},
			profiles: map[string]*profile{}, fresh: map[*member]struct{}{}, changed: map[*member]struct{}{},
		},
		prefixes:  prefixes{zones: map[string]*zone{}, nodes: map[*peer]struct{}{}, domains: map[string]*peer{}},
		owners:    owners{claims: map[netip.Addr]claim{}, contested: map[netip.Addr][]claim{}},
		classes:   classes{all: map[classKey]*class{}, byNumber: map[plan.Class]*class{}, wide: map[string]*class{}},
		queue:     newQueue(),
		staleSets: map[*set]struct{}{},
		apart:     map[string]*apart{},
	}
}

// update makes the tables those of w.
func (s *state) update(w *World) {
	was := s.world
	s.world = *w

	relabelled := s.members.updateNamespaces(was.Namespaces, w.Namespaces)
	s.members.updateGroups(was.Groups, w.Groups)
	s.updateSubjects(&was, w, relabelled)
	came, gone := s.peers.settle()
	s.prefixes.update(came, gone, &was, w)
	affected, rezoned := s.prefixes.settle()
	reprofiled := s.members.settle(came, gone, s.names, s.namesChanged)
	s.namesChanged = false

	touch := func(a netip.Addr) {
		if p, ok := host(a); ok {
			affected = append(affected, p)
		}
	}
	s.owners.updateNodes(was.Nodes, w.Nodes, touch)
	if s.endpointsChanged {
		s.owners.updateLocal(w.Local, func(l *Local) *member { return s.subjects[l.subject()].member }, touch)
		s.tables.Endpoints = s.endpoints()
		s.endpointsChanged = false
	}
	s.touchMembers(reprofiled, rezoned, touch)
	reclassings := s.reclass(affected)
	classes := s.settleClasses()
	s.enter(reclassings)
	s.judge(classes)
	s.tables.Costly = s.costly()
	s.tables.Waiting = s.queue.waiting()
	s.members.sweep()
	s.prefixes.sweep()
	s.peers.sweep(gone)
}

// touchMembers calls touch for the addresses of pods of another profile, or in
// another zone, than before.
func (s *state) touchMembers(reprofiled map[*member]struct{}, rezoned prefixMap[bool], touch func(netip.Addr)) {
	tags := map[plan.Tag]bool{}
	for m := range reprofiled {
		tags[m.tag] = true
	}
	wide := false // a prefix of one address was touched itself
	for p, moved := range rezoned.at {
		wide = wide || moved && !p.IsSingleIP()
	}
	if len(tags) == 0 && !wide {
		return
	}
	moved := func(netip.Addr) bool { return false }
	if wide {
		moved = rezoned.reader()
	}
	for a, o := range s.owners.local {
		if o.member == nil {
			continue
		}
		if _, ok := reprofiled[o.member]; ok || moved(a) {
			touch(a)
		}
	}
	for _, n := range s.world.Nodes {
		for _, t := range n.Pods {
			all := len(tags) > 0 && tags[t.Tag]
			for _, a := range t.Addresses {
				if all || moved(a) && s.members.tells(t.Tag) {
					touch(a)
				}
			}
		}
	}
}

// endpoints returns the policies of the node's own pods.
func (s *state) endpoints() map[string]EndpointPolicies {
	endpoints := map[string]EndpointPolicies{}
	for _, l := range s.world.Local {
		sets := s.setsOf(l)
		var e EndpointPolicies
		if set := sets[0]; set != nil {
			e.Ingress = set.name
		}
		if set := sets[1]; set != nil {
			e.Egress = set.name
		}
		if e != (EndpointPolicies{}) {
			endpoints[l.Interface] = e
		}
	}
	return endpoints
}
