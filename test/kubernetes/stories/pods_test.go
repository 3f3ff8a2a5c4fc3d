package stories

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The image of weft-traffic, and the program in it.
const (
	image   = "docker.io/weftnet/traffic:test"
	program = "/weft-traffic"
)

// Where weft-traffic serves.
const (
	port     = 7000
	httpPort = 7001
)

// option changes a pod from what newPod makes.
type option func(*corev1.Pod)

// newPod is a pod that serves, without any option.
func (x *story) newPod(name string, options ...option) *corev1.Pod {
	p := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: x.namespace, Annotations: map[string]string{}, Labels: map[string]string{"name": name}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{Name: "main", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{program, "serve"}}},
		},
	}
	for _, o := range options {
		o(p)
	}
	return p
}

// on has the pod run on a node.
func on(n *node) option { return func(p *corev1.Pod) { p.Spec.NodeName = n.name } }

// running has the pod run something else.
func running(args ...string) option {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Command = append([]string{program}, args...) }
}

// onHost gives the pod its node's network; it serves at other ports there.
func onHost(port uint16) option {
	return func(p *corev1.Pod) {
		p.Spec.HostNetwork = true
		p.Spec.Containers[0].Command = append(p.Spec.Containers[0].Command, "-port", strconv.Itoa(int(port)), "-http", "0")
	}
}

func annotated(key, value string) option {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

// probed has the kubelet ask whether the pod is ready.
func probed(h corev1.ProbeHandler) option {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: h, PeriodSeconds: 1, TimeoutSeconds: 5}
	}
}

var (
	byHTTP = corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(httpPort)}}
	byTCP  = corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}
)

// atHostPort forwards a port of the node, of both protocols, at one of its
// addresses, or at all if hostIP is empty.
func atHostPort(hostPort int32, hostIP string) option {
	return func(p *corev1.Pod) {
		for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
			p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{
				ContainerPort: port, HostPort: hostPort, HostIP: hostIP, Protocol: protocol})
		}
	}
}

// run makes a pod.
func (x *story) run(name string, options ...option) {
	x.Helper()
	if _, err := x.kube.CoreV1().Pods(x.namespace).Create(x.Context(), x.newPod(name, options...), metav1.CreateOptions{}); err != nil {
		x.Fatal(err)
	}
}

// pod returns a pod as it is now.
func (x *story) pod(name string) (*corev1.Pod, error) {
	return x.kube.CoreV1().Pods(x.namespace).Get(x.Context(), name, metav1.GetOptions{})
}

// ready waits until a pod is, and returns its addresses.
func (x *story) ready(name string) []netip.Addr {
	x.Helper()
	var addresses []netip.Addr
	x.eventually("pod "+name+" is ready", patience, func() error {
		p, err := x.pod(name)
		if err != nil {
			return err
		}
		if err := isReady(p); err != nil {
			return err
		}
		addresses = addressesOf(p)
		return nil
	})
	return addresses
}

// isReady says why a pod is not.
func isReady(p *corev1.Pod) error {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	why := string(p.Status.Phase)
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Waiting != nil {
			why += ", " + s.State.Waiting.Reason + " " + s.State.Waiting.Message
		}
	}
	return fmt.Errorf("pod %s/%s: %s", p.Namespace, p.Name, why)
}

// addressesOf are a pod's, the primary one first.
func addressesOf(p *corev1.Pod) []netip.Addr {
	var addresses []netip.Addr
	for _, ip := range p.Status.PodIPs {
		addresses = append(addresses, netip.MustParseAddr(ip.IP))
	}
	return addresses
}

// delete deletes pods and waits until they are gone.
func (x *story) delete(names ...string) {
	x.Helper()
	for _, name := range names {
		if err := x.kube.CoreV1().Pods(x.namespace).Delete(x.Context(), name, metav1.DeleteOptions{}); err != nil {
			x.Fatal(err)
		}
	}
	for _, name := range names {
		x.eventually("pod "+name+" is gone", patience, func() error {
			_, err := x.pod(name)
			if err == nil {
				return fmt.Errorf("it is there")
			}
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
}

// ofFamily returns the address of the same family as another.
func ofFamily(addresses []netip.Addr, as netip.Addr) netip.Addr {
	i := slices.IndexFunc(addresses, func(a netip.Addr) bool { return a.Is4() == as.Is4() })
	if i < 0 {
		return netip.Addr{}
	}
	return addresses[i]
}

// dualStack fails the test unless there is an address of each family.
func (x *story) dualStack(what string, addresses []netip.Addr) {
	x.Helper()
	if len(addresses) != 2 || addresses[0].Is4() == addresses[1].Is4() {
		x.Fatalf("%s has the addresses %v, not one of each family", what, addresses)
	}
}
