package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service/counts"
)

func newService(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service [NAMESPACE/]NAME",
		Short: "Show how nodes serve a Service",
		Long: `service says where a Service is reached on each node, who may use it, and which of
its endpoints get connections from where: by the nodes' plans, as they follow from
the objects in the registry. Nodes that serve it alike are told together. What becomes of
one connection says weft why SRC svc/NAME. Of a Service that is left to another program, or that is
headless or stands for a host name, it says so, and what is wrong with it.

A line "from inside" is for what the node and its own pods send, one "from outside" for all else.
"The node's address" is the one that the node itself would send to the backend from: where
the backend is a pod, it is the node's address in the pods' network, and not the one that its Node lists.

Agents are asked what came, one by one as by weft drops: how many connections each frontend and backend
was given, and how many packets to frontends were refused and dropped. What comes again to one
that had nothing for a day is counted anew. Of a node whose agent does not answer it is
said that it is not counted. On plain hosts nobody can be asked from here: weft-agent service
NAMESPACE/NAME shows what each node has counted.

The exit code is 1 where something is wrong with the Service, as where no endpoint gets
connections, or with a node that is to serve it.`,
		Example: `  weft service web
  weft service shop/web
  weft service -n shop web -o yaml
  weft service web --node node1`,
		Args: exactArgs("[NAMESPACE/]NAME", 1),
	}
	c.AddFlags(cmd)
	namespace := c.namespaceFlag(cmd)
	output := outputFlag(cmd, valueFormats...)
	node := cmd.Flags().String("node", "", "`NODE` to show and ask alone (default: all)")
	cmd.RegisterFlagCompletionFunc("node", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return c.names(cmd, api.Node, ""), cobra.ShellCompDirectiveNoFileComp
	})
	count := cmd.Flags().Bool("counts", true, "ask agents what came")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.names(cmd, api.Service, namespace()), cobra.ShellCompDirectiveNoFileComp
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		key, err := serviceKey(args[0], namespace())
		if err != nil {
			return err
		}
		reg, err := c.open(cmd.Context())
		if err != nil {
			return err
		}
		defer reg.Close()
		// Who may talk to whom changes nothing of where a Service is reached.
		cluster, err := readCluster(cmd.Context(), reg, policiesKinds...)
		if err == nil {
			err = readInto(cmd.Context(), reg, cluster.Objects.(registry.Snapshot), api.Service, api.EndpointSlice, api.AddressPoolKind, api.AddressGrantKind)
		}
		if err != nil {
			return err
		}
		serving, err := cluster.Serving(key, *node)
		if err != nil {
			return err
		}
		if *count && serving.Unserved == "" {
			agents, err := c.agents(cmd.Context(), reg, *node)
			if err != nil {
				serving.NotCounted(*node, err.Error())
			}
			countServed(cmd.Context(), agents, &serving)
		}
		if format != "" {
			err = printValue(cmd.OutOrStdout(), format, serving)
		} else {
			_, err = fmt.Fprint(cmd.OutOrStdout(), serving)
		}
		if err == nil && len(serving.Problems) > 0 {
			return exitError{code: 1}
		}
		return err
	}
	return cmd
}

// serviceKey reads what a Service is called: NAME or NAMESPACE/NAME, as output has it, with
// svc/ in front where that was copied from weft why.
func serviceKey(text, namespace string) (registry.Key, error) {
	words := strings.Split(text, "/")
	if k, err := kindNamed(words[0]); len(words) > 1 && err == nil && k == api.Service {
		words = words[1:]
	}
	if len(words) > 2 || slices.Contains(words, "") {
		return registry.Key{}, fmt.Errorf("%q names no Service: write NAME or NAMESPACE/NAME", text)
	}
	if len(words) == 2 {
		namespace = words[0]
	}
	return registry.Key{Namespace: namespace, Name: words[len(words)-1]}, nil
}

// countServed asks agents what they have counted of a Service, and adds it.
func countServed(ctx context.Context, agents []askedAgent, s *explain.Serving) {
	reports, errs := make([]counts.Report, len(agents)), make([]error, len(agents))
	ask := make(chan struct{}, askAtOnce)
	var wg sync.WaitGroup
	for i, a := range agents {
		wg.Go(func() {
			ask <- struct{}{}
			defer func() { <-ask }()
			errs[i] = within(ctx, nodeTime, errSilent, func(ctx context.Context) error {
				answer, err := begin(ctx, func(ctx context.Context) (io.ReadCloser, error) { return a.counts(ctx, s.Service) })
				if err != nil {
					return err
				}
				defer answer.Close()
				reports[i], err = counts.Read(answer)
				return err
			})
		})
	}
	wg.Wait()
	for i, a := range agents {
		if errs[i] != nil {
			s.NotCounted(a.node, errs[i].Error())
		} else {
			s.Count(a.node, reports[i])
		}
	}
	for _, on := range s.On {
		for _, node := range on.Nodes {
			if len(agents) > 0 && !slices.ContainsFunc(agents, func(a askedAgent) bool { return a.node == node }) {
				s.NotCounted(node, "no agent runs there")
			}
		}
	}
}
