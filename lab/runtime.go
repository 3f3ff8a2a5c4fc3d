package lab

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/weftnet/weft/api"
)

// attachTimeout bounds a CNI call, as a container runtime would.
const attachTimeout = 60 * time.Second

// pluginDirs are where CNI plug-ins that a chain may name lie, besides the
// directory of weft-cni.
var pluginDirs = []string{"/opt/cni/bin", "/usr/lib/cni"}

// cni calls f, in the node's namespaces, with what a container runtime has of
// CNI there: the node's network configuration, which its agent has written.
func (l *Lab) cni(ctx context.Context, command string, r podRecord, f func(context.Context, *libcni.CNIConfig, *libcni.NetworkConfigList, *libcni.RuntimeConf) error) error {
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	defer l.sayIfSlow(func() string { return l.waitsFor(command, r) })()
	return l.onNode(r.Node, func() error {
		files, err := libcni.ConfFiles(nodeCNI, []string{".conflist"})
		if err != nil {
			return err
		}
		if len(files) == 0 {
			return fmt.Errorf("node %s has no CNI configuration yet: its agent is not ready (see: weft status)", r.Node)
		}
		list, err := libcni.ConfListFromFile(files[0])
		if err != nil {
			return err
		}
		path := append([]string{filepath.Dir(l.options.Weft)}, pluginDirs...)
		return f(ctx, libcni.NewCNIConfigWithCacheDir(path, nodeCache, nil), list, &libcni.RuntimeConf{
			ContainerID: r.ContainerID, NetNS: r.network(), IfName: "eth0",
			Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", r.Namespace}, {"K8S_POD_NAME", r.Name},
				{"K8S_POD_INFRA_CONTAINER_ID", r.ContainerID}, {"K8S_POD_UID", r.UID}},
			CapabilityArgs: capabilityArgs(r.Pod),
		})
	})
}

// capabilityArgs are what a container runtime hands to CNI plug-ins that say they can do it:
// ports of the node that lead to the pod, and limits of its bandwidth in bit/s. See CNI's
// CONVENTIONS, "Dynamic Plugin specific fields".
func capabilityArgs(p Pod) map[string]any {
	args := make(map[string]any)
	var mappings []map[string]any
	for _, port := range p.ports() {
		if port.HostPort != 0 {
			mappings = append(mappings, map[string]any{"hostPort": port.HostPort, "containerPort": port.ContainerPort,
				"protocol": strings.ToLower(string(port.Protocol)), "hostIP": port.HostIP})
		}
	}
	if mappings != nil {
		args["portMappings"] = mappings
	}
	// Run refuses annotations that cannot be.
	if s, err := api.PodNetwork(p.object()); err == nil && s != (api.PodSettings{}) {
		// containerd gives the greatest burst there is.
		const burst = math.MaxInt32
		limits := make(map[string]any)
		if s.Ingress != 0 {
			limits["ingressRate"], limits["ingressBurst"] = s.Ingress, burst
		}
		if s.Egress != 0 {
			limits["egressRate"], limits["egressBurst"] = s.Egress, burst
		}
		args["bandwidth"] = limits
	}
	return args
}

// waitsFor says what keeps a CNI call for a pod.
func (l *Lab) waitsFor(command string, r podRecord) string {
	if l.PID(r.Node) == 0 {
		return fmt.Sprintf("pod %s: %s waits for the agent of %s, which does not run: start it with: weft lab start-node %s", r.key(), command, r.Node, r.Node)
	}
	return fmt.Sprintf("pod %s: %s waits for the agent of %s to answer (see: weft status)", r.key(), command, r.Node)
}

// attach gives a pod's namespace its network and returns its addresses.
func (l *Lab) attach(ctx context.Context, r podRecord) (addresses []netip.Addr, err error) {
	err = l.cni(ctx, "CNI ADD", r, func(ctx context.Context, c *libcni.CNIConfig, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) error {
		result, err := c.AddNetworkList(ctx, list, rt)
		if err != nil {
			return fmt.Errorf("CNI ADD on %s: %w", r.Node, err)
		}
		res, err := current.NewResultFromResult(result)
		if err != nil {
			return fmt.Errorf("CNI ADD on %s: %w", r.Node, err)
		}
		for _, ip := range res.IPs {
			if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
				addresses = append(addresses, a.Unmap())
			}
		}
		if len(addresses) == 0 {
			return fmt.Errorf("CNI ADD on %s gave no address", r.Node)
		}
		return nil
	})
	return addresses, err
}

// detach undoes attach, also when that came to nothing.
func (l *Lab) detach(ctx context.Context, r podRecord) error {
	return l.cni(ctx, "CNI DEL", r, func(ctx context.Context, c *libcni.CNIConfig, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) error {
		if err := c.DelNetworkList(ctx, list, rt); err != nil {
			return fmt.Errorf("CNI DEL on %s: %w", r.Node, err)
		}
		return nil
	})
}
