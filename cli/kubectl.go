package cli

import (
	"regexp"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/daemon"
)

// kubectl runs the program kubectl-weft on its path for "kubectl weft", and
// kubectl_complete-weft to complete its arguments. Both are links to weft.
const (
	kubectlPlugin     = "kubectl-weft"
	kubectlCompletion = "kubectl_complete-weft"
)

// newKubectl returns the command "kubectl weft": what concerns a cluster, and
// always one of Kubernetes.
func newKubectl() *cobra.Command {
	c := &connection{Connection: daemon.Connection{Only: daemon.Kubernetes}}
	root := &cobra.Command{
		Use:         kubectlPlugin,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl weft"},
		Short:       "The network of a cluster, whichever plug-in it uses",
		Long: `kubectl weft shows, changes and explains the network of the cluster that kubectl
talks to.`,
		Example: `  weft status                              # how is the cluster's network?
  weft why node/node2 web --namespace shop # would this connection work, and why?`,
	}
	setUp(root)
	// kubectl's own flags may come before the command, too.
	c.AddFlags(root)
	c.namespaceFlag(root)
	root.TraverseChildren = true
	root.AddCommand(ofCluster(c)...)
	root.AddCommand(newVersion())
	retype(root)
	return root
}

// retype makes examples what users of the plug-in type.
func retype(cmd *cobra.Command) {
	cmd.Example = typed.ReplaceAllString(cmd.Example, "${1}kubectl weft ")
	for _, below := range cmd.Commands() {
		retype(below)
	}
}

// typed finds the places in examples where the program's name is.
var typed = regexp.MustCompile(`(?m)(^ *|\| )weft `)
