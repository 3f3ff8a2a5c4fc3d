package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/plan"
)

// The specs below are a World as tests write and generate it, in YAML. Labels
// and selectors are in the form of kubectl ("app=web,tier in (a,b)"; "nothing"), named
// ports "http=tcp/8080", ports "tcp", "tcp/80", "tcp/80-90", "tcp/http", "any/http".

type worldSpec struct {
	Namespaces map[string]string              `json:"namespaces,omitempty"`
	Groups     map[string]identitySpec        `json:"groups,omitempty"`
	Nodes      map[string]map[string][]string `json:"nodes,omitempty"`
	Machines   map[string]machineSpec         `json:"machines,omitempty"`
	Domains    map[string][]string            `json:"domains,omitempty"`
	Local      map[string]localSpec           `json:"local,omitempty"`
	Policies   map[string]policySpec          `json:"policies,omitempty"`
}

type identitySpec struct {
	Namespace string   `json:"namespace"`
	Labels    string   `json:"labels,omitempty"`
	Ports     []string `json:"ports,omitempty"`
}

type machineSpec struct {
	Labels    string   `json:"labels,omitempty"`
	Addresses []string `json:"addresses"`
}

type localSpec struct {
	identitySpec `json:",inline"`
	Pod          string   `json:"pod"`
	Addresses    []string `json:"addresses,omitempty"`
	Unknown      bool     `json:"unknown,omitempty"`
	Unidentified bool     `json:"unidentified,omitempty"`
	Ended        bool     `json:"ended,omitempty"`
}

type policySpec struct {
	Tier     string       `json:"tier,omitempty"`
	Priority int          `json:"priority,omitempty"`
	Subject  selectorSpec `json:"subject"`
	Isolates []string     `json:"isolates,omitempty"`
	Ingress  []ruleSpec   `json:"ingress,omitempty"`
	Egress   []ruleSpec   `json:"egress,omitempty"`
}

type ruleSpec struct {
	Action string      `json:"action"`
	Peers  *[]peerSpec `json:"peers,omitempty"`
	Ports  *[]string   `json:"ports,omitempty"`
}

type selectorSpec struct {
	Namespace  string  `json:"namespace,omitempty"`
	Namespaces *string `json:"namespaces,omitempty"`
	Pods       *string `json:"pods,omitempty"`
}

type peerSpec struct {
	Pods   *selectorSpec `json:"pods,omitempty"`
	Block  string        `json:"block,omitempty"`
	Except []string      `json:"except,omitempty"`
	Nodes  *string       `json:"nodes,omitempty"`
	Domain string        `json:"domain,omitempty"`
}

func (s worldSpec) String() string {
	b, err := yaml.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// worldMaker makes Worlds of specs. What is the same in several is the same pointer.
type worldMaker map[string]any

func (w worldMaker) of(s worldSpec) *World {
	world := &World{Network: plan.DefaultNetwork}
	world.Namespaces = made(w, "namespace", s.Namespaces, func(name, l string) *Namespace { return &Namespace{name, labelsOf(l)} })
	world.Groups = made(w, "group", s.Groups, func(name string, s identitySpec) *Group {
		return &Group{tagOf(name), s.identity()}
	})
	slices.SortFunc(world.Groups, func(a, b *Group) int { return int(a.Tag) - int(b.Tag) })
	world.Nodes = made(w, "node", s.Nodes, func(name string, pods map[string][]string) *Node {
		n := &Node{Name: name, Origin: "NodePods " + name}
		for _, tag := range slices.Sorted(maps.Keys(pods)) {
			n.Pods = append(n.Pods, TaggedAddresses{tagOf(tag), addressesOf(pods[tag])})
		}
		return n
	})
	world.Machines = made(w, "machine", s.Machines, func(name string, s machineSpec) *Machine {
		return &Machine{Name: name, Labels: labelsOf(s.Labels), Addresses: addressesOf(s.Addresses)}
	})
	world.Domains = made(w, "domain", s.Domains, func(name string, a []string) *Domain { return &Domain{name, addressesOf(a)} })
	world.Local = made(w, "local", s.Local, func(name string, s localSpec) *Local {
		l := &Local{Interface: name, Name: s.Namespace + "/" + s.Pod, Namespace: s.Namespace, Addresses: addressesOf(s.Addresses), Ended: s.Ended}
		if s.Unidentified {
			return &Local{Interface: name, Name: name, Addresses: l.Addresses, Unidentified: true}
		}
		if id := s.identity(); !s.Unknown {
			l.Identity = &id
		}
		return l
	})
	world.Policies = made(w, "policy", s.Policies, func(name string, s policySpec) *Policy { return s.policy(name) })
	return world
}

func made[S, T any](known worldMaker, kind string, specs map[string]S, make func(string, S) *T) []*T {
	var all []*T
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		text, err := json.Marshal(specs[name])
		if err != nil {
			panic(err)
		}
		key := kind + " " + name + " " + string(text)
		if known[key] == nil {
			known[key] = make(name, specs[name])
		}
		all = append(all, known[key].(*T))
	}
	return all
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func tagOf(s string) plan.Tag { return plan.Tag(must(strconv.ParseUint(s, 10, 24))) }

func labelsOf(s string) labels.Set { return must(labels.ConvertSelectorToLabelsMap(s)) }

func addressesOf(texts []string) []netip.Addr {
	var all []netip.Addr
	for _, s := range texts {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

func selectorOf(s *string) labels.Selector {
	switch {
	case s == nil:
		return nil
	case *s == "nothing":
		return labels.Nothing()
	}
	return must(labels.Parse(*s))
}

func (s identitySpec) identity() Identity {
	id := Identity{Namespace: s.Namespace, Labels: labelsOf(s.Labels)}
	for _, p := range s.Ports {
		name, port, _ := strings.Cut(p, "=")
		of := portOf(port)
		id.Ports = append(id.Ports, NamedPort{name, of.Protocol, of.Range.First})
	}
	return id
}

func (s selectorSpec) selector() Selector {
	return Selector{s.Namespace, selectorOf(s.Namespaces), selectorOf(s.Pods)}
}

func portOf(s string) Port {
	protocol, port, ranged := strings.Cut(s, "/")
	p := Port{Protocol: must(plan.ParseProtocol(protocol)), Range: plan.AllPorts}
	if r, err := plan.ParsePortRange(port); err == nil {
		p.Range = r
	} else if ranged {
		p.Name = port
	}
	return p
}

var tierNames = map[string]Tier{"admin": Admin, "": Isolating, "baseline": Baseline}
var actionNames = map[string]Action{"allow": Allow, "deny": Deny, "pass": Pass}

func (s policySpec) policy(name string) *Policy {
	p := &Policy{Name: name, Tier: tierNames[s.Tier], Priority: s.Priority, Subject: s.Subject.selector(),
		IsolatesIngress: slices.Contains(s.Isolates, "ingress"), IsolatesEgress: slices.Contains(s.Isolates, "egress")}
	rules := func(direction string, specs []ruleSpec) []Rule {
		var rules []Rule
		for i, s := range specs {
			r := Rule{Origin: fmt.Sprintf("%s %s[%d]", name, direction, i), Action: actionNames[s.Action]}
			if s.Peers != nil {
				r.Peers = []Peer{}
				for _, p := range *s.Peers {
					r.Peers = append(r.Peers, p.peer())
				}
			}
			if s.Ports != nil {
				r.Ports = []Port{}
				for _, p := range *s.Ports {
					r.Ports = append(r.Ports, portOf(p))
				}
			}
			rules = append(rules, r)
		}
		return rules
	}
	p.Ingress, p.Egress = rules("ingress", s.Ingress), rules("egress", s.Egress)
	return p
}

func (s peerSpec) peer() Peer {
	switch {
	case s.Block != "":
		b := &Block{Prefix: netip.MustParsePrefix(s.Block)}
		for _, e := range s.Except {
			b.Except = append(b.Except, netip.MustParsePrefix(e))
		}
		return Peer{Block: b}
	case s.Nodes != nil:
		return Peer{Nodes: selectorOf(s.Nodes)}
	case s.Domain != "":
		return Peer{Domain: s.Domain}
	case s.Pods != nil:
		selector := s.Pods.selector()
		return Peer{Pods: &selector}
	}
	return Peer{}
}

// planOf is a plan of the tables alone, in which endpoints have policies.
func (t Tables) planOf() *plan.Plan {
	b := plan.NewBuilder(nil)
	b.Local.Node = "node1"
	for name, e := range t.Endpoints {
		b.PutEndpoint(plan.EndpointKey{Interface: name},
			plan.Endpoint{Network: plan.DefaultNetwork, IngressPolicy: e.Ingress, EgressPolicy: e.Egress})
	}
	p := b.Build()
	p.Classes, p.Within, p.Verdicts = t.Classes, t.Within, t.Verdicts
	return p
}

// renumbered is the plan of tables that a compiler made, in which each class has the
// number that it would have alone: which one it has else depends on what went before.
func (c *Compiler) renumbered(t Tables) *plan.Plan {
	number := func(n plan.Class) plan.Class {
		if of := c.state.classes.byNumber[n]; of != nil {
			return of.preferredNumber()
		}
		return n
	}
	p := t.planOf()
	p.Classes, p.Within, p.Verdicts = plan.Table[plan.ClassKey, plan.Membership]{}, plan.Table[plan.WithinKey, plan.Within]{}, plan.Table[plan.VerdictKey, plan.Verdict]{}
	for k, v := range t.Classes.All() {
		v.Class = number(v.Class)
		p.Classes = p.Classes.Set(k, v)
	}
	for k, v := range t.Within.All() {
		p.Within = p.Within.Set(plan.WithinKey{Class: number(k.Class)}, plan.Within{Class: number(v.Class)})
	}
	for k, v := range t.Verdicts.All() {
		k.Peer = number(k.Peer)
		p.Verdicts = p.Verdicts.Set(k, v)
	}
	return p
}

// partyAt is who an address is, found by looking at everything.
func (w *World) partyAt(a netip.Addr) Party {
	p := Party{Address: a}
	for _, m := range w.Machines {
		if slices.Contains(m.Addresses, a) {
			p.Machines = append(p.Machines, m.Labels)
		}
	}
	for _, d := range w.Domains {
		if slices.Contains(d.Addresses, a) {
			p.Domains = append(p.Domains, d.Name)
		}
	}
	p.Identity = w.podAt(a)
	if p.Identity != nil {
		p.NamespaceLabels = w.labelsOf(p.Identity.Namespace)
	}
	return p
}

func (w *World) podAt(a netip.Addr) *Identity {
	for _, l := range w.Local {
		if !l.Ended && slices.Contains(l.Addresses, a) {
			return l.Identity
		}
	}
	for _, n := range w.Nodes {
		for _, t := range n.Pods {
			if slices.Contains(t.Addresses, a) {
				for _, g := range w.Groups {
					if g.Tag == t.Tag {
						return &g.Identity
					}
				}
				return nil
			}
		}
	}
	return nil
}

func (w *World) labelsOf(namespace string) labels.Set {
	for _, n := range w.Namespaces {
		if n.Name == namespace {
			return n.Labels
		}
	}
	return nil
}
