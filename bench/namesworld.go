package main

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/dns/records"
	"github.com/weftnet/weft/registry"
)

// The cluster whose names are asked for.
const (
	namesDomain = "cluster.local"
	// namesNamespaces share out the Services.
	namesNamespaces = 10
	// endpointsEach is how many endpoints a Service has.
	endpointsEach = 2
	// mostNames is how many names are asked for in turns.
	mostNames = 1000
	// cachedNames is how many names outside are asked for that the servers know by then.
	cachedNames = 100
	// headless is the Service whose only endpoint changes.
	headless = "headless"
)

var (
	// namesAddress is where pods find their name server.
	namesAddress = netip.MustParseAddr("10.96.0.10")
	// namesOutside is the address of the API server, and of the server that is asked for names
	// outside.
	namesOutside = netip.MustParseAddr("172.30.0.1")
)

// namesNamespace is a namespace of Services; the pods that ask are in the first.
func namesNamespace(i int) string { return fmt.Sprintf("ns%02d", i) }

// namedService returns a Service, its EndpointSlice, and its name.
func namedService(i int) (*corev1.Service, *discoveryv1.EndpointSlice, string) {
	name, namespace := fmt.Sprintf("service%05d", i), namesNamespace(i%namesNamespaces)
	var endpoints []netip.Addr
	for e := range endpointsEach {
		endpoints = append(endpoints, endpointAddress(i*endpointsEach+e))
	}
	return newService(namespace, name, serviceAddress(i).String()), newEndpoints(namespace, name, endpoints...), serviceName(namespace, name)
}

// endpointAddress is the address of an endpoint.
func endpointAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(128 + i/62500), byte(i / 250 % 250), byte(1 + i%250)})
}

func serviceName(namespace, name string) string {
	return fmt.Sprintf("%s.%s.svc.%s.", name, namespace, namesDomain)
}

func newService(namespace, name, address string) *corev1.Service {
	return serviceAt(namespace, name, address, httpPort)
}

func newEndpoints(namespace, service string, addresses ...netip.Addr) *discoveryv1.EndpointSlice {
	return sliceOf(namespace, service, "http", corev1.ProtocolTCP, 8080, addresses...)
}

// namesObjects are those of a cluster with so many Services, and one more that is headless.
func namesObjects(services int) map[*registry.Kind][]registry.Object {
	objects := make(map[*registry.Kind][]registry.Object)
	add := func(k *registry.Kind, o registry.Object) { objects[k] = append(objects[k], o) }
	for i := range namesNamespaces {
		add(api.Namespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namesNamespace(i)}})
	}
	for i := range services {
		service, slice, _ := namedService(i)
		add(api.Service, service)
		add(api.EndpointSlice, slice)
	}
	add(api.Service, newService(namesNamespace(0), headless, corev1.ClusterIPNone))
	add(api.EndpointSlice, newEndpoints(namesNamespace(0), headless, headlessAddress(0)))
	return objects
}

// headlessAddress is what the headless Service's name stands for after so many changes.
func headlessAddress(change int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 200, byte(change / 250), byte(1 + change%250)})
}

// changedAddress is the address of a Service that comes and goes.
func changedAddress(change int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 96, 250, byte(1 + change)})
}

// namesSettings say how Weft's name server answers there.
func namesSettings() *records.Settings {
	return &records.Settings{Domain: namesDomain, Addresses: []netip.Addr{namesAddress},
		Upstreams: []netip.AddrPort{netip.AddrPortFrom(namesOutside, namesPort)}, StaleFor: 3600}
}

// search are the domains of a pod's resolv.conf.
func search() []string {
	return []string{namesNamespace(0) + ".svc." + namesDomain, "svc." + namesDomain, namesDomain}
}

// insideNames are those of Services.
func insideNames(services int) (names []string) {
	for i := range min(services, mostNames) {
		_, _, name := namedService(i)
		names = append(names, name)
	}
	return names
}

// missingNames are in the cluster's domain, and nothing has them.
func missingNames() (names []string) {
	for i := range mostNames {
		names = append(names, serviceName(namesNamespace(i%namesNamespaces), fmt.Sprintf("%s%03d", missingPrefix, i)))
	}
	return names
}

// outsideNames are few enough for servers to remember.
func outsideNames() (names []string) {
	for i := range cachedNames {
		names = append(names, fmt.Sprintf("www%02d.%s.", i, outsideDomain))
	}
	return names
}

// corefile is what kubeadm 1.35 has CoreDNS do, with another server in the place of those of
// the node's resolv.conf, and with the API server's address, which a pod of a cluster has from
// its environment. Where all is cached, so are the names of the cluster, as kubeadm had it
// before.
func corefile(endpoint, cert, key, ca string, cacheAll bool) string {
	caches := fmt.Sprintf(" {\n           disable success %[1]s\n           disable denial %[1]s\n        }", namesDomain)
	if cacheAll {
		caches = ""
	}
	return fmt.Sprintf(`.:53 {
        errors
        health {
           lameduck 5s
        }
        ready
        kubernetes %s in-addr.arpa ip6.arpa {
           endpoint %s
           tls %s %s %s
           pods insecure
           fallthrough in-addr.arpa ip6.arpa
           ttl 30
        }
        prometheus :9153
        forward . %s {
           max_concurrent 1000
        }
        cache 30%s
        loop
        reload
        loadbalance
    }
`, namesDomain, endpoint, cert, key, ca, namesOutside, caches)
}
