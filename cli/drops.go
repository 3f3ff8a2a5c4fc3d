package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/drops"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service/counts"
	"github.com/weftnet/weft/trace"
)

func newDrops(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drops",
		Short: "Show which packets are dropped, and by which rule or why else",
		Long: `drops asks the agents which rules of policies denied how many packets, how many were
dropped for other reasons and who sent them, and shows the last of these packets.
Agents are asked one by one: those of a lab on their nodes, those of Kubernetes in
their pods, for which one needs the right to create pods/exec there. On plain hosts nobody
can be asked from here: weft-agent drops shows the same of each node.

Counts are of all packets since the node's agent started, also by policies that are gone
since, so that what is at the top may be old. An agent that was started anew has of before
what the kernel still had, which forgets a count an hour after its last packet. Of the
packets themselves, nodes tell some each second. The last 20 are shown, or as --tail and
--since say; in JSON and YAML all are, where neither is given;
those of discovery, which every pod sends that has IPv6, are shown with -f and in these.
Where a node does not answer, or its kernel cannot be asked, that is said with the
rest, and the exit code is 2.`,
		Example: "  weft drops\n  weft drops --since 5m\n  weft drops -f --node node1\n  weft drops -o json",
		Args:    noArgs,
	}
	c.AddFlags(cmd)
	follow := cmd.Flags().BoolP("follow", "f", false, "show packets as they are dropped, until interrupted")
	choice := drops.ChoiceFlags(cmd.Flags())
	cmd.MarkFlagsMutuallyExclusive("follow", "tail")
	cmd.MarkFlagsMutuallyExclusive("follow", "since")
	node := cmd.Flags().String("node", "", "`NODE` to ask (default: all)")
	cmd.RegisterFlagCompletionFunc("node", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return c.names(cmd, api.Node, ""), cobra.ShellCompDirectiveNoFileComp
	})
	output := outputFlag(cmd, valueFormats...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		chosen, err := choice(time.Now(), format == "")
		if err != nil {
			return err
		}
		reg, err := c.open(cmd.Context())
		if err != nil {
			return err
		}
		defer reg.Close()
		agents, err := c.agents(cmd.Context(), reg, *node)
		if err != nil {
			return err
		}
		d := &dropsCommand{agents: agents, names: &holders{reg: reg}, out: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(), format: format, zone: time.Local, chosen: chosen}
		if *follow {
			return d.follow(cmd.Context())
		}
		return d.once(cmd.Context())
	}
	return cmd
}

// askedAgent is an agent that can be asked for what was denied on its node, and
// to look for probes and send them.
type askedAgent struct {
	node string
	// open returns the agent's answer; see drops.Open.
	open func(ctx context.Context, follow bool) (io.ReadCloser, error)
	// trace returns the agent's answer; see trace.Open. send is trace.Send, and
	// end is trace.End.
	trace     func(ctx context.Context, w trace.Watch) (io.ReadCloser, error)
	send, end func(ctx context.Context, id string) error
	// counts returns what the agent has counted of a Service; see counts.Open.
	counts func(ctx context.Context, service string) (io.ReadCloser, error)
}

// agents returns the agent of a node, or those of all nodes.
func (c *connection) agents(ctx context.Context, reg registry.Registry, node string) ([]askedAgent, error) {
	settings, err := c.settings()
	if err != nil {
		return nil, err
	}
	var agents []askedAgent
	if settings.Kubernetes != nil {
		agents, err = agentPods(ctx, reg, settings.Kubernetes)
	} else {
		agents, err = labAgents(c.lab())
	}
	if err != nil {
		return nil, err
	}
	if node != "" {
		agents = slices.DeleteFunc(agents, func(a askedAgent) bool { return a.node != node })
	}
	switch {
	case len(agents) > 0:
		return agents, nil
	case node != "":
		return nil, fmt.Errorf("no agent runs on a node %q (see: weft status)", node)
	default:
		return nil, errors.New("no agent runs (see: weft status)")
	}
}

// labAgents returns the agents of the lab whose registry is meant.
func labAgents(l *lab.Lab) ([]askedAgent, error) {
	if l == nil {
		return nil, errors.New("the registry is neither that of a lab here nor Kubernetes, so that nobody can be asked from here: run weft-agent drops on each node")
	}
	var agents []askedAgent
	for _, node := range l.Nodes() {
		socket := func() (string, error) { return l.AgentSocket(node) } // another one once the agent has started again
		tell := func(tell func(ctx context.Context, socket, id string) error) func(context.Context, string) error {
			return func(ctx context.Context, id string) error {
				socket, err := socket()
				if err != nil {
					return err
				}
				return tell(ctx, socket, id)
			}
		}
		agents = append(agents, askedAgent{node: node, open: func(ctx context.Context, follow bool) (io.ReadCloser, error) {
			socket, err := socket()
			if err != nil {
				return nil, err
			}
			return drops.Open(ctx, socket, follow)
		}, trace: func(ctx context.Context, w trace.Watch) (io.ReadCloser, error) {
			socket, err := socket()
			if err != nil {
				return nil, err
			}
			return trace.Open(ctx, socket, w)
		}, send: tell(trace.Send), end: tell(trace.End), counts: func(ctx context.Context, service string) (io.ReadCloser, error) {
			socket, err := socket()
			if err != nil {
				return nil, err
			}
			return counts.Open(ctx, socket, service)
		}})
	}
	return agents, nil
}

// dropsCommand is one run of the command.
type dropsCommand struct {
	agents    []askedAgent
	names     *holders
	out, errs io.Writer
	format    string // of valueFormats, empty for text
	zone      *time.Location
	chosen    drops.Choice

	mu     sync.Mutex // for what is written
	failed map[string]bool
}

// askAtOnce bounds how many agents are asked at the same time.
const askAtOnce = 10

// once shows what all agents tell now. What some do not tell is named, and the
// rest is shown.
func (d *dropsCommand) once(ctx context.Context) error {
	reports := make([]drops.Report, len(d.agents))
	errs := make([]error, len(d.agents))
	ask := make(chan struct{}, askAtOnce)
	var wg sync.WaitGroup
	for i, a := range d.agents {
		wg.Go(func() {
			ask <- struct{}{}
			defer func() { <-ask }()
			errs[i] = within(ctx, nodeTime, errSilent, func(ctx context.Context) (err error) {
				reports[i], err = d.ask(ctx, a)
				return err
			})
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			reports[i].Missing = append(reports[i].Missing, drops.Missing{Node: d.agents[i].node, Problem: err.Error()})
		}
	}
	all := drops.Join(reports...)
	for i := range all.Recent {
		d.names.resolve(ctx, &all.Recent[i])
	}
	var err error
	if d.format != "" {
		all.Recent = d.chosen.Of(all.Recent)
		err = printValue(d.out, d.format, all)
	} else {
		err = all.Print(d.out, d.zone, d.chosen)
	}
	if err == nil && len(all.Missing) > 0 {
		err = exitError{code: exitFailed, message: fmt.Sprintf("not all nodes have told what they drop: %s", printable.Few(nodesOf(all.Missing), 0))}
	}
	return err
}

func nodesOf(missing []drops.Missing) []string {
	var nodes []string
	for _, m := range missing {
		nodes = append(nodes, m.Node)
	}
	return slices.Compact(nodes)
}

func (d *dropsCommand) ask(ctx context.Context, a askedAgent) (drops.Report, error) {
	answer, err := a.open(ctx, false)
	if err != nil {
		return drops.Report{}, err
	}
	defer answer.Close()
	return drops.ReadReport(answer)
}

// askAgain is how long after an agent has gone it is asked again.
const askAgain = time.Second

// follow shows what all agents tell until ctx ends. Those that go are asked
// again.
func (d *dropsCommand) follow(ctx context.Context) error {
	if d.format == "" {
		if err := drops.PrintTitles(d.out); err != nil {
			return err
		}
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	d.failed = make(map[string]bool)
	var wg sync.WaitGroup
	for _, a := range d.agents {
		wg.Go(func() {
			for ctx.Err() == nil {
				d.say(ctx, a.node, d.listen(ctx, a, stop))
				select {
				case <-ctx.Done():
				case <-time.After(askAgain):
				}
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// say tells once that an agent does not answer.
func (d *dropsCommand) say(ctx context.Context, node string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil && ctx.Err() == nil && !d.failed[node] {
		printable.Fprintf(d.errs, "node %s: %v; asking again\n", node, err)
		d.failed[node] = true
	}
}

// listen shows what an agent tells until it ends that. Where nothing can be
// written any more, it stops all.
func (d *dropsCommand) listen(ctx context.Context, a askedAgent, stop context.CancelCauseFunc) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(nodeTime, func() { cancel(errSilent) })
	answer, err := begin(ctx, func(ctx context.Context) (io.ReadCloser, error) { return a.open(ctx, true) })
	if err == nil && !silent.Stop() {
		answer.Close()
		err = errSilent
	}
	if err != nil {
		if errors.Is(context.Cause(ctx), errSilent) {
			err = errSilent
		}
		return err
	}
	defer answer.Close()
	d.mu.Lock()
	delete(d.failed, a.node)
	d.mu.Unlock()
	return drops.ReadRecords(answer, func(r drops.Record) error {
		d.names.resolve(ctx, &r)
		d.mu.Lock()
		defer d.mu.Unlock()
		err := d.print(r)
		if err != nil {
			stop(err)
		}
		return err
	})
}

// print shows a packet: in JSON as a line, in YAML as a document.
func (d *dropsCommand) print(r drops.Record) error {
	switch d.format {
	case "json":
		return printable.JSON(d.out, "", r)
	case "yaml":
		if _, err := io.WriteString(d.out, "---\n"); err != nil {
			return err
		}
		return printValue(d.out, "yaml", r)
	}
	return r.Print(d.out, d.zone)
}

// holders knows which pod or node has an address.
type holders struct {
	reg registry.Registry

	mu    sync.Mutex
	names map[plan.Address]string
	read  time.Time
}

// readAgain is how long what was read of the cluster will do, though it does
// not tell who has an address.
const readAgain = 5 * time.Second

// resolve gives the ends of a record names where the agent knew none.
func (h *holders) resolve(ctx context.Context, r *drops.Record) {
	for _, end := range []*drops.End{&r.Source, &r.Destination} {
		if end.Pod == "" {
			end.Pod = h.of(ctx, r.In(end.Address))
		}
	}
}

func (h *holders) of(ctx context.Context, a plan.Address) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if name, ok := h.names[a]; ok || time.Since(h.read) < readAgain {
		return name
	}
	h.read = time.Now()
	// What cannot be read is not told; the address is.
	snapshot := make(registry.Snapshot)
	if readInto(ctx, h.reg, snapshot, api.Pod, api.Node) != nil {
		return ""
	}
	h.names = addressHolders(snapshot[api.Pod], snapshot[api.Node])
	for address, node := range h.inPools(ctx, snapshot) {
		if _, taken := h.names[address]; !taken {
			h.names[address] = "node/" + node
		}
	}
	return h.names[a]
}

// inPools returns which node has which address of the pods' subnets, as far as the
// registry tells.
func (h *holders) inPools(ctx context.Context, snapshot registry.Snapshot) map[plan.Address]string {
	c := explain.Cluster{Plugin: plugins.Finder(h.reg.Serves), Objects: waysAlone{snapshot}}
	if readInto(ctx, h.reg, snapshot, api.ClusterConfigKind) != nil {
		return nil
	}
	plug, err := pluginOf(snapshot, c.Plugin)
	if err != nil {
		return nil
	}
	kinds := slices.DeleteFunc(slices.Clone(plug.Kinds()), func(k *registry.Kind) bool {
		return slices.Contains(policiesKinds, k) || slices.Contains(servicesKinds, k)
	})
	if readInto(ctx, h.reg, snapshot, kinds...) != nil {
		return nil
	}
	own, err := c.OwnAddresses()
	if err != nil {
		return nil
	}
	return own
}

// addressHolders returns the name of who has each address: "namespace/pod" or
// "node/name". Pods that have ended have none. These objects name no network, and
// mean the default one, in which nodes are.
func addressHolders(pods, nodes []registry.Object) map[plan.Address]string {
	names := make(map[plan.Address]string)
	put := func(address, name string) {
		if a, err := netip.ParseAddr(address); err == nil {
			names[plan.Address{Network: plan.DefaultNetwork, IP: a.Unmap()}] = name
		}
	}
	for _, o := range pods {
		p, ok := o.(*corev1.Pod)
		if !ok || p.Spec.HostNetwork || api.Ended(p) {
			continue
		}
		put(p.Status.PodIP, registry.KeyOf(p).String())
		for _, ip := range p.Status.PodIPs {
			put(ip.IP, registry.KeyOf(p).String())
		}
	}
	for _, o := range nodes {
		if n, ok := o.(*corev1.Node); ok {
			for _, ip := range internalIPs(n) {
				put(ip, "node/"+n.Name)
			}
		}
	}
	return names
}
