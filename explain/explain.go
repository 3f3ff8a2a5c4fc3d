// Package explain answers "why": would a connection between two things of the
// cluster work, and which entry of which table decides that?
//
// It is a function of the registry's objects. Why finds what the two names
// stand for, compiles the plans of the nodes on the way with the cluster's own
// plug-in, as these nodes' agents do, and asks the interpreter in package plan.
// Where policies decide it asks package policy, too, which rule came nearest to
// allowing what is denied. It touches neither nodes nor kernels; so it says what
// should be, and does not claim it where a node on the way may not do what its
// plan says, or where others than Weft decide, as kube-proxy where Services are left to it.
package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Cluster is what an answer is found from.
type Cluster struct {
	Objects registry.Objects
	// Plugin finds a plug-in by name.
	Plugin func(name string) (plugin.Plugin, error)
	// Lost names the nodes whose agent does not hold its lease.
	Lost map[string]bool
	// Now is when the objects were read, by which it is known which of them are new. Where it is zero, none is.
	Now time.Time
	// Resolve finds the addresses of a host name that no object has; nil finds
	// none.
	Resolve func(name string) ([]netip.Addr, error)
}

// Verdict is what becomes of a connection, as far as that is known.
type Verdict string

// The verdicts.
const (
	Allowed Verdict = "allowed"
	Denied  Verdict = "denied"
	// NotKnown: the plans have an answer, but who is on the way may not do what
	// they say, or others than Weft decide; or not all that the plans say was looked at.
	NotKnown Verdict = "unknown"
)

// Answer is what becomes of a connection and why.
type Answer struct {
	Verdict Verdict `json:"verdict"`
	// Doubts say why the verdict is unknown.
	Doubts []string `json:"doubts,omitempty"`
	// Source and Destination are what the names stand for.
	Source      Party         `json:"source"`
	Destination Party         `json:"destination"`
	Protocol    plan.Protocol `json:"protocol"`
	// Port is the destination port, 0 for protocols without ports.
	Port uint16 `json:"port,omitempty"`
	// Explanation is what the plans say. It is not Allowed where the verdict is
	// unknown.
	plan.Explanation
	// Policies says what policies have to say, in the order in which the packet
	// meets them.
	Policies []Judgement `json:"policies,omitempty"`
	// Service is what the destination is a frontend of, where it is one.
	Service *Frontend `json:"service,omitempty"`
	// Backends are the answers about each of the pods that the service may send
	// the connection to.
	Backends []Answer `json:"backends,omitempty"`
	// Warnings say why the nodes may not do what the plans say, each once. Those
	// about Backends are here, and not there.
	Warnings []string `json:"warnings,omitempty"`
	// warned are the problems that Warnings tell, in the same order, and warnedOf says
	// where in there each is.
	warned   []warning
	warnedOf map[api.ProblemKey]int
	// asked is the port of a Service that the question is about, where it names one.
	asked *corev1.ServicePort
	// behind is the backend of a Service that the answer is about, as one of several.
	behind netip.AddrPort
	// enters is the node that gets the packet first, where it comes from outside of the cluster and that is
	// taken for known.
	enters string
}

// Why answers a question. It fails if a name stands for nothing, or for
// something without a fitting address.
func (c Cluster) Why(q Question) (Answer, error) {
	a := Answer{}
	flow, err := c.flow(q, &a)
	if err != nil {
		return Answer{}, err
	}
	planner, err := c.planner()
	if err != nil {
		return Answer{}, err
	}
	enters := c.entrance(a)
	if enters.nobody != "" {
		a.Verdict, a.Reason = Denied, enters.nobody
		return a, nil
	}
	return c.entering(enters, a, flow, planner), nil
}

// follow completes an answer, of which the parties and the port are known, with what becomes of the flow.
func (c Cluster) follow(a Answer, flow plan.Flow, planner *planner) Answer {
	a.enters = flow.Enters
	if f := c.frontend(a, flow, planner.config.Spec.ServiceProxy); f != nil {
		c.behind(&a, flow, *f, planner)
		return a
	}
	c.answer(&a, flow, planner)
	c.unserved(&a, flow)
	c.doubtFree(&a, flow.Destination, planner.config)
	c.warnOfLoopback(&a, flow, planner.config)
	c.warnOfPools(&a, flow.Destination)
	return a
}

// answer says what the plans say of a flow, and whether the nodes do that.
func (c Cluster) answer(a *Answer, flow plan.Flow, planner *planner) {
	a.Explanation = planner.explain(flow, a.Source.Node, a.Destination.Node, flow.Enters)
	c.told(a, flow, planner)
	c.served(a, flow, planner)
}

// told adds to what plans say of a flow whether the nodes do that, and what policies say.
func (c Cluster) told(a *Answer, flow plan.Flow, planner *planner) {
	if o := a.Destination.orphan; o != nil && strings.HasPrefix(a.Explanation.Interface, o.String()) {
		a.Explanation.Interface = o.String() // what the node itself calls it
	}
	a.Verdict = Denied
	switch {
	case a.Explanation.Allowed:
		a.Verdict = Allowed
	case a.Explanation.Unknown:
		a.Doubt("the Service has more backends than are looked at")
	}
	c.warn(a, planner.plans, planner.problems)
	if planner.enforces() {
		c.judge(a, flow, planner)
	}
	c.doubt(a, planner)
	c.warnOfOrphans(a, planner.plans)
}

// doubt says what is not known of the nodes that the packet meets, and of machines of
// which there is no plan: a node that was deleted may run or not, and what others than
// nodes do with packets nothing in the registry tells.
func (c Cluster) doubt(a *Answer, planner *planner) {
	if from := a.Source.Node; from != "" && planner.plans[from] == nil {
		a.Doubt("what " + from + " does is not known")
	}
	if a.Peer != "" {
		a.Doubt("what becomes of it at " + a.Peer + " is not known")
	}
	seen := map[string]bool{"": true}
	for _, s := range a.Steps {
		if seen[s.Node] {
			continue
		}
		seen[s.Node] = true
		node, ok := c.Objects.Get(api.Node, registry.Key{Name: s.Node}).(*corev1.Node)
		switch {
		case !ok:
		case c.Lost[s.Node]:
			a.Doubt(s.Node + " is lost")
		case !Reported(node):
			a.Doubt("no agent has reported on " + s.Node)
		default:
			for _, why := range planner.doubts[s.Node] {
				a.Doubt(why)
			}
			for _, p := range api.NodeProblems(node) {
				switch {
				case plugin.RefusesNames(node.Name, p):
					if a.AnsweredHere() && a.Verdict != Denied {
						a.Doubt(s.Node + " says of its " + p.Message)
					}
				case InSync(node) && p.Kind == api.Node.Kind && p.Name == node.Name:
					// It does what its plan says all the same.
				case slices.ContainsFunc(planner.problems[s.Node], func(o plugin.Problem) bool { return Told(s.Node, o).Same(p) }):
					// The plan says already what follows from it.
				case p.Kind == api.Pod.Kind:
					if c.involvesPod(*a, registry.Key{Namespace: p.Namespace, Name: p.Name}) {
						a.Doubt(fmt.Sprintf("%s says of %s: %s", s.Node, p.Object(), p.Message))
					}
				case InSync(node):
					a.Doubt(fmt.Sprintf("%s says of %s what is not found here: %s", s.Node, p.Object(), p.Message))
				default:
					a.Doubt(s.Node + " does not do all that its plan says")
				}
			}
		}
	}
}

// involvesPod reports whether an answer is about a pod, or about one with an
// address of it.
func (c Cluster) involvesPod(a Answer, key registry.Key) bool {
	var addresses []netip.Addr
	if pod, ok := c.Objects.Get(api.Pod, key).(*corev1.Pod); ok {
		addresses = podAddresses(pod)
	}
	return slices.ContainsFunc([]Party{a.Source, a.Destination}, func(end Party) bool {
		return end.Name == "pod "+key.String() || slices.Contains(addresses, end.Address)
	})
}

// Doubt makes the verdict unknown, and says why.
func (a *Answer) Doubt(why string) {
	if !slices.Contains(a.Doubts, why) {
		a.Doubts = append(a.Doubts, why)
	}
	a.Verdict, a.Explanation.Allowed = NotKnown, false
}

// warn adds why the nodes on the way may not do what the plans say, where compiled
// is what compiling their plans came upon.
func (c Cluster) warn(a *Answer, plans map[string]*plan.Plan, compiled map[string][]plugin.Problem) {
	nodes := []string{a.Source.Node, a.Destination.Node}
	for _, s := range a.Steps {
		nodes = append(nodes, s.Node)
	}
	slices.Sort(nodes)
	for _, name := range slices.Compact(nodes) {
		if name == "" {
			continue
		}
		node, ok := c.Objects.Get(api.Node, registry.Key{Name: name}).(*corev1.Node)
		if !ok {
			a.Warn(name, ofNode(name, "there is no such node in the registry"))
			continue
		}
		if c.Lost[name] {
			a.Warn(name, ofNode(name, agentLost))
		}
		for _, p := range api.NodeProblems(node) {
			a.Warn(name, p)
		}
		for _, p := range compiled[name] {
			a.Warn(name, Told(name, p))
		}
		if plans[name] == nil {
			a.Warn(name, ofNode(name, "it has no address in its status, so it has no plan"))
		}
	}
}
