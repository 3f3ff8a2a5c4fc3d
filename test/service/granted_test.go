package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/test/service/oracle"
)

// What worlds have beside Kubernetes' Services: pools and grants, ports of pods, and names.

var (
	// uids are those of Services, most often the same, so that a grant may be of an earlier one.
	uids = []types.UID{"1", "1", "1", "1", "2"}
	// pooled are what pools have: of what Services claim outside, much; of the rest, little.
	pooled = []string{
		"192.0.2.0/24", "192.0.2.100-192.0.2.100", "192.0.2.101-192.0.2.200", "2001:db8::/112", "2001:db8::100-2001:db8::100",
		"2001:db8::101-2001:db8::1ff", "172.30.0.2-172.30.0.3", "fd01::/64", "10.96.0.0/31", "fd96::1-fd96::2", "198.51.100.0/24", "everywhere",
	}
	// podsOn are the nodes of the pods that there may be, in the order of endpoints.
	podsOn = []string{here, here, nodeName(2), nodeName(3)}
	// hostIPs are those at which pods want their ports.
	hostIPs = []string{"", "", "", "0.0.0.0", "::", "172.30.0.2", "fd01::2", "127.0.0.1", "127.0.0.2", "::1", "192.0.2.100", "10.1.1.1", "172.30.0.3"}
	// namesAt are, by family, where the name server of a node may be asked, beside Services.
	namesAt = [2][]string{
		{"169.254.20.10", "10.1.1.1", "10.96.0.1", "10.96.0.4", "192.0.2.100"},
		{"fd00:53::53", "fd00:1::1", "fd96::1", "fd96::4", "2001:db8::100"},
	}
)

// drawPools makes pools, of some worlds.
func drawPools(t *rapid.T, w *oracle.World) {
	w.Pools = nil
	for range max(0, number(t, "pools", 6)-3) {
		p := &oracle.Pool{}
		for range 1 + number(t, "ranges", 2) {
			p.Addresses = append(p.Addresses, one(t, "range", pooled))
		}
		w.Pools = append(w.Pools, p)
	}
}

// drawGrants gives Services what they claim, most often; and others something else.
func drawGrants(t *rapid.T, w *oracle.World) {
	w.Grants, w.AddressGrants = nil, nil
	give := func(to *[]*oracle.Grant, what string, s *corev1.Service) {
		g := &oracle.Grant{What: what, Service: s.Namespace + "/" + s.Name, UID: s.UID}
		if chance(t, "of an earlier one", 5) {
			g.UID = "0"
		}
		if !slices.ContainsFunc(*to, func(o *oracle.Grant) bool { return o.What == what }) {
			*to = append(*to, g)
		}
	}
	granting := len(w.Pools) > 0 || chance(t, "pools of before", 5)
	for _, s := range w.Services {
		outside := slices.Clone(s.Spec.ExternalIPs)
		for _, i := range s.Status.LoadBalancer.Ingress {
			outside = append(outside, i.IP)
		}
		if chance(t, "a clusterIP", 5) {
			outside = append(outside, s.Spec.ClusterIPs...)
		}
		for _, text := range outside {
			if a, err := netip.ParseAddr(text); err == nil && granting && chance(t, "granted", 60) {
				give(&w.AddressGrants, a.Unmap().String(), one(t, "to whom", []*corev1.Service{s, s, s, one(t, "other", w.Services)}))
			}
		}
		if !w.Granting {
			continue
		}
		for _, text := range append([]string{s.Spec.ClusterIP}, s.Spec.ClusterIPs...) {
			if a, err := netip.ParseAddr(text); err == nil && chance(t, "granted", 75) {
				give(&w.Grants, a.Unmap().String(), s)
			}
		}
		for _, p := range s.Spec.Ports {
			if p.NodePort != 0 && chance(t, "granted", 75) {
				give(&w.Grants, fmt.Sprintf("%d-%s", p.NodePort, strings.ToLower(string(protocolOf(p.Protocol)))), s)
			}
		}
	}
}

// changeGranted changes the pools, all of the grants, or one of these.
func changeGranted(t *rapid.T, w *oracle.World) {
	w.AddressGrants, w.Grants = slices.Clone(w.AddressGrants), slices.Clone(w.Grants)
	switch number(t, "granted", 4) {
	case 0:
		drawPools(t, w)
	case 1:
		drawGrants(t, w)
	default:
		for _, all := range []*[]*oracle.Grant{&w.AddressGrants, &w.Grants} {
			if len(*all) == 0 {
				continue
			}
			i := number(t, "which", len(*all))
			if chance(t, "taken away", 50) {
				*all = slices.Delete(*all, i, i+1)
			} else {
				g, s := *(*all)[i], one(t, "whose", w.Services)
				g.Service, g.UID = s.Namespace+"/"+s.Name, s.UID
				(*all)[i] = &g
			}
		}
	}
}

// drawPod makes one of four, each with some ports of its node.
func drawPod(t *rapid.T, i int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "red", Name: fmt.Sprint("pod", i), CreationTimestamp: metav1.NewTime(time.Unix(int64(10*number(t, "created", 3)+i), 0)),
	}}
	p.Spec.NodeName = podsOn[i]
	for _, f := range one(t, "families", [][]int{{0, 1}, {0, 1}, {0}, {1}}) {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: endpoints[f][i]})
	}
	for range 1 + number(t, "containers", 2) {
		c := corev1.Container{}
		for range 1 + number(t, "ports", 2) {
			c.Ports = append(c.Ports, corev1.ContainerPort{
				HostPort: one(t, "hostPort", []int32{80, 53, 53, 30080, 30053, 0}), HostIP: one(t, "hostIP", hostIPs),
				ContainerPort: one(t, "containerPort", []int32{8080, 5353, 80}), Protocol: one(t, "protocol", protocols),
			})
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

// toHostPort draws where a pod may have a port.
func toHostPort(t *rapid.T, w *oracle.World, f int, by oracle.Sender) (destination string, port uint16, protocol corev1.Protocol) {
	pod := one(t, "to pod", w.Pods)
	asked := one(t, "asked", one(t, "container", pod.Spec.Containers).Ports)
	at := []string{externalIPs[f][2], externalIPs[f][3], nodeIPs[f][2], namesAt[f][4]}
	if by == oracle.NodeItself {
		at = append(at, [2][]string{{"127.0.0.1", "127.0.0.2"}, {"::1", "::1"}}[f]...)
	}
	return one(t, "at", at), uint16(asked.HostPort), protocolOf(asked.Protocol)
}

// drawNames has the nodes answer for names, in some worlds.
func drawNames(t *rapid.T, w *oracle.World) {
	if w.Names = nil; !chance(t, "names", 50) {
		return
	}
	of := one(t, "name server", w.Services)
	n := &oracle.Names{Service: of.Namespace + "/" + of.Name, Answering: map[string][]netip.Addr{}}
	for _, f := range []int{0, 1} {
		for _, text := range namesAt[f] {
			if chance(t, "more", 15) {
				n.Addresses = append(n.Addresses, text)
			}
		}
	}
	if chance(t, "node", 40) {
		n.Addresses = append(n.Addresses, "node")
	}
	for i := range 3 {
		name := nodeName(i + 1)
		all := slices.Clone(bare[name].Local.Addresses)
		for _, text := range slices.Concat(n.Addresses, of.Spec.ClusterIPs, []string{of.Spec.ClusterIP}) {
			if a, err := netip.ParseAddr(text); err == nil {
				all = append(all, a)
			}
		}
		for _, a := range all {
			// Whose address a node takes for itself, of him it hears nothing any more.
			others := slices.ContainsFunc(slices.Concat(externalIPs[0][2:4], externalIPs[1][2:4]), func(text string) bool {
				return text == a.String() && !slices.Contains(bare[name].Local.Addresses, a)
			})
			if !others && chance(t, "answering", 85) {
				n.Answering[name] = append(n.Answering[name], a)
			}
		}
	}
	w.Names = n
}
