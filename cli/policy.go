package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/networkpolicy"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/policy/kubernetes"
	"github.com/weftnet/weft/registry"
)

func newPolicy(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Try policies before they are applied, and see which are in force",
		Example: `  weft policy try -f policy.yaml
  weft policy status`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPolicyTry(c), newPolicyStatus(c))
	return cmd
}

// shownAtFirst is how many differences policy try prints without --all.
const shownAtFirst = 50

// trial is what policy try finds.
type trial struct {
	// Differences are those that are shown, Total is how many there are, as far
	// as they were counted.
	Differences []policy.Difference `json:"differences"`
	Total       int                 `json:"total"`
	// Warnings say why what is shown may not come true.
	Warnings []string `json:"warnings,omitempty"`
}

func newPolicyTry(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "try -f FILE",
		Short: "Show which connections policies would allow or deny, without applying them",
		Long: `try checks the policies of a file as apply does, and shows which new connections
of the pods that there are would be allowed or denied if it were applied (with
--delete: if what it names were deleted). Nothing is changed.

Pods that no policy can tell apart are one line. "world" is all that is neither a
pod nor in a prefix that policies mention, nodes included unless policies select
some. What a node sends to its own pods is always allowed.

Not tried is what only compiling for a node shows: pods whose policies make too many
verdicts, or take too long to work out, get or send nothing (see the limits in
docs/policy.md), and are shown here as if they did. weft policy status says so once
the policies are applied.`,
		Example: `  weft policy try -f policy.yaml
  weft get networkpolicy web -o yaml | weft policy try --delete -f -`,
		Args: noArgs,
	}
	c.AddFlags(cmd)
	namespace := c.namespaceFlag(cmd)
	files := cmd.Flags().StringArrayP("filename", "f", nil, "`FILE` with the policies, - for the standard input")
	cmd.MarkFlagRequired("filename")
	without := cmd.Flags().Bool("delete", false, "try what would be without the policies that the file names")
	all := cmd.Flags().Bool("all", false, fmt.Sprintf("show all differences, not the first %d alone", shownAtFirst))
	output := outputFlag(cmd, valueFormats...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		targets, err := readTargets(cmd, *files, namespace())
		if err != nil {
			return err
		}
		for _, t := range targets {
			if !slices.ContainsFunc(explain.PolicyKinds, func(k *registry.Kind) bool { return k.GroupVersionKind == t.kind.GroupVersionKind }) {
				return fmt.Errorf("%s %s is no policy that any plug-in enforces: leave it out", t.kind.Singular, t.key)
			}
		}
		reg, err := c.open(cmd.Context())
		if err != nil {
			return err
		}
		defer reg.Close()
		most := shownAtFirst
		if *all {
			most = 0
		}
		t, err := try(cmd.Context(), reg, targets, *without, most)
		if err != nil {
			return err
		}
		if format != "" {
			return printValue(cmd.OutOrStdout(), format, t)
		}
		return t.print(cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

// try says what would change if objects were what the targets say, or gone.
func try(ctx context.Context, reg registry.Registry, targets []target, without bool, most int) (trial, error) {
	t := trial{Differences: []policy.Difference{}}
	objects := make(registry.Snapshot)
	if err := readInto(ctx, reg, objects, slices.Concat(explain.PolicyKinds,
		[]*registry.Kind{api.ClusterConfigKind, api.Namespace, api.Pod, api.Node, api.DomainNameKind})...); err != nil {
		return t, err
	}
	if plug, err := pluginOf(objects, plugins.Finder(reg.Serves)); err != nil {
		t.Warnings = append(t.Warnings, err.Error())
	} else if !explain.Enforces(plug) {
		t.Warnings = append(t.Warnings, fmt.Sprintf("the cluster's plug-in %s enforces no policies", plug.Name()))
	}
	before := explain.Policies(objects)
	after := slices.Clone(before)
	var refused []error
	for _, target := range targets {
		have, err := reg.Get(ctx, target.kind, target.key)
		switch {
		case errors.Is(err, registry.ErrNotFound) && !without:
			have = nil
		case err != nil:
			refused = append(refused, err)
			continue
		case without:
			gone, _ := explain.Policy(have)
			after = slices.DeleteFunc(after, func(p *policy.Policy) bool { return p.Name == gone.Name })
			continue
		}
		o, err := target.merge(have)
		if err == nil {
			o, _, err = target.kind.Admit(o)
		}
		if err != nil {
			refused = append(refused, err)
			continue
		}
		now, faults := explain.Policy(o)
		for _, f := range faults {
			t.Warnings = append(t.Warnings, now.Name+": "+f)
		}
		after = append(slices.DeleteFunc(after, func(p *policy.Policy) bool { return p.Name == now.Name }), now)
	}
	if err := problems(refused...); err != nil {
		return t, err
	}
	scene := explain.Scene(objects, kubernetes.Named(slices.Concat(before, after)))
	before, _ = policy.Enforced(before)
	after, tooLarge := policy.Enforced(after)
	for _, p := range after {
		if why := tooLarge[p.Name]; why != "" {
			t.Warnings = append(t.Warnings, p.Name+": "+why)
		}
	}
	differences, total := policy.Compare(before, after, scene, most)
	t.Differences, t.Total = append(t.Differences, differences...), total
	return t, nil
}

func (t trial) print(out, errs io.Writer) error {
	for _, w := range t.Warnings {
		printable.Fprintf(errs, "warning: %s\n", printable.Brief(w))
	}
	if t.Total == 0 {
		_, err := fmt.Fprintln(out, "Nothing would change for the pods that there are.")
		return err
	}
	for _, d := range t.Differences {
		printable.Fprintf(out, "%s\n", d)
	}
	if more := t.Total - len(t.Differences); more > 0 {
		printable.Fprintf(out, "and %d more at least (--all shows them)\n", more)
	}
	return nil
}

// policyState is how far a policy is in force.
type policyState struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Pods is how many pods it selects, Nodes the nodes they are on and Pending
	// those that do not say yet that it is in force.
	Pods     int      `json:"pods"`
	Nodes    []string `json:"nodes"`
	Pending  []string `json:"pending,omitempty"`
	Problems []string `json:"problems,omitempty"`
	// Lost are the nodes of which that is not known, as no agent runs there, and
	// Unloaded those of which it is not, as they do not hold their plans.
	Lost     []string `json:"lost,omitempty"`
	Unloaded []string `json:"unloaded,omitempty"`
	// Unenforced says that nobody enforces it, and Passing that nobody will soon, though it is
	// in force now.
	Unenforced bool `json:"unenforced,omitempty"`
	Passing    bool `json:"passing,omitempty"`

	kind *registry.Kind
}

// disown takes back what nodes said of a policy that nobody enforces, and says
// why nobody does.
func (s *policyState) disown(why string) {
	s.Unenforced, s.Nodes, s.Pending = true, []string{}, nil
	s.Problems = append([]string{why}, s.Problems...)
}

// passes says until when it is in force, and what to do.
func (s *policyState) passes(until string) {
	s.Passing = true
	s.Problems = append([]string{"it is enforced only " + until + "; " + plugins.Remedy(s.kind)}, s.Problems...)
}

// doubt says where the nodes with a policy's pods have no agent that lives, or are
// in trouble with their plans: what they said was so then.
func (s *policyState) doubt(held map[string]string, objects registry.Objects) {
	for _, n := range s.Nodes {
		node := registry.GetAs[*corev1.Node](objects, api.Node, registry.Key{Name: n})
		switch {
		case held[api.NodeLease(n)] == "":
			s.Lost = append(s.Lost, n)
		case node != nil && explain.Unloaded(node):
			s.Unloaded = append(s.Unloaded, n)
		}
	}
	s.Pending = slices.DeleteFunc(slices.Clone(s.Pending), func(n string) bool {
		return slices.Contains(s.Lost, n) || slices.Contains(s.Unloaded, n)
	})
	var doubts []string
	if len(s.Lost) > 0 {
		doubts = append(doubts, "not known on "+printable.Few(s.Lost, 0)+", whose agent does not run")
	}
	if len(s.Unloaded) > 0 {
		doubts = append(doubts, "not known on "+printable.Few(s.Unloaded, 0)+", where the plan is not in the data plane as it should be (see: weft status)")
	}
	// They come first, as not all others may be shown.
	s.Problems = append(doubts, s.Problems...)
}

func newPolicyStatus(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [KIND [NAME]]",
		Short: "Show which policies are in force, and what keeps others from it",
		Long: `status shows of each policy how many pods it selects, on how many nodes, and
whether all of these nodes say that it is in force as it is now. With -n it shows
those of one namespace, and those that are of none; without it, or with -A, all.

The exit code is 0 if all that are shown are, 1 if some are not or cannot be
enforced as they are written, and 2 if that cannot be said.`,
		Example: `  weft policy status
  weft policy status -n shop networkpolicy/web
  weft policy status -o json`,
		Args: argsBetween("KIND and NAME, KIND/NAME or nothing", 0, 2),
	}
	c.AddFlags(cmd)
	namespace := c.namespaceFlag(cmd)
	all := cmd.Flags().BoolP("all-namespaces", "A", false, "policies of all namespaces, whatever -n says")
	output := outputFlag(cmd, valueFormats...)
	cmd.ValidArgsFunction = c.completeReference(namespace)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		var kind *registry.Kind
		var key registry.Key
		if len(args) > 0 {
			if kind, key, err = reference(args, namespace()); err != nil {
				return c.policyMeant(cmd, args, err)
			}
			if !slices.Contains(api.PolicyKinds, kind) {
				return fmt.Errorf("%s are no policies", kind.Plural)
			}
		}
		reg, err := c.open(cmd.Context())
		if err != nil {
			return err
		}
		defer reg.Close()
		objects := make(registry.Snapshot)
		if err := readInto(cmd.Context(), reg, objects, append(networkpolicy.StateKinds(), api.ClusterConfigKind, api.Pod, api.Node)...); err != nil {
			return err
		}
		if err := readInto(cmd.Context(), reg, objects, api.PolicyKinds...); err != nil {
			return err
		}
		within := c.inNamespace
		if *all {
			within = ""
		}
		states := policyStates(objects, func(s networkpolicy.State) bool {
			if within != "" && s.Kind.Namespaced && s.Key.Namespace != within {
				return false
			}
			return kind == nil || s.Kind == kind && (key.Name == "" || s.Key == key)
		})
		if len(states) == 0 && key.Name != "" {
			return kind.Errorf(key, registry.ErrNotFound, nil)
		}
		if err := judge(states, objects, plugins.Finder(reg.Serves), func() (map[string]string, error) {
			return reg.Holders(cmd.Context(), api.NodeLease(""))
		}); err != nil {
			return err
		}
		if format != "" {
			err = printValue(cmd.OutOrStdout(), format, states)
		} else {
			err = printPolicyStates(cmd.OutOrStdout(), states, within)
		}
		if err == nil && slices.ContainsFunc(states, func(s policyState) bool { return s.Unenforced || len(s.Pending)+len(s.Problems) > 0 }) {
			return exitError{code: 1}
		}
		return err
	}
	return cmd
}

// judge says of policies whether anybody enforces them, for how long, and where that is in
// doubt. It asks for the leases of agents that run only where policies are enforced.
func judge(states []policyState, objects registry.Snapshot, find func(string) (plugin.Plugin, error), holders func() (map[string]string, error)) error {
	mix, unknown := pluginOf(objects, find)
	unenforced := plugins.Unenforced(mix)
	var used plugin.Plugin
	var later []*registry.Kind
	var held map[string]string
	if unknown == nil {
		var err error
		if used, err = find(pluginName(objects)); err != nil {
			return err
		}
		later = unenforcedLater(objects, used, unenforced)
		if explain.Enforces(mix) {
			if held, err = holders(); err != nil {
				return err
			}
		}
	}
	for i := range states {
		switch s := &states[i]; {
		case unknown != nil && len(plugins.Enforcers(s.kind)) > 0:
			s.disown("nodes do what they were told before, and no change reaches them: " + unknown.Error())
		case slices.Contains(unenforced, s.kind):
			s.disown("nobody enforces it under plug-in " + pluginName(objects) + "; " + plugins.Remedy(s.kind))
		default:
			if slices.Contains(later, s.kind) {
				s.passes(untilOthersLeave(used))
			}
			s.doubt(held, objects)
		}
	}
	return nil
}

// policyMeant says what was meant where the first argument is no kind: the policies that
// have such a name, if there are any.
func (c *connection) policyMeant(cmd *cobra.Command, args []string, otherwise error) error {
	if _, err := kindNamed(args[0]); len(args) > 1 || err == nil || strings.Contains(args[0], "/") {
		return otherwise
	}
	var kinds, meant []string
	for _, k := range api.PolicyKinds {
		kinds = append(kinds, k.Plural)
	}
	if reg, err := c.open(cmd.Context()); err == nil {
		defer reg.Close()
		objects := make(registry.Snapshot)
		if readInto(cmd.Context(), reg, objects, api.PolicyKinds...) == nil {
			for _, k := range api.PolicyKinds {
				for _, o := range objects[k] {
					in := ""
					if k.Namespaced {
						in = "-n " + o.GetNamespace() + " "
					}
					if o.GetName() == args[0] {
						meant = append(meant, fmt.Sprintf("%s %s%s/%s", cmd.CommandPath(), in, k.Singular, o.GetName()))
					}
				}
			}
		}
	}
	if len(meant) > 0 {
		return fmt.Errorf("%s wants the kind before the name %q: %s", cmd.CommandPath(), args[0], printable.Few(meant, 0))
	}
	return fmt.Errorf("%s wants KIND and NAME, KIND/NAME or KIND, and no kind of policies is called %q: there are %s", cmd.CommandPath(), args[0], strings.Join(kinds, ", "))
}

func policyStates(objects registry.Snapshot, wanted func(networkpolicy.State) bool) []policyState {
	policies := explain.Policies(objects)
	scene := explain.Scene(objects, kubernetes.Named(policies))
	namespaces := make(map[string]labels.Set)
	for _, ns := range scene.Namespaces {
		namespaces[ns.Name] = ns.Labels
	}
	pods := make(map[string][]*policy.Identity)
	for _, p := range scene.Pods {
		pods[p.Identity.Namespace] = append(pods[p.Identity.Namespace], p.Identity)
	}
	selected := make(map[string]int)
	for _, p := range policies {
		for ns, list := range pods {
			if !p.Subject.SelectsNamespace(ns, namespaces[ns]) {
				continue
			}
			for _, id := range list {
				if p.Subject.Selects(id, namespaces[ns]) {
					selected[p.Name]++
				}
			}
		}
	}
	states := []policyState{}
	for _, s := range networkpolicy.States(objects) {
		if wanted(s) {
			states = append(states, policyState{
				kind: s.Kind, Kind: s.Kind.Kind, Namespace: s.Key.Namespace, Name: s.Key.Name, Pods: selected[s.Kind.Kind+" "+s.Key.String()],
				Nodes: append([]string{}, s.Nodes...), Pending: s.Pending, Problems: append(slices.Clone(s.Problems), unresolved(s.Unresolved)...),
			})
		}
	}
	// Of those that no plug-in reads nodes say nothing.
	for _, k := range api.PolicyKinds {
		if slices.Contains(explain.PolicyKinds, k) {
			continue
		}
		for o := range objects.All(k) {
			if s := (networkpolicy.State{Kind: k, Key: registry.KeyOf(o)}); wanted(s) {
				states = append(states, policyState{kind: k, Kind: k.Kind, Namespace: s.Key.Namespace, Name: s.Key.Name,
					Pods: len(pods[s.Key.Namespace]), Nodes: []string{}})
			}
		}
	}
	return states
}

// unresolved says what becomes of domain names without an address.
func unresolved(names []string) (problems []string) {
	for _, n := range names {
		problems = append(problems, fmt.Sprintf("no address was found for %s (see: weft get domainnames), so that the rules with that hold for nobody", n))
	}
	return problems
}

func printPolicyStates(w io.Writer, states []policyState, within string) error {
	if len(states) == 0 {
		where := ""
		if within != "" {
			where = " in namespace " + within
		}
		_, err := printable.Fprintf(w, "There are no policies%s.\n", where)
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "NAMESPACE\tNAME\tKIND\tPODS\tNODES\tENFORCED\tPROBLEMS")
	for _, s := range states {
		enforced := "yes"
		switch {
		case s.Unenforced:
			enforced = "no"
		case len(s.Nodes) == 0:
			enforced = "-"
		case len(s.Pending)+len(s.Lost)+len(s.Unloaded) > 0:
			enforced = fmt.Sprintf("on %d of %d", len(s.Nodes)-len(s.Pending)-len(s.Lost)-len(s.Unloaded), len(s.Nodes))
		case s.Passing:
			enforced = "for now"
		case len(s.Problems) > 0:
			enforced = "not as written"
		}
		problems := slices.Clone(s.Problems)
		if more := len(problems) - maxOfPolicy; more > 0 {
			problems = append(problems[:maxOfPolicy], fmt.Sprintf("and %d more (-o json shows them)", more))
		}
		if len(s.Pending) > 0 {
			problems = append(problems, "not yet on "+strings.Join(s.Pending, ", "))
		}
		for i, p := range problems {
			problems[i] = printable.Brief(p)
		}
		printable.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%s\t%s\n", cmp.Or(s.Namespace, "-"), s.Name, s.Kind, s.Pods, len(s.Nodes), enforced,
			cmp.Or(strings.Join(problems, "; "), "-"))
	}
	return t.Flush()
}
