package flannel

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Kubernetes is the plug-in in the form that flannel has on Kubernetes, where
// flanneld runs with -kube-subnet-mgr: a node's lease is its Node, whose
// spec.podCIDRs kube-controller-manager gives, and whose annotations the node
// writes to say how it is reached. The configuration is in ConfigMap, as
// flannel's manifest makes it. Nodes that run flanneld and nodes that run Weft
// form one network.
//
// A cluster without flannel needs no ConfigMap. Without it, the backend is
// vxlan with flannel's defaults, a node uses the families of its own podCIDRs,
// and the cluster's network is what podCIDRs of all nodes make up: the range
// that they come from is known to kube-controller-manager alone, and a range
// that is guessed around them could hold addresses of others.
//
// A node whose ConfigMap went away, or wrong, goes by what it said before,
// which the node keeps in an annotation of its Node.
type Kubernetes struct{}

var (
	_ plugin.Plugin     = Kubernetes{}
	_ plugin.NodeRunner = Kubernetes{}
)

// Name implements plugin.Plugin.
func (Kubernetes) Name() string { return Name }

// Kinds implements plugin.Plugin: the nodes and the configuration.
func (Kubernetes) Kinds() []*registry.Kind { return []*registry.Kind{api.Node, ConfigMap} }

// Compile implements plugin.Plugin.
func (Kubernetes) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	c := newCompiler(in, nodeWords)
	c.nodesAreLeases = true
	self := registry.Key{Name: in.Node.Name}
	for n := range registry.Each[*corev1.Node](in.Objects, api.Node) {
		l, problems := nodeLease(n)
		c.problems = append(c.problems, problems...)
		if l == nil {
			continue
		}
		c.leases = append(c.leases, l)
		if l.at.key == self {
			c.own = l
		}
	}
	if c.own == nil {
		c.problems = append(c.problems, plugin.Problem{Kind: api.Node, Key: self, Message: "it has no podCIDR: " + givePodCIDR})
	}
	configuration, err := configurationOf(in.Objects, registry.GetAs[*corev1.Node](in.Objects, api.Node, self))
	c.config, c.settings, c.unconfigured = configuration.from, configuration.settings, configuration.from.kind == api.Node
	if err != nil {
		c.configProblem("%v", err)
	}
	for _, text := range c.settings.Ignored {
		c.configProblem("%s", text)
	}
	known := configuration.known()
	if known && c.own != nil {
		c.checkFamilies()
	}
	return c.compile(known)
}

const givePodCIDR = "kube-controller-manager must run with --allocate-node-cidrs=true and --cluster-cidr"

// checkFamilies says what of the configuration the node's podCIDRs do not suit,
// for which flanneld would not start.
func (c *compiler) checkFamilies() {
	for _, f := range []struct {
		r    Range
		p    netip.Prefix
		name string
	}{{c.settings.V4, c.own.subnet.V4, "Network"}, {c.settings.V6, c.own.subnet.V6, "IPv6Network"}} {
		switch {
		case !f.r.IsZero() && !f.p.IsValid():
			c.problem(c.own, "it has no podCIDR of the family of %s %s in %s; give kube-controller-manager a --cluster-cidr of each family and make the Node anew, or disable the family",
				f.name, f.r.Network, c.config)
		case !f.r.IsZero() && !f.r.holds(f.p):
			c.problem(c.own, "its podCIDR %s is not in %s %s of %s; make it that of kube-controller-manager's --cluster-cidr", f.p, f.name, f.r.Network, c.config)
		}
	}
}

// configuration is what a node goes by.
type configuration struct {
	settings Settings
	// from is the ConfigMap, or the Node itself where there is none.
	from reference
	// text is what is to be kept of the ConfigMap; empty where there is none.
	text []byte
}

// known reports whether there is anything to go by.
func (c configuration) known() bool { return len(c.settings.families()) > 0 }

// maxConfig is the most bytes that a configuration may have, as each Node
// keeps it: far more than flannel's options need, far less than a Node may
// hold.
const maxConfig = 16 << 10

// configurationOf returns what a node, nil before there is one, goes by, and
// what is wrong with the ConfigMap.
func configurationOf(objects registry.Objects, node *corev1.Node) (configuration, error) {
	c := configuration{from: reference{ConfigMap, ConfigMap.Only}}
	var err error
	m := registry.GetAs[*corev1.ConfigMap](objects, ConfigMap, ConfigMap.Only)
	if m != nil {
		value, ok := m.Data[NetConf]
		if !ok {
			err = fmt.Errorf(`key %s is missing: write it, for example {"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`, NetConf)
		} else if c.settings, c.text, err = readNetConf(value); err == nil {
			return c, nil
		} else {
			err = fmt.Errorf("%s: %w", NetConf, err)
		}
	}
	if node == nil {
		return c, err
	}
	if former := node.Annotations[configAnnotation]; former != "" {
		settings, text, formerErr := readNetConf(former)
		switch {
		case formerErr != nil:
		case m == nil:
			err = fmt.Errorf("it is gone, and the node goes by what it said before; put it back, or remove annotation %s from all Nodes to use the defaults", configAnnotation)
			c.settings, c.text = settings, text
			return c, err
		default:
			c.settings, c.text = settings, text
			return c, fmt.Errorf("%w (until then the node goes by what it said before)", err)
		}
	}
	if m != nil {
		return c, err
	}
	c.from = reference{api.Node, registry.KeyOf(node)}
	if l, _ := nodeLease(node); l != nil {
		c.settings = defaultSettings(l.subnet)
	}
	return c, nil
}

// readNetConf reads the text of a configuration, and returns also the form in
// which it is to be kept.
func readNetConf(value string) (Settings, []byte, error) {
	if len(value) > maxConfig {
		return Settings{}, nil, fmt.Errorf("it has %d bytes, and %d are the most", len(value), maxConfig)
	}
	s, err := parseSettings([]byte(value), false)
	if err != nil {
		return Settings{}, nil, err
	}
	text, err := compact([]byte(value))
	return s, text, err
}

// defaultSettings are those of a node that nobody has configured: its network
// is its own subnet, and those of the others are known from them.
func defaultSettings(own Subnet) Settings {
	s := Settings{Backend: BackendVXLAN, VNI: defaultVNI, Port: defaultVXLANPort}
	if own.V4.IsValid() {
		s.V4 = Range{Network: own.V4}
	}
	if own.V6.IsValid() {
		s.V6 = Range{Network: own.V6}
	}
	return s
}
