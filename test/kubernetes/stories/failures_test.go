package stories

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/test/kubernetes/cluster"
	"github.com/weftnet/weft/test/kubernetes/controlplane"
)

// requests is how many requests a second must not notice anything.
const requests = 1000

// agentsDie: agents are killed, and in the whole story replaced, and kubelets
// and runtimes killed, under load.
func (s *stage) agentsDie(short bool) func(*story) {
	return func(x *story) {
		l := x.startLoad(requests, x.nodes[:2], x.nodes)
		step := func(what string, f func()) {
			start := time.Now()
			f()
			l.undisturbed(what, start, time.Now())
		}
		step("SIGKILL of each agent in turn", func() {
			for _, n := range x.nodes {
				before, err := n.processes("weft-agent")
				if err != nil || len(before) == 0 {
					x.Fatalf("agents on %s: %v, %v", n.name, before, err)
				}
				if _, err := n.kill("weft-agent"); err != nil {
					x.Fatal(err)
				}
				x.agentBack(n, before)
			}
		})
		x.inOrder(x.nodes...)
		if short {
			return
		}
		step("rolling upgrade of the agents", func() {
			before := make(map[*node][]int)
			for _, n := range x.nodes {
				before[n], _ = n.processes("weft-agent")
			}
			x.must(x.command(x.kubectl, "rollout", "restart", "-n", system, "daemonset/weft-agent"))
			x.must(x.command(x.kubectl, "rollout", "status", "-n", system, "daemonset/weft-agent", "--timeout="+patience.String()))
			for _, n := range x.nodes {
				x.agentBack(n, before[n])
			}
		})
		step("SIGKILL of each kubelet and containerd", func() {
			for _, n := range x.nodes {
				for _, name := range []string{"kubelet", "containerd"} {
					if err := x.cluster.KillProcess(x.Context(), n.name, name); err != nil {
						x.Fatal(err)
					}
				}
			}
			for i, n := range x.nodes {
				name := fmt.Sprint("after", i)
				x.run(name, on(n))
				x.ready(name)
			}
		})
		x.inOrder(x.nodes...)
	}
}

// apiServerAway: what runs goes on, what ends is cleaned up, and what the node
// starts by itself has a network.
func (s *stage) apiServerAway(away time.Duration) func(*story) {
	return func(x *story) {
		n := x.nodes[2]
		l := x.startLoad(requests, x.nodes[:2], x.nodes)
		ends := x.static(n, "ends")
		x.ready(ends)
		x.run("victim", on(n))
		x.ready("victim")
		old, err := n.attachment(x.namespace, "victim")
		if err != nil {
			x.Fatal(err)
		}

		start := time.Now()
		bringBack := x.stopAPIServer()
		x.removeStatic(n, "ends")
		x.eventually("a pod that ends while the API server is away is cleaned up", patience, func() error {
			if a, err := n.attachment(x.namespace, ends); err == nil {
				return fmt.Errorf("the journal has %v", a.Addresses)
			}
			return nil
		})
		x.measured("%s after the API server went, the pod that ended is cleaned up", time.Since(start).Round(time.Second))
		begins := x.static(n, "begins")
		x.answersLocally(n, begins)
		x.measured("%s after, a static pod that began answers", time.Since(start).Round(time.Second))
		x.killSandbox(n, old.ContainerID)
		x.replaced(n, "victim", old.ContainerID)
		x.answersLocally(n, "victim")
		x.measured("%s after, a pod whose sandbox was killed answers at its new address", time.Since(start).Round(time.Second))

		x.eventually("the API server was away for "+away.String(), away+time.Minute, func() error {
			if left := away - time.Since(start); left > 0 {
				return fmt.Errorf("%s are left", left)
			}
			return nil
		})
		bringBack()
		x.measured("%s after, it is back", time.Since(start).Round(time.Second))
		again := time.Now()
		x.run("new", on(x.nodes[0]))
		x.ready("new")
		x.measured("and a new pod is ready %s later", time.Since(again).Round(time.Second))
		l.undisturbed("the API server away for "+away.String(), start, time.Now())
		x.ready(begins)
		x.ready("victim")
		x.removeStatic(n, "begins")
		x.eventually("weft status says that all is well", patience, func() error {
			out, err := x.command(x.weft, "status")
			if err != nil {
				return fmt.Errorf("%w\n%s", err, out)
			}
			return nil
		})
		x.inOrder(x.nodes...)
	}
}

// stopAPIServer ends the API server until the function it returns, or else the
// end of the story, has started it again.
func (x *story) stopAPIServer() (start func()) {
	x.Helper()
	if err := x.cluster.KillProcess(x.Context(), cluster.ControlPlane, string(controlplane.APIServer)); err != nil {
		x.Fatal(err)
	}
	begin := sync.OnceValue(func() error {
		return x.cluster.StartProcess(context.Background(), cluster.ControlPlane, string(controlplane.APIServer))
	})
	x.Cleanup(func() {
		if err := begin(); err != nil {
			x.Error(err)
		}
	})
	if out, err := x.command(x.kubectl, "get", "nodes", "--request-timeout=2s"); err == nil {
		x.Fatalf("the API server answers though it was killed: %s", out)
	}
	return func() {
		x.Helper()
		began := time.Now()
		if err := begin(); err != nil {
			x.Fatal(err)
		}
		x.eventually("the API server answers", patience, func() error {
			_, err := x.command(x.kubectl, "get", "--raw=/readyz")
			return err
		})
		x.beginnings = append(x.beginnings, span{began, time.Now()})
	}
}

// answersLocally waits until a pod that the API server need not know answers,
// at the addresses in the journal, to its node and to another.
func (x *story) answersLocally(n *node, pod string) {
	x.Helper()
	x.eventually("pod "+pod+" answers", patience, func() error {
		a, err := n.attachment(x.namespace, pod)
		if err != nil {
			return err
		}
		urls := servers(port, a.Addresses, "tcp", "udp")
		for _, r := range slices.Concat(x.askFrom(n, urls...), x.askFrom(x.nodes[0], urls...)) {
			if r.Error != "" || r.By != pod {
				return fmt.Errorf("%s: answered by %q %s", r.To, r.By, r.Error)
			}
		}
		return nil
	})
}

// nodeDies: a node is killed with all that runs on it and started again.
func nodeDies(x *story) {
	n, others := x.nodes[2], x.nodes[:2]
	l := x.startLoad(requests, others, others)
	x.run("one", on(n))
	x.run("two", on(n), atHostPort(8095, ""))
	x.ready("one")
	x.ready("two")
	x.settled()
	x.inOrder(others...)
	before := make(map[*node]Inventory)
	for _, m := range others {
		i, err := m.inventory()
		if err != nil {
			x.Fatal(err)
		}
		before[m] = i
	}
	start := time.Now()
	if err := x.cluster.KillNode(x.Context(), n.name); err != nil {
		x.Fatal(err)
	}
	if replies := x.askFrom(others[0], servers(10250, n.addresses, "tcp")...); replies[0].Error == "" {
		x.Fatalf("%s is killed and answers", n.name)
	}
	if err := x.cluster.StartNode(x.Context(), n.name); err != nil {
		x.Fatal(err)
	}
	killed := start
	// What the API server said of the node and its pods before holds until the
	// kubelet says otherwise.
	for _, name := range []string{"one", "two"} {
		x.eventually("pod "+name+" runs again", 2*patience, func() error {
			p, err := x.pod(name)
			if err != nil {
				return err
			}
			if err := isReady(p); err != nil {
				return err
			}
			if s := p.Status.ContainerStatuses[0]; s.State.Running == nil || s.State.Running.StartedAt.Time.Before(killed.Truncate(time.Second)) {
				return errors.New("its container is that of before")
			}
			return nil
		})
		for _, m := range others {
			for _, r := range x.askFrom(m, servers(port, x.ready(name), "tcp", "udp")...) {
				if r.Error != "" || r.By != name {
					x.Errorf("%s asks %s at %s: answered by %q %s", m.name, name, r.To, r.By, r.Error)
				}
			}
		}
	}
	x.measured("%s after SIGKILL of a node its pods are back", time.Since(start).Round(time.Second))
	l.undisturbed("SIGKILL of the third node", start, time.Now())
	x.inOrder(x.nodes...)
	for m, was := range before {
		now, err := m.inventory()
		if err != nil {
			x.Fatal(err)
		}
		if more, less := now.Since(was); len(more)+len(less) > 0 {
			x.Errorf("on %s, which was not touched, there is more: %q, and less: %q", m.name, more, less)
		}
	}
}

// refusals: objects that cannot be are refused with the reason.
func refusals(x *story) {
	for _, bad := range []struct{ object, says string }{
		{"apiVersion: weft.network/v1\nkind: ClusterConfig\nmetadata: {name: default}\nspec: {vxlanPort: 70000}", "vxlanPort"},
		{"apiVersion: weft.network/v1\nkind: ClusterConfig\nmetadata: {name: default}\nspec: {mtu: 12}", "mtu"},
		{"apiVersion: weft.network/v1\nkind: ClusterConfig\nmetadata: {name: other}\nspec: {}", "default"},
		{"apiVersion: weft.network/v1\nkind: ClusterConfig\nmetadata: {name: default}\nspec: {plugn: flannel}", "plugn"},
		{"apiVersion: network.openshift.io/v1\nkind: HostSubnet\nmetadata: {name: nowhere}\nhost: elsewhere\nhostIP: 10.0.0.1\nsubnet: 10.1.0.0/24", "nowhere"},
		{"apiVersion: network.openshift.io/v1\nkind: HostSubnet\nmetadata: {name: nowhere}\nhost: nowhere\nhostIP: 10.0.0.300\nsubnet: 10.1.0.0/24", "IP address"},
		{"apiVersion: network.openshift.io/v1\nkind: HostSubnet\nmetadata: {name: nowhere}\nhost: nowhere\nhostIP: 10.0.0.1\nsubnet: 10.1.0.1/24", "host bits"},
		{"apiVersion: network.openshift.io/v1\nkind: ClusterNetwork\nmetadata: {name: other}\nclusterNetworks: [{CIDR: 10.1.0.0/16}]", "default"},
		{"apiVersion: network.openshift.io/v1\nkind: ClusterNetwork\nmetadata: {name: default}\nclusterNetworks: [{CIDR: 10.1.0.0/16}, {CIDR: 10.1.128.0/17}]", "overlap"},
		{"apiVersion: network.openshift.io/v1\nkind: ClusterNetwork\nmetadata: {name: default}\nclusterNetworks: [{CIDR: ten}]", "CIDR"},
	} {
		// Where the object is there already, apply changes it; both are refused.
		out, err := x.commandWith(bad.object, x.kubectl, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
		if err == nil {
			x.Errorf("this is taken:\n%s\n%s", bad.object, out)
			continue
		}
		x.Log(err)
		if !strings.Contains(err.Error(), bad.says) {
			x.Errorf("of\n%s\nit says %v, and not %q", bad.object, err, bad.says)
		}
	}
}

// rightsMissing: an agent that may not do what it must, or for which a kind is
// missing, says so and goes on when it may.
func rightsMissing(x *story) {
	x.refused = true
	n := x.nodes[2]
	x.run("a", on(n))
	x.run("client", on(x.nodes[0]))
	x.ready("client")
	a := x.ready("a")

	// says restarts the agent, waits until it says what it lacks, and has the
	// pods reach each other all the same.
	says := func(words ...string) {
		x.Helper()
		if _, err := n.kill("weft-agent"); err != nil {
			x.Fatal(err)
		}
		x.eventually(fmt.Sprintf("/readyz says %q", words), patience, func() error {
			text, status, err := n.agent("/readyz")
			if err != nil {
				return err
			}
			for _, w := range words {
				if status == 200 || !strings.Contains(text, w) {
					return fmt.Errorf("it says %d %s", status, text)
				}
			}
			x.Logf("/readyz says: %s", strings.TrimSpace(text))
			return nil
		})
		x.eventually(fmt.Sprintf("the log says %q", words), patience, func() error {
			log, err := x.agentLog(n, 200)
			if err != nil {
				return err
			}
			for _, w := range words {
				if !strings.Contains(log, w) {
					return errors.New(tail(log, 10))
				}
			}
			return nil
		})
		for _, r := range x.ask("client", servers(port, a, "tcp", "udp")...) {
			if r.Error != "" || r.By != "a" {
				x.Errorf("while the agent is not ready, %s is answered by %q %s", r.To, r.By, r.Error)
			}
		}
	}
	recovers := func() {
		x.Helper()
		x.eventually("the agent is ready again by itself", patience, n.agentReady)
	}

	role := bare(x.must(x.command(x.kubectl, "get", "clusterrole", "weft-agent", "-o", "json")))
	restore := sync.OnceFunc(func() {
		if _, err := x.commandWith(role, x.kubectl, "replace", "-f", "-"); err != nil {
			x.Error(err)
		}
	})
	x.Cleanup(restore)
	x.must(x.command(x.kubectl, "patch", "clusterrole", "weft-agent", "--type=json", `-p=[{"op":"replace","path":"/rules","value":[]}]`))
	says("nodes", "weft-agent")
	restore()
	recovers()
	x.inOrder(n)
}

// bare returns an object in JSON without what the API server adds, so that it
// can be made again.
func bare(text string) string {
	var o map[string]any
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return text // and kubectl says what is wrong with it
	}
	if meta, ok := o["metadata"].(map[string]any); ok {
		for _, key := range []string{"resourceVersion", "uid", "creationTimestamp", "generation", "managedFields", "deletionTimestamp", "finalizers"} {
			delete(meta, key)
		}
	}
	delete(o, "status")
	out, err := json.Marshal(o)
	if err != nil {
		return text
	}
	return string(out)
}

// kindMissing is told as the last one: with a kind go its objects.
func kindMissing(x *story) {
	x.refused = true
	n := x.nodes[2]
	const crd = "clusterconfigs.weft.network"
	definition := bare(x.must(x.command(x.kubectl, "get", "crd", crd, "-o", "json")))
	object := bare(x.must(x.command(x.kubectl, "get", "clusterconfig", "default", "-o", "json")))
	x.must(x.command(x.kubectl, "delete", "crd", crd))
	if _, err := n.kill("weft-agent"); err != nil {
		x.Fatal(err)
	}
	x.eventually("/readyz and the log name what is missing", patience, func() error {
		text, status, err := n.agent("/readyz")
		if err != nil {
			return err
		}
		log, err := x.agentLog(n, 200)
		if err != nil {
			return err
		}
		if status == 200 || !strings.Contains(text, "clusterconfigs") || !strings.Contains(log, "clusterconfigs") {
			return fmt.Errorf("/readyz says %d %s, the log\n%s", status, text, tail(log, 5))
		}
		x.Logf("/readyz says: %s", strings.TrimSpace(text))
		return nil
	})
	x.must(x.commandWith(definition, x.kubectl, "create", "-f", "-"))
	x.eventually("the kind is served", patience, func() error {
		_, err := x.commandWith(object, x.kubectl, "apply", "-f", "-")
		return err
	})
	x.eventually("the agent is ready again by itself", patience, n.agentReady)
	x.run("a", on(n))
	x.ready("a")
}

// uninstalled: what Weft made is gone from the nodes, and nothing else.
func uninstalled(x *story) {
	if x.before == nil {
		x.Skip("what was on the nodes before Weft is not known: the cluster was up already")
	}
	// It refuses while pods have their network from it.
	x.run("last", on(x.nodes[0]))
	x.ready("last")
	if out, err := x.command(x.weft, "uninstall", "--yes"); err == nil {
		x.Fatalf("it does not refuse while there are pods: %s", out)
	} else {
		x.Log(err)
	}
	x.delete("last")
	x.eventually("no pod has its network from Weft", patience, func() error {
		for _, n := range x.nodes {
			if pods, err := x.podsOn(x.Context(), n); err != nil || len(pods) > 0 {
				return fmt.Errorf("on %s are %v %v", n.name, pods, err)
			}
		}
		return nil
	})
	out := x.must(x.command(x.weft, "uninstall", "--yes"))
	x.Log(out)
	x.eventually("no node is offered a network", patience, func() error {
		list, err := x.kube.CoreV1().Pods(system).List(x.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d pods are in %s", len(list.Items), system)
		}
		return err
	})
	for i, n := range x.nodes {
		now, err := n.inventory()
		if err != nil {
			x.Fatal(err)
		}
		more, less := now.Since(x.before[i])
		// Forwarding stays on, since others may rely on it by now, and a node
		// that forwards IPv6 has the routers' anycast addresses.
		more = slices.DeleteFunc(more, func(line string) bool { return strings.HasPrefix(line, "route6 anycast ") })
		x.measured("%s has after all %d things more than before Weft, and lacks %d", n.name, len(more), len(less))
		if len(more)+len(less) > 0 {
			x.Errorf("on %s there is more than before Weft was installed: %q, and less: %q", n.name, more, less)
		}
	}
}
