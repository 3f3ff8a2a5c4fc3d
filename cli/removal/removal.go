// Package removal takes Weft out of a Kubernetes cluster: New says which,
// Preview tells what Run would do.
//
// Run has a DaemonSet of its own, made from that of the agents, clean every
// node, and deletes Weft's objects after that. It remembers nothing: what is
// left to do is what there still is, so a Run that was killed is taken up by
// the next. Objects are Weft's by the label that the chart gives them.
package removal

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/cli/everynode"
	"github.com/weftnet/weft/cli/kubeproxy"
	"github.com/weftnet/weft/registry"
)

// Options say what is taken out.
type Options struct {
	// Namespace is that of Weft's own objects.
	Namespace string
	// Force does it though pods have their network from Weft, or nobody else does Services; and does
	// not wait for nodes of whose kubelets nothing is heard.
	Force bool
	// Purge deletes what users asked for as well: custom resources and their
	// definitions, and what they wrote on Nodes.
	Purge bool
	// Progress is told what was done, a line each.
	Progress func(line string)
	// Poll is how often the nodes are looked at, a second by default.
	Poll time.Duration
}

// Removal takes Weft out of one cluster.
type Removal struct {
	Options
	client dynamic.Interface
	// left are the nodes that were not waited for, also those that are back since.
	left map[string]bool
}

// New returns a Removal for the cluster of a client.
func New(client dynamic.Interface, o Options) *Removal {
	if o.Poll == 0 {
		o.Poll = time.Second
	}
	return &Removal{Options: o, client: client, left: make(map[string]bool)}
}

// The resources that are read and written beside those of owned.
var (
	pods       = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	nodes      = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	services   = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	crds       = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

const rbac = "rbac.authorization.k8s.io"

// owned are the resources in which Weft has objects, in the order in which they
// are deleted: rights after those who use them.
var owned = []struct {
	schema.GroupVersionResource
	namespaced bool
}{
	{schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, true},
	{everynode.DaemonSets, true},
	{schema.GroupVersionResource{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"}, true},
	{services, true},
	{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, true},
	{schema.GroupVersionResource{Group: rbac, Version: "v1", Resource: "rolebindings"}, true},
	{schema.GroupVersionResource{Group: rbac, Version: "v1", Resource: "roles"}, true},
	{schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}, true},
	{schema.GroupVersionResource{Group: rbac, Version: "v1", Resource: "clusterrolebindings"}, false},
	{schema.GroupVersionResource{Group: rbac, Version: "v1", Resource: "clusterroles"}, false},
	{schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"}, false},
	{schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"}, false},
	{namespaces, false},
}

// pageSize bounds how many objects come with one answer.
const pageSize = 500

// Preview tells what Run would do.
func (r *Removal) Preview(ctx context.Context) error {
	has, err := r.users(ctx)
	if err != nil {
		return err
	}
	if len(has.pods) > 0 {
		r.progress("pods have their network from Weft, and --force would cut them off: %s", summary(has.pods))
	}
	if len(has.ended) > 0 {
		r.progress("%s", without(has.ended))
	}
	list, err := r.ownedObjects(ctx)
	if err != nil {
		return err
	}
	for _, o := range list {
		if o.resource == everynode.DaemonSets && o.name == agentName {
			r.progress("would have each node take away what its agent left there")
		}
		r.progress("would delete %s %s", o.resource.Resource, o.name)
	}
	if len(list) == 0 {
		r.progress("there are no objects of Weft in this cluster, namespace %s", r.Namespace)
	}
	if err := r.previewNodes(ctx, len(has.ended) > 0); err != nil || !r.Purge {
		return err
	}
	return r.previewPurge(ctx)
}

// previewNodes tells from how many Node objects Run would take what agents said there, and what of
// what these say that nodes do nobody does then. ended says that weft kube-proxy remove has ended
// kube-proxy.
func (r *Removal) previewNodes(ctx context.Context, ended bool) error {
	count := 0
	var does doing
	err := r.each(ctx, nodes, "", "", func(o *unstructured.Unstructured) error {
		var n corev1.Node
		if err := convert(o, &n); err != nil {
			return err
		}
		if metadata, status := nodePatches(&n, r.Purge); metadata != nil || status != nil {
			count++
		}
		does.add(&n)
		return nil
	})
	if err != nil {
		return err
	}
	if count > 0 {
		r.progress("would take Weft's annotations and conditions off %s", counted(count, "Node object"))
	}
	return r.previewWithout(ctx, does, ended)
}

// Run takes Weft out of the cluster, within the time of ctx.
func (r *Removal) Run(ctx context.Context) error {
	has, err := r.users(ctx)
	if err != nil {
		return err
	}
	var reasons []string
	if len(has.pods) > 0 {
		reasons = append(reasons, fmt.Sprintf("pods have their network from Weft: %s: end them (kubectl drain), or give --force to cut them off", summary(has.pods)))
	}
	if has.onNodes && len(has.ended) > 0 {
		reasons = append(reasons, without(has.ended)+", or give --force")
	}
	if len(reasons) > 0 && !r.Force {
		return fmt.Errorf("nothing was changed: %s", strings.Join(reasons, "; and "))
	}
	if err := r.cleanNodes(ctx); err != nil {
		return err
	}
	if err := r.deleteObjects(ctx); err != nil {
		return err
	}
	for _, d := range has.ended {
		r.progress("nobody does Services now, as DaemonSet %s has no pods: run %s", d, kubeproxy.Command("restore", d))
	}
	return nil
}

// deleteObjects deletes Weft's objects, and takes off those of others what Weft said there.
func (r *Removal) deleteObjects(ctx context.Context) error {
	list, err := r.ownedObjects(ctx)
	if err != nil {
		return err
	}
	// Also where something fails here: a run after this one does not know of nodes that are back by then.
	defer func() { r.sayLeft(list) }()
	for _, o := range list {
		if err := r.delete(ctx, o); err != nil {
			return err
		}
	}
	cleaned, err := r.cleanNodeObjects(ctx)
	if err != nil {
		return err
	}
	// A run before this one may have left out nodes that are down. Where it left nothing to this one, it was the last.
	if r.Force && (len(list) > 0 || cleaned > 0) {
		down, err := r.down(ctx)
		if err != nil {
			return err
		}
		maps.Copy(r.left, down)
	}
	// Pods of a node that is down end once it is back, and the namespace with them.
	if own := r.ownNamespace(); len(r.left) == 0 && slices.Contains(list, own) {
		if err := r.awaitGone(ctx, own); err != nil {
			return err
		}
	}
	if r.Purge {
		return r.purge(ctx)
	}
	return nil
}

// sayLeft tells which nodes were left out, and what stays there.
func (r *Removal) sayLeft(deleted []object) {
	if len(r.left) == 0 {
		return
	}
	what := "Weft's pods there"
	if slices.Contains(deleted, r.ownNamespace()) {
		what += ", and with them namespace " + r.Namespace + ","
	}
	r.progress("nodes that were left out, as nothing was heard of their kubelets: %s: %s go once the Node is back or deleted; what is in a kernel that goes on meanwhile goes when the node boots; on their disks stay 10-weft.conflist in /etc/cni/net.d and weft-cni in /opt/cni/bin, or where the chart was told: delete both there, or no pod starts",
		named(r.left), what)
}

func (r *Removal) progress(format string, args ...any) { r.Progress(fmt.Sprintf(format, args...)) }

// users is what in the cluster cannot do without Weft.
type users struct {
	// onNodes says that Weft is on nodes still.
	onNodes bool
	// pods are, by node, how many pods have their network from it.
	pods map[string]int
	// ended are the DaemonSets of kube-proxy that have no pods because Weft does Services.
	ended []registry.Key
}

// users returns what cannot do without Weft.
func (r *Removal) users(ctx context.Context) (u users, err error) {
	if u.ended, err = kubeproxy.Ended(ctx, r.client); err != nil {
		return u, err
	}
	agents, err := r.get(ctx, everynode.DaemonSets, r.Namespace, agentName)
	if err != nil {
		return u, err
	}
	cleaners, err := r.get(ctx, everynode.DaemonSets, r.Namespace, cleanerName)
	if err != nil || agents == nil && cleaners == nil {
		// Without agents, pods have their network from somebody else.
		return u, err
	}
	u.onNodes = true
	u.pods, err = r.podsByNode(ctx)
	return u, err
}

// without says that nobody does Services once Weft is gone, as kube-proxy has no pods.
func without(ended []registry.Key) string {
	var names, ways []string
	for _, d := range ended {
		names, ways = append(names, d.String()), append(ways, kubeproxy.Command("restore", d))
	}
	return fmt.Sprintf("weft kube-proxy remove has ended the pods of DaemonSet %s, so that without Weft nobody does Services, that of the API server among them: first run %s",
		strings.Join(names, ", "), strings.Join(ways, " and "))
}

// podsByNode counts the pods of each node that have an interface of their own.
func (r *Removal) podsByNode(ctx context.Context) (map[string]int, error) {
	count := make(map[string]int)
	err := r.each(ctx, pods, "", "", func(o *unstructured.Unstructured) error {
		var p corev1.Pod
		if err := convert(o, &p); err != nil {
			return err
		}
		if p.Spec.NodeName != "" && !p.Spec.HostNetwork && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			count[p.Spec.NodeName]++
		}
		return nil
	})
	return count, err
}

func summary(count map[string]int) string {
	var words []string
	for _, node := range slices.Sorted(maps.Keys(count)) {
		words = append(words, fmt.Sprintf("%d on %s", count[node], node))
	}
	return strings.Join(words, ", ")
}

// object names one.
type object struct {
	resource        schema.GroupVersionResource
	namespace, name string
}

// ownNamespace names the namespace of Weft's own objects, which is Weft's where it bears its label.
func (r *Removal) ownNamespace() object { return object{namespaces, "", r.Namespace} }

// ownedObjects lists Weft's objects.
func (r *Removal) ownedObjects(ctx context.Context) ([]object, error) {
	var list []object
	for _, kind := range owned {
		namespace := ""
		if kind.namespaced {
			namespace = r.Namespace
		}
		err := r.each(ctx, kind.GroupVersionResource, namespace, nameLabel+"="+nameValue, func(o *unstructured.Unstructured) error {
			if kind.GroupVersionResource != namespaces || o.GetName() == r.Namespace {
				list = append(list, object{kind.GroupVersionResource, namespace, o.GetName()})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// definitions calls f with the definitions of the custom resources that are Weft's: those of the
// groups in which it has some, and the category that it gives them. The category alone is anybody's to
// give, and a group may have others' beside them.
func (r *Removal) definitions(ctx context.Context, f func(*unstructured.Unstructured) error) error {
	groups := []string{api.GroupVersion.Group, api.ClusterNetwork.Group}
	return r.each(ctx, crds, "", "", func(o *unstructured.Unstructured) error {
		group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
		categories, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "names", "categories")
		if !slices.Contains(groups, group) || !slices.Contains(categories, category) {
			return nil
		}
		return f(o)
	})
}

// purge deletes these definitions, which deletes the resources, and waits until that is done.
func (r *Removal) purge(ctx context.Context) error {
	var deleted []object
	err := r.definitions(ctx, func(o *unstructured.Unstructured) error {
		deleted = append(deleted, object{crds, "", o.GetName()})
		return r.delete(ctx, deleted[len(deleted)-1])
	})
	if err != nil {
		return err
	}
	for _, o := range deleted {
		if err := r.awaitGone(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// previewPurge tells what purge would delete, and how many objects go with each definition.
func (r *Removal) previewPurge(ctx context.Context) error {
	return r.definitions(ctx, func(o *unstructured.Unstructured) error {
		resource := schema.GroupVersionResource{}
		resource.Group, _, _ = unstructured.NestedString(o.Object, "spec", "group")
		resource.Resource, _, _ = unstructured.NestedString(o.Object, "spec", "names", "plural")
		versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
		for _, v := range versions {
			if v, ok := v.(map[string]any); ok && v["served"] == true {
				resource.Version, _ = v["name"].(string)
			}
		}
		count := 0
		if err := r.each(ctx, resource, "", "", func(*unstructured.Unstructured) error { count++; return nil }); err != nil {
			return err
		}
		r.progress("would delete %s %s, and with it %s", crds.Resource, o.GetName(), counted(count, "object"))
		return nil
	})
}

// counted says how many there are of what one is called so.
func counted(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	if strings.HasSuffix(one, "s") {
		one += "e"
	}
	return fmt.Sprintf("%d %ss", n, one)
}

func (r *Removal) delete(ctx context.Context, o object) error {
	background := metav1.DeletePropagationBackground
	err := r.in(o.resource, o.namespace).Delete(ctx, o.name, metav1.DeleteOptions{PropagationPolicy: &background})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete %s %s: %w", o.resource.Resource, o.name, err)
	}
	r.progress("deleted %s %s", o.resource.Resource, o.name)
	return nil
}

// awaitGone waits until the end of an object that is being deleted. One of that name that is not is
// another, which somebody made since.
func (r *Removal) awaitGone(ctx context.Context, gone object) error {
	for {
		o, err := r.get(ctx, gone.resource, gone.namespace, gone.name)
		if err != nil || o == nil || o.GetDeletionTimestamp() == nil {
			return err
		}
		if !r.pause(ctx) {
			return fmt.Errorf("%s %s is being deleted, but is still there: what is in it has a finalizer that somebody must remove", gone.resource.Resource, gone.name)
		}
	}
}

// pause waits for a moment, and reports false when the time is over.
func (r *Removal) pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(r.Poll):
		return true
	}
}

func (r *Removal) in(resource schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return r.client.Resource(resource)
	}
	return r.client.Resource(resource).Namespace(namespace)
}

// get returns an object, or nil if there is none.
func (r *Removal) get(ctx context.Context, resource schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	o, err := r.in(resource, namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", resource.Resource, name, err)
	}
	return o, nil
}

// each calls f with all objects of a resource that have the labels. A resource
// that the API server does not have has none.
func (r *Removal) each(ctx context.Context, resource schema.GroupVersionResource, namespace, labels string, f func(*unstructured.Unstructured) error) error {
	options := metav1.ListOptions{LabelSelector: labels, Limit: pageSize}
	for {
		list, err := r.in(resource, namespace).List(ctx, options)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", resource.Resource, err)
		}
		for i := range list.Items {
			if err := f(&list.Items[i]); err != nil {
				return err
			}
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// convert gives an object its Go type.
func convert(o *unstructured.Unstructured, to any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, to); err != nil {
		return fmt.Errorf("%s %s: %w", strings.ToLower(o.GetKind()), o.GetName(), err)
	}
	return nil
}
