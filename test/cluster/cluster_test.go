package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/await"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/registry"
)

// bin holds the binaries under test, self is this test binary, which is also
// the program that runs in pods and on nodes (see program_test.go).
var bin, self string

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && runProgram(os.Args[1], os.Args[2:]) {
		return
	}
	os.Exit(func() int {
		if os.Geteuid() != 0 {
			return m.Run()
		}
		dir, err := os.MkdirTemp("", "weft-cluster-")
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

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes a cluster of network namespaces")
	}
}

// patience is how long what must come true may take.
const patience = 30 * time.Second

// cluster is a lab and a test that uses it. Its methods end the test when what
// they do fails.
type cluster struct {
	*testing.T
	lab *lab.Lab
	dir string
}

// up makes a lab, and takes it down when the test ends.
func up(t *testing.T, o lab.Options) *cluster {
	t.Helper()
	needRoot(t)
	// The names of tests are too long for the socket in the directory.
	parent := shortDir(t)
	o.Dir, o.Weft = filepath.Join(parent, "lab"), bin+"weft"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := lab.Up(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{T: t, lab: l, dir: o.Dir}
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

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "weft-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (c *cluster) logTails() {
	logs, _ := filepath.Glob(filepath.Join(c.lab.Logs(), "*.log"))
	for _, file := range logs {
		b, _ := os.ReadFile(file)
		c.Logf("%s:\n%s", filepath.Base(file), b[max(0, len(b)-3000):])
	}
}

// flannelConfig is a configuration of flannel's, as a lab begins with.
func flannelConfig(spec string) lab.Object {
	config := &flannel.Config{Spec: json.RawMessage(spec)}
	config.Name = flannel.ConfigName
	return lab.Object{Kind: flannel.ConfigKind, Object: config}
}

// outcome is what a command came to.
type outcome struct {
	stdout, stderr string
	code           int
}

// weft runs the command line against the lab; stdin is for "-f -".
func (c *cluster) weft(stdin string, args ...string) outcome {
	c.Helper()
	cmd := exec.Command(bin+"weft", args...)
	cmd.Env = append(os.Environ(), lab.DirVariable+"="+c.dir)
	return run(c.T, cmd, stdin)
}

func run(t *testing.T, cmd *exec.Cmd, stdin string) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// want ends the test unless the command ended with a code, and printed all
// the words.
func (o outcome) want(t testing.TB, code int, words ...string) {
	t.Helper()
	if o.code != code {
		t.Fatalf("exit code %d instead of %d\n%s%s", o.code, code, o.stdout, o.stderr)
	}
	for _, w := range words {
		if !strings.Contains(o.stdout+o.stderr, w) {
			t.Fatalf("the output lacks %q:\n%s%s", w, o.stdout, o.stderr)
		}
	}
}

func (c *cluster) apply(yaml string) {
	c.Helper()
	c.weft(yaml, "apply", "-f", "-").want(c, 0)
}

// eventually tries until it works.
func (c *cluster) eventually(try func() error) {
	c.Helper()
	eventually(c.T, try)
}

func eventually(t *testing.T, try func() error) {
	t.Helper()
	await.NoError(t, patience, "what must come true", try)
}

// run starts a pod with a server in it and returns its addresses.
func (c *cluster) run(name, node string, command ...string) []netip.Addr {
	c.Helper()
	addresses, err := c.lab.Run(c.Context(), lab.Pod{Name: name, Node: node, Command: command})
	if err != nil {
		c.Fatal(err)
	}
	return addresses
}

// place is where a command runs: "pod/web", "node/node1" or "outside".
type place string

// exec runs a command and returns what it prints, standard error included.
func (c *cluster) exec(p place, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := lab.Command{Args: args, Stdout: &out, Stderr: &out}
	err := c.execute(p, cmd)
	if err != nil {
		err = fmt.Errorf("%s: %s: %w\n%s", p, strings.Join(args, " "), err, out.String())
	}
	return out.String(), err
}

func (c *cluster) execute(p place, cmd lab.Command) error {
	kind, name, _ := strings.Cut(string(p), "/")
	switch kind {
	case "pod":
		return c.lab.Exec("", name, cmd)
	case "node":
		return c.lab.ExecNode(name, cmd)
	default:
		return c.lab.ExecOutside(cmd)
	}
}

func (c *cluster) mustExec(p place, args ...string) string {
	c.Helper()
	out, err := c.exec(p, args...)
	if err != nil {
		c.Fatal(err)
	}
	return out
}

// reach asks the server at an address and returns its name and the address
// under which it sees the place.
func (c *cluster) reach(from place, to netip.Addr) (server string, seen netip.Addr, err error) {
	out, err := c.exec(from, self, "fetch", "http://"+netip.AddrPortFrom(to, lab.ServerPort).String()+"/")
	if err != nil {
		return "", netip.Addr{}, err
	}
	return parseAnswer(out)
}

// parseAnswer reads what a server of the lab's says: "web 10.1.0.2:4711".
func parseAnswer(line string) (server string, seen netip.Addr, err error) {
	server, client, _ := strings.Cut(strings.TrimSpace(line), " ")
	ap, err := netip.ParseAddrPort(client)
	if err != nil {
		return "", netip.Addr{}, fmt.Errorf("answer %q: %w", line, err)
	}
	return server, ap.Addr(), nil
}

// mustSee wants a server to see a place under an address, soon.
func (c *cluster) mustSee(from place, to netip.Addr, want netip.Addr) {
	c.Helper()
	c.eventually(func() error {
		_, seen, err := c.reach(from, to)
		if err == nil && seen != want {
			err = fmt.Errorf("%s is seen as %s at %s, not as %s", from, seen, to, want)
		}
		return err
	})
}

// holds is what a node has of the ways to other machines, as text.
func (c *cluster) holds(node string) string {
	c.Helper()
	return c.mustExec(place("node/"+node), "sh", "-c", strings.Join([]string{
		`ip route show table all proto 87`, `ip -6 route show table all proto 87`, `ip rule`,
		`ip neigh show nud permanent`, `bridge fdb show`, `ip -d link show`,
	}, "; "))
}

func (c *cluster) registry() registry.Registry {
	c.Helper()
	r, err := c.lab.Registry()
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { r.Close() })
	return r
}

// get returns an object.
func get[T registry.Object](c *cluster, r registry.Registry, k *registry.Kind, name string) (T, error) {
	o, err := r.Get(c.Context(), k, registry.Key{Name: name})
	if err != nil {
		return *new(T), err
	}
	return o.(T), nil
}

// ready asks an agent of the lab's whether pods can be networked.
func (c *cluster) ready(node string) (ok bool, message string) {
	c.Helper()
	return ask(c.T, c.runDir(node), "/readyz")
}

// planHas waits until a node's plan has some text.
func (c *cluster) planHas(node, text string) {
	c.Helper()
	c.eventually(func() error {
		if _, plan := ask(c.T, c.runDir(node), "/plan"); !strings.Contains(plan, text) {
			return fmt.Errorf("the plan of %s lacks %q:\n%s", node, text, plan)
		}
		return nil
	})
}

// runDir is that of a node's agent, as seen from here.
func (c *cluster) runDir(node string) string {
	return fmt.Sprintf("/proc/%d/root/run/weft", c.lab.PID(node))
}

// ask gets something from the agent with a run directory. ok is false too
// where it does not answer.
func ask(t *testing.T, runDir, path string) (ok bool, body string) {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: unixDialer(filepath.Join(runDir, "http.sock"))}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		return false, err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return false, err.Error()
	}
	return res.StatusCode == http.StatusOK, strings.TrimSpace(string(b))
}
