package cluster

import (
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/weftnet/weft/test/kubernetes/controlplane"
)

// Config says what cluster to make. The zero value of everything but Bin is a
// cluster of three nodes, in both families, without a network for pods.
type Config struct {
	// Name tells clusters on one machine apart: up to 32 lower-case letters,
	// digits and hyphens; by default "weft".
	Name string
	// Dir is the directory of all that the cluster has: certificates, logs,
	// the disks of nodes. It must not be a tmpfs that the images do not fit
	// into; by default DefaultDir(Name).
	Dir string
	// Bin is the directory of the Kubernetes programs and containerd's.
	Bin string
	// Nodes is how many nodes there are, 1 to 50; by default 3. They are
	// called node1, node2, and so on.
	Nodes int
	// Zones is over how many zones the nodes are spread in turn, each called after its first
	// node; by default each node is a zone of its own.
	Zones int
	// Images are tar files, as the images package or "make image" write them,
	// that each node's containerd is to know before its kubelet starts.
	Images []string
	// Network is what connects pods until manifests install something better.
	Network Network
	// Proxy is the mode of kube-proxy; by default "nftables". NoProxy runs none.
	Proxy string
	// PodCIDRs and ServiceCIDRs are the ranges of pods and Services, as in
	// controlplane.Config. The families of PodCIDRs are those of the nodes.
	PodCIDRs, ServiceCIDRs []netip.Prefix
	// MTU is that of the link between nodes; by default 1500 bytes.
	MTU int
	// Port is where the API server answers on the machine's 127.0.0.1; by
	// default a free one.
	Port uint16
	// DNS is who answers pods that ask for names; by default nobody.
	DNS DNS
	// Manifests are YAML files that Up applies, after which it waits for the
	// nodes to be ready.
	Manifests []string
	// Flags are added to those of a program: a component of the control plane,
	// or "containerd", "kubelet" or "kube-proxy".
	Flags map[string][]string
	// Attached ends the cluster's processes when the caller ends, however it
	// does. Otherwise the cluster stays until Down.
	Attached bool
}

// Network is what connects pods.
type Network string

const (
	// NoNetwork leaves that to the manifests; until then no node is ready.
	NoNetwork Network = ""
	// Bridge is Debian's standard CNI plug-ins, a bridge on each node, and
	// static routes between the nodes.
	Bridge Network = "bridge"
)

// DNS is who answers at the address that kubelets give pods as their name server.
type DNS string

const (
	// NoDNS is nobody.
	NoDNS DNS = ""
	// CoreDNS is a Deployment of it.
	CoreDNS DNS = "coredns"
	// NodeDNS is each node, with the name server that InstallWeft installs. Nodes have no other
	// to ask for names outside.
	NodeDNS DNS = "nodes"
)

// NoProxy is the mode of no kube-proxy at all.
const NoProxy = "none"

// DefaultName is the name of a cluster where nothing else is said.
const DefaultName = "weft"

// DefaultDir is where a cluster of that name lies when nothing else is said.
func DefaultDir(name string) string { return filepath.Join(defaultDirs, name) }

const defaultDirs = "/var/lib/weft-kubernetes"

// The underlay: one link that all nodes are on. The machine outside is on another, of prefixes
// that are as long.
var (
	underlay4 = netip.MustParsePrefix("172.30.0.0/24")
	underlay6 = netip.MustParsePrefix("fd30::/64")
	outside4  = netip.MustParsePrefix("198.51.100.0/24")
	outside6  = netip.MustParsePrefix("2001:db8::/64")
)

// The last parts of addresses on the underlay, and of those outside.
const (
	switchNumber       = 1
	outsideNumber      = 2
	controlPlaneNumber = 10 // one more address of the first node
	firstNodeNumber    = 11
)

const maxNodes = 50

// programs of a node, in the order in which they start.
const (
	containerd = "containerd"
	kubelet    = "kubelet"
	kubeProxy  = "kube-proxy"
)

var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

// withDefaults fills in what is not said, and refuses what cannot be.
func (c Config) withDefaults() (Config, error) {
	if c.Name == "" {
		c.Name = DefaultName
	}
	if !validName.MatchString(c.Name) {
		return c, fmt.Errorf("cluster name %q: use up to 32 lower-case letters, digits and hyphens", c.Name)
	}
	if c.Dir == "" {
		c.Dir = DefaultDir(c.Name)
	}
	if c.Bin == "" {
		return c, errors.New("a cluster needs a directory of programs (Bin): make kubernetes-programs")
	}
	for _, path := range append([]string{c.Dir, c.Bin}, slices.Concat(c.Images, c.Manifests)...) {
		// The last three mean something in the options of an overlay mount.
		if !filepath.IsAbs(path) || strings.ContainsAny(path, `,:\`) {
			return c, fmt.Errorf(`%s: use an absolute path without any of ,:\`, path)
		}
	}
	if c.Nodes == 0 {
		c.Nodes = 3
	}
	if c.Nodes < 1 || c.Nodes > maxNodes {
		return c, fmt.Errorf("%d nodes: use 1 to %d", c.Nodes, maxNodes)
	}
	if c.Zones == 0 {
		c.Zones = c.Nodes
	}
	if c.Zones < 1 || c.Zones > c.Nodes {
		return c, fmt.Errorf("%d zones of %d nodes: use 1 to %[2]d", c.Zones, c.Nodes)
	}
	if c.Network != NoNetwork && c.Network != Bridge {
		return c, fmt.Errorf("network %q: use %q, or none and manifests", c.Network, Bridge)
	}
	if !slices.Contains([]DNS{NoDNS, CoreDNS, NodeDNS}, c.DNS) {
		return c, fmt.Errorf("name server %q: use %q, %q or none", c.DNS, CoreDNS, NodeDNS)
	}
	if c.Proxy == "" {
		c.Proxy = "nftables"
	}
	if !slices.Contains([]string{"nftables", "iptables", NoProxy}, c.Proxy) {
		return c, fmt.Errorf("kube-proxy mode %q: use nftables, iptables or %s", c.Proxy, NoProxy)
	}
	if len(c.PodCIDRs) == 0 {
		c.PodCIDRs = controlplane.DefaultPodCIDRs
	}
	if len(c.ServiceCIDRs) == 0 {
		c.ServiceCIDRs = controlplane.DefaultServiceCIDRs
	}
	if c.PodCIDRs[0].Addr().Is4() != c.ServiceCIDRs[0].Addr().Is4() || len(c.PodCIDRs) != len(c.ServiceCIDRs) {
		return c, fmt.Errorf("pods in %v and Services in %v: give both the same families, in the same order", c.PodCIDRs, c.ServiceCIDRs)
	}
	for _, cidrs := range [][]netip.Prefix{c.PodCIDRs, c.ServiceCIDRs} {
		for _, p := range cidrs {
			if !p.IsValid() || p != p.Masked() {
				return c, fmt.Errorf("%s is not the prefix of a network", p)
			}
		}
	}
	for _, p := range c.PodCIDRs {
		if bits := nodeBits(p); p.Bits() > bits-6 {
			return c, fmt.Errorf("pods in %s: each node takes a /%d, so use a /%d or larger", p, bits, bits-6)
		}
	}
	if c.MTU == 0 {
		c.MTU = 1500
	}
	if c.MTU < 1280 || c.MTU > 65535 {
		return c, fmt.Errorf("MTU %d: use 1280 to 65535 bytes", c.MTU)
	}
	return c, nil
}

// Node is a node of a cluster.
type Node struct {
	// Name is that of the Node object too.
	Name string
	// Addresses are those on the underlay, one for each family.
	Addresses []netip.Addr
	// PodCIDRs are the subnets that the bridge network gives the node.
	PodCIDRs []netip.Prefix
	number   int
}

// nodes lists the nodes.
func (c Config) nodes() []Node {
	var out []Node
	for i := range c.Nodes {
		n := Node{Name: fmt.Sprintf("node%d", i+1), number: firstNodeNumber + i, Addresses: c.addresses(firstNodeNumber + i)}
		for _, p := range c.PodCIDRs {
			n.PodCIDRs = append(n.PodCIDRs, subnet(p, nodeBits(p), i+1))
		}
		out = append(out, n)
	}
	return out
}

// zone is the zone that a node is in.
func (c Config) zone(n Node) string {
	return "zone-" + c.nodes()[(n.number-firstNodeNumber)%c.Zones].Name
}

// addresses returns the addresses on the underlay that end in a number, one for
// each family of pods, in that order: 172.30.0.11 and fd30::11.
func (c Config) addresses(number int) []netip.Addr {
	return c.inFamilies(underlay4, underlay6, number)
}

// inFamilies returns the addresses of two prefixes that end in a number, like addresses.
func (c Config) inFamilies(prefix4, prefix6 netip.Prefix, number int) []netip.Addr {
	var out []netip.Addr
	for _, p := range c.PodCIDRs {
		if p.Addr().Is4() {
			b := prefix4.Addr().As4()
			b[3] = byte(number)
			out = append(out, netip.AddrFrom4(b))
		} else {
			// So that the digits are those of the IPv4 address.
			out = append(out, netip.MustParseAddr(fmt.Sprintf("%s%d", prefix6.Addr(), number)))
		}
	}
	return out
}

// nodeBits is the length of a node's part of a range of pods.
func nodeBits(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 24
	}
	return 64
}

// subnet returns the i-th prefix of a length in a larger one.
func subnet(p netip.Prefix, bits, i int) netip.Prefix {
	return netip.PrefixFrom(plus(p.Addr(), i, p.Addr().BitLen()-bits), bits)
}

// plus adds i << shift to an address.
func plus(a netip.Addr, i, shift int) netip.Addr {
	n := new(big.Int).SetBytes(a.AsSlice())
	n.Add(n, new(big.Int).Lsh(big.NewInt(int64(i)), uint(shift)))
	sum, _ := netip.AddrFromSlice(n.FillBytes(make([]byte, a.BitLen()/8)))
	return sum
}

// clusterDNS is the address of the cluster's name server.
func (c Config) clusterDNS() netip.Addr { return plus(c.ServiceCIDRs[0].Addr(), 10, 0) }

// controlPlane is the configuration of the cluster's control plane, in the
// network namespace at netns.
func (c Config) controlPlane(netns string) controlplane.Config {
	out := controlplane.Config{
		Bin: c.Bin, Dir: c.controlPlaneDir(), NetNS: netns,
		Address:   c.addresses(controlPlaneNumber)[0],
		Addresses: slices.Concat(c.addresses(controlPlaneNumber), c.nodes()[0].Addresses),
		PodCIDRs:  c.PodCIDRs, ServiceCIDRs: c.ServiceCIDRs,
		Flags: make(map[controlplane.Component][]string),
	}
	for _, component := range controlplane.Components() {
		out.Flags[component] = c.Flags[string(component)]
	}
	return out
}

// What lies in a cluster's directory.
func (c Config) controlPlaneDir() string  { return filepath.Join(c.Dir, "controlplane") }
func (c Config) disk(node string) string  { return filepath.Join(c.Dir, "nodes", node, "disk") }
func (c Config) logs(node string) string  { return filepath.Join(c.Dir, "nodes", node, "log") }
func (c Config) memory() string           { return filepath.Join(c.Dir, "memory") } // a tmpfs
func (c Config) namespaces() string       { return filepath.Join(c.memory(), "ns") }
func (c Config) netns(name string) string { return filepath.Join(c.namespaces(), name) }
func (c Config) root(node string) string  { return filepath.Join(c.memory(), "root", node) }
func (c Config) upper(node string) string { return filepath.Join(c.memory(), "upper", node) }
func (c Config) work(node string) string  { return filepath.Join(c.memory(), "work", node) }
func configFile(dir string) string        { return filepath.Join(dir, "cluster.json") }
func recordFile(dir string) string        { return filepath.Join(dir, "supervisor.json") }
func supervisorLog(dir string) string     { return filepath.Join(dir, "supervisor.log") }
func socketFile(dir string) string        { return filepath.Join(dir, "control.sock") }
func kubeconfigFile(dir string) string    { return filepath.Join(dir, "kubeconfig") }
