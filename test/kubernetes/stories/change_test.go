package stories

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// connections is how many stay open between nodes over a change of the plug-in.
const connections = 200

// pluginChanged: the cluster comes to another plug-in and back, and no pod notices. Under
// flannel the other one has ranges of its own; OpenShift's two have the same.
func pluginChanged(x *story) {
	other, ranges := "openshift-networkpolicy", []netip.Prefix(nil)
	switch x.plugin {
	case "openshift-networkpolicy":
		other = "openshift-subnet"
	case "flannel":
		ranges = []netip.Prefix{netip.MustParsePrefix("10.201.0.0/16"), netip.MustParsePrefix("fd00:10:201::/56")}
		x.apply(clusterNetwork(ranges))
		x.Cleanup(func() { x.must(x.command(x.kubectl, "delete", "clusternetworks.network.openshift.io", "default")) })
	}
	const families = 2
	rate, held := betweenNodes(len(x.nodes), families, requests, connections)
	l := x.startLoad(rate, x.nodes, x.nodes, "-held", strconv.Itoa(held))
	restarts, transitions := x.restarts(), x.transitions()

	for i, name := range []string{other, x.plugin} {
		start := time.Now()
		x.must(x.command(x.weft, "plugin", "change", name, "--wait", "--timeout", patience.String()))
		x.measured("%s is used %s after it was asked for", name, time.Since(start).Round(100*time.Millisecond))
		var made []string
		for _, n := range x.nodes {
			pod := fmt.Sprintf("new%d-%s", i, n.name)
			x.run(pod, on(n))
			made = append(made, pod)
		}
		for _, pod := range made {
			addresses := x.ready(pod)
			for _, a := range addresses {
				if within := contains(ranges, a); ranges != nil && within != (name == other) {
					x.Errorf("under %s pod %s has the address %s; the ranges of %s are %v", name, pod, a, other, ranges)
				}
			}
			for _, n := range x.nodes {
				x.answered(pod, "server-"+n.name, servers(port, x.ready("server-"+n.name), "tcp", "udp"))
				x.answered("server-"+n.name, pod, servers(port, addresses, "tcp", "udp"))
			}
		}
		// Only new pods have addresses of the other plug-in, which leaves with them.
		if name == x.plugin {
			for _, n := range x.nodes {
				made = append(made, "new0-"+n.name)
			}
			x.delete(made...)
			x.eventually("there is one plug-in again", patience, func() error {
				out, err := x.command(x.weft, "plugin", "status")
				if err == nil && !strings.Contains(out, "Settled: ") {
					err = errors.New(out)
				}
				return err
			})
		}
		l.undisturbed(fmt.Sprintf("%d connections, %s", len(l.pods)*families*len(x.nodes)*held, name), start, time.Now())
	}
	if now := x.restarts(); now != restarts {
		x.Errorf("containers were started anew: %d times before and %d after", restarts, now)
	}
	if now := x.transitions(); now != transitions {
		x.Errorf("nodes were not ready meanwhile: conditions changed last at\n%s, and before at\n%s", now, transitions)
	}
	x.inOrder(x.nodes...)
	x.eventually("weft status says that all is well", patience, func() error {
		out, err := x.command(x.weft, "status")
		if err == nil && !strings.Contains(out, "Plug-in "+x.plugin) {
			err = errors.New("it has another plug-in")
		}
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
}

// clusterNetwork is OpenShift's configuration of some ranges, of one family each.
func clusterNetwork(ranges []netip.Prefix) string {
	var b strings.Builder
	b.WriteString("apiVersion: network.openshift.io/v1\nkind: ClusterNetwork\nmetadata: {name: default}\n")
	fmt.Fprintf(&b, "network: %s\nhostsubnetlength: 8\nserviceNetwork: \"\"\nclusterNetworks:\n", ranges[0])
	for _, p := range ranges {
		bits := 8
		if p.Addr().Is6() {
			bits = 64
		}
		fmt.Fprintf(&b, "- {CIDR: \"%s\", hostSubnetLength: %d}\n", p, bits)
	}
	return b.String()
}

func contains(ranges []netip.Prefix, a netip.Addr) bool {
	for _, p := range ranges {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// transitions says when what pods go by changed last: whether the nodes are ready and have
// a network.
func (x *story) transitions() string {
	x.Helper()
	list, err := x.kube.CoreV1().Nodes().List(x.Context(), metav1.ListOptions{})
	if err != nil {
		x.Fatal(err)
	}
	var b strings.Builder
	for _, n := range list.Items {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady || c.Type == corev1.NodeNetworkUnavailable {
				fmt.Fprintf(&b, "%s %s=%s %s\n", n.Name, c.Type, c.Status, c.LastTransitionTime)
			}
		}
	}
	return b.String()
}

// restarts is how often containers of the story's pods were started anew.
func (x *story) restarts() (n int32) {
	x.Helper()
	for _, node := range x.nodes {
		pod, err := x.pod("server-" + node.name)
		if err != nil {
			x.Fatal(err)
		}
		for _, c := range pod.Status.ContainerStatuses {
			n += c.RestartCount
		}
	}
	return n
}
