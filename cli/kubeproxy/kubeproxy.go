// Package kubeproxy takes kube-proxy out of a running Kubernetes cluster, and brings it back.
//
// Both ways are the same in that for a while both do Services: a connection has one backend, given
// by whichever comes first, and keeps it as connection tracking remembers it. So nothing is taken
// from kube-proxy before every node says that it does Services by itself, and nothing from the
// nodes before kube-proxy has run on all of its own for a while. Whether that has written its
// rules nobody says. What kube-proxy leaves in the kernels it takes away itself, with its
// --cleanup, on every node once its own pods are gone.
//
// Nothing is remembered but in the objects that are changed: a run that was killed is taken up
// by the next, in either direction.
package kubeproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/cli/everynode"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/registry"
)

const (
	// cleanerName is the name of the DaemonSet that has kube-proxy clean up, in the namespace of
	// kube-proxy's own.
	cleanerName = "weft-kube-proxy-cleanup"
	// nowhere is a label that no node has: with it in its nodeSelector kube-proxy's DaemonSet has
	// no pods, and all else that it says stays as it was.
	nowhere = api.KubeProxyAnnotation
	removed = api.KubeProxyRemoved
	// settling is how long kube-proxy must have run before Services are left to it.
	settling = 10 * time.Second
	// runAnnotation tells the pods of one run from those of another.
	runAnnotation = "weft.network/run"
	// weftConfig is the ConfigMap by which agents find the API server.
	weftConfig = "weft"
	// pageSize bounds how many objects come with one answer.
	pageSize = 500
)

// DaemonSet is kube-proxy's where its cluster calls it as most do.
var DaemonSet = registry.Key{Namespace: "kube-system", Name: "kube-proxy"}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// Options say what is done.
type Options struct {
	// Namespace is that of Weft's own objects.
	Namespace string
	// DaemonSet is kube-proxy's.
	DaemonSet registry.Key
	// Force does it though agents may not find the API server without kube-proxy, connections break or may
	// break, or nobody answers on the link any more for addresses of Services; and does not wait for nodes without an agent
	// whose kubelets say that they are not ready, or of which nobody knows.
	Force bool
	// DryRun does nothing, and says what would be done.
	DryRun bool
	// Progress is told what was done, a line each.
	Progress func(line string)
	// Poll is how often the cluster is looked at, a second by default.
	Poll time.Duration
}

// Change takes kube-proxy out of one cluster, or brings it back.
type Change struct {
	Options
	registry registry.Registry
	client   dynamic.Interface
	// left are the nodes that were not waited for, as of the last look.
	left map[string]bool
}

// New returns a Change of the cluster of a registry and a client.
func New(r registry.Registry, client dynamic.Interface, o Options) *Change {
	if o.Poll == 0 {
		o.Poll = time.Second
	}
	return &Change{Options: o, registry: r, client: client}
}

// Ended returns the DaemonSets that have no pods because a Remove has ended them, in all namespaces.
func Ended(ctx context.Context, client dynamic.Interface) (all []registry.Key, err error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		list, err := client.Resource(everynode.DaemonSets).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list daemonsets, to see whether one is a kube-proxy that weft kube-proxy remove has ended: %w", err)
		}
		for _, d := range list.Items {
			if is, _, _ := unstructured.NestedString(d.Object, "spec", "template", "spec", "nodeSelector", nowhere); is == removed {
				all = append(all, registry.Key{Namespace: d.GetNamespace(), Name: d.GetName()})
			}
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return all, nil
		}
	}
}

// Remove has all nodes do Services by themselves, then ends kube-proxy, and has what it left on
// nodes taken away. Nodes that are down are left out, which is said.
func (c *Change) Remove(ctx context.Context) error { return c.sayLeft("remove", c.remove(ctx)) }

func (c *Change) remove(ctx context.Context) error {
	d, err := everynode.Get(ctx, c.client, c.DaemonSet.Namespace, c.DaemonSet.Name)
	if err != nil {
		return err
	}
	var cleaner *appsv1.DaemonSet
	if d != nil {
		if cleaner, err = cleanerOf(d, time.Now()); err != nil {
			return err
		}
		if err := c.breaking(ctx, d); err != nil {
			return err
		}
	}
	if err := c.apiWithout(ctx); err != nil {
		return err
	}
	if err := c.serveBy(ctx, api.WeftProxy); err != nil {
		return err
	}
	if d == nil {
		c.say("there is no DaemonSet %s: where kube-proxy runs in another way, end it on each node, and run kube-proxy --cleanup there", c.DaemonSet)
		return nil
	}
	if err := c.place(ctx, d, removed); err != nil || c.DryRun {
		return err
	}
	// One that was not ended is not to be called one that runs again.
	if err := c.mark(ctx, true); err != nil {
		return err
	}
	if err := c.awaitPods(ctx, d); err != nil {
		return err
	}
	work := c.work()
	if err := work.Put(ctx, cleaner); err != nil {
		return err
	}
	if err := work.Await(ctx); err != nil {
		return err
	}
	return c.deleteCleaner(ctx)
}

// Restore has kube-proxy do Services on all nodes, and then leaves them to it. Nodes that are down are
// left out, which is said.
func (c *Change) Restore(ctx context.Context) error { return c.sayLeft("restore", c.restore(ctx)) }

func (c *Change) restore(ctx context.Context) error {
	d, err := everynode.Get(ctx, c.client, c.DaemonSet.Namespace, c.DaemonSet.Name)
	if err != nil {
		return err
	}
	if d == nil && !c.Force {
		return fmt.Errorf("nothing was changed: there is no DaemonSet %s: give the name of kube-proxy's with --daemonset; where it runs in another way, start it on each node and give --force", c.DaemonSet)
	}
	switch cutOff, err := c.onLink(ctx); {
	case err != nil:
		return err
	case len(cutOff) > 0 && !c.Force:
		return fmt.Errorf("nothing was changed: nodes answer on the link for what they serve themselves alone, so that with kube-proxy nobody outside reaches %s: "+
			"have something else lead there and set announce of the AddressPools to %s, or give --force", printable.Few(cutOff, 0), api.AnnounceNone)
	case len(cutOff) > 0:
		c.say("with kube-proxy no node answers on the link for %s", printable.Few(cutOff, 0))
	}
	if err := c.mark(ctx, false); err != nil {
		return err
	}
	if d != nil {
		if err := c.deleteCleaner(ctx); err != nil {
			return err
		}
		if err := c.place(ctx, d, ""); err != nil {
			return err
		}
		if err := c.awaitReady(ctx); err != nil {
			return err
		}
	}
	return c.serveBy(ctx, api.KubeProxy)
}

func (c *Change) say(format string, args ...any) { c.Progress(fmt.Sprintf(format, args...)) }

// sayLeft says which nodes were not waited for, where a change has come to its end.
func (c *Change) sayLeft(verb string, err error) error {
	if err == nil && len(c.left) > 0 {
		c.say("nodes that were left out, as no agent lives there and the Node is not Ready: %s: once they are back, run %s again",
			printable.Few(slices.Sorted(maps.Keys(c.left)), 0), Command(verb, c.DaemonSet))
	}
	return err
}

func (c *Change) work() *everynode.Work {
	return &everynode.Work{Client: c.client, Namespace: c.DaemonSet.Namespace, Name: cleanerName, Progress: c.Progress, Poll: c.Poll, LeftOut: c.leftOut}
}

// apiWithout says why agents might not find the API server without kube-proxy.
func (c *Change) apiWithout(ctx context.Context) error {
	o, err := c.client.Resource(configMaps).Namespace(c.Namespace).Get(ctx, weftConfig, metav1.GetOptions{})
	if err != nil && !c.Force {
		return fmt.Errorf("read the ConfigMap %s of namespace %s, which says how agents find the API server: %w", weftConfig, c.Namespace, err)
	}
	var text string
	if err == nil {
		text, _, _ = unstructured.NestedString(o.Object, "data", "config.yaml")
	}
	var config struct {
		Kubernetes struct {
			API string `json:"api"`
		} `json:"kubernetes"`
	}
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		return fmt.Errorf("the ConfigMap %s of namespace %s: config.yaml: %w", weftConfig, c.Namespace, err)
	}
	switch {
	case config.Kubernetes.API != "":
		return nil
	case c.Force:
		c.say("agents find the API server by the Service kubernetes, which a node that starts anew does not serve before its agent has found it")
		return nil
	}
	return errors.New("nothing was changed: agents find the API server by the Service kubernetes, and where kube-proxy does not serve that, " +
		"the agent of a node that starts anew never finds it: give its URL in the value kubernetes.api of the chart, beside all other values that were given " +
		"(helm upgrade --reset-then-reuse-values --set kubernetes.api=URL), " +
		"or --force where something else leads nodes to that Service's address")
}

// onLink names the addresses of Services for which nodes answer on the link as long as they do
// Services themselves.
func (c *Change) onLink(ctx context.Context) (addresses []string, err error) {
	config, err := c.config(ctx)
	switch {
	case isGone(err):
		return nil, nil
	case err != nil:
		return nil, err
	case api.Effective(config).Spec.ServiceProxy == api.KubeProxy:
		return nil, nil // nobody does any more
	}
	list, lost, err := c.nodes(ctx)
	if err != nil || !slices.ContainsFunc(list, func(n *corev1.Node) bool { return !lost[n.Name] }) {
		return nil, err
	}
	objects := make(registry.Snapshot)
	for _, k := range []*registry.Kind{api.Service, api.AddressPoolKind, api.AddressGrantKind} {
		all, _, err := c.registry.List(ctx, k)
		if err != nil && !isGone(err) {
			return nil, fmt.Errorf("see for which addresses nodes answer on the link: %w", err)
		}
		objects[k] = all
	}
	for g, svc := range explain.OnLink(objects) {
		addresses = append(addresses, fmt.Sprintf("%s of Service %s", g.Address(), registry.KeyOf(svc)))
	}
	slices.Sort(addresses)
	return addresses, nil
}

// serveBy has all nodes leave Services to somebody, and waits until they say so.
func (c *Change) serveBy(ctx context.Context, who string) error {
	config, err := c.config(ctx)
	if err != nil && (who != api.KubeProxy || !isGone(err)) {
		return err
	}
	gone := err // what was read, where Weft was taken out with its objects
	if gone == nil && api.Effective(config).Spec.ServiceProxy != who {
		if c.DryRun {
			c.say("would set spec.serviceProxy of the ClusterConfig to %s, and wait until all nodes say so", who)
			return nil
		}
		config.Spec.ServiceProxy = who
		if _, err := c.registry.Update(ctx, api.ClusterConfigKind, config); err != nil {
			return fmt.Errorf("set spec.serviceProxy of the ClusterConfig to %s: %w", who, err)
		}
		c.say("spec.serviceProxy of the ClusterConfig is %s", who)
	}
	for {
		said, waiting, err := c.others(ctx, who)
		switch {
		case err != nil && ctx.Err() == nil:
			return err
		case err == nil && len(waiting) == 0 && said == 0 && who == api.KubeProxy:
			c.say("no node has an agent of Weft, so that Services are done by kube-proxy alone")
			return nil
		case err == nil && len(waiting) == 0 && len(c.left) > 0:
			c.say("all nodes but %s say that Services are done by %s", printable.Few(slices.Sorted(maps.Keys(c.left)), 0), who)
			return nil
		case err == nil && len(waiting) == 0:
			c.say("all nodes say that Services are done by %s", who)
			return nil
		case err == nil && gone != nil:
			return fmt.Errorf("not all nodes say that Services are done by %s, and nothing can tell them to: %s: %w", who, strings.Join(waiting, "; "), gone)
		case err == nil && c.DryRun:
			return fmt.Errorf("not all nodes say that Services are done by %s: %s", who, strings.Join(waiting, "; "))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not all nodes say that Services are done by %s: %s: see weft status; "+
				"give more --timeout, or mend them, and run it again", who, strings.Join(waiting, "; "))
		case <-time.After(c.Poll):
		}
	}
}

// mark has the ClusterConfig say whether kube-proxy is to run nowhere, and which DaemonSet that is, so
// that it is seen where somebody else brings it back.
func (c *Change) mark(ctx context.Context, ended bool) error {
	if c.DryRun {
		return nil
	}
	_, err := registry.Modify(ctx, c.registry, api.ClusterConfigKind, registry.Key{Name: api.DefaultName}, func(config *api.ClusterConfig) error {
		if ended {
			value := removed
			if c.DaemonSet != DaemonSet {
				value += " " + c.DaemonSet.String()
			}
			metav1.SetMetaDataAnnotation(&config.ObjectMeta, api.KubeProxyAnnotation, value)
		} else {
			delete(config.Annotations, api.KubeProxyAnnotation)
		}
		return nil
	})
	if err != nil && !isGone(err) {
		return fmt.Errorf("say in the annotation %s of the ClusterConfig whether kube-proxy is to run: %w", api.KubeProxyAnnotation, err)
	}
	return nil
}

// Removed returns the DaemonSet that a Remove has ended, as the ClusterConfig says, and whether it
// says so.
func Removed(config *api.ClusterConfig) (d registry.Key, is bool) {
	said, of, _ := strings.Cut(config.Annotations[api.KubeProxyAnnotation], " ")
	if namespace, name, ok := strings.Cut(of, "/"); ok {
		return registry.Key{Namespace: namespace, Name: name}, said == removed
	}
	return DaemonSet, said == removed
}

// Command is the command that does to a DaemonSet what a verb says.
func Command(verb string, d registry.Key) string {
	command := "weft kube-proxy " + verb
	if d != DaemonSet {
		command += " --daemonset " + d.String()
	}
	return command
}

// On returns the nodes on which kube-proxy runs as a pod where most clusters have it: in its namespace,
// as its DaemonSet has it or as a pod that the node's kubelet has by itself. A DaemonSet that a Remove
// has ended is one of kube-proxy's, whatever it is called.
func On(objects registry.Objects) (nodes []string) {
	var ended registry.Key
	if config := registry.GetAs[*api.ClusterConfig](objects, api.ClusterConfigKind, registry.Key{Name: api.DefaultName}); config != nil {
		if d, is := Removed(config); is {
			ended = d
		}
	}
	for p := range registry.Each[*corev1.Pod](objects, api.Pod) {
		var by registry.Key
		if owner := metav1.GetControllerOf(p); owner != nil && owner.Kind == "DaemonSet" {
			by = registry.Key{Namespace: p.Namespace, Name: owner.Name}
		}
		labelled := p.Namespace == DaemonSet.Namespace && (p.Labels["k8s-app"] == DaemonSet.Name || p.Labels["component"] == DaemonSet.Name)
		is := labelled || by == DaemonSet || by != (registry.Key{}) && by == ended
		if is && p.Spec.HostNetwork && p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			nodes = append(nodes, p.Spec.NodeName)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// config reads the ClusterConfig.
func (c *Change) config(ctx context.Context) (*api.ClusterConfig, error) {
	o, err := c.registry.Get(ctx, api.ClusterConfigKind, registry.Key{Name: api.DefaultName})
	if err != nil {
		return nil, fmt.Errorf("read the ClusterConfig: %w", err)
	}
	return o.(*api.ClusterConfig), nil
}

// isGone reports whether an error says that an object, or its kind, is not there.
func isGone(err error) bool {
	return errors.Is(err, registry.ErrNotFound) || errors.Is(err, registry.ErrNotInstalled)
}

// others names the nodes of which nobody says that Services are done there by somebody, and returns
// how many say it: what a Node says counts while its agent lives. Those that are down are left out,
// unless no other node says anything.
func (c *Change) others(ctx context.Context, who string) (saying int, waiting []string, err error) {
	list, lost, err := c.nodes(ctx)
	if err != nil {
		return 0, nil, err
	}
	c.leaveOut(list, lost)
	var down []string
	for _, n := range list {
		said := n.Annotations[api.ServiceProxyAnnotation]
		switch {
		case lost[n.Name] && said == "" && (c.Force || who == api.KubeProxy):
			// No agent has ever been there, or Weft was taken out: it does no Services there.
		case lost[n.Name] && c.isDown(n):
			down = append(down, n.Name)
		case lost[n.Name] && everynode.Ready(n) != corev1.ConditionTrue:
			waiting = append(waiting, n.Name+" has no agent that lives, and is not known to be down: --force leaves it out")
		case lost[n.Name]:
			waiting = append(waiting, n.Name+" has no agent that lives")
		case said == who:
			saying++
		case said == "":
			waiting = append(waiting, n.Name+" has said nothing of it yet")
		default:
			waiting = append(waiting, fmt.Sprintf("%s says %q", n.Name, said))
		}
	}
	if saying == 0 {
		for _, name := range down {
			waiting = append(waiting, name+" has no agent that lives")
		}
	}
	slices.Sort(waiting)
	return saying, waiting, nil
}

// isDown reports whether nothing runs on a node without an agent that lives: nobody hears of its kubelet
// either. A kubelet that says itself that its node is not ready does run, and so may kube-proxy there.
func (c *Change) isDown(n *corev1.Node) bool {
	is := everynode.Ready(n)
	return is == corev1.ConditionUnknown || c.Force && is != corev1.ConditionTrue
}

// leftOut returns the nodes that are not waited for, as they are down.
func (c *Change) leftOut(ctx context.Context) (map[string]bool, error) {
	list, lost, err := c.nodes(ctx)
	if err != nil {
		return nil, err
	}
	return c.leaveOut(list, lost), nil
}

// leaveOut has the nodes that are down now be the ones that are not waited for. One that came back since the
// last look is waited for again.
func (c *Change) leaveOut(list []*corev1.Node, lost map[string]bool) map[string]bool {
	c.left = make(map[string]bool)
	for _, n := range list {
		if lost[n.Name] && c.isDown(n) {
			c.left[n.Name] = true
		}
	}
	return c.left
}

// nodes returns the Nodes on which agents can run, and which of them have none that lives.
func (c *Change) nodes(ctx context.Context) (all []*corev1.Node, lost map[string]bool, err error) {
	list, _, err := c.registry.List(ctx, api.Node)
	if err != nil {
		return nil, nil, fmt.Errorf("list the nodes: %w", err)
	}
	held, err := c.registry.Holders(ctx, api.NodeLease(""))
	if err != nil {
		return nil, nil, fmt.Errorf("see which agents live: %w", err)
	}
	lost = make(map[string]bool)
	for _, o := range list {
		n := o.(*corev1.Node)
		if !api.CanHaveAgent(n) {
			continue
		}
		all = append(all, n)
		_, lives := held[api.NodeLease(n.Name)]
		lost[n.Name] = !lives
	}
	return all, lost, nil
}

// place has kube-proxy's DaemonSet have no pods, where value is removed, or those that it had.
func (c *Change) place(ctx context.Context, d *appsv1.DaemonSet, value string) error {
	if d.Spec.Template.Spec.NodeSelector[nowhere] == value {
		return nil
	}
	verb := "ended"
	var to any = value
	if value == "" {
		verb, to = "begun", nil
	}
	if c.DryRun {
		c.say("would have the pods of DaemonSet %s %s", c.DaemonSet, verb)
		return nil
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"nodeSelector": map[string]any{nowhere: to}}}}})
	if err != nil {
		return err
	}
	if _, err := c.client.Resource(everynode.DaemonSets).Namespace(d.Namespace).Patch(ctx, d.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("change the nodeSelector of DaemonSet %s: %w", c.DaemonSet, err)
	}
	c.say("the pods of DaemonSet %s are being %s", c.DaemonSet, verb)
	return nil
}

// awaitPods waits until a DaemonSet, which may be gone, has no pods, but for those that are to end on
// nodes that are lost: there nothing runs, or nobody can end it.
func (c *Change) awaitPods(ctx context.Context, d *appsv1.DaemonSet) error {
	for {
		seen, err := everynode.Get(ctx, c.client, d.Namespace, d.Name)
		var pods []*corev1.Pod
		var lost map[string]bool
		if err == nil {
			pods, err = everynode.PodsOf(ctx, c.client, d)
		}
		if err == nil {
			_, lost, err = c.nodes(ctx)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		on := make(map[string]bool)
		for _, p := range pods {
			if p.DeletionTimestamp == nil || !lost[p.Spec.NodeName] {
				on[p.Spec.NodeName] = true
			}
		}
		if err == nil && len(on) == 0 && (seen == nil || seen.Status.ObservedGeneration == seen.Generation) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("DaemonSet %s/%s still has pods, on %s: give more --timeout, or see why they do not end, and run it again", d.Namespace, d.Name, strings.Join(slices.Sorted(maps.Keys(on)), ", "))
		case <-time.After(c.Poll):
		}
	}
}

// awaitReady waits until kube-proxy has run for a while on all its nodes, but for those that are down.
func (c *Change) awaitReady(ctx context.Context) error {
	for !c.DryRun {
		d, err := everynode.Get(ctx, c.client, c.DaemonSet.Namespace, c.DaemonSet.Name)
		if err == nil && d == nil {
			return fmt.Errorf("somebody has deleted DaemonSet %s", c.DaemonSet)
		}
		var runs int
		if err == nil {
			runs, err = c.runsOn(ctx, d)
		}
		switch {
		case err != nil && ctx.Err() == nil:
			return err
		case err == nil && runs > 0:
			c.say("kube-proxy runs on %d nodes", runs)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kube-proxy does not run on all its nodes yet, and Services are left to Weft until it does: see kubectl describe daemonset -n %s %s; give more --timeout, or mend it, and run it again",
				c.DaemonSet.Namespace, c.DaemonSet.Name)
		case <-time.After(c.Poll):
		}
	}
	return nil
}

// runsOn returns on how many nodes kube-proxy has run for a while, once these are all of its nodes but for
// those that are down, and 0 until then.
func (c *Change) runsOn(ctx context.Context, d *appsv1.DaemonSet) (nodes int, err error) {
	pods, err := everynode.PodsOf(ctx, c.client, d)
	if err != nil {
		return 0, err
	}
	out, err := c.leftOut(ctx)
	if err != nil {
		return 0, err
	}
	rest, wanted := everynode.Without(out, pods, d)
	moment := time.Now().Add(-settling)
	if d.Status.ObservedGeneration != d.Generation || len(rest) < wanted || int(d.Status.UpdatedNumberScheduled) < wanted ||
		slices.ContainsFunc(rest, func(p *corev1.Pod) bool { return !runsSince(p, moment) }) {
		return 0, nil
	}
	return wanted, nil
}

// runsSince reports whether a pod is ready, and all its containers run since a moment, or since before.
func runsSince(p *corev1.Pod, moment time.Time) bool {
	is := slices.ContainsFunc(p.Status.Conditions, func(s corev1.PodCondition) bool { return s.Type == corev1.PodReady && s.Status == corev1.ConditionTrue })
	return is && len(p.Status.ContainerStatuses) > 0 && !slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Running == nil || s.State.Running.StartedAt.After(moment)
	})
}

// cleanerOf returns the DaemonSet whose pods are kube-proxy's own, and clean up instead of serving.
// Those that an earlier run made are none of this one's.
func cleanerOf(d *appsv1.DaemonSet, run time.Time) (*appsv1.DaemonSet, error) {
	labels := map[string]string{"app.kubernetes.io/name": "weft", "app.kubernetes.io/component": cleanerName}
	everywhere := intstr.FromString("100%")
	cleaner := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: cleanerName, Namespace: d.Namespace, Labels: labels},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: *d.Spec.Template.DeepCopy(),
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &everywhere}}},
	}
	t := &cleaner.Spec.Template
	t.ObjectMeta = metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{runAnnotation: run.UTC().Format(time.RFC3339Nano)}}
	delete(t.Spec.NodeSelector, nowhere)
	t.Spec.InitContainers = nil
	proxy, is := proxyOf(&t.Spec)
	if !is {
		return nil, fmt.Errorf("nothing was changed: no container of DaemonSet %s/%s has the command kube-proxy, so nobody knows how it cleans up: set spec.serviceProxy of the ClusterConfig to weft, end kube-proxy, and run kube-proxy --cleanup on each node", d.Namespace, d.Name)
	}
	work := *proxy
	work.Command, work.Args = []string{work.Command[0], "--cleanup"}, nil
	work.Ports, work.LivenessProbe, work.ReadinessProbe, work.StartupProbe, work.Lifecycle = nil, nil, nil, nil, nil
	work.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	t.Spec.Containers = []corev1.Container{work}
	return cleaner, nil
}

// deleteCleaner ends those who clean up, and waits until none of them does any more.
func (c *Change) deleteCleaner(ctx context.Context) error {
	if c.DryRun {
		return nil
	}
	d, err := everynode.Get(ctx, c.client, c.DaemonSet.Namespace, cleanerName)
	if err != nil || d == nil {
		return err
	}
	background := metav1.DeletePropagationBackground
	err = c.client.Resource(everynode.DaemonSets).Namespace(c.DaemonSet.Namespace).Delete(ctx, cleanerName, metav1.DeleteOptions{PropagationPolicy: &background})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete daemonset %s: %w", cleanerName, err)
	}
	return c.awaitPods(ctx, d)
}
