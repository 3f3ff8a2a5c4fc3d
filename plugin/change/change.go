// Package change decides how a running cluster comes from one plug-in to another
// without losing a packet. Next is the whole of it, a pure function: from what the
// ClusterConfig asks for and what nodes report it makes the ClusterConfig's status,
// which is what nodes go by (api.PluginOf, api.PluginMix). Against says what speaks
// against a change before it is begun.
//
// # The stages
//
// The plug-in that is asked for comes into the mix: nodes load its part of the plan
// beside the one they use. Once all say that this is whole there, it is prepared, and
// nodes give new pods its addresses; old ones keep theirs. A plug-in that nobody uses
// stays in the mix while a pod lives on its addresses, and then leaves. Whoever asks
// for another plug-in meanwhile, as for the old one, is at one of these stages already. Who
// asks for none asks for nothing else than what nodes use that there are (api.AskedPlugin).
//
// # Why nothing in the mix is missing
//
// Whatever a node uses or needs must be in the mix, though nodes hear late of the
// status and are heard late. So the status counts its changes (PluginRevision), and a
// report says of which one it is. With revision r, and as long as it holds, a node
// begins to use only what r has as Plugin or PreparedPlugin, whatever users write into
// the spec. A plug-in leaves the mix by a write that succeeds on revision r alone,
// where r has it as neither, and each node reports of r that it neither uses nor needs
// it. No node can come to do so again: it would have to go back to an earlier revision.
// What has been loading ever since it came into the mix, no revision has had as either, so
// no node uses it, and it leaves without a word of r: who takes a change back while nodes
// prepare waits for nobody.
//
// Where the status is lost, nodes go on as the last one said that they heard, and report
// of its revision. What one came to use by it was prepared, so that all had reported to be
// ready: a new status has all that any report names (Found). Its revision is the time, in
// milliseconds, which is greater than any that a node has heard of, so that none means two
// things. What nodes use that have not reported since then (FirstRevision) nobody knows.
//
// Who is ready is told by reports of the present revision alone. Where some nodes use a
// plug-in before the others, all are asked again before these follow: who was ready for
// the first step may have lost what it had, and Nodes have come. A change that is forced
// passes over who is not ready, but not before those whose agents run had the time to be: what
// is lost by a force is between nodes that cannot be ready.
//
// Next must be given Nodes that are no older than the configuration, so that none is
// missing that has heard of an earlier one.
//
// # When policies are in force
//
// Those of a plug-in that comes in are not until it is prepared (LoadingPlugins): to be
// ready, a node must have told the others of its pods, so that nobody takes these for
// strangers. Those of one that is to leave are in force as long as it is in the mix, and
// the last that enforces what there is stays in it. So does one by which a machine is
// reached that is no node, of which no report tells that it needs it.
package change

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/registry"
)

// Cluster is what Next decides by.
type Cluster struct {
	// Config is the configuration as the registry has it.
	Config *api.ClusterConfig
	// Nodes are all there are, in the order of their names, read after Config.
	Nodes []*corev1.Node
	// Unknown returns why there is no plug-in of a name, nil where there is one.
	Unknown func(name string) error
	// Against returns what speaks against a step. It is called only where it matters: for
	// each plug-in that is to leave, for the one that is asked for, and for several that are
	// loaded. Where it fails for a step the cluster stays as it is.
	Against func(Question) (Objections, error)
	// Known returns what Against said a while ago, false where that is nothing or too long
	// ago. It may be nil. It serves to say how far a change is; nothing that nodes are to do
	// follows from it.
	Known func(Question) (Objections, bool)
	// Away returns the nodes whose agents do not run. It is asked where a change is forced,
	// which waits for none of them. It may be nil: then none is known to be away.
	Away func() map[string]bool
	// Patient reports whether a forced change still waits for nodes whose agents run, and that
	// are not ready: for ForcePatience from when it was asked for. It may be nil: then it waits
	// for none.
	Patient func() bool
	// Now is when a condition that changes has changed, and the revision of a status in the
	// place of one that was lost.
	Now metav1.Time
}

// ForcePatience is for how long a forced change waits for nodes whose agents run to get
// ready. Those that can are in far less, so that no packet between them is lost.
const ForcePatience = 10 * time.Second

// Question is which step Against is asked of.
type Question struct {
	// To is the plug-in that nodes are to give pods addresses of, empty where they go on
	// as they do, and Beside are those that are loaded.
	To     string
	Beside []string
	// Before are the plug-ins by which policies are in force now, and by which machines that
	// are no nodes are reached, those first that the step is to replace, and After those by
	// which it will be so in the end.
	Before, After []string
	// Only is the one plug-in that is loaded, where what is asked is but what others have
	// left behind.
	Only string
}

// QuestionOf returns what is to be asked before a cluster changes to a plug-in.
func QuestionOf(status api.ClusterConfigStatus, to string) Question {
	q := Question{To: to, Beside: slices.Clone(status.Plugins), Before: []string{status.Plugin}, After: []string{to}}
	for _, name := range inForce(status) {
		if name != status.Plugin {
			q.Before = append(q.Before, name)
		}
	}
	return q
}

// inForce returns the plug-ins of the mix whose policies are enforced.
func inForce(status api.ClusterConfigStatus) []string {
	return without(status.Plugins, status.LoadingPlugins...)
}

// without returns some names, or what else, without others, nil where none are left, as a registry does.
func without[T comparable](names []T, others ...T) (left []T) {
	for _, name := range names {
		if !slices.Contains(others, name) {
			left = append(left, name)
		}
	}
	return left
}

// Objections are what speaks against a step, each for people.
type Objections struct {
	// Refusals say what the change would cut off, or leave without effect.
	Refusals []string
	// Lacks say why nodes cannot get ready for the plug-in, which keeps nothing from
	// being loaded.
	Lacks []string
	// Effects say which policies come into force with the change, and what new pods'
	// addresses make otherwise.
	Effects []string
	// Clashes say which addresses two machines have by plug-ins that are loaded already.
	Clashes []string
	// Made are the objects that were made for Nodes by plug-ins that are not loaded, by
	// their kind: of those whose Nodes are gone nobody deletes them.
	Made map[*registry.Kind][]string
}

// Next returns the status that a cluster is to have. What it is to be is the one that
// it has where there is nothing to do.
func Next(c Cluster) api.ClusterConfigStatus {
	if c.Known == nil {
		return decide(c)
	}
	byKnown, recalled := c, false
	byKnown.Against = func(q Question) (Objections, error) {
		if o, known := c.Known(q); known {
			recalled = true
			return o, nil
		}
		return c.Against(q)
	}
	status, before := decide(byKnown), c.Config.Status
	if recalled && (status.PluginRevision != before.PluginRevision || !slices.Equal(status.PluginNodes, before.PluginNodes)) {
		return decide(c)
	}
	return status
}

// decide returns the status by what Against says.
func decide(c Cluster) api.ClusterConfigStatus {
	n := next{written: c.Config.Spec}
	c.Config = api.Effective(there(c))
	n.Cluster, n.wanted = c, c.Config.Spec.Plugin
	n.status = c.Config.DeepCopyObject().(*api.ClusterConfig).Status
	n.status.DecidedWish = api.Wish(c.Config)
	n.forced = api.ForcedPlugin(c.Config) == n.wanted
	if err := c.Unknown(n.wanted); err != nil {
		n.say(api.PluginRefused, err.Error())
		return n.status
	}
	n.readReports()
	if n.status.Plugin == "" {
		n.begin()
		begun := n.asWritten()
		n.wanted, n.Config.Spec.PluginNodes = api.AskedPlugin(begun)
		n.Config.Spec.Plugin, n.status.DecidedWish = n.wanted, api.Wish(begun)
		n.count()
		n.say(n.unmet(n.describe()))
		return n.status
	}
	n.mix(n.status.Plugin) // should somebody have taken it away
	if n.forced && n.Away != nil {
		n.away = n.Away()
	}
	err := n.retire()
	if err == nil {
		err = n.prepare()
	}
	if err != nil {
		n.status = c.Config.DeepCopyObject().(*api.ClusterConfig).Status
		n.status.DecidedWish = api.Wish(c.Config)
		n.say(api.PluginWaiting, fmt.Sprintf("all stays as it is, as what speaks against a change cannot be read, which is tried again: %s", printable.Brief(err.Error())))
		return n.status
	}
	n.remember()
	n.count()
	n.say(n.unmet(n.losing(n.compared(n.describe()))))
	return n.status
}

// there returns the configuration. Where it asks for no plug-in, its status names only nodes that
// there are: what it names is what is asked for then, so that a change for nodes of which none is
// left would have no end.
func there(c Cluster) *api.ClusterConfig {
	s := c.Config.Status
	if c.Config.Spec.Plugin != "" || len(s.PluginNodes) == 0 {
		return c.Config
	}
	nodes := nodeNames(c.Nodes)
	config := *c.Config
	config.Status.PluginNodes = slices.DeleteFunc(slices.Clone(s.PluginNodes), func(name string) bool { return !nodes[name] })
	return &config
}

// nodeNames is the set of the names of nodes.
func nodeNames(nodes []*corev1.Node) map[string]bool {
	names := make(map[string]bool, len(nodes))
	for _, node := range nodes {
		names[node.Name] = true
	}
	return names
}

// next is one run of Next.
type next struct {
	Cluster
	// written is what is asked for as users wrote it, and Config has it with its defaults.
	written api.ClusterConfigSpec
	wanted  string
	forced  bool
	status  api.ClusterConfigStatus
	// reports are what nodes said, nil where that is nothing or cannot be read, which
	// unreadable says of.
	reports    map[string]*api.PluginReport
	unreadable map[string]error
	objections Objections
	// away are the nodes that a forced change does not wait for.
	away map[string]bool
	// kept says of plug-ins that could leave why they do not.
	kept map[string]string
}

// asWritten is the configuration as users wrote it, with the status that it is to have.
func (n *next) asWritten() *api.ClusterConfig {
	c := *n.Config
	c.Spec, c.Status = n.written, n.status
	return &c
}

func (n *next) readReports() {
	n.reports = make(map[string]*api.PluginReport, len(n.Nodes))
	n.unreadable = make(map[string]error)
	for _, node := range n.Nodes {
		r, err := api.NodePlugins(node)
		if err != nil {
			n.unreadable[node.Name] = err
		}
		n.reports[node.Name] = r
	}
}

// begin writes down what a cluster uses that has not been told yet, or whose status was
// lost, see Found; that is what is asked for where no node says anything. Whether a force has
// served its change already nobody knows then, so none counts that was given before.
func (n *next) begin() {
	s := &n.status
	s.SpentForce, n.forced = n.Config.Annotations[api.ForcePluginAnnotation], false
	for _, r := range n.reports {
		// Of the revisions that nodes know none may come again, of which they may not have
		// reported. No status changes each millisecond.
		if r != nil && r.Revision > 0 && r.Revision < api.MaxPluginRevision/2 {
			s.PluginRevision = max(s.PluginRevision, r.Revision, n.Now.UnixMilli())
		}
	}
	found := Found(n.written, slices.Values(n.Nodes), n.Unknown)
	if s.Plugin, s.PreparedPlugin = found.Plugin, found.PreparedPlugin; s.Plugin == "" {
		s.Plugin, s.PreparedPlugin = n.wanted, n.wanted
	}
	s.LoadingPlugins, s.PluginNodes = found.LoadingPlugins, found.PluginNodes
	for _, name := range append(found.Plugins, s.Plugin) {
		n.mix(name)
	}
	s.FirstRevision = s.PluginRevision + 1 // which this status is to have
}

// mix puts a plug-in into the mix.
func (n *next) mix(name string) {
	if i, found := slices.BinarySearch(n.status.Plugins, name); !found {
		n.status.Plugins = slices.Insert(n.status.Plugins, i, name)
	}
}

// retire takes out of the mix what nobody asks for, uses or needs, unless policies would
// be without effect then, or machines cut off that are no nodes and so report nothing: all
// that stays until somebody decides otherwise. It goes by what the reports are about, the
// status before this one.
func (n *next) retire() error {
	before := n.Config.Status
	n.kept = make(map[string]string)
	for _, name := range slices.Clone(n.status.Plugins) {
		if slices.Contains([]string{n.wanted, before.Plugin, before.PreparedPlugin}, name) || slices.ContainsFunc(n.Nodes, func(node *corev1.Node) bool {
			return n.mayKeep(before, node.Name, name)
		}) {
			continue
		}
		if after := without(inForce(n.status), name); !n.forced && len(after) < len(inForce(n.status)) {
			o, err := n.Against(Question{Before: append([]string{name}, after...), After: after})
			if err != nil {
				return err
			}
			if len(o.Refusals) > 0 {
				n.kept[name] = n.few(o.Refusals)
				continue
			}
		}
		n.status.Plugins = without(n.status.Plugins, name)
		n.status.LoadingPlugins = without(n.status.LoadingPlugins, name)
	}
	return nil
}

// mayKeep reports whether a node uses or needs a plug-in that no node is told to use, or
// may do so for all that is known. What was but loading since it came into the mix no node
// was told to use, of whatever revision its last word is; only what was before a status that
// was lost nobody knows. Of who is away, a force goes by the last word.
func (n *next) mayKeep(told api.ClusterConfigStatus, node, name string) bool {
	r := n.reports[node]
	switch {
	case r != nil && r.Keeps(name):
		return true
	case r != nil && slices.Contains(told.LoadingPlugins, name) && r.Revision >= told.FirstRevision:
		return false
	case n.away[node] && n.unreadable[node] == nil:
		return false
	}
	return r == nil || r.Revision != told.PluginRevision
}

// prepare brings the plug-in that is asked for into the mix, and has nodes use it once
// they are ready.
func (n *next) prepare() (err error) {
	s := &n.status
	first, followers := n.first()
	switch {
	case n.wanted == s.Plugin:
		s.PreparedPlugin = n.wanted
		return nil
	case !slices.Contains(s.Plugins, n.wanted):
		if n.objections, err = n.Against(QuestionOf(*s, n.wanted)); err != nil {
			return err
		}
		if len(n.objections.Refusals) > 0 && !n.forced {
			if s.PreparedPlugin != s.Plugin {
				s.PreparedPlugin = "" // so that it can leave
			}
			return nil
		}
		s.PreparedPlugin = ""
		n.mix(n.wanted)
		s.LoadingPlugins = append(s.LoadingPlugins, n.wanted)
		if n.forced && !n.waits(everyNode) {
			s.PreparedPlugin = n.wanted
		}
	case len(followers) > 0:
		// Since it came into the mix, and since some nodes use it, others may have got
		// subnets of it, and users policies, and who was ready may be so no more.
		if n.objections, err = n.Against(QuestionOf(*s, n.wanted)); err != nil {
			return err
		}
		switch {
		case n.forced && !n.waits(n.isUnready()), len(n.objections.Refusals) == 0 && len(n.unready().all()) == 0:
			s.PreparedPlugin = n.wanted
		case s.PreparedPlugin != n.wanted:
			s.PreparedPlugin = ""
			return nil
		default: // some use it already, and stay
			s.PluginNodes = first
			return nil
		}
	}
	if s.PreparedPlugin == n.wanted {
		s.LoadingPlugins = without(s.LoadingPlugins, n.wanted)
		if s.PluginNodes = slices.Clone(n.Config.Spec.PluginNodes); len(s.PluginNodes) == 0 {
			s.Plugin = n.wanted
		}
	}
	return nil
}

// waits reports whether a forced change still waits for some nodes: for those whose agents
// run, and for a time.
func (n *next) waits(unready func(node string) bool) bool {
	return n.Patient != nil && slices.ContainsFunc(n.Nodes, func(node *corev1.Node) bool { return unready(node.Name) && n.present(node.Name) }) && n.Patient()
}

// others stands for the nodes that spec.pluginNodes does not name.
const others = "the other nodes"

// first returns the nodes that use the plug-in that is asked for before the others, and
// followers those that are to follow.
func (n *next) first() (first, followers []string) {
	asked := n.Config.Spec.PluginNodes
	if n.status.PreparedPlugin == n.wanted {
		first = n.status.PluginNodes
	}
	if len(asked) == 0 {
		return first, []string{others}
	}
	used, named := setOf(first), setOf(asked)
	first = slices.DeleteFunc(slices.Clone(first), func(name string) bool { return !named[name] })
	return first, slices.DeleteFunc(slices.Clone(asked), func(name string) bool { return used[name] })
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// remember keeps what tells how a change began: which plug-in it came from, and which nodes
// changed first. At its end it keeps that it was the one that was forced: who asks for the
// same again has not said that it is to be so whatever speaks against it then.
func (n *next) remember() {
	wish := n.Config.Annotations[api.ForcePluginAnnotation]
	if len(n.Config.Status.Plugins) > 1 && len(n.status.Plugins) == 1 {
		n.status.SpentForce = wish
	} else if n.status.SpentForce != wish {
		n.status.SpentForce = ""
	}
	s, before := &n.status, n.Config.Status.Plugin
	if s.Plugin != before {
		s.TakenBack = s.Plugin == s.PreviousPlugin
		if s.PreviousPlugin = before; s.TakenBack {
			s.PreviousPlugin = ""
		}
	}
	if !slices.Contains(s.Plugins, s.PreviousPlugin) {
		s.PreviousPlugin = ""
	}
	s.TakenBack = s.TakenBack && len(s.Plugins) > 1
	if s.PreparedPlugin != n.wanted || s.Plugin == n.wanted {
		s.PluginNodes = nil
	}
}

// Why nobody knows where a change came from.
var (
	ErrUnknown   = errors.New("the status of the ClusterConfig does not say which plug-in nodes use: let a controller lead, which writes that down")
	ErrForgotten = errors.New("the status of the ClusterConfig does not say which plug-in nodes used before, as that is loaded no more, or the status was lost: say which one they are to use (weft plugin change NAME)")
)

// Back returns the plug-in that a cluster is to have where what was asked for is taken
// back: the one that nodes use that were not told otherwise, or, where that is what was
// asked for, the one that they used before, as long as it is loaded. What is being taken
// back already goes on that way, however often one asks; where only some nodes come back,
// that is a change like any other.
func Back(config *api.ClusterConfig) (string, error) {
	s := config.Status
	wanted, some := api.AskedPlugin(config)
	switch {
	case s.Plugin == "":
		return "", ErrUnknown
	case IsBack(config) && len(some) == 0:
		return wanted, nil
	case s.Plugin == wanted && s.PreparedPlugin == wanted && len(s.LoadingPlugins) == 0:
		if s.PreviousPlugin == "" && len(s.Plugins) > 1 {
			return "", ErrForgotten
		}
		return cmp.Or(s.PreviousPlugin, s.Plugin), nil
	}
	return s.Plugin, nil // from which no node was told to go on, or to which some come back
}

// count counts what nodes must hear of.
func (n *next) count() {
	s, before := &n.status, n.Config.Status
	if s.Plugin == before.Plugin && s.PreparedPlugin == before.PreparedPlugin && slices.Equal(s.Plugins, before.Plugins) &&
		slices.Equal(s.LoadingPlugins, before.LoadingPlugins) {
		return
	}
	s.PluginRevision++
}

// lagging are names of nodes that do not do something yet, by why.
type lagging struct {
	// silent have said nothing, unreadable nothing that can be read, late nothing of
	// what was asked last, behind that they do not. The last word of unconfirmed is that
	// they do, but it is not of what was asked last either.
	silent, unreadable, late, behind, unconfirmed []string
}

func (l lagging) all() []string {
	return slices.Concat(l.silent, l.unreadable, l.late, l.behind, l.unconfirmed)
}

// lag returns the nodes among some that have not reported of the present revision that
// they do something. Of an earlier one a report does not say what is so now.
func (n *next) lag(among func(node string) bool, does func(*api.PluginReport) bool) (l lagging) {
	for _, node := range n.Nodes {
		r := n.reports[node.Name]
		switch {
		case !among(node.Name):
		case n.unreadable[node.Name] != nil:
			l.unreadable = append(l.unreadable, node.Name)
		case r == nil:
			l.silent = append(l.silent, node.Name)
		case r.Revision != n.status.PluginRevision && does(r):
			l.unconfirmed = append(l.unconfirmed, node.Name)
		case r.Revision != n.status.PluginRevision:
			l.late = append(l.late, node.Name)
		case !does(r):
			l.behind = append(l.behind, node.Name)
		}
	}
	return l
}

func everyNode(string) bool { return true }

// unready returns the nodes that are not ready for the plug-in that is asked for. To what
// nodes used before, and have had loaded since, the way back waits for none of which nothing
// is heard any more, where its last word was that it has that plug-in. Of others nobody knows
// that they do: a Node may have come since, and an agent may have lost what it had.
func (n *next) unready() lagging {
	l := n.lag(everyNode, func(r *api.PluginReport) bool { return r.IsReady(n.wanted) })
	if n.wanted == n.status.PreviousPlugin {
		l.unconfirmed = nil // they are ready by their last word
		l.late = slices.DeleteFunc(l.late, func(name string) bool { return n.reports[name].Keeps(n.wanted) })
	}
	return l
}

func (n *next) isUnready() func(node string) bool {
	unready := setOf(n.unready().all())
	return func(node string) bool { return unready[node] }
}

// IsBack reports whether a change is being taken back: nodes come back to what they used
// before it, or are to.
func IsBack(config *api.ClusterConfig) bool {
	s := config.Status
	wanted, _ := api.AskedPlugin(config)
	// What is but loading nodes were to change to, and do no more.
	return len(s.Plugins) > 1 && (wanted == s.PreviousPlugin || wanted == s.Plugin && s.PreviousPlugin == "" && (s.TakenBack || len(s.LoadingPlugins) > 0))
}

func (n *next) back() bool {
	c := *n.Config
	c.Status = n.status
	return IsBack(&c)
}

func (n *next) isAway(node string) bool { return n.away[node] }

func (n *next) present(node string) bool { return !n.away[node] }
