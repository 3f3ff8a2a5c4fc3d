package flannel

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/etcd"
)

const (
	network  = "10.5.0.0/16"
	network6 = "fd00:5::/48"
)

// cluster is an underlay with the nodes and what they share.
type cluster struct {
	*underlay
	flanneld string
	weft     string // the directory of Weft's programs
	// flanneldCommand and weftFlags say how each daemon finds what nodes share.
	flanneldCommand func(*node) []string
	weftFlags       func(*node) []string
	// held is what a node holds as its own, in a form to compare.
	held     func(*node) (string, error)
	registry *etcd.Registry // nil where it is not etcd
}

// node is a machine that runs flanneld or Weft's agent.
type node struct {
	*machine
	c      *cluster
	ip     netip.Addr
	ip6    netip.Addr
	daemon *process
	weft   bool // the daemon is Weft's agent
}

func findFlanneld(t *testing.T) string {
	path := os.Getenv("WEFT_FLANNELD")
	if cache, err := os.UserCacheDir(); path == "" && err == nil {
		path = filepath.Join(cache, "weft", "flanneld")
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("flanneld is not at %q: build it with `make flanneld`, or say in WEFT_FLANNELD where it is", path)
	}
	return path
}

// programs is the directory that build made, if any.
var programs string

// build builds Weft's programs once for all tests.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "weft-flannel-")
	if err != nil {
		return "", err
	}
	programs = dir
	c := exec.Command("go", "build", "-trimpath", "-o", dir, "github.com/weftnet/weft/cmd/weft-agent", "github.com/weftnet/weft/cmd/weft-controller", "github.com/weftnet/weft/cmd/weft-cni")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("%s: %w: %s", c, err, out)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if programs != "" {
		os.RemoveAll(programs)
	}
	os.Exit(code)
}

// newUnderlayCluster makes a cluster whose nodes share nothing yet.
func newUnderlayCluster(t *testing.T, programs ...string) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	c := &cluster{flanneld: findFlanneld(t)}
	for _, program := range append(programs, "nft", "nsenter") {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s", program)
		}
	}
	var err error
	if c.weft, err = build(); err != nil {
		t.Fatal(err)
	}
	c.underlay = newUnderlay(t)
	c.serve(podPort)
	return c
}

// newCluster makes a cluster on etcd.
func newCluster(t *testing.T, config string) *cluster {
	t.Helper()
	c := newUnderlayCluster(t, "etcd")
	c.flanneldCommand = func(*node) []string { return []string{c.flanneld, "-etcd-endpoints", c.etcd()} }
	c.weftFlags = func(*node) []string { return []string{"--etcd-endpoints", c.etcd(), "--register-node"} }
	c.held = func(n *node) (string, error) {
		l, err := n.lease()
		if err != nil {
			return "", err
		}
		return l.Name, nil
	}
	c.start("etcd", "--data-dir", "data", "--log-level", "error",
		"--listen-client-urls", c.etcd()+",unix://etcd:0", "--advertise-client-urls", c.etcd(),
		"--listen-peer-urls", "unix://peer:0", "--initial-advertise-peer-urls", "http://localhost:2380", "--initial-cluster", "default=http://localhost:2380")
	// etcd makes its socket in its own directory, by that name.
	var err error
	if c.registry, err = etcd.Open(etcd.Config{Endpoints: []string{"unix://" + filepath.Join(c.dir, "etcd:0")}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.registry.Close() })
	eventually(t, "etcd", func() error { return c.registry.Ping(t.Context()) })

	flannelConfig := &flannel.Config{Spec: json.RawMessage(config)}
	flannelConfig.Name = flannel.ConfigName
	c.create(flannel.ConfigKind, flannelConfig)
	clusterConfig := &api.ClusterConfig{Spec: api.ClusterConfigSpec{Plugin: flannel.Name}}
	clusterConfig.Name = api.DefaultName
	c.create(api.ClusterConfigKind, clusterConfig)
	return c
}

func (c *cluster) etcd() string { return "http://172.30.0.254:2379" }

func (c *cluster) create(k *registry.Kind, o registry.Object) {
	c.t.Helper()
	if _, err := c.registry.Create(c.t.Context(), k, o); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) newNode(name string, link, host int) *node {
	n := &node{machine: newMachine(c.t, name), c: c,
		ip: netip.MustParseAddr(fmt.Sprintf("172.30.%d.%d", link, host)), ip6: netip.MustParseAddr(fmt.Sprintf("fd00:30:%d::%d", link, host))}
	c.attach(n.machine, link, host)
	n.serve(podPort)
	return n
}

func (n *node) subnetFile() string { return filepath.Join(n.dir, "subnet.env") }

func (n *node) startFlanneld() {
	n.t.Helper()
	n.weft = false
	command := append(n.c.flanneldCommand(n), "-iface", "eth0", "-ip-masq", "-subnet-file", n.subnetFile())
	n.daemon = n.start(command[0], command[1:]...)
	eventually(n.t, n.name+": flanneld is up", func() error {
		if !strings.Contains(n.daemon.output(), "Running backend") {
			return errors.New("it does not run its backend yet")
		}
		return nil
	})
}

func (n *node) startWeft() {
	n.t.Helper()
	conflist := filepath.Join(n.dir, "weft.conflist")
	os.Remove(conflist) // is written anew when pods can be networked
	n.weft = true
	n.daemon = n.start(filepath.Join(n.c.weft, "weft-agent"), append(n.c.weftFlags(n), "--node-name", n.name, "--node-ip", n.ip.String()+","+n.ip6.String(),
		"--run-dir", filepath.Join(n.dir, "run"), "--subnet-file", n.subnetFile(),
		"--cni-conf-file", conflist, "--cni-bin-dir", filepath.Join(n.dir, "bin"), "--repair-every", "1s", "--log-level", "debug")...)
	eventually(n.t, n.name+": the agent is ready", func() error {
		_, err := os.Stat(conflist)
		return err
	})
}

// weftPod adds a pod with the configuration that the agent wrote.
func (n *node) weftPod(name string) *pod {
	n.t.Helper()
	conf, err := libcni.ConfListFromFile(filepath.Join(n.dir, "weft.conflist"))
	if err != nil {
		n.t.Fatal(err)
	}
	return n.addPod(name, conf, filepath.Join(n.dir, "bin"), systemPlugins)
}

// flannelPod adds a pod as flannel's own CNI plug-in would have bridge and
// host-local do it, from the subnet file.
func (n *node) flannelPod(name string) *pod {
	n.t.Helper()
	env := n.subnetEnv()
	ranges := fmt.Sprintf(`[{"subnet":%q}]`, netip.MustParsePrefix(env["FLANNEL_SUBNET"]).Masked())
	if v6 := env["FLANNEL_IPV6_SUBNET"]; v6 != "" {
		ranges += fmt.Sprintf(`,[{"subnet":%q}]`, netip.MustParsePrefix(v6).Masked())
	}
	conf, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"bridge","bridge":"cni0","mtu":%s,
		"isDefaultGateway":true,"hairpinMode":true,"ipMasq":false,
		"ipam":{"type":"host-local","ranges":[%s],"dataDir":%q}}]}`,
		env["FLANNEL_MTU"], ranges, filepath.Join(n.dir, "host-local")))
	if err != nil {
		n.t.Fatal(err)
	}
	return n.addPod(name, conf, systemPlugins)
}

func (n *node) subnetEnv() map[string]string {
	n.t.Helper()
	content, err := os.ReadFile(n.subnetFile())
	if err != nil {
		n.t.Fatal(err)
	}
	env := map[string]string{}
	for line := range strings.Lines(string(content)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		env[name] = value
	}
	return env
}

// lease returns the lease that names the node's address.
func (n *node) lease() (*flannel.Lease, error) {
	objects, _, err := n.c.registry.List(n.t.Context(), flannel.LeaseKind)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		l := o.(*flannel.Lease)
		if a, err := flannel.ParseAttributes(l.Spec); err == nil && a.PublicIP == n.ip {
			return l, nil
		}
	}
	return nil, fmt.Errorf("%s has no lease", n.name)
}

// family is what of a cluster is of one family of addresses.
type family struct {
	name    string
	pod     func(*pod) netip.Addr
	node    func(*node) netip.Addr
	outside string
}

var families = []family{
	{"IPv4", func(p *pod) netip.Addr { return p.address }, func(n *node) netip.Addr { return n.ip }, outside},
	{"IPv6", func(p *pod) netip.Addr { return p.address6 }, func(n *node) netip.Addr { return n.ip6 }, outside6},
}

// meet checks, by each family that pods have, that they see each other under their
// own addresses, see nodes and are seen by nodes, and see the world behind their
// node's address.
func (c *cluster) meet(what string, nodes []*node, pods map[*node]*pod) {
	c.t.Helper()
	for _, f := range families {
		if f.pod(pods[nodes[0]]).IsValid() {
			c.meetBy(f, what+", "+f.name, nodes, pods)
		}
	}
}

func (c *cluster) meetBy(f family, what string, nodes []*node, pods map[*node]*pod) {
	c.t.Helper()
	for _, a := range nodes {
		pa := pods[a]
		for _, b := range nodes {
			pb := pods[b]
			eventually(c.t, what+": a pod and its node", func() error { return b.reach(f.pod(pb), podPort, netip.Addr{}) })
			if a == b {
				continue
			}
			eventually(c.t, what+": pods", func() error { return pa.reach(f.pod(pb), podPort, f.pod(pa)) })
			eventually(c.t, what+": a node and a pod", func() error { return a.reach(f.pod(pb), podPort, netip.Addr{}) })
			seen := f.pod(pa)
			if !a.weft {
				seen = f.node(a) // flanneld masquerades what pods send to nodes
			}
			eventually(c.t, what+": a pod and a node", func() error { return pa.reach(f.node(b), podPort, seen) })
		}
		eventually(c.t, what+": the world", func() error { return pa.reach(netip.MustParseAddr(f.outside), podPort, f.node(a)) })
	}
}

func TestInterop(t *testing.T) {
	for name, backend := range map[string]string{
		"host-gw":       `{"Type":"host-gw"}`,
		"vxlan":         `{"Type":"vxlan"}`,
		"directrouting": `{"Type":"vxlan","VNI":7,"Port":4789,"DirectRouting":true}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, fmt.Sprintf(`{"Network":%q,"EnableNFTables":true,"Backend":%s}`, network, backend))
			a, b := c.newNode("a", 0, 1), c.newNode("b", 0, 2)
			a.startFlanneld()
			b.startWeft()
			nodes, pods := []*node{a, b}, map[*node]*pod{a: a.flannelPod("pa"), b: b.weftPod("pb")}
			if name != "host-gw" { // which needs one link
				d, e := c.newNode("d", 1, 1), c.newNode("e", 1, 2)
				d.startFlanneld()
				e.startWeft()
				nodes = append(nodes, d, e)
				pods[d], pods[e] = d.flannelPod("pd"), e.weftPod("pe")
			}
			c.meet("at first", nodes, pods)
			c.checkWay(name, a, b, pods)
			c.restarts(a, b, nodes, pods)
			if name != "host-gw" {
				c.newVTEP(a, nodes, pods)
			}
			c.leaseGoes(a, b, nodes, pods)
			c.takeover(a, nodes, pods)
		})
	}
}

// checkWay checks that what can do without a tunnel does.
func (c *cluster) checkWay(backend string, a, b *node, pods map[*node]*pod) {
	direct := backend != "vxlan"
	for _, way := range []struct{ from, to *node }{{a, b}, {b, a}} {
		for _, f := range families {
			to := f.pod(pods[way.to])
			if !to.IsValid() {
				continue
			}
			route := way.from.sh("ip route get %s", to)
			if strings.Contains(route, "dev eth0") != direct {
				c.t.Errorf("%s reaches the pods of %s by %s", way.from.name, way.to.name, route)
			}
		}
	}
}

// restarts kills each daemon and starts it again under an open connection.
func (c *cluster) restarts(a, b *node, nodes []*node, pods map[*node]*pod) {
	open, r, _, err := pods[a].dial(pods[b].address, podPort)
	if err != nil {
		c.t.Fatal(err)
	}
	defer open.Close()
	for _, n := range []*node{a, b} {
		before, err := c.held(n)
		if err != nil {
			c.t.Fatal(err)
		}
		n.daemon.stop(syscall.SIGKILL)
		if err := exchange(open, r); err != nil {
			c.t.Errorf("while the daemon of %s is dead: %v", n.name, err)
		}
		if n == a {
			a.startFlanneld()
		} else {
			b.startWeft()
		}
		if after, err := c.held(n); err != nil || after != before {
			c.t.Errorf("%s held %s and holds %s, %v", n.name, before, after, err)
		}
		if err := exchange(open, r); err != nil {
			c.t.Errorf("after a restart on %s: %v", n.name, err)
		}
		c.meet("after a restart on "+n.name, nodes, pods)
	}
}

// newVTEP has flanneld come back with another MAC address of its VTEP.
func (c *cluster) newVTEP(a *node, nodes []*node, pods map[*node]*pod) {
	before, err := a.lease()
	if err != nil {
		c.t.Fatal(err)
	}
	a.daemon.stop(syscall.SIGTERM)
	a.sh("ip -o link show type vxlan | grep -o 'flannel[^:]*' | xargs -n 1 ip link delete")
	a.startFlanneld()
	after, err := a.lease()
	if err != nil || string(after.Spec) == string(before.Spec) || after.Name != before.Name {
		c.t.Fatalf("flanneld's lease was %s and is %v, %v", before.Spec, after, err)
	}
	c.meet("after flanneld made a new VTEP", nodes, pods)
}

// leaseGoes ends a flanneld and its lease, upon which Weft must not send to it
// any more; then it comes back with the same subnet.
func (c *cluster) leaseGoes(a, b *node, nodes []*node, pods map[*node]*pod) {
	l, err := a.lease()
	if err != nil {
		c.t.Fatal(err)
	}
	a.daemon.stop(syscall.SIGTERM)
	if err := c.registry.Delete(c.t.Context(), flannel.LeaseKind, registry.KeyOf(l), ""); err != nil {
		c.t.Fatal(err)
	}
	eventually(c.t, "the lease of a is gone", func() error {
		out, err := b.command("ip", "route", "get", pods[a].address.String()).CombinedOutput()
		if err == nil {
			return fmt.Errorf("b still has a route: %s", out)
		}
		return nil
	})
	a.startFlanneld()
	if again, err := a.lease(); err != nil || again.Name != l.Name {
		c.t.Errorf("flanneld had %s and has %v, %v", l.Name, again, err)
	}
	c.meet("after the lease of a was gone", nodes, pods)
}

// takeover replaces flanneld by Weft on a node, which keeps its subnet.
func (c *cluster) takeover(a *node, nodes []*node, pods map[*node]*pod) {
	before, err := a.lease()
	if err != nil {
		c.t.Fatal(err)
	}
	a.daemon.stop(syscall.SIGTERM)
	if err := pods[a].remove(); err != nil {
		c.t.Error(err)
	}
	// Devices, routes and rules that flanneld and the CNI plug-ins leave
	// behind are the administrator's to remove: Weft touches only its own.
	a.sh("for i in cni0 flannel.1 flannel.7 flannel-v6.1 flannel-v6.7; do ip link delete $i 2>/dev/null || true; done; ip route flush root %s; ip -6 route flush root %s; nft flush ruleset", network, network6)
	a.startWeft()
	after, err := a.lease()
	if err != nil || after.Name != before.Name {
		c.t.Errorf("flanneld had %s, and Weft has %v, %v", before.Name, after, err)
	}
	if got := a.subnetEnv()["FLANNEL_SUBNET"]; !strings.HasPrefix(before.Name, netip.MustParsePrefix(got).Masked().Addr().String()+"-") {
		c.t.Errorf("the subnet file says %s, the lease %s", got, before.Name)
	}
	attributes, err := flannel.ParseAttributes(after.Spec)
	if err != nil || attributes.Tunnel != nil && attributes.Tunnel.MAC != plan.MACOf(a.ip) || attributes.TunnelV6 != nil && attributes.TunnelV6.MAC != plan.MACOf(a.ip6) {
		c.t.Errorf("the lease says %s, %v", after.Spec, err)
	}
	pods[a] = a.weftPod("pa2")
	c.meet("after Weft took over", nodes, pods)
}

// With both families, what holds for IPv4 holds for IPv6, over vxlan by a tunnel of
// its own.
func TestDualStack(t *testing.T) {
	for name, backend := range map[string]string{
		"host-gw":       `{"Type":"host-gw"}`,
		"vxlan":         `{"Type":"vxlan"}`,
		"directrouting": `{"Type":"vxlan","VNI":7,"Port":4789,"DirectRouting":true}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, fmt.Sprintf(`{"Network":%q,"EnableIPv6":true,"IPv6Network":%q,"EnableNFTables":true,"Backend":%s}`, network, network6, backend))
			a, b := c.newNode("a", 0, 1), c.newNode("b", 0, 2)
			a.startFlanneld()
			b.startWeft()
			nodes, pods := []*node{a, b}, map[*node]*pod{a: a.flannelPod("pa"), b: b.weftPod("pb")}
			if name != "host-gw" { // which needs one link
				e := c.newNode("e", 1, 2)
				e.startWeft()
				nodes = append(nodes, e)
				pods[e] = e.weftPod("pe")
			}
			c.meet("at first", nodes, pods)
			c.checkWay(name, a, b, pods)
			// A lease of Weft's must be one that flanneld can read.
			if strings.Contains(a.daemon.output(), "error decoding") {
				t.Errorf("flanneld could not read a lease")
			}
			c.restarts(a, b, nodes, pods)
			if name != "host-gw" {
				c.newVTEP(a, nodes, pods)
			}
			c.takeover(a, nodes, pods)
		})
	}
}
