package kubernetes

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/weftnet/weft/policy"
)

// Replicas are the labels by which Kubernetes' controllers tell replicas and
// revisions of the same pods apart. Policies see them only if some policy of the
// cluster selects by them.
var Replicas = map[string]bool{
	"pod-template-hash":                        true,
	"pod-template-generation":                  true,
	"controller-revision-hash":                 true,
	"controller-uid":                           true,
	"batch.kubernetes.io/controller-uid":       true,
	"batch.kubernetes.io/job-completion-index": true,
	"statefulset.kubernetes.io/pod-name":       true,
	"apps.kubernetes.io/pod-index":             true,
}

// Named returns those of Replicas by which some of the policies select pods.
func Named(policies []*policy.Policy) map[string]bool {
	named := map[string]bool{}
	add := func(s *policy.Selector) {
		if s == nil || s.Pods == nil {
			return
		}
		requirements, _ := s.Pods.Requirements()
		for _, r := range requirements {
			if Replicas[r.Key()] {
				named[r.Key()] = true
			}
		}
	}
	for _, p := range policies {
		add(&p.Subject)
		for _, rules := range [...][]policy.Rule{p.Ingress, p.Egress} {
			for _, r := range rules {
				for _, peer := range r.Peers {
					add(peer.Pods)
				}
			}
		}
	}
	return named
}

// Identity returns what policies can tell of a pod: its namespace, its labels
// but for those of Replicas that are not in named, and its named ports. Of two
// ports of one name and protocol it has the first, as Services do. It may share
// the pod's labels.
func Identity(p *corev1.Pod, named map[string]bool) *policy.Identity {
	id := &policy.Identity{Namespace: p.Namespace, Labels: visible(p.Labels, named)}
	add := func(c *corev1.Container) {
		for _, port := range c.Ports {
			protocol, known := protocols[cmp.Or(port.Protocol, corev1.ProtocolTCP)]
			if port.Name != "" && known && port.ContainerPort > 0 && port.ContainerPort <= 65535 {
				id.Ports = append(id.Ports, policy.NamedPort{Name: port.Name, Protocol: protocol, Port: uint16(port.ContainerPort)})
			}
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c) // a sidecar
		}
	}
	slices.SortStableFunc(id.Ports, compareNames)
	id.Ports = slices.CompactFunc(id.Ports, func(a, b policy.NamedPort) bool { return compareNames(a, b) == 0 })
	return id
}

func compareNames(a, b policy.NamedPort) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol))
}

// visible returns those of a pod's labels that policies can see; nil if there
// are none.
func visible(all map[string]string, named map[string]bool) labels.Set {
	hidden := 0
	for key := range all {
		if Replicas[key] && !named[key] {
			hidden++
		}
	}
	switch hidden {
	case len(all):
		return nil
	case 0:
		return all
	}
	set := make(labels.Set, len(all)-hidden)
	for key, value := range all {
		if !Replicas[key] || named[key] {
			set[key] = value
		}
	}
	return set
}
