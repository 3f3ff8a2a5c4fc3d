package flannel

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// lookAgain is how often a node looks at what it has said when nothing has
// changed.
const lookAgain = time.Hour

// RunNode implements plugin.NodeRunner: it writes to the node's Node how it is
// reached, keeps that true, and writes the subnet file. An address that an
// administrator gave the node in flannel's annotations is what it says.
func (Kubernetes) RunNode(ctx context.Context, n plugin.NodeEnv) error {
	n.SubnetFile = cmp.Or(n.SubnetFile, DefaultSubnetFile)
	a := &announcer{keeper{NodeEnv: n}}
	return a.run(ctx, a.reconcile)
}

// announcer is one run of Kubernetes.RunNode.
type announcer struct{ keeper }

// reconcile brings the annotations and the subnet file to what they must be.
func (a *announcer) reconcile(ctx context.Context, in plugin.Input) (time.Duration, error) {
	node := registry.GetAs[*corev1.Node](in.Objects, api.Node, registry.Key{Name: in.Node.Name})
	if node == nil {
		return 0, fmt.Errorf("there is no Node %s yet", in.Node.Name)
	}
	s, err := statementOf(in, node)
	if err != nil {
		return 0, err
	}
	if !announces(node.Annotations, s.annotations) {
		if err := a.announce(ctx, in); err != nil {
			return 0, err
		}
	}
	return lookAgain, a.writeSubnetFile(in, s.settings, s.subnet)
}

// statement is what a node has to say of itself.
type statement struct {
	settings Settings
	subnet   Subnet
	// annotations are as announcement returns them.
	annotations map[string]string
}

// statementOf returns what the node has to say of itself whose Node is n.
func statementOf(in plugin.Input, n *corev1.Node) (statement, error) {
	l, _ := nodeLease(n)
	if l == nil {
		return statement{}, compileTells(fmt.Errorf("node %s has no podCIDR: %s", n.Name, givePodCIDR))
	}
	// What is wrong with a configuration keeps nothing from being done as long
	// as there is a former one. Compile says it.
	c, err := configurationOf(in.Objects, n)
	if !c.known() {
		return statement{}, compileTells(fmt.Errorf("flannel's configuration, %s: %w", c.from, err))
	}
	want, err := c.announcement(in.Node, n.Annotations)
	if err != nil {
		return statement{}, fmt.Errorf("node %s: %w", n.Name, err)
	}
	return statement{c.settings, l.subnet, want}, nil
}

// announce writes to the Node what follows from it as the registry has it:
// what in holds may be from before the last write, or from before an
// administrator took a configuration from the Node, which must stay away.
func (a *announcer) announce(ctx context.Context, in plugin.Input) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var s statement
	written := false
	_, err := registry.Modify(ctx, a.Registry, api.Node, registry.Key{Name: in.Node.Name}, func(n *corev1.Node) (err error) {
		if s, err = statementOf(in, n); err != nil {
			return err
		}
		if written = !announces(n.Annotations, s.annotations); !written {
			return nil
		}
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		for name, value := range s.annotations {
			if value == "" {
				delete(n.Annotations, name)
			} else {
				n.Annotations[name] = value
			}
		}
		return nil
	})
	if err == nil && written {
		a.Log.Info("said how the node is reached", "backend", s.settings.Backend, "subnet", s.subnet)
	}
	return err
}
