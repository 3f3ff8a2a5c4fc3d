// Command e2e runs Kubernetes' own sig-network specs, which are in its
// e2e.test, against a cluster, and says which passed, which failed and which
// were left out for what reason.
//
//	e2e -kubeconfig FILE -bin DIR -suite conformance
//
// The suite "smoke" is the specs of smoke.txt, "conformance" those that
// upstream calls so, "networkpolicy" those about policies, "beyond" those that are
// in neither, "all" every one of sig-network. left-out.txt takes specs
// out of each, with the reason. Those of load balancers want an AddressPool, which is
// in pool.yaml, and to be run where its addresses are reached: see kubernetes outside. The exit code is 0 only if every other spec of
// the suite ran and passed.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"
)

var (
	//go:embed left-out.txt
	leftOutText string
	//go:embed smoke.txt
	smokeText string
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var r run
	flag.StringVar(&r.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "the cluster's `FILE` of credentials")
	flag.StringVar(&r.bin, "bin", "", "`DIRECTORY` of e2e.test, ginkgo and kubectl")
	flag.StringVar(&r.suite, "suite", "conformance", "`SUITE`: smoke, conformance, networkpolicy, beyond or all")
	flag.StringVar(&r.reports, "reports", "", "`DIRECTORY` to leave the suite's log and report in (default: a temporary one)")
	flag.StringVar(&r.only, "only", "", "run only the suite's specs whose name has `TEXT` in it")
	flag.IntVar(&r.procs, "procs", 4, "`NUMBER` of specs to run at a time; most of them wait most of the time")
	flag.IntVar(&r.nodes, "nodes", 3, "`NUMBER` of nodes that specs may expect")
	flag.DurationVar(&r.timeout, "timeout", 40*time.Minute, "`TIME` for the whole suite")
	list := flag.Bool("list", false, "print what would run and what is left out, and run nothing")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "error: %q: there are flags only (see: e2e -help)\n", flag.Arg(0))
		os.Exit(2)
	}
	ok, err := r.do(ctx, *list)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// run is what the command line asks for.
type run struct {
	kubeconfig, bin, suite, reports, only string

	procs, nodes int
	timeout      time.Duration
}

// do runs the suite and reports whether all of it passed.
func (r run) do(ctx context.Context, list bool) (bool, error) {
	names, err := exec.CommandContext(ctx, r.program("e2e.test"), "--list-tests").Output()
	if err != nil {
		return false, fmt.Errorf("list the specs of %s: %w", r.program("e2e.test"), err)
	}
	rules, err := parseRules(leftOutText)
	if err != nil {
		return false, fmt.Errorf("left-out.txt: %w", err)
	}
	suite, err := choose(parseList(string(names)), r.suite, parseSmoke(smokeText), rules)
	if err != nil {
		return false, err
	}
	suite = suite.only(r.only)
	if len(suite.Run) == 0 {
		return false, fmt.Errorf("no spec of the suite %s has %q in its name", r.suite, r.only)
	}
	if list {
		fmt.Print(suite)
		return true, nil
	}
	if r.kubeconfig == "" {
		return false, errors.New("which cluster? Give -kubeconfig FILE (make kubernetes-up prints it)")
	}
	if r.reports == "" {
		if r.reports, err = os.MkdirTemp("", "weft-e2e-"); err != nil {
			return false, err
		}
	} else if err := os.MkdirAll(r.reports, 0o755); err != nil {
		return false, err
	}
	report, err := r.ginkgo(ctx, suite)
	if err != nil {
		return false, err
	}
	outcome, err := judge(suite, report)
	if err != nil {
		return false, fmt.Errorf("%w (see %s)", err, r.reports)
	}
	fmt.Print(outcome)
	fmt.Println("Log and report are in", r.reports)
	return outcome.OK(), nil
}

func (r run) program(name string) string { return filepath.Join(r.bin, name) }

// ginkgo runs the specs and returns its report.
func (r run) ginkgo(ctx context.Context, s suite) ([]byte, error) {
	const file = "report.json"
	path := filepath.Join(r.reports, file)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	log, err := os.Create(filepath.Join(r.reports, r.suite+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := []string{"run", "--no-color", "--procs=" + strconv.Itoa(r.procs), "--timeout=" + r.timeout.String(),
		"--output-dir=" + r.reports, "--json-report=" + file, "--focus=" + s.focus(), r.program("e2e.test"), "--",
		"--provider=skeleton", "--kubeconfig=" + r.kubeconfig, "--kubectl-path=" + r.program("kubectl"),
		"--num-nodes=" + strconv.Itoa(r.nodes), "--disable-log-dump", "--report-dir=" + r.reports}
	cmd := exec.CommandContext(ctx, r.program("ginkgo"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	fmt.Printf("running %d specs, %d at a time; the log is %s\n", len(s.Run), r.procs, log.Name())
	failed := cmd.Run() // also when a spec failed, so the report decides
	report, err := os.ReadFile(path)
	if err != nil {
		tail, _ := os.ReadFile(log.Name())
		lines := bytes.Split(bytes.TrimSpace(tail), []byte("\n"))
		return nil, fmt.Errorf("ginkgo left no report (%v): %s", failed, bytes.Join(lines[max(0, len(lines)-20):], []byte("\n")))
	}
	return report, nil
}
