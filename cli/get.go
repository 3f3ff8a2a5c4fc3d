package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/daemon"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/registry"
)

func newGet(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get KIND [NAME]",
		Short: "Show objects",
		Long: "get shows objects of one of these kinds, by its plural or singular name:\n\n" + columnsOf(kindNames(), 80) + `

With -o wide a node and a Service are shown with what is wrong with them.

A VirtualAddress is shown with the nodes that say they answer for it; with none
where it may not have its address, as a Service has it.`,
		Example: `  weft get nodes
  weft get pods -A -o wide
  weft get hostsubnet node1 -o yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch len(args) {
			case 0:
				return fmt.Errorf("say which kind: there are %s (see: %s --help)", strings.Join(kindNames(), ", "), cmd.CommandPath())
			case 1, 2:
				return nil
			}
			return fmt.Errorf("%s wants KIND and perhaps NAME, but %s (see: %s --help)", cmd.CommandPath(), given(args), cmd.CommandPath())
		},
	}
	c.AddFlags(cmd)
	namespace := c.namespaceFlag(cmd)
	all := cmd.Flags().BoolP("all-namespaces", "A", false, "objects of all namespaces")
	output := outputFlag(cmd, objectFormats...)
	cmd.ValidArgsFunction = c.completeReference(namespace)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		in := namespace()
		k, key, err := reference(args, in)
		if err != nil {
			return err
		}
		if format == "yaml" || format == "json" {
			k = whole(k)
		}
		reg, err := c.open(cmd.Context())
		if err != nil {
			return err
		}
		defer reg.Close()
		var objects []registry.Object
		if key.Name != "" {
			o, err := reg.Get(cmd.Context(), k, key)
			if err != nil {
				return err
			}
			objects = []registry.Object{o}
		} else {
			if objects, _, err = reg.List(cmd.Context(), k); err != nil {
				return err
			}
			objects = slices.DeleteFunc(objects, func(o registry.Object) bool {
				return k.Namespaced && !*all && o.GetNamespace() != in
			})
		}
		out := cmd.OutOrStdout()
		switch format {
		case "yaml":
			return printYAML(out, objects)
		case "json":
			return printJSON(out, objects, key.Name == "")
		case "name":
			for _, o := range objects {
				printable.Fprintf(out, "%s/%s\n", k.Singular, o.GetName())
			}
			return nil
		}
		if len(objects) == 0 {
			where := ""
			if k.Namespaced && !*all {
				where = " in namespace " + in
			}
			printable.Fprintf(cmd.ErrOrStderr(), "There are no %s%s.\n", k.Plural, where)
			return nil
		}
		if k == api.Node || k == api.NodeReportKind {
			held, err := reg.Holders(cmd.Context(), api.NodeLease(""))
			if err != nil {
				return err
			}
			forgetLost(objects, held)
		}
		var more []column
		if k == api.VirtualAddressKind {
			owner, err := ownerColumn(cmd.Context(), reg)
			if err != nil {
				return err
			}
			more = append(more, owner)
		}
		return printTable(out, k, objects, format == "wide", k.Namespaced && *all, time.Now(), more...)
	}
	return cmd
}

// ownerColumn is the column of which nodes say that they answer for a VirtualAddress.
func ownerColumn(ctx context.Context, reg daemon.Registry) (column, error) {
	nodes, _, err := reg.List(ctx, api.Node)
	if err != nil {
		return column{}, err
	}
	held, err := reg.Holders(ctx, api.NodeLease(""))
	if err != nil {
		return column{}, err
	}
	snapshot := registry.NewSnapshot(map[*registry.Kind][]registry.Object{api.Node: nodes})
	return ownersIn(explain.Cluster{Objects: snapshot, Lost: lostAgents(snapshot, held)}), nil
}

// ownersIn is that column, by what Nodes say.
func ownersIn(cluster explain.Cluster) column {
	answered := cluster.AnsweredFor()
	return of("ANSWERED-BY", func(v *api.VirtualAddress) string {
		by, known := answered(v)
		if !known {
			return "<unknown>"
		}
		return strings.Join(by.Nodes, ",")
	})
}

// columnsOf writes words separated by commas, in lines of a width in characters.
func columnsOf(words []string, width int) string {
	var b strings.Builder
	used := 0
	for i, w := range words {
		if i < len(words)-1 {
			w += ","
		}
		switch {
		case used == 0:
		case used+1+len(w) > width:
			b.WriteByte('\n')
			used = 0
		default:
			b.WriteByte(' ')
			used++
		}
		b.WriteString(w)
		used += len(w)
	}
	return b.String()
}
