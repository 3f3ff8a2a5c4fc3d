package controlplane

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// start starts etcd and an API server, or skips the test.
func start(t *testing.T) *ControlPlane {
	t.Helper()
	bin, err := Bin(Etcd, APIServer)
	if err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, err := Start(ctx, Config{Bin: bin, Dir: t.TempDir(), Components: []Component{Etcd, APIServer}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

func TestTheAPIServerComesAndGoes(t *testing.T) {
	c := start(t)
	config := c.RESTConfig()
	config.Timeout = time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	maps := client.CoreV1().ConfigMaps("default")
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pid := c.PID(APIServer)

	if err := c.Pause(APIServer); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Get(ctx, "kept", metav1.GetOptions{}); err == nil {
		t.Error("a paused API server answers")
	}
	if err := c.Resume(APIServer); err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(APIServer); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Get(ctx, "kept", metav1.GetOptions{}); err == nil {
		t.Error("a killed API server answers")
	}
	if err := c.Kill(APIServer); err == nil {
		t.Error("what does not run was killed")
	}
	if c.PID(APIServer) != 0 || c.PID(Etcd) == 0 {
		t.Error("another than the API server was killed")
	}
	if err := c.Restart(ctx, APIServer); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Get(ctx, "kept", metav1.GetOptions{}); err != nil {
		t.Errorf("after the API server is back: %v", err)
	}

	now := []int{pid, c.PID(APIServer), c.PID(Etcd)}
	c.Stop()
	for _, pid := range now {
		if _, err := os.Stat(filepath.Join("/proc", fmt.Sprint(pid))); err == nil {
			t.Errorf("process %d is left", pid)
		}
	}
	if err := c.Restart(ctx, APIServer); err == nil {
		t.Error("started again after the end")
	}
}

func TestUsersHaveTheRightsOfTheirGroups(t *testing.T) {
	c := start(t)
	for user, may := range map[string]bool{"system:masters": true, "readers": false} {
		b, err := c.Kubeconfig("somebody", user)
		if err != nil {
			t.Fatal(err)
		}
		client := client(t, b)
		_, err = client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if (err == nil) != may {
			t.Errorf("as a member of %s: %v", user, err)
		}
	}
}

func TestAStartThatFails(t *testing.T) {
	bin, err := Bin(Etcd, APIServer)
	if err != nil {
		t.Skip(err)
	}
	config := Config{Bin: bin, Dir: t.TempDir(), Components: []Component{Etcd, APIServer},
		Flags: map[Component][]string{APIServer: {"--no-such-flag"}}}
	if _, err := Start(t.Context(), config); err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("got %v", err)
	}
	config.Dir, config.NetNS = t.TempDir(), "/nowhere"
	if _, err := Start(t.Context(), config); err == nil || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("got %v", err)
	}
}

func client(t *testing.T, kubeconfig []byte) *kubernetes.Clientset {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
