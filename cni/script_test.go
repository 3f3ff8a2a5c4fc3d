package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/weftnet/weft/internal/golden"
)

// TestScripts runs the stories in testdata, each on a node of its own. Their
// commands are
//
//	pod NAME                  makes a network namespace; $NAME is its path
//	cni COMMAND CONTAINER IFNAME NETNS CONFIG [ARGS]
//	                          runs weft-cni, with the file CONFIG as its input
//	wish NAME [TEXT]          has the node's side fail in a way, or no longer
//	restart-agent             kills the server and starts another
//	stop-agent                kills the server
//	state                     prints the pods' interfaces on the node
//
// and those of testscript. Paths that differ from run to run are replaced in
// what is printed.
func TestScripts(t *testing.T) {
	needRoot(t)
	testscript.Run(t, testscript.Params{
		Dir:           "testdata",
		UpdateScripts: golden.Update(),
		Setup: func(env *testscript.Env) error {
			n := newNode(env.T().(testing.TB), settings{MaxInFlight: 8, Pools: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/30"), netip.MustParsePrefix("fd00:1::/64")},
				Networks: map[string][]netip.Prefix{"red": {netip.MustParsePrefix("10.1.0.0/30")}}})
			env.Values["node"] = n
			env.Setenv("node", n.ns)
			env.Setenv("SHIM", filepath.Join(shimDir, ShimName))
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"pod": func(ts *testscript.TestScript, _ bool, args []string) {
				f := makeNetNS(nodeOf(ts).t)
				ts.Defer(func() { f.Close() })
				ts.Setenv(args[0], nsPath(f))
				hide(ts, nsPath(f), strings.ToUpper(args[0]))
			},
			"cni": runShim,
			"wish": func(ts *testscript.TestScript, _ bool, args []string) {
				nodeOf(ts).wish(args[0], strings.Join(args[1:], " "))
			},
			"restart-agent": func(ts *testscript.TestScript, _ bool, _ []string) {
				nodeOf(ts).kill()
				nodeOf(ts).start()
			},
			"stop-agent": func(ts *testscript.TestScript, _ bool, _ []string) { nodeOf(ts).kill() },
			"state": func(ts *testscript.TestScript, _ bool, _ []string) {
				links := nodeOf(ts).links()
				if len(links) == 0 {
					fmt.Fprintln(ts.Stdout(), "no interfaces")
				}
				for _, l := range links {
					fmt.Fprintln(ts.Stdout(), l.Name, l.Alias)
				}
			},
		},
	})
}

func nodeOf(ts *testscript.TestScript) *testNode { return ts.Value("node").(*testNode) }

// hide has a path replaced in what is printed.
func hide(ts *testscript.TestScript, path, name string) {
	n := nodeOf(ts)
	n.hidden = append(n.hidden, path, name)
}

func runShim(ts *testscript.TestScript, neg bool, args []string) {
	n := nodeOf(ts)
	s := shim{command: args[0]}
	if len(args) > 4 {
		s.container, s.ifname, s.netns = args[1], args[2], args[3]
		s.stdin = strings.ReplaceAll(ts.ReadFile(args[4]), "SOCKET", n.socket())
		s.args = strings.Join(args[5:], " ")
	} else {
		s.stdin = strings.ReplaceAll(ts.ReadFile(args[1]), "SOCKET", n.socket())
	}
	// A line that is only this stands for more than weft-cni reads.
	s.stdin = strings.ReplaceAll(s.stdin, "TWO-MEBIBYTES", strings.Repeat("x", 2<<20))
	out, code, err := s.run(n.t.Context())
	ts.Check(err)
	out = strings.NewReplacer(append([]string{n.Dir, "DIR", n.ns, "NODE"}, n.hidden...)...).Replace(out)
	fmt.Fprint(ts.Stdout(), out)
	if (code != 0) != neg {
		ts.Fatalf("exit status %d: %s", code, out)
	}
	if code > 1 {
		ts.Fatalf("exit status %d is not one of the specification: %s", code, out)
	}
}

func TestAboutIsForPeople(t *testing.T) {
	if os.Getenv("CNI_COMMAND") != "" {
		t.Skip("CNI_COMMAND is set")
	}
	testscript.Run(t, testscript.Params{Files: []string{filepath.Join("testdata", "by-hand", "about.txtar")}, UpdateScripts: golden.Update(),
		Setup: func(env *testscript.Env) error { env.Setenv("SHIM", filepath.Join(shimDir, ShimName)); return nil }})
}
