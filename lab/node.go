package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/internal/process"
	"github.com/weftnet/weft/internal/unixhttp"
	"github.com/weftnet/weft/registry"
)

// Where things lie on a node, whose /run is its own.
const (
	nodeCNI     = "/run/cni/net.d"
	nodeCache   = "/run/cni/cache"
	nodeNetns   = "/run/netns"
	agentRunDir = "/run/weft"
	agentSocket = agentRunDir + "/http.sock"
)

// Nodes returns the names of the lab's nodes.
func (l *Lab) Nodes() []string {
	names := make([]string, l.options.Nodes)
	for i := range names {
		names[i] = nodeMachine(i + 1).name
	}
	return names
}

func (l *Lab) node(name string) (machine, error) {
	i := slices.Index(l.Nodes(), name)
	if i < 0 {
		return machine{}, fmt.Errorf("the lab has no node %q; it has %s to %s", name, nodeMachine(1).name, nodeMachine(l.options.Nodes).name)
	}
	return nodeMachine(i + 1), nil
}

// isOn reports whether a node has its namespaces.
func (l *Lab) isOn(m machine) bool {
	return l.isMounted(l.dir.mounts(m.name)) && l.isMounted(l.dir.network(m.name))
}

// isMounted reports whether a namespace is mounted at path.
func (l *Lab) isMounted(path string) bool {
	var s unix.Statfs_t
	return unix.Statfs(path, &s) == nil && s.Type == unix.NSFS_MAGIC
}

// bootNode makes a node's namespaces.
func (l *Lab) bootNode(m machine) error {
	l.options.say("%s: %s", m.name, m.addresses(l.options.IPv6)[0])
	if err := l.plugIn(m); err != nil {
		return err
	}
	run := l.dir.run(m.name)
	if err := os.MkdirAll(run, 0o755); err != nil {
		return err
	}
	err := newMounts(l.dir.mounts(m.name), l.dir.network(m.name), func() error { return l.nodeMounts(m, run) })
	return errors.Join(err, os.Remove(run))
}

// nodeMounts gives a node a /run and a /sys of its own, and a resolv.conf in a lab with
// names. The lab may lie below /run, so all is put together in a directory beside it first.
func (l *Lab) nodeMounts(m machine, run string) error {
	if err := followHost(); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", run, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount %s's /run: %w", m.name, err)
	}
	for _, d := range []string{nodeCNI, nodeCache, nodeNetns} {
		if err := os.MkdirAll(filepath.Join(run, strings.TrimPrefix(d, "/run")), 0o755); err != nil {
			return err
		}
	}
	if err := mountSys(filepath.Join(run, "sys")); err != nil {
		return err
	}
	// Copies of the other machines' namespaces would keep those alive.
	if err := unix.Unmount(l.dir.namespaces(), unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the lab's namespaces: %w", err)
	}
	if err := unix.Mount(run, "/run", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move %s's /run into place: %w", m.name, err)
	}
	if l.options.DNS {
		return cover(file{Path: resolvConfFile, Content: nameServers(l.options.outside())})
	}
	return nil
}

// onNode runs f in a node's namespaces.
func (l *Lab) onNode(name string, f func() error) error {
	return netns.DoMount(l.dir.network(name), l.dir.mounts(name), f)
}

// startAgent starts a node's agent and returns when pods can run there.
func (l *Lab) startAgent(ctx context.Context, m machine) error {
	args := []string{filepath.Join(filepath.Dir(l.options.Weft), agentBinary),
		"--node-name", m.name, "--register-node",
		"--etcd-endpoints", l.endpoint(),
		"--run-dir", agentRunDir,
		"--cni-conf-file", nodeCNI + "/10-weft.conflist", "--cni-bin-dir", ""}
	if login := l.login(m.name); login != "" {
		args = append(args, "--etcd-user", login)
	}
	p, err := launch{
		Weft: l.options.Weft, Record: l.dir.record(m.name), Log: l.dir.log(m.name),
		Within: func(f func() error) error { return l.onNode(m.name, f) },
		Stage:  stage{Args: args},
	}.start(ctx)
	if err != nil {
		return fmt.Errorf("agent of %s: %w", m.name, err)
	}
	if err := l.waitReady(ctx, m.name, p); err != nil {
		return fmt.Errorf("agent of %s: %w", m.name, err)
	}
	l.options.say("%s: ready", m.name)
	return nil
}

// sayAfter is how long an agent may keep the user waiting without a word.
const sayAfter = 3 * time.Second

// sayIfSlow says what it is that takes long if stop is not called before the user
// has waited for sayAfter.
func (l *Lab) sayIfSlow(what func() string) (stop func()) {
	said := make(chan struct{})
	timer := time.AfterFunc(sayAfter, func() {
		defer close(said)
		l.options.say("%s", what())
	})
	return func() {
		if !timer.Stop() {
			<-said
		}
	}
}

// waitReady asks an agent whether pods can run until it says so. It fails
// when the agent ends or ctx does, with what the agent said last; what keeps the
// agent for long is said meanwhile.
func (l *Lab) waitReady(ctx context.Context, name string, p process.ID) error {
	client := agentClient(p)
	defer client.CloseIdleConnections()
	last, said, began := errors.New("it did not answer"), "", time.Now()
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		if !p.Alive() {
			return errors.New("it ended" + process.Tail(l.dir.log(name)))
		}
		err := ask(ctx, client, "/readyz")
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		if now := last.Error(); now != said && time.Since(began) > sayAfter {
			l.options.say("%s is not ready yet: %s", name, now)
			said = now
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; not ready: %w%s", context.Cause(ctx), last, process.Tail(l.dir.log(name)))
		case <-time.After(wait):
		}
	}
}

// AgentSocket returns the path of the socket on which the agent of a node
// serves HTTP, while it runs.
func (l *Lab) AgentSocket(node string) (string, error) {
	if _, err := l.node(node); err != nil {
		return "", err
	}
	p := readProcess(l.dir.record(node))
	if !p.Alive() {
		return "", fmt.Errorf("the agent of %s does not run: start it with: weft lab start-node %s", node, node)
	}
	return socketOf(p), nil
}

// socketOf is where this machine finds the socket of an agent.
func socketOf(p process.ID) string { return fmt.Sprintf("/proc/%d/root%s", p.PID, agentSocket) }

// agentClient speaks HTTP with an agent over the socket on its node.
func agentClient(p process.ID) *http.Client {
	return &http.Client{Timeout: 5 * time.Second, Transport: unixhttp.Transport(socketOf(p))}
}

// Hung returns the processes of those of some nodes' agents that are there and do not answer, as
// ones that were stopped, by node. All are asked at once, so that many take no longer than one.
func (l *Lab) Hung(ctx context.Context, nodes ...string) (pids map[string]int) {
	return askAll(nodes, func(node string) int {
		p := readProcess(l.dir.record(node))
		if !p.Alive() {
			return 0
		}
		client := agentClient(p)
		defer client.CloseIdleConnections()
		var late net.Error
		if err := ask(ctx, client, "/healthz"); ctx.Err() != nil || !errors.As(err, &late) || !late.Timeout() {
			return 0
		}
		return p.PID
	})
}

// askAll asks all nodes at once, and returns the answers but 0.
func askAll(nodes []string, ask func(node string) int) map[string]int {
	var mu sync.Mutex // for answers
	var asked sync.WaitGroup
	answers := make(map[string]int)
	for _, node := range nodes {
		asked.Go(func() {
			if answer := ask(node); answer != 0 {
				mu.Lock()
				defer mu.Unlock()
				answers[node] = answer
			}
		})
	}
	asked.Wait()
	return answers
}

// RemedyOfHung says what to do about an agent that hangs.
func RemedyOfHung(pid int, node string) string {
	return fmt.Sprintf("end process %d, which hangs (kill -9 %d), then start it with weft lab start-node %s", pid, pid, node)
}

func ask(ctx context.Context, c *http.Client, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return err
	}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 4096))
	if err == nil && res.StatusCode != http.StatusOK {
		err = errors.New(strings.TrimSpace(string(body)))
	}
	return err
}

// ErrOff says that a node is off already.
var ErrOff = errors.New("is off already")

// StopNode cuts a node's power: its agent, its pods, whatever else runs there and its
// namespaces are gone at once. Its objects stay. It returns ErrOff where nothing of the node was
// there.
func (l *Lab) StopNode(name string) error {
	m, err := l.node(name)
	if err != nil {
		return err
	}
	unlock, err := l.dir.lockDaemon(name)
	if err != nil {
		return err
	}
	defer unlock()
	wasOn := l.isOn(m)
	tasks := new(errgroup.Group)
	tasks.Go(readProcess(l.dir.record(name)).Kill)
	tasks.Go(readProcess(l.dir.record(NameServer(name))).Kill)
	pods, err := l.podRecords()
	if err != nil {
		return err
	}
	for _, p := range pods {
		if p.Node == name {
			tasks.Go(readProcess(l.processFile(p.Pod)).Kill)
		}
	}
	if err := tasks.Wait(); err != nil {
		return err
	}
	if err := endWithin(l.dir.network(m.name)); err != nil {
		return err
	}
	// The record of the agent goes last: without it the node is off.
	if err := errors.Join(releaseFile(l.dir.mounts(m.name)), releaseFile(l.dir.network(m.name))); err != nil {
		return err
	}
	if err := os.Remove(l.dir.record(NameServer(name))); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	err = os.Remove(l.dir.record(name))
	switch {
	case !errors.Is(err, os.ErrNotExist):
		return err
	case wasOn: // a start that was killed had not come to the agent
		return nil
	}
	return fmt.Errorf("%s %w", name, ErrOff)
}

// StartNode starts what does not run of a node: the node itself after
// StopNode, with the pods that it had, or an agent or a name server that died. It returns when
// pods can run there.
func (l *Lab) StartNode(ctx context.Context, name string) error {
	m, err := l.node(name)
	if err != nil {
		return err
	}
	unlock, err := l.dir.lockDaemon(name)
	if err != nil {
		return err
	}
	defer unlock()
	if !l.isOn(m) {
		// A start that was killed may have left one of the two.
		if err := errors.Join(releaseFile(l.dir.mounts(m.name)), releaseFile(l.dir.network(m.name))); err != nil {
			return err
		}
		if err := l.bootNode(m); err != nil {
			return err
		}
	}
	if err := l.keepNames(ctx, m); err != nil {
		return err
	}
	p := readProcess(l.dir.record(name))
	if p.Alive() && l.isDeleted(ctx, name) {
		l.options.say("%s was deleted from the cluster: its agent is started again, which registers it", name)
		if err := p.Kill(); err != nil {
			return err
		}
	}
	if pid, hangs := l.Hung(ctx, name)[name]; hangs {
		return fmt.Errorf("the agent of %s is there, and does not answer: %s", name, RemedyOfHung(pid, name))
	}
	if p.Alive() {
		err = l.waitReady(ctx, name, p)
	} else {
		err = l.startAgent(ctx, m)
	}
	if err != nil {
		return err
	}
	return l.restartPods(ctx, name)
}

// isDeleted reports whether it is known that there is no Node of a name.
func (l *Lab) isDeleted(ctx context.Context, name string) bool {
	reg, err := l.Registry()
	if err != nil {
		return false
	}
	defer reg.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = reg.Get(ctx, api.Node, registry.Key{Name: name})
	return errors.Is(err, registry.ErrNotFound)
}

// Kill ends a daemon of the lab without a warning: an agent, by its node's
// name, what keeps a node's name server (see NameServer), or a controller ("controller1").
// Start starts them again.
func (l *Lab) Kill(name string) error {
	if _, err := os.Stat(l.dir.record(name)); err != nil {
		return fmt.Errorf("the lab has no daemon %q that was started", name)
	}
	return readProcess(l.dir.record(name)).Kill()
}

// PID returns the process number of a daemon that Kill names, or 0 if it does
// not run.
func (l *Lab) PID(name string) int {
	if p := readProcess(l.dir.record(name)); p.Alive() {
		return p.PID
	}
	return 0
}
