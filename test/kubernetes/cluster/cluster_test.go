package cluster

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/weftnet/weft/internal/await"
	"github.com/weftnet/weft/test/kubernetes/images"
	"github.com/weftnet/weft/test/kubernetes/programs"
)

var real = flag.Bool("up", false, "bring clusters up (make test-kubernetes)")

// patient is how long a test waits for what takes seconds on a machine that
// does nothing else.
const patient = 3 * time.Minute

// need skips a test for which no cluster can be made or shall be, and returns
// the directory of the programs.
func need(t *testing.T) string {
	t.Helper()
	if !*real {
		t.Skip("brings a cluster up when asked to: -up (make test-kubernetes)")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes a cluster of namespaces")
	}
	return programs.Need(t, "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "containerd", "agnhost")
}

func TestACluster(t *testing.T) {
	bin := need(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	tars, err := images.Write(ctx, bin, filepath.Join(filepath.Dir(bin), "images"))
	if err != nil {
		t.Fatal(err)
	}
	tars = slices.DeleteFunc(tars, func(tar string) bool {
		return !slices.Contains([]string{"pause.tar", "agnhost.tar"}, filepath.Base(tar))
	})
	before := machineState(t)
	config := Config{Name: "harness", Dir: filepath.Join(t.TempDir(), "cluster"), Bin: bin, Images: tars, Network: Bridge, Attached: true}
	start := time.Now()
	c, err := Up(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("up after %.1f s", time.Since(start).Seconds())
	t.Cleanup(func() {
		if err := c.Down(); err != nil {
			t.Error(err)
		}
	})
	f := &fixture{t, c, kubernetes.NewForConfigOrDie(c.RESTConfig())}
	f.deploy()
	f.reach()

	t.Run("one at a time", func(t *testing.T) {
		if _, err := Up(ctx, config); err == nil || !strings.Contains(err.Error(), "up in") {
			t.Errorf("a second cluster in the directory: %v", err)
		}
		other := config
		other.Dir = t.TempDir()
		if _, err := Up(ctx, other); err == nil || !strings.Contains(err.Error(), `"harness"`) {
			t.Errorf("a second cluster of the name: %v", err)
		}
		if _, err := c.Status(ctx); err != nil {
			t.Errorf("and the first: %v", err)
		}
	})
	t.Run("programs", f.with((*fixture).programsDie))
	t.Run("control plane", f.with((*fixture).controlPlaneDies))
	for _, node := range []string{"node1", "node2"} {
		t.Run(node+" dies", f.with(func(f *fixture) { f.nodeDies(node) }))
	}

	t.Run("down", func(t *testing.T) {
		left := inventory(t, c)
		start := time.Now()
		if err := c.Down(); err != nil {
			t.Fatal(err)
		}
		t.Logf("down after %.1f s", time.Since(start).Seconds())
		left.check(t, config)
		if after := machineState(t); after != before {
			t.Errorf("the machine was\n%s\nand is\n%s", before, after)
		}
		if _, err := c.Status(ctx); !errors.Is(err, ErrNone) {
			t.Errorf("asked after the end: %v", err)
		}
	})
}

// A cluster whose supervisor is killed, or that is given up while it comes up,
// is as easy to be rid of.
func TestAClusterThatIsInterrupted(t *testing.T) {
	bin := need(t)
	config := Config{Name: "interrupted", Dir: filepath.Join(t.TempDir(), "cluster"), Bin: bin, Nodes: 1, Proxy: NoProxy}
	t.Cleanup(func() { Down(config.Dir) })

	c, err := Up(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	left := inventory(t, c)
	if err := c.supervisor.Kill(); err != nil {
		t.Fatal(err)
	}
	left.checkProcesses(t)
	if _, err := Open(config.Dir); !errors.Is(err, ErrNone) {
		t.Errorf("opened what was killed: %v", err)
	}

	// Up clears what is left, and is interrupted when the control plane has begun.
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil && !exists(c.Log(ControlPlane, "kube-apiserver")) {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	}()
	os.Remove(c.Log(ControlPlane, "kube-apiserver"))
	if _, err := Up(ctx, config); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if supervisorOf(config.Dir).Alive() {
		t.Error("the supervisor of a cluster that was given up is alive")
	}
	if err := Down(config.Dir); err != nil {
		t.Fatal(err)
	}
	left.check(t, config)
}

// fixture is a cluster in a test.
type fixture struct {
	*testing.T
	c      *Cluster
	client *kubernetes.Clientset
}

// with runs f as another test of the cluster.
func (f *fixture) with(test func(*fixture)) func(*testing.T) {
	return func(t *testing.T) { test(&fixture{t, f.c, f.client}) }
}

// eventually waits until f returns no error.
func (f *fixture) eventually(what string, check func() error) {
	f.Helper()
	await.NoError(f, patient, what, check)
}

// deploy runs a pod on each node that answers, and asks others when it is told to.
func (f *fixture) deploy() {
	f.Helper()
	labels := map[string]string{"app": "net"}
	_, err := f.client.AppsV1().DaemonSets("default").Create(f.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "net"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "net", Image: "registry.k8s.io/e2e-test-images/agnhost:2.59", ImagePullPolicy: corev1.PullNever,
					Args: []string{"netexec", "--http-port=8080"},
				}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		f.Fatal(err)
	}
}

// reach has every pod ask every pod, at all of its addresses.
func (f *fixture) reach() {
	f.Helper()
	f.eventually("pods reach each other", func() error {
		pods, err := f.client.CoreV1().Pods("default").List(f.Context(), metav1.ListOptions{LabelSelector: "app=net"})
		if err != nil {
			return err
		}
		if len(pods.Items) != len(f.c.Nodes()) {
			return fmt.Errorf("there are %d pods", len(pods.Items))
		}
		for _, from := range pods.Items {
			for _, to := range pods.Items {
				if len(to.Status.PodIPs) != 2 {
					return fmt.Errorf("pod %s has the addresses %v", to.Name, to.Status.PodIPs)
				}
				for _, address := range to.Status.PodIPs {
					ctx, cancel := context.WithTimeout(f.Context(), 5*time.Second)
					out, err := f.client.CoreV1().RESTClient().Get().Namespace("default").Resource("pods").
						Name(from.Name+":8080").SubResource("proxy").Suffix("dial").
						Param("host", address.IP).Param("port", "8080").Param("request", "hostname").Param("protocol", "http").Param("tries", "1").
						DoRaw(ctx)
					cancel()
					if want := `"` + to.Name + `"`; err != nil || !strings.Contains(string(out), want) {
						return fmt.Errorf("pod %s asks %s at %s: %s (%w)", from.Name, to.Name, address.IP, out, err)
					}
				}
			}
		}
		return nil
	})
}

// run runs a command on a node and returns what it says.
func (f *fixture) run(node string, args ...string) (string, error) {
	var out bytes.Buffer
	err := f.c.Exec(f.Context(), node, Command{Args: args, Stdout: &out, Stderr: &out})
	return strings.TrimSpace(out.String()), err
}

func (f *fixture) must(node string, args ...string) string {
	f.Helper()
	out, err := f.run(node, args...)
	if err != nil {
		f.Fatalf("%s on %s: %v: %s", strings.Join(args, " "), node, err, out)
	}
	return out
}

func (f *fixture) pid(node, program string) int {
	f.Helper()
	s, err := f.c.Status(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	if node == ControlPlane {
		return s.ControlPlane[program]
	}
	return s.Nodes[node].Programs[program]
}

func (f *fixture) ok(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) programsDie() {
	ctx := f.Context()
	for _, program := range []string{kubelet, containerd, kubeProxy} {
		old := f.pid("node3", program)
		f.ok(f.c.KillProcess(ctx, "node3", program))
		f.eventually(program+" is started again", func() error {
			if now := f.pid("node3", program); now == 0 || now == old {
				return fmt.Errorf("it has number %d", now)
			}
			return nil
		})
	}
	f.ok(f.c.StopProcess(ctx, "node3", kubelet))
	if f.pid("node3", kubelet) != 0 {
		f.Error("a kubelet that was stopped runs")
	}
	if err := f.c.KillProcess(ctx, "node3", kubelet); err == nil {
		f.Error("what does not run was killed")
	}
	f.ok(f.c.StartProcess(ctx, "node3", kubelet))
	if err := f.c.StartProcess(ctx, "node3", kubelet); err == nil {
		f.Error("started twice")
	}
	for _, wrong := range [][2]string{{"node3", "etcd"}, {"node4", kubelet}, {ControlPlane, kubelet}} {
		if err := f.c.StopProcess(ctx, wrong[0], wrong[1]); err == nil {
			f.Errorf("stopped %s of %s", wrong[1], wrong[0])
		}
	}
	f.ok(f.c.WaitReady(ctx))
	f.reach()
}

func (f *fixture) controlPlaneDies() {
	ctx := f.Context()
	get := func() error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, err := f.client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
		return err
	}
	const api = "kube-apiserver"
	for name, away := range map[string][2]func() error{
		"killed": {func() error { return f.c.KillProcess(ctx, ControlPlane, api) }, func() error { return f.c.StartProcess(ctx, ControlPlane, api) }},
		"paused": {func() error { return f.c.PauseProcess(ctx, ControlPlane, api) }, func() error { return f.c.ResumeProcess(ctx, ControlPlane, api) }},
	} {
		f.ok(away[0]())
		if err := get(); err == nil {
			f.Errorf("an API server answers that was %s", name)
		}
		f.ok(away[1]())
		f.eventually("the API server that was "+name+" answers", get)
	}
	f.ok(f.c.WaitReady(ctx))
}

// nodeDies cuts a node's power, and boots it.
func (f *fixture) nodeDies(node string) {
	ctx := f.Context()
	if name := f.must(node, "hostname"); name != node {
		f.Errorf("the host name is %s", name)
	}
	for _, file := range []string{"/run/mark", "/tmp/mark", "/etc/mark", "/var/lib/cni/mark"} {
		f.must(node, "touch", file)
		if exists(file) {
			f.Errorf("%s is on the machine", file)
		}
	}
	f.must(node, "ip", "link", "add", "left", "type", "bridge")
	f.must(node, "ip", "rule", "add", "from", "192.0.2.1", "table", "100")
	f.must(node, "ip", "route", "add", "192.0.2.0/24", "via", "172.30.0.1", "table", "100")
	f.must(node, "nft", "add", "table", "inet", "left")

	f.ok(f.c.KillNode(ctx, node))
	if err := f.c.KillNode(ctx, node); err == nil {
		f.Error("a node that is off was killed")
	}
	if _, err := f.run(node, "true"); err == nil {
		f.Error("a node that is off runs commands")
	}
	if _, err := f.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err != nil {
		f.Errorf("the control plane, with %s off: %v", node, err)
	}
	f.ok(f.c.StartNode(ctx, node))
	if err := f.c.StartNode(ctx, node); err == nil {
		f.Error("a node that is on was booted")
	}
	f.must(node, "test", "-e", "/etc/mark", "-a", "-e", "/var/lib/cni/mark")
	f.must(node, "test", "!", "-e", "/run/mark", "-a", "!", "-e", "/tmp/mark")
	for _, gone := range [][]string{{"ip", "link", "show", "left"}, {"nft", "list", "table", "inet", "left"}} {
		if out, err := f.run(node, gone...); err == nil {
			f.Errorf("after the boot: %s", out)
		}
	}
	if out := f.must(node, "ip", "rule") + f.must(node, "ip", "route", "show", "table", "all"); strings.Contains(out, "192.0.2") {
		f.Errorf("after the boot:\n%s", out)
	}
	f.ok(f.c.WaitReady(ctx))
	f.reach()
}
