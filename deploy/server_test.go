package deploy

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/weftnet/weft/test/kubernetes/controlplane"
	"github.com/weftnet/weft/test/kubernetes/programs"
)

// server is an API server that has weft.yaml.
type server struct {
	*controlplane.ControlPlane
	client     *kubernetes.Clientset
	bin        string
	kubeconfig string
	home       string
}

// TestOnAPIServer has a real API server take the manifests as a user would
// apply them, and then does what users and Weft do to it.
func TestOnAPIServer(t *testing.T) {
	s := startServer(t)
	if out, err := s.kubectl("apply", "-f", manifestFile); err != nil {
		t.Fatalf("the first kubectl apply on an empty cluster must do: %v\n%s", err, out)
	}
	t.Run("again", func(t *testing.T) {
		out, err := s.kubectl("apply", "-f", manifestFile)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for line := range strings.Lines(out) {
			// Of these two kinds, kubectl cannot tell.
			if !strings.HasSuffix(line, " unchanged\n") && !strings.Contains(line, "poddisruptionbudget") && !strings.Contains(line, "admissionpolicy") {
				t.Errorf("applied again: %s", line)
			}
		}
	})
	s.waitForKinds(t)
	t.Run("kinds", s.testKinds)
	t.Run("the same as Weft", s.testSameAsWeft)
	t.Run("admission", s.testAdmission)
	t.Run("rights", s.testRights)
	t.Run("helm", s.testHelm)
}

// startServer starts an API server, or skips the test.
func startServer(t *testing.T) *server {
	t.Helper()
	bin := programs.Need(t, string(controlplane.APIServer), "kubectl")
	if _, err := controlplane.Bin(controlplane.Etcd, controlplane.APIServer); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cp, err := controlplane.Start(ctx, controlplane.Config{Bin: bin, Dir: t.TempDir(),
		Components: []controlplane.Component{controlplane.Etcd, controlplane.APIServer}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cp.Stop)
	s := &server{ControlPlane: cp, bin: bin, home: t.TempDir()}
	if s.client, err = kubernetes.NewForConfig(cp.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	config, err := cp.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	s.kubeconfig = filepath.Join(s.home, "kubeconfig")
	if err := os.WriteFile(s.kubeconfig, config, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs a program as the cluster's administrator, and returns what it
// printed, its errors last.
func (s *server) run(program string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(s.bin, program), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.kubeconfig, "HOME="+s.home, "XDG_CACHE_HOME=", "XDG_CONFIG_HOME=", "XDG_DATA_HOME=")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	return out.String() + errs.String(), err
}

func (s *server) kubectl(args ...string) (string, error) { return s.run("kubectl", args...) }

// waitForKinds waits until the API server serves what was applied: it takes up
// kinds and policies a moment after they are stored.
func (s *server) waitForKinds(t *testing.T) {
	t.Helper()
	if out, err := s.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.until(t, func() (string, error) { return s.kubectl("get", "weft", "--all-namespaces") })
}

// until tries until there is no error, for a minute at most.
func (s *server) until(t *testing.T, try func() (string, error)) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		out, err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v\n%s", err, out)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
