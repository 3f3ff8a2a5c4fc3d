package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
)

// wantStatus wants weft status to end with a code and to say some words, soon.
func (c *cluster) wantStatus(code int, words ...string) {
	c.Helper()
	c.eventually(func() error {
		s := c.weft("", "status")
		for _, w := range words {
			if !strings.Contains(s.stdout, w) {
				return fmt.Errorf("weft status lacks %q:\n%s%s", w, s.stdout, s.stderr)
			}
		}
		if s.code != code {
			return fmt.Errorf("weft status ends with %d, not %d:\n%s%s", s.code, code, s.stdout, s.stderr)
		}
		return nil
	})
}

// TestStatusTells does to a cluster what leaves pods without a network, and
// wants status to tell, and nothing to be told once it is mended. Another lab is
// up beside it.
func TestStatusTells(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2})
	beside := up(t, lab.Options{Nodes: 1})
	other := beside.run("web", "node1")[0]
	here, there := c.run("web", "node1")[0], c.run("there", "node2")[0]
	c.mustSee("pod/web", there, here)
	beside.mustReach("node/node1", other)
	c.wantStatus(0, "No problems.")

	// A run that comes to nothing leaves nothing.
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := c.inventory() + c.weft("", "get", "namespaces", "-o", "name").stdout
	for name, pod := range map[string]lab.Pod{
		"no program":         {Name: "none", Namespace: "new", Node: "node1", Command: []string{"/no/such/program"}},
		"what is no program": {Name: "none", Namespace: "new", Node: "node1", Command: []string{text}},
	} {
		if _, err := c.lab.Run(t.Context(), pod); err == nil {
			t.Errorf("%s: it runs", name)
		}
	}
	if after := c.inventory() + c.weft("", "get", "namespaces", "-o", "name").stdout; after != before {
		t.Errorf("runs that failed left something:\n%s\nbefore it was\n%s", after, before)
	}
	if _, err := os.Stat(filepath.Join(c.dir, "pods", "new")); err == nil {
		t.Error("a run that failed left the directory of its namespace")
	}

	// A pod whose process ends has ended, and gives back what it had.
	for name, want := range map[string]corev1.PodPhase{"true": corev1.PodSucceeded, "false": corev1.PodFailed} {
		c.run(name, "node1", name)
		c.eventually(func() error {
			pod, err := registryGet[*corev1.Pod](c, api.Pod, registry.Key{Namespace: "default", Name: name})
			if err == nil && pod.Status.Phase != want {
				err = fmt.Errorf("its phase is %s, not %s", pod.Status.Phase, want)
			}
			return err
		})
	}
	objects := strings.NewReplacer("pod/false\n", "", "pod/true\n", "")
	c.eventually(func() error {
		after := objects.Replace(c.inventory() + c.weft("", "get", "namespaces", "-o", "name").stdout)
		if after != before {
			return fmt.Errorf("pods that ended left something:\n%s\nbefore it was\n%s", after, before)
		}
		return nil
	})
	c.weft("", "lab", "status").want(t, 0, "succeeded", "failed")
	for _, name := range []string{"true", "false"} {
		if err := c.lab.Delete(t.Context(), "", name); err != nil {
			t.Error(err)
		}
	}

	// A node is deleted while its agent runs; to start it brings it back.
	c.weft("", "delete", "node", "node2").want(t, 0)
	c.wantStatus(1, "node node2: there is no such Node, though its agent runs and a pod, default/there, is on it")
	c.weft("", "lab", "start-node", "node2").want(t, 0, "node2 was deleted from the cluster", "node2 runs")
	c.wantStatus(0, "No problems.")

	// A node whose agent is lost is not called ready.
	if err := c.lab.Kill("node2"); err != nil {
		t.Fatal(err)
	}
	c.wantStatus(1, "lost      unknown   unknown", "node node2: its agent does not run, so its state is not known")
	c.weft("", "get", "nodes").want(t, 0, "Unknown")
	c.weft("", "drops").want(t, 2, "This is not all:\n  node node2: the agent of node2 does not run")
	c.weft("", "drops", "-o", "json").want(t, 2, `"node": "node2"`, "not all nodes have told what they drop: node2")

	// A node that is asked for a data plane that there is not goes on with the one it has.
	change := func(f func(*api.ClusterConfigSpec)) {
		t.Helper()
		if _, err := registry.Modify(t.Context(), c.registry(), api.ClusterConfigKind, registry.Key{Name: api.DefaultName},
			func(config *api.ClusterConfig) error { f(&config.Spec); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	choose := func(plugin string) { t.Helper(); change(func(s *api.ClusterConfigSpec) { s.Plugin = plugin }) }
	change(func(s *api.ClusterConfigSpec) { s.DataPlane = "abacus" })
	c.weft("", "lab", "start-node", "node2").want(t, 0, "node2 runs")
	c.wantStatus(1, `node node2: data plane: ClusterConfig default asks for data plane "abacus", which is unknown: there is linux; the node goes on with linux`)
	c.mustSee("pod/web", there, here)
	change(func(s *api.ClusterConfigSpec) { s.DataPlane = api.DefaultDataPlane })
	c.wantStatus(0, "No problems.")
	choose("weave")
	c.wantStatus(1, `clusterconfig default: plug-in "weave" is unknown`)
	if s := c.weft("", "status"); strings.Count(s.stdout, `"weave" is unknown`) != 1 {
		t.Errorf("one problem is told several times:\n%s", s.stdout)
	}
	choose(api.DefaultPlugin)
	c.wantStatus(0, "No problems.")

	// Another plug-in has other subnets: pods that there are stay reachable with theirs.
	config := flannelConfig(`{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}`)
	if _, err := c.registry().Create(t.Context(), config.Kind, config.Object); err != nil {
		t.Fatal(err)
	}
	c.weft("", "plugin", "change", "flannel", "--wait").want(t, 0, "Done: new pods get addresses of flannel")
	c.wantStatus(0, "The plug-in is being changed to flannel", "No problems.")
	c.mustSee("pod/web", there, here)
	c.eventually(func() error {
		if s := c.weft("", "plugin", "status"); s.code != 1 || !strings.Contains(s.stdout, "Retiring: ") || !strings.Contains(s.stdout, "openshift-subnet") {
			return fmt.Errorf("weft plugin status ends with %d:\n%s", s.code, s.stdout)
		}
		return nil
	})
	choose(api.DefaultPlugin)
	c.wantStatus(0, "No problems.")
	c.mustSee("pod/web", there, here)
	beside.mustReach("node/node1", other)
}

// registryGet returns an object of a cluster.
func registryGet[T registry.Object](c *cluster, k *registry.Kind, key registry.Key) (object T, err error) {
	o, err := c.registry().Get(c.Context(), k, key)
	if err != nil {
		return object, err
	}
	return o.(T), nil
}
