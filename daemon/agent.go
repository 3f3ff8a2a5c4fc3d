package daemon

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/agent"
	"github.com/weftnet/weft/cni"
	"github.com/weftnet/weft/datapath/dataplanes"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry/etcd"
)

// NewAgent returns the command that runs a node's agent.
func NewAgent() *cobra.Command {
	c := &Connection{}
	cmd := &cobra.Command{
		Use:   "weft-agent",
		Short: "Run the agent of a node",
		Long: `weft-agent networks the pods of the node it runs on: it answers the container
runtime's CNI requests and makes the node do what the cluster's objects say.
When it ends, pods keep their network; when it starts again, it adopts them.`,
		Example: `  weft-agent --etcd-endpoints https://10.0.0.1:2379 --etcd-cacert ca.pem
  weft-agent --node-name node1 --node-ip 10.0.0.11 --register-node --etcd-endpoints http://10.0.0.1:2379`,
		Args:          cobra.NoArgs,
		Version:       Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.AddFlags(cmd)
	logger := LogFlag(cmd)
	f := cmd.Flags()
	name := f.String("node-name", "", "the node's `NAME` (default: the host name)")
	ips := f.StringSlice("node-ip", nil, "the node's own `ADDRESSES`, at most one of each family (default: found by the default route)")
	register := f.Bool("register-node", false, "create the Node object, where no kubelet does")
	runDir := f.String("run-dir", "/run/weft", "`DIRECTORY` for sockets and the journal of pods' addresses; must not survive a reboot")
	stateDir := f.String("state-dir", "/var/lib/weft", "`DIRECTORY` for what must survive a reboot")
	subnetFile := f.String("subnet-file", flannel.DefaultSubnetFile, "`FILE` for other programs to find the node's subnet in, as flanneld writes it")
	confFile := f.String("cni-conf-file", "/etc/cni/net.d/10-weft.conflist", "`FILE` to write the CNI configuration to once pods can be networked; empty writes none")
	binDir := f.String("cni-bin-dir", "/opt/cni/bin", "`DIRECTORY` in which the runtime looks for CNI plug-ins, to copy weft-cni to; empty copies nothing")
	listen := f.String("listen", "", "`ADDRESS` of /healthz, /readyz and /metrics, as 0.0.0.0:9880 (default: none but the socket http.sock in --run-dir)")
	ttl := f.Duration("lease-ttl", 15*time.Second, "`TIME` after which a dead agent counts as dead")
	repair := f.Duration("repair-every", 30*time.Second, "`TIME` between looks for what others changed in the node's network")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log, err := logger()
		if err != nil {
			return err
		}
		config := agent.Config{
			Node: *name, RegisterNode: *register, DataPlane: dataplanes.New,
			RunDir: *runDir, StateDir: *stateDir, SubnetFile: *subnetFile,
			CNI: cni.Install{ConfFile: *confFile, BinDir: *binDir}, Listen: *listen,
			LeaseTTL: *ttl, RepairEvery: *repair, Log: log,
		}
		if config.Node == "" {
			host, err := os.Hostname()
			if err != nil {
				return fmt.Errorf("the host's name for the node: %w (give --node-name)", err)
			}
			config.Node = strings.ToLower(host)
		}
		for _, s := range *ips {
			a, err := netip.ParseAddr(s)
			if err != nil {
				return fmt.Errorf("--node-ip %q is no IP address", s)
			}
			config.NodeIPs = append(config.NodeIPs, a.Unmap())
		}
		if *ttl < time.Second || *repair < time.Second {
			return fmt.Errorf("--lease-ttl %s and --repair-every %s must be at least a second", *ttl, *repair)
		}
		if *binDir != "" {
			if config.CNI.Shim, err = beside("weft-cni"); err != nil {
				return err
			}
		}
		settings, err := c.Settings(os.Getenv, nil)
		if err != nil {
			return err
		}
		settings.Log = log
		reg, err := etcd.Open(settings)
		if err != nil {
			return err
		}
		defer reg.Close()
		config.Registry, config.Plugin = reg, plugins.Finder(reg.Serves)
		return agent.Run(cmd.Context(), config)
	}
	return cmd
}

// beside returns the path of another program in the directory of this one.
func beside(program string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(self), program)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s must lie beside %s: %w", program, filepath.Base(self), err)
	}
	return path, nil
}
