package removal

import (
	"context"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/cli/everynode"
	"github.com/weftnet/weft/cli/kubeproxy"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/registry"
)

var (
	clusterConfigs = schema.GroupVersionResource{Group: api.GroupVersion.Group, Version: api.GroupVersion.Version, Resource: api.ClusterConfigKind.Plural}
	endpointSlices = schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
)

// doing is what nodes do for the cluster, as they say themselves.
type doing struct {
	// services says that some do Services.
	services bool
	// names are the addresses at which they answer for names.
	names []netip.Addr
	// addresses is for how many addresses they answer on the link.
	addresses int
}

// add adds what a node says that it does.
func (d *doing) add(n *corev1.Node) {
	d.services = d.services || n.Annotations[api.ServiceProxyAnnotation] == api.WeftProxy
	for _, a := range api.NameServerAddresses(n) {
		if !slices.Contains(d.names, a) {
			d.names = append(d.names, a)
		}
	}
	d.addresses += api.AnnouncedCount(n)
}

// previewWithout tells what nobody does any more without Weft, where nobody is known who would. ended
// says that kube-proxy is one that weft kube-proxy remove has ended, of which more is told.
func (r *Removal) previewWithout(ctx context.Context, d doing, ended bool) error {
	if d.services && !ended {
		proxy, err := r.get(ctx, everynode.DaemonSets, kubeproxy.DaemonSet.Namespace, kubeproxy.DaemonSet.Name)
		if err != nil {
			return err
		}
		if proxy == nil {
			r.progress("nodes do Services, and there is no DaemonSet %s: unless something else does them, without Weft nobody does, that of the API server among them", kubeproxy.DaemonSet)
		}
	}
	if len(d.names) > 0 {
		of, at, answered, err := r.namesAnswered(ctx)
		if err != nil {
			return err
		}
		var beside []string
		for _, a := range slices.SortedFunc(slices.Values(d.names), netip.Addr.Compare) {
			if !slices.Contains(at, a) {
				beside = append(beside, a.String())
			}
		}
		switch {
		case !answered:
			r.progress("nodes answer for names, and Service %s has no endpoint that is ready: without Weft nobody answers pods", of)
		case len(beside) > 0:
			r.progress("nodes answer for names at %s, beside Service %s: without Weft nobody answers pods that ask there", printable.Few(beside, 0), of)
		}
	}
	if d.addresses > 0 {
		r.progress("nodes answer on the link for %s of Services or VirtualAddresses: without Weft nobody does", counted(d.addresses, "address"))
	}
	return nil
}

// namesAnswered returns which Service pods ask for names, at which addresses, and whether it has an endpoint.
func (r *Removal) namesAnswered(ctx context.Context) (of registry.Key, at []netip.Addr, answered bool, err error) {
	var config api.ClusterConfig
	o, err := r.get(ctx, clusterConfigs, "", api.DefaultName)
	if err == nil && o != nil {
		err = convert(o, &config)
	}
	if err != nil {
		return of, nil, false, err
	}
	of = config.Spec.DNS.ServiceKey()
	var svc corev1.Service
	o, err = r.get(ctx, services, of.Namespace, of.Name)
	if err == nil && o != nil {
		err = convert(o, &svc)
	}
	if err != nil {
		return of, nil, false, err
	}
	at = api.ClusterAddresses(&svc)
	err = r.each(ctx, endpointSlices, of.Namespace, discoveryv1.LabelServiceName+"="+of.Name, func(o *unstructured.Unstructured) error {
		var es discoveryv1.EndpointSlice
		if err := convert(o, &es); err != nil {
			return err
		}
		for _, e := range es.Endpoints {
			answered = answered || len(e.Addresses) > 0 && (e.Conditions.Ready == nil || *e.Conditions.Ready)
		}
		return nil
	})
	return of, at, answered, err
}
