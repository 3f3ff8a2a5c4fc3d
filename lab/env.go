package lab

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// masterService is the Service that every pod gets variables of, from DefaultNamespace,
// whatever namespace the pod is in.
const masterService = "kubernetes"

// environment is what a pod's process finds in its environment by the pod and by the Services
// that there are, as kubelets do: "NAME=VALUE", each name once. The pod's own variables come
// last, and none of a Service's has the name of one. Where two Services make the same name,
// that of the first by name counts; what is no name of a variable is left out.
func environment(p Pod, services []*corev1.Service) (all []string) {
	last := make(map[string]int) // of two of the pod's own the later counts
	seen := make(map[string]bool)
	for i, v := range p.Env {
		last[v.Name], seen[v.Name] = i, true
	}
	for _, svc := range linkedServices(services, p.Namespace, p.EnableServiceLinks == nil || *p.EnableServiceLinks) {
		for _, v := range serviceVariables(svc) {
			if !seen[v.Name] && isVariable(v.Name) { // ports may be called whatever
				seen[v.Name] = true
				all = append(all, v.Name+"="+v.Value)
			}
		}
	}
	for i, v := range p.Env {
		if last[v.Name] == i {
			all = append(all, v.Name+"="+v.Value)
		}
	}
	return all
}

// linkedServices returns the Services that a pod of a namespace gets variables of, in order
// of their names: those of its namespace that have an address of the cluster, if links says
// so, and masterService. A Service of that name in the pod's own namespace goes before it.
func linkedServices(services []*corev1.Service, namespace string, links bool) []*corev1.Service {
	linked := make(map[string]*corev1.Service)
	for _, svc := range services {
		master := svc.Namespace == DefaultNamespace && svc.Name == masterService
		switch {
		case svc.Spec.ClusterIP == "" || svc.Spec.ClusterIP == corev1.ClusterIPNone:
		case svc.Namespace == namespace && (links || master):
			linked[svc.Name] = svc
		case master && linked[svc.Name] == nil:
			linked[svc.Name] = svc
		}
	}
	all := make([]*corev1.Service, 0, len(linked))
	for _, svc := range linked {
		all = append(all, svc)
	}
	slices.SortFunc(all, func(a, b *corev1.Service) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// serviceVariables are the variables of one Service: where it is and which ports it has, and
// the same in the form that Docker's links had.
func serviceVariables(svc *corev1.Service) (all []corev1.EnvVar) {
	add := func(name, value string) { all = append(all, corev1.EnvVar{Name: name, Value: value}) }
	prefix, address := variableName(svc.Name), svc.Spec.ClusterIP
	add(prefix+"_SERVICE_HOST", address)
	for i, p := range svc.Spec.Ports {
		if i == 0 {
			add(prefix+"_SERVICE_PORT", strconv.Itoa(int(p.Port)))
		}
		if p.Name != "" {
			add(prefix+"_SERVICE_PORT_"+variableName(p.Name), strconv.Itoa(int(p.Port)))
		}
	}
	for i, p := range svc.Spec.Ports {
		protocol := string(p.Protocol)
		if protocol == "" {
			protocol = string(corev1.ProtocolTCP)
		}
		port := strconv.Itoa(int(p.Port))
		at := strings.ToLower(protocol) + "://" + net.JoinHostPort(address, port)
		if i == 0 {
			add(prefix+"_PORT", at)
		}
		link := prefix + "_PORT_" + port + "_" + strings.ToUpper(protocol)
		add(link, at)
		add(link+"_PROTO", strings.ToLower(protocol))
		add(link+"_PORT", port)
		add(link+"_ADDR", address)
	}
	return all
}

// variableName is the name of an object as names of variables have it.
func variableName(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }

// isVariable reports whether something can be the name of a variable. The shell that is a pod's
// first process passes on no others.
func isVariable(name string) bool { return len(validation.IsCIdentifier(name)) == 0 }

// validateEnv holds a pod's own variables to what can be in an environment.
func (p Pod) validateEnv() error {
	for _, v := range p.Env {
		if !isVariable(v.Name) {
			return fmt.Errorf("%q is no name of a variable: it has letters, digits and _, and does not begin with a digit", v.Name)
		}
		if v.ValueFrom != nil {
			return fmt.Errorf("variable %s has no value of its own: the lab takes none from elsewhere (valueFrom)", v.Name)
		}
		if strings.ContainsRune(v.Value, 0) {
			return fmt.Errorf("variable %s: a value has no zero bytes", v.Name)
		}
	}
	return nil
}
