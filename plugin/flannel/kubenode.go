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
	return a.run(ctx, []*registry.Kind{api.Node, ConfigMap, api.ClusterConfigKind}, a.reconcile)
}

// announcer is one run of Kubernetes.RunNode.
type announcer struct{ keeper }

// reconcile brings the annotations and the subnet file to what they must be.
func (a *announcer) reconcile(ctx context.Context) (time.Duration, error) {
	self := a.Node()
	key := registry.Key{Name: self.Name}
	node := registry.GetAs[*corev1.Node](a.cache, api.Node, key)
	if node == nil {
		return 0, fmt.Errorf("there is no Node %s yet", self.Name)
	}
	l, _ := nodeLease(node)
	if l == nil {
		return 0, fmt.Errorf("node %s has no podCIDR: %s", self.Name, givePodCIDR)
	}
	// What is wrong with a configuration keeps nothing from being done as long
	// as there is a former one. Compile says it.
	c, err := configurationOf(a.cache, self.Name)
	if !c.known() {
		return 0, fmt.Errorf("flannel's configuration, %s: %w", c.from, err)
	}
	want, err := c.announcement(self, node.Annotations)
	if err != nil {
		return 0, fmt.Errorf("node %s: %w", self.Name, err)
	}
	if !announces(node.Annotations, want) {
		a.Log.Info("saying how the node is reached", "backend", c.settings.Backend, "subnet", l.subnet)
		if err := a.announce(ctx, key, c); err != nil {
			return 0, err
		}
	}
	return lookAgain, a.writeSubnetFile(a.cache, c.settings, self, l.subnet)
}

// announce writes to the Node as it is now.
func (a *announcer) announce(ctx context.Context, key registry.Key, c configuration) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := registry.Modify(ctx, a.Registry, api.Node, key, func(n *corev1.Node) error {
		want, err := c.announcement(a.Node(), n.Annotations)
		if err != nil || announces(n.Annotations, want) {
			return err
		}
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		for name, value := range want {
			if value == "" {
				delete(n.Annotations, name)
			} else {
				n.Annotations[name] = value
			}
		}
		return nil
	})
	return err
}
