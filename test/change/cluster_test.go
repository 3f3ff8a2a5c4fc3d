package change

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/await"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/test/kubernetes/traffic"
)

var (
	matrix = flag.Bool("matrix", false, "change between all pairs of plug-ins, rather than a few")
	kills  = flag.Int("kills", 6, "how many processes to kill")
	seed   = flag.Uint64("seed", 1, "seed of the random choices")
)

// bin holds the binaries under test, self is this test binary, which is also the
// program that runs in pods (see program_test.go).
var bin, self string

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && runProgram(os.Args[1], os.Args[2:]) {
		return
	}
	os.Exit(func() int {
		if os.Geteuid() != 0 {
			return m.Run()
		}
		dir, err := os.MkdirTemp("", "weft-change-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		bin = dir + "/bin/"
		build := exec.Command("go", "build", "-trimpath", "-o", bin, "github.com/weftnet/weft/cmd/...")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
			return 1
		}
		if self, err = os.Executable(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// patience is how long what must come true may take.
const patience = time.Minute

// cluster is a lab and a test that uses it. Its methods end the test when what they do
// fails, unless they say otherwise.
type cluster struct {
	*testing.T
	lab *lab.Lab
	dir string

	mu   sync.Mutex
	pods map[string]pod // by name
}

// pod is one that serves, or a node that does.
type pod struct {
	name, node string
	address    netip.Addr
	pid        int
	isNode     bool
}

// serves is where the pod answers, by TCP and by UDP.
func (p pod) serves() netip.AddrPort { return netip.AddrPortFrom(p.address, port) }

// up makes a lab, and takes it down when the test ends.
func up(t *testing.T, o lab.Options) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes a cluster of network namespaces")
	}
	// The names of tests are too long for the socket in the directory.
	parent, err := os.MkdirTemp("", "weft-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(parent) })
	o.Dir, o.Weft, o.Nodes = filepath.Join(parent, "lab"), cmp.Or(o.Weft, bin+"weft"), 3
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l, err := lab.Up(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{T: t, lab: l, dir: o.Dir, pods: make(map[string]pod)}
	t.Cleanup(func() {
		if t.Failed() {
			c.logTails()
		}
		if err := lab.Down(c.dir); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *cluster) logTails() {
	logs, _ := filepath.Glob(filepath.Join(c.lab.Logs(), "*.log"))
	for _, file := range logs {
		b, _ := os.ReadFile(file)
		c.Logf("%s:\n%s", filepath.Base(file), b[max(0, len(b)-3000):])
	}
}

// outcome is what a command came to.
type outcome struct {
	text string // standard error included
	code int
}

// weft runs the command line against the lab. It waits as long as that takes, and for
// a stuck one until the end of what must come true.
func (c *cluster) weft(args ...string) outcome {
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin+"weft", args...)
	cmd.Env = append(os.Environ(), lab.DirVariable+"="+c.dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(&out, err)
		return outcome{out.String(), -1}
	}
	return outcome{out.String(), cmd.ProcessState.ExitCode()}
}

// want ends the test unless the command ended with a code, and printed all the words.
func (o outcome) want(t testing.TB, code int, words ...string) {
	t.Helper()
	if o.code != code {
		t.Fatalf("exit code %d instead of %d\n%s", o.code, code, o.text)
	}
	for _, w := range words {
		if !strings.Contains(o.text, w) {
			t.Fatalf("the output lacks %q:\n%s", w, o.text)
		}
	}
}

// pluginStatus is what weft plugin status says.
type pluginStatus struct {
	Used, State, Message string
	Mix                  []string
	Settled              bool
}

func (c *cluster) pluginStatus() (s pluginStatus, err error) {
	o := c.weft("plugin", "status", "-o", "json")
	if o.code > 1 || o.code < 0 {
		return s, fmt.Errorf("weft plugin status ends with %d: %s", o.code, o.text)
	}
	if err := json.Unmarshal([]byte(o.text), &s); err != nil {
		return s, fmt.Errorf("%w: %s", err, o.text)
	}
	return s, nil
}

// settled waits until the cluster has one plug-in.
func (c *cluster) settled(plugin string) {
	c.Helper()
	c.status("settled", func(s pluginStatus) bool { return s.Settled && s.State == api.PluginSettled && s.Used == plugin })
}

// well waits until there are no problems, and reports as errors those that daemons have
// told their logs.
func (c *cluster) well() {
	c.Helper()
	logs, err := filepath.Glob(filepath.Join(c.lab.Logs(), "*.log"))
	if err != nil {
		c.Fatal(err)
	}
	for _, file := range logs {
		b, err := os.ReadFile(file)
		if err != nil {
			c.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, "level=ERROR") {
				c.Errorf("%s says: %s", filepath.Base(file), line)
			}
		}
	}
	await.NoError(c, patience, "all is well", func() error {
		if o := c.weft("status"); o.code != 0 {
			return fmt.Errorf("weft status ends with %d:\n%s", o.code, o.text)
		}
		return nil
	})
}

// status waits until the plug-ins are as is wanted.
func (c *cluster) status(what string, is func(pluginStatus) bool) {
	c.Helper()
	await.NoError(c, patience, what, func() error {
		s, err := c.pluginStatus()
		if err == nil && !is(s) {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
}

func (c *cluster) write(change func(context.Context, registry.Registry) error) {
	c.Helper()
	r, err := c.lab.Registry()
	if err != nil {
		c.Fatal(err)
	}
	defer r.Close()
	if err := change(c.Context(), r); err != nil {
		c.Fatal(err)
	}
}

// configureFlannel writes what flannel is configured by, as an administrator of flannel
// does.
func (c *cluster) configureFlannel(text string) {
	c.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{c.lab.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		c.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Put(c.Context(), "/coreos.com/network/config", text); err != nil {
		c.Fatal(err)
	}
}

// flannelConfig is what flannel is configured with to give subnets from a network, with
// one of backends.
func flannelConfig(network, backend string) string {
	return fmt.Sprintf(`{"Network": %q, "SubnetLen": 24, "Backend": %s}`, network, backends[backend])
}

// policyName is that of the policy that letTalkersIn makes.
const policyName = "talkers-only"

// Whom policies let in, and whom not.
var talker, stranger = map[string]string{"app": "talker"}, map[string]string{"app": "stranger"}

// letTalkersIn has a policy let pods get nothing but from talkers.
func (c *cluster) letTalkersIn() {
	c.Helper()
	c.write(func(ctx context.Context, r registry.Registry) error {
		_, err := r.Create(ctx, api.NetworkPolicy, &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: lab.DefaultNamespace, Name: policyName},
			Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{
				{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: talker}}}}}},
		})
		return err
	})
}

// run starts a pod that serves, on a node.
func (c *cluster) run(name string, node int, labels map[string]string) pod {
	c.Helper()
	p, err := c.tryRun(name, node, labels)
	if err != nil {
		c.Fatal(err)
	}
	return p
}

func (c *cluster) tryRun(name string, node int, labels map[string]string) (pod, error) {
	p := pod{name: name, node: fmt.Sprintf("node%d", node)}
	addresses, err := c.lab.Run(c.Context(), lab.Pod{Name: p.name, Node: p.node, Labels: labels, Command: []string{self, "serve"}})
	if err != nil {
		return p, err
	}
	p.address = addresses[0]
	s, err := c.lab.Status()
	if err != nil {
		return p, err
	}
	if i := slices.IndexFunc(s.Pods, func(s lab.PodStatus) bool { return s.Name == name }); i >= 0 {
		p.pid = s.Pods[i].PID
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, other := range c.pods {
		if other.address == p.address {
			c.Errorf("%s was given to %s while %s has it", p.address, p.name, other.name)
		}
	}
	c.pods[name] = p
	return p, nil
}

// onEach starts a pod on each node, with names that begin alike.
func (c *cluster) onEach(prefix string, labels map[string]string) (all []pod) {
	c.Helper()
	for i := range c.lab.Nodes() {
		all = append(all, c.run(fmt.Sprintf("%s%d", prefix, i+1), i+1, labels))
	}
	return all
}

func (c *cluster) remove(pods ...pod) {
	c.Helper()
	for _, p := range pods {
		c.forget(p.name)
		if err := c.lab.Delete(c.Context(), "", p.name); err != nil {
			c.Fatal(err)
		}
	}
}

// forget is to be called before a pod is deleted: from then on others may get what it
// has.
func (c *cluster) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pods, name)
}

// unchanged reports as errors what has become of pods that were to be left alone.
func (c *cluster) unchanged() {
	c.Helper()
	s, err := c.lab.Status()
	if err != nil {
		c.Fatal(err)
	}
	for _, is := range s.Pods {
		was, ok := c.pods[is.Name]
		if !ok {
			continue
		}
		if is.State != lab.Running || is.PID != was.pid {
			c.Errorf("pod %s is %s with PID %d, and ran with PID %d", is.Name, is.State, is.PID, was.pid)
		}
		var out bytes.Buffer
		if err := c.lab.Exec("", is.Name, lab.Command{Args: []string{"ip", "-o", "addr", "show", "eth0"}, Stdout: &out, Stderr: &out}); err != nil {
			c.Errorf("pod %s: %v: %s", is.Name, err, &out)
		} else if !strings.Contains(out.String(), " "+was.address.String()+"/32 ") {
			c.Errorf("pod %s had the address %s, and has now\n%s", is.Name, was.address, &out)
		}
	}
}

// reach waits until pods reach all of others, by TCP and UDP, and are known to them by
// their own addresses.
func (c *cluster) reach(from, to []pod) {
	c.Helper()
	for _, f := range from {
		await.NoError(c, patience, "pod "+f.name+" reaches others", func() error { return c.asks(f, to) })
	}
}

// among waits until pods all reach each other.
func (c *cluster) among(pods ...[]pod) {
	c.Helper()
	all := slices.Concat(pods...)
	c.reach(all, all)
}

func (c *cluster) asks(from pod, to []pod) error {
	replies, err := c.ask(from, to)
	if err != nil {
		return err
	}
	for i, r := range replies {
		p := to[i/2]
		switch {
		case r.Error != "":
			return fmt.Errorf("%s (%s) to %s, %s: %s", from.name, from.address, p.name, r.To, r.Error)
		case r.By != p.name:
			return fmt.Errorf("%s to %s, %s: %s answers", from.name, p.name, r.To, r.By)
		case r.Seen != from.address:
			return fmt.Errorf("%s to %s, %s: it is seen as %s, not as %s", from.name, p.name, r.To, r.Seen, from.address)
		}
	}
	return nil
}

// ask puts a question to each pod by TCP and one by UDP.
func (c *cluster) ask(from pod, to []pod) (replies []traffic.Reply, err error) {
	var out, errs bytes.Buffer
	err = c.lab.Exec("", from.name, lab.Command{Args: append([]string{self, "ask"}, addresses(to)...), Stdout: &out, Stderr: &errs})
	if err != nil {
		return nil, fmt.Errorf("ask in %s: %w: %s", from.name, err, &errs)
	}
	if err := json.Unmarshal(out.Bytes(), &replies); err != nil || len(replies) != 2*len(to) {
		return nil, fmt.Errorf("ask in %s: %w: %d replies for %d pods: %s", from.name, err, len(replies), len(to), &out)
	}
	return replies, nil
}

func addresses(pods []pod) (all []string) {
	for _, p := range pods {
		all = append(all, p.address.String())
	}
	return all
}

// program is one that runs in a pod until finish.
type program struct {
	from pod
	to   []pod
	load traffic.Load // of one that is a load
	stop func() error
	done chan error
	out  bytes.Buffer
}

func (c *cluster) start(from pod, to []pod, args ...string) *program {
	c.Helper()
	in, out, err := os.Pipe()
	if err != nil {
		c.Fatal(err)
	}
	p := &program{from: from, to: to, stop: out.Close, done: make(chan error, 1)}
	c.Cleanup(func() { out.Close() })
	go func() {
		defer in.Close()
		command := lab.Command{Args: append(append([]string{self}, args...), addresses(to)...), Stdin: in, Stdout: &p.out, Stderr: &p.out}
		if from.isNode {
			p.done <- c.lab.ExecNode(from.name, command)
			return
		}
		p.done <- c.lab.Exec("", from.name, command)
	}()
	return p
}

// nodesServe has each node serve as pods do, until the test ends, and returns them once a
// pod has had answers of all.
func (c *cluster) nodesServe(asks pod) (all []pod) {
	c.Helper()
	for _, name := range c.lab.Nodes() {
		o, err := c.node(name)
		if err != nil {
			c.Fatal(err)
		}
		n := pod{name: name, node: name, address: api.NodeAddresses(o)[0], isNode: true}
		server := c.start(n, nil, "host")
		c.Cleanup(func() {
			if err := server.end(); err != nil {
				c.Error(err)
			}
		})
		all = append(all, n)
	}
	await.NoError(c, patience, "nodes serve", func() error {
		replies, err := c.ask(asks, all)
		for _, r := range replies {
			if r.Error != "" {
				err = errors.Join(err, fmt.Errorf("%s: %s", r.To, r.Error))
			}
		}
		return err
	})
	return all
}

func (p *program) end() error {
	p.stop()
	if err := <-p.done; err != nil {
		return fmt.Errorf("the program in pod %s: %w: %s", p.from.name, err, &p.out)
	}
	return nil
}

// traffics are loads that run, and attempts to get where nobody may.
type traffics struct {
	c            *cluster
	loads, knock []*program
}

// load has pods send requests to all of others, and to themselves, which tells how slow
// the machine is.
func (t *traffics) load(from, to []pod, rate, held int) {
	t.c.Helper()
	for _, f := range from {
		all := to
		if !slices.Contains(to, f) {
			all = append(slices.Clone(to), f)
		}
		l := traffic.Load{Rate: max(1, rate/len(from)), Held: held}
		for _, p := range all {
			l.Targets = append(l.Targets, p.serves())
		}
		p := t.c.start(f, all, "load", strconv.Itoa(l.Rate), strconv.Itoa(l.Held))
		p.load = l
		t.loads = append(t.loads, p)
	}
}

// knocks has pods try to reach others, which must never work.
func (t *traffics) knocks(from, to []pod) {
	t.c.Helper()
	for _, f := range from {
		t.knock = append(t.knock, t.c.start(f, to, "knock"))
	}
}

// finish ends all, says what came of it, and reports faults and whatever got through as
// errors.
func (t *traffics) finish() judgement {
	t.c.Helper()
	var loads []loaded
	for _, p := range t.loads {
		if err := p.end(); err != nil {
			t.c.Error(err)
			continue
		}
		l := loaded{from: p.from, to: p.to, load: p.load}
		if err := json.Unmarshal(p.out.Bytes(), &l.report); err != nil {
			t.c.Errorf("the load in %s printed %s: %v", p.from.name, &p.out, err)
			continue
		}
		loads = append(loads, l)
	}
	j := judge(loads)
	for _, line := range j.said {
		t.c.Log(line)
	}
	for _, fault := range j.faults {
		t.c.Error(fault)
	}
	for _, k := range t.knock {
		if err := k.end(); err != nil {
			t.c.Error(err)
			continue
		}
		if n, err := strconv.Atoi(strings.TrimSpace(k.out.String())); err != nil || n < 3 {
			t.c.Errorf("the stranger in %s knocked %q times only", k.from.name, &k.out)
		}
	}
	t.loads, t.knock = nil, nil
	return j
}

// finishFull finishes what was to be as much as is wanted between nodes.
func (t *traffics) finishFull() {
	t.c.Helper()
	if j := t.finish(); j.rate < leastRate || j.held < leastHeld {
		t.c.Errorf("between nodes there were %.0f requests a second over %d open connections, not %d over %d", j.rate, j.held, leastRate, leastHeld)
	}
}

// base is the name of a plug-in without policies.
func base(plugin string) string {
	return cmp.Or(map[string]string{"openshift-networkpolicy": "openshift-subnet", "flannel-networkpolicy": "flannel"}[plugin], plugin)
}

func hasPolicies(plugin string) bool { return base(plugin) != plugin }
