// Command kubernetes runs a real Kubernetes cluster of several nodes on one
// machine, to try Weft in and to test it in: see package cluster. It needs
// root, and the programs that make kubernetes-programs builds.
//
//	kubernetes up -network bridge
//	kubernetes exec node2 -- ip route
//	kubernetes kill-node node2
//	kubernetes start-node node2
//	kubernetes down
//
// Without a word, or with -help after one, it says what there is.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/weftnet/weft/test/kubernetes/cluster"
	"github.com/weftnet/weft/test/kubernetes/controlplane"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	// A node's command has said for itself why it failed. A program that this one
	// ran for itself, as kubectl, has not: its error is within another.
	if exit, ok := err.(*exec.ExitError); ok {
		os.Exit(max(exit.ExitCode(), 1))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubernetes:", err)
		os.Exit(1)
	}
}

// command is what a word on the command line does.
type command struct {
	name, args, help string
	// run gets the words after the flags.
	run func(ctx context.Context, dir string, args []string) error
}

var commands = []command{
	{"status", "", "say what runs", status},
	{"exec", "NODE -- COMMAND...", "run a command on a node", execute},
	{"outside", "[--] COMMAND...", "run a command as on a machine outside of the cluster", outside},
	{"load", "IMAGE.tar...", "make images known to the nodes", load},
	{"kill-node", "NODE", "cut a node's power", onNode((*cluster.Cluster).KillNode)},
	{"start-node", "NODE", "boot a node that was killed", onNode((*cluster.Cluster).StartNode)},
	{"kill", "NODE PROGRAM", "kill a program of a node, or of controlplane", onProgram((*cluster.Cluster).KillProcess)},
	{"stop", "NODE PROGRAM", "stop a program until it is started", onProgram((*cluster.Cluster).StopProcess)},
	{"start", "NODE PROGRAM", "start a program that was stopped", onProgram((*cluster.Cluster).StartProcess)},
	{"pause", "NODE PROGRAM", "keep a program from doing anything", onProgram((*cluster.Cluster).PauseProcess)},
	{"resume", "NODE PROGRAM", "undo pause", onProgram((*cluster.Cluster).ResumeProcess)},
	{"down", "", "end the cluster, and leave nothing", func(_ context.Context, dir string, _ []string) error { return cluster.Down(dir) }},
}

func usage() error {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  up\tmake a cluster")
	for _, c := range commands {
		fmt.Fprintf(w, "  %s %s\t%s\n", c.name, c.args, c.help)
	}
	w.Flush()
	return errors.New("say what to do:\n" + b.String() + "each takes -name NAME or -dir DIR, to tell clusters apart; up says more with -help")
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return usage()
	}
	if args[0] == "up" {
		return up(ctx, args[1:])
	}
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == args[0] })
	if i < 0 {
		return usage()
	}
	flags := flag.NewFlagSet(args[0], flag.ExitOnError)
	dir := where(flags)
	flags.Parse(args[1:])
	return commands[i].run(ctx, dir(), flags.Args())
}

// where adds the flags that tell clusters apart.
func where(flags *flag.FlagSet) (dir func() string) {
	name := flags.String("name", cluster.DefaultName, "the cluster's `name`")
	in := flags.String("dir", "", "the cluster's `directory` (default "+cluster.DefaultDir("NAME")+")")
	return func() string {
		if *in != "" {
			return *in
		}
		return cluster.DefaultDir(*name)
	}
}

func up(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("up", flag.ExitOnError)
	dir := where(flags)
	var c cluster.Config
	bin := flags.String("bin", "", "`directory` of the programs (default: the cache)")
	images := flags.String("images", "", "`directory` whose .tar files are images for the nodes")
	timeout := flags.Duration("timeout", 5*time.Minute, "how long it may take")
	flags.IntVar(&c.Nodes, "nodes", 3, "how many nodes")
	flags.IntVar(&c.Zones, "zones", 0, "over how many zones the nodes are spread (default: each is one)")
	flags.Func("image", "an image in a .tar `file`; may be repeated", appendPath(&c.Images))
	flags.Func("manifest", "a YAML `file` to apply; may be repeated", appendPath(&c.Manifests))
	flags.StringVar((*string)(&c.Network), "network", "", "what connects pods: bridge, or nothing until a manifest does")
	flags.StringVar(&c.Proxy, "proxy", "nftables", "`mode` of kube-proxy: nftables, iptables or none")
	var w cluster.Weft
	flags.StringVar(&w.Plugin, "weft", "", "`plug-in` of Weft to be the cluster's network: openshift-subnet, openshift-networkpolicy, flannel or flannel-networkpolicy")
	flags.StringVar(&w.Chart, "chart", "deploy/chart", "`directory` of Weft's Helm chart")
	flags.StringVar(&w.Image, "weft-image", "bin/weft-image.tar", "`file` of Weft's image")
	c.DNS = cluster.CoreDNS
	flags.Func("dns", "`who` answers pods that ask for names: coredns, nodes, as Weft has them do, or none (default coredns)", func(s string) error {
		c.DNS = cluster.DNS(s)
		if s == "none" {
			c.DNS = cluster.NoDNS
		}
		return nil
	})
	flags.Func("pods", "the pods' `CIDRs`, with a comma between two of different families", prefixes(&c.PodCIDRs))
	flags.Func("services", "the Services' `CIDRs`, in the families of those of pods", prefixes(&c.ServiceCIDRs))
	flags.Func("flag", "a `PROGRAM=FLAG` to add, as kubelet=--v=4; may be repeated", func(s string) error {
		program, f, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("use PROGRAM=FLAG")
		}
		if c.Flags == nil {
			c.Flags = make(map[string][]string)
		}
		c.Flags[program] = append(c.Flags[program], f)
		return nil
	})
	flags.Parse(args)
	if flags.NArg() > 0 {
		return fmt.Errorf("up takes no %q", flags.Args())
	}
	c.Name, c.Dir, c.Bin = flags.Lookup("name").Value.String(), dir(), *bin
	var err error
	if c.Bin == "" {
		if c.Bin, err = controlplane.Bin(); err != nil {
			return err
		}
	}
	for _, path := range []*string{&c.Bin, &c.Dir} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	if w.Plugin != "" && c.Network != cluster.NoNetwork {
		return errors.New("-weft and -network: choose one network")
	}
	if *images != "" {
		tars, err := filepath.Glob(filepath.Join(*images, "*.tar"))
		if err != nil {
			return err
		}
		if len(tars) == 0 {
			return fmt.Errorf("there are no images in %s: write them with make kubernetes-programs", *images)
		}
		for _, tar := range tars {
			if err := appendPath(&c.Images)(tar); err != nil {
				return err
			}
		}
	}
	if w.Plugin != "" {
		if err := appendPath(&c.Images)(w.Image); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	start := time.Now()
	made, err := cluster.Up(ctx, c)
	if err != nil {
		return err
	}
	if w.Plugin != "" {
		if err := made.InstallWeft(ctx, w); err != nil {
			return fmt.Errorf("the cluster is up, and Weft is not: %w", err)
		}
	}
	fmt.Printf("cluster %s of %d nodes is up after %.1f s\n", made.Name(), len(made.Nodes()), time.Since(start).Seconds())
	fmt.Printf("export KUBECONFIG=%s\nalias kubectl=%s\n", made.Kubeconfig(), made.Kubectl())
	return nil
}

func prefixes(to *[]netip.Prefix) func(string) error {
	return func(s string) error {
		*to = nil
		for p := range strings.SplitSeq(s, ",") {
			prefix, err := netip.ParsePrefix(p)
			if err != nil {
				return err
			}
			*to = append(*to, prefix)
		}
		return nil
	}
}

func appendPath(to *[]string) func(string) error {
	return func(s string) error {
		path, err := filepath.Abs(s)
		*to = append(*to, path)
		return err
	}
}

func status(ctx context.Context, dir string, _ []string) error {
	c, err := cluster.Open(dir)
	if err != nil {
		return err
	}
	s, err := c.Status(ctx)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	line := func(place, program string, pid int) {
		word := "runs"
		if pid == 0 {
			word = "does not run"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", place, program, word)
	}
	for _, component := range controlplane.Components() {
		line(cluster.ControlPlane, string(component), s.ControlPlane[string(component)])
	}
	for _, n := range c.Nodes() {
		state := s.Nodes[n.Name]
		if state.Init == 0 {
			fmt.Fprintf(w, "%s\t\tis off\n", n.Name)
		}
		for _, program := range slices.Sorted(maps.Keys(state.Programs)) {
			line(n.Name, program, state.Programs[program])
		}
	}
	return w.Flush()
}

func execute(ctx context.Context, dir string, args []string) error {
	if len(args) > 1 && args[1] == "--" {
		args = slices.Delete(args, 1, 2)
	}
	if len(args) < 2 {
		return errors.New("give a node and a command, as: exec node1 -- ip route")
	}
	c, err := cluster.Open(dir)
	if err != nil {
		return err
	}
	return c.Exec(ctx, args[0], cluster.Command{Args: args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
}

// outside runs a command with KUBECONFIG set.
func outside(ctx context.Context, dir string, args []string) error {
	if len(args) == 0 {
		return errors.New("give a command, as: outside -- curl 172.30.0.128")
	}
	c, err := cluster.Open(dir)
	if err != nil {
		return err
	}
	return c.Outside(ctx, cluster.Command{Args: args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
}

func load(ctx context.Context, dir string, args []string) error {
	c, err := cluster.Open(dir)
	if err != nil {
		return err
	}
	var tars []string
	for _, a := range args {
		if err := appendPath(&tars)(a); err != nil {
			return err
		}
	}
	return c.Load(ctx, tars...)
}

// onNode is a command with the name of a node.
func onNode(do func(*cluster.Cluster, context.Context, string) error) func(context.Context, string, []string) error {
	return func(ctx context.Context, dir string, args []string) error {
		if len(args) != 1 {
			return errors.New("give the name of one node")
		}
		c, err := cluster.Open(dir)
		if err != nil {
			return err
		}
		return do(c, ctx, args[0])
	}
}

// onProgram is a command with the names of a node and a program.
func onProgram(do func(*cluster.Cluster, context.Context, string, string) error) func(context.Context, string, []string) error {
	return func(ctx context.Context, dir string, args []string) error {
		if len(args) != 2 {
			return errors.New("give the names of one node and one program")
		}
		c, err := cluster.Open(dir)
		if err != nil {
			return err
		}
		return do(c, ctx, args[0], args[1])
	}
}
