package change

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/await"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
)

// TestDataPlanes has nodes change their data planes by their Nodes' annotations, one
// after the other, under load and with policies, and change back, while agents are
// killed. No connection breaks, nobody gets in who is kept out, and nothing is left of
// the data plane that was there.
func TestDataPlanes(t *testing.T) {
	c := up(t, lab.Options{Plugin: "openshift-networkpolicy", Weft: weftWithTwin(t)})
	old := slices.Concat(c.onEach("a", talker), c.onEach("b", talker))
	c.among(old)
	strangers := c.onEach("stranger", stranger)
	c.reach(strangers, old)
	c.letTalkersIn()
	c.denied(strangers, old)
	always := &traffics{c: c}
	always.load(old, old, baseRate, baseHeld)
	always.knocks(strangers, old)
	time.Sleep(hold)

	for _, to := range []string{"twin", api.DefaultDataPlane} {
		for i, n := range c.lab.Nodes() {
			start := time.Now()
			c.askFor(n, to)
			if i == 1 { // wherever in the change that is
				if err := errors.Join(c.lab.Kill(n), c.lab.Start(t.Context(), n)); err != nil {
					t.Fatal(err)
				}
			}
			c.uses(n, to)
			c.Logf("%s has changed to %s after %s", n, to, time.Since(start).Round(time.Millisecond))
			c.well()
			fresh := c.onEach("fresh", talker)
			c.among(old, fresh)
			c.denied(strangers, fresh)
			c.remove(fresh...)
		}
	}
	c.unchanged()
	always.finishFull()
}

// weftWithTwin returns the weft of a directory of programs of which the agent is that of
// test/change/twin.
func weftWithTwin(t *testing.T) string {
	if bin == "" {
		return "" // without root nothing was built, and there is no cluster
	}
	dir := t.TempDir()
	build := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(dir, "weft-agent"), "github.com/weftnet/weft/test/change/twin")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	programs, err := filepath.Glob(bin + "*")
	for _, p := range programs {
		if name := filepath.Base(p); name != "weft-agent" {
			err = errors.Join(err, os.Link(p, filepath.Join(dir, name)))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "weft")
}

// askFor has a Node ask for a data plane.
func (c *cluster) askFor(node, plane string) {
	c.Helper()
	c.write(func(ctx context.Context, r registry.Registry) error {
		_, err := registry.Modify(ctx, r, api.Node, registry.Key{Name: node}, func(n *corev1.Node) error {
			metav1.SetMetaDataAnnotation(&n.ObjectMeta, api.DataPlaneAnnotation, plane)
			return nil
		})
		return err
	})
}

// uses waits until a node says that it uses a data plane alone, and nothing of another
// is in its kernel.
func (c *cluster) uses(node, plane string) {
	c.Helper()
	kept, gone := "inet weft", "inet weft-twin"
	if plane == "twin" {
		kept, gone = gone, kept
	}
	await.NoError(c, patience, "node "+node+" uses "+plane, func() error {
		n, err := c.node(node)
		if err != nil {
			return err
		}
		if is, err := api.NodeDataPlane(n); err != nil || is != (api.DataPlaneReport{Uses: plane}) {
			return fmt.Errorf("the node reports %+v (%v)", is, err)
		}
		var tables bytes.Buffer
		if err := c.lab.ExecNode(node, lab.Command{Args: []string{"nft", "list", "tables"}, Stdout: &tables, Stderr: &tables}); err != nil {
			return fmt.Errorf("nft list tables: %w: %s", err, &tables)
		}
		all := strings.Split(tables.String(), "\n")
		if !slices.Contains(all, "table "+kept) || slices.ContainsFunc(all, func(t string) bool { return t == "table "+gone || t == "table "+gone+"-policy" }) {
			return fmt.Errorf("the node has the tables\n%s", &tables)
		}
		return nil
	})
}

func (c *cluster) node(name string) (*corev1.Node, error) {
	r, err := c.lab.Registry()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	n, err := r.Get(c.Context(), api.Node, registry.Key{Name: name})
	if err != nil {
		return nil, err
	}
	return n.(*corev1.Node), nil
}
