package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weftnet/weft/agent"
	"github.com/weftnet/weft/announce/hold"
	"github.com/weftnet/weft/cni"
	"github.com/weftnet/weft/daemon"
	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/dataplanes"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/podlink"
)

// removes says of the agent's flags what uninstall does with the places that they name.
var removes = map[string]string{
	"run-dir":       "the agent's own `DIRECTORY`, whose sockets and journal are removed, and itself where nothing else is in it",
	"subnet-file":   "`FILE` in which the agent told the node's subnet, removed if that is of Weft's interfaces",
	"cni-conf-file": "`FILE` to which the agent wrote the CNI configuration, removed if it is Weft's; empty removes none",
	"cni-bin-dir":   "`DIRECTORY` to which the agent copied weft-cni, whose copies there are removed; empty removes none",
}

func newUninstall(planes dataplanes.Planes) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take away what the agent left on this node",
		Long: `uninstall removes from this node all that an agent of Weft put there: the CNI
configuration and plug-ins, routes, devices and packet filters, its sockets and
state. What is not Weft's stays. It stops no agent, and does nothing while one
runs here, or while pods have interfaces of Weft, unless --force takes those away
as well. It may be run again.

It takes the agent's own flags; those that have nothing to do with it are ignored.`,
		Example: "  weft-agent uninstall\n  weft-agent uninstall --force --cni-bin-dir /usr/lib/cni",
		Args:    cobra.NoArgs,
	}
	var f flags
	f.add(cmd)
	logger := daemon.LogFlag(cmd)
	var known places
	concerned := pflag.NewFlagSet("", pflag.ContinueOnError)
	known.addFlags(concerned)
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		flag.Hidden = concerned.Lookup(flag.Name) == nil
		if usage, ok := removes[flag.Name]; ok {
			flag.Usage = usage
		}
	})
	force := cmd.Flags().Bool("force", false, "take away the interfaces of pods that still run, which cuts them off")
	wait := cmd.Flags().Duration("wait", 0, "`TIME` to wait for the agent on this node to end")
	stay := cmd.Flags().Bool("stay", false, "when all is done, do nothing until told to end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if os.Geteuid() != 0 {
			return errors.New("uninstall needs root: it changes the node's network")
		}
		log, err := logger()
		if err != nil {
			return err
		}
		r := &removal{places: f.places, planes: planes, force: *force, out: cmd.OutOrStdout(), log: log}
		if err := r.run(cmd.Context(), *wait); err != nil {
			return err
		}
		if *stay {
			<-cmd.Context().Done()
		}
		return nil
	}
	return cmd
}

// removal takes away what an agent left on the node.
type removal struct {
	places
	planes dataplanes.Planes
	force  bool
	out    io.Writer
	log    *slog.Logger
	// done says that something was removed.
	done bool
}

func (r *removal) removed(what string) {
	r.done = true
	fmt.Fprintln(r.out, "removed", what)
}

// run does it all in an order that a run which was killed can be taken up
// again in: a step never takes what a later one needs to recognise its own.
func (r *removal) run(ctx context.Context, wait time.Duration) error {
	if err := r.awaitAgent(ctx, wait); err != nil {
		return err
	}
	pods, err := podlink.List()
	if err != nil {
		return err
	}
	if len(pods) > 0 && !r.force {
		return fmt.Errorf("pods on this node still have their network from Weft, %d interfaces, as %s: end the pods, or give --force to cut them off", len(pods), describe(pods[0]))
	}
	// All is tried, so that one thing in the way leaves nothing else behind.
	var errs []error
	install := cni.Install{ConfFile: r.confFile, BinDir: r.binDir}
	if shim, err := beside(cni.ShimName); err == nil {
		// What the agent would copy is no copy.
		install.Shim = shim
	}
	files, err := install.Remove()
	for _, f := range files {
		r.removed(f)
	}
	errs = append(errs, err, r.removeSubnetFile())
	for _, name := range r.planes.Names() {
		errs = append(errs, r.removeDataPlane(ctx, name))
	}
	held, err := hold.Remove()
	for _, a := range held {
		r.removed("address " + a.String() + " of a VirtualAddress")
	}
	errs = append(errs, err)
	for _, p := range pods {
		if err := podlink.Remove(p.Name, p.Index); err != nil {
			errs = append(errs, err)
			continue
		}
		r.removed("interface " + describe(p))
	}
	// The journal has its lock and what replaces it beside it.
	var left []string
	patterns, dirs := namesLeft(r.runDir)
	patterns = append(patterns, agent.JournalName+"*", agent.SocketName, agent.HTTPSocketName)
	for _, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join(r.runDir, pattern))
		left, errs = append(left, found...), append(errs, err)
	}
	for _, path := range left {
		errs = append(errs, r.removeFile(path))
	}
	for _, dir := range dirs {
		errs = append(errs, r.removeDir(filepath.Join(r.runDir, dir)))
	}
	errs = append(errs, r.removeDir(r.runDir))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if !r.done {
		fmt.Fprintln(r.out, "nothing of Weft is on this node")
	}
	return nil
}

// namesLeft returns which files of names in a directory an agent has left there, as patterns, and
// which directories. The records have what replaces them beside them. The socket of a name server
// that runs still is that one's to remove, and what it has mounted stays in its place; what is not
// its to remove is another name of that socket.
func namesLeft(runDir string) (files, dirs []string) {
	at, former := filepath.Join(runDir, agent.NameSocketName), filepath.Join(runDir, agent.FormerNameSocketName)
	files = []string{agent.RecordsName + "*", agent.FormerRecordsName + "*"}
	runs, formerRuns := answers(at), answers(former)
	if runs && formerRuns {
		one, oneErr := os.Lstat(at)
		other, otherErr := os.Lstat(former)
		formerRuns = oneErr != nil || otherErr != nil || !os.SameFile(one, other)
	}
	if !runs {
		files = append(files, agent.NameSocketName+"*")
	}
	if !formerRuns {
		files = append(files, agent.FormerNameSocketName+"*")
	}
	if !runs && !formerRuns {
		dirs = agent.NameDirs
	}
	return files, dirs
}

// answers reports whether somebody listens at a Unix socket.
func answers(path string) bool {
	for _, kind := range []string{"unix", "unixpacket"} {
		if c, err := net.DialTimeout(kind, path, time.Second); err == nil {
			c.Close()
			return true
		}
	}
	return false
}

// awaitAgent fails if an agent answers on this node, after waiting for its end.
func (r *removal) awaitAgent(ctx context.Context, wait time.Duration) error {
	path := filepath.Join(r.runDir, agent.SocketName)
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		if !answers(path) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("an agent runs on this node and answers at %s: stop it first", path)
		case <-time.After(time.Second):
		}
	}
}

// describe names a pod's interface.
func describe(end podlink.HostEnd) string {
	stamp, err := podlink.ParseStamp(end.Alias)
	if err != nil {
		return end.Name
	}
	var words []string
	for _, a := range stamp.Addresses {
		words = append(words, plan.Address{Network: stamp.Network, IP: a}.String())
	}
	return fmt.Sprintf("%s with %s of container %s", end.Name, strings.Join(words, ","), stamp.ContainerID)
}

func (r *removal) removeDataPlane(ctx context.Context, name string) error {
	plane, err := r.planes.New(name, r.log)
	if err != nil {
		return fmt.Errorf("data plane %s: %w", name, err)
	}
	defer plane.Close()
	if err := plane.Remove(ctx); err != nil {
		return fmt.Errorf("data plane %s: %w", name, err)
	}
	if w, ok := plane.(interface{ Writes() uint64 }); ok && w.Writes() > 0 {
		r.removed(fmt.Sprintf("what data plane %s had in the kernel, with %d changes", name, w.Writes()))
	}
	return nil
}

// removeSubnetFile removes the file if it tells the subnet that this node has
// from Weft. flanneld writes one just like it.
func (r *removal) removeSubnetFile() error {
	content, err := os.ReadFile(r.subnetFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	own, err := ownAddresses()
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(content)) {
		_, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		// FLANNEL_SUBNET is the node's gateway in the subnet.
		if p, err := netip.ParsePrefix(value); err == nil && own[p.Addr()] {
			return r.removeFile(r.subnetFile)
		}
	}
	fmt.Fprintf(r.out, "left %s: the subnet in it is not that of Weft's interfaces\n", r.subnetFile)
	return nil
}

// ownAddresses are the addresses of Weft's interfaces on the node.
func ownAddresses() (map[netip.Addr]bool, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	own := make(map[netip.Addr]bool)
	for _, l := range links {
		if !datapath.OwnsInterface(l.Name) {
			continue
		}
		addresses, err := l.Addrs()
		if err != nil {
			continue // it is gone
		}
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				own[p.Addr()] = true
			}
		}
	}
	return own, nil
}

func (r *removal) removeFile(path string) error {
	err := os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		r.removed(path)
	}
	return err
}

// removeDir removes a directory unless something else is in it, or it is where
// another file system is mounted, as in a container.
func (r *removal) removeDir(path string) error {
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(entries) > 0:
		fmt.Fprintf(r.out, "left %s: there is %s in it\n", path, entries[0].Name())
		return nil
	}
	if err := os.Remove(path); err != nil {
		fmt.Fprintf(r.out, "left %s, which is empty: %v\n", path, errors.Unwrap(err))
		return nil
	}
	r.removed(path)
	return nil
}
