package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/datapath/dataplanes"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry/etcd/embedded"
)

func newLab() *cobra.Command {
	dir := new(string)
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "A cluster on this machine, to try things in",
		Long: `lab makes a cluster out of network namespaces: nodes with the real agent, a
controller with an embedded etcd, and pods, which are processes attached by the
real CNI plug-in. It needs root and changes nothing outside its directory.

The commands outside of weft lab, such as weft status, find a lab that lies in another
directory than the default one by the variable ` + lab.DirVariable + `, which
weft lab knows as well.`,
		Example: `  weft lab up --nodes 3
  weft lab run web --node node1
  weft lab run db --node node2 -n shop -l app=db
  weft lab exec web -- weft lab fetch http://$(weft lab address db -n shop):8080/
  weft lab stop-node node2
  weft lab down`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(dir, "dir", "", "`DIRECTORY` the lab lies in ($"+lab.DirVariable+"; default "+lab.DefaultDir+")")
	cmd.AddCommand(newLabUp(dir), newLabDown(dir), newLabStatus(dir), newLabRun(dir), newLabExec(dir), newLabDelete(dir),
		newLabAddress(dir), newLabStop(dir), newLabStart(dir), newLabServe(), newLabNames(), newLabFetch(), newLabStage(), newLabKubelet(dir), newLabEtcd())
	return cmd
}

// namespaceFlag gives a command of the lab the flag -n.
func namespaceFlag(cmd *cobra.Command) *string {
	return cmd.Flags().StringP("namespace", "n", lab.DefaultNamespace, "the `NAMESPACE` of pods")
}

func newLabUp(dir *string) *cobra.Command {
	var o lab.Options
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Make a cluster and wait until pods can run",
		Example: `  weft lab up
  weft lab up --nodes 5 --plugin flannel --ipv6`,
		Args: noArgs,
	}
	f := cmd.Flags()
	f.IntVar(&o.Nodes, "nodes", 3, fmt.Sprintf("`NUMBER` of nodes, 1 to %d", lab.MaxNodes))
	f.IntVar(&o.Controllers, "controllers", 1, fmt.Sprintf("`NUMBER` of controllers, 1 to %d", lab.MaxControllers))
	f.StringVar(&o.Plugin, "plugin", "", "network plug-in: "+oneOf(plugins.Names()))
	f.StringVar(&o.DataPlane, "dataplane", "", "data plane: "+strings.Join(dataplanes.Names(), ", "))
	f.BoolVar(&o.IPv6, "ipv6", false, "addresses of both families")
	f.BoolVar(&o.DNS, "dns", true, "names: a name server on each node, and a world outside that has names, too")
	f.IntVar(&o.MTU, "mtu", 1500, "MTU of the links between the nodes, in `BYTES`")
	timeout := f.Duration("timeout", 2*time.Minute, "`TIME` to wait until pods can run; then all is removed")
	cmd.RegisterFlagCompletionFunc("plugin", cobra.FixedCompletions(plugins.Names(), cobra.ShellCompDirectiveNoFileComp))
	cmd.RegisterFlagCompletionFunc("dataplane", cobra.FixedCompletions(dataplanes.Names(), cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		// 0 means the default to the library, but not to who types it.
		for name, value := range map[string]int{"nodes": o.Nodes, "controllers": o.Controllers, "mtu": o.MTU} {
			if value == 0 {
				return fmt.Errorf("--%s must be more than 0", name)
			}
		}
		if err := someTime(*timeout); err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		began := time.Now()
		o.Dir = *dir
		o.Progress = func(line string) { fmt.Fprintf(out, "%5.1fs  %s\n", time.Since(began).Seconds(), line) }
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), *timeout, fmt.Errorf("pods could not run within %s (--timeout waits longer)", *timeout))
		defer cancel()
		l, err := lab.Up(ctx, o)
		if err != nil {
			return err
		}
		o = l.Options()
		fmt.Fprintf(out, "\n%d nodes are ready. Logs are in %s.\n", o.Nodes, l.Logs())
		nodes := l.Nodes()
		fmt.Fprint(out, nextSteps(*dir, o.Dir, nodes))
		return nil
	}
	return cmd
}

// nextSteps says what to do in a lab that is up, in dir. Where asked says that --dir named it, all
// commands have to be told of that first, as not all of them have the flag.
func nextSteps(asked, dir string, nodes []string) string {
	export := ""
	if asked != "" && dir != lab.Dir() {
		export = fmt.Sprintf("  export %s='%s'\n", lab.DirVariable, strings.ReplaceAll(dir, "'", `'\''`))
	}
	return fmt.Sprintf(`
Next:
%s  weft lab run web --node %s
  weft lab run api --node %s
  weft lab exec web -- weft lab fetch "http://$(weft lab address api):8080/"
  weft why web api
  weft status
  weft lab down
`, export, nodes[0], nodes[min(1, len(nodes)-1)])
}

func newLabDown(dir *string) *cobra.Command {
	return &cobra.Command{
		Use: "down", Short: "Stop and remove the cluster", Args: noArgs,
		Long:    "down removes all that lab up and lab run made, also when these were killed. It is no error when there is nothing.",
		Example: "  weft lab down",
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := lab.Down(*dir)
			if errors.Is(err, lab.ErrNoLab) {
				fmt.Fprintln(cmd.OutOrStdout(), "No lab is up.")
				return nil
			}
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), "The lab is gone.")
			}
			return err
		},
	}
}

func newLabStatus(dir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show which processes of the cluster run", Args: noArgs,
		Long: `status shows the processes of the lab. How the cluster's network is, weft status
shows. The exit code is 0 if all daemons run and 1 if one is dead, or is an agent that
does not answer.`,
		Example: "  weft lab status",
	}
	output := outputFlag(cmd, valueFormats...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		l, err := lab.Open(*dir)
		if err != nil {
			return err
		}
		s, err := l.Status()
		if err != nil {
			return err
		}
		l.AskAgents(cmd.Context(), &s)
		if format != "" {
			err = printValue(cmd.OutOrStdout(), format, s)
		} else {
			err = printLab(cmd, s)
		}
		if err == nil && !s.Healthy() {
			return exitError{code: 1}
		}
		return err
	}
	return cmd
}

func printLab(cmd *cobra.Command, s lab.Status) error {
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "DAEMON\tADDRESS\tSTATE\tPID")
	for _, d := range s.Daemons {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", d.Name, addresses(d.Addresses), d.State, pid(d.PID))
	}
	if len(s.Pods) > 0 {
		fmt.Fprintln(t, "\nPOD\tADDRESS\tSTATE\tPID\tNODE")
	}
	for _, p := range s.Pods {
		fmt.Fprintf(t, "%s/%s\t%s\t%s\t%s\t%s\n", p.Namespace, p.Name, addresses(p.Addresses), p.State, pid(p.PID), p.Node)
	}
	for _, d := range s.Daemons {
		if d.State == lab.Hangs {
			fmt.Fprintf(t, "\n%s hangs: it does not answer. Its log is %s; %s\n", d.Name, d.Log, d.Remedy)
		}
		if d.State == lab.Dead {
			fmt.Fprintf(t, "\n%s is dead. Its log is %s; start it again with: %s\n", d.Name, d.Log, d.Remedy)
		}
	}
	return t.Flush()
}

func addresses(list []netip.Addr) string { return cmp.Or(joinedBy(list, netip.Addr.String), "-") }

func pid(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func newLabRun(dir *string) *cobra.Command {
	var p lab.Pod
	cmd := &cobra.Command{
		Use:   "run POD --node NODE [-- COMMAND...]",
		Short: "Run a pod",
		Long: `run starts a pod on a node and waits until it runs. Without a command it serves
HTTP and UDP on port 8080 and answers with its name and the client's address;
run then waits until it serves. A pod whose command ends has ended for good: its
phase says how, and it gives its network back. In a lab with names a pod has a resolv.conf
and a hosts file of its own, and variables of the Services that there are when it starts.`,
		Example: `  weft lab run web --node node1
  weft lab run db --node node2 -n shop -l app=db -l tier=back
  weft lab run dns --node node2 --port dns=udp/5353 -- dnsmasq -k -p 5353
  weft lab run web --node node1 --port http=tcp/8080@80     # port 80 of the node leads to it
  weft lab run web --node node1 --annotation kubernetes.io/egress-bandwidth=10M
  weft lab run web --node node1 --env MODE=test --enable-service-links=false
  weft lab run job --node node1 -- sh -c 'while sleep 1; do date; done'`,
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if n := cmd.ArgsLenAtDash(); len(args) == 0 || n == 0 || n > 1 || n < 0 && len(args) > 1 {
			return errors.New("name one pod, and put its command after -- (see: weft lab run --help)")
		}
		return nil
	}
	f := cmd.Flags()
	f.StringVar(&p.Node, "node", "", "`NODE` to run it on")
	cmd.MarkFlagRequired("node")
	namespace := namespaceFlag(cmd)
	labels := f.StringArrayP("label", "l", nil, "label, as `KEY=VALUE`; may be given several times")
	env := f.StringArray("env", nil, "variable of its environment, as `NAME=VALUE`; may be given several times")
	links := f.Bool("enable-service-links", true, "give it variables of the Services that its namespace has, as kubelets do")
	annotations := f.StringArray("annotation", nil, "annotation, as `KEY=VALUE`; may be given several times")
	ports := f.StringArray("port", nil, "port for policies to name, as `NAME=PROTOCOL/NUMBER`, with @HOSTPORT behind it to be a port of the node as well; may be given several times (default: those of the server)")
	cmd.RegisterFlagCompletionFunc("node", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return labNodes(*dir), cobra.ShellCompDirectiveNoFileComp
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p.Namespace, p.Name, p.Command = *namespace, args[0], args[1:]
		p.Labels = make(map[string]string)
		for _, list := range *labels {
			for label := range strings.SplitSeq(list, ",") {
				key, value, ok := strings.Cut(label, "=")
				if !ok {
					return fmt.Errorf("-l %q: a label has the form KEY=VALUE", label)
				}
				p.Labels[key] = value
			}
		}
		p.Annotations = make(map[string]string)
		for _, text := range *annotations {
			key, value, ok := strings.Cut(text, "=")
			if !ok {
				return fmt.Errorf("--annotation %q: an annotation has the form KEY=VALUE", text)
			}
			p.Annotations[key] = value
		}
		for _, text := range *env {
			name, value, ok := strings.Cut(text, "=")
			if !ok {
				return fmt.Errorf("--env %q: a variable has the form NAME=VALUE", text)
			}
			p.Env = append(p.Env, corev1.EnvVar{Name: name, Value: value})
		}
		if cmd.Flags().Changed("enable-service-links") {
			p.EnableServiceLinks = links
		}
		for _, text := range *ports {
			port, err := parsePort(text)
			if err != nil {
				return err
			}
			p.Ports = append(p.Ports, port)
		}
		l, err := lab.Open(*dir)
		if err != nil {
			return err
		}
		l.Tell(func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) })
		got, err := l.Run(cmd.Context(), p)
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "pod %s/%s runs on %s with %s\n", p.Namespace, p.Name, p.Node, addresses(got))
		return nil
	}
	return cmd
}

// parsePort reads a port as "http=tcp/8080", or as "http=tcp/8080@80" where it is one of the node, too.
func parsePort(text string) (corev1.ContainerPort, error) {
	name, where, named := strings.Cut(text, "=")
	protocol, number, ok := strings.Cut(where, "/")
	if !named || !ok {
		return corev1.ContainerPort{}, fmt.Errorf("--port %q: a port has the form NAME=PROTOCOL/NUMBER or NAME=PROTOCOL/NUMBER@HOSTPORT, as http=tcp/8080", text)
	}
	number, host, ofHost := strings.Cut(number, "@")
	port := corev1.ContainerPort{Name: name, Protocol: corev1.Protocol(strings.ToUpper(protocol))}
	var err error
	if port.ContainerPort, err = parsePortNumber(number); err == nil && ofHost {
		port.HostPort, err = parsePortNumber(host)
	}
	if err != nil {
		return corev1.ContainerPort{}, fmt.Errorf("--port %q: %w", text, err)
	}
	return port, nil
}

func parsePortNumber(text string) (int32, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("a port is a number from 1 to 65535, not %q", text)
	}
	return int32(n), nil
}

func newLabExec(dir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec POD|node/NODE|outside -- COMMAND...",
		Short: "Run a command in a pod, on a node, or outside the cluster",
		Long: `exec runs any command of this machine in the namespaces of a pod or a node, and ends
with its exit code. In a pod the command has the pod's environment, besides that of exec. It
gets the signals that exec gets.`,
		Example: `  weft lab exec web -- ip address
  weft lab exec -n shop db -- ping -c 1 10.1.0.2
  weft lab exec node/node1 -- ip route`,
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
			return errors.New("name a pod, and a command after -- (see: weft lab exec --help)")
		}
		return nil
	}
	namespace := namespaceFlag(cmd)
	cmd.ValidArgsFunction = completePods(dir, namespace)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		target, command := args[0], args[1:]
		l, err := lab.Open(*dir)
		if err != nil {
			return err
		}
		signals := make(chan os.Signal, 8)
		signal.Notify(signals, unix.SIGTERM, unix.SIGHUP)
		if !isForeground() {
			signal.Notify(signals, unix.SIGINT, unix.SIGQUIT)
		}
		defer signal.Stop(signals)
		c := lab.Command{Args: command, Stdin: cmd.InOrStdin(), Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(), Signals: signals}
		if node, ok := strings.CutPrefix(target, "node/"); ok {
			err = l.ExecNode(node, c)
		} else if target == "outside" {
			err = l.ExecOutside(c)
		} else {
			err = l.Exec(*namespace, target, c)
		}
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			if code := exit.ExitCode(); code >= 0 {
				return exitError{code: code}
			}
			status, _ := exit.Sys().(syscall.WaitStatus)
			return exitError{code: 128 + int(status.Signal()), message: fmt.Sprintf("%s: %s", command[0], exit)}
		}
		return err
	}
	return cmd
}

// isForeground reports whether the terminal tells this process and what it runs of what
// is typed there, as Ctrl-C: the command has had such a signal already, and must not
// have it twice.
func isForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

func newLabDelete(dir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete POD...", Short: "End pods", Args: argsBetween("PODs", 1, math.MaxInt),
		Example: "  weft lab delete web\n  weft lab delete -n shop db",
	}
	namespace := namespaceFlag(cmd)
	cmd.ValidArgsFunction = completePods(dir, namespace)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		l, err := lab.Open(*dir)
		if err != nil {
			return err
		}
		l.Tell(func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) })
		var errs []error
		for _, name := range args {
			if err := l.Delete(cmd.Context(), *namespace, name); err != nil {
				errs = append(errs, err)
				continue
			}
			fmt.Fprintf(cmd.OutOrStdout(), "pod %s/%s is gone\n", *namespace, name)
		}
		return errors.Join(errs...)
	}
	return cmd
}

func newLabAddress(dir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "address POD", Short: "Print a pod's address", Args: exactArgs("POD", 1),
		Example: "  weft lab address web\n  weft lab address web --ipv6",
	}
	namespace := namespaceFlag(cmd)
	six := cmd.Flags().Bool("ipv6", false, "its IPv6 address")
	cmd.ValidArgsFunction = completePods(dir, namespace)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		l, err := lab.Open(*dir)
		if err != nil {
			return err
		}
		list, err := l.Addresses(*namespace, args[0])
		if err != nil {
			return err
		}
		i := slices.IndexFunc(list, func(a netip.Addr) bool { return !*six || a.Is6() })
		if i < 0 {
			return fmt.Errorf("pod %s/%s has no such address, only %s", *namespace, args[0], addresses(list))
		}
		fmt.Fprintln(cmd.OutOrStdout(), list[i])
		return nil
	}
	return cmd
}

func newLabStop(dir *string) *cobra.Command {
	return &cobra.Command{
		Use: "stop-node NODE", Short: "Cut a node's power", Args: exactArgs("NODE", 1),
		Example:           "  weft lab stop-node node2",
		ValidArgsFunction: completeNodes(dir),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := lab.Open(*dir)
			if err != nil {
				return err
			}
			if err := l.StopNode(args[0]); errors.Is(err, lab.ErrOff) {
				fmt.Fprintln(cmd.OutOrStdout(), err)
				return nil
			} else if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is off\n", args[0])
			return nil
		},
	}
}

func newLabStart(dir *string) *cobra.Command {
	timeout := time.Minute
	cmd := &cobra.Command{
		Use: "start-node NODE", Short: "Start a node that is off, or a daemon that died", Args: exactArgs("NODE", 1),
		Long: `start-node boots a node after stop-node and starts the pods that it had, or
starts a dead agent or name server again, also an agent whose Node was deleted. Given
another daemon that weft lab status shows, as controller1, switch or node1-dns, it
starts that.`,
		Example:           "  weft lab start-node node2",
		ValidArgsFunction: completeNodes(dir),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := someTime(timeout); err != nil {
				return err
			}
			l, err := lab.Open(*dir)
			if err != nil {
				return err
			}
			l.Tell(func(line string) { fmt.Fprintln(cmd.OutOrStdout(), line) })
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, fmt.Errorf("pods could not run there within %s (--timeout waits longer)", timeout))
			defer cancel()
			if err := l.Start(ctx, args[0]); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s runs\n", args[0])
			return nil
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "`TIME` to wait until pods can run there")
	return cmd
}

// The hidden commands are what pods run.

func newLabServe() *cobra.Command {
	cmd := &cobra.Command{Use: "serve", Short: "Serve HTTP and UDP and answer with name and client", Hidden: true, Args: noArgs}
	name := cmd.Flags().String("name", "", "`NAME` to answer with")
	port := cmd.Flags().Uint16("port", lab.ServerPort, "`PORT` to serve on")
	ready := cmd.Flags().Int("ready-fd", -1, "file `DESCRIPTOR` to write to once it serves")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return lab.Serve(cmd.Context(), *name, *port, func() {
			if *ready >= 0 {
				lab.SayReady(*ready)
			}
		})
	}
	return cmd
}

func newLabNames() *cobra.Command {
	cmd := &cobra.Command{Use: "names", Short: "Answer for the names of the world outside", Hidden: true, Args: noArgs}
	at := cmd.Flags().StringSlice("address", nil, "`ADDRESS` to answer at, and of the names; may be given several times")
	ready := cmd.Flags().Int("ready-fd", -1, "file `DESCRIPTOR` to write to once it answers")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var addresses []netip.Addr
		for _, text := range *at {
			a, err := netip.ParseAddr(text)
			if err != nil {
				return fmt.Errorf("--address %q is no address", text)
			}
			addresses = append(addresses, a)
		}
		return lab.ServeNames(cmd.Context(), addresses, func() {
			if *ready >= 0 {
				lab.SayReady(*ready)
			}
		})
	}
	return cmd
}

func newLabKubelet(dir *string) *cobra.Command {
	cmd := &cobra.Command{Use: "kubelet", Short: "See to pods that end", Hidden: true, Args: noArgs}
	ready := cmd.Flags().Int("ready-fd", -1, "file `DESCRIPTOR` to write to once it does")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return lab.WatchPods(cmd.Context(), *dir, func() {
			if *ready >= 0 {
				lab.SayReady(*ready)
			}
		})
	}
	return cmd
}

func newLabEtcd() *cobra.Command {
	cmd := &cobra.Command{Use: "etcd", Short: "Be the etcd of a lab", Hidden: true, Args: noArgs}
	data := cmd.Flags().String("data-dir", "", "`DIRECTORY` of its data")
	listen := cmd.Flags().StringSlice("listen", nil, "`URLs` at which it serves")
	ready := cmd.Flags().Int("ready-fd", -1, "file `DESCRIPTOR` to write to once it serves")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		// A lab's underlay is for nobody else.
		server, err := embedded.Start(cmd.Context(), embedded.Config{Dir: *data, ListenClient: *listen, AllowInsecure: true,
			Log: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))})
		if err != nil {
			return err
		}
		defer server.Close()
		if *ready >= 0 {
			lab.SayReady(*ready)
		}
		select {
		case err := <-server.Failed():
			return err
		case <-cmd.Context().Done():
			return nil
		}
	}
	return cmd
}

func newLabFetch() *cobra.Command {
	cmd := &cobra.Command{Use: "fetch URL", Short: "Print what a server answers", Args: exactArgs("a URL", 1)}
	timeout := cmd.Flags().Duration("timeout", 5*time.Second, "`TIME` to wait for the answer")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := someTime(*timeout); err != nil {
			return err
		}
		late := fmt.Errorf("%s: no answer within %s (--timeout waits longer)", args[0], *timeout)
		return within(cmd.Context(), *timeout, late, func(ctx context.Context) error {
			answer, err := lab.Fetch(ctx, args[0])
			fmt.Fprint(cmd.OutOrStdout(), answer)
			return err
		})
	}
	return cmd
}

func newLabStage() *cobra.Command {
	return &cobra.Command{Use: "stage", Hidden: true, Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return lab.RunStage() }}
}

func labNodes(dir string) []string {
	l, err := lab.Open(dir)
	if err != nil {
		return nil
	}
	return l.Nodes()
}

func completeNodes(dir *string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return labNodes(*dir), cobra.ShellCompDirectiveNoFileComp
	}
}

func completePods(dir, namespace *string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		l, err := lab.Open(*dir)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		s, err := l.Status()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, p := range s.Pods {
			if p.Namespace == *namespace {
				names = append(names, p.Name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
