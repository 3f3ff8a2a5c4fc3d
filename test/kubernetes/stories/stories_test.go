package stories

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/weftnet/weft/internal/oci"
	"github.com/weftnet/weft/test/kubernetes/cluster"
	"github.com/weftnet/weft/test/kubernetes/images"
	"github.com/weftnet/weft/test/kubernetes/programs"
)

var (
	pluginList = flag.String("plugin", "", "the `PLUG-INS` to tell the stories on, with commas between them: openshift-subnet, openshift-networkpolicy, flannel")
	up         = flag.String("cluster", "", "tell them on the cluster that is up under this `NAME`, instead of on one of their own")
	away       = flag.Duration("away", 5*time.Minute, "how long the API server is away; 30 s with -short")
	report     = flag.String("report", "", "write what was measured to a `FILE` of Markdown")
	keep       = flag.Bool("keep", false, "leave the cluster up")
)

func TestStories(t *testing.T) {
	if *pluginList == "" {
		t.Skip("needs a real cluster, and brings one up when asked to: -plugin openshift-networkpolicy,flannel (make test-kubernetes)")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes a cluster of namespaces")
	}
	bin := programs.Need(t, "kubectl", "kube-apiserver", "kubelet", "containerd", "helm")
	var stages []*stage
	for plugin := range strings.SplitSeq(*pluginList, ",") {
		t.Run(plugin, func(t *testing.T) {
			s := newStage(t, plugin, bin)
			stages = append(stages, s)
			t.Cleanup(func() { s.summary(os.Stderr) })
			s.stories(t)
		})
	}
	if *report == "" {
		return
	}
	if t.Failed() {
		t.Fatalf("%s is left as it was, because a story failed", *report)
	}
	var b strings.Builder
	fmt.Fprintf(&b, reportHead, "`", runtime.NumCPU(), time.Now().Format(time.DateOnly))
	for _, s := range stages {
		fmt.Fprintf(&b, "\n## %s\n\n| Story | What was measured |\n|---|---|\n", s.plugin)
		for _, line := range s.lines() {
			story, measured, _ := strings.Cut(line, "\t")
			fmt.Fprintf(&b, "| %s | %s |\n", story, measured)
		}
	}
	if err := os.WriteFile(*report, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

const reportHead = `# Measured on Kubernetes

Written by %[1]sgo test ./test/kubernetes/stories -report%[1]s (%[1]smake bench-kubernetes%[1]s) on a
machine with %[2]d processors on which the whole cluster runs: etcd, the control
plane, and three nodes with a kubelet, a container runtime and kube-proxy each.
%[3]s.

Requests are sent at a steady rate, seven in ten over connections that stay
open, one over a connection of its own, two over UDP, half of them over each
family. A request is lost when there is no answer after five seconds, or when its
connection breaks.
`

// stories tells them, those that disturb others one after the other.
func (s *stage) stories(t *testing.T) {
	short := testing.Short()
	s.tell(t, "up", isUp)
	t.Run("at the same time", func(t *testing.T) {
		s.meanwhile(t, "reach", reach)
		s.meanwhile(t, "host ports", hostPorts)
		if short {
			return
		}
		s.meanwhile(t, "bandwidth", bandwidth)
		s.meanwhile(t, "lives of pods", lives)
		s.meanwhile(t, "refusals", refusals)
	})
	if !short {
		s.tell(t, "burst", burst)
	}
	s.tell(t, "agents die", s.agentsDie(short))
	s.tell(t, "names", s.names(short))
	if s.plugin == enforcing {
		s.tell(t, "policies", s.policies(short))
	}
	if short {
		return
	}
	s.tell(t, "api server away", s.apiServerAway(*away))
	s.tell(t, "node dies", nodeDies)
	s.tell(t, "plug-in changed", pluginChanged)
	s.tell(t, "kube-proxy removed", kubeProxyRemoved)
	s.tell(t, "rights missing", rightsMissing)
	s.tell(t, "kind missing", kindMissing)
	s.tell(t, "uninstalled", uninstalled)
}

// newStage brings up a cluster under Weft with a plug-in, or finds the one that
// the flag names.
func newStage(t *testing.T, plugin, bin string) *stage {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{plugin: plugin, kubectl: filepath.Join(bin, "kubectl")}
	work := t.TempDir()
	s.traffic, s.weft = filepath.Join(work, "weft-traffic"), filepath.Join(work, "kubectl-weft")
	build(t, s.traffic, "./weft-traffic", filepath.Join(root, "test/kubernetes/traffic"))
	build(t, s.weft, "./cmd/weft", root)
	// Nodes that boot look for it again.
	load := filepath.Join(filepath.Dir(bin), "images", "traffic.tar")
	if err := os.MkdirAll(filepath.Dir(load), 0o755); err != nil {
		t.Fatal(err)
	}
	own := oci.Image{Names: []string{image}, Platform: oci.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH},
		Layers: []oci.Layer{{Files: []oci.File{{Path: program, Mode: 0o755, Source: s.traffic}}}}}
	if _, err := own.WriteFile(load); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	if *up != "" {
		if s.cluster, err = cluster.Open(cluster.DefaultDir(*up)); err != nil {
			t.Fatal(err)
		}
		if err := s.cluster.Load(ctx, load); err != nil {
			t.Fatal(err)
		}
		s.open(t)
		return s
	}
	tars, err := images.Write(ctx, bin, filepath.Join(filepath.Dir(bin), "images"))
	if err != nil {
		t.Fatal(err)
	}
	// A build in the meantime must not change it.
	weft := filepath.Join(work, "weft-image.tar")
	if out, err := exec.Command("cp", filepath.Join(root, "bin/weft-image.tar"), weft).CombinedOutput(); err != nil {
		t.Fatalf("Weft's image: %v: %s: build it with make image", err, out)
	}
	tars = slices.DeleteFunc(tars, func(tar string) bool {
		return !slices.Contains([]string{"pause.tar", "coredns.tar", "kube-proxy.tar"}, filepath.Base(tar))
	})
	begin := time.Now()
	s.cluster, err = cluster.Up(ctx, cluster.Config{
		Name: "stories", Bin: bin, Images: append(tars, load, weft), DNS: cluster.NodeDNS, Attached: !*keep,
		Flags: map[string][]string{"kubelet": {"--pod-manifest-path=" + manifests}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if *keep {
			t.Log("the cluster is left up: KUBECONFIG=" + s.cluster.Kubeconfig())
			return
		}
		if err := s.cluster.Down(); err != nil {
			t.Error(err)
		}
	})
	s.note("cluster", "up in "+time.Since(begin).Round(time.Second).String())
	s.open(t)
	for _, n := range s.nodes {
		i, err := n.settled(ctx)
		if err != nil {
			t.Fatal(err)
		}
		s.before = append(s.before, i)
	}
	begin = time.Now()
	if err := s.cluster.InstallWeft(ctx, cluster.Weft{Chart: filepath.Join(root, "deploy/chart"), Image: weft, Plugin: plugin}); err != nil {
		t.Fatal(err)
	}
	s.note("cluster", "nodes ready "+time.Since(begin).Round(time.Second).String()+" after Weft was applied")
	return s
}

// open finds the nodes, and makes a client.
func (s *stage) open(t *testing.T) {
	t.Helper()
	var err error
	if s.kube, err = kubernetes.NewForConfig(s.cluster.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	for _, n := range s.cluster.Nodes() {
		s.nodes = append(s.nodes, &node{cluster: s.cluster, name: n.Name, addresses: n.Addresses})
	}
	if len(s.nodes) < 3 {
		t.Fatalf("the stories need three nodes, and there are %d", len(s.nodes))
	}
}

// build compiles a program without C, for an image that has nothing else.
func build(t *testing.T, out, what, dir string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, what)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", what, err, text)
	}
}
