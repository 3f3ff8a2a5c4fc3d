package stories

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// kubeProxyDaemonSet runs kube-proxy as clusters do, with the configuration, from a ConfigMap, of the process
// that it stands for here.
const kubeProxyDaemonSet = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  updateStrategy: {rollingUpdate: {maxUnavailable: "100%"}}
  template:
    metadata: {labels: {k8s-app: kube-proxy}}
    spec:
      hostNetwork: true
      tolerations: [{operator: Exists}]
      terminationGracePeriodSeconds: 1
      containers:
      - name: kube-proxy
        image: registry.k8s.io/kube-proxy:v1.35.4
        imagePullPolicy: IfNotPresent
        command: [/usr/local/bin/kube-proxy, --config=/var/lib/kube-proxy/config.conf, --hostname-override=$(NODE_NAME), --v=2]
        env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        securityContext: {privileged: true}
        volumeMounts:
        - {name: kubernetes, mountPath: /etc/kubernetes, readOnly: true}
        - {name: kube-proxy, mountPath: /var/lib/kube-proxy}
      volumes:
      - {name: kubernetes, hostPath: {path: /etc/kubernetes}}
      - {name: kube-proxy, configMap: {name: kube-proxy}}
`

// kubeProxyRemoved: kube-proxy is brought in, taken away and brought back, and nobody who uses a
// Service notices.
func kubeProxyRemoved(x *story) {
	for _, n := range x.nodes {
		if err := x.cluster.StopProcess(x.Context(), n.name, "kube-proxy"); err != nil {
			x.Fatal(err)
		}
		x.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := x.cluster.StartProcess(ctx, n.name, "kube-proxy"); err != nil {
				x.Error(err)
			}
		})
	}
	config, err := x.nodes[0].exec("cat", "/etc/kubernetes/kube-proxy.yaml")
	if err != nil {
		x.Fatal(err)
	}
	of := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"}, Data: map[string]string{"config.conf": config}}
	if _, err := x.kube.CoreV1().ConfigMaps(x.namespace).Create(x.Context(), of, metav1.CreateOptions{}); err != nil {
		x.Fatal(err)
	}
	x.apply(kubeProxyDaemonSet)
	l := x.startLoadOf(requests, x.nodes, x.asService())
	tables := func(want bool) {
		x.Helper()
		for _, n := range x.nodes {
			x.eventually(fmt.Sprintf("kube-proxy has tables on %s: %t", n.name, want), patience, func() error {
				out, err := n.exec("nft", "list", "tables")
				if err == nil && strings.Contains(out, "table ip kube-proxy") != want {
					err = errors.New(out)
				}
				return err
			})
		}
	}
	change := func(verb, by string) {
		x.Helper()
		start := time.Now()
		out := x.must(x.command(x.weft, "kube-proxy", verb, "--daemonset", x.namespace+"/kube-proxy", "--timeout", patience.String()))
		x.measured("%s took %s", verb, time.Since(start).Round(100*time.Millisecond))
		tables(verb == "restore")
		if said := x.must(x.command(x.weft, "kube-proxy")); strings.Count(said, " "+by+"\n") != len(x.nodes) {
			x.Errorf("after %s it is said:\n%s\nand what was done is:\n%s", verb, said, out)
		}
		l.undisturbed(verb, start, time.Now())
	}
	change("restore", "kube-proxy")
	change("remove", "weft")
	change("restore", "kube-proxy")
	change("remove", "weft")
}

// asService has pods that serve on all nodes behind a Service, and returns where that is.
func (x *story) asService() (targets []netip.Addr) {
	x.Helper()
	for _, n := range x.nodes {
		x.run("server-"+n.name, on(n), func(p *corev1.Pod) { p.Labels["app"] = "server" })
	}
	for _, n := range x.nodes {
		x.ready("server-" + n.name)
	}
	families := corev1.IPFamilyPolicyRequireDualStack
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "server"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "server"}, IPFamilyPolicy: &families}}
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: strings.ToLower(string(protocol)), Protocol: protocol, Port: port, TargetPort: intstr.FromInt32(port)})
	}
	svc, err := x.kube.CoreV1().Services(x.namespace).Create(x.Context(), svc, metav1.CreateOptions{})
	if err != nil {
		x.Fatal(err)
	}
	for _, ip := range svc.Spec.ClusterIPs {
		targets = append(targets, netip.MustParseAddr(ip))
	}
	return targets
}
