package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/plugin/flannel"
)

// cluster is a lab of the benchmark's own.
type cluster struct {
	lab     *lab.Lab
	dir     string
	took    time.Duration
	workers []*worker
}

// upTimeout bounds how long a lab may take to come up.
const upTimeout = 4 * time.Minute

// flannelBackend is the configuration of flannel with a backend.
func flannelBackend(backend string) lab.Object {
	spec := fmt.Sprintf(`{"Network":%q,"Backend":{"Type":%q}}`, handCluster, backend)
	return lab.Object{Kind: flannel.ConfigKind, Object: &flannel.Config{
		ObjectMeta: metav1.ObjectMeta{Name: flannel.ConfigName}, Spec: json.RawMessage(spec)}}
}

// bringUp makes a lab with a plug-in, and with objects to begin with.
func bringUp(ctx context.Context, weft string, nodes int, plugin string, objects ...lab.Object) (*cluster, error) {
	dir, err := os.MkdirTemp("", "weft-bench-")
	if err != nil {
		return nil, err
	}
	o := lab.Options{Dir: dir, Nodes: nodes, Plugin: plugin, MTU: underlayMTU, Weft: weft, Objects: objects}
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	start := time.Now()
	l, err := lab.Up(ctx, o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lab of %d nodes with %s: %w", nodes, plugin, err), removeEmpty(dir))
	}
	return &cluster{lab: l, dir: dir, took: time.Since(start)}, nil
}

func removeEmpty(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (c *cluster) close() error {
	for _, w := range c.workers {
		w.close()
	}
	return lab.Down(c.dir)
}

// pod runs a pod on a node and puts a worker into its network namespace.
func (c *cluster) pod(ctx context.Context, name, node string) (*worker, netip.Addr, error) {
	addresses, err := c.lab.Run(ctx, lab.Pod{Name: name, Node: node})
	if err != nil {
		return nil, netip.Addr{}, err
	}
	status, err := c.lab.Status()
	if err != nil {
		return nil, netip.Addr{}, err
	}
	i := slices.IndexFunc(status.Pods, func(p lab.PodStatus) bool { return p.Name == name && p.PID != 0 })
	if i < 0 {
		return nil, netip.Addr{}, fmt.Errorf("pod %s does not run", name)
	}
	w, err := newWorker(fmt.Sprintf("pod %s on %s", name, node), fmt.Sprintf("/proc/%d/ns/net", status.Pods[i].PID))
	if err != nil {
		return nil, netip.Addr{}, err
	}
	c.workers = append(c.workers, w)
	return w, addresses[0], nil
}

// pairs runs three pods on two nodes and returns a pair on the first node and
// one across.
func (c *cluster) pairs(ctx context.Context) (same, across pair, err error) {
	nodes := c.lab.Nodes()
	var workers [3]*worker
	var addresses [3]netip.Addr
	for i, node := range []string{nodes[0], nodes[0], nodes[1]} {
		if workers[i], addresses[i], err = c.pod(ctx, fmt.Sprintf("pod%d", i), node); err != nil {
			return pair{}, pair{}, err
		}
	}
	return pair{workers[0], workers[1], addresses[1]}, pair{workers[0], workers[2], addresses[2]}, nil
}

// Where the lab's agents write their CNI configuration, as the node sees it.
const nodeConfigurations = "/run/cni/net.d"

// attacher is Weft's CNI plug-in on a node.
func (c *cluster) attacher(node, weft, cache string) (attacher, error) {
	pid := c.lab.PID(node)
	network, mounts := fmt.Sprintf("/proc/%d/ns/net", pid), fmt.Sprintf("/proc/%d/ns/mnt", pid)
	a := attacher{name: "weft-cni", daemon: pid, within: func(f func() error) error { return netns.DoMount(network, mounts, f) }}
	a.cni = libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(weft)}, cache, nil)
	err := a.within(func() error {
		files, err := libcni.ConfFiles(nodeConfigurations, []string{".conflist"})
		if err != nil {
			return err
		}
		if len(files) != 1 {
			return fmt.Errorf("%s of %s holds %d network configurations, not 1", nodeConfigurations, node, len(files))
		}
		a.list, err = libcni.ConfListFromFile(files[0])
		return err
	})
	if err != nil {
		return a, err
	}
	return a, nil
}

// addGhosts creates peers without agents: HostSubnets that the controller
// gives subnets to, and that every node routes to.
func (c *cluster) addGhosts(ctx context.Context, n int) error {
	reg, err := c.lab.Registry()
	if err != nil {
		return err
	}
	defer reg.Close()
	for i := range n {
		name := fmt.Sprintf("ghost%d", i)
		ghost := &networkv1.HostSubnet{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{networkv1.AssignHostSubnetAnnotation: "true"}},
			Host:       name, HostIP: fmt.Sprintf("172.30.9.%d", i+1),
		}
		if _, err := reg.Create(ctx, api.HostSubnet, ghost); err != nil {
			return err
		}
	}
	return nil
}

// memory is what a process takes of it, in bytes.
type memory struct {
	// Resident counts shared pages whole, Proportional divides them among
	// those who share; Anonymous are the pages that no file backs.
	Resident, Proportional, Anonymous uint64
}

func processMemory(pid int) (memory, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return memory{}, err
	}
	return parseSmaps(b)
}

// parseSmaps reads proc_pid_smaps_rollup(5).
func parseSmaps(b []byte) (memory, error) {
	var m memory
	fields := map[string]*uint64{"Rss:": &m.Resident, "Pss:": &m.Proportional, "Anonymous:": &m.Anonymous}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		words := strings.Fields(s.Text())
		if len(words) != 3 || fields[words[0]] == nil {
			continue
		}
		n, err := strconv.ParseUint(words[1], 10, 64)
		if err != nil {
			return memory{}, fmt.Errorf("smaps_rollup: %s %w", words[0], err)
		}
		*fields[words[0]] = n << 10
		delete(fields, words[0])
	}
	if len(fields) > 0 {
		return memory{}, fmt.Errorf("smaps_rollup lacks %d of the sums that were looked for", len(fields))
	}
	return m, nil
}

// footprint is an agent with pods and peers.
type footprint struct {
	Pods, Peers int
	memory
	// AtOnce is what was resident when the last pod had come, in bytes.
	AtOnce uint64
	// Heap is what Go's heap holds, live or not yet collected, in bytes.
	Heap uint64
}

// rest is how long nothing happens before an agent's memory is looked at.
const rest = 70 * time.Second

// measureAgent attaches the pods, adds the peers, and looks at the agent's
// memory some time after it has routes to all of them, and at once for what is
// resident at most.
func (c *cluster) measureAgent(ctx context.Context, node string, a attacher, pods []podNamespace, peers int) (f footprint, err error) {
	if err := c.addGhosts(ctx, peers); err != nil {
		return f, err
	}
	if _, err := a.addAll(ctx, pods, inFlight); err != nil {
		return f, err
	}
	defer func() {
		_, e := a.deleteAll(ctx, pods, inFlight)
		err = errors.Join(err, e)
	}()
	f.Pods, f.Peers = len(pods), peers
	if _, err := c.awaitMetrics(ctx, node, "routes to all pods and peers", func(m metrics) bool {
		return int(m[planEntries("routes")]) >= len(pods)+peers
	}); err != nil {
		return f, err
	}
	busy, err := processMemory(c.lab.PID(node))
	if err != nil {
		return f, err
	}
	f.AtOnce = busy.Resident
	select {
	case <-time.After(rest):
	case <-ctx.Done():
		return f, ctx.Err()
	}
	if f.memory, err = processMemory(c.lab.PID(node)); err != nil {
		return f, err
	}
	metrics, err := c.metrics(ctx, node)
	if err != nil {
		return f, err
	}
	f.Heap = uint64(metrics["go_memstats_heap_alloc_bytes"])
	return f, nil
}

// metrics are an agent's, by their names with labels.
type metrics map[string]float64

// planEntries is the metric of how many entries a table of the plan has.
func planEntries(table string) string { return fmt.Sprintf("weft_plan_entries{table=%q}", table) }

// metrics asks the agent of a node.
func (c *cluster) metrics(ctx context.Context, node string) (metrics, error) {
	socket, err := c.lab.AgentSocket(node)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	defer client.CloseIdleConnections()
	return scrape(ctx, client)
}

// awaitMetrics asks the agent of a node until it has what is waited for.
func (c *cluster) awaitMetrics(ctx context.Context, node, what string, enough func(metrics) bool) (metrics, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		m, err := c.metrics(ctx, node)
		if err != nil {
			return nil, err
		}
		if enough(m) {
			return m, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the agent of %s does not have %s: %w", node, what, ctx.Err())
		case <-tick.C:
		}
	}
}

func scrape(ctx context.Context, client *http.Client) (metrics, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/metrics", nil)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	values := make(metrics)
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			values[name] = v
		}
	}
	return values, lines.Err()
}

// upTime is how a lab of some size came up.
type upTime struct {
	Nodes int
	Took  time.Duration
	// Processes is the proportional share of all the lab's daemons, in bytes.
	Processes uint64
	// Machine is by how much the machine's available memory shrank, in bytes:
	// with the kernel's share, and with what else happened meanwhile.
	Machine uint64
}

// availableMemory is what the machine has left for new processes, in bytes.
func availableMemory() (uint64, error) { return readField("/proc/meminfo", "MemAvailable") }

// peakMemory is the most that a process ever had resident, in bytes.
func peakMemory(pid int) (uint64, error) {
	return readField(fmt.Sprintf("/proc/%d/status", pid), "VmHWM")
}

// readField reads an amount of memory from a file of the form of proc_meminfo(5).
func readField(path, name string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, name)
}

// measureUp makes a lab, looks at it, and removes it.
func measureUp(ctx context.Context, weft string, nodes int) (u upTime, err error) {
	before, err := availableMemory()
	if err != nil {
		return u, err
	}
	c, err := bringUp(ctx, weft, nodes, "openshift-subnet")
	if err != nil {
		return u, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	after, err := availableMemory()
	if err != nil {
		return u, err
	}
	u = upTime{Machine: before - min(before, after), Nodes: nodes, Took: c.took}
	status, err := c.lab.Status()
	if err != nil {
		return u, err
	}
	for _, d := range status.Daemons {
		m, err := processMemory(d.PID)
		if err != nil {
			return u, fmt.Errorf("memory of %s: %w", d.Name, err)
		}
		u.Processes += m.Proportional
	}
	return u, nil
}
