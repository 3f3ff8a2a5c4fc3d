package stories

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/test/kubernetes/traffic"
)

// isUp: the cluster says that its network is, and so does Weft.
func isUp(x *story) {
	x.eventually("all nodes are ready and take pods", patience, func() error {
		list, err := x.kube.CoreV1().Nodes().List(x.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != len(x.nodes) {
			return fmt.Errorf("there are %d nodes, not %d", len(list.Items), len(x.nodes))
		}
		for _, n := range list.Items {
			want := map[corev1.NodeConditionType]corev1.ConditionStatus{corev1.NodeReady: corev1.ConditionTrue, corev1.NodeNetworkUnavailable: corev1.ConditionFalse}
			for _, c := range n.Status.Conditions {
				if want[c.Type] == c.Status {
					delete(want, c.Type)
				}
			}
			if len(want) > 0 || len(n.Spec.Taints) > 0 {
				return fmt.Errorf("%s has not the conditions %v, or has the taints %v", n.Name, want, n.Spec.Taints)
			}
		}
		return nil
	})
	x.eventually("agents and controllers are ready", patience, func() error {
		agents, err := x.kube.AppsV1().DaemonSets(system).Get(x.Context(), "weft-agent", metav1.GetOptions{})
		if err != nil {
			return err
		}
		controllers, err := x.kube.AppsV1().Deployments(system).Get(x.Context(), "weft-controller", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if a, c := agents.Status, controllers.Status; int(a.NumberReady) != len(x.nodes) || c.ReadyReplicas != 2 {
			return fmt.Errorf("%d of %d agents and %d of 2 controllers are", a.NumberReady, len(x.nodes), c.ReadyReplicas)
		}
		return nil
	})

	x.run("a", on(x.nodes[0]))
	x.run("b", on(x.nodes[1]))
	x.ready("a")
	to := x.ready("b")

	var status string
	x.eventually("weft status says that all is well", patience, func() (err error) {
		status, err = x.command(x.weft, "status")
		if err != nil {
			return fmt.Errorf("%w\n%s", err, status)
		}
		return nil
	})
	for _, want := range []string{"No problems.", "Plug-in " + x.plugin, x.nodes[0].name, x.nodes[2].addresses[0].String()} {
		if !strings.Contains(status, want) {
			x.Errorf("weft status does not say %q:\n%s", want, status)
		}
	}
	why := x.must(x.command(x.weft, "why", "-n", x.namespace, "a", "b", "--port", fmt.Sprint(port)))
	if !strings.Contains(strings.ToLower(why), "allowed") {
		x.Errorf("weft why says\n%s", why)
	}
	x.Logf("weft why a b says\n%s", why)
	pods := x.must(x.command(x.weft, "get", "pods", "-n", x.namespace))
	nodes := x.must(x.command(x.weft, "get", "nodes"))
	for _, want := range []string{"a", "b", to[0].String()} {
		if !strings.Contains(pods, want) {
			x.Errorf("weft get pods does not say %q:\n%s", want, pods)
		}
	}
	for _, n := range x.nodes {
		if !strings.Contains(nodes, n.name) {
			x.Errorf("weft get nodes does not say %q:\n%s", n.name, nodes)
		}
	}
	if _, err := x.command(x.weft, "why", "-n", x.namespace, "a", "nobody"); exitCode(err) != 2 {
		x.Errorf("weft why to a pod that is not there ends with %v, not with exit code 2", err)
	}
	if x.plugin == "flannel" {
		flannelAnnotations(x)
	}
}

// flannelAnnotations: nodes say of themselves what flannel's own daemon says,
// and pods have addresses of the podCIDRs.
func flannelAnnotations(x *story) {
	list, err := x.kube.CoreV1().Nodes().List(x.Context(), metav1.ListOptions{})
	if err != nil {
		x.Fatal(err)
	}
	for _, n := range list.Items {
		for _, name := range []string{"backend-type", "backend-data", "kube-subnet-manager", "public-ip"} {
			if n.Annotations["flannel.alpha.coreos.com/"+name] == "" {
				x.Errorf("node %s has no annotation flannel.alpha.coreos.com/%s: %v", n.Name, name, n.Annotations)
			}
		}
		pods, err := x.podsOn(x.Context(), x.nodes[slices.IndexFunc(x.nodes, func(m *node) bool { return m.name == n.Name })])
		if err != nil {
			x.Fatal(err)
		}
		for pod, addresses := range pods {
			for _, a := range addresses {
				if !slices.ContainsFunc(n.Spec.PodCIDRs, func(cidr string) bool { return netip.MustParsePrefix(cidr).Contains(a) }) {
					x.Errorf("pod %s on %s has %s, which is in none of %v", pod, n.Name, a, n.Spec.PodCIDRs)
				}
			}
		}
	}
}

// reach: pods and nodes reach each other in both families, and each sees the
// other's own address.
func reach(x *story) {
	pods := map[string]*node{"a": x.nodes[0], "near": x.nodes[0], "b": x.nodes[1], "c": x.nodes[2]}
	probe := map[string]corev1.ProbeHandler{"a": byHTTP, "near": byTCP, "b": byTCP, "c": byHTTP}
	for name, n := range pods {
		x.run(name, on(n), probed(probe[name]))
	}
	for i, n := range x.nodes {
		x.run(fmt.Sprint("host", i+1), on(n), onHost(7100))
	}
	addresses := make(map[string][]netip.Addr)
	for name := range pods {
		addresses[name] = x.ready(name) // as the probes say
		x.dualStack("pod "+name, addresses[name])
	}
	for i, n := range x.nodes {
		name := fmt.Sprint("host", i+1)
		if got := x.ready(name); !slices.Equal(got, n.addresses) {
			x.Errorf("pod %s on %s's network has %v, not %v", name, n.name, got, n.addresses)
		}
		if a, err := n.attachment(x.namespace, name); err == nil {
			x.Errorf("pod %s on %s's network has the attachment %+v", name, n.name, a)
		}
	}

	var asked int
	for from, own := range addresses {
		var urls []string
		by := make(map[string]string)
		add := func(name string, more []string) {
			urls = append(urls, more...)
			for _, u := range more {
				by[u] = name
			}
		}
		for to, its := range addresses {
			add(to, servers(port, its, "tcp", "udp"))
		}
		for _, n := range x.nodes {
			add(n.name, servers(7100, n.addresses, "tcp", "udp"))
		}
		for _, r := range x.ask(from, urls...) {
			asked++
			_, at, _ := strings.Cut(r.To, "://")
			if want := ofFamily(own, netip.MustParseAddrPort(at).Addr()); r.Error != "" || r.By != by[r.To] || r.Seen != want {
				x.Errorf("%s asks %s at %s: answered by %q, which saw %s and not %s %s", from, by[r.To], r.To, r.By, r.Seen, want, r.Error)
			}
		}
	}
	for _, n := range x.nodes {
		for name, its := range addresses {
			for _, r := range x.askFrom(n, servers(port, its, "tcp", "udp")...) {
				asked++
				if r.Error != "" || r.By != name {
					x.Errorf("%s asks %s at %s: answered by %q %s", n.name, name, r.To, r.By, r.Error)
				}
			}
		}
	}
	x.measured("%d questions over TCP and UDP, IPv4 and IPv6, between pods and nodes", asked)
}

// hostPorts: a pod is reached at ports of its node, until it is gone.
func hostPorts(x *story) {
	from, at := x.nodes[0], x.nodes[1]
	x.run("client", on(x.nodes[2]))
	x.run("web", on(at), atHostPort(8090, ""))
	x.ready("client")
	x.ready("web")
	// answered says who else than one pod answers at some URLs, from a node or
	// from the pod client.
	answered := func(by string, who *node, urls []string) error {
		replies, name := []traffic.Reply(nil), "the pod"
		if who != nil {
			replies, name = x.askFrom(who, urls...), who.name
		} else {
			replies = x.ask("client", urls...)
		}
		var errs []error
		for _, r := range replies {
			if r.By != by {
				errs = append(errs, fmt.Errorf("%s asks %s: answered by %q and not %q %s", name, r.To, r.By, by, r.Error))
			}
		}
		return errors.Join(errs...)
	}
	everybody := func(by string) error {
		urls := servers(8090, at.addresses, "tcp", "udp")
		return errors.Join(answered(by, from, urls), answered(by, at, urls), answered(by, nil, urls))
	}
	x.eventually("web answers at its host port", time.Minute, func() error { return everybody("web") })

	// The same port at two addresses of the node.
	loopback := netip.MustParseAddr("127.0.0.1")
	x.run("one", on(at), atHostPort(8091, at.addresses[0].String()))
	x.run("other", on(at), atHostPort(8091, loopback.String()))
	x.ready("one")
	x.ready("other")
	x.eventually("each answers at its own address", time.Minute, func() error {
		return errors.Join(
			answered("one", from, servers(8091, at.addresses[:1], "tcp", "udp")),
			answered("other", at, servers(8091, []netip.Addr{loopback}, "tcp")))
	})

	x.delete("web", "one", "other")
	x.eventually("the host port is free", time.Minute, func() error { return everybody("") })
	x.run("next", on(at), atHostPort(8090, ""))
	x.ready("next")
	x.eventually("the next pod has the host port", time.Minute, func() error { return everybody("next") })
}
