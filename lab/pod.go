package lab

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/jsonfile"
	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/registry"
)

// DefaultNamespace is that of pods which name none.
const DefaultNamespace = "default"

// ServerPort is where a pod's default command answers, TCP (HTTP) and UDP.
const ServerPort = 8080

// Pod is a pod to run.
type Pod struct {
	// Namespace is DefaultNamespace if empty.
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Node      string            `json:"node"`
	Labels    map[string]string `json:"labels,omitempty"`
	// Annotations are the pod's. Those that limit its bandwidth the lab's runtime hands on, as
	// others do.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Ports are those that the pod says it has, for policies to name; none
	// means those of the server, where it runs that. Those with a HostPort are ports
	// of the node, too.
	Ports []corev1.ContainerPort `json:"ports,omitempty"`
	// Env are variables of its environment, each with a value, in which nothing is replaced.
	// They go before those of Services.
	Env []corev1.EnvVar `json:"env,omitempty"`
	// EnableServiceLinks is whether it gets variables of the Services of its namespace, where
	// the lab has names; nil means that it does.
	EnableServiceLinks *bool `json:"enableServiceLinks,omitempty"`
	// Command is what the pod runs; empty means a server on ServerPort that
	// answers with the pod's name and the client's address.
	Command []string `json:"command,omitempty"`
}

func (p Pod) key() registry.Key { return registry.Key{Namespace: p.Namespace, Name: p.Name} }

// podRecord is what is on disk of a pod.
type podRecord struct {
	Pod
	// UID is that of the Pod object.
	UID string `json:"uid"`
	// ContainerID is the pod's name towards CNI and that of its network
	// namespace on the node; a pod that is started again gets another.
	ContainerID string `json:"containerID"`
	// Addresses are what CNI gave it.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Environment is what its process got besides what all of the lab's get, as NAME=VALUE.
	Environment []string `json:"environment,omitempty"`
	// Phase says how it ended, and is empty before; Released that it has given
	// its network back then.
	Phase    corev1.PodPhase `json:"phase,omitempty"`
	Released bool            `json:"released,omitempty"`
}

func (r podRecord) network() string { return nodeNetns + "/" + r.ContainerID }

func (l *Lab) podFile(p Pod) string { return filepath.Join(l.dir.pod(p.Namespace, p.Name), "pod.json") }
func (l *Lab) processFile(p Pod) string {
	return filepath.Join(l.dir.pod(p.Namespace, p.Name), "process.json")
}
func (l *Lab) podLog(p Pod) string { return filepath.Join(l.dir.pod(p.Namespace, p.Name), "log") }

func (p Pod) validate() error {
	for what, value := range map[string]string{"pod": p.Name, "namespace": p.Namespace} {
		if problems := validation.IsDNS1123Label(value); len(problems) > 0 {
			return fmt.Errorf("%q is no name for a %s: %s", value, what, strings.Join(problems, "; "))
		}
	}
	for k, v := range p.Labels {
		if problems := append(validation.IsQualifiedName(k), validation.IsValidLabelValue(v)...); len(problems) > 0 {
			return fmt.Errorf("%s=%s is no label: %s", k, v, strings.Join(problems, "; "))
		}
	}
	for k := range p.Annotations {
		if problems := validation.IsQualifiedName(k); len(problems) > 0 {
			return fmt.Errorf("%s is no annotation's name: %s", k, strings.Join(problems, "; "))
		}
	}
	_, err := api.PodNetwork(p.object())
	return errors.Join(p.validatePorts(), p.validateEnv(), err)
}

func (p Pod) validatePorts() error {
	var names []string
	for _, port := range p.Ports {
		problems := append(validation.IsValidPortName(port.Name), validation.IsValidPortNum(int(port.ContainerPort))...)
		if port.HostPort != 0 {
			problems = append(problems, validation.IsValidPortNum(int(port.HostPort))...)
		}
		if slices.Contains(names, port.Name) {
			problems = append(problems, "another port has the name")
		}
		if !slices.Contains([]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}, port.Protocol) {
			problems = append(problems, "the protocol is TCP, UDP or SCTP")
		}
		if len(problems) > 0 {
			return fmt.Errorf("%s=%s/%d is no port: %s", port.Name, port.Protocol, port.ContainerPort, strings.Join(problems, "; "))
		}
		names = append(names, port.Name)
	}
	return nil
}

// Run starts a pod and returns its addresses when it runs, and where it runs
// the default command, when it serves. When that fails, nothing is left of it; or
// the error says what is, which Delete takes away.
func (l *Lab) Run(ctx context.Context, p Pod) ([]netip.Addr, error) {
	p.Namespace = cmp.Or(p.Namespace, DefaultNamespace)
	if err := p.validate(); err != nil {
		return nil, err
	}
	m, err := l.node(p.Node)
	if err != nil {
		return nil, err
	}
	unlock, err := l.dir.lock(shared, false)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if !l.isOn(m) {
		return nil, fmt.Errorf("node %s is off: start it with: weft lab start-node %s", p.Node, p.Node)
	}
	reg, err := l.Registry()
	if err != nil {
		return nil, err
	}
	defer reg.Close()
	place := l.dir.pod(p.Namespace, p.Name)
	for err = os.ErrNotExist; errors.Is(err, os.ErrNotExist); { // another may just have emptied the namespace
		if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
			return nil, err
		}
		err = os.Mkdir(place, 0o755)
	}
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("pod %s exists in the lab: delete it with: weft lab delete %s -n %s", p.key(), p.Name, p.Namespace)
	} else if err != nil {
		return nil, err
	}
	unlockPod, err := l.lockPod(p)
	if err != nil {
		return nil, err
	}
	defer unlockPod()
	// The UID is on disk before there can be an object with it: a registry that
	// goes away may have made the object without saying so.
	r := podRecord{Pod: p, UID: string(uuid.NewUUID())}
	made, err := l.declare(ctx, reg, r)
	if err == nil {
		err = l.startPod(ctx, reg, &r)
	}
	if err != nil {
		ctx := context.WithoutCancel(ctx)
		cleanup := l.removePod(ctx, reg, r)
		switch {
		case made == nil:
		case cleanup == nil:
			cleanup = removeEmpty(ctx, reg, made)
		default:
			cleanup = fmt.Errorf("%w; and then the Namespace that was made for it with: weft delete namespace %s", cleanup, p.Namespace)
		}
		return nil, errors.Join(fmt.Errorf("pod %s: %w", p.key(), err), cleanup)
	}
	return r.Addresses, nil
}

// declare creates the Pod object, and its Namespace if there is none, which it
// returns then.
func (l *Lab) declare(ctx context.Context, reg registry.Registry, r podRecord) (made registry.Object, err error) {
	if err := jsonfile.Write(l.podFile(r.Pod), r); err != nil {
		return nil, err
	}
	made, err = reg.Create(ctx, api.Namespace, namespaceObject(r.Namespace))
	if errors.Is(err, registry.ErrExists) {
		made = nil
	} else if err != nil {
		return nil, err
	}
	pod := r.object()
	pod.UID = types.UID(r.UID)
	_, err = reg.Create(ctx, api.Pod, pod)
	return made, err
}

// object is the Pod object of a pod that has not been started.
func (p Pod) object() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels, Annotations: p.Annotations},
		Spec: corev1.PodSpec{NodeName: p.Node, EnableServiceLinks: p.EnableServiceLinks,
			Containers: []corev1.Container{{Name: p.Name, Command: p.Command, Ports: p.ports(), Env: p.Env}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

// namespaceObject is a Namespace with the label that an API server gives each, by which
// policies name namespaces.
func namespaceObject(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}}
}

// removeEmpty deletes a Namespace that nobody has changed and no pod is in.
func removeEmpty(ctx context.Context, reg registry.Registry, ns registry.Object) error {
	pods, _, err := reg.List(ctx, api.Pod)
	if err != nil || slices.ContainsFunc(pods, func(o registry.Object) bool { return o.GetNamespace() == ns.GetName() }) {
		return err
	}
	err = reg.Delete(ctx, api.Namespace, registry.KeyOf(ns), ns.GetResourceVersion())
	if errors.Is(err, registry.ErrConflict) || errors.Is(err, registry.ErrNotFound) {
		return nil
	}
	return err
}

func (p Pod) ports() []corev1.ContainerPort {
	if len(p.Command) > 0 || len(p.Ports) > 0 {
		return p.Ports
	}
	return []corev1.ContainerPort{
		{Name: "http", ContainerPort: ServerPort, Protocol: corev1.ProtocolTCP},
		{Name: "udp", ContainerPort: ServerPort, Protocol: corev1.ProtocolUDP},
	}
}

// startPod makes the pod's namespace, attaches it, and starts its process.
func (l *Lab) startPod(ctx context.Context, reg registry.Registry, r *podRecord) error {
	r.ContainerID = newContainerID()
	r.Addresses, r.Environment = nil, nil
	if err := jsonfile.Write(l.podFile(r.Pod), r); err != nil {
		return err
	}
	err := l.onNode(r.Node, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		return bindFile("/proc/thread-self/ns/net", r.network())
	})
	if err != nil {
		return err
	}
	if r.Addresses, err = l.attach(ctx, *r); err != nil {
		return err
	}
	files, err := l.introduce(ctx, reg, r)
	if err != nil {
		return err
	}
	if err := jsonfile.Write(l.podFile(r.Pod), r); err != nil {
		return err
	}
	args := r.Command
	if len(args) == 0 {
		args = []string{l.options.Weft, "lab", "serve", "--name", r.Name, "--ready-fd", fmt.Sprint(readyFD)}
	}
	_, err = launch{
		Weft: l.options.Weft, Record: l.processFile(r.Pod), Log: l.podLog(r.Pod), End: l.endFile(r.Pod),
		Clone: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Ready: len(r.Command) == 0,
		Stage: stage{Hostname: r.Name, Pod: true, Files: files, Env: r.Environment, Ended: true, Args: args},
		Within: func(f func() error) error {
			return l.onNode(r.Node, func() error {
				if err := netns.Enter(r.network(), unix.CLONE_NEWNET); err != nil {
					return err
				}
				return f()
			})
		},
	}.start(ctx)
	if err != nil {
		return err
	}
	if err := l.publish(ctx, reg, *r); err != nil {
		return err
	}
	l.tellKubelet()
	return nil
}

// publish writes into the Pod object what the kubelet would.
func (l *Lab) publish(ctx context.Context, reg registry.Registry, r podRecord) error {
	for {
		o, err := reg.Get(ctx, api.Pod, r.key())
		if err != nil {
			return err
		}
		pod := o.(*corev1.Pod)
		pod.Status.Phase = corev1.PodRunning
		now := metav1.Now()
		pod.Status.StartTime = &now
		pod.Status.HostIP = ""
		pod.Status.HostIPs, pod.Status.PodIPs = nil, nil
		m, err := l.node(r.Node)
		if err != nil {
			return err
		}
		for _, a := range m.addresses(l.options.IPv6) {
			pod.Status.HostIP = cmp.Or(pod.Status.HostIP, a.String())
			pod.Status.HostIPs = append(pod.Status.HostIPs, corev1.HostIP{IP: a.String()})
		}
		pod.Status.PodIP = ""
		for _, a := range r.Addresses {
			pod.Status.PodIP = cmp.Or(pod.Status.PodIP, a.String())
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a.String()})
		}
		if _, err := reg.Update(ctx, api.Pod, pod); !errors.Is(err, registry.ErrConflict) {
			return err
		}
	}
}

// Delete ends a pod and removes all that belongs to it. When that fails, what
// is left can be deleted again.
func (l *Lab) Delete(ctx context.Context, namespace, name string) error {
	p := Pod{Namespace: cmp.Or(namespace, DefaultNamespace), Name: name}
	if err := p.validate(); err != nil {
		return err
	}
	unlock, err := l.dir.lock(shared, false)
	if err != nil {
		return err
	}
	defer unlock()
	unlockPod, err := l.lockPod(p)
	if err != nil {
		return err
	}
	defer unlockPod()
	r, err := l.podRecord(p.Namespace, p.Name)
	if errors.Is(err, os.ErrNotExist) { // it was killed before it wrote anything else
		return os.RemoveAll(l.dir.pod(p.Namespace, p.Name))
	}
	if err != nil {
		return err
	}
	reg, err := l.Registry()
	if err != nil {
		return err
	}
	defer reg.Close()
	return l.removePod(ctx, reg, r)
}

// removePod undoes what Run did, however far that came. An error says what is
// left.
func (l *Lab) removePod(ctx context.Context, reg registry.Registry, r podRecord) error {
	if err := l.haltPod(ctx, r); err != nil {
		return l.left(r, "its object, its network namespace, and what CNI may have given it", err)
	}
	o, err := reg.Get(ctx, api.Pod, r.key())
	// An object with another UID is not the lab's.
	if err == nil && string(o.GetUID()) == r.UID {
		err = reg.Delete(ctx, api.Pod, r.key(), "")
	}
	if err != nil && !errors.Is(err, registry.ErrNotFound) {
		return l.left(r, "its object", err)
	}
	if err := os.RemoveAll(l.dir.pod(r.Namespace, r.Name)); err != nil {
		return err
	}
	// It stays as long as there are other pods in the namespace.
	os.Remove(filepath.Dir(l.dir.pod(r.Namespace, r.Name)))
	return nil
}

// left says what is left of a pod that could not be removed, and what takes it
// away.
func (l *Lab) left(r podRecord, what string, err error) error {
	first := ""
	// The agent needs the registry, and so etcd.
	for _, name := range []string{l.etcdDaemon(), r.Node} {
		if l.PID(name) == 0 {
			first += fmt.Sprintf("weft lab start-node %s && ", name)
		}
	}
	return fmt.Errorf("pod %s: %s cannot be removed: %w; take away what is left with: %sweft lab delete %s -n %s",
		r.key(), what, err, first, r.Name, r.Namespace)
}

// haltPod ends a pod's process and takes its network away.
func (l *Lab) haltPod(ctx context.Context, r podRecord) error {
	if err := readProcess(l.processFile(r.Pod)).Kill(); err != nil {
		return err
	}
	m, err := l.node(r.Node)
	if err != nil || !l.isOn(m) || r.ContainerID == "" {
		return err
	}
	if err := l.detach(ctx, r); err != nil {
		return err
	}
	return l.onNode(r.Node, func() error { return releaseFile(r.network()) })
}

// restartPods starts those pods of a node again that lost their network
// namespace with the node's power.
func (l *Lab) restartPods(ctx context.Context, node string) error {
	records, err := l.podRecords()
	if err != nil {
		return err
	}
	reg, err := l.Registry()
	if err != nil {
		return err
	}
	defer reg.Close()
	tasks, tctx := errgroup.WithContext(ctx)
	for _, r := range records {
		if r.Node != node || r.Phase != "" {
			continue
		}
		tasks.Go(func() error {
			unlock, err := l.lockPod(r.Pod)
			if err != nil {
				return nil // somebody deleted it
			}
			defer unlock()
			err = l.onNode(node, func() error { _, err := os.Stat(r.network()); return err })
			if !errors.Is(err, os.ErrNotExist) {
				return err
			}
			if err := l.startPod(tctx, reg, &r); err != nil {
				return errors.Join(fmt.Errorf("pod %s: %w", r.key(), err), l.haltPod(context.WithoutCancel(ctx), r))
			}
			return nil
		})
	}
	return tasks.Wait()
}

// Addresses returns a pod's addresses, the primary one first.
func (l *Lab) Addresses(namespace, name string) ([]netip.Addr, error) {
	r, err := l.podRecord(cmp.Or(namespace, DefaultNamespace), name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, l.noPod(Pod{Namespace: cmp.Or(namespace, DefaultNamespace), Name: name})
	}
	return r.Addresses, err
}

func (l *Lab) noPod(p Pod) error {
	return fmt.Errorf("the lab has no pod %s (see: weft lab status)", p.key())
}

// lockPod makes sure that nobody else starts or deletes a pod.
func (l *Lab) lockPod(p Pod) (unlock func(), err error) { return l.takePod(p, alone) }

// tryLockPod is lockPod, but fails with errBusy where that would wait.
func (l *Lab) tryLockPod(p Pod) (unlock func(), err error) { return l.takePod(p, aloneNow) }

func (l *Lab) takePod(p Pod, s sharing) (unlock func(), err error) {
	place := l.dir.pod(p.Namespace, p.Name)
	f, err := os.Open(place)
	if err != nil {
		return nil, l.noPod(p)
	}
	if err = flock(f, s); err != nil {
		f.Close()
		return nil, err
	}
	// Who had the lock before may have deleted the pod, and another may have made
	// one of the same name.
	mine, err1 := f.Stat()
	now, err2 := os.Stat(place)
	if err1 != nil || err2 != nil || !os.SameFile(mine, now) {
		f.Close()
		return nil, l.noPod(p)
	}
	return func() { f.Close() }, nil
}

func (l *Lab) podRecord(namespace, name string) (podRecord, error) {
	var r podRecord
	err := jsonfile.Read(l.podFile(Pod{Namespace: namespace, Name: name}), &r)
	return r, err
}

// podRecords returns all pods in order of namespace and name.
func (l *Lab) podRecords() ([]podRecord, error) {
	files, err := fs.Glob(os.DirFS(l.dir.pods()), "*/*/pod.json")
	if err != nil {
		return nil, err
	}
	var records []podRecord
	for _, f := range files {
		var r podRecord
		err := jsonfile.Read(filepath.Join(l.dir.pods(), f), &r)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b podRecord) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return records, nil
}

func newContainerID() string {
	id := make([]byte, 32)
	rand.Read(id)
	return hex.EncodeToString(id)
}
