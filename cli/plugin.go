package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/daemon"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/change"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
)

func newPlugin(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plugin",
		Short: "Change the plug-in of the running cluster, and see how far that is",
		Example: `  weft plugin status
  weft plugin change flannel --dry-run
  weft plugin change flannel --wait`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPluginStatus(c), newPluginChange(c))
	return cmd
}

// pluginStatus is which plug-ins the cluster uses, and which it is to use.
type pluginStatus struct {
	// Wanted is the plug-in asked for, empty where the ClusterConfig that asked is gone, and
	// WantedNodes the nodes for which it is, all if empty.
	Wanted      string   `json:"wanted"`
	WantedNodes []string `json:"wantedNodes,omitempty"`
	// Used is the plug-in of nodes that were not told otherwise, Mix those that all
	// nodes load.
	Used string   `json:"used"`
	Mix  []string `json:"mix"`
	// Back says that a change is being taken back, and Wanted is what nodes used before it.
	Back bool `json:"back,omitempty"`
	// Settled says that all nodes use what is wanted, and load nothing besides; State
	// and Message are the reason and message of the condition PluginChanged, empty where
	// no controller has said anything. Where the ClusterConfig is gone, Message says so.
	Settled bool               `json:"settled"`
	State   string             `json:"state,omitempty"`
	Message string             `json:"message,omitempty"`
	Nodes   []pluginNodeStatus `json:"nodes"`
}

// pluginNodeStatus is which plug-ins a node uses.
type pluginNodeStatus struct {
	Name string `json:"name"`
	// Uses is the plug-in that gives its new pods addresses, empty where that is not
	// known; Ready are those that it has loaded whole, Needs those besides Uses that
	// pods of its live on.
	Uses  string   `json:"uses,omitempty"`
	Ready []string `json:"ready"`
	Needs []string `json:"needs"`
	// OldPods are the pods, as "default/web", that have addresses of other plug-ins than Uses,
	// as far as the registry tells, and OldPodsUnknown says why there may be more, empty where
	// these are all.
	OldPods        []string `json:"oldPods"`
	OldPodsUnknown string   `json:"oldPodsUnknown,omitempty"`
	// State says in words how far it is, and Reason what it says that keeps it from
	// being ready for the plug-in that is asked for.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Changed says that it uses what it is to.
	Changed bool `json:"changed"`
	// heard says that what it reports is of the last step.
	heard bool
}

func newPluginStatus(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which plug-ins nodes use, and how far a change is",
		Long: `status shows the plug-in that is asked for, the one that nodes use, those that
they load beside it while the cluster changes from one to another, and what that
waits for; and of each node the plug-in whose addresses its new pods get (USES), those
that it has loaded whole, with a way to every other node (READY-FOR), those, besides USES,
whose addresses pods of the node still have (NEEDS), and how many such pods the registry
knows (OLD-PODS). -o json and -o yaml name these pods, so that one knows which to make anew.

The exit code is 0 if all nodes use what is asked for and load nothing besides, 1 if
they do not, and 2 if that cannot be said.`,
		Example: "  weft plugin status\n  weft plugin status -o json",
		Args:    noArgs,
	}
	c.AddFlags(cmd)
	output := outputFlag(cmd, valueFormats...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		reg, err := c.open(cmd.Context())
		if err != nil {
			return err
		}
		defer reg.Close()
		objects := make(registry.Snapshot)
		if err := readInto(cmd.Context(), reg, objects, api.ClusterConfigKind, api.Node); err != nil {
			return err
		}
		held, err := reg.Holders(cmd.Context(), api.NodeLease(""))
		if err != nil {
			return err
		}
		s := pluginStatusOf(objects, lostAgents(objects, held))
		s.addOldPods(oldPodsOf(cmd.Context(), reg, objects))
		if format != "" {
			err = printValue(cmd.OutOrStdout(), format, s)
		} else {
			err = s.print(cmd.OutOrStdout())
		}
		if err == nil && !s.Settled {
			return exitError{code: 1}
		}
		return err
	}
	return cmd
}

// pluginStatusOf says which plug-ins nodes use, where lost are those whose agents do not
// run.
func pluginStatusOf(objects registry.Objects, lost map[string]bool) pluginStatus {
	config := configOf(objects)
	s := pluginStatus{Wanted: config.Spec.Plugin, WantedNodes: config.Spec.PluginNodes, Used: usedPlugin(config), Mix: api.PluginMix(config),
		Nodes: []pluginNodeStatus{}}
	s.Settled = s.Used == s.Wanted && len(s.Mix) == 1
	uses := api.PluginsOf(config)
	for node := range registry.Each[*corev1.Node](objects, api.Node) {
		n := pluginOfNode(config, node, uses(node.Name), lost[node.Name])
		// Where the status was lost, nodes alone know what they do.
		s.Settled = s.Settled && !slices.ContainsFunc(append(n.Needs, n.Uses), func(name string) bool { return name != "" && name != s.Wanted })
		s.Nodes = append(s.Nodes, n)
	}
	if p, gone := goneConfig(objects); gone {
		s.Wanted, s.Settled, s.Message = "", false, p.String()
		return s
	}
	// What was said before something was asked for says nothing of that.
	s.Back = isBack(config)
	if c := meta.FindStatusCondition(config.Status.Conditions, api.PluginChanged); c != nil && config.Status.DecidedWish == api.Wish(config) && s.Settled == (c.Reason == api.PluginSettled) {
		s.State, s.Message = c.Reason, c.Message
	}
	return s
}

// oldPodsOf reads which pods have addresses of plug-ins that their nodes do not use, where
// objects have the ClusterConfig and the Nodes. It reads nothing where there is one plug-in,
// as then there are none.
func oldPodsOf(ctx context.Context, reg daemon.Registry, objects registry.Snapshot) (map[string]explain.OldPods, error) {
	mix := api.PluginMix(configOf(objects))
	if len(mix) < 2 {
		return nil, nil
	}
	find := plugins.Finder(reg.Serves)
	kinds := []*registry.Kind{api.Pod}
	for _, name := range mix {
		p, err := find(name)
		if err != nil {
			return nil, err
		}
		kinds = append(kinds, plugin.BaseOf(p).Kinds()...)
	}
	if err := readInto(ctx, reg, objects, kinds...); err != nil {
		return nil, err
	}
	return explain.Cluster{Objects: objects, Plugin: find}.OldPods(), nil
}

// addOldPods adds to the nodes which pods have addresses of other plug-ins, or why that is
// not known.
func (s *pluginStatus) addOldPods(old map[string]explain.OldPods, err error) {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		o := old[n.Name]
		if err != nil {
			o.Unknown = err.Error()
		}
		n.OldPods, n.OldPodsUnknown = append(n.OldPods, o.Names...), o.Unknown
	}
}

// pods says how many pods have addresses of other plug-ins.
func (s pluginNodeStatus) pods() string {
	switch {
	case s.OldPodsUnknown == "" && s.Uses == "":
		return "-"
	case s.OldPodsUnknown == "":
		return fmt.Sprint(len(s.OldPods))
	case len(s.OldPods) == 0:
		return "unknown"
	}
	return fmt.Sprintf("%d or more", len(s.OldPods))
}

// goneConfig says that there is no ClusterConfig though Nodes use plug-ins: they were told
// to, and what told them is gone. A cluster that begins may have none: no Node has said yet
// that it uses one.
func goneConfig(objects registry.Objects) (p api.Problem, gone bool) {
	key := registry.Key{Name: api.DefaultName}
	if objects.Get(api.ClusterConfigKind, key) != nil {
		return p, false
	}
	users, nodes := make(map[string]int), 0
	for node := range registry.Each[*corev1.Node](objects, api.Node) {
		nodes++
		if r, err := api.NodePlugins(node); err == nil && r != nil && r.Status().Plugin != "" {
			users[r.Status().Plugin]++
		}
	}
	if len(users) == 0 {
		return p, false
	}
	var use []string
	for _, name := range slices.Sorted(maps.Keys(users)) {
		use = append(use, fmt.Sprintf("%s on %d of %d", name, users[name], nodes))
	}
	most := cmp.Or(configOf(objects).Status.Plugin, slices.Sorted(maps.Keys(users))[0])
	return api.Problem{Kind: api.ClusterConfigKind.Kind, Name: key.Name,
		Message: fmt.Sprintf("there is none that can be read; nodes go on with the plug-ins that they use (%s), and with the defaults of all else", printable.Few(use, 0)),
		Remedy:  fmt.Sprintf("create it with weft apply, with spec.plugin %s and what else it said; one that is there and cannot be read must be deleted before", most)}, true
}

// configOf is the cluster's configuration, with its defaults and, where its status is lost,
// what nodes go by, as far as the objects have Nodes.
func configOf(objects registry.Objects) *api.ClusterConfig {
	return explain.Config(objects, plugins.Get)
}

// readConfig reads what configOf goes by.
func readConfig(ctx context.Context, reg registry.Registry, into registry.Snapshot) error {
	if err := readInto(ctx, reg, into, api.ClusterConfigKind); err != nil || configOf(into).Status.Plugin != "" {
		return err
	}
	return readInto(ctx, reg, into, api.Node)
}

// usedPlugin is the plug-in of the nodes that were not told otherwise.
func usedPlugin(config *api.ClusterConfig) string {
	return cmp.Or(config.Status.Plugin, config.Spec.Plugin)
}

// pluginOfNode says which plug-ins a node uses that is to use one, as api.PluginsOf says.
func pluginOfNode(config *api.ClusterConfig, node *corev1.Node, use string, lost bool) pluginNodeStatus {
	s := pluginNodeStatus{Name: node.Name, Ready: []string{}, Needs: []string{}, OldPods: []string{}}
	r, err := api.NodePlugins(node)
	switch {
	case err != nil:
		s.State = "what its agent reports cannot be read"
	case r == nil:
		s.State = "nothing reported"
	default:
		s.Uses, s.Ready, s.Needs = r.Uses, append(s.Ready, r.Ready...), append(s.Needs, r.Needs...)
		s.heard = r.Revision == config.Status.PluginRevision
		s.State = s.describe(config, use, r)
		if !r.IsReady(config.Spec.Plugin) {
			s.Reason = unreadyFor(config.Spec.Plugin, node)
		}
	}
	if lost {
		s.State += "; its agent does not run"
	}
	return s
}

// text says how far the node is, and what keeps it there.
func (s pluginNodeStatus) text() string {
	if s.Reason == "" {
		return s.State
	}
	return s.State + "; " + s.Reason
}

// at is the node's name, with how far it is.
func (s pluginNodeStatus) at() string { return fmt.Sprintf("%s (%s)", s.Name, s.text()) }

// unreadyFor is what a node says that keeps it from being ready for a plug-in, or "".
func unreadyFor(plugin string, node *corev1.Node) string {
	for _, p := range api.NodeProblems(node) {
		if why, ok := strings.CutPrefix(p.Message, api.UnreadyFor(plugin)); ok && p.Kind == api.Node.Kind && p.Name == node.Name {
			return why
		}
	}
	return ""
}

// describe says how far a node is that is to use a plug-in, and reported something.
func (s *pluginNodeStatus) describe(config *api.ClusterConfig, use string, r *api.PluginReport) string {
	wanted := config.Spec.Plugin
	s.Changed = s.heard && r.Uses == use
	switch {
	case !s.heard && config.Status.PluginRevision == 0:
		return "goes on as it was told last"
	case !s.heard && r.Uses != use:
		return "has not heard that it is to use " + use
	case r.Uses != use:
		return "changes to " + use
	case use == wanted && slices.Equal(api.PluginMix(config), []string{wanted}) && len(r.Needs) == 0:
		s.Changed = true // there is no other step to take
		return "done"
	case r.Uses == wanted && len(api.PluginMix(config)) > 1 && !r.IsReady(wanted):
		return "uses " + wanted + ", and has not loaded it whole"
	case slices.Contains(api.PluginMix(config), wanted) && !r.IsReady(wanted):
		return "loads " + wanted
	case len(r.Needs) > 0:
		return "has pods with addresses of " + strings.Join(r.Needs, ", ")
	case use != wanted && !slices.Contains(api.PluginMix(config), wanted):
		return "uses " + use
	case use != wanted && r.IsReady(wanted):
		return "ready for " + wanted
	case !s.heard:
		return "has not heard of the last step"
	}
	return "done"
}

func (s pluginStatus) print(w io.Writer) error {
	wanted := cmp.Or(s.Wanted, "nothing")
	if len(s.WantedNodes) > 0 {
		wanted += " on " + printable.Few(s.WantedNodes, 0)
	}
	printable.Fprintf(w, "Asked for: %s. Used: %s. Loaded: %s.\n", wanted, s.Used, strings.Join(s.Mix, ", "))
	switch {
	case s.State != "":
		printable.Fprintf(w, "%s: %s\n", s.State, s.Message)
	case s.Message != "":
		printable.Fprintf(w, "%s\n", s.Message)
	case !s.Settled:
		fmt.Fprintln(w, "No controller has taken this up yet.")
	}
	fmt.Fprintln(w)
	if len(s.Nodes) == 0 {
		_, err := fmt.Fprintln(w, "There are no nodes.")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "NODE\tUSES\tREADY-FOR\tNEEDS\tOLD-PODS\tSTATE")
	for _, n := range s.Nodes {
		printable.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", n.Name, cmp.Or(n.Uses, "-"), cmp.Or(strings.Join(n.Ready, ","), "-"), cmp.Or(strings.Join(n.Needs, ","), "-"), n.pods(), n.text())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return s.printUnknown(w)
}

// printUnknown says why it is not known which pods have addresses of other plug-ins, of
// nodes of which the same is to be said in one line.
func (s pluginStatus) printUnknown(w io.Writer) error {
	nodes := make(map[string][]string)
	for _, n := range s.Nodes {
		if n.OldPodsUnknown != "" {
			nodes[n.OldPodsUnknown] = append(nodes[n.OldPodsUnknown], n.Name)
		}
	}
	if len(nodes) > 0 {
		fmt.Fprintln(w)
	}
	for _, why := range slices.Sorted(maps.Keys(nodes)) {
		if _, err := printable.Fprintf(w, "Not all pods with old addresses are known of %s: %s.\n", printable.Few(nodes[why], 0), printable.Brief(why)); err != nil {
			return err
		}
	}
	return nil
}

// objections returns what speaks against a change to a plug-in, as the controller will
// find. It reads what it needs into objects, which have the ClusterConfig.
func objections(ctx context.Context, reg daemon.Registry, objects registry.Snapshot, to plugin.Plugin) (change.Objections, error) {
	config := configOf(objects)
	if to.Name() == usedPlugin(config) {
		return change.Objections{}, nil // nothing changes, or is taken back
	}
	status := config.Status
	status.Plugin, status.Plugins = usedPlugin(config), api.PluginMix(config)
	of, err := change.QuestionOf(status, to.Name()).Find(plugins.Finder(reg.Serves))
	if err != nil {
		return change.Objections{}, err
	}
	of.Enforcers = plugins.Enforcers
	if err := readInto(ctx, reg, objects, append(of.Kinds(), api.Pod)...); err != nil {
		return change.Objections{}, err
	}
	return of.Against(config, objects), nil
}

// editConfig changes the ClusterConfig, and makes one where there is none. edit is asked
// anew whenever somebody else wrote meanwhile, and may refuse.
func editConfig(ctx context.Context, reg registry.Registry, edit func(*api.ClusterConfig) error) (*api.ClusterConfig, error) {
	kind := whole(api.ClusterConfigKind)
	for {
		config, err := registry.Modify(ctx, reg, kind, registry.Key{Name: api.DefaultName}, edit)
		if !errors.Is(err, registry.ErrNotFound) {
			return config, err
		}
		config = &api.ClusterConfig{}
		config.Name = api.DefaultName
		if err := edit(config); err != nil {
			return nil, err
		}
		o, err := reg.Create(ctx, kind, config)
		if err == nil {
			return o.(*api.ClusterConfig), nil
		}
		if !errors.Is(err, registry.ErrExists) {
			return nil, err
		}
	}
}
