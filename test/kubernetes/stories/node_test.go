package stories

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/test/kubernetes/cluster"
)

// node is a node of the stage.
type node struct {
	cluster   *cluster.Cluster
	name      string
	addresses []netip.Addr
}

// path is where a file of the node is on this machine.
func (n *node) path(file string) string {
	path, err := n.cluster.Path(context.Background(), n.name, file)
	if err != nil {
		return filepath.Join("/nonexistent", err.Error(), file)
	}
	return path
}

// inNetwork runs a program of this machine in the node's network.
func (n *node) inNetwork(args ...string) (string, error) {
	var out []byte
	err := netns.Do(n.cluster.NetNS(n.name), func() (err error) {
		out, err = exec.Command(args[0], args[1:]...).Output()
		return err
	})
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%s on %s: %w: %s", strings.Join(args, " "), n.name, err, exit.Stderr)
	}
	return string(out), err
}

// exec runs a program in the node.
func (n *node) exec(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	err := n.cluster.Exec(ctx, n.name, cluster.Command{Args: args, Stdout: &out, Stderr: &errs})
	if err != nil {
		err = fmt.Errorf("%s on %s: %w: %s", strings.Join(args, " "), n.name, err, errs.Bytes())
	}
	return out.String(), err
}

// inventory lists what is on the node. The directories are those that Weft
// writes to.
func (n *node) inventory() (Inventory, error) {
	text, err := n.exec("sh", "-c", inventoryScript, "sh", "/etc/cni/net.d", "/opt/cni/bin", "/run/weft", "/run/flannel")
	return ParseInventory(text), err
}

// settled is the inventory of a node without Weft once kubelet and kube-proxy
// have made their tables.
func (n *node) settled(ctx context.Context) (Inventory, error) {
	for {
		i, err := n.inventory()
		if err != nil {
			return nil, err
		}
		var missing []string
		for _, table := range []string{"ip kube-proxy", "ip6 kube-proxy", "ip mangle", "ip6 mangle", "ip filter", "ip6 filter"} {
			if !slices.Contains(i, "nft "+table) {
				missing = append(missing, table)
			}
		}
		if len(missing) == 0 {
			return i, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("on %s kubelet and kube-proxy have not made their tables %q: %w", n.name, missing, ctx.Err())
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// processes returns the numbers, within the node, of the processes that run a
// program of that name.
func (n *node) processes(name string) ([]int, error) {
	comms, err := filepath.Glob(n.path("/proc/[0-9]*/comm"))
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, comm := range comms {
		text, err := os.ReadFile(comm)
		if err != nil {
			continue // it has ended
		}
		// The kernel keeps 15 bytes of a name.
		if strings.TrimSpace(string(text)) != name[:min(len(name), 15)] {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(comm)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// kill ends the node's processes of a name by SIGKILL and returns how many
// there were.
func (n *node) kill(name string) (int, error) {
	pids, err := n.processes(name)
	for _, pid := range pids {
		if _, e := n.exec("kill", "-9", strconv.Itoa(pid)); e != nil {
			err = errors.Join(err, e)
		}
	}
	return len(pids), err
}

// agent asks the node's agent over the socket that is for the node alone.
func (n *node) agent(path string) (string, int, error) {
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", n.path("/run/weft/http.sock"))
		}}}
	answer, err := client.Get("http://agent" + path)
	if err != nil {
		return "", 0, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), answer.StatusCode, err
}

// agentReady says why the node's agent is not ready.
func (n *node) agentReady() error {
	text, status, err := n.agent("/readyz")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("agent on %s: %s", n.name, strings.TrimSpace(text))
	}
	return err
}

func (n *node) metrics() (Metrics, error) {
	text, status, err := n.agent("/metrics")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("metrics of %s: status %d", n.name, status)
	}
	if err != nil {
		return nil, err
	}
	return ParseMetrics(text)
}

func (n *node) journal() ([]ipam.Attachment, error) {
	text, err := os.ReadFile(n.path("/run/weft/journal"))
	if err != nil {
		return nil, err
	}
	// The last line may be half written.
	return ParseJournal(string(text[:strings.LastIndexByte(string(text), '\n')+1]))
}

// attachment returns the journal's record of a pod.
func (n *node) attachment(namespace, pod string) (ipam.Attachment, error) {
	journal, err := n.journal()
	if err != nil {
		return ipam.Attachment{}, err
	}
	for _, a := range journal {
		if a.Namespace == namespace && a.Pod == pod {
			return a, nil
		}
	}
	return ipam.Attachment{}, fmt.Errorf("the journal of %s has nothing of pod %s/%s", n.name, namespace, pod)
}

// podsOn are the addresses of the pods that the API server knows on a node and
// that have a network of their own.
func (s *stage) podsOn(ctx context.Context, n *node) (map[string][]netip.Addr, error) {
	list, err := s.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.name})
	if err != nil {
		return nil, err
	}
	pods := make(map[string][]netip.Addr)
	for _, p := range list.Items {
		if !p.Spec.HostNetwork && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			pods[p.Namespace+"/"+p.Name] = addressesOf(&p)
		}
	}
	return pods, nil
}

// plumbing looks at what the node holds for its pods.
func (s *stage) plumbing(ctx context.Context, n *node) (Plumbing, error) {
	var p Plumbing
	var err error
	if p.Pods, err = s.podsOn(ctx, n); err != nil {
		return p, err
	}
	if p.Journal, err = n.journal(); err != nil {
		return p, err
	}
	text, status, err := n.agent("/plan")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("plan of %s: %s", n.name, text)
	}
	if err != nil {
		return p, err
	}
	if p.Plan, err = plan.Parse(text); err != nil {
		return p, err
	}
	i, err := n.inventory()
	if err != nil {
		return p, err
	}
	for _, line := range i {
		kind, rest, _ := strings.Cut(line, " ")
		switch kind {
		case "link":
			p.Links = append(p.Links, rest)
		case "route4", "route6":
			p.Routes = append(p.Routes, ParseRoutes(rest)...)
		}
	}
	return p, nil
}

// inOrder waits until all that nodes hold for pods belongs to a pod, and each
// pod has it.
func (x *story) inOrder(nodes ...*node) {
	x.Helper()
	for _, n := range nodes {
		x.eventually("on "+n.name+" all is as it should be", patience, func() error {
			p, err := x.plumbing(x.Context(), n)
			if err != nil {
				return err
			}
			if faults := p.Faults(); len(faults) > 0 {
				return errors.New(strings.Join(faults, "; "))
			}
			return nil
		})
	}
}

// settled waits until the namespaces of the stories before are gone, and with
// them their pods, so that what a node has stays as it is.
func (x *story) settled() {
	x.Helper()
	x.eventually("the stories before have left nothing", patience, func() error {
		list, err := x.kube.CoreV1().Namespaces().List(x.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, ns := range list.Items {
			if ns.DeletionTimestamp != nil {
				return fmt.Errorf("namespace %s is still being deleted", ns.Name)
			}
		}
		return nil
	})
}

// agentPod returns the pod of a node's agent.
func (s *stage) agentPod(ctx context.Context, n *node) (*corev1.Pod, error) {
	list, err := s.kube.CoreV1().Pods(system).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=agent", FieldSelector: "spec.nodeName=" + n.name})
	if err != nil {
		return nil, err
	}
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			return &p, nil
		}
	}
	return nil, fmt.Errorf("there is no agent on %s", n.name)
}

// agentLog returns the last lines of an agent's log.
func (x *story) agentLog(n *node, lines int) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := x.agentPod(ctx, n)
	if err != nil {
		return "", err
	}
	return x.command(x.kubectl, "logs", "-n", p.Namespace, p.Name, "--tail", strconv.Itoa(lines))
}

// agentBack waits until a node's agent is another process than one before, and
// ready, in its own words and in the API server's.
func (x *story) agentBack(n *node, before []int) {
	x.Helper()
	x.eventually("the agent of "+n.name+" is back", patience, func() error {
		now, err := n.processes("weft-agent")
		if err != nil {
			return err
		}
		if len(now) == 0 || len(before) > 0 && now[0] == before[0] {
			return fmt.Errorf("its processes are %v, and were %v", now, before)
		}
		if err := n.agentReady(); err != nil {
			return err
		}
		p, err := x.agentPod(x.Context(), n)
		if err != nil {
			return err
		}
		return isReady(p)
	})
}
