package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/networkpolicy"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
)

func newWhy(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "why SRC DST[:PORT]",
		Short: "Say whether a connection would work, and why",
		Long: `why follows the first packet of a connection through the plans of the nodes, and
says what becomes of it, which way it goes, and what decides; with -v, every step
with the entry of the plan that decides it.

SRC and DST are pods (web, shop/web, pod/web), nodes (node/node1, or node1 where
no pod is called so), addresses or host names; DST may be a Service, too (svc/web,
svc/shop/web). Put the port after DST, as a number or by its name: web:8080,
svc/web:http, [fd00::1]:80. Without one it is that of the Service, or else 8080.

What comes from an address outside of the cluster for one of a Service or a VirtualAddress
outside comes in at the node that says it answers for it. Whether a way leads from there to
a Service's address of the cluster is not known. A port of a headless Service is
what it leads to where it is named or left out, and that port of its pods where it is a number.

Where policies decide it names the policy and the rule; of what is denied, also
the rule that came nearest to allowing it and the smallest change that would.

why answers from the objects in the registry and from what agents have written there
of their nodes, and asks no kernel: that a node has not yet taken in that a policy is
gone, say, it cannot know. --live asks the kernels.

What is not known is not claimed. Of a node on the way whose agent is lost, or
that does not do all that its plan says, of a machine to which a node hands the
packet and that is no node of the cluster, of a pod that has lost its interface, and
of a Service, which others than Weft translate, the verdict is unknown, with what
is known.

With --live the agent of the source's node sends a real packet from the pod's
network namespace, or from the node: for TCP it connects, and resets what is
accepted at once; for UDP it sends an empty datagram, or at port 53 one that says that
it is an answer, for ICMP an echo request. The agents of all nodes on the way tell what their kernels do with it, for as long as
that takes, some seconds and a minute at most, and leave nothing behind. It takes
the rights of weft drops, and is for Kubernetes and labs: on plain hosts no agent can be
asked from here. DST is a pod, a node or an address then, and no Service, as that is translated
on the way: name one of the pods behind it.

The exit code is 0 if the connection is allowed, 1 if it is denied, and 2 if
that cannot be said; with --live, 0 if the packet came to whom it was sent, 1 if it
did not, came to somebody else or its answer was lost on the way back, and 2 if that
cannot be said.`,
		Example: `  weft why web db:5432
  weft why -n shop web node/node2 --protocol icmp
  weft why web svc/db
  weft why web 8.8.8.8:53 --protocol udp -v
  weft why web example.com:443 -6 -o json
  weft why web db:5432 --live`,
		Args: exactArgs("SRC and DST", 2),
	}
	c.AddFlags(cmd)
	namespace := c.namespaceFlag(cmd)
	var port portFlag
	cmd.Flags().Var(&port, "port", "destination `PORT`, which may stand behind DST as well (default 8080)")
	protocolName := cmd.Flags().String("protocol", "tcp", "`PROTOCOL`: tcp, udp, sctp, icmp or a number")
	cmd.RegisterFlagCompletionFunc("protocol", cobra.FixedCompletions([]string{"tcp", "udp", "sctp", "icmp"}, cobra.ShellCompDirectiveNoFileComp))
	ipv4 := cmd.Flags().BoolP("ipv4", "4", false, "ask about IPv4")
	ipv6 := cmd.Flags().BoolP("ipv6", "6", false, "ask about IPv6")
	cmd.MarkFlagsMutuallyExclusive("ipv4", "ipv6")
	verbose := cmd.Flags().BoolP("verbose", "v", false, "show every step with the plan's entry that decides it")
	withProbe := cmd.Flags().Bool("live", false, "send a packet, too, follow it through the nodes' kernels, and say where these do something else")
	output := outputFlag(cmd, valueFormats...)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 1 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := c.names(cmd, api.Pod, namespace())
		for _, n := range c.names(cmd, api.Node, "") {
			names = append(names, "node/"+n)
		}
		if len(args) == 1 {
			for _, n := range c.names(cmd, api.Service, namespace()) {
				names = append(names, "svc/"+n)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		protocol, err := plan.ParseProtocol(*protocolName)
		if err != nil {
			return err
		}
		question := explain.Question{Namespace: namespace(), Source: args[0], Destination: args[1],
			Protocol: protocol, Assumed: !cmd.Flags().Changed("protocol"), Port: uint16(port)}
		switch {
		case *ipv4:
			question.Family = 4
		case *ipv6:
			question.Family = 6
		}
		out := cmd.OutOrStdout()
		if *withProbe {
			everyAgent := func(ctx context.Context, reg registry.Registry) ([]askedAgent, error) { return c.agents(ctx, reg, "") }
			answer, report, err := live{question, c.open, everyAgent}.run(cmd.Context())
			if err != nil {
				return err
			}
			return showLive(out, answer, report, format, *verbose)
		}
		reg, err := c.open(cmd.Context())
		if err != nil {
			return err
		}
		defer reg.Close()
		answer, err := askWhy(cmd.Context(), reg, question)
		if err != nil {
			return err
		}
		switch {
		case format != "":
			err = printValue(out, format, answer)
		case *verbose:
			_, err = fmt.Fprint(out, answer.Verbose())
		default:
			_, err = fmt.Fprint(out, answer)
		}
		if code := whyCodes[answer.Verdict]; err == nil && code != 0 {
			return exitError{code: code}
		}
		return err
	}
	return cmd
}

// portFlag is a flag's port, 0 where it is not given.
type portFlag uint16

func (p *portFlag) String() string {
	if *p == 0 {
		return ""
	}
	return strconv.Itoa(int(*p))
}

func (*portFlag) Type() string { return "port" }

func (p *portFlag) Set(text string) error {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return errors.New("a port is a number from 1 to 65535")
	}
	*p = portFlag(n)
	return nil
}

// askWhy answers a question with what the registry says now.
func askWhy(ctx context.Context, reg registry.Registry, question explain.Question) (explain.Answer, error) {
	served := append(slices.Clone(servicesKinds), api.VirtualAddressKind)
	cluster, err := readCluster(ctx, reg, served...)
	if err != nil {
		return explain.Answer{}, err
	}
	// Services matter only where the destination is one, and not everybody
	// may read them.
	served = slices.DeleteFunc(served, func(k *registry.Kind) bool { return !reg.Serves(k) })
	unread := readInto(ctx, reg, cluster.Objects.(registry.Snapshot), served...)
	answer, err := cluster.Why(question)
	if err != nil {
		return answer, errors.Join(err, unread)
	}
	if unread != nil && answer.Destination.Node == "" {
		answer.Doubt("whether that is a Service is not known")
	}
	if unread != nil {
		answer.Warn("", api.Problem{Message: fmt.Sprintf("Services cannot be read, so that one is not told from any other address: %v", unread)})
	}
	notInForce(networkpolicy.States(cluster.Objects), cluster.Objects, &answer, answer.Warn)
	return answer, nil
}

// whyCodes are the exit codes of the verdicts.
var whyCodes = map[explain.Verdict]int{explain.Denied: 1, explain.NotKnown: exitFailed}

// resolveHost asks this machine's resolver.
func resolveHost(ctx context.Context) func(string) ([]netip.Addr, error) {
	return func(name string) ([]netip.Addr, error) {
		ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
		defer cancel()
		addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		for i, a := range addresses {
			addresses[i] = a.Unmap()
		}
		return addresses, err
	}
}

// resolveTimeout bounds how long a host name is looked up.
const resolveTimeout = 5 * time.Second

// readCluster reads what explaining takes out of the registry, but for some kinds.
func readCluster(ctx context.Context, reg registry.Registry, but ...*registry.Kind) (explain.Cluster, error) {
	c := explain.Cluster{Plugin: plugins.Finder(reg.Serves), Now: time.Now()}
	snapshot := make(registry.Snapshot)
	if err := readInto(ctx, reg, snapshot, api.ClusterConfigKind, api.Node, api.Pod); err != nil {
		return c, err
	}
	// That there is no such plug-in is for Cluster.Plans to say: status has
	// more to tell.
	c.Objects = snapshot
	if kinds, err := c.Kinds(); err == nil {
		kinds = slices.DeleteFunc(kinds, func(k *registry.Kind) bool { return slices.Contains(but, k) })
		if slices.ContainsFunc(kinds, func(k *registry.Kind) bool { return slices.Contains(explain.PolicyKinds, k) }) {
			kinds = slices.Concat(kinds, networkpolicy.StateKinds())
		}
		if err := readInto(ctx, reg, snapshot, kinds...); err != nil {
			return c, err
		}
	}
	c.Resolve = resolveHost(ctx)
	held, err := reg.Holders(ctx, api.NodeLease(""))
	c.Lost = lostAgents(snapshot, held)
	return c, err
}

// readInto reads those kinds that were not read yet.
func readInto(ctx context.Context, reg registry.Registry, into registry.Snapshot, kinds ...*registry.Kind) error {
	for _, k := range kinds {
		if _, done := into[k]; done {
			continue
		}
		objects, _, err := reg.List(ctx, k)
		if err != nil && !(k.Optional && errors.Is(err, registry.ErrNotInstalled)) {
			return err
		}
		into[k] = objects
	}
	return nil
}

// pluginOf returns the plug-in that the cluster uses, with those that it changes from and
// to.
func pluginOf(objects registry.Snapshot, find func(string) (plugin.Plugin, error)) (plugin.Plugin, error) {
	return plugin.MixOf(pluginName(objects), configOf(objects), find)
}

// notInForce says where policies that decide are not in force yet, or not as
// they are written, on the node of the pod for which they decide. It doubts the
// answer, and warns of the whole of which that is a part.
func notInForce(states []networkpolicy.State, objects registry.Objects, answer *explain.Answer, warn func(node string, p api.Problem)) {
	for i := range answer.Backends {
		notInForce(states, objects, &answer.Backends[i], warn)
	}
	for _, j := range answer.Policies {
		kind, key, ok := plugin.ParseOrigin(explain.PolicyKinds, j.Rule)
		if !ok {
			continue
		}
		i := slices.IndexFunc(states, func(s networkpolicy.State) bool { return s.Kind == kind && s.Key == key })
		if i < 0 {
			continue
		}
		namespace, name, _ := strings.Cut(j.Pod, "/")
		pod := registry.GetAs[*corev1.Pod](objects, api.Pod, registry.Key{Namespace: namespace, Name: name})
		if pod != nil && slices.Contains(states[i].Pending, pod.Spec.NodeName) && !j.Unasked {
			answer.Doubt(fmt.Sprintf("%s has not said yet that %s %s is in force", pod.Spec.NodeName, kind.Kind, key))
		}
		for _, p := range fewOf(states[i]) {
			warn("", api.Problem{Kind: kind.Kind, Namespace: key.Namespace, Name: key.Name, Message: p})
		}
	}
}

// oneOf joins alternatives for people.
func oneOf(values []string) string {
	if len(values) < 2 {
		return strings.Join(values, "")
	}
	last := len(values) - 1
	return strings.Join(values[:last], ", ") + " or " + values[last]
}
