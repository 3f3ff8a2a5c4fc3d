package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/test/kubernetes/controlplane"
)

// ControlPlane stands for a node where the programs of the control plane are
// meant: "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler".
const ControlPlane = "controlplane"

// Status is what runs. Processes are given by their numbers in the
// supervisor's namespace, 0 for what does not run.
type Status struct {
	ControlPlane map[string]int
	Nodes        map[string]NodeStatus
}

// NodeStatus is what runs on a node.
type NodeStatus struct {
	// Init is the node's first process, 0 while the node is off.
	Init     int
	Programs map[string]int
}

// Name is the cluster's name.
func (c *Cluster) Name() string { return c.config.Name }

// DNS is who answers pods that ask for names.
func (c *Cluster) DNS() DNS { return c.config.DNS }

// Dir is the cluster's directory.
func (c *Cluster) Dir() string { return c.config.Dir }

// Nodes lists the nodes, whether they are on or off.
func (c *Cluster) Nodes() []Node { return c.config.nodes() }

// Log is the file of the output of a program: on a node "containerd",
// "kubelet", "kube-proxy" or "init", or one of ControlPlane.
func (c *Cluster) Log(node, program string) string {
	if node == ControlPlane {
		return filepath.Join(c.config.controlPlaneDir(), program+".log")
	}
	return filepath.Join(c.config.logs(node), program+".log")
}

// Kubeconfig is the path of a kubeconfig with all rights, for programs on the
// machine.
func (c *Cluster) Kubeconfig() string { return kubeconfigFile(c.config.Dir) }

// KubeconfigFor makes a kubeconfig for another user.
func (c *Cluster) KubeconfigFor(user string, groups ...string) ([]byte, error) {
	return c.pki.Kubeconfig(c.rest.Host, user, groups...)
}

// RESTConfig returns a client configuration with all rights and without a
// limit on requests, for programs on the machine.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.rest) }

// PKI issues the cluster's certificates.
func (c *Cluster) PKI() *controlplane.PKI { return c.pki }

// Server is the URL of the API server as the nodes know it; the kubeconfigs
// name the port on the machine instead.
func (c *Cluster) Server() string {
	return "https://" + netip.AddrPortFrom(c.config.addresses(controlPlaneNumber)[0], controlplane.Port).String()
}

// NetNS is the path of a node's network namespace, in which the first node has
// the control plane as well. It changes its meaning when the node boots: open
// it when it is used.
func (c *Cluster) NetNS(node string) string {
	return fmt.Sprintf("/proc/%d/root%s", c.supervisor.PID, c.config.netns(node))
}

// Switch is the path of the network namespace of the switch that all nodes are
// on, whose addresses 172.30.0.1 and fd30::1 are the nodes' default gateway:
// the world outside the cluster.
func (c *Cluster) Switch() string { return c.NetNS(switchName) }

// Outside runs a command as on a machine outside of the cluster, 198.51.100.2 and 2001:db8::2, which
// the nodes' default gateway (Switch) routes to: it reaches what the cluster gives to the world. Its
// KUBECONFIG has all rights and names the API server as the nodes know it (Server). When ctx ends,
// the command is interrupted, and killed a minute later. The error is an *exec.ExitError where the
// command itself failed.
func (c *Cluster) Outside(ctx context.Context, command Command) error {
	if len(command.Args) == 0 {
		return errors.New("no command to run")
	}
	kubeconfig, err := c.pki.Kubeconfig(c.Server(), "admin", "system:masters")
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(c.config.Dir, "kubeconfig-outside-")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(kubeconfig)
	if err := cmp.Or(err, file.Close()); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, command.Args[0], command.Args[1:]...)
	cmd.Env = slices.Concat(os.Environ(), []string{"KUBECONFIG=" + file.Name()}, command.Env)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = command.Stdin, command.Stdout, command.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	if err := netns.Do(c.NetNS(outsideName), cmd.Start); err != nil {
		return fmt.Errorf("run %s outside of the cluster: %w", command.Args[0], err)
	}
	if err := cmd.Wait(); err != nil {
		return cmp.Or(ctx.Err(), err)
	}
	return nil
}

// Status reports what runs.
func (c *Cluster) Status(ctx context.Context) (*Status, error) {
	return c.ask(ctx, request{Verb: verbStatus})
}

// Exec runs a command in a node's namespaces and control groups, with the
// cluster's programs in its PATH, and returns when it has ended; it is killed
// when ctx ends. The error is an *exec.ExitError where the command itself
// failed.
func (c *Cluster) Exec(ctx context.Context, node string, command Command) error {
	init, err := c.initOf(ctx, node)
	if err != nil {
		return err
	}
	g, err := clusterGroups(c.config.Name)
	if err != nil {
		return err
	}
	return place{proc: init, groups: g.child(node), bin: c.config.Bin}.run(ctx, command)
}

// Path is where a file of a node that is on can be found from the machine. It
// changes its meaning when the node boots.
func (c *Cluster) Path(ctx context.Context, node, file string) (string, error) {
	init, err := c.initOf(ctx, node)
	return filepath.Join(init, "root", file), err
}

// initOf is the directory in /proc of a node's first process.
func (c *Cluster) initOf(ctx context.Context, node string) (string, error) {
	s, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	n, known := s.Nodes[node]
	if !known || n.Init == 0 {
		return "", fmt.Errorf("node %q is not there, or off", node)
	}
	return fmt.Sprintf("/proc/%d/root/proc/%d", c.supervisor.PID, n.Init), nil
}

// KillNode cuts a node's power: every process on it is killed. The control
// plane stays, on the first node too.
func (c *Cluster) KillNode(ctx context.Context, node string) error {
	_, err := c.ask(ctx, request{Verb: verbKillNode, Node: node})
	return err
}

// StartNode boots a node that was killed, and returns when its programs run.
// Its disk is as it was; its /run and /tmp are empty, and its network
// namespace has nothing but the link.
func (c *Cluster) StartNode(ctx context.Context, node string) error {
	_, err := c.ask(ctx, request{Verb: verbStartNode, Node: node})
	return err
}

// KillProcess kills a program by SIGKILL. One of a node is started again a
// second later; one of ControlPlane is not.
func (c *Cluster) KillProcess(ctx context.Context, node, program string) error {
	return c.program(ctx, verbKill, node, program)
}

// StopProcess ends a program by SIGTERM, or by SIGKILL after five seconds, and
// keeps it from being started until StartProcess.
func (c *Cluster) StopProcess(ctx context.Context, node, program string) error {
	return c.program(ctx, verbStop, node, program)
}

// StartProcess starts a program that was stopped. For the API server, which
// has the port and the data that it had, it returns when that is ready.
func (c *Cluster) StartProcess(ctx context.Context, node, program string) error {
	return c.program(ctx, verbStart, node, program)
}

// PauseProcess keeps a program from doing anything, by SIGSTOP. It returns when
// that holds.
func (c *Cluster) PauseProcess(ctx context.Context, node, program string) error {
	return c.program(ctx, verbPause, node, program)
}

// ResumeProcess undoes PauseProcess.
func (c *Cluster) ResumeProcess(ctx context.Context, node, program string) error {
	return c.program(ctx, verbResume, node, program)
}

func (c *Cluster) program(ctx context.Context, verb, node, program string) error {
	_, err := c.ask(ctx, request{Verb: verb, Node: node, Program: program})
	return err
}

// Load makes images from tar files known to every node that is on, in place of
// others of the same names.
func (c *Cluster) Load(ctx context.Context, tars ...string) error {
	// The supervisor has another working directory.
	var paths []string
	for _, t := range tars {
		path, err := filepath.Abs(t)
		if err != nil {
			return err
		}
		paths = append(paths, path)
	}
	_, err := c.ask(ctx, request{Verb: verbLoad, Images: paths})
	return err
}

// Kubectl is the path of a kubectl of the cluster's version.
func (c *Cluster) Kubectl() string { return filepath.Join(c.config.Bin, "kubectl") }

// Apply applies manifests in YAML, as kubectl apply --server-side does.
func (c *Cluster) Apply(ctx context.Context, manifests []byte) error {
	// What kubectl remembers of an API server it finds again by the address, which
	// is another cluster's later.
	cmd := exec.CommandContext(ctx, c.Kubectl(), "--kubeconfig="+c.Kubeconfig(),
		"--cache-dir="+filepath.Join(c.config.Dir, "kubectl"),
		"apply", "--server-side", "--force-conflicts", "--filename=-")
	cmd.Stdin = bytes.NewReader(manifests)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl apply: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// WaitReady returns when all nodes are ready, or ctx has ended.
func (c *Cluster) WaitReady(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.rest)
	if err != nil {
		return err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err == nil {
			if err = readiness(c.Nodes(), list.Items); err == nil {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the nodes to be ready: %w: %w", ctx.Err(), err)
		}
	}
}

// readiness says what keeps nodes from being ready.
func readiness(want []Node, have []corev1.Node) error {
	status := make(map[string]corev1.NodeCondition)
	for _, n := range have {
		status[n.Name] = corev1.NodeCondition{Message: "says nothing of its readiness"}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				status[n.Name] = c
			}
		}
	}
	var errs []error
	for _, n := range want {
		if s, there := status[n.Name]; !there {
			errs = append(errs, fmt.Errorf("%s has not registered", n.Name))
		} else if s.Status != corev1.ConditionTrue {
			errs = append(errs, fmt.Errorf("%s is not ready: %s", n.Name, s.Message))
		}
	}
	return errors.Join(errs...)
}

// settle applies what the configuration names, and waits for the nodes.
func (c *Cluster) settle(ctx context.Context) error {
	var manifests [][]byte
	if c.config.DNS == CoreDNS {
		manifests = append(manifests, []byte(c.config.dns()))
	}
	for _, path := range c.config.Manifests {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		manifests = append(manifests, b)
	}
	if len(manifests) > 0 {
		if err := c.Apply(ctx, bytes.Join(manifests, []byte("\n---\n"))); err != nil {
			return err
		}
	}
	if c.config.Network == NoNetwork && len(c.config.Manifests) == 0 {
		return nil
	}
	return c.WaitReady(ctx)
}
