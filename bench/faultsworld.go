package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
	"github.com/weftnet/weft/test/kubernetes/controlplane"
)

// The clusters in which something breaks: four nodes, of which each has two backends, and the
// first two a client. The last can be lost: nobody asks it by its NodePort.
const (
	faultNodes    = 4
	backendsEach  = 2
	faultService  = "faults"
	faultNodePort = 30080
)

// backendState is what a Service's EndpointSlice says of a backend.
type backendState int

const (
	ready backendState = iota
	draining
	unlisted
)

// faultBackend is a pod behind the Service.
type faultBackend struct {
	name, node string
	address    netip.Addr
	state      backendState
}

// faultWorld is a cluster in which something breaks.
type faultWorld struct {
	by      string
	cluster *cluster
	// kube has the API server where kube-proxy does Services, and is nil else.
	kube *kubeCluster
	// registries are all that Services and endpoints are written to.
	registries []registry.Registry
	nodes      []*serviceNode
	clients    []*worker
	fronts     [][]netip.AddrPort // of each client
	backends   []*faultBackend
	made       int // backends, ever
}

// wholeWithin is how long a cluster may take until clients come to all backends: who has lost the
// API server may look for it only now and then.
const wholeWithin = 3 * time.Minute

// newFaultWorld makes a cluster whose Services somebody does, and waits until he does.
func (s settings) newFaultWorld(ctx context.Context, by string) (_ *faultWorld, err error) {
	w := &faultWorld{by: by}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	var objects []lab.Object
	if by != byWeft {
		if w.kube, err = s.kubePlane(ctx); err != nil {
			return nil, err
		}
		objects = append(objects, leavesServices())
	}
	if w.cluster, err = bringUp(ctx, s.weft, faultNodes, servicesPlugin, objects...); err != nil {
		return nil, err
	}
	reg, err := w.cluster.lab.Registry()
	if err != nil {
		return nil, err
	}
	w.registries = append(w.registries, reg)
	if w.kube != nil {
		w.registries = append(w.registries, w.kube.reg)
	}
	for i, name := range w.cluster.lab.Nodes() {
		if err := w.addNode(ctx, i, name); err != nil {
			return nil, err
		}
	}
	for _, r := range w.registries {
		if _, err := r.Create(ctx, api.Service, faultyService()); err != nil {
			return nil, err
		}
	}
	if err := w.granted(ctx); err != nil {
		return nil, err
	}
	return w, w.whole(ctx)
}

// granted waits until the address and the ports of nodes are the Service's.
func (w *faultWorld) granted(ctx context.Context) error {
	for _, name := range []string{measuredIP.String(), service.NodePortGrant(faultNodePort, corev1.ProtocolTCP), service.NodePortGrant(faultNodePort, corev1.ProtocolUDP)} {
		if err := until(ctx, name+" is granted", func() error {
			_, err := w.registries[0].Get(ctx, service.GrantKind, registry.Key{Name: name})
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// until tries until it works, for a minute.
func until(ctx context.Context, what string, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", what, ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (w *faultWorld) addNode(ctx context.Context, i int, name string) (err error) {
	// The lab gives its nodes these addresses.
	n := &serviceNode{by: w.by, address: netip.AddrFrom4([4]byte{172, 30, 0, byte(11 + i)})}
	if n.itself, err = newWorker(name, w.cluster.network(name)); err != nil {
		return err
	}
	w.cluster.workers = append(w.cluster.workers, n.itself)
	n.start = func(ctx context.Context) error { return w.cluster.lab.StartNode(ctx, name) }
	n.pid = func() int { return w.cluster.lab.PID(name) }
	if w.kube != nil {
		if err := w.kube.prepare(ctx, n, i); err != nil {
			return err
		}
		if err := n.start(ctx); err != nil {
			return err
		}
	}
	w.nodes = append(w.nodes, n)
	if i < 2 {
		client, _, err := w.cluster.pod(ctx, "client"+name, name)
		if err != nil {
			return err
		}
		w.clients = append(w.clients, client)
		own, other := n.address, netip.AddrFrom4([4]byte{172, 30, 0, byte(12 - i)})
		clusterIP := netip.AddrPortFrom(measuredIP, uint16(httpPort.Port))
		w.fronts = append(w.fronts, []netip.AddrPort{clusterIP, netip.AddrPortFrom(own, faultNodePort), clusterIP, netip.AddrPortFrom(other, faultNodePort)})
	}
	return nil
}

func (w *faultWorld) close() error {
	var err error
	if w.kube != nil {
		for _, n := range w.nodes {
			err = errors.Join(err, n.itself.end())
		}
	}
	if w.cluster != nil {
		err = errors.Join(err, w.cluster.close())
	}
	if len(w.registries) > 0 {
		w.registries[0].Close() // that of the API server is kube's
	}
	if w.kube != nil {
		err = errors.Join(err, w.kube.close())
	}
	return err
}

// faultyService is the Service, whose endpoints are written by hand.
func faultyService() *corev1.Service {
	s := serviceAt(serviceNamespace, faultService, measuredIP.String())
	s.Spec.Type = corev1.ServiceTypeNodePort
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: strings.ToLower(string(protocol)), Protocol: protocol, Port: httpPort.Port,
			TargetPort: intstr.FromInt32(faultPort), NodePort: faultNodePort})
	}
	return s
}

// faultySlices are the Service's EndpointSlices, one of each protocol.
func faultySlices(backends []*faultBackend) (slices []*discoveryv1.EndpointSlice) {
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		s := sliceOf(serviceNamespace, faultService, strings.ToLower(string(protocol)), protocol, faultPort)
		for _, b := range backends {
			if b.state == unlisted {
				continue
			}
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{b.address.String()}, NodeName: &b.node,
				Conditions: discoveryv1.EndpointConditions{Ready: new(b.state == ready), Serving: new(true), Terminating: new(b.state == draining)}})
		}
		slices = append(slices, s)
	}
	return slices
}

// tell writes what there is of backends, as soon as it can be, and returns when that was written.
func (w *faultWorld) tell(ctx context.Context) (time.Duration, error) {
	for _, r := range w.registries {
		for _, s := range faultySlices(w.backends) {
			if err := until(ctx, "write what backends there are", func() error { return putSlice(ctx, r, s) }); err != nil {
				return 0, err
			}
		}
	}
	return clock(), nil
}

// whole has each node have its backends again, and waits until clients come to all of them.
func (w *faultWorld) whole(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	w.backends = slices.DeleteFunc(w.backends, func(b *faultBackend) bool { return b.state != ready })
	have := make(map[string]int)
	for _, b := range w.backends {
		have[b.node]++
	}
	for _, node := range w.cluster.lab.Nodes() {
		for ; have[node] < backendsEach; have[node]++ {
			w.made++
			b := &faultBackend{name: fmt.Sprintf("backend%d", w.made), node: node}
			addresses, err := w.cluster.lab.Run(ctx, lab.Pod{Name: b.name, Node: node, Command: []string{self, backendArgument, b.name}})
			if err != nil {
				return err
			}
			b.address = addresses[0]
			w.backends = append(w.backends, b)
		}
	}
	if _, err := w.tell(ctx); err != nil {
		return err
	}
	for i, c := range w.clients {
		if _, err := c.do(request{Do: doMeet, Load: loading{Fronts: w.fronts[i], Names: backendNames(w.backends)}, For: wholeWithin}); err != nil {
			return err
		}
	}
	return nil
}

func backendNames(backends []*faultBackend) (names []string) {
	for _, b := range backends {
		names = append(names, b.name)
	}
	return names
}

// oneOf returns the first backend of each of some nodes.
func (w *faultWorld) oneOf(nodes ...int) (some []*faultBackend) {
	for _, i := range nodes {
		k := slices.IndexFunc(w.backends, func(b *faultBackend) bool { return b.node == w.cluster.lab.Nodes()[i] })
		some = append(some, w.backends[k])
	}
	return some
}

// end ends backends, and all that they had.
func (w *faultWorld) end(ctx context.Context, backends []*faultBackend) error {
	var err error
	for _, b := range backends {
		err = errors.Join(err, w.cluster.lab.Delete(ctx, "", b.name))
	}
	return err
}

// kill ends the processes of backends, while nobody may be there to take away what they had.
func (w *faultWorld) kill(backends []*faultBackend) error {
	status, err := w.cluster.lab.Status()
	if err != nil {
		return err
	}
	for _, b := range backends {
		i := slices.IndexFunc(status.Pods, func(p lab.PodStatus) bool { return p.Name == b.name && p.PID != 0 })
		if i < 0 {
			return fmt.Errorf("backend %s does not run", b.name)
		}
		if err := syscall.Kill(status.Pods[i].PID, syscall.SIGKILL); err != nil {
			return fmt.Errorf("kill %s: %w", b.name, err)
		}
	}
	return nil
}

// cut takes a node's links away, or gives them back.
func (w *faultWorld) cut(i int, away bool) error {
	state := "up"
	if away {
		state = "down"
	}
	if err := w.cluster.lab.ExecOutside(lab.Command{Args: []string{"ip", "link", "set", w.cluster.lab.Nodes()[i], state}}); err != nil {
		return err
	}
	if w.kube == nil {
		return nil
	}
	w.kube.hand.ip(plane, fmt.Sprintf("link set port%d %s\n", i, state))
	return w.kube.hand.done()
}

// away ends the API server without a warning: for Weft, that is the lab's controller, with etcd
// in it.
func (w *faultWorld) away() error {
	if w.kube != nil {
		return w.kube.plane.Kill(controlplane.APIServer)
	}
	return w.cluster.lab.Kill(w.controller())
}

// back starts it again.
func (w *faultWorld) back(ctx context.Context) error {
	if w.kube != nil {
		return w.kube.plane.Restart(ctx, controlplane.APIServer)
	}
	return w.cluster.lab.Start(ctx, w.controller())
}

func (w *faultWorld) controller() string {
	daemon, _ := w.cluster.lab.RegistryRemedy()
	return daemon
}

// leaveTo leaves Services to somebody, and waits until all nodes say so.
func (w *faultWorld) leaveTo(ctx context.Context, who string) error {
	if err := modify(ctx, w.registries[0], api.ClusterConfigKind, registry.Key{Name: api.DefaultName}, func(c *api.ClusterConfig) { c.Spec.ServiceProxy = who }); err != nil {
		return err
	}
	return until(ctx, "all nodes leave Services to "+who, func() error {
		for _, name := range w.cluster.lab.Nodes() {
			o, err := w.registries[0].Get(ctx, api.Node, registry.Key{Name: name})
			if err != nil {
				return err
			}
			if said := o.GetAnnotations()[api.ServiceProxyAnnotation]; said != who {
				return fmt.Errorf("%s says %q", name, said)
			}
		}
		return nil
	})
}

// removeKubeProxy ends kube-proxy on all nodes, and has it take away what it left.
func (w *faultWorld) removeKubeProxy() error {
	for _, n := range w.nodes {
		if err := n.stop(); err != nil {
			return err
		}
	}
	for _, n := range w.nodes {
		if err := n.itself.run("", filepath.Join(w.kube.bin, "kube-proxy"), "--cleanup"); err != nil {
			return err
		}
	}
	return nil
}
