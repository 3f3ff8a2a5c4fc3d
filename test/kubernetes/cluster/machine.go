package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/internal/process"
	"github.com/weftnet/weft/test/kubernetes/controlplane"
)

// machine is a node as the supervisor runs it.
type machine struct {
	Node
	config Config
	groups groups
	log    *slog.Logger

	power   sync.Mutex // held while the node is switched on
	loading sync.Mutex // held while images are loaded

	mu       sync.Mutex
	init     *exec.Cmd // nil while the node is off
	gone     chan struct{}
	programs map[string]*program
	// loaded is set once the images of the configuration are on its disk.
	loaded bool
}

// kept are the directories of a node that are on its disk, and not the
// machine's own.
var kept = []string{
	"/etc/cni", "/etc/containerd", "/etc/kubernetes", "/opt/cni", "/opt/containerd",
	"/var/lib/cni", "/var/lib/containerd", "/var/lib/kubelet", "/var/log",
}

// issue makes what a node needs to join.
func issue(cp *controlplane.ControlPlane, n Node) (credentials, error) {
	cert, key, err := cp.PKI().Issue(controlplane.Certificate{
		User: "system:node:" + n.Name, Groups: []string{"system:nodes"},
		Names: []string{n.Name}, Addresses: n.Addresses,
	})
	if err != nil {
		return credentials{}, err
	}
	forKubelet, err1 := cp.Kubeconfig("system:node:"+n.Name, "system:nodes")
	forProxy, err2 := cp.Kubeconfig("system:kube-proxy")
	return credentials{
		ca: cp.PKI().CA(), kubeletCert: cert, kubeletKey: key,
		kubeletKubeconfig: forKubelet, proxyKubeconfig: forProxy,
	}, errors.Join(err1, err2)
}

// boot starts the node's first process, and containerd with the images that
// the node is to know. The node's namespace has its link.
func (m *machine) boot(ctx context.Context, cp *controlplane.ControlPlane) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.init != nil {
		return fmt.Errorf("%s is on already", m.Name)
	}
	// What was left of a boot before is no longer used.
	if err := m.groups.remove(patience); err != nil {
		return err
	}
	if err := errors.Join(m.groups.make(), m.groups.child(daemons).make()); err != nil {
		return err
	}
	b := boot{
		Hostname: m.Name, Groups: m.groups,
		Root: m.config.root(m.Name), Upper: m.config.upper(m.Name), Work: m.config.work(m.Name),
		Binds: make(map[string]string), Shown: []string{m.config.Bin},
	}
	first := !exists(m.config.upper(m.Name))
	for _, path := range kept {
		b.Binds[path] = m.config.disk(m.Name) + path
	}
	for dir := range maps.Values(b.Binds) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{b.Upper, b.Work, m.config.logs(m.Name)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if first {
		secret, err := issue(cp, m.Node)
		if err != nil {
			return err
		}
		b.Files = m.config.files(m.Node, secret)
	}
	if err := m.startInit(b); err != nil {
		return fmt.Errorf("boot %s: %w", m.Name, err)
	}
	if err := m.startContainerd(ctx); err != nil {
		m.halt()
		return fmt.Errorf("boot %s: %w", m.Name, err)
	}
	return nil
}

// startInit starts the node's first process and waits until it has made the
// node's root.
func (m *machine) startInit(b boot) error {
	input, err := json.Marshal(b)
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	log, err := os.OpenFile(filepath.Join(m.config.logs(m.Name), "init.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		w.Close()
		return err
	}
	defer log.Close()
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{initName}, Dir: "/", Env: []string{"GOMAXPROCS=1"},
		Stdin: bytes.NewReader(input), Stdout: w, Stderr: log,
		SysProcAttr: &syscall.SysProcAttr{
			Setsid:     true,
			Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		},
	}
	err = netns.Do(m.config.netns(m.Name), cmd.Start)
	w.Close()
	if err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() {
		cmd.Wait()
		close(gone)
	}()
	answer, err := io.ReadAll(io.LimitReader(r, 2))
	if string(answer) != "ok" {
		cmd.Process.Kill()
		<-gone
		return errors.Join(fmt.Errorf("its first process ended: %s%s", cmd.ProcessState, process.Tail(log.Name())), err)
	}
	m.init, m.gone = cmd, gone
	m.programs = make(map[string]*program)
	for _, name := range m.config.programs() {
		m.programs[name] = &program{
			name: name,
			say:  m.log.Info,
			start: func() (*exec.Cmd, error) {
				return startAt(m.placeOf(cmd), filepath.Join(m.config.logs(m.Name), name+".log"),
					Command{Args: append([]string{filepath.Join(m.config.Bin, name)}, m.config.arguments(name, m.Node)...)})
			},
		}
	}
	return nil
}

func (m *machine) placeOf(init *exec.Cmd) place {
	return place{proc: fmt.Sprintf("/proc/%d", init.Process.Pid), groups: m.groups, bin: m.config.Bin}
}

func (m *machine) startContainerd(ctx context.Context) error {
	if err := m.programs[containerd].run(); err != nil {
		return err
	}
	socket := fmt.Sprintf("/proc/%d/root%s", m.init.Process.Pid, containerdSocket)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
			break
		}
		select {
		case <-tick.C:
		case <-m.gone:
			return errors.New("its first process ended")
		case <-ctx.Done():
			return fmt.Errorf("waiting for containerd: %w%s", ctx.Err(), process.Tail(filepath.Join(m.config.logs(m.Name), "containerd.log")))
		}
	}
	if m.loaded {
		return nil
	}
	if err := m.load(ctx, m.init, m.config.Images); err != nil {
		return err
	}
	m.loaded = true
	return nil
}

// load makes images from tar files known to the node's containerd. One after
// the other: all have an index, and containerd takes one of a kind at a time.
func (m *machine) load(ctx context.Context, init *exec.Cmd, tars []string) error {
	m.loading.Lock()
	defer m.loading.Unlock()
	for _, tar := range tars {
		if err := m.loadOne(ctx, init, tar); err != nil {
			return fmt.Errorf("load %s on %s: %w", tar, m.Name, err)
		}
	}
	return nil
}

func (m *machine) loadOne(ctx context.Context, init *exec.Cmd, tar string) error {
	f, err := os.Open(tar)
	if err != nil {
		return err
	}
	defer f.Close()
	var out bytes.Buffer
	err = m.placeOf(init).run(ctx, Command{
		// Without --local, it takes twice the time of the processors.
		Args:  []string{"ctr", "--namespace", "k8s.io", "images", "import", "--local", "-"},
		Stdin: f, Stdout: &out, Stderr: &out,
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}

// join starts what makes the node part of the cluster.
func (m *machine) join() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.init == nil {
		return fmt.Errorf("%s is off", m.Name)
	}
	for _, name := range m.config.programs() {
		if name == containerd {
			continue
		}
		if err := m.programs[name].run(); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	return nil
}

// halt kills the node with all that runs on it. The caller holds the lock.
func (m *machine) halt() {
	if m.init == nil {
		return
	}
	m.init.Process.Kill()
	var done sync.WaitGroup
	for _, p := range m.programs {
		done.Go(func() { p.stop(0) })
	}
	done.Wait()
	<-m.gone
	m.init, m.programs = nil, nil
}

// kill is halt, of a node that is on.
func (m *machine) kill() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.init == nil {
		return fmt.Errorf("%s is off already", m.Name)
	}
	m.halt()
	return nil
}

// program returns one of the node's programs, while the node is on.
func (m *machine) program(name string) (*program, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.init == nil {
		return nil, fmt.Errorf("%s is off", m.Name)
	}
	p := m.programs[name]
	if p == nil {
		return nil, fmt.Errorf("%s runs %v, not %s", m.Name, m.config.programs(), name)
	}
	return p, nil
}

// status reports the node's first process, 0 when it is off, and its programs.
func (m *machine) status() NodeStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := NodeStatus{Programs: make(map[string]int)}
	if m.init == nil {
		return s
	}
	s.Init = m.init.Process.Pid
	for name, p := range m.programs {
		s.Programs[name] = p.pid()
	}
	return s
}
