// Package cluster runs a real Kubernetes cluster of several nodes on one
// machine: etcd and the control plane, and for each node a kubelet, containerd
// and kube-proxy of its own.
//
//	c, err := cluster.Up(ctx, cluster.Config{Bin: bin, Images: tars, Network: cluster.Bridge})
//	…
//	err = cluster.Down(c.Dir())
//
// A node is a set of namespaces: of the network, with a link to a switch that
// all nodes are on; of mounts, with a root that is an overlay over the
// machine's, a /run of its own and the machine's control groups from the
// node's own downwards; of processes, so that killing the first of them is
// cutting the node's power. The control plane runs in the network namespace of
// the first node, so that the pods' network is the API server's as well, and
// stays when that node is off.
//
// All of the cluster are descendants of one process, the supervisor, which is
// the first of a namespace of processes and has the cluster's mounts: when it
// is killed, everything but the control groups and the files in one directory
// has gone. So nothing is left behind, whatever ends when. On the machine
// itself, the supervisor answers on one port of 127.0.0.1, where the API server
// is to be found, and on a socket in that directory.
//
// Supervisor and first processes are the program that uses this package,
// started again under another name (see init in names.go). Start reading at Up,
// supervisor.up and boot.prepare.
package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/weftnet/weft/internal/jsonfile"
	"github.com/weftnet/weft/internal/process"
	"github.com/weftnet/weft/test/kubernetes/controlplane"
)

// ErrNone says that there is no cluster in a directory.
var ErrNone = errors.New("no cluster is up")

// Cluster is a cluster that is up. Its methods may be called at the same time,
// and by several programs.
type Cluster struct {
	config     Config
	supervisor process.ID
	rest       *rest.Config
	pki        *controlplane.PKI
	// attached is a descriptor whose end is the cluster's; -1 for none. No
	// *os.File, which would end with the last reference to it.
	attached int
}

// Up makes a cluster, and returns when its API server is ready, its kubelets
// run, and the manifests are applied; and, where something is to connect the
// pods (Config.Network or Config.Manifests), when all nodes are ready. On an
// error no process is left; the logs are in Config.Dir, until Down or the next
// Up. It needs root.
func Up(ctx context.Context, config Config) (*Cluster, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("a cluster needs root: it makes namespaces, mounts and control groups")
	}
	if err := config.check(); err != nil {
		return nil, err
	}
	unlock, err := lockDir(config.Dir, true)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if supervisorOf(config.Dir).Alive() {
		return nil, fmt.Errorf("a cluster is up in %s already: take it down first", config.Dir)
	}
	if err := clear(config.Dir); err != nil {
		return nil, err
	}
	if g, err := clusterGroups(config.Name); err != nil {
		return nil, err
	} else if busy, err := g.busy(); err != nil {
		return nil, err
	} else if busy {
		return nil, fmt.Errorf("a cluster of the name %q is up in another directory: use another name", config.Name)
	}
	if err := jsonfile.Write(configFile(config.Dir), config); err != nil {
		return nil, err
	}
	attached, err := launch(ctx, config)
	if err == nil {
		var c *Cluster
		if c, err = open(config.Dir); err == nil {
			c.attached = attached
			if err = c.settle(ctx); err == nil {
				return c, nil
			}
		}
	}
	return nil, errors.Join(fmt.Errorf("cluster %s: %w", config.Name, err), end(config))
}

// check looks for what a cluster needs from the machine.
func (c Config) check() error {
	programs := []string{"containerd-shim-runc-v2", "ctr", "kubectl"}
	for _, component := range controlplane.Components() {
		if component != controlplane.Etcd { // which looks elsewhere, too
			programs = append(programs, string(component))
		}
	}
	for _, p := range append(programs, c.programs()...) {
		if !exists(filepath.Join(c.Bin, p)) {
			return fmt.Errorf("%s is not in %s: build the programs with: make kubernetes-programs", p, c.Bin)
		}
	}
	if _, err := exec.LookPath("runc"); err != nil {
		return fmt.Errorf("%w: install Debian's runc", err)
	}
	if c.Network == Bridge && !exists(filepath.Join(debianPlugins, "bridge")) {
		return fmt.Errorf("%s/bridge is missing: install Debian's containernetworking-plugins", debianPlugins)
	}
	for _, path := range append(c.Images[:len(c.Images):len(c.Images)], c.Manifests...) {
		if _, err := os.Stat(path); err != nil {
			return err
		}
	}
	return nil
}

// launch starts the supervisor and waits until it has brought the cluster up.
// It returns the descriptor that keeps an attached cluster up.
func launch(ctx context.Context, config Config) (attached int, err error) {
	log, err := os.OpenFile(supervisorLog(config.Dir), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return -1, err
	}
	defer log.Close()
	var theirs, ours [3]*os.File // by number of the descriptor, from goFD on
	defer func() {
		for _, f := range append(theirs[:], ours[:]...) {
			if f != nil {
				f.Close()
			}
		}
	}()
	for i, toUs := range []bool{false, true, false} {
		r, w, err := os.Pipe()
		if err != nil {
			return -1, err
		}
		if theirs[i], ours[i] = r, w; toUs {
			theirs[i], ours[i] = w, r
		}
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{supervisorName, config.Dir}, Dir: "/",
		Env:    []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"},
		Stdout: log, Stderr: log, ExtraFiles: theirs[:],
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS},
	}
	if err := cmd.Start(); err != nil {
		return -1, fmt.Errorf("start the supervisor: %w", err)
	}
	go cmd.Wait() // as long as this program lives, it is the one to reap it
	for i := range theirs {
		theirs[i].Close()
	}
	// A supervisor that is not in the records does not begin.
	r, err := process.Identify(cmd.Process.Pid)
	if err == nil {
		err = jsonfile.Write(recordFile(config.Dir), r)
	}
	if err == nil {
		_, err = ours[0].WriteString("go")
	}
	if err != nil {
		return -1, fmt.Errorf("start the supervisor: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { ours[statusFD-goFD].SetReadDeadline(time.Now()) })
	defer stop()
	answer, err := io.ReadAll(io.LimitReader(ours[statusFD-goFD], 16<<10))
	if string(answer) != "ok" {
		if err = cmp.Or(ctx.Err(), err); err == nil {
			err = errors.New(cmp.Or(string(answer), "the supervisor ended"+process.Tail(log.Name())))
		}
		return -1, err
	}
	if !config.Attached {
		return -1, nil
	}
	return unix.FcntlInt(ours[attachedFD-goFD].Fd(), unix.F_DUPFD_CLOEXEC, 0)
}

// Open finds a cluster that is up in a directory.
func Open(dir string) (*Cluster, error) {
	unlock, err := lockDir(dir, false)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return open(dir)
}

func open(dir string) (*Cluster, error) {
	c := &Cluster{supervisor: supervisorOf(dir), attached: -1}
	if !c.supervisor.Alive() {
		return nil, fmt.Errorf("%w in %s", ErrNone, dir)
	}
	if err := jsonfile.Read(configFile(dir), &c.config); err != nil {
		return nil, err
	}
	var err error
	if c.pki, err = controlplane.OpenPKI(filepath.Join(c.config.controlPlaneDir(), "pki")); err != nil {
		return nil, err
	}
	if c.rest, err = clientcmd.BuildConfigFromFlags("", kubeconfigFile(dir)); err != nil {
		return nil, err
	}
	c.rest.QPS = -1 // no limit
	return c, nil
}

// Down ends the cluster in a directory and removes the directory and all else
// that is left of it. It is no error when there is none.
func Down(dir string) error {
	unlock, err := lockDir(dir, false)
	if errors.Is(err, ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	if err := clear(dir); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil {
		return err
	}
	if parent := filepath.Dir(dir); parent == defaultDirs {
		os.Remove(parent) // unless other clusters are there
	}
	return nil
}

// Down ends the cluster as the function Down does.
func (c *Cluster) Down() error {
	err := Down(c.config.Dir)
	if c.attached >= 0 {
		unix.Close(c.attached)
		c.attached = -1
	}
	return err
}

// clear ends what runs in a directory and empties it. The caller holds its lock.
func clear(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return err
	}
	var config Config
	switch err := jsonfile.Read(configFile(dir), &config); {
	case errors.Is(err, os.ErrNotExist) && onlyNew(entries):
		// The directory of an Up that was killed before it made anything.
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s is not empty and holds no cluster: use another directory", dir)
	case err != nil:
		return err
	default:
		config.Dir = dir
		if err := end(config); err != nil {
			return err
		}
	}
	for _, e := range entries {
		// What says whose directory this is goes last.
		if path := filepath.Join(dir, e.Name()); path != configFile(dir) {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(configFile(dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func onlyNew(entries []os.DirEntry) bool {
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), jsonfile.TempPrefix) {
			return false
		}
	}
	return true
}

// end ends all processes of a cluster and removes its control groups.
func end(c Config) error {
	err := supervisorOf(c.Dir).Kill()
	g, err1 := clusterGroups(c.Name)
	if err1 == nil {
		err1 = g.remove(patience)
	}
	return errors.Join(err, err1)
}

// supervisorOf reads the record of a supervisor; a missing one is not alive.
func supervisorOf(dir string) process.ID {
	var r process.ID
	if err := jsonfile.Read(recordFile(dir), &r); err != nil {
		return process.ID{}
	}
	return r
}

// lockDir keeps other Ups and Downs from a directory. The kernel lets go of the
// lock of a process that dies.
func lockDir(dir string, create bool) (unlock func(), err error) {
	for {
		if create {
			if err := os.MkdirAll(dir, 0o700); errors.Is(err, os.ErrNotExist) {
				continue // a Down came in between
			} else if err != nil {
				return nil, err
			}
		}
		f, err := os.Open(dir)
		if errors.Is(err, os.ErrNotExist) {
			if create {
				continue // a Down came in between
			}
			return nil, fmt.Errorf("%w in %s", ErrNone, dir)
		}
		if err != nil {
			return nil, err
		}
		for {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		// A Down that was waited for has removed the directory that is locked.
		mine, err1 := f.Stat()
		now, err2 := os.Stat(dir)
		if err1 == nil && err2 == nil && os.SameFile(mine, now) {
			return func() { f.Close() }, nil
		}
		f.Close()
	}
}

// ask sends a request to the supervisor.
func (c *Cluster) ask(ctx context.Context, r request) (*Status, error) {
	if !c.supervisor.Alive() {
		return nil, fmt.Errorf("%w in %s any more%s", ErrNone, c.config.Dir, process.Tail(supervisorLog(c.config.Dir)))
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socketFile(c.config.Dir))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })
	defer stop()
	var answer response
	err = json.NewEncoder(conn).Encode(r)
	if err == nil {
		err = json.NewDecoder(conn).Decode(&answer)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Verb, cmp.Or(ctx.Err(), err))
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	return answer.Status, nil
}
