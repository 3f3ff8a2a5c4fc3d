package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/registry"
)

func newDelete(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "delete KIND NAME... | delete -f FILE",
		Short: "Delete objects",
		Example: `  weft delete hostsubnet node7
  weft delete -f network.yaml`,
	}
	c.AddFlags(cmd)
	namespace := c.namespaceFlag(cmd)
	files := cmd.Flags().StringArrayP("filename", "f", nil, "`FILE` with the objects, - for the standard input")
	absent := cmd.Flags().Bool("ignore-not-found", false, "it is no error when an object is not there")
	cmd.ValidArgsFunction = c.completeReference(namespace)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var targets []target
		switch {
		case len(*files) > 0 && len(args) > 0:
			return fmt.Errorf("give either names or -f, not both (see: %s --help)", cmd.CommandPath())
		case len(*files) > 0:
			list, err := readTargets(cmd, *files, namespace())
			if err != nil {
				return err
			}
			targets = list
		case len(args) == 0:
			return fmt.Errorf("say what to delete: KIND NAME, or -f FILE (see: %s --help)", cmd.CommandPath())
		default:
			k, key, err := reference(args[:1], namespace())
			if err != nil {
				return err
			}
			names := args[1:]
			if key.Name != "" {
				names = append([]string{key.Name}, names...)
			}
			if len(names) == 0 {
				return fmt.Errorf("which %s? Name it after the kind", k.Singular)
			}
			for _, n := range names {
				targets = append(targets, target{kind: k, key: registry.Key{Namespace: key.Namespace, Name: n}})
			}
		}
		reg, err := c.open(cmd.Context())
		if err != nil {
			return err
		}
		defer reg.Close()
		var errs []error
		var configs []target
		gone := make(map[string]bool) // Nodes
		for _, t := range targets {
			err := reg.Delete(cmd.Context(), t.kind, t.key, "")
			switch {
			case err == nil:
				printable.Fprintf(cmd.OutOrStdout(), "%s/%s deleted\n", t.kind.Singular, t.key.Name)
				if t.kind.GroupVersionKind == api.ClusterConfigKind.GroupVersionKind {
					configs = append(configs, t)
				}
				if t.kind.GroupVersionKind == api.Node.GroupVersionKind {
					gone[t.key.Name] = true
				}
			case !*absent || !errors.Is(err, registry.ErrNotFound):
				errs = append(errs, err)
			}
		}
		// Without a ClusterConfig nodes go on with what they use, which may be the default one.
		for _, w := range slices.Concat(unenforced(cmd.Context(), reg, configs), leftBehind(cmd.Context(), reg, gone)) {
			printable.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", printable.Brief(w))
		}
		return errors.Join(errs...)
	}
	return cmd
}

// leftBehind says what is still there of Nodes that are gone: their agents, and their pods.
func leftBehind(ctx context.Context, reg registry.Registry, gone map[string]bool) (warnings []string) {
	if len(gone) == 0 {
		return nil
	}
	objects := make(registry.Snapshot)
	err := readInto(ctx, reg, objects, api.Node, api.Pod)
	var held map[string]string
	if err == nil {
		held, err = reg.Holders(ctx, "")
	}
	if err != nil {
		return []string{"whether agents and pods of the deleted nodes are still there is not known: " + err.Error()}
	}
	var l problemList
	missingNodes(&l, explain.Cluster{Objects: objects}, held)
	for _, p := range l.list {
		if gone[p.Name] {
			warnings = append(warnings, p.String())
		}
	}
	return warnings
}
