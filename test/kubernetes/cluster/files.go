package cluster

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"text/template"
)

//go:embed manifests/coredns.yaml
var corednsManifest string

// Where a node's programs find their configuration.
const (
	containerdConfig = "/etc/containerd/config.toml"
	containerdSocket = "/run/containerd/containerd.sock"
	kubeletConfig    = "/etc/kubernetes/kubelet.yaml"
	kubeProxyConfig  = "/etc/kubernetes/kube-proxy.yaml"
)

// pauseImage is the image of a pod's first container.
const pauseImage = "registry.k8s.io/pause:3.10.1"

// credentials are what the control plane issued for a node.
type credentials struct {
	ca                                 []byte
	kubeletCert, kubeletKey            []byte
	kubeletKubeconfig, proxyKubeconfig []byte
}

// files returns what is in a node's files, by path: all that an administrator
// would have put there. It is a function of the configuration alone.
func (c Config) files(n Node, secret credentials) map[string]string {
	hosts := "127.0.0.1 localhost\n::1 localhost\n"
	for _, a := range n.Addresses {
		hosts += fmt.Sprintf("%s %s\n", a, n.Name)
	}
	out := map[string]string{
		"/etc/hostname":    n.Name + "\n",
		"/etc/hosts":       hosts,
		"/etc/resolv.conf": c.resolvConf(),
		// Any number that the nodes do not share.
		"/etc/machine-id":                    fmt.Sprintf("%032x\n", n.number),
		containerdConfig:                     render(containerdTemplate, c, n),
		kubeletConfig:                        render(kubeletTemplate, c, n),
		"/etc/kubernetes/ca.crt":             string(secret.ca),
		"/etc/kubernetes/kubelet.crt":        string(secret.kubeletCert),
		"/etc/kubernetes/kubelet.key":        string(secret.kubeletKey),
		"/etc/kubernetes/kubelet.kubeconfig": string(secret.kubeletKubeconfig),
	}
	if c.Proxy != NoProxy {
		out[kubeProxyConfig] = render(kubeProxyTemplate, c, n)
		out["/etc/kubernetes/kube-proxy.kubeconfig"] = string(secret.proxyKubeconfig)
	}
	if c.Network == Bridge {
		out["/etc/cni/net.d/10-bridge.conflist"] = bridgeNetwork(n)
	}
	return out
}

// arguments returns the command line of a node's program, without the
// program's name.
func (c Config) arguments(program string, n Node) []string {
	var args []string
	switch program {
	case containerd:
		args = []string{"--config=" + containerdConfig}
	case kubelet:
		args = []string{
			"--config=" + kubeletConfig,
			"--kubeconfig=/etc/kubernetes/kubelet.kubeconfig",
			"--hostname-override=" + n.Name,
			"--node-ip=" + join(n.Addresses),
			"--node-labels=topology.kubernetes.io/zone=" + c.zone(n),
			"--v=2",
		}
	case kubeProxy:
		args = []string{"--config=" + kubeProxyConfig, "--v=2"}
	}
	return append(args, c.Flags[program]...)
}

// programs are those that a node runs, in the order in which they start.
func (c Config) programs() []string {
	if c.Proxy == NoProxy {
		return []string{containerd, kubelet}
	}
	return []string{containerd, kubelet, kubeProxy}
}

// resolvConf is what nodes ask. A node's own name server finds in it who is to be asked for names
// outside, who is nobody.
func (c Config) resolvConf() string {
	if c.DNS == NodeDNS {
		return "# no name server\n"
	}
	return "nameserver " + c.clusterDNS().String() + "\n"
}

// dns returns the manifest of CoreDNS.
func (c Config) dns() string {
	return strings.ReplaceAll(corednsManifest, "ADDRESS", c.clusterDNS().String())
}

// bridgeNetwork is a CNI configuration from the standard plug-ins.
func bridgeNetwork(n Node) string {
	var ranges [][]map[string]string
	var routes []map[string]string
	for _, p := range n.PodCIDRs {
		ranges = append(ranges, []map[string]string{{"subnet": p.String()}})
		any := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if p.Addr().Is6() {
			any = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		routes = append(routes, map[string]string{"dst": any.String()})
	}
	b, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0",
		"name":       "bridge",
		"plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
				"ipam": map[string]any{"type": "host-local", "ranges": ranges, "routes": routes},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
		},
	}, "", "  ")
	if err != nil {
		panic(err) // maps of strings marshal
	}
	return string(b) + "\n"
}

func join[T fmt.Stringer](values []T) string {
	var s []string
	for _, v := range values {
		s = append(s, v.String())
	}
	return strings.Join(s, ",")
}

// render fills in one of the templates below, which are checked by tests.
func render(t *template.Template, c Config, n Node) string {
	plugins := []string{"/opt/cni/bin"}
	if c.Network == Bridge {
		plugins = append(plugins, debianPlugins)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, map[string]any{
		"Node": n.Name, "Pause": pauseImage, "Socket": containerdSocket, "Plugins": plugins,
		"DNS": c.clusterDNS(), "PodCIDRs": join(c.PodCIDRs), "Proxy": c.Proxy, "Dual": len(c.PodCIDRs) > 1,
		"Any": anyAddress(n), "Runc": "runc",
	}); err != nil {
		panic(fmt.Errorf("%s: %w", t.Name(), err))
	}
	return b.String()
}

// debianPlugins is where Debian's containernetworking-plugins are.
const debianPlugins = "/usr/lib/cni"

// anyAddress is the wildcard address that takes connections of all the node's
// families.
func anyAddress(n Node) string {
	for _, a := range n.Addresses {
		if a.Is6() {
			return "::"
		}
	}
	return "0.0.0.0"
}

func parse(name, text string) *template.Template {
	return template.Must(template.New(name).Option("missingkey=error").Parse(text))
}

var containerdTemplate = parse(filepath.Base(containerdConfig), `version = 3
# What this kernel or a node in namespaces has no use for.
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.internal.v1.opt",
  "io.containerd.nri.v1.nri",
]

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{{.Pause}}"

[plugins."io.containerd.cri.v1.runtime"]
  # Root in a node may not lower a process's chance of being killed, and the
  # security modules are the machine's.
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = false
        BinaryName = "{{.Runc}}"
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [{{range $i, $p := .Plugins}}{{if $i}}, {{end}}"{{$p}}"{{end}}]
    conf_dir = "/etc/cni/net.d"
    use_internal_loopback = true
`)

var kubeletTemplate = parse(filepath.Base(kubeletConfig), `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: "{{.Any}}"
healthzBindAddress: 127.0.0.1
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: /etc/kubernetes/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: /etc/kubernetes/kubelet.crt
tlsPrivateKeyFile: /etc/kubernetes/kubelet.key
containerRuntimeEndpoint: unix://{{.Socket}}
clusterDNS: ["{{.DNS}}"]
clusterDomain: cluster.local
resolvConf: /etc/resolv.conf
# The node sees its part of the machine's control groups as all there is.
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
# Root in a node may not set these any other way.
oomScoreAdj: 0
maxOpenFiles: 20000
serializeImagePulls: false
# Images come from files; one that was removed could not be pulled again.
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard:
  memory.available: 100Mi
  nodefs.available: 1%
  nodefs.inodesFree: 1%
  imagefs.available: 1%
`)

var kubeProxyTemplate = parse(filepath.Base(kubeProxyConfig), `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: /etc/kubernetes/kube-proxy.kubeconfig}
mode: {{.Proxy}}
clusterCIDR: {{.PodCIDRs}}
hostnameOverride: {{.Node}}
oomScoreAdj: 0
# How many connections are tracked is for the machine to say; timeouts are a
# node's own.
conntrack: {maxPerCore: 0, min: 0}
`)
