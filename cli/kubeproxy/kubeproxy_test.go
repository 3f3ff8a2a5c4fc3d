package kubeproxy

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestCleaner makes of kube-proxy's DaemonSet, as it is while it has no pods, the one that cleans
// up: on the same nodes, with the same image and the same sight of the node.
func TestCleaner(t *testing.T) {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-proxy"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"k8s-app": "kube-proxy"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"k8s-app": "kube-proxy"}}, Spec: corev1.PodSpec{
			HostNetwork: true, NodeSelector: map[string]string{"kubernetes.io/os": "linux", nowhere: removed},
			InitContainers: []corev1.Container{{Name: "modprobe", Command: []string{"/modprobe"}}},
			Containers: []corev1.Container{{Name: "sidecar", Command: []string{"/log"}},
				{Name: "kube-proxy", Image: "registry.k8s.io/kube-proxy:v1", Command: []string{"/usr/local/bin/kube-proxy", "--config=/var/lib/config.conf"},
					Args: []string{"--v=2"}, LivenessProbe: &corev1.Probe{}, SecurityContext: &corev1.SecurityContext{Privileged: new(true)}}},
		}}}}
	before := d.DeepCopy()
	c, err := cleanerOf(d, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := c.Spec.Template.Spec
	if len(s.InitContainers) > 0 || len(s.Containers) != 1 || strings.Join(s.Containers[0].Command, " ") != "/usr/local/bin/kube-proxy --cleanup" || len(s.Containers[0].Args) > 0 ||
		s.Containers[0].LivenessProbe != nil || s.Containers[0].Image != "registry.k8s.io/kube-proxy:v1" || !*s.Containers[0].SecurityContext.Privileged || !s.HostNetwork {
		t.Errorf("it runs %+v", s)
	}
	if len(s.NodeSelector) != 1 || s.NodeSelector["kubernetes.io/os"] != "linux" {
		t.Errorf("it runs on %v", s.NodeSelector)
	}
	// A DaemonSet that selected another's pods would end them.
	if c.Spec.Selector.MatchLabels["k8s-app"] != "" || c.Spec.Template.Labels["k8s-app"] != "" || c.Name == d.Name {
		t.Errorf("its pods may be taken for kube-proxy's: %v", c.Spec.Template.Labels)
	}
	if d.String() != before.String() {
		t.Error("what it was made from is changed")
	}
	d.Spec.Template.Spec.Containers = d.Spec.Template.Spec.Containers[:1]
	if _, err := cleanerOf(d, time.Now()); err == nil || !strings.Contains(err.Error(), "kube-proxy --cleanup on each node") || !strings.HasPrefix(err.Error(), "nothing was changed") {
		t.Errorf("of a DaemonSet without kube-proxy it is said: %v", err)
	}
}
