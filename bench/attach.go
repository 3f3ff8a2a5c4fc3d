package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/registry"
)

// podNamespace is a network namespace that waits for the network of a pod.
type podNamespace struct {
	file *os.File
	// pod is whose it is, and uid that pod's UID, which may be empty.
	pod registry.Key
	uid string
}

// path is that of the namespace, for any process that this one's /proc shows.
// It needs no mount, so nothing is left of it when this process ends.
func (p podNamespace) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.file.Fd()) }

func newPodNamespaces(n int) ([]podNamespace, error) {
	var pods []podNamespace
	for i := range n {
		f, err := newNetwork()
		if err != nil {
			return nil, errors.Join(err, closeAll(pods))
		}
		pods = append(pods, podNamespace{file: f, pod: registry.Key{Namespace: "bench", Name: fmt.Sprintf("pod%d", i)}})
	}
	return pods, nil
}

func closeAll(pods []podNamespace) error {
	var errs []error
	for _, p := range pods {
		errs = append(errs, p.file.Close())
	}
	return errors.Join(errs...)
}

func newNetwork() (f *os.File, err error) {
	err = netns.Thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		f, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	return f, err
}

// attacher is a CNI plug-in on a node, as a container runtime there has it.
type attacher struct {
	name string
	// within runs a function in the node's namespaces.
	within func(func() error) error
	cni    *libcni.CNIConfig
	list   *libcni.NetworkConfigList
	// daemon is the process that works for the plug-in's; 0 where there is none.
	daemon int
	// asks has each pod ask for a port of the node and for limits of its bandwidth.
	asks bool
}

// batch is what one ADD of every pod, and then one DEL of every pod, took.
type batch struct {
	Add, Delete []time.Duration // sorted
	AddSpent    spent
}

// spent is the processor time of a batch of calls, all of them together.
type spent struct {
	// Plugin is that of the processes that the caller starts, from fork to exit, and
	// Daemon that of the one that works for them.
	Plugin, Daemon time.Duration
}

// processorTime says what was spent until now.
func (a attacher) processorTime() (s spent, err error) {
	var children unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &children); err != nil {
		return s, fmt.Errorf("getrusage: %w", err)
	}
	s.Plugin = time.Duration(children.Utime.Nano() + children.Stime.Nano())
	if a.daemon != 0 {
		s.Daemon, err = processTime(a.daemon)
	}
	return s, err
}

// processTime is the processor time that a process has used, all of its threads.
func processTime(pid int) (time.Duration, error) {
	// clock_getcpuclockid(3) makes this of a process's ID; 2 is CPUCLOCK_SCHED.
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// call makes one CNI call and says how long it took from the runtime's side.
func (a attacher) call(f func() error) (took time.Duration, err error) {
	err = a.within(func() error {
		start := time.Now()
		err := f()
		took = time.Since(start)
		return err
	})
	return took, err
}

// each calls f for every pod, with so many calls in flight, and returns how
// long they took, sorted.
func (a attacher) each(ctx context.Context, pods []podNamespace, inFlight int, f func(context.Context, *libcni.RuntimeConf) error) ([]time.Duration, error) {
	times := make([]time.Duration, len(pods))
	calls, ctx := errgroup.WithContext(ctx)
	calls.SetLimit(inFlight)
	for i, pod := range pods {
		calls.Go(func() (err error) {
			rt := &libcni.RuntimeConf{ContainerID: "bench-" + pod.pod.Name, NetNS: pod.path(), IfName: "eth0",
				Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", pod.pod.Namespace}, {"K8S_POD_NAME", pod.pod.Name}, {"K8S_POD_UID", pod.uid}}}
			if a.asks {
				rt.CapabilityArgs = map[string]any{
					"portMappings": []map[string]any{{"hostPort": 20000 + i, "containerPort": 80, "protocol": "tcp"}},
					"bandwidth":    map[string]any{"ingressRate": 100_000_000, "ingressBurst": 10_000_000, "egressRate": 100_000_000, "egressBurst": 10_000_000},
				}
			}
			times[i], err = a.call(func() error { return f(ctx, rt) })
			if err != nil {
				return fmt.Errorf("%s: pod %d: %w", a.name, i, err)
			}
			return nil
		})
	}
	err := calls.Wait()
	slices.Sort(times)
	return times, err
}

func (a attacher) addAll(ctx context.Context, pods []podNamespace, inFlight int) ([]time.Duration, error) {
	return a.each(ctx, pods, inFlight, func(ctx context.Context, rt *libcni.RuntimeConf) error {
		_, err := a.cni.AddNetworkList(ctx, a.list, rt)
		return err
	})
}

func (a attacher) deleteAll(ctx context.Context, pods []podNamespace, inFlight int) ([]time.Duration, error) {
	return a.each(ctx, pods, inFlight, func(ctx context.Context, rt *libcni.RuntimeConf) error {
		return a.cni.DelNetworkList(ctx, a.list, rt)
	})
}

// measureAttach attaches and detaches all pods by each plug-in in turn, in an
// order drawn anew in each round.
func measureAttach(ctx context.Context, attachers []attacher, pods []podNamespace, inFlight, rounds int, say func(string, ...any)) (map[string][]batch, error) {
	batches := make(map[string][]batch)
	for round := range rounds {
		say("CNI: round %d of %d", round+1, rounds)
		for _, i := range rand.Perm(len(attachers)) {
			a := attachers[i]
			var b batch
			before, err := a.processorTime()
			if err != nil {
				return nil, err
			}
			if b.Add, err = a.addAll(ctx, pods, inFlight); err != nil {
				return nil, err
			}
			after, err := a.processorTime()
			if err != nil {
				return nil, err
			}
			b.AddSpent = spent{after.Plugin - before.Plugin, after.Daemon - before.Daemon}
			if b.Delete, err = a.deleteAll(ctx, pods, inFlight); err != nil {
				return nil, err
			}
			batches[a.name] = append(batches[a.name], b)
		}
	}
	return batches, nil
}

// debianPlugins is where the package containernetworking-plugins puts them.
const debianPlugins = "/usr/lib/cni"

// referenceAttacher is one of Debian's plug-ins with flannel's settings, on a
// node of its own. What it writes lies in dir. Where pods are to ask for ports and limits, those
// plug-ins follow that give them.
func referenceAttacher(plugin, dir string, asks bool, node *worker) (attacher, error) {
	a := attacher{name: plugin + " + host-local", asks: asks, within: func(f func() error) error { return netns.Do(node.namespace(), f) }}
	routes := []any{map[string]any{"dst": handCluster}}
	settings := map[string]any{"type": plugin, "mtu": underlayMTU - vxlanCost, "ipMasq": false}
	if plugin == "bridge" {
		settings["bridge"], settings["isDefaultGateway"], settings["hairpinMode"] = "cni0", true, true
	} else {
		routes = append(routes, map[string]any{"dst": "0.0.0.0/0"})
	}
	settings["ipam"] = map[string]any{"type": "host-local", "dataDir": filepath.Join(dir, plugin),
		"ranges": [][]any{{map[string]any{"subnet": "10.244.1.0/24"}}}, "routes": routes}
	list := []any{settings}
	if asks {
		a.name += " + portmap + bandwidth"
		list = append(list, map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
			map[string]any{"type": "bandwidth", "capabilities": map[string]bool{"bandwidth": true}})
	}
	conf, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "bench-" + plugin, "plugins": list})
	if err != nil {
		return a, err
	}
	if a.list, err = libcni.ConfListFromBytes(conf); err != nil {
		return a, err
	}
	a.cni = libcni.NewCNIConfigWithCacheDir([]string{debianPlugins}, filepath.Join(dir, plugin+"-cache"), nil)
	return a, nil
}
