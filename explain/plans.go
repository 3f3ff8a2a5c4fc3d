package explain

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/change"
	"github.com/weftnet/weft/registry"
)

// Plans compiles the plan of each node that has an address, and returns what
// the plug-in says is wrong, by node. It fails if the cluster's configuration
// names a plug-in that does not exist.
func (c Cluster) Plans() (map[string]*plan.Plan, map[string][]plugin.Problem, error) {
	p, err := c.planner()
	if err != nil {
		return nil, nil, err
	}
	for o := range c.Objects.All(api.Node) {
		p.compile(o.GetName())
	}
	return p.plans, p.problems, nil
}

// OwnAddresses returns the nodes' own addresses in the subnets of their pods, with the
// name of the node. The plan of one node tells them of all. It fails as Plans does.
func (c Cluster) OwnAddresses() (map[plan.Address]string, error) {
	p, err := c.planner()
	if err != nil {
		return nil, err
	}
	own := make(map[plan.Address]string)
	for o := range c.Objects.All(api.Node) {
		if p.configOf(o.(*corev1.Node)) == p.unsaid {
			continue // it knows less than others
		}
		p.compile(o.GetName())
		made := p.plans[o.GetName()]
		if made == nil || len(made.Local.Pools) == 0 {
			continue
		}
		put := func(network string, prefix netip.Prefix, node string) {
			for _, a := range plan.NodeAddressesIn(prefix) {
				own[plan.Address{Network: network, IP: a}] = node
			}
		}
		for _, pool := range made.Local.Pools {
			put(pool.Network, pool.Prefix, o.GetName())
		}
		for k, r := range made.Routes.All() {
			if r.Peer() != "" && !k.Prefix.IsSingleIP() {
				put(k.Network, k.Prefix, r.Peer())
			}
		}
		break
	}
	return own, nil
}

// planner compiles the plans of the nodes that it is asked for.
type planner struct {
	cluster Cluster
	plugin  plugin.Plugin
	// mixes are what plans of nodes are compiled with, by the plug-in that a node uses and
	// those that it loads.
	mixes  map[string]plugin.Plugin
	config *api.ClusterConfig
	// uses says which plug-in a node is to use by config.
	uses func(node string) string
	// unsaid is the configuration without what nodes say, where its status says nothing of
	// plug-ins and some node does; else it is nil.
	unsaid    *api.ClusterConfig
	endpoints func() map[string][]plugin.Endpoint
	// asked holds the nodes that were asked for. Those without an address have
	// no plan.
	asked    map[string]bool
	plans    map[string]*plan.Plan
	problems map[string][]plugin.Problem
	// open are the plans without policies, by node, and free what was asked of them last.
	open map[string]*plan.Plan
	free unhindered
	// refused says, by node and line of the entry, what of a plan the node's
	// data plane cannot do.
	refused map[string]map[string]string
	// doubts say, by node, why the node may go by other plug-ins than its plan here.
	doubts map[string][]string
}

func (c Cluster) planner() (*planner, error) {
	config, unsaid := config(c.Objects, c.Plugin)
	p := &planner{
		cluster: c, mixes: make(map[string]plugin.Plugin), config: config, uses: api.PluginsOf(config), unsaid: unsaid, endpoints: sync.OnceValue(c.endpoints),
		asked: make(map[string]bool), plans: make(map[string]*plan.Plan), problems: make(map[string][]plugin.Problem),
		open: make(map[string]*plan.Plan), refused: make(map[string]map[string]string), doubts: make(map[string][]string),
	}
	var err error
	if p.plugin, err = p.mix(cmp.Or(config.Status.Plugin, config.Spec.Plugin), config); err != nil {
		return nil, err
	}
	return p, nil
}

// Kinds returns the kinds of objects that plans are compiled of. It fails as Plans does.
func (c Cluster) Kinds() ([]*registry.Kind, error) {
	p, err := c.planner()
	if err != nil {
		return nil, err
	}
	for n := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		p.mixOf(n)
	}
	kinds := []*registry.Kind{api.Service} // of which one is the name server's
	for _, name := range slices.Sorted(maps.Keys(p.mixes)) {
		for _, k := range p.mixes[name].Kinds() {
			if !slices.Contains(kinds, k) {
				kinds = append(kinds, k)
			}
		}
	}
	return kinds, nil
}

// Config is the cluster's configuration with its defaults. Where its status says nothing of
// plug-ins, as one that was lost, it has what nodes go by then (change.Found), as far as find
// finds it.
func Config(objects registry.Objects, find func(name string) (plugin.Plugin, error)) *api.ClusterConfig {
	said, _ := config(objects, find)
	return said
}

// config is Config. A node that says nothing knows nothing of what others use, and goes by
// unsaid, the configuration as it is. That is nil where there is no difference.
func config(objects registry.Objects, find func(name string) (plugin.Plugin, error)) (said, unsaid *api.ClusterConfig) {
	o := objects.Get(api.ClusterConfigKind, registry.Key{Name: api.DefaultName})
	said = change.Config(o, registry.Each[*corev1.Node](objects, api.Node), func(name string) error { _, err := find(name); return err })
	if unsaid = api.Effective(o); unsaid.Status.Plugin == said.Status.Plugin {
		return said, nil
	}
	return said, unsaid
}

// compile makes the plan of a node unless it was made before.
func (p *planner) compile(name string) {
	if p.asked[name] {
		return
	}
	p.asked[name] = true
	node, ok := p.cluster.Objects.Get(api.Node, registry.Key{Name: name}).(*corev1.Node)
	if !ok {
		return
	}
	addresses, besides := ownAddresses(node)
	if len(addresses) == 0 {
		return
	}
	of := plugin.Node{Name: name, Addresses: addresses, Prefixes: onLink(node, addresses), Others: append(otherAddresses(node), besides...), Endpoints: p.endpoints()[name]}
	mix := p.mixOf(node)
	compiled, problems := mix.Compile(plugin.Input{Config: p.config, Objects: p.cluster.Objects, Node: of})
	compiled, more := plugin.PutPorts(compiled, of, plugin.KeptServers(mix, p.cluster.Objects))
	compiled = plugin.ChoiceOf("", p.config).Leave(compiled)
	names, _, taken := plugin.NameServerOf(p.config, p.cluster.Objects, addresses).Free(compiled, p.cluster.Objects, api.NameServerAddresses(node))
	compiled = plugin.PutNames(compiled, names.Within(api.NameServerAddresses(node)))
	compiled = plugin.KeepOthersOut(compiled, names.More, names.MoreOrigin)
	p.plans[name], p.problems[name] = compiled, slices.Concat(problems, more, taken)
	p.enforceable(node)
	p.putOwn(node)
}

// mixOf returns what the plan of a node is compiled with: by what its agent says that it
// uses, or else by what it is to use. That the node may do something else is a doubt.
func (p *planner) mixOf(node *corev1.Node) plugin.Plugin {
	doubt := func(format string, args ...any) {
		p.doubts[node.Name] = append(p.doubts[node.Name], node.Name+" "+fmt.Sprintf(format, args...))
	}
	config, uses := p.configOf(node), p.uses
	if config == p.unsaid {
		uses = api.PluginsOf(config)
	}
	used := uses(node.Name)
	switch r, err := api.NodePlugins(node); {
	case err != nil:
		doubt("says of its plug-ins what cannot be read")
	case config == p.unsaid:
		doubt("does not say which plug-in it uses, nor does the ClusterConfig's status")
	case r == nil:
	case p.unsaid != nil:
		used = r.Status().Plugin
	default:
		used = cmp.Or(r.Uses, used)
		if at := p.config.Status.PluginRevision; at != 0 && r.Revision != at {
			doubt("has not taken up what the ClusterConfig says of plug-ins last")
		}
	}
	for _, name := range api.PluginMix(config) {
		if _, err := p.cluster.Plugin(name); err != nil {
			doubt("loads a plug-in that is not known here: %v", err)
		}
	}
	if p.cluster.Lost[node.Name] {
		config = asLoaded(node, config)
	}
	mix, err := p.mix(used, config)
	if err != nil {
		doubt("uses a plug-in that is not known here: %v", err)
		return p.plugin
	}
	return mix
}

// asLoaded returns the configuration with the plug-ins that a node has loaded by its last
// word, which goes on while its agent does not run. Without such a word it is as it is.
func asLoaded(node *corev1.Node, config *api.ClusterConfig) *api.ClusterConfig {
	r, err := api.NodePlugins(node)
	if err != nil || r == nil || r.Status().Plugin == "" || r.Revision >= config.Status.PluginRevision {
		return config
	}
	as := config.DeepCopyObject().(*api.ClusterConfig)
	as.Status.Plugins = r.Status().Plugins
	return as
}

// Lacks reports whether a node has by its last word nothing loaded of what a plug-in stands
// on, so that it has no way to and from nodes that use it. Where it has said nothing, nobody
// knows.
func Lacks(node *corev1.Node, p plugin.Plugin, find func(string) (plugin.Plugin, error)) bool {
	if node == nil {
		return false
	}
	r, err := api.NodePlugins(node)
	if err != nil || r == nil || r.Status().Plugin == "" {
		return false
	}
	return !slices.ContainsFunc(r.Status().Plugins, func(name string) bool {
		loaded, err := find(name)
		return err != nil || plugin.BaseOf(loaded).Name() == plugin.BaseOf(p).Name()
	})
}

// Ways says to which nodes others know no way. It is not safe for concurrent use.
type Ways struct {
	cluster Cluster
	config  *api.ClusterConfig
	// stated is by the plug-in that is asked for where the mix does not have it, else by "".
	stated map[string]*stated
}

// stated is what plug-ins state of the node that was asked for last.
type stated struct {
	parts func(plugin.Input) map[string]*plan.Plan
	in    plugin.Input
	plans map[string]*plan.Plan
}

// Ways returns what to ask of the nodes' ways.
func (c Cluster) Ways() *Ways {
	return &Ways{cluster: c, config: Config(c.Objects, c.Plugin), stated: make(map[string]*stated)}
}

// Unknown returns the nodes to which a node knows no way under a plug-in, in order, as its agent
// finds them. It costs what the node's plan does, under all plug-ins of the mix together, and
// less behind another node: what is the same of both is not made anew. It fails where a plug-in
// is not known.
func (w *Ways) Unknown(node *corev1.Node, under string) ([]string, error) {
	p, err := w.cluster.Plugin(under)
	if err != nil {
		return nil, err
	}
	s, err := w.of(under)
	if err != nil {
		return nil, err
	}
	if s.in.Node.Name != node.Name {
		addresses, _ := ownAddresses(node)
		s.in = plugin.Input{Config: w.config, Objects: w.cluster.Objects, Node: plugin.Node{Name: node.Name, Addresses: addresses, Prefixes: onLink(node, addresses)}}
		s.plans = s.parts(s.in)
	}
	return plugin.UnknownNodes(s.plans[plugin.BaseOf(p).Name()], s.in), nil
}

// of returns what states a node's ways under a plug-in.
func (w *Ways) of(under string) (*stated, error) {
	names, besides := api.PluginMix(w.config), ""
	if !slices.Contains(names, under) {
		names, besides = append(names, under), under
	}
	if s := w.stated[besides]; s != nil {
		return s, nil
	}
	var all []plugin.Plugin
	for _, name := range names {
		p, err := w.cluster.Plugin(name)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	w.stated[besides] = &stated{parts: plugin.Parts(all...)}
	return w.stated[besides], nil
}

// configOf returns the configuration by which a node goes.
func (p *planner) configOf(node *corev1.Node) *api.ClusterConfig {
	if p.unsaid == nil {
		return p.config
	}
	if r, err := api.NodePlugins(node); err == nil && r != nil && r.Status().Plugin != "" {
		return p.config
	}
	return p.unsaid
}

// enforces reports whether any node whose plan was compiled enforces policies.
func (p *planner) enforces() bool {
	for _, mix := range p.mixes {
		if Enforces(mix) {
			return true
		}
	}
	return false
}

// mix returns what the plan of a node is compiled with that uses a plug-in and goes by a
// configuration.
func (p *planner) mix(used string, config *api.ClusterConfig) (plugin.Plugin, error) {
	key := fmt.Sprint(used, api.PluginMix(config))
	if p.mixes[key] == nil {
		mix, err := plugin.MixOf(used, config, p.cluster.Plugin)
		if err != nil {
			return nil, err
		}
		p.mixes[key] = mix
	}
	return p.mixes[key], nil
}

// enforceable leaves out of a node's plan what its data plane cannot do, as its
// agent does.
func (p *planner) enforceable(node *corev1.Node) {
	able, err := datapath.ParseCapabilities(node.Annotations[api.CapabilitiesAnnotation])
	if err != nil {
		return // none has said what it can do
	}
	possible, _ := datapath.Possible(p.plans[node.Name], able)
	enforced, refusals := datapath.Enforceable(possible, able, nil)
	p.plans[node.Name] = enforced
	p.refused[node.Name] = make(map[string]string)
	for _, r := range refusals {
		p.refused[node.Name][r.Key.Line(plan.Verdict{})] = r.Message
	}
}

// putOwn adds to a node's plan what its kernel takes for its own besides: the
// broadcast address of each link's IPv4 prefix (RFC 919), and the first address
// of each IPv6 prefix, which is every router's (RFC 4291, section 2.6.1); and
// whatever else its agent says.
func (p *planner) putOwn(node *corev1.Node) {
	made := *p.plans[node.Name]
	put := func(a netip.Addr, origin string) {
		k := plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.PrefixFrom(a, a.BitLen())}
		if _, taken := made.Routes.Get(k); !taken {
			made.Routes = made.Routes.Set(k, plan.Route{Way: plan.ToHost, Origin: origin})
		}
	}
	for _, prefix := range api.OnLink(node) {
		if a, what, ok := everyone(prefix); ok {
			put(a, what+" of "+prefix.String())
		}
	}
	for _, a := range otherAddresses(node) {
		put(a, api.OtherAddressesAnnotation+" of Node "+node.Name)
	}
	// The plug-ins know nothing of these, at which no Service has its ports; but they are the node.
	_, besides := ownAddresses(node)
	made.Local.Addresses = slices.Concat(made.Local.Addresses, besides)
	for _, a := range besides {
		put(a, "Node "+node.Name)
	}
	p.plans[node.Name] = &made
}

// everyone returns the address of a link's prefix that is not one machine's
// alone.
func everyone(prefix netip.Prefix) (a netip.Addr, what string, ok bool) {
	prefix = prefix.Masked()
	if prefix.Bits() == 0 || prefix.Addr().BitLen()-prefix.Bits() < 2 {
		return a, "", false
	}
	if prefix.Addr().Is6() {
		return prefix.Addr(), "anycast address", true
	}
	b := prefix.Addr().As4()
	for i := range b {
		free := 8 - min(8, max(0, prefix.Bits()-8*i))
		b[i] |= byte(1<<free - 1)
	}
	return netip.AddrFrom4(b), "broadcast address", true
}

// toEveryone answers about a broadcast or anycast address of the links of the
// node where a flow begins, as far as no plan can. It returns false for all
// else.
func (p *planner) toEveryone(f plan.Flow) (plan.Explanation, bool) {
	node, ok := p.cluster.Objects.Get(api.Node, registry.Key{Name: f.Node}).(*corev1.Node)
	if !ok {
		return plan.Explanation{}, false
	}
	for _, prefix := range api.OnLink(node) {
		a, what, ok := everyone(prefix)
		if !ok || a != f.Destination {
			continue
		}
		step := plan.Step{Node: node.Name, Table: "node", Decision: fmt.Sprintf("%s is the %s of %s", a, what, prefix)}
		switch {
		case !slices.Contains(api.NodeAddresses(node), f.Source):
			// The node alone gets it, as its plan says.
		case f.Protocol.HasOneReceiver():
			return plan.Explanation{Reason: unanswered(f.Protocol, what), Steps: []plan.Step{step}}, true
		case a.Is4():
			return plan.Explanation{Allowed: true, Reason: "leaves " + node.Name + " for all on " + prefix.String(), Steps: []plan.Step{step},
				SeenSource: f.Source, SeenDestination: a, SeenPort: f.Port}, true
		}
	}
	return plan.Explanation{}, false
}

// unanswered says that nobody answers what goes to a broadcast or anycast address.
func unanswered(p plan.Protocol, what string) string {
	return fmt.Sprintf("no kernel answers %s to the %s of a link", p, what)
}

// answersNot denies a connection that a node delivers to itself at a broadcast or
// anycast address of its links: it gets there, and is not answered.
func (p *planner) answersNot(e *plan.Explanation, f plan.Flow) {
	if !e.Allowed || e.Node == "" || e.Interface != "" || !f.Protocol.HasOneReceiver() {
		return
	}
	node, ok := p.cluster.Objects.Get(api.Node, registry.Key{Name: e.Node}).(*corev1.Node)
	if !ok {
		return
	}
	for _, prefix := range api.OnLink(node) {
		if a, what, ok := everyone(prefix); ok && a == e.SeenDestination {
			e.Allowed, e.Reason = false, e.Reason+", but "+unanswered(f.Protocol, what)
			return
		}
	}
}

// explain follows a flow with the plans of those nodes alone that it can meet:
// those where it begins and should end, and then any that a plan sends it to,
// until there is no other. Where nobody knows of source or destination, the
// first node's plan says where they would be. So of a large cluster a few plans
// are compiled.
func (p *planner) explain(f plan.Flow, ends ...string) plan.Explanation {
	for _, name := range ends {
		if name != "" {
			p.compile(name)
		}
	}
	if e, ok := p.toEveryone(f); ok {
		return e
	}
	for o := range p.cluster.Objects.All(api.Node) {
		if len(p.plans) > 0 {
			break
		}
		p.compile(o.GetName())
	}
	for {
		e := plan.Explain(p.plans, f)
		before := len(p.asked)
		for _, name := range p.next(f.Network, append(reached(e), f.Source, f.Destination)...) {
			p.compile(name)
		}
		if len(p.asked) == before {
			p.nameHolder(&e, f.Network)
			p.answersNot(&e, f)
			return e
		}
	}
}

// nameHolder says of what leaves the cluster for an address that a node has besides
// those of its Node which node that is. No plan says how the network between them
// leads there, if it does. What several nodes say that they have, as a broadcast
// address or that of a bridge of their own, is no one's.
func (p *planner) nameHolder(e *plan.Explanation, network string) {
	if !e.Allowed || e.Node != "" || len(e.Steps) == 0 {
		return
	}
	from := e.Steps[len(e.Steps)-1].Node
	known := p.plans[from]
	if known == nil {
		return
	}
	if _, r, ok := known.Route(network, e.SeenDestination, true); !ok || r.Way != plan.ToGateway {
		return
	}
	var holders []string
	for n := range registry.Each[*corev1.Node](p.cluster.Objects, api.Node) {
		if slices.Contains(otherAddresses(n), e.SeenDestination) {
			holders = append(holders, n.Name)
		}
	}
	if len(holders) == 1 {
		e.Reason = fmt.Sprintf("leaves %s for %s, which is an address of %s as its agent says; whether the network outside leads there is not known",
			from, e.SeenDestination, holders[0])
	}
}

// next returns the nodes that the plans known so far send packets for some
// addresses of a network to, and those that have the addresses or are the way there.
func (p *planner) next(network string, addresses ...netip.Addr) []string {
	var names []string
	vias := slices.Clone(addresses)
	for _, known := range p.plans {
		for _, a := range addresses {
			for _, fromEndpoint := range []bool{true, false} {
				_, r, ok := known.Route(network, a, fromEndpoint)
				if !ok {
					continue
				}
				names = append(names, r.Peers...)
				for _, name := range r.Peers {
					peer := known.Peer(name)
					vias = append(vias, peer.NextHop(a))
					if end, _, ok := known.Local.EndOf(peer, a); ok {
						vias = append(vias, end.VTEP)
					}
				}
			}
			for k, e := range known.Egress.All() {
				if k.Network == network && k.Destination.Contains(a) {
					names = append(names, e.Node)
				}
			}
		}
	}
	for o := range p.cluster.Objects.All(api.Node) {
		if slices.ContainsFunc(api.NodeAddresses(o.(*corev1.Node)), func(a netip.Addr) bool { return slices.Contains(vias, a) }) {
			names = append(names, o.GetName())
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// onLink returns the prefixes that a node's agent says it is on-link with.
// Where none said so, the other nodes' addresses count as on-link.
func onLink(node *corev1.Node, addresses []netip.Addr) []netip.Prefix {
	prefixes := api.OnLink(node)
	if len(prefixes) == 0 {
		for _, a := range addresses {
			everything, _ := a.Prefix(0)
			prefixes = append(prefixes, everything)
		}
	}
	return prefixes
}

// ownAddresses returns a node's own addresses as its agent takes them, one of each family: the first
// that its Node lists, which Kubernetes gives its agent. besides are others that it lists and the node
// delivers to itself, as its agent says, or where no agent says anything of that.
func ownAddresses(node *corev1.Node) (own, besides []netip.Addr) {
	others := otherAddresses(node)
	unsaid := len(others) == 0 && len(api.OnLink(node)) == 0
	all := api.NodeAddresses(node)
	own = firstOfEach(all)
	for _, a := range all {
		if !slices.Contains(own, a) && (unsaid || slices.Contains(others, a)) {
			besides = append(besides, a)
		}
	}
	return own, besides
}

// firstOfEach returns the first address of each family.
func firstOfEach(all []netip.Addr) (first []netip.Addr) {
	for _, a := range all {
		if !slices.ContainsFunc(first, func(o netip.Addr) bool { return o.Is4() == a.Is4() }) {
			first = append(first, a)
		}
	}
	return first
}

// otherAddresses returns what a node's agent says that it delivers to itself
// besides the addresses of its Node.
func otherAddresses(node *corev1.Node) []netip.Addr {
	var addresses []netip.Addr
	for s := range strings.SplitSeq(node.Annotations[api.OtherAddressesAnnotation], ",") {
		if a, err := netip.ParseAddr(strings.TrimSpace(s)); err == nil && !a.Is4In6() && a.Zone() == "" {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// begun is when a pod got its interface, as near as its object tells.
func begun(pod *corev1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return pod.CreationTimestamp.Time
}

// endpoints returns the nodes' endpoints, as far as the Pod objects tell, and what
// agents say of pods without objects. The name of a pod's interface is not among
// that, so the pod's own name stands for it.
func (c Cluster) endpoints() map[string][]plugin.Endpoint {
	endpoints := make(map[string][]plugin.Endpoint)
	for o := range c.Objects.All(api.Pod) {
		pod := o.(*corev1.Pod)
		addresses := podAddresses(pod)
		if !attached(pod) || len(addresses) == 0 {
			continue
		}
		endpoints[pod.Spec.NodeName] = append(endpoints[pod.Spec.NodeName], plugin.Endpoint{
			Interface: pod.Namespace + "/" + pod.Name, Network: plan.DefaultNetwork, Addresses: addresses, MAC: plan.MACOf(addresses[0]),
			Namespace: pod.Namespace, Pod: pod.Name, UID: string(pod.UID), Ports: plugin.HostPorts(pod), Created: begun(pod),
		})
	}
	for node := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		orphans, _ := api.NodeOrphans(node) // warn says what cannot be read
		for _, o := range orphans.Pods {
			if addresses := c.orphaned(o); len(addresses) > 0 {
				name := o.String()
				if slices.ContainsFunc(endpoints[node.Name], func(e plugin.Endpoint) bool { return e.Interface == name }) {
					name += "/" + addresses[0].String() // another pod has the name by now
				}
				endpoints[node.Name] = append(endpoints[node.Name], plugin.Endpoint{
					Interface: name, Network: plan.DefaultNetwork, Addresses: addresses, MAC: plan.MACOf(addresses[0]),
					Namespace: o.Namespace, Pod: o.Name, UID: o.UID,
				})
			}
		}
	}
	return endpoints
}

// attached reports whether a pod has an interface of its own.
func attached(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && !pod.Spec.HostNetwork &&
		!api.Ended(pod)
}

func podAddresses(pod *corev1.Pod) []netip.Addr {
	var texts []string
	for _, ip := range pod.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	if len(texts) == 0 {
		texts = []string{pod.Status.PodIP}
	}
	return parse(texts)
}

func parse(texts []string) []netip.Addr {
	var addresses []netip.Addr
	for _, t := range texts {
		if a, err := netip.ParseAddr(t); err == nil {
			addresses = append(addresses, a.Unmap())
		}
	}
	return addresses
}
