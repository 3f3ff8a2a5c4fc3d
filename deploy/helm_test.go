package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/test/kubernetes/programs"
)

const header = `# Weft for a Kubernetes cluster: kubectl apply -f weft.yaml
# Rendered from the chart beside it; make generate does it again.
`

// render renders the chart for a namespace.
func render(t *testing.T, args ...string) (string, error) {
	t.Helper()
	s := &server{bin: programs.Need(t, "helm"), home: t.TempDir()}
	return s.run("helm", append([]string{"template", "weft", "chart", "--namespace", namespace}, args...)...)
}

func TestManifestIsWhatTheChartRenders(t *testing.T) {
	rendered, err := render(t, "--set", "namespace.create=true")
	if err != nil {
		t.Fatalf("%v\n%s", err, rendered)
	}
	golden.File(t, manifestFile, []byte(header+rendered))
}

// TestValues renders the chart with the values of testdata/values.txtar. Of
// values that cannot be, the file behind them has helm's answer; of others,
// what the controller makes at first, and each object that the release has
// more or less than weft.yaml.
func TestValues(t *testing.T) {
	usual := map[string]bool{}
	for _, o := range manifest(t) {
		usual[nameOf(o)] = true
	}
	golden.Answers(t, "testdata/values.txtar", func(t *testing.T, _, values string) string {
		path := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(path, []byte(values), 0o600); err != nil {
			t.Fatal(err)
		}
		answer, err := render(t, "--values", path)
		if err != nil {
			return answer
		}
		return differences(t, answer, usual)
	})
}

// Helm deletes what a later release has no more, as it forgets values that are not given again. At
// the address of this Service all pods ask for names.
func TestTheServiceOfNamesStays(t *testing.T) {
	rendered, err := render(t, "--set-json", `dns.clusterIPs=["10.96.0.10"]`)
	if err != nil {
		t.Fatalf("%v\n%s", err, rendered)
	}
	all, err := parse([]byte(rendered))
	if err != nil {
		t.Fatal(err)
	}
	const policy = "helm.sh/resource-policy"
	if got := one[*corev1.Service](t, all, "kube-dns").Annotations[policy]; got != "keep" {
		t.Errorf("annotation %s is %q: Helm takes the Service away by which pods ask for names", policy, got)
	}
}

func nameOf(o object) string {
	return o.GetObjectKind().GroupVersionKind().Kind + " " + o.GetName()
}

// differences says what is in a rendered manifest, beyond what usually is.
func differences(t *testing.T, rendered string, usual map[string]bool) string {
	t.Helper()
	all, err := parse([]byte(rendered))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	there := map[string]bool{}
	for _, o := range all {
		there[nameOf(o)] = true
		if !usual[nameOf(o)] {
			out.WriteString("+ " + nameOf(o) + "\n")
		}
	}
	for _, o := range manifest(t) {
		if !there[nameOf(o)] && o.GetName() != namespace {
			out.WriteString("- " + nameOf(o) + "\n")
		}
	}
	for _, m := range of[*corev1.ConfigMap](all) {
		for key, text := range m.Data {
			if key == "config.yaml" {
				var any map[string]any
				if err := yaml.UnmarshalStrict([]byte(text), &any); err != nil {
					t.Errorf("%s: %v", key, err)
				}
			}
		}
	}
	agent, _ := pods(t, all)
	for _, port := range agent.template.Spec.Containers[0].Ports[1:] {
		fmt.Fprintf(&out, "the agent's node has %s port %d\n", port.Protocol, port.HostPort)
	}
	args := func(all []object) []string {
		return of[*appsv1.DaemonSet](all)["weft-dns"].Spec.Template.Spec.Containers[0].Args
	}
	if there["DaemonSet weft-dns"] {
		for _, arg := range args(all) {
			if !slices.Contains(args(manifest(t)), arg) {
				fmt.Fprintf(&out, "name servers have %s\n", arg)
			}
		}
	}
	seed := one[*corev1.ConfigMap](t, all, "weft").Data["objects.yaml"]
	objects, err := api.Decode([]byte(seed), api.Kinds)
	if err != nil {
		t.Fatalf("%v\n%s", err, seed)
	}
	for _, o := range objects {
		if err := o.Kind.Validate(o.Object); err != nil {
			t.Errorf("%v\n%s", err, seed)
		}
	}
	out.WriteString(seed)
	return out.String()
}

// testHelm installs, upgrades and uninstalls the chart on an API server from
// which what kubectl applied is gone.
func (s *server) testHelm(t *testing.T) {
	programs.Need(t, "helm")
	helm := func(args ...string) string {
		t.Helper()
		out, err := s.run("helm", append(args, "--namespace", namespace)...)
		if err != nil {
			t.Fatalf("helm %v: %v\n%s", args, err, out)
		}
		return out
	}
	for _, o := range manifest(t) {
		if o.GetName() == namespace {
			continue // nobody is there to empty it
		}
		args := []string{"delete", o.GetObjectKind().GroupVersionKind().Kind, o.GetName(), "--wait=false"}
		if o.GetNamespace() != "" {
			args = append(args, "--namespace", o.GetNamespace())
		}
		if out, err := s.kubectl(args...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	s.until(t, func() (string, error) {
		return s.kubectl("wait", "--for=delete", "crd", "--all", "--timeout=60s")
	})
	// Upstream's definition of a kind, or another's, stays as it is.
	const upstreams = "chart/files/crds/policy.networking.k8s.io_clusternetworkpolicies.yaml"
	if out, err := s.kubectl("create", "-f", upstreams); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	helm("install", "weft", "chart")
	s.waitForKinds(t)
	if out, err := s.kubectl("create", "-f", "testdata/clusterconfig.yaml"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	helm("upgrade", "weft", "chart", "--set", "logLevel=debug")
	const policies = "clusternetworkpolicies.policy.networking.k8s.io"
	release := func() string {
		t.Helper()
		out, err := s.kubectl("get", "crd", policies, "--output", `jsonpath={.metadata.annotations.meta\.helm\.sh/release-name}`)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return out
	}
	if of := release(); of != "" {
		t.Errorf("the definition of another has become that of release %s", of)
	}
	helm("uninstall", "weft")
	if out, err := s.kubectl("delete", "crd", policies); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	helm("install", "weft", "chart")
	helm("upgrade", "weft", "chart", "--set", "logLevel=debug")
	if of := release(); of != "weft" {
		t.Errorf("the definition that the chart brought is that of release %q", of)
	}
	helm("uninstall", "weft", "--ignore-not-found")
	if out, err := s.kubectl("get", "clusterconfigs", "default"); err != nil {
		t.Errorf("what users wrote must stay when the release goes: %v\n%s", err, out)
	}
	if out, err := s.kubectl("get", "daemonset,clusterrole,validatingadmissionpolicy", "--namespace", namespace, "--selector", "app.kubernetes.io/name=weft", "--output", "name"); err != nil || out != "" && !strings.Contains(out, "No resources found") {
		t.Errorf("the release is gone, and left %v\n%s", err, out)
	}
}
