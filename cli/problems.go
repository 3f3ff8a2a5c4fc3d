package cli

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/change"
	"github.com/weftnet/weft/plugin/networkpolicy"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
	"github.com/weftnet/weft/service/control"
)

// What is wrong with a cluster is known to many: agents say it on their Nodes,
// the leading controller in conditions and annotations, what an object lacks
// shows when plans are compiled from it, and who lives in the leases. All of it
// comes together here, as one list in which nothing is twice.

// problemList is a list of problems in the order in which they were found.
type problemList struct {
	list  []api.Problem
	known map[api.ProblemKey]bool
	// of are the messages of each object that has some, by its name for people.
	of map[string][]string
}

// brief returns a problem with no more of its words than are shown, in the same words whoever
// says it.
func brief(p api.Problem) api.Problem {
	p.Message = plugins.Plain(p.Kind, p.Message)
	p.Name, p.Namespace, p.Kind = printable.Brief(p.Name), printable.Brief(p.Namespace), printable.Brief(p.Kind)
	p.Message, p.Remedy = printable.Brief(p.Message), printable.Brief(p.Remedy)
	return p
}

// add adds a problem unless it is there.
func (l *problemList) add(p api.Problem) {
	if p = brief(p); l.known[p.Key()] {
		return
	}
	if l.known == nil {
		l.known, l.of = make(map[api.ProblemKey]bool), make(map[string][]string)
	}
	l.known[p.Key()] = true
	l.of[p.Object()] = append(l.of[p.Object()], p.Message)
	l.list = append(l.list, p)
}

// has reports whether a problem is in the list.
func (l *problemList) has(p api.Problem) bool { return l.known[brief(p).Key()] }

// about adds a problem of an object, which is nil for what is no object.
func (l *problemList) about(k *registry.Kind, key registry.Key, message, remedy string) {
	p := api.Problem{Namespace: key.Namespace, Name: key.Name, Message: message, Remedy: remedy}
	if k != nil {
		p.Kind = k.Kind
	}
	l.add(p)
}

// untold returns what of an object's annotation, which joins several problems with
// semicolons, is not in the list yet.
func (l *problemList) untold(k *registry.Kind, key registry.Key, text string) string {
	if text == "" {
		return "" // so it is of nearly all
	}
	known := slices.Clone(l.of[brief(api.Problem{Kind: k.Kind, Namespace: key.Namespace, Name: key.Name}).Object()])
	// One message may hold another.
	slices.SortFunc(known, func(a, b string) int { return len(b) - len(a) })
	parts := []string{text}
	for _, message := range known {
		if message == "" {
			break // it is in everything
		}
		var left []string
		for _, part := range parts {
			left = append(left, strings.Split(part, message)...)
		}
		parts = left
	}
	var rest []string
	for _, part := range parts {
		if part = strings.Trim(part, "; "); part != "" {
			rest = append(rest, part)
		}
	}
	return strings.Join(rest, "; ")
}

// startAgent is what to do about a Node whose agent does not run.
const startAgent = "start the agent, or delete the Node if it will not come back"

// problemsOf says what is wrong with a cluster, where held are the leases that
// somebody holds, and returns the nodes' plans, too, as far as these say what
// subnets nodes have.
func problemsOf(c explain.Cluster, held map[string]string) (map[string]*plan.Plan, problemList) {
	var l problemList
	if held[api.ControllerLease] == "" {
		l.about(nil, registry.Key{Name: "controller"}, noLeader(c), "")
	}
	config := registry.Key{Name: api.DefaultName}
	if o, ok := c.Objects.Get(api.ClusterConfigKind, config).(*api.ClusterConfig); ok {
		for _, condition := range o.Status.Conditions {
			if isProblem(condition) {
				l.about(api.ClusterConfigKind, config, cmp.Or(condition.Message, condition.Reason), "")
			}
		}
		for _, text := range unmet(o, c) {
			l.about(api.ClusterConfigKind, config, text, "")
		}
	} else if p, gone := goneConfig(c.Objects); gone {
		l.add(p)
	}
	// A plan is compiled of what says where nodes and pods are.
	unpoliced := c
	unpoliced.Objects = waysAlone{c.Objects}
	plans, compiled, err := unpoliced.Plans()
	if err != nil {
		l.about(api.ClusterConfigKind, config, err.Error(), "")
	}
	nodeProblems(&l, c, compiled)
	serviceProblems(&l, c)
	rangeProblem(&l, c)
	kubeProxyProblem(&l, c.Objects)
	for _, p := range c.AddressProblems() {
		l.add(p)
	}
	if p, differ := c.DifferentMTUs(plans); differ {
		l.add(p)
	}
	missingNodes(&l, c, held)
	annotatedProblems(&l, c.Objects)
	if plug, err := c.Plugin(pluginName(c.Objects)); err == nil {
		// What leaves enforces what it did as long as it is loaded.
		var beside []plugin.Plugin
		config := configOf(c.Objects)
		for _, name := range api.PluginMix(config) {
			if p, err := c.Plugin(name); err == nil && !slices.Contains(config.Status.LoadingPlugins, name) {
				beside = append(beside, p)
			}
		}
		policyProblems(&l, c, plug, beside...)
	}
	return plans, l
}

// annotatedProblems adds what the controller says in an annotation.
func annotatedProblems(l *problemList, objects registry.Objects) {
	for _, k := range api.AnnotatedKinds {
		for o := range objects.All(k) {
			if p := l.untold(k, registry.KeyOf(o), o.GetAnnotations()[api.ProblemAnnotation]); p != "" {
				l.about(k, registry.KeyOf(o), p, "")
			}
		}
	}
}

// noLeader says what stands still where no controller leads.
func noLeader(c explain.Cluster) string {
	const text = "none leads; until one runs new nodes get no subnet, and Services no "
	if p, err := c.Plugin(pluginName(c.Objects)); err == nil && slices.Contains(p.Kinds(), service.GrantKind) {
		return text + "addresses and no new endpoints"
	}
	return text + "addresses of AddressPools"
}

// maxOfNamespace is of how many Services of a namespace it is told what is wrong: its users write
// them, and what is wrong elsewhere is to be seen.
const maxOfNamespace = 10

// serviceProblems adds what the controller says of Services and AddressPools, each an object that
// a user wrote.
func serviceProblems(l *problemList, c explain.Cluster) {
	wrong := make(map[string]int) // how many Services of each namespace
	for svc := range registry.Each[*corev1.Service](c.Objects, api.Service) {
		said := false
		for _, condition := range svc.Status.Conditions {
			if !control.IsProblem(condition) {
				continue
			}
			if !said {
				said = true
				wrong[svc.Namespace]++
			}
			if wrong[svc.Namespace] <= maxOfNamespace {
				l.about(api.Service, registry.KeyOf(svc), condition.Message, "")
			}
		}
	}
	var more []string
	for _, namespace := range slices.Sorted(maps.Keys(wrong)) {
		if n := wrong[namespace] - maxOfNamespace; n > 0 {
			more = append(more, fmt.Sprintf("%d of namespace %s", n, namespace))
		}
	}
	if len(more) > 0 {
		l.about(nil, registry.Key{Name: "services"}, "something is wrong with more of them: "+printable.Few(more, 0), "see weft get services -A -o wide")
	}
	for p := range registry.Each[*api.AddressPool](c.Objects, api.AddressPoolKind) {
		if condition := meta.FindStatusCondition(p.Status.Conditions, api.PoolUsable); condition != nil && condition.Status == metav1.ConditionFalse {
			l.about(api.AddressPoolKind, registry.KeyOf(p), condition.Message, "")
		}
	}
}

// rangeProblem adds, where the controller gives Services their addresses, which have one that is outside of the
// range that they get them from by now. They keep it, and nothing else is kept from having it: the range of pods, as
// an example. Of a Service that asks for such an address and does not get it its conditions say so.
func rangeProblem(l *problemList, c explain.Cluster) {
	p, err := c.Plugin(pluginName(c.Objects))
	if err != nil || !slices.Contains(p.Kinds(), service.GrantKind) {
		return
	}
	ranges := api.ServiceRanges(configOf(c.Objects), registry.GetAs[*networkv1.ClusterNetwork](c.Objects, api.ClusterNetwork, registry.Key{Name: api.DefaultName}))
	var names, texts []string
	for svc := range registry.Each[*corev1.Service](c.Objects, api.Service) {
		if svc.Spec.Type == corev1.ServiceTypeExternalName || meta.IsStatusConditionFalse(svc.Status.Conditions, control.Granted) {
			continue
		}
		outside := slices.DeleteFunc(api.ClusterAddresses(svc), func(a netip.Addr) bool {
			return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
		})
		if len(outside) > 0 {
			names = append(names, fmt.Sprintf("%s of Service %s", outside[0], registry.KeyOf(svc)))
		}
	}
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	for _, r := range ranges {
		texts = append(texts, r.String())
	}
	config := registry.Key{Name: api.DefaultName}
	if len(ranges) == 0 {
		l.about(api.ClusterConfigKind, config, "spec.serviceNetworks: there is no range, so that new Services get no address; there are "+printable.Few(names, 0), "give it the range that these are of")
		return
	}
	l.about(api.ClusterConfigKind, config, fmt.Sprintf("spec.serviceNetworks: outside of %s, where Services get addresses, are %s: these keep them, and something else may be given the same",
		strings.Join(texts, " and "), printable.Few(names, 0)), "have the range hold them, or delete and make them anew")
}

// unmet says what of a ClusterConfig means nothing in a cluster.
func unmet(config *api.ClusterConfig, c explain.Cluster) []string {
	there := make(map[string]bool)
	for node := range c.Objects.All(api.Node) {
		there[node.GetName()] = true
	}
	return change.Unmet(config, there, func(name string) error { _, err := c.Plugin(name); return err })
}

// nodeProblems adds what is wrong with the nodes there are, where compiled is
// what compiling their plans came upon.
func nodeProblems(l *problemList, c explain.Cluster, compiled map[string][]plugin.Problem) {
	// What is so now is not told as what was when an agent said its last.
	var current problemList
	for o := range c.Objects.All(api.Node) {
		node := o.(*corev1.Node)
		if !c.Lost[node.Name] {
			for _, p := range saidOf(node) {
				current.add(p)
			}
		}
		for _, p := range compiled[node.Name] {
			current.add(explain.Told(node.Name, p))
		}
	}
	some, ways := false, c.Ways()
	told := hearsay{}
	for o := range c.Objects.All(api.Node) {
		some = true
		node, key := o.(*corev1.Node), registry.KeyOf(o)
		if c.Agentless(node) {
			continue
		}
		said := slices.DeleteFunc(saidOf(node), func(p api.Problem) bool { return lacksLost(ways, c.Lost, node, p) })
		if c.Lost[node.Name] && len(said) == 1 && said[0].Message == api.NotReported {
			l.add(said[0])
			said = nil
		} else if c.Lost[node.Name] {
			keep := "its pods keep the network they have"
			if names := cutOffBy(c, node); len(names) > 0 {
				keep = fmt.Sprintf("it has not loaded %s, so its pods are cut off from the nodes that use it, and from their pods", strings.Join(names, ", "))
			}
			if control.IsSilent(node) {
				keep += ", and Services give its pods no new connections"
			}
			l.about(api.Node, key, "its agent does not run, so its state is not known; "+keep,
				startAgent)
			said = slices.DeleteFunc(said, current.has)
			for i := range said {
				said[i].Message += " (so its agent said last)"
			}
		}
		if _, err := api.NodePlugins(node); err != nil && !c.Lost[node.Name] {
			l.about(api.Node, key, fmt.Sprintf("what its agent reports of plug-ins cannot be read, so no change of the plug-in goes on: %v", err),
				"look at its annotation "+api.PluginsAnnotation+" and at status.pluginRevision of the ClusterConfig")
		}
		for _, p := range said {
			if p.Kind == api.Node.Kind && p.Name == node.Name {
				l.add(p)
			} else {
				told.add(node.Name, p)
			}
		}
		for _, p := range compiled[node.Name] {
			l.add(explain.Told(node.Name, p))
		}
		if !c.Lost[node.Name] {
			told.nodes++
		}
	}
	told.addTo(l)
	if !some {
		l.about(nil, registry.Key{Name: "nodes"}, "there are none", "")
	}
}

// lacksLost reports whether a problem of a node is that it knows no way to others whose agents
// do not run, which is said of those. Who they all are, where it does not name all, is found
// as its agent does.
func lacksLost(ways *explain.Ways, lost map[string]bool, node *corev1.Node, p api.Problem) bool {
	lives := func(name string) bool { return !lost[name] }
	under, names, more := api.LacksWayTo(p.Message)
	if len(names) == 0 || slices.ContainsFunc(names, lives) {
		return false
	}
	if !more {
		return true
	}
	all, err := ways.Unknown(node, under)
	return err == nil && len(all) > len(names) && !slices.ContainsFunc(all, lives)
}

// cutOffBy returns the plug-ins that other nodes are told to use and whose networks and
// tunnels a node has not loaded.
func cutOffBy(c explain.Cluster, node *corev1.Node) (names []string) {
	config := configOf(c.Objects)
	used := []string{config.Status.Plugin}
	if len(config.Status.PluginNodes) > 0 {
		used = append(used, config.Status.PreparedPlugin)
	}
	for _, name := range used {
		if p, err := c.Plugin(name); err == nil && explain.Lacks(node, p, c.Plugin) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// saidOf returns what a node's agent said is wrong, pods without objects among it, and
// what it said that cannot be read.
func saidOf(node *corev1.Node) []api.Problem {
	said := api.NodeProblems(node)
	orphans, orphansErr := api.NodeOrphans(node)
	_, mtuErr := api.NodeMTU(node)
	_, planeErr := api.NodeDataPlane(node)
	for _, err := range []error{orphansErr, mtuErr, planeErr} {
		if err != nil {
			said = append(said, api.Problem{Kind: api.Node.Kind, Name: node.Name, Message: err.Error(), Remedy: "restart its agent, which writes it anew"})
		}
	}
	if p, any := explain.Orphaned(node.Name, orphans); any {
		said = append(said, p)
	}
	return said
}

// hearsay are problems that agents tell of others than their own nodes. Who has got
// hold of one agent can say anything of anybody, so it is said who says it, but
// where all do.
type hearsay struct {
	// nodes is how many agents live.
	nodes int
	list  []rumour
	// at says where in list each is.
	at map[api.ProblemKey]int
}

type rumour struct {
	api.Problem
	tellers []string
}

func (h *hearsay) add(teller string, p api.Problem) {
	p = brief(p)
	i, known := h.at[p.Key()]
	if !known {
		i = len(h.list)
		if h.at == nil {
			h.at = make(map[api.ProblemKey]int)
		}
		h.at[p.Key()] = i
		h.list = append(h.list, rumour{Problem: p})
	}
	h.list[i].tellers = append(h.list[i].tellers, teller)
}

// addTo adds the problems to a list, but for those that it has, as who asks sees
// them, too.
func (h *hearsay) addTo(l *problemList) {
	for _, r := range h.list {
		if !l.has(r.Problem) && len(r.tellers) < h.nodes {
			r.Message += " (so says " + printable.Few(r.tellers, 0) + ")"
		}
		l.add(r.Problem)
	}
}

// missingNodes adds what is wrong with agents and pods whose Node there is not,
// and with agents that would be another's node.
func missingNodes(l *problemList, c explain.Cluster, held map[string]string) {
	agents, rivals := liveAgents(held)
	there := make(map[string]bool)
	for o := range c.Objects.All(api.Node) {
		there[o.GetName()] = true
	}
	orphans := make(map[string][]string)
	for o := range c.Objects.All(api.Pod) {
		if pod := o.(*corev1.Pod); pod.Spec.NodeName != "" && !pod.Spec.HostNetwork && !api.Ended(pod) && !there[pod.Spec.NodeName] {
			orphans[pod.Spec.NodeName] = append(orphans[pod.Spec.NodeName], registry.KeyOf(o).String())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(agents)) {
		if there[name] {
			continue
		}
		message := "there is no such Node, though its agent runs"
		if pods := orphans[name]; len(pods) > 0 {
			message += " and " + podsAre(pods) + " on it; other nodes may have no way there"
		}
		l.about(api.Node, registry.Key{Name: name}, message, "if it was not to be deleted, start its agent again to register it; else stop the agent")
		delete(orphans, name)
	}
	for _, name := range slices.Sorted(maps.Keys(orphans)) {
		l.about(api.Node, registry.Key{Name: name}, "there is no such Node, but "+podsAre(orphans[name])+" on it; other nodes may have no way there",
			"start its agent to register it, or delete the pods")
	}
	for _, name := range slices.Sorted(maps.Keys(rivals)) {
		l.about(api.Node, registry.Key{Name: name}, fmt.Sprintf("another agent, %s, wants to be this node, too, beside %s", rivals[name], cmp.Or(agents[name], "none")),
			"give each node of a cluster a name of its own, and each cluster an etcd or an --etcd-prefix of its own")
	}
}

// policyProblems adds what is wrong with the cluster's policies, where nodes use a plug-in
// beside others.
func policyProblems(l *problemList, c explain.Cluster, plug plugin.Plugin, beside ...plugin.Plugin) {
	of := func(kinds []*registry.Kind, what string) {
		// Kinds about which the same is to be done are one problem.
		var remedies []string
		names := make(map[string][]string)
		for _, k := range kinds {
			remedy := plugins.Remedy(k)
			if !slices.Contains(remedies, remedy) {
				remedies = append(remedies, remedy)
			}
			for o := range c.Objects.All(k) {
				names[remedy] = append(names[remedy], k.Singular+" "+registry.KeyOf(o).String())
			}
		}
		for _, remedy := range remedies {
			switch these := names[remedy]; len(these) {
			case 0:
			case 1:
				l.about(nil, registry.Key{Name: "policies"}, fmt.Sprintf("1 is enforced %s (%s)", what, these[0]), remedy)
			default:
				l.about(nil, registry.Key{Name: "policies"}, fmt.Sprintf("%d are enforced %s (%s)", len(these), what, printable.Few(these, 0)), remedy)
			}
		}
	}
	now := plugins.Unenforced(append(beside, plug)...)
	of(now, "by nobody under plug-in "+plug.Name())
	of(unenforcedLater(c.Objects, plug, now), "only "+untilOthersLeave(plug))
	if !explain.Enforces(plug) {
		return
	}
	objects, ok := c.Objects.(registry.Snapshot)
	if !ok {
		return
	}
	for _, s := range networkpolicy.States(objects) {
		for _, p := range fewOf(s) {
			l.about(s.Kind, s.Key, p, "")
		}
	}
	for d := range registry.Each[*api.DomainName](c.Objects, api.DomainNameKind) {
		if d.Problem == "" {
			continue
		}
		message := d.Problem + "; the addresses found last hold"
		if len(d.Addresses) == 0 {
			message = d.Problem + "; rules with it hold for nobody"
		}
		l.about(api.DomainNameKind, registry.KeyOf(d), message, "correct the name in the policies, or see to the name server that the leading controller asks")
	}
}

// unenforcedLater returns the kinds of policies that are enforced only as long as what leaves is
// loaded, where nodes use a plug-in and the change to it is forced: what leaves does not stay for
// them, once no pod needs it. now are those that nobody enforces any more.
func unenforcedLater(objects registry.Objects, plug plugin.Plugin, now []*registry.Kind) []*registry.Kind {
	if config := configOf(objects); api.ForcedPlugin(config) != plug.Name() || config.Spec.Plugin != plug.Name() {
		return nil
	}
	return slices.DeleteFunc(plugins.Unenforced(plug), func(k *registry.Kind) bool { return slices.Contains(now, k) })
}

// untilOthersLeave says until when these are enforced.
func untilOthersLeave(plug plugin.Plugin) string {
	return "until the plug-ins beside " + plug.Name() + " leave, as the change to it is forced"
}

// maxOfPolicy is how many problems of one policy are shown at once: each of its rules
// may have one.
const maxOfPolicy = 10

// fewOf returns the first problems of a policy, and says how many others there are.
func fewOf(s networkpolicy.State) []string {
	more := len(s.Problems) - maxOfPolicy
	if more <= 0 {
		return s.Problems
	}
	return append(slices.Clone(s.Problems[:maxOfPolicy]), fmt.Sprintf("and %d more problems (see: %s)", more, policyStatusOf(s.Kind, s.Key)))
}

// policyStatusOf is the command that shows all problems of a policy.
func policyStatusOf(k *registry.Kind, key registry.Key) string {
	command := "weft policy status"
	if key.Namespace != "" {
		command += " -n " + key.Namespace
	}
	return command + " " + k.Singular + "/" + key.Name + " -o json"
}

// podsAre says how many pods there are, with "is" or "are", and names the first.
func podsAre(names []string) string {
	if len(names) == 1 {
		return "a pod, " + names[0] + ", is"
	}
	return fmt.Sprintf("%d pods (%s) are", len(names), printable.Few(names, 0))
}

// pluginName is the name of the plug-in that the cluster uses.
func pluginName(objects registry.Objects) string { return usedPlugin(configOf(objects)) }

// waysAlone are the objects without those that say who may talk to whom, which weft
// policy status tells of, and without Services, of which agents tell what is wrong: to
// compile them for every node of a large cluster takes minutes.
type waysAlone struct{ registry.Objects }

func (o waysAlone) All(k *registry.Kind) iter.Seq[registry.Object] {
	if slices.Contains(policiesKinds, k) || slices.Contains(servicesKinds, k) {
		return func(func(registry.Object) bool) {}
	}
	return o.Objects.All(k)
}

// servicesKinds are the kinds that say what is behind Services, and at which addresses.
var servicesKinds = []*registry.Kind{api.Service, api.EndpointSlice, service.GrantKind, api.AddressPoolKind, api.AddressGrantKind}

// policiesKinds are the kinds that say who may talk to whom.
var policiesKinds = []*registry.Kind{api.NetworkPolicy, api.ClusterNetworkPolicy, api.TagKind, api.NodePodsKind, api.DomainNameKind}
