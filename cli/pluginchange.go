package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
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

// changeFlags are those of plugin change.
type changeFlags struct {
	dryRun, wait, force, abort bool
	nodes                      []string
	timeout                    time.Duration
}

func newPluginChange(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "change NAME",
		Short: "Change the plug-in of the running cluster, with no packet lost",
		Long: `change asks for another plug-in. The cluster comes to it in stages: all nodes load
it beside the one they use; once all are ready, new pods get its addresses; pods that
are there keep theirs, and stay reachable, until they are made anew. The old plug-in
leaves when no pod lives on it any more.

With --node only some nodes change for now, and the cluster may stay so. The same
command without --node has all nodes follow. --abort takes the change back, at any stage
until the old plug-in has left.

--wait prints what the controller says and what each node is at, and ends once the nodes
use the plug-in and the controller says so, too.

A change that would cut pods off, or leave policies without effect, is refused.
--dry-run shows what speaks against a change, and changes nothing. --force changes all
the same. It waits 10 seconds at most for nodes whose agents run to get ready, and for
no others: who is not ready then is cut off from what others changed.

The exit code is 0 if the change was asked for (with --wait: if all its nodes use the
plug-in), 1 if it is refused (with --dry-run: if it would be), or the command ends
before it is done, as when it is interrupted, and 2 on errors. The change goes on
without the command.`,
		Example: `  weft plugin change flannel --dry-run
  weft plugin change flannel --node node1,node2 --wait
  weft plugin change flannel --wait
  weft plugin change --abort`,
		Args: argsBetween("PLUGIN or nothing", 0, 1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return plugins.Names(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	c.AddFlags(cmd)
	var flags changeFlags
	f := cmd.Flags()
	f.BoolVar(&flags.dryRun, "dry-run", false, "show what speaks against it, and change nothing")
	f.StringSliceVar(&flags.nodes, "node", nil, "`NODES` that change for now, separated by commas; the flag may be repeated (default: all)")
	f.BoolVar(&flags.wait, "wait", false, "wait until the nodes use it, and show how far they are")
	f.DurationVar(&flags.timeout, "timeout", 0, "`TIME` to wait at most (default: as long as it takes)")
	f.BoolVar(&flags.force, "force", false, "whatever speaks against it, waiting 10s at most for nodes whose agents run to get ready, and for no others")
	f.BoolVar(&flags.abort, "abort", false, "take back the change that is going on")
	cmd.RegisterFlagCompletionFunc("node", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return c.names(cmd, api.Node, ""), cobra.ShellCompDirectiveNoFileComp
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("node") && (len(flags.nodes) == 0 || slices.ContainsFunc(flags.nodes, func(name string) bool { return strings.TrimSpace(name) == "" })) {
			return fmt.Errorf("--node: a name is empty; name nodes, or leave the flag out for all of them (see: %s --help)", cmd.CommandPath())
		}
		for i, name := range flags.nodes {
			flags.nodes[i] = strings.TrimSpace(name)
		}
		if cmd.Flags().Changed("timeout") && flags.timeout <= 0 {
			return fmt.Errorf("--timeout %s: give a time such as 5m, or leave the flag out to wait as long as it takes (see: %s --help)", flags.timeout, cmd.CommandPath())
		}
		if err := flags.check(args); err != nil {
			return fmt.Errorf("%w (see: %s --help)", err, cmd.CommandPath())
		}
		reg, err := c.open(cmd.Context())
		if err != nil {
			return err
		}
		defer reg.Close()
		p := changing{changeFlags: flags, reg: reg, out: cmd.OutOrStdout(), errs: cmd.ErrOrStderr()}
		if len(args) > 0 {
			p.name = args[0]
		}
		return p.run(cmd.Context())
	}
	return cmd
}

func (f changeFlags) check(args []string) error {
	switch {
	case f.abort && len(args)+len(f.nodes) > 0:
		return errors.New("--abort takes back the whole change: leave out the plug-in and --node")
	case !f.abort && len(args) == 0:
		return fmt.Errorf("say which plug-in: there are %s", strings.Join(plugins.Names(), ", "))
	case f.timeout > 0 && !f.wait:
		return errors.New("--timeout is a time that --wait waits: give --wait, too")
	case f.wait && f.dryRun:
		return errors.New("there is nothing to wait for with --dry-run")
	}
	return nil
}

// changing is one run of plugin change.
type changing struct {
	changeFlags
	name      string
	reg       daemon.Registry
	out, errs io.Writer
	// told is what was told already.
	told map[string]bool
	// made says that there was no ClusterConfig.
	made bool
	// before is the configuration as it was when the change was asked for, with its defaults,
	// and used the plug-in of nodes that were not told otherwise then.
	before *api.ClusterConfig
	used   string
}

func (p *changing) run(ctx context.Context) error {
	var config *api.ClusterConfig
	nodes := 0
	// Whoever wrote meanwhile may have changed all that was asked before.
	ask := func(now *api.ClusterConfig) (err error) {
		config, nodes, err = p.ask(ctx, now)
		return err
	}
	if p.dryRun {
		objects := make(registry.Snapshot)
		if err := readInto(ctx, p.reg, objects, api.ClusterConfigKind); err != nil {
			return err
		}
		if err := ask(registry.GetAs[*api.ClusterConfig](objects, api.ClusterConfigKind, registry.Key{Name: api.DefaultName})); err != nil {
			return err
		}
		_, err := printable.Fprintf(p.out, "%s Nothing was changed.\n", p.plan(config, nodes))
		return err
	}
	if _, err := editConfig(ctx, p.reg, func(c *api.ClusterConfig) error {
		if err := ask(c); err != nil {
			return err
		}
		p.edit(c)
		return nil
	}); err != nil {
		return err
	}
	if holder, err := p.reg.Holder(ctx, api.ControllerLease); err == nil && holder == "" {
		fmt.Fprintln(p.errs, "warning: no controller leads; nothing changes until one runs")
	}
	if _, err := printable.Fprintf(p.out, "%s\n", p.plan(config, nodes)); err != nil || !p.wait {
		return err
	}
	return p.watch(ctx)
}

// ask reads what speaks against the change, tells it, and fails where the change is refused.
// It returns what nodes go by, and how many there are.
func (p *changing) ask(ctx context.Context, now *api.ClusterConfig) (config *api.ClusterConfig, nodes int, err error) {
	config = api.Effective(now)
	p.before = config
	objects := make(registry.Snapshot)
	if now != nil {
		objects.Put(api.ClusterConfigKind, now) // as it is: what is empty in it may mean what nodes say
	}
	if err := readInto(ctx, p.reg, objects, api.Node); err != nil {
		return nil, 0, err
	}
	held, err := p.reg.Holders(ctx, api.NodeLease(""))
	if err != nil {
		return nil, 0, err
	}
	if p.abort {
		if p.name, err = change.Back(config); err != nil {
			return nil, 0, exitError{code: 1, message: "nothing was changed: " + err.Error()}
		}
	}
	to, err := plugins.Finder(p.reg.Serves)(p.name)
	if err != nil {
		return nil, 0, err
	}
	var absent []string
	for _, name := range p.nodes {
		if objects.Get(api.Node, registry.Key{Name: name}) == nil {
			absent = append(absent, strconv.Quote(name))
		}
	}
	if len(absent) > 0 {
		return nil, 0, fmt.Errorf("--node: there is no Node %s (see: weft get nodes)", printable.Few(absent, 0))
	}
	p.used = usedPlugin(configOf(objects))
	if err := p.meansNothing(configOf(objects)); err != nil {
		return nil, 0, err
	}
	against, err := objections(ctx, p.reg, objects, to)
	if err != nil {
		return nil, 0, err
	}
	if err := p.tell(against); err != nil {
		return nil, 0, err
	}
	config = configOf(objects)
	p.made = now == nil || now.ResourceVersion == ""
	if !p.nothingChanges(config) {
		p.tellAway(config, objects, to, lostAgents(objects, held))
	}
	return config, len(objects[api.Node]), nil
}

// tellAway says which nodes the change waits for though their agents do not run, or what
// becomes of them where it does not wait. config is what nodes go by.
func (p *changing) tellAway(config *api.ClusterConfig, objects registry.Objects, to plugin.Plugin, lost map[string]bool) {
	away := slices.DeleteFunc(slices.Sorted(maps.Keys(lost)), func(name string) bool { return !lost[name] })
	if len(away) == 0 {
		return
	}
	names, used := printable.Few(away, 0), usedPlugin(config)
	some := p.some()
	stay := slices.DeleteFunc(slices.Clone(away), func(name string) bool { return len(some) == 0 || has(some, name) })
	back := p.back() || p.name == used
	switch {
	case p.name == used && !slices.ContainsFunc(api.PluginMix(config), func(name string) bool {
		return name != used && !slices.Contains(config.Status.LoadingPlugins, name)
	}): // no node was told to use what leaves
	case p.force && back:
		p.once("warning: agents do not run on: %s; the change is taken back without them, and what their pods need by their last word stays loaded\n", names)
	case p.force:
		does := "use"
		if len(stay) == len(away) {
			does = "load" // none of them is to use it
		}
		p.once("warning: agents do not run on: %s; %s %s not %s %s before %s again%s\n", names, word(len(away), "this node", "these nodes"),
			word(len(away), "does", "do"), does, p.name, word(len(away), "it runs", "they run"), p.cutOff(objects, to, away))
	case back:
		p.once("warning: agents do not run on: %s; the change is taken back once they do: start them, delete the Nodes that will not come back, or do not wait for them (weft plugin change --abort --force)\n", names)
	default:
		p.once("warning: agents do not run on: %s; the change waits for %s: start the agents, or delete the Nodes that will not come back\n", names, word(len(away), "this node", "these nodes"))
	}
}

// cutOff says how many pods are cut off that are on nodes which have not loaded the plug-in.
func (p *changing) cutOff(objects registry.Objects, to plugin.Plugin, away []string) string {
	find := plugins.Finder(p.reg.Serves)
	lacking := slices.DeleteFunc(slices.Clone(away), func(name string) bool {
		return !explain.Lacks(registry.GetAs[*corev1.Node](objects, api.Node, registry.Key{Name: name}), to, find)
	})
	if len(lacking) == 0 {
		return ""
	}
	pods := 0
	for pod := range registry.Each[*corev1.Pod](objects, api.Pod) {
		if has(lacking, pod.Spec.NodeName) && !pod.Spec.HostNetwork && !api.Ended(pod) {
			pods++
		}
	}
	who := fmt.Sprintf("%d pods on %s are", pods, printable.Few(lacking, 0))
	switch pods {
	case 0:
		who = "pods there are"
	case 1:
		who = "1 pod on " + printable.Few(lacking, 0) + " is"
	}
	return fmt.Sprintf(", and until then %s cut off from the nodes that change, and from their pods", who)
}

// meansNothing says why there is nothing to do: no change that could be taken back, or nodes
// that are named of a plug-in which all have that were not told otherwise. config is what
// nodes go by.
func (p *changing) meansNothing(config *api.ClusterConfig) error {
	switch alone := len(api.PluginMix(config)) == 1 && config.Spec.Plugin == p.used; {
	case p.name != p.used:
	case p.abort && alone && len(config.Spec.PluginNodes) == 0:
		return exitError{code: 1, message: fmt.Sprintf("there is nothing to take back: no change is going on, and %s is the only plug-in; to come to another, also to the one before, ask for it (weft plugin change NAME)", p.used)}
	case len(p.nodes) > 0 && !alone:
		other := ""
		if first := cmp.Or(config.Status.PreparedPlugin, config.Spec.Plugin); first != p.used {
			other = fmt.Sprintf(", or name those that are to use %s (weft plugin change %s --node NODES)", first, first)
		}
		return exitError{code: 1, message: fmt.Sprintf("nothing was changed: %s is what all nodes use that are not told otherwise, so --node cannot name some for it; leave it out to have all of them use it (weft plugin change %s)%s", p.used, p.used, other)}
	}
	return nil
}

// nothingChanges reports whether the cluster has what is asked for already, by the
// configuration of before.
func (p *changing) nothingChanges(config *api.ClusterConfig) bool {
	used := usedPlugin(config)
	return p.name == used && config.Spec.Plugin == used && len(config.Spec.PluginNodes) == 0 && (!p.abort || len(api.PluginMix(config)) == 1)
}

// some returns the nodes that change for now, in order and each once, none for all: of a
// plug-in that nodes use unless they are told otherwise, these are always all.
func (p *changing) some() []string {
	if p.name == p.used {
		return nil
	}
	return slices.Compact(slices.Sorted(slices.Values(p.nodes)))
}

// has reports whether a name is among names in order.
func has(names []string, name string) bool {
	_, found := slices.BinarySearch(names, name)
	return found
}

// edit writes down what is asked for.
func (p *changing) edit(c *api.ClusterConfig) {
	c.Spec.Plugin, c.Spec.PluginNodes = p.name, p.some()
	delete(c.Annotations, api.ForcePluginAnnotation)
	if p.force {
		if c.Annotations == nil {
			c.Annotations = make(map[string]string)
		}
		c.Annotations[api.ForcePluginAnnotation] = p.name + " " + time.Now().UTC().Format(time.RFC3339Nano)
	}
}

// tell says what speaks against the change and what comes with it, and fails where it is
// refused.
func (p *changing) tell(against change.Objections) error {
	for _, l := range against.Lacks {
		p.once("warning: nodes cannot get ready for %s yet: %s\n", p.name, printable.Brief(l))
	}
	for _, e := range against.Effects {
		p.once("warning: %s\n", printable.Brief(e))
	}
	for _, r := range against.Refusals {
		word := "refused"
		if p.force {
			word = "warning"
		}
		p.once("%s: %s\n", word, printable.Brief(r))
	}
	if len(against.Refusals) > 0 && !p.force {
		return exitError{code: 1, message: "nothing was changed; put right what is refused, or give --force to change all the same"}
	}
	return nil
}

// once tells what was not told yet.
func (p *changing) once(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if p.told == nil {
		p.told = make(map[string]bool)
	}
	if !p.told[text] {
		p.told[text] = true
		printable.Fprintf(p.errs, format, args...)
	}
}

// plan says what is being done, or would be, by the configuration of before and how many
// nodes there are.
func (p *changing) plan(config *api.ClusterConfig, nodes int) string {
	made, is, many, one := "", "is", "change", "changes"
	if p.dryRun {
		is, many, one = "would be", "would change", "would change"
	}
	if p.made {
		made = fmt.Sprintf("There is no ClusterConfig: one %s made, with spec.plugin %s and the defaults of all else. ", is, p.name)
	}
	used := usedPlugin(config)
	if p.back() && p.name != used {
		made += fmt.Sprintf("The change to %s %s taken back: ", used, is)
	}
	others := slices.DeleteFunc(api.PluginMix(config), func(name string) bool { return name == used })
	leaves := strings.Join(others, ", ") + " leaves"
	if len(others) > 1 {
		leaves = strings.Join(others, ", ") + " leave"
	}
	switch {
	case p.name == used && p.made && len(others) == 0:
		return made + fmt.Sprintf("Nodes use %s already.", used)
	case p.nothingChanges(config) || p.name == used && config.Spec.Plugin == used && len(others) == 0:
		if len(config.Spec.PluginNodes) > 0 {
			made += fmt.Sprintf("spec.pluginNodes, which means nothing, %s emptied. ", is)
		}
		return made + fmt.Sprintf("The cluster uses %s already.", used)
	case p.name == used && len(others) > 0:
		return made + fmt.Sprintf("What was changed %s taken back: nodes use %s, and %s.", is, used, leaves)
	case p.name == used:
		return fmt.Sprintf("The cluster stays with %s; no node has begun to change to %s.", used, config.Spec.Plugin)
	}
	when := "once all nodes are ready for it"
	if p.force {
		when = fmt.Sprintf("once all nodes whose agents run are ready for it, or after %v", change.ForcePatience)
	}
	if len(p.nodes) == 0 {
		return made + fmt.Sprintf("%d %s %s from %s to %s, %s.", nodes, word(nodes, "node", "nodes"), word(nodes, one, many), used, p.name, when)
	}
	some, rest := p.some(), "the others stay"
	if config.Spec.Plugin == p.name {
		back := slices.DeleteFunc(slices.Clone(config.Spec.PluginNodes), func(name string) bool { return has(some, name) })
		if len(back) > 0 {
			rest = fmt.Sprintf("back to %s, as they are named no more, go: %s; %s", used, printable.Few(back, 0), rest)
		}
	}
	return made + fmt.Sprintf("%d of %d nodes (%s) %s from %s to %s, %s; %s.", len(some), nodes, printable.Few(some, 0), word(len(some), one, many), used, p.name, when, rest)
}

// word returns the form of a word for so many.
func word(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// back reports whether what is asked for is that a change be taken back, in these words or
// by the name of the plug-in that all nodes used before it.
func (p *changing) back() bool {
	if p.before == nil || p.abort {
		return p.abort
	}
	c := *p.before
	c.Spec.Plugin = p.name
	return len(p.some()) == 0 && isBack(&c)
}

// isBack is change.IsBack, also where no controller has looked yet since all nodes were asked to
// use what they did, and some use another plug-in.
func isBack(config *api.ClusterConfig) bool {
	s := config.Status
	return change.IsBack(config) || len(s.PluginNodes) > 0 && s.PreparedPlugin != s.Plugin && config.Spec.Plugin == s.Plugin
}

// goesOn is said by who waits no more.
func (p *changing) goesOn() string {
	switch back := p.back(); {
	case back && p.force:
		return "it goes on being taken back (see: weft plugin status)"
	case back:
		return "it goes on being taken back (see: weft plugin status; weft plugin change --abort --force waits for no agent that does not run)"
	}
	return "the change goes on (see: weft plugin status; weft plugin change --abort takes it back)"
}

// watch waits until the nodes use the plug-in.
func (p *changing) watch(parent context.Context) error {
	ctx, stop := context.WithCancel(parent)
	defer stop()
	if p.timeout > 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, p.timeout)
		defer end()
	}
	cache := registry.NewCache(p.reg, []*registry.Kind{api.ClusterConfigKind, api.Node}, warningsTo(p.errs))
	changes, cancel := cache.Subscribe()
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cache.Run(ctx)
	}()
	defer func() { stop(); <-ended }()
	bar := newProgress(p.out, terminalWidth(p.out))
	defer bar.end()
	// What is refused is not always said anew, as it may be the same as before.
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	look, seen := false, ""
	held, err := p.reg.Holders(ctx, api.NodeLease(""))
	if err != nil && ctx.Err() == nil {
		return err
	}
	var s sight
	for {
		if cache.Synced() {
			objects := cache.Snapshot()
			s = p.see(objects, held)
			if version := configOf(objects).ResourceVersion; version != seen {
				look, seen = true, version
			}
			bar.show(s)
			switch {
			case s.superseded != "":
				bar.end()
				return exitError{code: 1, message: "somebody asked for " + s.superseded + " meanwhile"}
			case s.done:
				bar.end()
				_, err := printable.Fprintf(p.out, "%s\n", s.after)
				return err
			case s.refused && look:
				look = false
				refusals, err := p.refusals(ctx)
				if err != nil && ctx.Err() == nil {
					return err
				}
				if len(refusals) > 0 {
					bar.end()
					for _, r := range refusals {
						printable.Fprintf(p.errs, "refused: %s\n", printable.Brief(r))
					}
					undo := "--abort takes the change back"
					if used := usedPlugin(p.before); p.back() {
						undo = used + " goes on with the change"
					}
					return exitError{code: 1, message: fmt.Sprintf("the cluster stays as it is until that is put right (weft plugin change %s)", undo)}
				}
			}
		}
		select {
		case <-changes:
		case <-again.C:
			look = true
			// Of an answer that does not come, what was known before goes on to hold.
			if now, err := p.reg.Holders(ctx, api.NodeLease("")); err == nil {
				held = now
			}
		case <-ctx.Done():
			bar.end()
			if parent.Err() != nil {
				printable.Fprintf(p.errs, "interrupted: %s\n", p.goesOn())
				return exitError{code: 1}
			}
			return exitError{code: 1, message: fmt.Sprintf("not done within %s: %s; %s", p.timeout, s.lacking(), p.goesOn())}
		}
	}
}

// lookAgain is how often what a controller refused is asked anew, and which agents run.
const lookAgain = 5 * time.Second

// refusals returns what speaks against the change by now. What the controller said may be
// of an earlier time.
func (p *changing) refusals(ctx context.Context) ([]string, error) {
	objects := make(registry.Snapshot)
	if err := readInto(ctx, p.reg, objects, api.ClusterConfigKind); err != nil {
		return nil, err
	}
	to, err := plugins.Finder(p.reg.Serves)(p.name)
	if err != nil {
		return nil, err
	}
	against, err := objections(ctx, p.reg, objects, to)
	return against.Refusals, err
}

// sight is how far a change is.
type sight struct {
	// answered says that the controller has decided by what was asked for. Before, what it
	// and the nodes say is about what was asked for earlier, and the rest is empty.
	answered bool
	nodes    []pluginNodeStatus
	// others are the nodes that are not to use the plug-in, as long as it waits for these, too,
	// to load it.
	others []pluginNodeStatus
	// unready are what those are at that keep nodes from being told to use it, and late those
	// besides that are to use it and are not done, with their names.
	unready, late []string
	// changed is how many of the nodes use the plug-in. state and message are what the
	// controller says.
	changed        int
	state, message string
	done           bool
	refused        bool
	// after says what is left to happen once it is done, superseded what is asked for by
	// now.
	after, superseded string
}

// see says how far a change is, going by the nodes that are to use the plug-in, where held
// are the leases of agents that run.
func (p *changing) see(objects registry.Objects, held map[string]string) sight {
	var s sight
	config, some := configOf(objects), p.some()
	if config.Spec.Plugin != p.name || !slices.Equal(config.Spec.PluginNodes, some) {
		s.superseded = config.Spec.Plugin
		if nodes := config.Spec.PluginNodes; len(nodes) > 0 {
			s.superseded += " on " + printable.Few(nodes, 0)
		}
		return s
	}
	c := meta.FindStatusCondition(config.Status.Conditions, api.PluginChanged)
	if s.answered = c != nil && config.Status.DecidedWish == api.Wish(config); !s.answered {
		return s
	}
	s.state, s.message, s.refused = c.Reason, c.Message, c.Reason == api.PluginRefused
	// Where there is one plug-in again, nodes have no other step to take.
	settled := s.state == api.PluginSettled && slices.Equal(api.PluginMix(config), []string{p.name})
	var keep []string
	all, decided, uses := true, p.decided(config), api.PluginsOf(config)
	for node := range registry.Each[*corev1.Node](objects, api.Node) {
		lost := held[api.NodeLease(node.Name)] == ""
		n := pluginOfNode(config, node, uses(node.Name), lost)
		unready := n.Uses != p.name && !decided && !(n.heard && slices.Contains(n.Ready, p.name)) && !(p.force && lost)
		if unready {
			s.unready = append(s.unready, n.at())
		}
		if len(some) > 0 && !has(some, node.Name) {
			if !decided {
				s.others = append(s.others, n)
			}
			continue
		}
		if settled && n.Uses == p.name {
			n.Changed, n.State = true, "done"
		}
		s.nodes = append(s.nodes, n)
		if !unready && (!n.Changed || n.State != "done") {
			s.late = append(s.late, n.at())
		}
		if !n.Changed || n.Uses != p.name {
			all = all && p.force && lost // whom a force does not wait for
			continue
		}
		s.changed++
		if len(n.Needs) > 0 {
			keep = append(keep, node.Name)
		}
	}
	// Nodes say what they do before the controller has read it. What waits for this command
	// finds the same as it only once the condition says so as well.
	switch s.state {
	case "", api.PluginRefused, api.PluginPreparing, api.PluginSwitching:
	case api.PluginSettled:
		s.done = settled
	default:
		s.done = all && decided
	}
	s.after = fmt.Sprintf("Done: new pods get addresses of %s.", p.name)
	if len(keep) > 0 {
		s.after = fmt.Sprintf("Done: new pods get addresses of %s. Older ones keep theirs until they are made anew, on %s (see: weft plugin status).", p.name, printable.Few(keep, 0))
	}
	return s
}

// decided reports whether the status tells all nodes that are to use the plug-in to use it.
func (p *changing) decided(config *api.ClusterConfig) bool {
	s := config.Status
	return s.PreparedPlugin == p.name && (s.Plugin == p.name || len(config.Spec.PluginNodes) > 0 && slices.Equal(s.PluginNodes, config.Spec.PluginNodes))
}

// waiting returns what the nodes are at that are waited for, with their names: first those
// that keep others waiting.
func (s sight) waiting() []string { return slices.Concat(s.unready, s.late) }

// lacking says what a change waits for.
func (s sight) lacking() string {
	var what []string
	switch {
	case len(s.unready) > 0:
		what = append(what, printable.Few(s.unready, 0))
	case len(s.late) > 0:
		what = append(what, printable.Few(s.late, 0))
	case s.state == api.PluginSwitching:
		return "all nodes that are to use it say that they do, and the controller has not said so yet"
	}
	if s.message != "" {
		what = append(what, s.state+": "+printable.Brief(s.message))
	}
	if len(what) == 0 {
		return "no controller has begun"
	}
	return strings.Join(what, "; ")
}

// progress shows how far a change is: as a bar on a terminal, else a line for whatever
// is new. What the controller says has a line of its own on either.
type progress struct {
	w io.Writer
	// width is that of the terminal, 0 for none.
	width int
	drawn bool
	// said is what was printed last of a node, and of the controller under the name "".
	said map[string]string
}

func newProgress(w io.Writer, width int) *progress {
	return &progress{w: w, width: width, said: make(map[string]string)}
}

// isNew reports whether something else was said before, and keeps it.
func (b *progress) isNew(who, what string) bool {
	before := b.said[who]
	b.said[who] = what
	return before != what
}

// barWidth is that of the bar, in characters.
const barWidth = 20

func (b *progress) show(s sight) {
	// Why a change is refused is said where the command ends.
	if s.message != "" && !s.refused && b.isNew("", s.state+": "+s.message) {
		if b.drawn {
			fmt.Fprint(b.w, "\r\x1b[K")
		}
		printable.Fprintf(b.w, "%s: %s\n", s.state, s.message)
	}
	if b.width == 0 {
		for _, n := range slices.Concat(s.nodes, s.others) {
			if text := n.text(); b.isNew(n.Name, text) {
				printable.Fprintf(b.w, "%s: %s\n", n.Name, text)
			}
		}
		return
	}
	full := 0
	if len(s.nodes) > 0 {
		full = barWidth * s.changed / len(s.nodes)
	}
	line := printable.Line(fmt.Sprintf("[%s%s] %d/%d %s  %s", strings.Repeat("#", full), strings.Repeat(".", barWidth-full),
		s.changed, len(s.nodes), cmp.Or(strings.ToLower(s.state), "asked for"), printable.Few(s.waiting(), 0)))
	if runes := []rune(line); len(runes) >= b.width {
		line = string(runes[:b.width-1])
	}
	fmt.Fprint(b.w, "\r\x1b[K"+line)
	b.drawn = true
}

// end leaves the bar as it is, and begins a line below it.
func (b *progress) end() {
	if b.drawn {
		fmt.Fprintln(b.w)
		b.drawn = false
	}
}

// terminalWidth is how many characters are in a line of the terminal that is written to,
// 0 where it is none.
func terminalWidth(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return max(int(size.Col), barWidth+2)
}
