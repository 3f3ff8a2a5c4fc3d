// Package controlplane runs the control plane of a real Kubernetes cluster:
// etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with
// certificates that it makes itself.
//
// A test that wants no more than an API server starts etcd and kube-apiserver
// on the loopback address:
//
//	cp, err := controlplane.Start(ctx, controlplane.Config{
//		Bin: bin, Dir: t.TempDir(),
//		Components: []controlplane.Component{controlplane.Etcd, controlplane.APIServer},
//	})
//	defer cp.Stop()
//	client, err := kubernetes.NewForConfig(cp.RESTConfig())
//
// A whole cluster runs all of them in the network namespace of its first node;
// see package cluster. Processes are children of the caller and end with it,
// however it ends.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/internal/process"
	"github.com/weftnet/weft/test/kubernetes/programs"
)

// Component is a program of the control plane, by the program's name.
type Component string

// The components, in the order in which they start.
const (
	Etcd              Component = "etcd"
	APIServer         Component = "kube-apiserver"
	ControllerManager Component = "kube-controller-manager"
	Scheduler         Component = "kube-scheduler"
)

// Components are all components, in the order in which they start.
func Components() []Component {
	return []Component{Etcd, APIServer, ControllerManager, Scheduler}
}

// Config says what to run. Bin and Dir must be given.
type Config struct {
	// Bin is the directory of the Kubernetes programs. etcd is taken from
	// there too, or else from PATH.
	Bin string
	// Dir is a directory for certificates, kubeconfigs, logs (COMPONENT.log)
	// and etcd's data. It may exist, but not hold a control plane.
	Dir string
	// NetNS is the path of the network namespace to run in; empty for the
	// caller's.
	NetNS string
	// Address is where the API server answers and what it says of itself, by
	// default 127.0.0.1. At a loopback address, free ports are used; at any
	// other, the usual ones (6443 for the API server).
	Address netip.Addr
	// Names and Addresses are what the API server's certificate holds for
	// besides Address, loopback addresses and the Service "kubernetes".
	Names     []string
	Addresses []netip.Addr
	// Components are what to run, by default all.
	Components []Component
	// ServiceCIDRs and PodCIDRs are the ranges of Services and pods, one for
	// each family, the first one's being the cluster's preferred family; by
	// default 10.96.0.0/16 and fd00:10:96::/112, and 10.244.0.0/16 and
	// fd00:10:244::/56.
	ServiceCIDRs, PodCIDRs []netip.Prefix
	// Flags are added to the components' own; of the same flag twice, the
	// program takes the last.
	Flags map[Component][]string
}

// The ranges of Services and pods, where Config does not say.
var (
	DefaultServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}
	DefaultPodCIDRs     = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")}
)

// withDefaults fills in what is not said, and refuses what cannot be.
func (c Config) withDefaults() (Config, error) {
	if c.Bin == "" || c.Dir == "" {
		return c, errors.New("a control plane needs a directory of programs (Bin) and one of its own (Dir)")
	}
	if c.Components == nil {
		c.Components = Components()
	}
	for _, name := range c.Components {
		if !slices.Contains(Components(), name) {
			return c, fmt.Errorf("%q is not a component of the control plane: use some of %v", name, Components())
		}
	}
	for _, needed := range []Component{Etcd, APIServer} {
		if !slices.Contains(c.Components, needed) {
			return c, fmt.Errorf("a control plane does not run without %s", needed)
		}
	}
	if !c.Address.IsValid() {
		c.Address = loopback
	}
	for _, cidrs := range []struct {
		what string
		set  *[]netip.Prefix
		or   []netip.Prefix
	}{{"ServiceCIDRs", &c.ServiceCIDRs, DefaultServiceCIDRs}, {"PodCIDRs", &c.PodCIDRs, DefaultPodCIDRs}} {
		if len(*cidrs.set) == 0 {
			*cidrs.set = cidrs.or
		}
		for i, p := range *cidrs.set {
			if !p.IsValid() || p != p.Masked() {
				return c, fmt.Errorf("%s: %s is not the prefix of a network", cidrs.what, p)
			}
			if i > 1 || i == 1 && p.Addr().Is4() == (*cidrs.set)[0].Addr().Is4() {
				return c, fmt.Errorf("%s: %v: Kubernetes takes one prefix, or one of each family", cidrs.what, *cidrs.set)
			}
		}
	}
	return c, nil
}

// ControlPlane is a control plane that was started. Its methods may be called
// at the same time.
type ControlPlane struct {
	config Config
	ports  ports
	// reserved are the ports until Stop.
	reserved reservations
	pki      *PKI
	starter  starter
	rest     *rest.Config

	mu        sync.Mutex
	processes map[Component]*child
	stopped   bool
}

// patience is how long a component has to end after SIGTERM.
const patience = 5 * time.Second

// Start makes a control plane with New and starts it.
func Start(ctx context.Context, config Config) (*ControlPlane, error) {
	c, err := New(config)
	if err != nil {
		return nil, err
	}
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// New prepares a control plane, with its certificates and kubeconfigs, and
// starts nothing.
func New(config Config) (*ControlPlane, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	pki, err := NewPKI(filepath.Join(config.Dir, "pki"))
	if err != nil {
		return nil, fmt.Errorf("control plane in %s: %w", config.Dir, err)
	}
	c := &ControlPlane{config: config, pki: pki, processes: make(map[Component]*child)}
	if c.ports, c.reserved, err = config.ports(); err != nil {
		return nil, err
	}
	if err := c.writeFiles(); err != nil {
		c.reserved.close()
		return nil, err
	}
	return c, nil
}

// Start starts the components and returns when the API server is ready. On an
// error, or when ctx ends before, nothing is left but the files in Dir.
func (c *ControlPlane) Start(ctx context.Context) error {
	var err error
	if c.starter, err = newStarter(c.config.NetNS); err != nil {
		return err
	}
	for _, component := range Components() {
		if !slices.Contains(c.config.Components, component) {
			continue
		}
		// What acts on the cluster ends when the API server does not know it
		// yet, so each waits for the one before.
		if err := c.Restart(ctx, component); err != nil {
			c.Stop()
			return err
		}
	}
	return nil
}

// ports finds where to listen, and keeps these ports until kept is closed.
func (c Config) ports() (found ports, kept reservations, err error) {
	if !c.Address.IsLoopback() {
		return usualPorts, nil, nil
	}
	err = within(c.NetNS, func() error {
		for _, port := range []*uint16{&found.etcd, &found.etcdPeer, &found.apiServer, &found.controllerManager, &found.scheduler} {
			one, err := reserve(c.Address)
			if err != nil {
				return err
			}
			*port, kept = one.port, append(kept, one)
		}
		return nil
	})
	if err != nil {
		kept.close()
	}
	return found, kept, err
}

// within runs f in the network namespace at path; empty is the caller's.
func within(path string, f func() error) error {
	if path == "" {
		return f()
	}
	return netns.Do(path, f)
}

// writeFiles makes the certificates and kubeconfigs that the flags name.
func (c *ControlPlane) writeFiles() error {
	server := Certificate{
		User: "kube-apiserver",
		Names: append([]string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local"}, c.config.Names...),
		Addresses: append([]netip.Addr{c.config.Address, loopback, netip.IPv6Loopback()}, c.config.Addresses...),
	}
	for _, p := range c.config.ServiceCIDRs {
		server.Addresses = append(server.Addresses, p.Addr().Next())
	}
	_, _, err1 := c.pki.IssueFiles("kube-apiserver", server)
	_, _, err2 := c.pki.IssueFiles("kubelet-client", Certificate{User: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}})
	_, _, err3 := c.pki.issueFiles(c.pki.frontProxy, "front-proxy-client", Certificate{User: "front-proxy-client"})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	for _, component := range []Component{ControllerManager, Scheduler} {
		b, err := c.Kubeconfig("system:" + string(component))
		if err != nil {
			return err
		}
		if err := create(filepath.Join(c.config.Dir, string(component)+".kubeconfig"), b); err != nil {
			return err
		}
	}
	admin, err := c.Kubeconfig("admin", "system:masters")
	if err != nil {
		return err
	}
	c.rest, err = clientcmd.RESTConfigFromKubeConfig(admin)
	if err != nil {
		return err
	}
	// Tests ask much at a time, and are not what the API server is to be
	// spared from.
	c.rest.QPS = -1
	if c.config.NetNS != "" {
		c.rest.Dial = c.Dial
	}
	return nil
}

// Bin returns the directory of the programs, which package programs knows. It
// is an error, for which a test may be skipped, when a component's program is
// missing.
func Bin(components ...Component) (string, error) {
	dir, err := programs.Dir()
	if err != nil {
		return "", err
	}
	for _, component := range components {
		if _, err := (Config{Bin: dir}).program(component); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// program returns the path of a component's program.
func (c Config) program(component Component) (string, error) {
	path := filepath.Join(c.Bin, string(component))
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w: build the programs with: make kubernetes-programs", err)
	}
	return path, nil
}

// Restart starts a component that does not run, with the ports and data that
// it had; one that runs is stopped first. For the API server, it waits until
// it is ready or ctx ends.
func (c *ControlPlane) Restart(ctx context.Context, component Component) error {
	program, err := c.config.program(component)
	if err != nil {
		return err
	}
	c.mu.Lock()
	if c.stopped || c.starter == nil {
		c.mu.Unlock()
		return fmt.Errorf("start %s: the control plane does not run", component)
	}
	c.processes[component].stop(patience)
	p, err := c.starter.start(c.Log(component), program, c.config.arguments(component, c.ports)...)
	if err == nil {
		c.processes[component] = p
	}
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("start %s: %w", component, err)
	}
	if component != APIServer {
		return nil
	}
	return c.ready(ctx, p)
}

// ready waits until the API server says that it is ready.
func (c *ControlPlane) ready(ctx context.Context, p *child) error {
	client, err := rest.HTTPClientFor(c.rest)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.rest.Host+"/readyz", nil)
	if err != nil {
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		answer, err := client.Do(request)
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New("it answers " + answer.Status)
		}
		select {
		case <-tick.C:
		case <-p.done:
			return fmt.Errorf("%s ended: %s%s", APIServer, p.cmd.ProcessState, process.Tail(p.log))
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s to be ready: %w (%w)%s", APIServer, ctx.Err(), err, process.Tail(p.log))
		}
	}
}

// Kill ends a component by SIGKILL and returns when it has gone.
func (c *ControlPlane) Kill(component Component) error {
	return c.with(component, func(p *child) error { p.stop(0); return nil })
}

// Terminate ends a component by SIGTERM, or by SIGKILL where that takes longer
// than five seconds, and returns when it has gone.
func (c *ControlPlane) Terminate(component Component) error {
	return c.with(component, func(p *child) error { p.stop(patience); return nil })
}

// Pause stops a component, by SIGSTOP, and returns when it does nothing any more,
// until Resume: connections stay open and are not answered.
func (c *ControlPlane) Pause(component Component) error {
	return c.with(component, func(p *child) error { return process.Pause(p.cmd.Process) })
}

// Resume undoes Pause.
func (c *ControlPlane) Resume(component Component) error {
	return c.with(component, func(p *child) error { return p.cmd.Process.Signal(syscall.SIGCONT) })
}

func (c *ControlPlane) with(component Component, f func(*child) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.processes[component]
	if !p.running() {
		return fmt.Errorf("%s does not run", component)
	}
	if err := f(p); err != nil {
		return fmt.Errorf("%s: %w", component, err)
	}
	return nil
}

// PID returns the process number of a component, 0 when it does not run.
func (c *ControlPlane) PID(component Component) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.processes[component]; p.running() {
		return p.cmd.Process.Pid
	}
	return 0
}

// Broken says which components ended without being told to, each with the end of its log; nil where none did.
func (c *ControlPlane) Broken() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []error
	for _, component := range Components() {
		if p := c.processes[component]; p != nil && !p.running() && !p.told.Load() {
			all = append(all, fmt.Errorf("%s ended: %s%s", component, p.cmd.ProcessState, process.Tail(p.log)))
		}
	}
	return errors.Join(all...)
}

// Stop ends everything that runs. The files stay. It may be called again.
func (c *ControlPlane) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped || c.starter == nil {
		return
	}
	c.stopped = true
	defer c.reserved.close()
	for _, component := range slices.Backward(Components()) {
		if p := c.processes[component]; p != nil {
			p.stop(patience)
		}
	}
	c.starter.stop()
}

// Server is the URL of the API server.
func (c *ControlPlane) Server() string {
	return url("https", c.config.Address, c.ports.apiServer)
}

// Etcd is the URL of etcd, which answers on the loopback address of the
// control plane's network namespace.
func (c *ControlPlane) Etcd() string { return url("http", loopback, c.ports.etcd) }

// PKI issues the cluster's certificates.
func (c *ControlPlane) PKI() *PKI { return c.pki }

// Log is the file of a component's output.
func (c *ControlPlane) Log(component Component) string {
	return filepath.Join(c.config.Dir, string(component)+".log")
}

// Kubeconfig makes a kubeconfig for a user and groups, as PKI.Kubeconfig does.
func (c *ControlPlane) Kubeconfig(user string, groups ...string) ([]byte, error) {
	return c.pki.Kubeconfig(c.Server(), user, groups...)
}

// RESTConfig returns a client configuration with all rights and without a
// limit on requests. It works from every network namespace.
func (c *ControlPlane) RESTConfig() *rest.Config { return rest.CopyConfig(c.rest) }

// Dial connects to an address from within the control plane's network
// namespace.
func (c *ControlPlane) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := within(c.config.NetNS, func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}
