package kill

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"math/rand/v2"
	"net"
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

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
)

var (
	kills = flag.Int("kills", 100, "how many processes to kill")
	seed  = flag.Uint64("seed", 1, "seed of the random choices")
)

// The test binary is also the program that runs in some of the pods.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "echo":
			log.Fatal(echo())
		case "talk":
			if err := talk(os.Args[2]); err != nil {
				log.Fatal(err)
			}
			return
		case "knock":
			if err := knock(os.Args[2]); err != nil {
				log.Fatal(err)
			}
			return
		}
	}
	os.Exit(m.Run())
}

// TestKills kills agents, controllers and etcd at random moments while pods
// come and go and while connections are open, and looks at what is left.
func TestKills(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes a cluster of network namespaces")
	}
	for _, plugin := range []string{"openshift-networkpolicy", "flannel"} {
		t.Run(plugin, func(t *testing.T) { run(t, plugin, *kills/2) })
	}
}

func run(t *testing.T, plugin string, kills int) {
	ctx := t.Context()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "lab")
	l, err := lab.Up(ctx, lab.Options{Dir: dir, Nodes: 2, Controllers: 2, Plugin: plugin, Weft: weft(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			logTails(t, dir)
		}
		if err := lab.Down(dir); err != nil {
			t.Error(err)
		}
	}()
	c := &cluster{t: t, lab: l, random: rand.New(rand.NewPCG(*seed, 0)), held: make(map[netip.Addr]string)}
	before := c.holdings(ctx)

	// One connection within a node, one across, which the only policy allows;
	// the strangers, one on each node, are never let in.
	c.mustRun(lab.Pod{Name: "echo", Node: "node1", Labels: map[string]string{"app": "echo"}, Command: []string{self, "echo"}})
	talkers, strangers := []string{"near", "far"}, []string{}
	if plugin == "openshift-networkpolicy" {
		strangers = []string{"stranger1", "stranger2"}
		c.allow("echo", "talker")
	}
	for i, name := range talkers {
		c.mustRun(lab.Pod{Name: name, Node: fmt.Sprintf("node%d", i+1), Labels: map[string]string{"app": "talker"}})
	}
	for i, name := range strangers {
		c.mustRun(lab.Pod{Name: name, Node: fmt.Sprintf("node%d", i+1)})
	}
	server, err := l.Addresses("", "echo")
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(server[0], echoPort)
	c.inForce(self, talkers, strangers, to)
	with := c.holdings(ctx)
	var talks []*exchange
	for _, from := range talkers {
		talks = append(talks, c.start(from, self, "talk", to.String()))
	}
	for _, from := range strangers {
		talks = append(talks, c.start(from, self, "knock", to.String()))
	}

	churning, stop := context.WithCancel(ctx)
	var churn sync.WaitGroup
	for i := range 6 {
		churn.Go(func() { c.churn(churning, i) })
	}
	for i := range kills {
		c.killOne(ctx, i)
	}
	stop()
	churn.Wait()

	for _, x := range talks {
		x.finish(t)
	}
	if t.Failed() {
		return
	}
	t.Logf("%d kills, %d pods started, %d failed to start", kills, c.started, c.failed)
	if c.started < kills/2 {
		t.Errorf("only %d pods started during %d kills: nothing was tested", c.started, kills)
	}
	c.settle(ctx, with)
	for _, name := range slices.Concat([]string{"echo"}, talkers, strangers) {
		if err := l.Delete(ctx, "", name); err != nil {
			t.Error(err)
		}
	}
	c.disallow("echo")
	c.settle(ctx, before)
}

type cluster struct {
	t      *testing.T
	lab    *lab.Lab
	random *rand.Rand // the killer's own

	mu              sync.Mutex
	held            map[netip.Addr]string
	started, failed int
}

func (c *cluster) mustRun(p lab.Pod) {
	c.t.Helper()
	if _, err := c.lab.Run(c.t.Context(), p); err != nil {
		c.t.Fatal(err)
	}
}

// allow lets pods with one label app get connections from those with another
// alone.
func (c *cluster) allow(app, from string) {
	c.t.Helper()
	selects := func(app string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	peer := selects(from)
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: lab.DefaultNamespace, Name: app},
		Spec: networkingv1.NetworkPolicySpec{PodSelector: selects(app),
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &peer}}}}},
	}
	c.write(func(ctx context.Context, r registry.Registry) error {
		_, err := r.Create(ctx, api.NetworkPolicy, policy)
		return err
	})
}

// disallow takes away what allow made, if it did.
func (c *cluster) disallow(app string) {
	c.t.Helper()
	c.write(func(ctx context.Context, r registry.Registry) error {
		err := r.Delete(ctx, api.NetworkPolicy, registry.Key{Namespace: lab.DefaultNamespace, Name: app}, "")
		if errors.Is(err, registry.ErrNotFound) {
			return nil
		}
		return err
	})
}

func (c *cluster) write(change func(context.Context, registry.Registry) error) {
	c.t.Helper()
	r, err := c.lab.Registry()
	if err != nil {
		c.t.Fatal(err)
	}
	defer r.Close()
	if err := change(c.t.Context(), r); err != nil {
		c.t.Fatal(err)
	}
}

// inForce waits until all talkers get through, and no stranger does.
func (c *cluster) inForce(self string, talkers, strangers []string, to netip.AddrPort) {
	c.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		wrong := ""
		for _, from := range slices.Concat(talkers, strangers) {
			err := c.lab.Exec("", from, lab.Command{Args: []string{self, "knock", to.String()}, Stdin: strings.NewReader("")})
			if through := err != nil; through != slices.Contains(talkers, from) {
				wrong = fmt.Sprintf("pod %s gets through: %t", from, through)
			}
		}
		if wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatal(wrong)
		}
	}
}

// killOne kills a process at a random moment, and starts it again at another.
func (c *cluster) killOne(ctx context.Context, i int) {
	targets := []string{"node1", "node2", "controller1", "controller2"}
	name := targets[c.random.IntN(len(targets))]
	time.Sleep(time.Duration(c.random.IntN(300)) * time.Millisecond)
	if err := c.lab.Kill(name); err != nil {
		c.t.Errorf("kill %d, of %s: %v", i, name, err)
	}
	time.Sleep(time.Duration(c.random.IntN(100)) * time.Millisecond)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := c.lab.Start(ctx, name); err != nil {
		c.t.Errorf("start of %s after kill %d: %v", name, i, err)
	}
}

// churn starts and deletes pods, as a kubelet would: what fails is tried
// again, under another name for a start and until it works for a deletion.
func (c *cluster) churn(ctx context.Context, worker int) {
	random := rand.New(rand.NewPCG(*seed, uint64(worker)+1))
	always := context.WithoutCancel(ctx)
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("churn-%d-%d", worker, i)
		node := fmt.Sprintf("node%d", 1+random.IntN(2))
		addresses, err := c.lab.Run(always, lab.Pod{Name: name, Node: node, Command: []string{"sleep", "1000000"}})
		if err != nil {
			c.mu.Lock()
			c.failed++
			c.mu.Unlock()
			// A killed agent may have kept the lab from undoing all of it.
			c.delete(always, name)
			continue
		}
		c.mu.Lock()
		c.started++
		for _, a := range addresses {
			if other, taken := c.held[a]; taken {
				c.t.Errorf("%s was given to %s while %s has it", a, name, other)
			}
			c.held[a] = name
		}
		c.mu.Unlock()
		time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
		c.mu.Lock()
		for _, a := range addresses {
			delete(c.held, a)
		}
		c.mu.Unlock()
		c.delete(always, name)
	}
}

func (c *cluster) delete(ctx context.Context, name string) {
	deadline := time.Now().Add(time.Minute)
	for {
		_, missing := c.lab.Addresses("", name)
		if missing != nil {
			return
		}
		err := c.lab.Delete(ctx, "", name)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.t.Errorf("cannot delete %s: %v", name, err)
			return
		}
	}
}

// elementwise puts each element of what nft lists on a line of its own, and the lines
// in order: in which order the kernel has elements is no state.
const elementwise = ` | sed -e 's/elements = {//' -e 's/, */\n/g' | sed -e 's/^[ \t]*//' -e 's/[ ,}]*$//' | sort`

// holdings is what the cluster holds, as text: on each node the interfaces,
// routes, rules, neighbours, the nftables table and the journal's pods, and
// the objects in the registry.
func (c *cluster) holdings(ctx context.Context) string {
	var text strings.Builder
	for _, node := range c.lab.Nodes() {
		for _, command := range []string{
			`ip -o link | grep -o ': weft[^:@ ]*' | sort`,
			`ip route show table all proto 87 | sed 's/ metric .*//' | sort`,
			`ip -6 route show table all proto 87 | sed 's/ metric .*//' | sort`,
			`ip rule | sort`,
			`ip neigh show nud permanent | sort`,
			`bridge fdb show | grep weft | grep -v '33:33\|01:00:5e' | sort`,
			// Counters and handles are not state.
			// Elements that end by themselves come and go with packets.
			`nft list table inet weft | sed -e 's/counter packets [0-9]* bytes [0-9]*/counter/' -e '/ expires /d'` + elementwise,
			`nft list tables | grep weft-policy && for s in policies-ingress policies-egress addresses-4 prefixes-4-0 prefixes-4-1 peers; do nft list map inet weft-policy $s; done` + elementwise,
			`ls -A /run/netns`,
			`ls -A /run/weft`,
		} {
			fmt.Fprintf(&text, "%s: %s\n", node, command)
			if err := c.lab.ExecNode(node, lab.Command{Args: []string{"sh", "-c", command}, Stdout: &text, Stderr: &text}); err != nil {
				fmt.Fprintf(&text, "%v\n", err)
			}
		}
	}
	r, err := c.lab.Registry()
	if err != nil {
		return err.Error()
	}
	defer r.Close()
	// Tags stay for a while, in case that such pods come again.
	for _, k := range []*registry.Kind{api.Node, api.HostSubnet, api.Pod, api.NodePodsKind} {
		objects, _, err := r.List(ctx, k)
		if err != nil {
			return err.Error()
		}
		for _, o := range objects {
			if n, ok := o.(*api.NodePods); ok {
				if len(n.Pods) > 0 { // one without any stays
					fmt.Fprintln(&text, k.Kind, n.Name, n.Pods)
				}
				continue
			}
			fmt.Fprintln(&text, k.Kind, registry.KeyOf(o))
		}
	}
	return text.String()
}

// settle waits until the cluster holds what it should, and fails when it does
// not within a minute.
func (c *cluster) settle(ctx context.Context, want string) {
	c.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		got := c.holdings(ctx)
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			c.t.Errorf("what is left is not what should be:\n%s", difference(want, got))
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// difference lists the lines that only one of two texts has.
func difference(want, got string) string {
	count := make(map[string]int)
	for line := range strings.Lines(got) {
		count[line]++
	}
	for line := range strings.Lines(want) {
		count[line]--
	}
	var out strings.Builder
	for _, line := range slices.Sorted(maps.Keys(count)) {
		if n := count[line]; n > 0 {
			fmt.Fprintf(&out, "unwanted: %s", line)
		} else if n < 0 {
			fmt.Fprintf(&out, "missing:  %s", line)
		}
	}
	return out.String()
}

// exchange is a connection that must outlive all kills, or one that must not be
// let through meanwhile.
type exchange struct {
	from   string
	cancel func() error
	done   chan error
	output *bytes.Buffer
}

// start runs a program in a pod until finish.
func (c *cluster) start(from string, args ...string) *exchange {
	x := &exchange{from: from, done: make(chan error, 1), output: new(bytes.Buffer)}
	in, out, err := os.Pipe()
	if err != nil {
		c.t.Fatal(err)
	}
	x.cancel = out.Close
	go func() {
		defer in.Close()
		x.done <- c.lab.Exec("", from, lab.Command{Args: args, Stdin: in, Stdout: x.output, Stderr: x.output})
	}()
	return x
}

func (x *exchange) finish(t *testing.T) {
	x.cancel()
	if err := <-x.done; err != nil {
		t.Errorf("the program in pod %s failed: %v: %s", x.from, err, x.output)
		return
	}
	n, err := strconv.Atoi(strings.TrimSpace(x.output.String()))
	if err != nil || n < 30 {
		t.Errorf("the program in pod %s did what it does %q times only", x.from, x.output)
	}
	t.Logf("the program in pod %s did what it does %d times", x.from, n)
}

const echoPort = 7

func echo() error {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", echoPort))
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			var b [1]byte
			for {
				if _, err := conn.Read(b[:]); err != nil {
					return
				}
				if _, err := conn.Write(b[:]); err != nil {
					return
				}
			}
		}()
	}
}

// talk exchanges a byte every 5 ms over one connection until its standard
// input ends, and prints how many it were. An answer that takes longer than 5
// s fails it: TCP would hide a path that was gone for a while.
func talk(to string) error {
	conn, err := net.DialTimeout("tcp", to, 5*time.Second)
	if err != nil {
		return err
	}
	over := make(chan struct{})
	go func() {
		os.Stdin.Read(make([]byte, 1))
		close(over)
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	for n := 0; ; n++ {
		select {
		case <-over:
			fmt.Println(n)
			return nil
		case <-tick.C:
		}
		b := [1]byte{byte(n)}
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := conn.Write(b[:]); err != nil {
			return fmt.Errorf("after %d exchanges: %w", n, err)
		}
		if _, err := conn.Read(b[:]); err != nil {
			return fmt.Errorf("after %d exchanges: %w", n, err)
		}
		if b[0] != byte(n) {
			return fmt.Errorf("after %d exchanges: got %d back instead of %d", n, b[0], byte(n))
		}
	}
}

// knock tries to connect until its standard input ends, at least once, and prints
// how often it did. It fails if it gets through.
func knock(to string) error {
	over := make(chan struct{})
	go func() {
		os.Stdin.Read(make([]byte, 1))
		close(over)
	}()
	for n := 1; ; n++ {
		if conn, err := net.DialTimeout("tcp", to, 300*time.Millisecond); err == nil {
			conn.Close()
			return fmt.Errorf("after %d attempts: let in", n)
		}
		select {
		case <-over:
			fmt.Println(n)
			return nil
		default:
		}
	}
}

// weft builds the binaries and returns the path of weft.
func weft(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "bin") + "/"
	build := exec.Command("go", "build", "-trimpath", "-o", bin, "github.com/weftnet/weft/cmd/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return bin + "weft"
}

func logTails(t *testing.T, dir string) {
	logs, _ := filepath.Glob(filepath.Join(dir, "daemons", "*.log"))
	for _, file := range logs {
		b, _ := os.ReadFile(file)
		if len(b) > 3000 {
			b = b[len(b)-3000:]
		}
		t.Logf("%s:\n%s", filepath.Base(file), b)
	}
}
