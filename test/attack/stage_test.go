package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin/flannel"
)

// cluster is a kind of cluster that is attacked.
type cluster struct {
	name string
	lab  lab.Options
}

// clusters are those of every plug-in, and one that has no IPv6.
var clusters = []cluster{
	{"openshift-subnet", lab.Options{Plugin: "openshift-subnet", IPv6: true}},
	{"openshift-networkpolicy", lab.Options{Plugin: "openshift-networkpolicy", IPv6: true}},
	{"flannel", lab.Options{Plugin: "flannel", IPv6: true}},
	{"flannel-host-gw", lab.Options{Plugin: "flannel", IPv6: true, Objects: []lab.Object{flannelConfig(
		`{"Network": "10.5.0.0/16", "EnableIPv6": true, "IPv6Network": "fd05::/48", "Backend": {"Type": "host-gw"}}`)}}},
	{"only-ipv4", lab.Options{Plugin: "openshift-subnet"}},
}

func (c cluster) ipv6() bool     { return c.lab.IPv6 }
func (c cluster) policies() bool { return c.lab.Plugin == "openshift-networkpolicy" }
func (c cluster) tunnels() bool  { return c.name != "flannel-host-gw" }

func flannelConfig(spec string) lab.Object {
	config := &flannel.Config{Spec: json.RawMessage(spec)}
	config.Name = flannel.ConfigName
	return lab.Object{Kind: flannel.ConfigKind, Object: config}
}

// stage is a cluster that is up, with those who live in it: the attacker's pod
// mallory and the pod near on node1, far on node2 and third on node3. Where
// there are policies, shut on node1 and shutfar on node2 let nobody in but
// those with the label app=friend, which friend on node1 has, to their port
// lab.ServerPort. On the nodes' network is stranger, a machine that is no node.
type stage struct {
	// life is that of the test that the stage is for.
	life     testing.TB
	cluster  cluster
	lab      *lab.Lab
	dir      string
	nodes    map[string]*machine
	pods     map[string]*machine
	stranger *machine
	hands    map[string]*hand
	// broken says that a trial came to nothing, so that the logs are worth
	// reading.
	broken bool
}

// machine is a pod, a node, or another machine on the nodes' network.
type machine struct {
	name string
	// ns is the path of its network namespace.
	ns string
	// v4 and v6 are its addresses; v6 is not valid where there is none.
	v4, v6 netip.Addr
	mac    plan.MAC
	// gateway is the MAC address by which a pod reaches its node.
	gateway plan.MAC
	node    string
	// plan is a node's.
	plan *plan.Plan
	// execute runs a command there.
	execute func(lab.Command) error
	// arriving sees what arrives, delivering what its own sockets get.
	arriving, delivering *observer
}

// address returns the address of a family.
func (m *machine) address(v6 bool) netip.Addr {
	if v6 {
		return m.v6
	}
	return m.v4
}

func (t *trial) addr(m *machine) netip.Addr { return m.address(t.v6) }

// at is an address of the family, with a port.
func (t *trial) at(m *machine, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(t.addr(m), port)
}

// pick returns the address of the family, of two that are written down.
func (t *trial) pick(v4, v6 string) netip.Addr {
	if t.v6 {
		return netip.MustParseAddr(v6)
	}
	return netip.MustParseAddr(v4)
}

func newStage(t *testing.T, c cluster) *stage {
	t.Helper()
	parent, err := os.MkdirTemp("", "weft-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(parent) })
	o := c.lab
	o.Dir, o.Weft, o.Nodes = filepath.Join(parent, "lab"), bin+"weft", 3
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l, err := lab.Up(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{life: t, cluster: c, lab: l, dir: o.Dir, nodes: map[string]*machine{}, pods: map[string]*machine{}, hands: map[string]*hand{}}
	t.Cleanup(func() {
		if t.Failed() && (s.broken || s.stranger == nil) {
			s.logTails()
		}
		if err := lab.Down(s.dir); err != nil {
			t.Error(err)
		}
	})
	for i, name := range l.Nodes() {
		s.addNode(t, name, byte(11+i))
	}
	for _, p := range []lab.Pod{
		{Name: "mallory", Node: "node1", Command: []string{"sleep", "1000000"}},
		{Name: "near", Node: "node1"}, {Name: "far", Node: "node2"}, {Name: "third", Node: "node3"},
	} {
		s.runPod(t, p)
	}
	if c.policies() {
		for _, p := range []lab.Pod{
			{Name: "friend", Node: "node1", Labels: map[string]string{"app": "friend"}, Command: []string{"sleep", "1000000"}},
			{Name: "shut", Node: "node1", Labels: map[string]string{"app": "shut"}},
			{Name: "shutfar", Node: "node2", Labels: map[string]string{"app": "shut"}},
		} {
			s.runPod(t, p)
		}
		s.apply(t, shutPolicy)
		for _, node := range []string{"node1", "node2"} {
			s.planHas(t, node, "NetworkPolicy default/shut")
		}
	}
	s.addStranger(t)
	for _, node := range l.Nodes() {
		s.nodes[node].plan = s.planOf(t, node)
	}
	return s
}

const shutPolicy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: shut, namespace: default}
spec:
  podSelector: {matchLabels: {app: shut}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: friend}}}]
    ports: [{port: 8080}, {port: 8080, protocol: UDP}]
`

func (s *stage) logTails() {
	logs, _ := filepath.Glob(filepath.Join(s.lab.Logs(), "*.log"))
	for _, file := range logs {
		b, _ := os.ReadFile(file)
		s.life.Logf("%s:\n%s", filepath.Base(file), b[max(0, len(b)-2000):])
	}
}

func (s *stage) addNode(t testing.TB, name string, number byte) {
	t.Helper()
	m := &machine{name: name, ns: nsOf(s.lab.PID(name)), node: name, v4: netip.AddrFrom4([4]byte{172, 30, 0, number})}
	if s.cluster.ipv6() {
		m.v6 = netip.MustParseAddr(fmt.Sprintf("fd30::%d", number))
	}
	m.execute = func(c lab.Command) error { return s.lab.ExecNode(name, c) }
	m.mac = macOf(t, m.ns, "eth0")
	m.arriving, m.delivering = arrivals(t, name, m.ns), delivered(t, name, m.ns)
	s.nodes[name] = m
}

// runPod runs a pod and returns what must be known of it.
func (s *stage) runPod(t testing.TB, p lab.Pod) *machine {
	t.Helper()
	addresses, err := s.lab.Run(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{name: p.Name, node: p.Node}
	for _, a := range addresses {
		if a.Is4() {
			m.v4 = a
		} else {
			m.v6 = a
		}
	}
	status, err := s.lab.Status()
	if err != nil {
		t.Fatal(err)
	}
	for _, have := range status.Pods {
		if have.Name == p.Name && (p.Namespace == "" || have.Namespace == p.Namespace) {
			m.ns = nsOf(have.PID)
		}
	}
	m.execute = func(c lab.Command) error { return s.lab.Exec(p.Namespace, p.Name, c) }
	m.mac, m.gateway = macOf(t, m.ns, "eth0"), gatewayOf(t, m.ns)
	m.arriving, m.delivering = arrivals(t, p.Name, m.ns), delivered(t, p.Name, m.ns)
	s.pods[p.Name] = m
	return m
}

// guest runs a pod of the attacker's for one trial only.
func (t *trial) guest(node string, command ...string) *machine {
	t.Helper()
	if len(command) == 0 {
		command = []string{"sleep", "1000000"}
	}
	return t.runGuest(lab.Pod{Node: node, Command: command})
}

// guestIn is a guest on node1 in another namespace, with labels.
func (t *trial) guestIn(namespace string, labels map[string]string) *machine {
	t.Helper()
	return t.runGuest(lab.Pod{Namespace: namespace, Node: "node1", Labels: labels, Command: []string{"sleep", "1000000"}})
}

func (t *trial) runGuest(p lab.Pod) *machine {
	t.Helper()
	p.Name = fmt.Sprintf("guest-%d", words.Add(1))
	m := t.runPod(t.T, p)
	t.Cleanup(func() {
		if err := t.lab.Delete(context.Background(), p.Namespace, p.Name); err != nil {
			t.Error(err)
		}
		delete(t.pods, p.Name)
	})
	return m
}

// addStranger plugs a machine into the nodes' network that is no node.
func (s *stage) addStranger(t testing.TB) {
	t.Helper()
	m := &machine{name: "stranger", v4: netip.MustParseAddr("172.30.99.99"), v6: netip.MustParseAddr("fd30::9999")}
	var pid int
	m.execute = func(c lab.Command) error {
		cmd := exec.Command(c.Args[0], c.Args[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
		if err := cmd.Start(); err != nil {
			return err
		}
		pid = cmd.Process.Pid
		return cmd.Wait()
	}
	h := newHand(t, "of stranger", all, m.execute)
	m.ns = nsOf(pid)
	s.hands["stranger "+all.String()] = h
	var out strings.Builder
	err := s.lab.ExecOutside(lab.Command{Stdout: &out, Stderr: &out, Args: []string{"sh", "-ec", fmt.Sprintf(
		"ip link add stranger type veth peer name eth0 netns %d; ip link set stranger master br0 up", pid)}})
	if err != nil {
		t.Fatalf("plug in stranger: %v: %s", err, out.String())
	}
	script := fmt.Sprintf("ip link set lo up; ip link set eth0 up; ip addr add %s/16 dev eth0; ip addr add %s/64 dev eth0 nodad", m.v4, m.v6)
	if _, err := h.order(order{Do: "run", Args: []string{"sh", "-ec", script}}); err != nil {
		t.Fatal(err)
	}
	m.mac = macOf(t, m.ns, "eth0")
	m.arriving, m.delivering = arrivals(t, m.name, m.ns), delivered(t, m.name, m.ns)
	s.stranger = m
}

// hand returns the hand of a trial's attacker on a machine.
func (t *trial) hand(m *machine) *hand { return t.handWith(m, t.attack.by.privileges()) }

// owner returns a hand with all rights on a machine, for controls and for what
// is not the attacker's.
func (t *trial) owner(m *machine) *hand { return t.handWith(m, all) }

func (t *trial) handWith(m *machine, p privileges) *hand {
	t.Helper()
	key := m.name + " " + p.String()
	h, ok := t.hands[key]
	if !ok {
		var life testing.TB = t.life
		if strings.HasPrefix(m.name, "guest-") {
			life = t.T
			t.Cleanup(func() { delete(t.hands, key) })
		}
		h = newHand(life, "of "+m.name, p, m.execute)
		t.hands[key] = h
	}
	return h
}

func nsOf(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

func indexOf(t testing.TB, ns, device string) (index int) {
	t.Helper()
	err := netns.Do(ns, func() error {
		link, err := net.InterfaceByName(device)
		if err == nil {
			index = link.Index
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func macOf(t testing.TB, ns, device string) (mac plan.MAC) {
	t.Helper()
	err := netns.Do(ns, func() error {
		link, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		mac = plan.MAC(link.HardwareAddr)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

// gatewayOf returns the MAC address that a pod has its node's gateway at.
func gatewayOf(t testing.TB, ns string) (mac plan.MAC) {
	t.Helper()
	err := netns.Do(ns, func() error {
		neighbours, err := netlink.NeighList(0, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, n := range neighbours {
			if n.State == netlink.NUD_PERMANENT && len(n.HardwareAddr) == 6 {
				mac = plan.MAC(n.HardwareAddr)
				return nil
			}
		}
		return errors.New("the pod has no permanent neighbour")
	})
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

func forEachLink(f func(index int) error) error {
	links, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, l := range links {
		if err := f(l.Index); err != nil {
			return err
		}
	}
	return nil
}

// weft runs the command line against the cluster.
func (s *stage) weft(t testing.TB, stdin string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(bin+"weft", args...)
	cmd.Env = append(os.Environ(), lab.DirVariable+"="+s.dir)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *stage) apply(t testing.TB, yaml string) {
	t.Helper()
	if out, err := s.weft(t, yaml, "apply", "-f", "-"); err != nil {
		t.Fatalf("weft apply: %v\n%s", err, out)
	}
}

// ask gets something from a node's agent.
func (s *stage) ask(node, path string) (string, error) {
	socket := fmt.Sprintf("/proc/%d/root/run/weft/http.sock", s.lab.PID(node))
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}}
	res, err := client.Get("http://agent" + path)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, res.Status, b)
	}
	return string(b), err
}

// planHas waits until a node's plan has some text.
func (s *stage) planHas(t testing.TB, node, text string) {
	t.Helper()
	eventually(t, func() error {
		p, err := s.ask(node, "/plan")
		if err == nil && !strings.Contains(p, text) {
			err = fmt.Errorf("the plan of %s lacks %q:\n%s", node, text, p)
		}
		return err
	})
}

func (s *stage) planOf(t testing.TB, node string) *plan.Plan {
	t.Helper()
	text, err := s.ask(node, "/plan")
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
