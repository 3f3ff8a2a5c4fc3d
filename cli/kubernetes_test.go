package cli

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/internal/process"
	"github.com/weftnet/weft/test/kubernetes/controlplane"
)

// TestKubernetes runs the commands against a real control plane each, with the
// definitions of the chart. kubectl is the real one, and finds its plug-in.
// There are no nodes; kubelets stands in for what they would say.
func TestKubernetes(t *testing.T) {
	bin, err := controlplane.Bin(controlplane.Components()...)
	if err != nil {
		t.Skip(err)
	}
	kubectl := filepath.Join(bin, "kubectl")
	if _, err := os.Stat(kubectl); err != nil {
		t.Skipf("%v: build the programs with: make kubernetes-programs", err)
	}
	deploy, err := filepath.Abs("../deploy")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/kubernetes", UpdateScripts: golden.Update(), RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			setHome(env)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cp, err := controlplane.Start(ctx, controlplane.Config{Bin: bin, Dir: filepath.Join(env.WorkDir, "control-plane")})
			if err != nil {
				return err
			}
			env.Defer(func() {
				if err := cp.Broken(); err != nil {
					t.Error(err)
				}
				env.T().Log(process.Tail(cp.Log(controlplane.ControllerManager))) // which is seen where the script fails
				cp.Stop()
			})
			for user, groups := range map[string][]string{"admin": {"system:masters"}, "viewer": {"viewers"}} {
				config, err := cp.Kubeconfig(user, groups...)
				if err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(env.WorkDir, user), config, 0o600); err != nil {
					return err
				}
			}
			if err := os.Symlink(kubectl, filepath.Join(env.WorkDir, "kubectl")); err != nil {
				return err
			}
			env.Setenv("PATH", env.Getenv("PATH")+string(filepath.ListSeparator)+env.WorkDir)
			env.Setenv("KUBECONFIG", filepath.Join(env.WorkDir, "admin"))
			env.Setenv("MANIFEST", filepath.Join(deploy, "weft.yaml"))

			client, err := kubernetes.NewForConfig(cp.RESTConfig())
			if err != nil {
				return err
			}
			working, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { kubelets(working, client, filepath.Join(env.WorkDir, "mended-now")) })
			env.Defer(func() {
				stop()
				wg.Wait()
			})

			apply := exec.CommandContext(ctx, kubectl, "--kubeconfig", env.Getenv("KUBECONFIG"), "apply", "-f", filepath.Join(deploy, "chart/files/crds"))
			out, err := apply.CombinedOutput()
			if err != nil {
				env.T().Log(string(out))
			}
			return err
		},
		Cmds: commands,
	})
}

// kubelets stands in for the nodes' kubelets until ctx ends: pods that are
// deleted go, those of kube-proxy run, and those that clean nodes say that they are
// done, on node2 only once there is a file.
func kubelets(ctx context.Context, client kubernetes.Interface, mended string) {
	for ctx.Err() == nil {
		list, _ := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{}) // again when it fails
		for _, p := range list.Items {
			pods := client.CoreV1().Pods(p.Namespace)
			if p.DeletionTimestamp != nil {
				now := int64(0)
				pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
				continue
			}
			cleans := p.Labels["app.kubernetes.io/component"] == "weft-uninstall"
			if p.Spec.NodeName == "" || !cleans && p.Labels["k8s-app"] != "kube-proxy" {
				continue
			}
			long := metav1.NewTime(time.Now().Add(-time.Hour))
			status := corev1.PodStatus{Phase: corev1.PodRunning,
				ContainerStatuses: []corev1.ContainerStatus{{Name: p.Spec.Containers[0].Name, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: long}}}},
				Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
			if _, err := os.Stat(mended); err != nil && cleans && p.Spec.NodeName == "node2" {
				status = corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{{Name: "uninstall",
					LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2, Message: "a line\nerror: an agent runs on this node\n"}}}}}
			}
			if p.Status.Phase == status.Phase && len(p.Status.InitContainerStatuses) == len(status.InitContainerStatuses) {
				continue
			}
			if patch, err := json.Marshal(map[string]any{"status": status}); err == nil {
				pods.Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}
