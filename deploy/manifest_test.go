package deploy

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/dns/journal"
	"github.com/weftnet/weft/dns/keeper"
	"github.com/weftnet/weft/plugin/openshift"
)

const (
	manifestFile = "weft.yaml"
	// namespace is the one that weft.yaml is rendered for.
	namespace = "weft-system"
	crdKind   = "CustomResourceDefinition"
)

// object is what every document of a manifest is.
type object interface {
	runtime.Object
	metav1.Object
}

var strict = json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
	json.SerializerOptions{Yaml: true, Strict: true})

// parse decodes each document of a manifest into its Go type; unknown fields
// and fields given twice are errors. Kinds of custom resources, whose types are
// in a module that Weft does without, are decoded as they are.
func parse(manifest []byte) ([]object, error) {
	var all []object
	for i, document := range bytes.Split(manifest, []byte("\n---\n")) {
		var any map[string]any
		if err := yaml.UnmarshalStrict(document, &any); err != nil {
			return nil, fmt.Errorf("document %d: %w", i, err)
		}
		if len(any) == 0 {
			continue
		}
		if any["kind"] == crdKind {
			all = append(all, &unstructured.Unstructured{Object: any})
			continue
		}
		o, _, err := strict.Decode(document, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("document %d, %v: %w", i, any["kind"], err)
		}
		all = append(all, o.(object))
	}
	return all, nil
}

func manifest(t *testing.T) []object {
	t.Helper()
	text, err := os.ReadFile(manifestFile)
	if err != nil {
		t.Fatal(err)
	}
	all, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// of returns the objects of a type, by their names.
func of[T object](all []object) map[string]T {
	found := map[string]T{}
	for _, o := range all {
		if o, ok := o.(T); ok {
			found[o.GetName()] = o
		}
	}
	return found
}

// one returns the object of that type and name.
func one[T object](t *testing.T, all []object, name string) T {
	t.Helper()
	found, ok := of[T](all)[name]
	if !ok {
		t.Fatalf("there is no %T %s", found, name)
	}
	return found
}

// clusterScoped are the kinds in the manifest that have no namespace.
var clusterScoped = []string{"Namespace", "ClusterRole", "ClusterRoleBinding", crdKind,
	"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}

func TestEachObjectIsThereOnceInItsPlace(t *testing.T) {
	seen := map[string]bool{}
	all := manifest(t)
	for _, o := range all {
		kind := o.GetObjectKind().GroupVersionKind().Kind
		name := kind + " " + o.GetName()
		if seen[name] {
			t.Errorf("%s is there twice", name)
		}
		seen[name] = true
		want := namespace
		if slices.Contains(clusterScoped, kind) {
			want = ""
		}
		if o.GetNamespace() != want {
			t.Errorf("%s is in namespace %q, not %q", name, o.GetNamespace(), want)
		}
		if kind != crdKind && o.GetLabels()["app.kubernetes.io/name"] != "weft" {
			t.Errorf("%s is not labelled as Weft's", name)
		}
	}
	if seen["ClusterConfig default"] || seen["ClusterNetwork default"] {
		t.Error("an object of a kind that the same manifest makes cannot be applied at the first time; the controller makes them")
	}
}

// pod is a pod template and what it belongs to.
type pod struct {
	name     string
	selector *metav1.LabelSelector
	template corev1.PodTemplateSpec
}

// pods returns the pods of a manifest, the agent's first.
func pods(t *testing.T, all []object) (agent, controller pod) {
	t.Helper()
	ds := one[*appsv1.DaemonSet](t, all, "weft-agent")
	deployment := one[*appsv1.Deployment](t, all, "weft-controller")
	return pod{"weft-agent", ds.Spec.Selector, ds.Spec.Template},
		pod{"weft-controller", deployment.Spec.Selector, deployment.Spec.Template}
}

func TestNamesAgree(t *testing.T) {
	all := manifest(t)
	accounts, configs := of[*corev1.ServiceAccount](all), of[*corev1.ConfigMap](all)
	agent, controller := pods(t, all)
	for _, p := range []pod{agent, controller} {
		spec := p.template.Spec
		if accounts[spec.ServiceAccountName] == nil {
			t.Errorf("%s: there is no ServiceAccount %q", p.name, spec.ServiceAccountName)
		}
		selector, err := metav1.LabelSelectorAsSelector(p.selector)
		if err != nil || !selector.Matches(labels.Set(p.template.Labels)) {
			t.Errorf("%s does not select its own pods (%v)", p.name, err)
		}
		mounted := map[string]bool{}
		for _, c := range spec.Containers {
			for _, m := range c.VolumeMounts {
				mounted[m.Name] = true
				if !slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
					t.Errorf("%s mounts %s, which is no volume", p.name, m.Name)
				}
			}
			checkPorts(t, p.name, c)
		}
		for _, v := range spec.Volumes {
			if !mounted[v.Name] {
				t.Errorf("%s does not mount volume %s", p.name, v.Name)
			}
			if v.ConfigMap == nil {
				continue
			}
			for _, item := range v.ConfigMap.Items {
				if _, ok := configs[v.ConfigMap.Name].Data[item.Key]; !ok {
					t.Errorf("%s: there is no key %s in ConfigMap %s", p.name, item.Key, v.ConfigMap.Name)
				}
			}
		}
	}
	budget := one[*policyv1.PodDisruptionBudget](t, all, "weft-controller")
	if selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector); err != nil ||
		!selector.Matches(labels.Set(controller.template.Labels)) || selector.Matches(labels.Set(agent.template.Labels)) {
		t.Errorf("the budget is not for the controllers alone (%v)", err)
	}
}

// checkPorts holds the ports of probes against that which the program listens
// at.
func checkPorts(t *testing.T, name string, c corev1.Container) {
	t.Helper()
	var listen string
	for _, a := range c.Args {
		if v, ok := strings.CutPrefix(a, "--listen="); ok {
			listen = v
		}
	}
	for path, probe := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil {
			t.Errorf("%s has no probe of %s", name, path)
			continue
		}
		get := probe.HTTPGet
		if at := get.Host + ":" + get.Port.String(); at != listen || get.Path != path {
			t.Errorf("%s listens at %s, and is asked at %s for %s", name, listen, at, get.Path)
		}
	}
	if len(c.Ports) == 0 || !strings.HasSuffix(listen, fmt.Sprint(":", c.Ports[0].ContainerPort)) || c.Ports[0].HostPort != c.Ports[0].ContainerPort {
		t.Errorf("%s listens at %s and has ports %v", name, listen, c.Ports)
	}
	// The agent's node has the tunnel, too.
	want := []corev1.ContainerPort{{Name: "vxlan", ContainerPort: openshift.DefaultPort, HostPort: openshift.DefaultPort, Protocol: corev1.ProtocolUDP}}
	if name != "weft-agent" {
		want = nil
	}
	if len(c.Ports) > 0 && !slices.Equal(c.Ports[1:], want) {
		t.Errorf("%s has the ports %v; expected %v beside that at which it listens", name, c.Ports, want)
	}
}

func TestRolesAreBound(t *testing.T) {
	all := manifest(t)
	cluster, local, accounts := of[*rbacv1.ClusterRole](all), of[*rbacv1.Role](all), of[*corev1.ServiceAccount](all)
	check := func(binding string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
		t.Helper()
		if ref.Kind == "ClusterRole" && cluster[ref.Name] == nil || ref.Kind == "Role" && local[ref.Name] == nil {
			t.Errorf("binding %s: there is no %s %s", binding, ref.Kind, ref.Name)
		}
		// Each program has the rights of its own role and no others.
		if len(subjects) != 1 || subjects[0].Name != ref.Name || subjects[0].Namespace != namespace || accounts[ref.Name] == nil {
			t.Errorf("binding %s of %s is for %v", binding, ref.Name, subjects)
		}
	}
	bindings := of[*rbacv1.ClusterRoleBinding](all)
	for name, b := range bindings {
		check(name, b.RoleRef, b.Subjects)
	}
	for name, b := range of[*rbacv1.RoleBinding](all) {
		check(name, b.RoleRef, b.Subjects)
	}
	if len(bindings) != len(accounts) {
		t.Errorf("%d ServiceAccounts have %d bindings", len(accounts), len(bindings))
	}
}

func TestPodsMayDoLittle(t *testing.T) {
	agent, controller := pods(t, manifest(t))
	for _, p := range []pod{agent, controller} {
		spec := p.template.Spec
		if !spec.HostNetwork || spec.HostPID || spec.HostIPC || len(spec.InitContainers) != 0 {
			t.Errorf("%s: of the node's namespaces, it is to share the network's, and have no other containers", p.name)
		}
		if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
			t.Errorf("%s has a token besides the projected one", p.name)
		}
		for _, c := range spec.Containers {
			s := c.SecurityContext
			if s.Privileged != nil && *s.Privileged || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
				t.Errorf("%s: the container is privileged, or may write to its root", p.name)
			}
			if !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%s drops capabilities %v, not all", p.name, s.Capabilities.Drop)
			}
			if s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s has no seccomp profile", p.name)
			}
		}
	}
	s := controller.template.Spec.Containers[0].SecurityContext
	if s.RunAsNonRoot == nil || !*s.RunAsNonRoot || len(s.Capabilities.Add) != 0 || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
		t.Errorf("the controller may do more than an ordinary user: %v", s)
	}
	for _, v := range controller.template.Spec.Volumes {
		if v.HostPath != nil {
			t.Errorf("the controller sees %s of its node", v.HostPath.Path)
		}
	}
	if tolerations := agent.template.Spec.Tolerations; len(tolerations) != 1 || tolerations[0] != (corev1.Toleration{Operator: corev1.TolerationOpExists}) {
		t.Errorf("the agent must run on every node, and tolerates %v", tolerations)
	}
}

// TestNameServerSeesItsOwnFiles: what answers pods has no way to the agent's sockets and journal, and
// does not write what the agent tells it.
func TestNameServerSeesItsOwnFiles(t *testing.T) {
	spec := one[*appsv1.DaemonSet](t, manifest(t), "weft-dns").Spec.Template.Spec
	paths := map[string]string{}
	for _, v := range spec.Volumes {
		if v.HostPath != nil {
			paths[v.Name] = v.HostPath.Path
		}
	}
	got := map[string]bool{}
	for _, m := range spec.Containers[0].VolumeMounts {
		if path := paths[m.Name]; path != "" {
			if got[path] = m.ReadOnly; m.MountPath != path {
				t.Errorf("%s of the node is at %s", path, m.MountPath)
			}
		}
	}
	want := map[string]bool{filepath.Dir(journal.DefaultPath): true, filepath.Dir(keeper.DefaultSocket): false}
	if !maps.Equal(got, want) {
		t.Errorf("it sees of its node, and to be read alone: %v, and should %v", got, want)
	}
	if c := spec.Containers[0].SecurityContext.Capabilities; !slices.Equal(c.Drop, []corev1.Capability{"ALL"}) || !slices.Equal(c.Add, []corev1.Capability{"NET_BIND_SERVICE"}) {
		t.Errorf("its capabilities are all but %v, and %v", c.Drop, c.Add)
	}
}

// TestSeedIsValid holds what the controller makes at first against the kinds.
func TestSeedIsValid(t *testing.T) {
	text := one[*corev1.ConfigMap](t, manifest(t), "weft").Data["objects.yaml"]
	objects, err := api.Decode([]byte(text), api.Kinds)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if err := o.Kind.Validate(o.Object); err != nil {
			t.Errorf("%s: %v", o.Kind.Kind, err)
		}
	}
	if len(objects) != 1 || objects[0].Kind != api.ClusterConfigKind {
		t.Errorf("weft.yaml begins with %d objects, not with a ClusterConfig alone", len(objects))
	}
}
