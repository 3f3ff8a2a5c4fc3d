package lab

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// dnsPlace is which address of the range of Services the one has at which pods ask for
// names, as in many clusters: 10.96.0.10.
const dnsPlace = 10

// nameObjects returns the objects by which there are names in a cluster that begins with
// others: the Service at which pods ask for them, and its Namespace, unless they are among
// those.
func nameObjects(others []Object) (objects []Object) {
	spec := configOf(others).Spec
	networks := spec.ServiceNetworks
	for _, o := range others {
		if n, ok := o.Object.(*networkv1.ClusterNetwork); ok && len(networks) == 0 {
			networks = []string{n.ServiceNetwork}
		}
	}
	key := spec.DNS.ServiceKey()
	add := func(k *registry.Kind, object registry.Object) {
		if !slices.ContainsFunc(others, func(o Object) bool { return o.Kind == k && registry.KeyOf(o) == registry.KeyOf(object) }) {
			objects = append(objects, Object{k, object})
		}
	}
	add(api.Namespace, namespaceObject(key.Namespace))
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"k8s-app": "kube-dns"}, Ports: []corev1.ServicePort{
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: api.DNSPort},
			{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: api.DNSPort},
		}},
	}
	for _, text := range networks {
		if a, ok := addressOf(text, dnsPlace); ok {
			svc.Spec.ClusterIPs = append(svc.Spec.ClusterIPs, a.String())
		}
	}
	families := corev1.IPFamilyPolicySingleStack
	if len(svc.Spec.ClusterIPs) > 1 {
		families = corev1.IPFamilyPolicyRequireDualStack
	}
	svc.Spec.IPFamilyPolicy = &families
	if len(svc.Spec.ClusterIPs) > 0 {
		svc.Spec.ClusterIP = svc.Spec.ClusterIPs[0]
	}
	add(api.Service, svc)
	return objects
}

// configOf returns the ClusterConfig that holds in a cluster that begins with some objects.
func configOf(objects []Object) *api.ClusterConfig {
	for _, o := range objects {
		if o.Kind == api.ClusterConfigKind {
			return api.Effective(o.Object)
		}
	}
	return api.Effective(nil)
}

// nodeAddresses are those of the Service at which pods ask for names in a cluster that begins
// with some objects, as far as each node's name server answers there.
func nodeAddresses(objects []Object) []netip.Addr {
	spec := configOf(objects).Spec.DNS
	for _, o := range objects {
		if svc, ok := o.Object.(*corev1.Service); ok && registry.KeyOf(svc) == spec.ServiceKey() && spec.Server == api.NamesByNodes {
			return api.ClusterAddresses(svc)
		}
	}
	return nil
}

// addressOf returns the n-th address of a network, counted from the network's own; false
// where it has none.
func addressOf(network string, n int) (netip.Addr, bool) {
	p, err := netip.ParsePrefix(network)
	if err != nil {
		return netip.Addr{}, false
	}
	a := p.Masked().Addr()
	for range n {
		a = a.Next()
	}
	return a, p.Contains(a)
}

// introduce gives a pod's record the environment by which it knows the Services, and
// returns the files by which it asks for names, where the lab has names.
func (l *Lab) introduce(ctx context.Context, reg registry.Registry, r *podRecord) ([]file, error) {
	if !l.options.DNS {
		r.Environment = environment(r.Pod, nil)
		return nil, nil
	}
	objects, _, err := reg.List(ctx, api.Service)
	if err != nil {
		return nil, err
	}
	o, err := reg.Get(ctx, api.ClusterConfigKind, registry.Key{Name: api.DefaultName})
	if err != nil && !errors.Is(err, registry.ErrNotFound) {
		return nil, err
	}
	dns := api.Effective(o).Spec.DNS
	conf := nameServers(l.options.outside())
	services := make([]*corev1.Service, len(objects))
	for i, o := range objects {
		services[i] = o.(*corev1.Service)
		// Who finds no address of it asks whom the node asks, as with kubelets.
		if at := api.ClusterAddresses(services[i]); registry.KeyOf(o) == dns.ServiceKey() && len(at) > 0 {
			conf = podResolvConf(at, r.Namespace, dns.Domain)
		}
	}
	r.Environment = environment(r.Pod, services)
	return podFiles(*r, conf), nil
}
