package lab

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// TestNameObjects has clusters begin with various objects: which Service comes with them for
// pods to ask at, and at which of its addresses are nodes waited for?
func TestNameObjects(t *testing.T) {
	config := func(spec api.ClusterConfigSpec) Object {
		spec.DNS.Server = cmp.Or(spec.DNS.Server, api.NamesByNodes)
		return Object{api.ClusterConfigKind, &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: spec}}
	}
	service := func(namespace, name, address string) Object {
		return Object{api.Service, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{ClusterIP: address}}}
	}
	network := Object{api.ClusterNetwork, &networkv1.ClusterNetwork{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, ServiceNetwork: "172.31.0.0/16"}}
	for name, test := range map[string]struct {
		options Options
		// made are the namespaces and the Service, with its addresses.
		made, waited string
	}{
		"IPv4":          {Options{}, "kube-system, kube-system/kube-dns SingleStack [10.96.0.10]", "[10.96.0.10]"},
		"both families": {Options{IPv6: true}, "kube-system, kube-system/kube-dns RequireDualStack [10.96.0.10 fd96::a]", "[10.96.0.10 fd96::a]"},
		"a range of its own": {Options{Objects: []Object{config(api.ClusterConfigSpec{ServiceNetworks: []string{"fd77::/112"}})}},
			"kube-system, kube-system/kube-dns SingleStack [fd77::a]", "[fd77::a]"},
		"the ClusterNetwork's range": {Options{Objects: []Object{network}}, "kube-system, kube-system/kube-dns SingleStack [172.31.0.10]", "[172.31.0.10]"},
		"no room for it": {Options{Objects: []Object{config(api.ClusterConfigSpec{ServiceNetworks: []string{"10.7.0.0/29"}})}},
			"kube-system, kube-system/kube-dns SingleStack []", "[]"},
		"no range": {Options{Objects: []Object{config(api.ClusterConfigSpec{})}}, "kube-system, kube-system/kube-dns SingleStack []", "[]"},
		"another Service": {Options{Objects: []Object{config(api.ClusterConfigSpec{ServiceNetworks: []string{serviceIPv4}, DNS: api.DNSSpec{Service: "names/asked"}})}},
			"names, names/asked SingleStack [10.96.0.10]", "[10.96.0.10]"},
		"one of its own":      {Options{Objects: []Object{service("kube-system", "kube-dns", "10.96.0.99")}}, "kube-system", "[10.96.0.99]"},
		"one in another name": {Options{Objects: []Object{service("default", "kube-dns", "10.96.0.99")}}, "kube-system, kube-system/kube-dns SingleStack [10.96.0.10]", "[10.96.0.10]"},
		"its own Namespace":   {Options{Objects: []Object{{api.Namespace, namespaceObject("kube-system")}}}, "kube-system/kube-dns SingleStack [10.96.0.10]", "[10.96.0.10]"},
		"pods answer": {Options{Objects: []Object{config(api.ClusterConfigSpec{ServiceNetworks: []string{serviceIPv4}, DNS: api.DNSSpec{Server: api.NamesByPods}})}},
			"kube-system, kube-system/kube-dns SingleStack [10.96.0.10]", "[]"},
	} {
		test.options.DNS = true
		objects, err := test.options.objects()
		if err != nil {
			t.Fatal(err)
		}
		var made []string
		for _, o := range objects {
			if slices.Contains(test.options.Objects, o) {
				continue
			}
			switch o := o.Object.(type) {
			case *corev1.Namespace:
				made = append(made, o.Name)
			case *corev1.Service:
				made = append(made, fmt.Sprintf("%s %s %v", registry.KeyOf(o), *o.Spec.IPFamilyPolicy, o.Spec.ClusterIPs))
			}
		}
		if got := strings.Join(made, ", "); got != test.made {
			t.Errorf("%s: made is %s", name, got)
		}
		if got := fmt.Sprint(nodeAddresses(objects)); got != test.waited {
			t.Errorf("%s: waited for is %s", name, got)
		}
	}
}

// TestIntroduce has pods ask for names by what the registry holds when they start.
func TestIntroduce(t *testing.T) {
	reg := memory.New()
	put := func(k *registry.Kind, o registry.Object) {
		t.Helper()
		if err := put(t.Context(), reg, Object{k, o}); err != nil {
			t.Fatal(err)
		}
	}
	l := &Lab{options: Options{DNS: true, IPv6: true}}
	pod := podRecord{Pod: Pod{Namespace: "shop", Name: "web", Env: []corev1.EnvVar{{Name: "MODE", Value: "test"}}}}
	check := func(conf string, variables ...string) {
		t.Helper()
		files, err := l.introduce(t.Context(), reg, &pod)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(files, func(f file) bool { return f.Path == resolvConfFile })
		if i < 0 || files[i].Content != conf {
			t.Errorf("its files are %+v", files)
		}
		for _, v := range variables {
			if !slices.Contains(pod.Environment, v) {
				t.Errorf("its environment lacks %s: %q", v, pod.Environment)
			}
		}
	}
	outside := "nameserver 172.30.0.1\nnameserver fd30::1\n"
	check(outside, "MODE=test")
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 53}}}}
	put(api.Service, svc)
	check(outside)
	svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "10.96.0.10", []string{"10.96.0.10", "fd96::a"}
	put(api.Service, svc)
	put(api.Service, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.3", Ports: []corev1.ServicePort{{Port: 5432}}}})
	check("search shop.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\nnameserver fd96::a\noptions ndots:5\n",
		"MODE=test", "DB_SERVICE_HOST=10.96.0.3", "DB_SERVICE_PORT=5432")
	put(api.ClusterConfigKind, &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: api.ClusterConfigSpec{DNS: api.DNSSpec{Service: "shop/db", Domain: "corp.example"}}})
	check("search shop.svc.corp.example svc.corp.example corp.example\nnameserver 10.96.0.3\noptions ndots:5\n")

	// Without names a pod has what it says itself.
	l.options.DNS = false
	files, err := l.introduce(t.Context(), reg, &pod)
	if err != nil || len(files) > 0 || !slices.Equal(pod.Environment, []string{"MODE=test"}) {
		t.Errorf("without names it gets %v, %q, %v", files, pod.Environment, err)
	}
}

// A lab with names needs the programs of these.
func TestNamesNeedTheirPrograms(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has labs")
	}
	d := t.TempDir()
	for _, name := range []string{"weft", agentBinary, cniBinary} {
		if err := os.WriteFile(filepath.Join(d, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	o := Options{Dir: filepath.Join(d, "lab"), Weft: filepath.Join(d, "weft")}
	if err := o.fill(); err != nil {
		t.Errorf("without names: %v", err)
	}
	o.DNS = true
	for _, name := range []string{keeperBinary, nameServerBinary} {
		if err := o.fill(); err == nil || !strings.Contains(err.Error(), "the lab needs "+filepath.Join(d, name)+": ") {
			t.Errorf("without %s: %v", name, err)
		}
		if err := os.WriteFile(filepath.Join(d, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.fill(); err != nil {
		t.Errorf("with all: %v", err)
	}
}

// Daemons of nodes that there are have nodes, if the lab has names.
func TestNameServersOfNodes(t *testing.T) {
	l := &Lab{options: Options{Nodes: 2, DNS: true}}
	for name, want := range map[string]string{"node2-dns": "node2", "node3-dns": "", "node1": "", "switch-dns": "", "-dns": ""} {
		m, ok := l.nodeServed(name)
		if ok != (want != "") || ok && m.name != want {
			t.Errorf("%s is of %q, %v", name, m.name, ok)
		}
	}
	l.options.DNS = false
	if m, ok := l.nodeServed("node1-dns"); ok {
		t.Errorf("without names it is of %s", m.name)
	}
}
