package stories

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/weftnet/weft/test/kubernetes/traffic"
)

// bandwidth: what a pod may receive and send is limited as its annotations
// say, and nonsense is refused where the user sees it.
func bandwidth(x *story) {
	x.run("server", on(x.nodes[1]))
	x.run("limited", on(x.nodes[0]), annotated("kubernetes.io/ingress-bandwidth", "10M"), annotated("kubernetes.io/egress-bandwidth", "10M"))
	x.run("free", on(x.nodes[0]))
	wrong := map[string]string{"kubernetes.io/ingress-bandwidth": "plenty", "kubernetes.io/egress-bandwidth": "1", "weft.network/no-such-thing": "x"}
	names := map[string]string{"kubernetes.io/ingress-bandwidth": "plenty", "kubernetes.io/egress-bandwidth": "little", "weft.network/no-such-thing": "unknown"}
	for annotation, value := range wrong {
		x.run(names[annotation], on(x.nodes[0]), annotated(annotation, value))
	}
	x.ready("server")
	measure := func(target string, args ...string) traffic.Moved {
		to := x.ready(target)[0]
		out := x.must(x.command(x.kubectl, append(append([]string{"exec", "-n", x.namespace, "server", "--", program, "stream", "-timeout", "2m"}, args...), fmt.Sprintf("%s:%d", to, port))...))
		var moved traffic.Moved
		if err := json.Unmarshal([]byte(out), &moved); err != nil {
			x.Fatalf("what was moved is %q: %v", out, err)
		}
		return moved
	}
	for direction, args := range map[string][]string{"to": nil, "from": {"-give"}} {
		limited := measure("limited", append(args, "-until", "12000000")...)
		free := measure("free", append(args, "-most", "50000000")...)
		x.measured("%s a pod limited to 10 Mbit/s: %.1f Mbit/s, after %d MB at full speed; one that is not limited: %.0f",
			direction, limited.Rate/1e6, limited.Before/1e6, free.Rate/1e6)
		if limited.Rate > 12e6 || limited.Rate < 4e6 || free.Rate < 30e6 {
			x.Errorf("%s a pod limited to 10 Mbit/s go %.1f Mbit/s, and one that is not %.1f", direction, limited.Rate/1e6, free.Rate/1e6)
		}
	}
	for annotation, name := range names {
		x.eventually("kubectl describe says what is wrong with "+annotation, time.Minute, func() error {
			out, err := x.command(x.kubectl, "describe", "pod", "-n", x.namespace, name)
			if err != nil {
				return err
			}
			_, events, _ := strings.Cut(out, "\nEvents:")
			if !strings.Contains(events, annotation) {
				return errors.New("events:" + events)
			}
			x.Logf("the events of %s:%s", name, tail(events, 4))
			return nil
		})
		if p, err := x.pod(name); err != nil || p.Status.Phase != corev1.PodPending || len(p.Status.PodIPs) > 0 {
			x.Errorf("pod %s: %+v, %v", name, p.Status, err)
		}
	}
}

// manifests is where the kubelet of a node finds its static pods.
const manifests = "/etc/kubernetes/manifests"

// static makes a static pod on a node and returns its name in the API.
func (x *story) static(n *node, name string) string {
	x.Helper()
	text, err := json.Marshal(x.newPod(name))
	if err != nil {
		x.Fatal(err)
	}
	path := n.path(filepath.Join(manifests, name+".json"))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		x.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		x.Fatal(err)
	}
	x.Cleanup(func() { os.Remove(n.path(filepath.Join(manifests, name+".json"))) })
	return name + "-" + n.name
}

func (x *story) removeStatic(n *node, name string) {
	x.Helper()
	if err := os.Remove(n.path(filepath.Join(manifests, name+".json"))); err != nil {
		x.Fatal(err)
	}
}

// killSandbox ends the process that holds a pod's namespaces.
func (x *story) killSandbox(n *node, id string) {
	x.Helper()
	x.must(n.exec("ctr", "-n", "k8s.io", "task", "kill", "-s", "SIGKILL", id))
}

// replaced waits until a pod has another sandbox than one that was killed.
func (x *story) replaced(n *node, pod, id string) {
	x.Helper()
	x.eventually("pod "+pod+" has another sandbox", patience, func() error {
		a, err := n.attachment(x.namespace, pod)
		if err == nil && a.ContainerID == id {
			err = errors.New("the journal has the old one")
		}
		return err
	})
}

// lives: a static pod, and a pod whose sandbox is killed.
func lives(x *story) {
	n := x.nodes[2]
	x.run("client", on(x.nodes[0]))
	x.ready("client")
	static := x.static(n, "static")
	addresses := x.ready(static)
	p, err := x.pod(static)
	if err != nil {
		x.Fatal(err)
	}
	if p.Annotations[corev1.MirrorPodAnnotationKey] == "" {
		x.Errorf("%s is no mirror of a static pod: %v", static, p.Annotations)
	}
	answers := func(name string, addresses ...string) {
		x.Helper()
		for _, r := range x.ask("client", addresses...) {
			if r.Error != "" || r.By != name {
				x.Errorf("%s at %s: answered by %q %s", name, r.To, r.By, r.Error)
			}
		}
	}
	answers(static, servers(port, addresses, "tcp", "udp")...)

	x.run("victim", on(n))
	before := x.ready("victim")
	a, err := n.attachment(x.namespace, "victim")
	if err != nil {
		x.Fatal(err)
	}
	x.killSandbox(n, a.ContainerID)
	x.replaced(n, "victim", a.ContainerID)
	x.eventually("victim is ready at its new address", patience, func() error {
		p, err := x.pod("victim")
		if err != nil {
			return err
		}
		now, err := n.attachment(x.namespace, "victim")
		if err != nil {
			return err
		}
		if got := addressesOf(p); len(got) == 0 || got[0] != now.Addresses[0] || got[0] == before[0] {
			return fmt.Errorf("the API server says %v, the journal %v, and before they were %v", got, now.Addresses, before)
		}
		return isReady(p)
	})
	answers("victim", servers(port, x.ready("victim"), "tcp", "udp")...)

	x.removeStatic(n, "static")
	x.eventually("the static pod is gone, and its address free", patience, func() error {
		if a, err := n.attachment(x.namespace, static); err == nil {
			return fmt.Errorf("the journal has %v", a)
		}
		if _, err := x.pod(static); err == nil {
			return errors.New("its mirror is there")
		}
		return nil
	})
}

const burstPods = 60

// burst: many pods on one node at once, and what of the time is Weft's.
func burst(x *story) {
	n := x.nodes[1]
	x.inOrder(n)
	before, err := n.metrics()
	if err != nil {
		x.Fatal(err)
	}
	// The API server's times are in whole seconds; those at which a watch
	// sees what happens are better.
	list, err := x.kube.CoreV1().Pods(x.namespace).List(x.Context(), metav1.ListOptions{})
	if err != nil {
		x.Fatal(err)
	}
	watching, err := x.kube.CoreV1().Pods(x.namespace).Watch(x.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		x.Fatal(err)
	}
	defer watching.Stop()
	for i := range burstPods {
		x.run(fmt.Sprint("p", i), func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.name}
			p.Spec.Containers[0].Image, p.Spec.Containers[0].Command = "registry.k8s.io/pause:3.10.1", nil
		})
	}
	scheduled, running := make(map[string]time.Time), make(map[string]time.Time)
	deadline := time.After(2 * patience)
	for len(running) < burstPods {
		select {
		case e, open := <-watching.ResultChan():
			if !open {
				x.Fatal("the watch ended")
			}
			p, ok := e.Object.(*corev1.Pod)
			if !ok || e.Type == watch.Deleted {
				x.Fatalf("the watch brings %v %v", e.Type, e.Object)
			}
			now := time.Now()
			if _, seen := scheduled[p.Name]; !seen && p.Spec.NodeName != "" {
				scheduled[p.Name] = now
			}
			if _, seen := running[p.Name]; !seen && p.Status.Phase == corev1.PodRunning {
				running[p.Name] = now
			}
		case <-deadline:
			x.Fatalf("%d of %d pods run", len(running), burstPods)
		}
	}
	var took []time.Duration
	for name, at := range running {
		took = append(took, at.Sub(scheduled[name]))
	}
	after, err := n.metrics()
	if err != nil {
		x.Fatal(err)
	}
	ok := map[string]string{"command": "ADD", "result": "ok"}
	adds := after.Durations("weft_cni_seconds", ok).Since(before.Durations("weft_cni_seconds", ok))
	all := map[string]string{"command": "ADD"}
	tried := after.Durations("weft_cni_seconds", all).Since(before.Durations("weft_cni_seconds", all))
	x.measured("%d pods from scheduled to running: p50 %s, p99 %s", burstPods, Percentile(took, 0.5).Round(10*time.Millisecond), Percentile(took, 0.99).Round(10*time.Millisecond))
	x.measured("of these in Weft (ADD): p50 %.1f ms, p99 %.1f ms, mean %.1f ms", millis(adds.Quantile(0.5)), millis(adds.Quantile(0.99)), millis(adds.Mean()))
	if adds.Count != burstPods || tried.Count != burstPods {
		x.Errorf("%d of %d ADDs went well for %d pods", adds.Count, tried.Count, burstPods)
	}
	// The target holds for a machine with nothing else to do.
	const target = 15 * time.Millisecond
	if p50 := adds.Quantile(0.5); p50 > 10*target {
		x.Errorf("half of the ADDs took longer than %s; %s is the target", p50, target)
	} else if p50 > target {
		x.measured("half of the ADDs took longer than the target, %s", target)
	}
	resident := after.Value("process_resident_memory_bytes", nil) / (1 << 20)
	x.measured("an agent with %d pods on its node: %.1f MiB resident", burstPods, resident)
	if resident == 0 || resident > 45 {
		x.Errorf("the agent has %.1f MiB resident; 45 is the target", resident)
	}
	const requests = "weft_api_requests_total"
	calls := after.Value(requests, nil) - before.Value(requests, nil)
	x.measured("requests to the API server by that agent: %.0f, %.2f for each pod started (%s)", calls, calls/burstPods,
		Calls(before.Each(requests, "verb", "resource", "code"), after.Each(requests, "verb", "resource", "code")))
	if _, there := after[requests]; !there {
		x.Errorf("the agent has no metric %s", requests)
	}
	x.inOrder(n)
	start := time.Now()
	if err := x.kube.CoreV1().Pods(x.namespace).DeleteCollection(x.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		x.Fatal(err)
	}
	x.eventually("all pods are gone", 2*patience, func() error {
		list, err := x.kube.CoreV1().Pods(x.namespace).List(x.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are there", len(list.Items))
		}
		return err
	})
	x.measured("and %d pods gone in %s", burstPods, time.Since(start).Round(time.Second))
	x.inOrder(n)
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
