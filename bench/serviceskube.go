package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/plugin/openshift"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/kubernetes"
	"github.com/weftnet/weft/test/kubernetes/controlplane"
)

// kubeProxyModes are kube-proxy's own words.
var kubeProxyModes = map[string]string{byNftables: "nftables", byIptables: "iptables"}

// kubeCluster is an API server, and a lab that leaves Services to kube-proxy, with a node for each
// number of Services and mode of kube-proxy. So all else on the way of a packet is Weft's, as on
// the nodes that it is compared with.
type kubeCluster struct {
	// bin is where kube-proxy is.
	bin, dir string

	hand   handmade
	plane  *controlplane.ControlPlane
	reg    *kubernetes.Registry
	lab    *cluster
	loaded [][]*serviceNode
}

func (c *kubeCluster) registry() registry.Registry { return c.reg }

func (c *kubeCluster) nodes(i int) []*serviceNode { return c.loaded[i] }

// ready has nothing to wait for: what an API server has taken has its address.
func (c *kubeCluster) ready(context.Context, int) error { return nil }

func (c *kubeCluster) close() error {
	var err error
	if c.lab != nil {
		err = c.lab.close()
	}
	if c.reg != nil {
		c.reg.Close()
	}
	if c.plane != nil {
		c.plane.Stop()
	}
	c.hand.close()
	return errors.Join(err, os.RemoveAll(c.dir))
}

// plane is the namespace of the API server.
const plane = "control plane"

// apiServer is the address of the API server, on the bridge that all nodes are on.
var apiServer = netip.MustParseAddr("172.31.0.1")

// kubePlane makes the API server. Without the programs there is none.
func (s settings) kubePlane(ctx context.Context) (_ *kubeCluster, err error) {
	c := &kubeCluster{}
	if c.bin, err = s.kubernetesPrograms("etcd", "kube-apiserver", "kube-proxy"); err != nil {
		return nil, fmt.Errorf("%w, or measure with -kube-proxy=false", err)
	}
	if c.dir, err = os.MkdirTemp("", "weft-bench-kubernetes-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	c.hand.add(plane)
	c.hand.ip(plane, fmt.Sprintf("link set lo up\nlink add br0 type bridge\naddress add %s/16 dev br0\nlink set br0 up\n", apiServer))
	if err := c.hand.done(); err != nil {
		return nil, err
	}
	if c.plane, err = controlplane.Start(ctx, controlplane.Config{Bin: c.bin, Dir: filepath.Join(c.dir, "plane"), NetNS: c.hand.workers[plane].namespace(), Address: apiServer,
		Components: []controlplane.Component{controlplane.Etcd, controlplane.APIServer}}); err != nil {
		return nil, err
	}
	if c.reg, err = kubernetes.Open(kubernetes.Config{REST: c.plane.RESTConfig(), Namespace: metav1.NamespaceDefault}); err != nil {
		return nil, err
	}
	kubeconfig, err := c.plane.Kubeconfig("system:kube-proxy")
	if err != nil {
		return nil, err
	}
	return c, os.WriteFile(filepath.Join(c.dir, "kubeconfig"), kubeconfig, 0o600)
}

// leavesServices is the configuration of a cluster that leaves Services to kube-proxy.
func leavesServices() lab.Object {
	return lab.Object{Kind: api.ClusterConfigKind, Object: &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName},
		Spec: api.ClusterConfigSpec{Plugin: servicesPlugin, ServiceProxy: api.KubeProxy}}}
}

// kubeNodes makes the API server and the nodes.
func (s settings) kubeNodes(ctx context.Context) (_ *kubeCluster, err error) {
	c, err := s.kubePlane(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	c.loaded = make([][]*serviceNode, len(s.services))
	var nodes []*serviceNode
	if c.lab, nodes, err = labNodes(ctx, s.weft, len(s.services)*len(byKubeProxy), leavesServices()); err != nil {
		return nil, err
	}
	for k, n := range nodes {
		i := k / len(byKubeProxy)
		n.by = byKubeProxy[k%len(byKubeProxy)]
		if err := c.prepare(ctx, n, k); err != nil {
			return nil, err
		}
		c.loaded[i] = append(c.loaded[i], n)
	}
	return c, nil
}

// prepare connects a node, which has a number, to the API server, and says how kube-proxy runs there.
func (c *kubeCluster) prepare(ctx context.Context, n *serviceNode, number int) error {
	address := netip.AddrFrom4([4]byte{172, 31, 1, byte(number)})
	c.hand.ip(plane, fmt.Sprintf("link add port%d master br0 type veth peer name api netns %d\nlink set port%[1]d up\n", number, n.itself.cmd.Process.Pid))
	if err := c.hand.done(); err != nil {
		return err
	}
	// What comes for a Service before kube-proxy has it leads nowhere, as by Weft. Where it left the
	// node, the kernel would remember the connection, and go on so with a later one of its port.
	if err := n.itself.run(fmt.Sprintf("address add %s/16 dev api\nlink set api up\nroute add unreachable %s\n", address, serviceNetwork), "ip", "-batch", "-"); err != nil {
		return err
	}
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.itself.name}}
	object.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.String()}}
	if n.address.IsValid() {
		object.Status.Addresses[0].Address = n.address.String()
	}
	if err := createNode(ctx, c.reg, object); err != nil {
		return err
	}
	file := filepath.Join(c.dir, n.itself.name)
	text := fmt.Sprintf(kubeProxyConfig, filepath.Join(c.dir, "kubeconfig"), kubeProxyModes[n.by], openshift.DefaultCIDR, n.itself.name)
	if err := os.WriteFile(file+".yaml", []byte(text), 0o600); err != nil {
		return err
	}
	var pid int
	n.start = func(context.Context) (err error) {
		pid, err = n.itself.start(file+".log", filepath.Join(c.bin, "kube-proxy"), "--config="+file+".yaml")
		return err
	}
	n.stop = n.itself.end
	n.pid = func() int { return pid }
	return nil
}

// createNode makes a Node with its status.
func createNode(ctx context.Context, reg registry.Registry, n *corev1.Node) error {
	if _, err := reg.Create(ctx, api.Node, n); err != nil {
		return err
	}
	return modify(ctx, reg, api.Node, registry.KeyOf(n), func(o *corev1.Node) { o.Status.Addresses = n.Status.Addresses })
}

// kubeProxyConfig is the configuration of kube-proxy, as clusters have it by default: how many
// connections are tracked is left to the machine.
const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: %s}
mode: %s
clusterCIDR: %s
hostnameOverride: %s
oomScoreAdj: 0
conntrack: {maxPerCore: 0, min: 0}
`
