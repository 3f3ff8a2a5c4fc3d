// Command bench measures Weft against networks built by hand and writes
// docs/benchmarks.md.
//
// What is compared is measured in turns within one run, and reported as the
// median of the rounds' ratios, since the absolute numbers of a small machine
// change from minute to minute. The files are: load.go (what makes and times
// the traffic, in worker processes: worker.go), handmade.go (the networks
// built by hand), cluster.go (Weft, by way of the lab), traffic.go and
// attach.go (the rounds), policy*.go (network policies, in small and in large
// clusters), services*.go (Services, beside kube-proxy), faults*.go (what breaks of these
// when something fails), failover.go (addresses that move
// between nodes), names*.go (name servers, beside CoreDNS), stats.go and report.go (pure:
// what comes of them).
//
// It needs root, and the binaries of make build.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/test/kubernetes/programs"
)

// The size of a full node in a cluster of middling size, and how many pods a
// busy runtime starts at once.
const (
	podCount  = 100
	peerCount = 100
	inFlight  = 10
)

// settings are the command line.
type settings struct {
	output, notes, weft string
	only                []string
	rounds              int
	sample              time.Duration
	attachRounds        int
	ups                 []int
	// services are the numbers of Services of which nodes are loaded, patience is how long that
	// may take, and changes how often an endpoint comes or goes on each, within changesWithin.
	services      []int
	patience      time.Duration
	changes       int
	changesWithin time.Duration
	kubeProxy     bool
	faultSettings
	// nameServices are the numbers of Services of the clusters whose names are asked for.
	nameServices []int
	kubernetes   string
}

// parts are what -only chooses from.
var parts = []string{"traffic", "attach", "memory", "up", "policy", "tenants", "services", "faults", "failover", "names"}

func main() {
	if len(os.Args) > 1 && os.Args[1] == workerArgument {
		exit(runWorker())
	}
	if len(os.Args) > 2 && os.Args[1] == backendArgument {
		exit(runBackend(os.Args[2]))
	}
	s, err := parseSettings(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		exit(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(s.run(ctx))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func parseSettings(args []string) (settings, error) {
	var s settings
	var only, ups, services, nameServices string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&s.output, "o", "", "`file` to write; empty means standard output")
	f.StringVar(&s.notes, "notes", "bench/notes.md", "`file` to append, written by hand")
	f.StringVar(&s.weft, "weft", "bin/weft", "the weft `binary`, with weft-agent and weft-cni beside it")
	f.StringVar(&only, "only", strings.Join(parts, ","), "what to measure, a `list` with commas")
	f.IntVar(&s.rounds, "rounds", 9, "rounds of traffic")
	f.DurationVar(&s.sample, "sample", time.Second, "length of a sample of traffic")
	f.IntVar(&s.attachRounds, "attach-rounds", 7, "rounds of attaching pods")
	f.StringVar(&ups, "up", "3,10,3,10,3,10,100", "the labs to bring up, in `nodes`")
	f.StringVar(&services, "services", "1,1000,10000,30000", "how many Services nodes are loaded with, from few to `many`")
	f.DurationVar(&s.patience, "patience", 15*time.Minute, "how long a node may take to be loaded with Services")
	f.IntVar(&s.changes, "changes", 100, "how often an endpoint of a Service comes or goes")
	f.DurationVar(&s.changesWithin, "changes-within", 2*time.Minute, "how long an endpoint of a Service comes and goes at most")
	f.BoolVar(&s.kubeProxy, "kube-proxy", true, "measure Services of kube-proxy, too")
	f.IntVar(&s.Connections, "connections", 1000, "how many connections a second are opened while something fails")
	f.DurationVar(&s.Window, "window", 5*time.Second, "how long there is load before something fails, and after")
	f.DurationVar(&s.Quiet, "quiet", 5*time.Second, "how long nothing fails between two")
	f.DurationVar(&s.Away, "away", 30*time.Second, "how long the API server is away")
	f.StringVar(&nameServices, "name-services", "1000", "the clusters whose names are asked for, in `Services`, as 1,1000,10000")
	f.StringVar(&s.kubernetes, "kubernetes", "", "the `directory` of Kubernetes' programs; empty means where make kubernetes-programs puts them")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if f.NArg() > 0 {
		return s, fmt.Errorf("argument %q is not understood: there are only flags (see -h)", f.Arg(0))
	}
	if s.rounds < 1 || s.attachRounds < 1 || s.sample <= 0 {
		return s, errors.New("-rounds and -attach-rounds must be 1 or more, and -sample longer than 0")
	}
	if s.Connections < 2 || s.Window < time.Second || s.Quiet < 0 || s.Away <= 0 {
		return s, errors.New("-connections must be 2 or more, -window 1s or longer, -quiet 0 or longer, and -away longer than 0")
	}
	s.only = strings.Split(only, ",")
	for _, part := range s.only {
		if !slices.Contains(parts, part) {
			return s, fmt.Errorf("-only %s: there are %s", part, strings.Join(parts, ", "))
		}
	}
	var err error
	if s.ups, err = numbersOf(ups, math.MaxInt); err != nil {
		return s, fmt.Errorf("-up %s: %w", ups, err)
	}
	if s.services, err = numbersOf(services, mostServices); err != nil {
		return s, fmt.Errorf("-services %s: %w", services, err)
	}
	if s.nameServices, err = numbersOf(nameServices, mostServices); err != nil {
		return s, fmt.Errorf("-name-services %s: %w", nameServices, err)
	}
	if !slices.IsSorted(s.services) || s.patience <= 0 || s.changes < 0 || s.changesWithin <= 0 {
		return s, errors.New("-services goes from few to many, -patience and -changes-within must be longer than 0, and -changes 0 or more")
	}
	return s, nil
}

// numbersOf reads a list with commas of numbers from 1 to most.
func numbersOf(list string, most int) (numbers []int, err error) {
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > most {
			return nil, fmt.Errorf("%q is not a number from 1 to %d", word, most)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// kubernetesPrograms returns the directory of Kubernetes' programs, where all that are named are.
func (s settings) kubernetesPrograms(names ...string) (dir string, err error) {
	if dir = s.kubernetes; dir == "" {
		if dir, err = programs.Dir(); err != nil {
			return "", err
		}
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "", fmt.Errorf("%w: build the programs with: make kubernetes-programs", err)
		}
	}
	return dir, nil
}

func (s settings) run(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("this needs root: it makes network namespaces")
	}
	var err error
	if s.weft, err = filepath.Abs(s.weft); err != nil {
		return err
	}
	notes, err := os.ReadFile(s.notes)
	if err != nil {
		return err
	}
	res := results{Rounds: s.rounds, Sample: s.sample, Pods: podCount, InFlight: inFlight}
	if res.Machine, err = thisMachine(); err != nil {
		return err
	}
	if slices.Contains(s.only, "traffic") {
		if err := s.traffic(ctx, &res); err != nil {
			return err
		}
	}
	if slices.Contains(s.only, "attach") || slices.Contains(s.only, "memory") {
		if err := s.attach(ctx, &res); err != nil {
			return err
		}
	}
	if slices.Contains(s.only, "up") {
		for _, nodes := range s.ups {
			say("lab of %d nodes", nodes)
			u, err := measureUp(ctx, s.weft, nodes)
			if err != nil {
				return err
			}
			res.Ups = append(res.Ups, u)
		}
	}
	if slices.Contains(s.only, "policy") {
		if res.Policy, err = s.policy(ctx); err != nil {
			return err
		}
	}
	if slices.Contains(s.only, "tenants") {
		if res.Tenants, err = s.policyTenants(ctx); err != nil {
			return err
		}
	}
	if slices.Contains(s.only, "services") {
		if res.Services, err = s.serviceBench(ctx); err != nil {
			return err
		}
	}
	if slices.Contains(s.only, "faults") {
		if res.Faults, err = s.faultBench(ctx); err != nil {
			return err
		}
		res.FaultSettings = s.faultSettings
	}
	if slices.Contains(s.only, "failover") {
		if res.Failovers, err = s.measureFailover(ctx); err != nil {
			return err
		}
	}
	if slices.Contains(s.only, "names") {
		if res.Names, err = s.names(ctx); err != nil {
			return err
		}
	}
	text := render(res, string(notes))
	if s.output == "" {
		_, err = os.Stdout.WriteString(text)
		return err
	}
	return os.WriteFile(s.output, []byte(text), 0o644)
}

// say tells how far the run is.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// traffic builds all variants, and measures them.
func (s settings) traffic(ctx context.Context, res *results) (err error) {
	say("traffic: building the networks")
	bareNet, bare := barePair()
	if err := bareNet.done(); err != nil {
		return err
	}
	defer bareNet.close()
	res.Bare = "bare pair"
	res.Variants = []variant{{name: res.Bare, pair: bare}}
	// The bridge on a node is the same with either backend.
	const handSame, handVXLAN, handRoutes = "same node, by hand (bridge)", "VXLAN, by hand", "host-gw, by hand"
	vxlan, same, across := byHand("vxlan")
	if err := vxlan.done(); err != nil {
		return err
	}
	defer vxlan.close()
	res.Variants = append(res.Variants, variant{name: handSame, pair: same}, variant{name: handVXLAN, pair: across})
	routes, _, across := byHand("host-gw")
	if err := routes.done(); err != nil {
		return err
	}
	defer routes.close()
	res.Variants = append(res.Variants, variant{name: handRoutes, pair: across})

	for _, l := range []struct {
		plugin              string
		objects             []lab.Object
		same, name, against string
	}{
		{"openshift-subnet", nil, "Weft: same node", "Weft: VXLAN, plug-in openshift-subnet", handVXLAN},
		{"flannel", []lab.Object{flannelBackend("vxlan")}, "", "Weft: VXLAN, plug-in flannel", handVXLAN},
		{"flannel", []lab.Object{flannelBackend("host-gw")}, "", "Weft: host-gw, plug-in flannel", handRoutes},
	} {
		c, err := bringUp(ctx, s.weft, 2, l.plugin, l.objects...)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.close()) }()
		same, across, err := c.pairs(ctx)
		if err != nil {
			return err
		}
		if l.same != "" {
			res.Variants = append(res.Variants, variant{name: l.same, against: handSame, pair: same})
		}
		res.Variants = append(res.Variants, variant{name: l.name, against: l.against, pair: across})
	}
	res.Traffic, err = measureTraffic(ctx, res.Variants, loads, s.rounds, s.sample, say)
	return err
}

// attach attaches pods in a lab and on nodes of Debian's plug-ins, and then
// looks at the lab's agent.
func (s settings) attach(ctx context.Context, res *results) (err error) {
	say("CNI: building the nodes")
	dir, err := os.MkdirTemp("", "weft-bench-cni-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c, err := bringUp(ctx, s.weft, 2, "openshift-subnet")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	node := c.lab.Nodes()[0]
	own, err := c.attacher(node, s.weft, filepath.Join(dir, "weft-cache"))
	if err != nil {
		return err
	}
	pods, err := newPodNamespaces(podCount)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(pods)) }()
	if slices.Contains(s.only, "attach") {
		asking := own
		asking.name, asking.asks = own.name+", which gives ports and limits", true
		attachers := []attacher{own, asking}
		res.Own, res.Asking, res.Asked = own.name, asking.name, map[string]bool{asking.name: true}
		for _, reference := range []struct {
			plugin string
			asks   bool
		}{{"bridge", false}, {"ptp", false}, {"bridge", true}} {
			w, err := newWorker(fmt.Sprintf("node %d of %s", len(attachers), reference.plugin), "")
			if err != nil {
				return err
			}
			defer w.close()
			a, err := referenceAttacher(reference.plugin, dir, reference.asks, w)
			if err != nil {
				return err
			}
			attachers, res.Asked[a.name] = append(attachers, a), a.asks
		}
		if res.Attached, err = measureAttach(ctx, attachers, pods, inFlight, s.attachRounds, say); err != nil {
			return err
		}
		if res.Single, err = measureAttach(ctx, []attacher{own, asking}, pods, 1, s.attachRounds, say); err != nil {
			return err
		}
	}
	if slices.Contains(s.only, "memory") {
		say("memory: %d pods and %d peers", len(pods), peerCount)
		f, err := c.measureAgent(ctx, node, own, pods, peerCount)
		if err != nil {
			return err
		}
		res.Agent = &f
	}
	return nil
}
