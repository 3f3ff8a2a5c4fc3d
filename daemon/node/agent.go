// Package node is the command line of weft-agent: New runs a node's agent. Its
// command drops shows what is dropped on the node, and uninstall takes away
// what an agent leaves there.
package node

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/weftnet/weft/agent"
	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/cni"
	"github.com/weftnet/weft/daemon"
	"github.com/weftnet/weft/datapath/dataplanes"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
)

// places are where an agent leaves things on the node's disk.
type places struct {
	runDir, subnetFile string
	confFile, binDir   string
}

// defaultRunDir is the agent's --run-dir where none is given.
const defaultRunDir = "/run/weft"

func (p *places) addFlags(f *pflag.FlagSet) {
	f.StringVar(&p.runDir, "run-dir", defaultRunDir, "`DIRECTORY` of the agent's own, made accessible to root alone, for sockets and the journal of pods' addresses; must not survive a reboot")
	f.StringVar(&p.subnetFile, "subnet-file", flannel.DefaultSubnetFile, "`FILE` for other programs to find the node's subnet in, as flanneld writes it")
	f.StringVar(&p.confFile, "cni-conf-file", "/etc/cni/net.d/10-weft.conflist", "`FILE` to write the CNI configuration to once pods can be networked; empty writes none")
	f.StringVar(&p.binDir, "cni-bin-dir", "/opt/cni/bin", "`DIRECTORY` in which the runtime looks for CNI plug-ins, to copy weft-cni to; empty copies nothing")
}

// flags are those of the agent.
type flags struct {
	places
	connection  daemon.Connection
	name        string
	ips         []string
	register    bool
	listen      string
	leaseTTL    time.Duration
	repairEvery time.Duration
}

func (f *flags) add(cmd *cobra.Command) {
	f.connection.AddFlags(cmd)
	set := cmd.Flags()
	// Agents before had it: where one is replaced, its command line may still.
	const backend = "cni-portmap-backend"
	set.String(backend, "", "")
	if err := set.MarkDeprecated(backend, "ports of the node are Weft's own work; leave it out"); err != nil {
		panic(err)
	}
	set.StringVar(&f.name, "node-name", "", "the node's `NAME` (default: the host name)")
	set.StringSliceVar(&f.ips, "node-ip", nil, "the node's own `ADDRESSES`, at most one of each family (default: found by the default route)")
	set.BoolVar(&f.register, "register-node", false, "create the Node object, where no kubelet does")
	f.places.addFlags(set)
	set.StringVar(&f.listen, "listen", "", "`ADDRESS` of /healthz, /readyz and /metrics, as 0.0.0.0:9880 (default: none but the socket http.sock in --run-dir)")
	set.DurationVar(&f.leaseTTL, "lease-ttl", 0, "`TIME` after which a dead agent counts as dead (default 40s on Kubernetes, 15s on etcd)")
	set.DurationVar(&f.repairEvery, "repair-every", 30*time.Second, "`TIME` between looks for what others changed in the node's network")
}

// New returns the command that runs a node's agent, on one of some data planes.
func New(planes dataplanes.Planes) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "weft-agent",
		Short: "Run the agent of a node",
		Long: `weft-agent networks the pods of the node it runs on: it answers the container
runtime's CNI requests and makes the node do what the cluster's objects say.
When it ends, pods keep their network; when it starts again, it adopts them.`,
		Example: `  weft-agent --etcd-endpoints https://10.0.0.1:2379 --etcd-cacert ca.pem
  weft-agent --node-name node1 --node-ip 10.0.0.11,fd00::11 --register-node --etcd-endpoints http://10.0.0.1:2379
  weft-agent --registry kubernetes --kubernetes-api https://10.0.0.1:6443 --node-name node1`,
		Args:          cobra.NoArgs,
		Version:       daemon.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetHelpCommand(&cobra.Command{Hidden: true})
	var f flags
	f.add(cmd)
	logger := daemon.LogFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log, err := logger()
		if err != nil {
			return err
		}
		config, err := f.config(planes)
		if err != nil {
			return err
		}
		config.Log = log
		settings, err := f.connection.Settings(os.Getenv, nil)
		if err != nil {
			return err
		}
		if config.LeaseTTL, err = settings.LeaseTTL(f.leaseTTL, 15*time.Second, 40*time.Second); err != nil {
			return err
		}
		reg, err := settings.Open(daemon.Use{Program: "weft-agent", Log: log,
			// What runs on other nodes is not this one's business. This holds for
			// every List and Watch of Pods in the agent: a plug-in that compiles
			// from the pods of all nodes needs a second Kind, without the selector.
			Fields: map[*registry.Kind]string{api.Pod: "spec.nodeName=" + config.Node}})
		if err != nil {
			return err
		}
		defer reg.Close()
		config.Registry, config.Plugin, config.Collectors = reg, plugins.Finder(reg.Serves), daemon.Collectors(reg)
		return agent.Run(cmd.Context(), config)
	}
	cmd.AddCommand(newDrops(), newService(), newTrace(), newUninstall(planes))
	return cmd
}

// config is what the flags say of the agent itself.
func (f *flags) config(planes dataplanes.Planes) (agent.Config, error) {
	config := agent.Config{
		Node: f.name, RegisterNode: f.register, DataPlane: planes.New, DataPlanes: planes.Names(),
		RunDir: f.runDir, SubnetFile: f.subnetFile,
		CNI: cni.Install{ConfFile: f.confFile, BinDir: f.binDir}, Listen: f.listen,
		AnswerChecks: true, RepairEvery: f.repairEvery,
	}
	if config.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			return config, fmt.Errorf("the host's name for the node: %w (give --node-name)", err)
		}
		config.Node = strings.ToLower(host)
	}
	for _, s := range f.ips {
		a, err := netip.ParseAddr(strings.TrimSpace(s))
		if err != nil {
			return config, fmt.Errorf("--node-ip %q is no IP address", s)
		}
		if !a.IsGlobalUnicast() {
			return config, fmt.Errorf("--node-ip %s is no address that other nodes can send to; give one that an interface of the node has", a)
		}
		config.NodeIPs = append(config.NodeIPs, a.Unmap())
	}
	if errs := validation.IsDNS1123Subdomain(config.Node); len(errs) > 0 {
		return config, fmt.Errorf("--node-name %q is no name of a Node: %s", config.Node, errs[0])
	}
	if f.repairEvery < time.Second {
		return config, fmt.Errorf("--repair-every %s must be at least a second", f.repairEvery)
	}
	if f.binDir != "" {
		var err error
		if config.CNI.Shim, err = beside(cni.ShimName); err != nil {
			return config, err
		}
	}
	return config, nil
}

// beside returns the path of another program in the directory of this one.
func beside(program string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(self), program)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%s must lie beside %s: %w", program, filepath.Base(self), err)
	} else if err != nil {
		return "", err
	}
	return path, nil
}
