package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// worldResult is what an agent has to do with the large cluster.
type worldResult struct {
	Nodes, Pods, Namespaces, Policies int
	// Before is what the agent takes without policies, First with them once it
	// is ready, and After when it has seen all changes. Peak is the most that it
	// ever had in memory since it was started with them, in bytes.
	Before, First, After memory
	Peak                 uint64
	// Heap is that of Go at the end, in bytes.
	Heap uint64
	// Ready and ReadyWithout are how long an agent takes to be ready, with and
	// without policies, Compiled what of it went into Compilations.
	Ready, ReadyWithout, Compiled time.Duration
	Compilations                  int
	Classes, Verdicts, Elements   int
	// Changes are how long changes took, by what was changed.
	Changes [changeKinds][]time.Duration
	// Compile and Apply are what a change cost the agent of it, on average.
	Compile, Apply time.Duration
	// Birth is what the registry sends the agent of a pod elsewhere; PodJSON and
	// PodProtobuf are what the events of its Pod object would be, in bytes.
	Birth, PodJSON, PodProtobuf int
}

// changeKind is something that changes in the large cluster.
type changeKind int

const (
	remoteLabels changeKind = iota
	localLabels
	policyCreated
	policyDeleted
	changeKinds int = iota
)

var changeNames = [changeKinds]string{"new labels of a pod elsewhere", "new labels of a pod of the node",
	"a new policy about a pod of the node", "a policy deleted"}

const (
	// changeRounds is how many changes there are of each kind, unless they take
	// longer than changeTime.
	changeRounds = 200
	changeTime   = 130 * time.Second
	// An agent that would work for more than a part in workShare of the time
	// lets changes gather. What is timed are lone ones, so they come less often
	// than that, within these limits.
	workShare                   = 10
	leastInterval, mostInterval = 100 * time.Millisecond, 500 * time.Millisecond
	births                      = 50
	// etcdPort is that of the lab's etcd.
	etcdPort = 2379
	// vxlanDevice is the name of Weft's tunnel.
	vxlanDevice = "weft-vxlan"
)

// world is the large cluster as it runs.
type world struct {
	*cluster
	reg       registry.Registry
	node      string
	subnets   map[int]netip.Prefix
	pods      []podNamespace
	addresses []netip.Addr
}

// policyWorld makes the large cluster and measures its agent.
func (s settings) policyWorld(ctx context.Context, dir string) (r worldResult, err error) {
	say("policy: %d nodes with %d pods each", worldNodes, worldPods)
	c, err := bringUp(ctx, s.weft, 1, policyPlugin, wideNetwork())
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	reg, err := c.lab.Registry()
	if err != nil {
		return r, err
	}
	defer reg.Close()
	w := &world{cluster: c, reg: reg, node: c.lab.Nodes()[0]}
	defer func() { err = errors.Join(err, closeAll(w.pods)) }()
	if err := w.populate(ctx, s.weft, filepath.Join(dir, "world")); err != nil {
		return r, err
	}
	r.Nodes, r.Pods, r.Namespaces = worldNodes, worldNodes*worldPods, worldNamespaces
	if r.ReadyWithout, err = w.restart(ctx, nil); err != nil {
		return r, err
	}
	if r.Before, err = w.settledMemory(ctx); err != nil {
		return r, err
	}

	policies, cluster := worldPolicies(), clusterPolicies()
	r.Policies = len(policies) + len(cluster)
	say("policy: %d policies", r.Policies)
	r.Ready, err = w.restart(ctx, func() error {
		return errors.Join(create(ctx, reg, api.NetworkPolicy, policies), create(ctx, reg, api.ClusterNetworkPolicy, cluster))
	})
	if err != nil {
		return r, err
	}
	m, err := w.metrics(ctx, w.node)
	if err != nil {
		return r, err
	}
	say("policy: the agent is ready after %v", r.Ready)
	r.Compiled, r.Compilations = m.spent(compileTime), int(m[compileTime+"_count"])
	if r.First, err = w.settledMemory(ctx); err != nil {
		return r, err
	}
	if m, err = w.awaitMetrics(ctx, w.node, "verdicts", func(m metrics) bool { return m[planEntries("verdicts")] > 0 }); err != nil {
		return r, err
	}
	r.Classes, r.Verdicts = int(m[planEntries("classes")]), int(m[planEntries("verdicts")])
	if r.Elements, err = countElements(w.network(w.node), policyTable); err != nil {
		return r, err
	}
	if err := w.changes(ctx, &r); err != nil {
		return r, err
	}
	if err := w.births(ctx, &r); err != nil {
		return r, err
	}
	if m, err = w.metrics(ctx, w.node); err != nil {
		return r, err
	}
	r.Heap = uint64(m["go_memstats_heap_alloc_bytes"])
	pid := c.lab.PID(w.node)
	if r.Peak, err = peakMemory(pid); err != nil {
		return r, err
	}
	r.After, err = processMemory(pid)
	return r, err
}

// The agent's histograms of what it did.
const (
	compileTime = "weft_compile_seconds"
	applyTime   = "weft_apply_seconds"
)

// spent is the sum of a histogram of times.
func (m metrics) spent(histogram string) time.Duration {
	return time.Duration(m[histogram+"_sum"] * float64(time.Second))
}

// populate makes all of the cluster but for the policies.
func (w *world) populate(ctx context.Context, weft, cache string) (err error) {
	a, err := w.attacher(w.node, weft, cache)
	if err != nil {
		return err
	}
	if err := create(ctx, w.reg, api.Namespace, worldNamespaceObjects()); err != nil {
		return err
	}
	if err := create(ctx, w.reg, api.TagKind, worldTags()); err != nil {
		return err
	}
	var local []fictive
	for slot := range worldPods {
		local = append(local, placed(0, slot))
	}
	if w.pods, w.addresses, err = addPods(ctx, w.reg, a, w.node, 0, local); err != nil {
		return err
	}
	// The agent should not do with each of the others what it will do with all.
	if err := w.lab.Kill(w.node); err != nil {
		return err
	}
	if w.subnets, err = addNodes(ctx, w.reg, 1, worldNodes-1); err != nil {
		return err
	}
	var pods []registry.Object
	for n, subnet := range w.subnets {
		pods = append(pods, nodePods(n, subnet))
	}
	return create(ctx, w.reg, api.NodePodsKind, pods)
}

// restart starts the agent anew after something was done in its absence, and
// says how long it took to be ready.
func (w *world) restart(ctx context.Context, meanwhile func() error) (time.Duration, error) {
	if err := w.lab.Kill(w.node); err != nil {
		return 0, err
	}
	if meanwhile != nil {
		if err := meanwhile(); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	err := w.lab.StartNode(ctx, w.node)
	return time.Since(start), err
}

// settledMemory is the agent's once it has had time to collect its garbage.
func (w *world) settledMemory(ctx context.Context) (memory, error) {
	select {
	case <-ctx.Done():
		return memory{}, ctx.Err()
	case <-time.After(5 * time.Second):
	}
	return processMemory(w.lab.PID(w.node))
}

// policyPort is what only the new policies are about.
const policyPort = 9000

// changes makes each kind of change in turn and looks when packets fare
// accordingly. What lets them through and what stops them take turns.
func (w *world) changes(ctx context.Context, r *worldResult) error {
	away, err := newProbe(w.pods[webSlot].path(), w.network(w.node), vxlanDevice, netip.IPv4Unspecified(), podPort)
	if err != nil {
		return err
	}
	defer away.close()
	near, err := newProbe(w.pods[webSlot].path(), w.pods[frontSlot].path(), "eth0", w.addresses[frontSlot], podPort)
	if err != nil {
		return err
	}
	defer near.close()
	fresh, err := newProbe(w.pods[clientSlot].path(), w.pods[webSlot].path(), "eth0", w.addresses[webSlot], policyPort)
	if err != nil {
		return err
	}
	defer fresh.close()

	before, err := w.metrics(ctx, w.node)
	if err != nil {
		return err
	}
	begin, interval := time.Now(), leastInterval
	for round := range changeRounds {
		if time.Since(begin) > changeTime {
			break
		}
		if round%50 == 0 {
			say("policy: change %d of %d", round*changeKinds, changeRounds*changeKinds)
		}
		becomes, allowed := db, false
		if round%2 == 1 {
			becomes, allowed = front, true
		}
		// Ten pods elsewhere take turns.
		slot := int(front) + round/2%(worldPods/roles)*roles
		host := hostOf(0, slot)
		away.aim(slotAddress(w.subnets[host], slot))
		policy := newPolicy(namespaceName(0), fmt.Sprintf("new%d", round), apps(web),
			from(udp(policyPort), networkingv1.NetworkPolicyPeer{PodSelector: apps(client)}), nil)
		for kind, c := range [changeKinds]struct {
			probe  *probe
			wanted bool
			make   func() error
		}{
			remoteLabels: {away, allowed, func() error {
				return modify(ctx, w.reg, api.NodePodsKind, registry.Key{Name: nodeName(host)}, func(n *api.NodePods) {
					retag(n, away.to, fictive{0, becomes}.tag())
				})
			}},
			localLabels: {near, allowed, func() error {
				return modify(ctx, w.reg, api.Pod, w.pods[frontSlot].pod, func(p *corev1.Pod) { p.Labels = fictive{0, becomes}.labels() })
			}},
			policyCreated: {fresh, true, func() error {
				_, err := w.reg.Create(ctx, api.NetworkPolicy, policy)
				return err
			}},
			policyDeleted: {fresh, false, func() error {
				return w.reg.Delete(ctx, api.NetworkPolicy, registry.KeyOf(policy), "")
			}},
		} {
			next := time.Now().Add(interval)
			took, err := c.probe.time(ctx, c.wanted, c.make)
			if err != nil {
				return fmt.Errorf("%s: %w", changeNames[kind], err)
			}
			r.Changes[kind] = append(r.Changes[kind], took)
			time.Sleep(time.Until(next))
		}
		after, err := w.metrics(ctx, w.node)
		if err != nil {
			return err
		}
		compile, apply := after.spent(compileTime)-before.spent(compileTime), after.spent(applyTime)-before.spent(applyTime)
		before = after
		r.Compile, r.Apply = r.Compile+compile, r.Apply+apply
		interval = min(max(workShare*(compile+apply)/time.Duration(changeKinds), leastInterval), mostInterval)
	}
	count := time.Duration(changeKinds * len(r.Changes[0]))
	r.Compile, r.Apply = r.Compile/count, r.Apply/count
	for _, times := range r.Changes {
		slices.Sort(times)
	}
	return nil
}

func modify[T registry.Object](ctx context.Context, reg registry.Registry, k *registry.Kind, key registry.Key, change func(T)) error {
	_, err := registry.Modify(ctx, reg, k, key, func(o T) error {
		change(o)
		return nil
	})
	return err
}

// births lets pods be born on as many other nodes, and counts what the
// registry sends the agent of it.
func (w *world) births(ctx context.Context, r *worldResult) error {
	const pause = 100 * time.Millisecond
	idle, err := w.receivedDuring(func() error {
		for range births {
			time.Sleep(pause)
		}
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	busy, err := w.receivedDuring(func() error {
		for i := range births {
			host := 1 + i
			err := modify(ctx, w.reg, api.NodePodsKind, registry.Key{Name: nodeName(host)}, func(n *api.NodePods) {
				addTagged(n, placed(host, i%worldPods).tag(), slotAddress(w.subnets[host], worldPods))
			})
			if err != nil {
				return err
			}
			time.Sleep(pause)
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.Birth = max(0, int(busy)-int(idle)) / births
	r.PodJSON, r.PodProtobuf, err = podBirth()
	return err
}

// receivedDuring returns how many bytes etcd sent the agent meanwhile.
func (w *world) receivedDuring(f func() error) (uint64, error) {
	before, err := receivedFrom(w.network(w.node), etcdPort)
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := receivedFrom(w.network(w.node), etcdPort)
	return after - before, err
}

// receivedFrom sums up what came over a network namespace's TCP connections to
// a port, in bytes.
func receivedFrom(network string, port uint16) (n uint64, err error) {
	ns, err := vnetns.GetFromPath(network)
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, err
	}
	defer h.Close()
	sockets, err := h.SocketDiagTCPInfo(unix.AF_INET)
	for _, s := range sockets {
		if s.InetDiagMsg.ID.DestinationPort == port && s.TCPInfo != nil {
			n += s.TCPInfo.Bytes_received
		}
	}
	return n, err
}

// podYAML is a Pod of a Deployment as an API server has it once it runs,
// without managedFields.
//
//go:embed pod.yaml
var podYAML []byte

// podBirth is how many bytes the events of a Pod object are that a follower
// gets until it runs: created, scheduled, containers created, running.
func podBirth() (inJSON, inProtobuf int, err error) {
	var running corev1.Pod
	if err := yaml.UnmarshalStrict(podYAML, &running); err != nil {
		return 0, 0, fmt.Errorf("pod.yaml: %w", err)
	}
	for _, p := range podStages(&running) {
		b, err := json.Marshal(p)
		if err != nil {
			return 0, 0, err
		}
		inJSON, inProtobuf = inJSON+len(b), inProtobuf+p.Size()
	}
	return inJSON, inProtobuf, nil
}

// podStages are the states of a Pod until it runs.
func podStages(running *corev1.Pod) [4]*corev1.Pod {
	var stages [4]*corev1.Pod
	for i := range stages {
		stages[i] = running.DeepCopy()
	}
	created, scheduled, starting := stages[0], stages[1], stages[2]
	created.Spec.NodeName = ""
	created.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: running.Status.QOSClass}
	scheduled.Status = *created.Status.DeepCopy()
	for _, c := range running.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			scheduled.Status.Conditions = append(scheduled.Status.Conditions, c)
		}
	}
	starting.Status.Phase, starting.Status.PodIP, starting.Status.PodIPs = corev1.PodPending, "", nil
	for i := range starting.Status.ContainerStatuses {
		c := &starting.Status.ContainerStatuses[i]
		*c = corev1.ContainerStatus{Name: c.Name, Image: c.Image, State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}
	}
	return stages
}
