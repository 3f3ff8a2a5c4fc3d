package stories

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/weftnet/weft/internal/await"
	"github.com/weftnet/weft/test/kubernetes/cluster"
	"github.com/weftnet/weft/test/kubernetes/traffic"
)

// system is the namespace of Weft's own objects.
const system = "weft-system"

// patience is how long the stories wait for what a machine that does nothing
// else does in seconds.
const patience = 3 * time.Minute

// stage is a cluster on which stories are told.
type stage struct {
	cluster *cluster.Cluster
	kube    kubernetes.Interface
	plugin  string
	// kubectl, weft and traffic are the programs, weft being kubectl weft.
	kubectl, weft, traffic string
	nodes                  []*node
	// before are the inventories of the nodes before Weft was installed; nil
	// where the cluster was up already.
	before []Inventory

	mu    sync.Mutex
	table []string
}

// story is one test on a stage, with a namespace of its own.
type story struct {
	*testing.T
	*stage
	namespace string
	// refused says that the story takes rights away.
	refused bool
	// beginnings are when an API server began, each until it was ready.
	beginnings []span
}

// tell runs a story as a subtest.
func (s *stage) tell(t *testing.T, name string, f func(*story)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { s.begin(t, name, f) })
}

// meanwhile is tell for one that may be told at the same time as others.
func (s *stage) meanwhile(t *testing.T, name string, f func(*story)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { t.Parallel(); s.begin(t, name, f) })
}

func (s *stage) begin(t *testing.T, name string, f func(*story)) {
	start := time.Now()
	x := &story{T: t, stage: s, namespace: strings.ReplaceAll(name, " ", "-")}
	x.eventually("the namespace of the story before is gone", patience, func() error {
		_, err := s.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: x.namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}}}, metav1.CreateOptions{})
		return err
	})
	t.Cleanup(func() {
		if !x.refused {
			x.noneRefused(start)
		}
		if t.Failed() {
			x.lookAround()
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.kube.CoreV1().Namespaces().Delete(ctx, x.namespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		s.note(name, "told in "+time.Since(start).Round(time.Second).String())
	})
	x.eventually("the namespace has a service account", patience, func() error {
		_, err := s.kube.CoreV1().ServiceAccounts(x.namespace).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	f(x)
}

// span is from one moment to another.
type span struct{ from, to time.Time }

// noneRefused fails the test if an agent or a controller has logged since a
// moment that it lacked a right. An API server that begins knows of no roles for a moment,
// and refuses what they give.
func (x *story) noneRefused(since time.Time) {
	logs, err := x.command(x.kubectl, "logs", "-n", system, "--selector=app.kubernetes.io/name=weft", "--prefix", "--tail=-1",
		"--max-log-requests=20", "--since-time="+since.Format(time.RFC3339))
	if err != nil {
		x.Error(err)
	}
	for line := range strings.Lines(logs) {
		if (strings.Contains(line, "forbidden") || strings.Contains(line, " may not ")) && !x.whileBeginning(line) {
			x.Errorf("a right is missing: %s", line)
		}
	}
}

// whileBeginning reports whether a line was logged while an API server began.
func (x *story) whileBeginning(line string) bool {
	_, text, _ := strings.Cut(line, " time=")
	text, _, _ = strings.Cut(text, " ")
	at, err := time.Parse(time.RFC3339Nano, text)
	return err == nil && slices.ContainsFunc(x.beginnings, func(s span) bool { return at.After(s.from) && at.Before(s.to) })
}

// lookAround logs what helps to see why a story failed.
func (x *story) lookAround() {
	for _, args := range [][]string{
		{"get", "pods", "-A", "-o", "wide"}, {"get", "nodes", "-o", "wide"},
		{"get", "events", "-n", x.namespace, "--sort-by=.lastTimestamp"},
	} {
		out, err := x.command(x.kubectl, args...)
		x.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, tail(out, 60))
	}
	for _, n := range x.nodes {
		out, err := x.agentLog(n, 20)
		x.Logf("agent on %s: %v\n%s", n.name, err, out)
	}
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// measured logs something and puts it into the table of the end.
func (x *story) measured(format string, args ...any) {
	x.Helper()
	line := fmt.Sprintf(format, args...)
	x.Log(line)
	x.note(x.Name()[strings.LastIndexByte(x.Name(), '/')+1:], line)
}

func (s *stage) note(story, line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table = append(s.table, strings.ReplaceAll(story, "_", " ")+"\t"+line)
}

// lines are what the stories measured, sorted by story.
func (s *stage) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedStableFunc(slices.Values(s.table), func(a, b string) int {
		a, _, _ = strings.Cut(a, "\t")
		b, _, _ = strings.Cut(b, "\t")
		return strings.Compare(a, b)
	})
}

// summary prints what all stories measured.
func (s *stage) summary(w io.Writer) {
	fmt.Fprintf(w, "\n%s\n", s.plugin)
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	for _, line := range s.lines() {
		fmt.Fprintln(t, "  "+line)
	}
	t.Flush()
}

// eventually tries until something holds. The test fails if it does not in
// time.
func (x *story) eventually(what string, within time.Duration, f func() error) {
	x.Helper()
	await.NoError(x, within, what, f)
}

// command runs a program with the cluster's credentials and returns what it
// prints; an error has what it says of it.
func (s *stage) command(program string, args ...string) (string, error) {
	return s.commandWith("", program, args...)
}

func (s *stage) commandWith(input, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.cluster.Kubeconfig())
	cmd.Stdin = strings.NewReader(input)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args[1:], " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// must fails the test with the error of a command.
func (x *story) must(out string, err error) string {
	x.Helper()
	if err != nil {
		x.Fatal(err)
	}
	return out
}

// exitCode is that of a program in the error of command; -1 if it did not run.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}

// ask has a pod put a question to servers.
func (x *story) ask(pod string, servers ...string) []traffic.Reply {
	x.Helper()
	out := x.must(x.command(x.kubectl, append([]string{"exec", "-n", x.namespace, pod, "--", program, "ask"}, servers...)...))
	return x.replies(out)
}

// askFrom is ask for a node.
func (x *story) askFrom(n *node, servers ...string) []traffic.Reply {
	x.Helper()
	return x.replies(x.must(n.inNetwork(append([]string{x.traffic, "ask"}, servers...)...)))
}

func (x *story) replies(text string) []traffic.Reply {
	x.Helper()
	var replies []traffic.Reply
	if err := json.Unmarshal([]byte(text), &replies); err != nil {
		x.Fatalf("the answers are %q: %v", text, err)
	}
	return replies
}

// servers are the URLs of some addresses, for each of some protocols.
func servers(port uint16, addresses []netip.Addr, protocols ...string) (urls []string) {
	for _, a := range addresses {
		for _, protocol := range protocols {
			urls = append(urls, protocol+"://"+netip.AddrPortFrom(a, port).String())
		}
	}
	return urls
}
