package cluster

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/process"
)

// machineState is what a cluster must leave as it was on the machine, as text.
func machineState(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for name := range sysctls {
		value, err := os.ReadFile("/proc/sys/" + name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %s", name, value)
	}
	for _, path := range kept {
		fmt.Fprintf(&b, "%s %v\n", path, exists(path))
	}
	lines := strings.Split(b.String(), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// remains are what must be gone after a cluster.
type remains struct {
	processes  []process.ID
	namespaces map[string]bool // as NAME:[INODE]
}

// inventory finds the processes of a cluster by its control groups, and the
// namespaces that they are in.
func inventory(t *testing.T, c *Cluster) remains {
	t.Helper()
	r := remains{namespaces: make(map[string]bool)}
	own := make(map[string]bool)
	for _, ns := range namespacesOf("self") {
		own[ns] = true
	}
	g, err := clusterGroups(c.Name())
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(g.dir(g.Hierarchies[0]), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return err
		}
		b, err := os.ReadFile(path)
		for pid := range strings.FieldsSeq(string(b)) {
			var n int
			fmt.Sscan(pid, &n)
			if p, err := process.Identify(n); err == nil {
				r.processes = append(r.processes, p)
			}
			for _, ns := range namespacesOf(pid) {
				if !own[ns] {
					r.namespaces[ns] = true
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.processes) < 5 || len(r.namespaces) < 5 {
		t.Fatalf("only %d processes in %d namespaces were found", len(r.processes), len(r.namespaces))
	}
	return r
}

func namespacesOf(pid string) []string {
	var out []string
	for _, k := range namespaceKinds {
		if ns, err := os.Readlink(filepath.Join("/proc", pid, "ns", k.file)); err == nil {
			out = append(out, ns)
		}
	}
	return out
}

func (r remains) checkProcesses(t *testing.T) {
	t.Helper()
	for _, p := range r.processes {
		if p.Alive() {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
			t.Errorf("process %d is left: %q", p.PID, command)
		}
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		for _, ns := range namespacesOf(filepath.Base(path)) {
			if r.namespaces[ns] {
				t.Errorf("process %s is in the cluster's namespace %s", filepath.Base(path), ns)
			}
		}
	}
}

// check looks for all that a cluster could have left.
func (r remains) check(t *testing.T, c Config) {
	t.Helper()
	r.checkProcesses(t)
	g, err := clusterGroups(c.Name)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range g.Hierarchies {
		if exists(g.dir(h)) {
			t.Errorf("the control group %s is left", g.dir(h))
		}
	}
	if exists(c.Dir) {
		t.Errorf("the directory %s is left", c.Dir)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), c.Dir) {
		t.Errorf("mounts are left:\n%s", mounts)
	}
}
