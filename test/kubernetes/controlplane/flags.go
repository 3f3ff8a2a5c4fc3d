package controlplane

import (
	"fmt"
	"net/netip"
	"strings"
)

// ports are where the processes listen.
type ports struct{ etcd, etcdPeer, apiServer, controllerManager, scheduler uint16 }

// Port is where the API server answers, at an address that is not a loopback
// address.
const Port = 6443

// usualPorts are those of a namespace that has no others.
var usualPorts = ports{etcd: 2379, etcdPeer: 2380, apiServer: Port, controllerManager: 10257, scheduler: 10259}

var loopback = netip.MustParseAddr("127.0.0.1")

func url(scheme string, address netip.Addr, port uint16) string {
	return scheme + "://" + netip.AddrPortFrom(address, port).String()
}

// arguments returns the command line of a component, without the program's
// name. It is a function of the configuration alone; files are in dir.
func (c Config) arguments(component Component, at ports) []string {
	pki := c.Dir + "/pki/"
	kubeconfig := c.Dir + "/" + string(component) + ".kubeconfig"
	var args []string
	switch component {
	case Etcd:
		client, peer := url("http", loopback, at.etcd), url("http", loopback, at.etcdPeer)
		args = []string{
			"--name=etcd",
			"--data-dir=" + c.Dir + "/etcd",
			// The data does not outlive the machine, so that nothing is lost
			// by not waiting for the disk.
			"--unsafe-no-fsync",
			"--listen-client-urls=" + client,
			"--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer,
			"--initial-advertise-peer-urls=" + peer,
			"--initial-cluster=etcd=" + peer,
		}
	case APIServer:
		args = []string{
			"--advertise-address=" + c.Address.String(),
			"--secure-port=" + fmt.Sprint(at.apiServer),
			"--etcd-servers=" + url("http", loopback, at.etcd),
			"--client-ca-file=" + pki + "ca.crt",
			"--tls-cert-file=" + pki + "kube-apiserver.crt",
			"--tls-private-key-file=" + pki + "kube-apiserver.key",
			"--kubelet-certificate-authority=" + pki + "ca.crt",
			"--kubelet-client-certificate=" + pki + "kubelet-client.crt",
			"--kubelet-client-key=" + pki + "kubelet-client.key",
			"--kubelet-preferred-address-types=InternalIP",
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file=" + pki + "sa.pub",
			"--service-account-signing-key-file=" + pki + "sa.key",
			"--requestheader-client-ca-file=" + pki + "front-proxy-ca.crt",
			"--requestheader-allowed-names=front-proxy-client",
			"--requestheader-username-headers=X-Remote-User",
			"--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--proxy-client-cert-file=" + pki + "front-proxy-client.crt",
			"--proxy-client-key-file=" + pki + "front-proxy-client.key",
			"--enable-aggregator-routing=true",
			"--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction",
			"--allow-privileged=true",
			"--service-cluster-ip-range=" + join(c.ServiceCIDRs),
			"--profiling=false",
		}
		if c.Address.IsLoopback() {
			// The Service "kubernetes" cannot have a loopback address behind it.
			args = append(args, "--bind-address="+c.Address.String(), "--endpoint-reconciler-type=none")
		} else {
			args = append(args, "--bind-address=::")
		}
	case ControllerManager:
		args = append(kubernetesClient(kubeconfig, at.controllerManager),
			"--root-ca-file="+pki+"ca.crt",
			"--cluster-signing-cert-file="+pki+"ca.crt",
			"--cluster-signing-key-file="+pki+"ca.key",
			"--service-account-private-key-file="+pki+"sa.key",
			"--use-service-account-credentials=true",
			"--controllers=*,bootstrapsigner,tokencleaner",
			"--service-cluster-ip-range="+join(c.ServiceCIDRs),
			"--cluster-cidr="+join(c.PodCIDRs),
			"--allocate-node-cidrs=true",
		)
		// A single mask is not accepted for two families.
		for _, p := range c.PodCIDRs {
			if p.Addr().Is4() {
				args = append(args, "--node-cidr-mask-size-ipv4=24")
			} else {
				args = append(args, "--node-cidr-mask-size-ipv6=64")
			}
		}
	case Scheduler:
		args = kubernetesClient(kubeconfig, at.scheduler)
	}
	return append(args, c.Flags[component]...)
}

// kubernetesClient are the flags of both components that act on the cluster
// through the API.
func kubernetesClient(kubeconfig string, port uint16) []string {
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=" + loopback.String(),
		"--secure-port=" + fmt.Sprint(port),
		// There is one of each.
		"--leader-elect=false",
		"--profiling=false",
	}
}

func join(prefixes []netip.Prefix) string {
	var s []string
	for _, p := range prefixes {
		s = append(s, p.String())
	}
	return strings.Join(s, ",")
}
