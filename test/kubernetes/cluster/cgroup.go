package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hierarchy is a mounted hierarchy of control groups: cgroups(7).
type hierarchy struct {
	// Path is where it is mounted.
	Path string
	// Options are the mount options that name it, as cpu or name=systemd, of
	// version 1; empty for the one of version 2.
	Options string
}

func (h hierarchy) unified() bool { return h.Options == "" }

// hierarchies lists the machine's hierarchies from a mountinfo file.
func hierarchies(mountinfo string) ([]hierarchy, error) {
	var out []hierarchy
	for s := bufio.NewScanner(strings.NewReader(mountinfo)); s.Scan(); {
		mount, super, ok := strings.Cut(s.Text(), " - ")
		left, right := strings.Fields(mount), strings.Fields(super)
		if !ok || len(left) < 6 || len(right) < 3 || !below(left[4], "/sys/fs/cgroup") {
			continue
		}
		switch right[0] {
		case "cgroup2":
			out = append(out, hierarchy{Path: left[4]})
		case "cgroup":
			var options []string
			for o := range strings.SplitSeq(right[2], ",") {
				// What is left names the controllers.
				if !slices.Contains([]string{"rw", "ro", "xattr", "clone_children"}, o) && !strings.HasPrefix(o, "release_agent=") {
					options = append(options, o)
				}
			}
			if slices.ContainsFunc(options, func(o string) bool { return strings.HasPrefix(o, "name=") }) {
				options = append(options, "none")
			}
			out = append(out, hierarchy{Path: left[4], Options: strings.Join(options, ",")})
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no control groups are mounted below /sys/fs/cgroup")
	}
	return out, nil
}

func below(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// groups are groups of the same name in every hierarchy.
type groups struct {
	Hierarchies []hierarchy
	Name        string // relative to the root of the hierarchies
}

// clusterGroups are those of a cluster, in which all of its processes are.
func clusterGroups(name string) (groups, error) {
	b, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return groups{}, err
	}
	h, err := hierarchies(string(b))
	return groups{h, "weft-kubernetes-" + name}, err
}

func (g groups) child(name string) groups {
	return groups{g.Hierarchies, filepath.Join(g.Name, name)}
}

func (g groups) dir(h hierarchy) string { return filepath.Join(h.Path, g.Name) }

// make makes the groups. It is no error when they are there.
func (g groups) make() error {
	for _, h := range g.Hierarchies {
		dir := g.dir(h)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		// No process can be in a set of no processors.
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			b, err := os.ReadFile(filepath.Join(filepath.Dir(dir), f))
			if h.unified() || errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, f), b, 0o644)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// offered are the controllers that a kubelet wants, and may have.
var offered = []string{"cpu", "cpuset", "io", "memory", "pids"}

// offer lets the groups within these have those of these groups' controllers
// that a kubelet wants. That must be said in version 2 alone, when it is alone,
// and where no process may be in a group that says so.
func (g groups) offer() error {
	if len(g.Hierarchies) != 1 || !g.Hierarchies[0].unified() {
		return nil
	}
	dir := g.dir(g.Hierarchies[0])
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for controller := range strings.FieldsSeq(string(b)) {
		if !slices.Contains(offered, controller) {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0o644); err != nil {
			return fmt.Errorf("offer the controller %s: %w", controller, err)
		}
	}
	return nil
}

// enterThread moves the calling thread into the groups of version 1; children
// inherit them. A thread alone cannot change its group of version 2: that of
// its children is given by the descriptor, which is the caller's to close and
// -1 where there is none.
func (g groups) enterThread() (unified int, err error) {
	unified = -1
	for _, h := range g.Hierarchies {
		if h.unified() {
			if unified, err = unix.Open(g.dir(h), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
				return -1, fmt.Errorf("open control group %s: %w", g.dir(h), err)
			}
			continue
		}
		if err := os.WriteFile(filepath.Join(g.dir(h), "tasks"), []byte("0"), 0o644); err != nil {
			if unified >= 0 {
				unix.Close(unified)
			}
			return -1, fmt.Errorf("enter control group %s: %w", g.dir(h), err)
		}
	}
	return unified, nil
}

// enter moves the calling process into the groups.
func (g groups) enter() error {
	for _, h := range g.Hierarchies {
		if err := os.WriteFile(filepath.Join(g.dir(h), "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return fmt.Errorf("enter control group %s: %w", g.dir(h), err)
		}
	}
	return nil
}

// busy reports whether a process is in the groups or below.
func (g groups) busy() (bool, error) {
	busy := false
	for _, h := range g.Hierarchies {
		err := filepath.WalkDir(g.dir(h), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			if err != nil || d.Name() != "cgroup.procs" {
				return err
			}
			b, err := os.ReadFile(path)
			if len(b) > 0 {
				busy = true
				return fs.SkipAll
			}
			return err
		})
		if busy || err != nil {
			return busy, err
		}
	}
	return false, nil
}

// remove removes the groups and all below. Processes that were killed leave
// their groups a moment later; when some are still there after patience, that
// is an error.
func (g groups) remove(patience time.Duration) error {
	var errs []error
	deadline := time.Now().Add(patience)
	for _, h := range g.Hierarchies {
		for {
			err := removeTree(g.dir(h))
			if err == nil {
				break
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				errs = append(errs, fmt.Errorf("remove control group: %w", err))
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return errors.Join(errs...)
}

func removeTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for _, d := range slices.Backward(dirs) {
		if e := os.Remove(d); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}
