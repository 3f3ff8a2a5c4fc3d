package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
)

// TestRunWithoutAgent runs a pod where no agent takes it. What DEL cannot take
// back is said, and can be taken away later as it is said.
func TestRunWithoutAgent(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 1})
	objects := func() string { return c.inventory() + c.weft("", "get", "namespaces", "-o", "name").stdout }
	before := objects()
	if err := c.lab.Kill("node1"); err != nil {
		t.Fatal(err)
	}
	left := []string{"is the agent running?", "pod new/web: its object, its network namespace, and what CNI may have given it cannot be removed",
		"take away what is left with: weft lab start-node node1 && weft lab delete web -n new"}
	c.weft("", "lab", "run", "web", "-n", "new", "--node", "node1").want(t, 2, append(left, "weft delete namespace new")...)
	c.weft("", "lab", "status").want(t, 1, "new/web")
	c.weft("", "lab", "delete", "web", "-n", "new").want(t, 2, left...)
	c.weft("", "lab", "start-node", "node1").want(t, 0)
	c.weft("", "lab", "delete", "web", "-n", "new").want(t, 0)
	c.weft("", "delete", "namespace", "new").want(t, 0)
	if after := objects(); after != before {
		t.Errorf("it left something:\n%s\nbefore it was\n%s", after, before)
	}
}

// TestUpFails has a lab fail in the middle of being made. It says why, and leaves
// nothing: no directory, no process and no mount.
func TestUpFails(t *testing.T) {
	t.Parallel()
	needRoot(t)
	unknown := `data plane: ClusterConfig default asks for data plane "abacus", which is unknown: there is linux; the node has none`
	abacus := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: api.ClusterConfigSpec{DataPlane: "abacus"}}
	fails := func(program, when string) string {
		return fmt.Sprintf("#!/bin/sh\ncase \"$*\" in %s) echo port 4789 is taken; exit 3;; esac\nexec %s%s \"$@\"\n", when, bin, program)
	}
	late := errors.New("pods could not run in time")
	for name, test := range map[string]struct {
		weft, agent string
		controllers int
		objects     []lab.Object
		want        []string
		// told is what is said meanwhile.
		told string
	}{
		"controller":        {weft: fails("weft", "controller*"), want: []string{"controller1 ended", "port 4789 is taken"}},
		"second controller": {weft: fails("weft", "controller*controller2*"), controllers: 2, want: []string{"controller2 ended", "port 4789 is taken"}},
		"outside":           {weft: fails("weft", "*outside*"), want: []string{"outside", "port 4789 is taken"}},
		"agent":             {agent: fails("weft-agent", "*node2*"), want: []string{"agent of node2: it ended", "port 4789 is taken"}},
		"data plane":        {objects: []lab.Object{{Kind: api.ClusterConfigKind, Object: abacus}}, want: []string{"agent of node", late.Error() + "; not ready: " + unknown}, told: "is not ready yet: " + unknown},
	} {
		t.Run(name, func(t *testing.T) {
			dir := shortDir(t)
			programs := filepath.Join(dir, "bin")
			if err := os.Mkdir(programs, 0o755); err != nil {
				t.Fatal(err)
			}
			for program, script := range map[string]string{"weft": test.weft, "weft-agent": test.agent, "weft-cni": ""} {
				if script == "" {
					script = fails(program, "nothing")
				}
				if err := os.WriteFile(filepath.Join(programs, program), []byte(script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), 15*time.Second, late)
			defer cancel()
			var told strings.Builder
			o := lab.Options{Dir: filepath.Join(dir, "lab"), Nodes: 2, Controllers: test.controllers, Objects: test.objects, Weft: filepath.Join(programs, "weft"),
				Progress: func(line string) { fmt.Fprintln(&told, line) }}
			_, err := lab.Up(ctx, o)
			if err == nil {
				lab.Down(o.Dir)
				t.Fatal("it is up")
			}
			for _, w := range test.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("it does not say %q: %v", w, err)
				}
			}
			if !strings.Contains(told.String(), test.told) {
				t.Errorf("it does not say meanwhile %q:\n%s", test.told, told.String())
			}
			if _, err := os.Stat(o.Dir); !os.IsNotExist(err) {
				t.Errorf("its directory is left: %v", err)
			}
			if mounts, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(mounts), dir) {
				t.Errorf("a mount is left:\n%s", mounts)
			}
			if left := processesOf(t, dir); len(left) > 0 {
				t.Errorf("processes are left: %q", left)
			}
		})
	}
}

// processesOf returns the command lines in which a directory is.
func processesOf(t *testing.T, dir string) (all []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), dir) {
			all = append(all, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return all
}
