// Package conformance holds a data plane against the interpreter of package
// plan, with real packets.
//
// It makes nodes and pods out of network namespaces, loads plans through the
// interface datapath.DataPlane, sends UDP, TCP and ICMP echo from pods, nodes
// and the outside, and compares who gets them, from which source address and
// up to which length, with what plan.Explain says. The cases are the stories
// in testdata, random clusters (plantest), restarts, what policies that change do
// to open connections, and what others do to a node behind the data plane's back.
//
// A data plane joins with one line in a test of its own:
//
//	conformance.Run(t, "mine", func(n conformance.Namespace) (datapath.DataPlane, error) { return mine.NewAt(n.Path()) })
//
// WEFT_CONFORMANCE_CLUSTERS sets how many random clusters are tried, and
// WEFT_CONFORMANCE_SEED from which on; a cluster's name in the output is its
// seed.
package conformance

import (
	"bufio"
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/tools/txtar"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// What is tried when the environment does not say.
const (
	defaultClusters = 6
	defaultSeed     = 1
	flowsPerCluster = 40
)

//go:embed testdata/*.txtar
var stories embed.FS

// Run tries everything on data planes that make returns, one for each node's
// namespace, or only the parts that are named, for a data plane that is to do
// something in another way than usual. It needs root. What the data plane says it
// cannot do is left out, and each time said so.
func Run(t *testing.T, name string, make func(node Namespace) (datapath.DataPlane, error), parts ...string) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	probe, err := make(newNamespace(t))
	if err != nil {
		t.Fatalf("make data plane %s: %v", name, err)
	}
	able := probe.Capabilities()
	t.Logf("data plane %s can do: %+v", name, able)
	s := &suite{make: make, able: able}
	for _, part := range []struct {
		name string
		try  func(*testing.T)
	}{
		{"story", s.stories}, {"cluster", s.clusters}, {"network", s.networks}, {"length", s.lengths}, {"connection", s.connections},
		{"policy", s.policies}, {"service", s.services}, {"affinity", s.affinity}, {"crowd", s.crowd}, {"memory", s.memory}, {"answer", s.answers}, {"change", s.changes}, {"successor", s.successors}, {"stranger", s.strangers}, {"source", s.sources},
		{"tag", s.tags}, {"bandwidth", s.bandwidth}, {"disturbance", s.disturbances}, {"refusal", s.refusals},
	} {
		if len(parts) == 0 || slices.Contains(parts, part.name) {
			t.Run(part.name, part.try)
		}
	}
}

type suite struct {
	make func(Namespace) (datapath.DataPlane, error)
	able datapath.Capabilities
}

// stories plays the files of testdata. Their parts are played in order:
// "plans" are the plans of all nodes from then on, "flows" are lines as
// plan.ParseFlow reads them, each of which may end with "=> denied",
// "=> from ADDRESS" or "=> from ADDRESS at RECEIVER" to say what Explain must say, where the
// receiver is an endpoint's interface, a node or "outside"; "restart" gives every node
// a new data plane.
func (s *suite) stories(t *testing.T) {
	names, err := fs.Glob(stories, "testdata/*.txtar")
	must(t, err)
	for _, name := range names {
		t.Run(strings.TrimSuffix(strings.TrimPrefix(name, "testdata/"), ".txtar"), func(t *testing.T) {
			data, err := stories.ReadFile(name)
			must(t, err)
			s.story(t, txtar.Parse(data))
		})
	}
}

func (s *suite) story(t *testing.T, a *txtar.Archive) {
	l := newTopology(t, s.make)
	var plans map[string]*plan.Plan
	for _, part := range a.Files {
		switch kind, _, _ := strings.Cut(part.Name, " "); kind {
		case "plans":
			var err error
			plans, err = plan.ParseAll(string(part.Data))
			must(t, err)
			if lacks := s.lacks(plans); len(lacks) > 0 {
				t.Skipf("left out: the data plane has no %s", strings.Join(lacks, ", "))
			}
			l.load(plans)
		case "flows":
			flows := parseFlows(t, plans, string(part.Data))
			if untried := l.try(t, plans, flows); len(untried) > 0 {
				t.Fatalf("these end at nodes without a plan: %v", untried)
			}
		case "restart":
			l.restart(plans)
		default:
			t.Fatalf("part %q is none of plans, flows, restart", part.Name)
		}
	}
}

func parseFlows(t *testing.T, plans map[string]*plan.Plan, text string) []plan.Flow {
	t.Helper()
	var flows []plan.Flow
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words, pinned, _ := strings.Cut(line, " => ")
		f, err := plan.ParseFlow(words)
		must(t, err)
		flows = append(flows, f)
		says := plan.Explain(plans, f)
		want := "denied"
		if says.Allowed {
			want = "from " + says.SeenSource.String()
			if strings.Contains(pinned, " at ") {
				want += " at " + receiver(says)
			}
		}
		if pinned != "" && pinned != want {
			t.Errorf("%s: the file says %q, and the interpreter:\n%s", words, pinned, says)
		}
	}
	return flows
}

// restart gives every node another instance of the data plane, which must
// find nothing to do. Whoever starts with it finds which subnets the node has.
func (l *topology) restart(plans map[string]*plan.Plan) {
	l.t.Helper()
	for name, p := range plans {
		n := l.nodes[name]
		l.start(n)
		l.apply(n, p)
		if w, ok := n.dataPlane.(interface{ Writes() uint64 }); ok && w.Writes() != 0 {
			l.t.Errorf("%s: a new instance with the same plan changed %d things", name, w.Writes())
		}
		if lines := l.repair(n); len(lines) > 0 {
			l.t.Errorf("%s: a new instance with the same plan has something to repair: %q", name, lines)
		}
		has := l.gateways(n)
		for _, pool := range p.Local.Pools {
			if !has[pool.Gateway] {
				l.t.Errorf("%s: no interface of Weft's has the gateway %s, only %v", name, pool.Gateway, slices.Collect(maps.Keys(has)))
			}
		}
	}
}

// gateways returns the addresses of a node's interfaces that are named as Weft's.
func (l *topology) gateways(n *node) map[netip.Addr]bool {
	l.t.Helper()
	all := make(map[netip.Addr]bool)
	must(l.t, n.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, link := range links {
			if !datapath.OwnsInterface(link.Attrs().Name) {
				continue
			}
			addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
			if err != nil {
				return err
			}
			for _, a := range addresses {
				ip, _ := netip.AddrFromSlice(a.IP)
				all[ip.Unmap()] = true
			}
		}
		return nil
	}))
	return all
}

// lacks names what plans need and the data plane cannot do.
func (s *suite) lacks(plans map[string]*plan.Plan) []string {
	var lacks []string
	for _, p := range plans {
		lacks = append(lacks, datapath.Lacks(p, s.able)...)
	}
	slices.Sort(lacks)
	return slices.Compact(lacks)
}

// networks is clusters with a second network of the same addresses.
func (s *suite) networks(t *testing.T) {
	if !s.able.OverlappingNetworks {
		t.Skip("left out: the data plane has no overlapping networks")
	}
	s.clustersOf(t, plantest.Networked())
}

// clusters loads two random clusters one after the other on the same nodes,
// restarts in between, and tries random flows in both.
func (s *suite) clusters(t *testing.T) { s.clustersOf(t, plantest.Cluster()) }

func (s *suite) clustersOf(t *testing.T, clusters *rapid.Generator[map[string]*plan.Plan]) {
	count, seed := number(t, "WEFT_CONFORMANCE_CLUSTERS", defaultClusters), number(t, "WEFT_CONFORMANCE_SEED", defaultSeed)
	for i := range count {
		t.Run(strconv.Itoa(seed+i), func(t *testing.T) { s.cluster(t, clusters, seed+i) })
	}
}

func (s *suite) cluster(t *testing.T, clusters *rapid.Generator[map[string]*plan.Plan], seed int) {
	l := newTopology(t, s.make)
	for round := range 2 {
		// Far apart, so that neighbouring seeds do not share rounds.
		draw := seed*1000 + round*100
		plans := clusters.Example(draw)
		if lacks := s.lacks(plans); len(lacks) > 0 {
			t.Logf("round %d left out: the data plane has no %s", round, strings.Join(lacks, ", "))
			continue
		}
		if s.able.Bandwidth {
			plans = plantest.Limited(plans).Example(draw)
		}
		var flows []plan.Flow
		generator := plantest.Flows(plans)
		for i := range flowsPerCluster {
			f := generator.Example(draw + i)
			if i%4 == 3 {
				f.Port = 0
				f.Protocol = plan.ICMP
				if f.Source.Is6() {
					f.Protocol = plan.ICMPv6
				}
			}
			f.Network = networkOf(plans, f.Source, i+i/4)
			if node, _ := entrance(plans, f.Destination); node != "" && i%3 == 0 {
				f.Node, f.Network, f.Source = node, plan.DefaultNetwork, outside[0].Addr()
				if f.Destination.Is6() {
					f.Source = outside[1].Addr()
				}
			}
			flows = append(flows, f)
		}
		// The nodes have both families whatever the plans use, and nodes that
		// an earlier round had may be without a plan in this.
		for i := range 4 {
			name := plantest.NodeName(i + 1)
			if _, ok := l.nodes[name]; !ok && plans[name] != nil {
				l.addNode(name, underlayAddresses(i+1))
			}
		}
		l.load(plans)
		untried := l.try(t, plans, flows)
		l.restart(plans)
		l.try(t, plans, flows[:len(flows)/4])
		t.Logf("round %d: %d nodes, %d flows as explained; %d end at nodes without a plan and were left out", round, len(plans), len(flows)-len(untried), len(untried))
		if t.Failed() {
			t.Fatalf("plans:\n%s", plan.FormatAll(plans))
		}
	}
}

// networkOf returns a network in which an endpoint has an address, one after the other, and
// the default network where none has it.
func networkOf(plans map[string]*plan.Plan, a netip.Addr, turn int) string {
	networks := map[string]bool{}
	for _, p := range plans {
		for _, e := range p.Endpoints.All() {
			if slices.Contains(e.Addresses, a) {
				networks[e.Network] = true
			}
		}
	}
	if len(networks) == 0 {
		return plan.DefaultNetwork
	}
	return slices.Sorted(maps.Keys(networks))[turn%len(networks)]
}

func underlayAddresses(i int) []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{172, 30, 0, byte(i + 1)}), netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x01, 15: byte(i + 1)})}
}

func number(t *testing.T, variable string, otherwise int) int {
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s=%q is not a number", variable, text)
	}
	return n
}

// converse says a line on a connection, and hears it again.
func converse(c net.Conn, word string) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(c, word); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if line != word+"\n" {
		return fmt.Errorf("the answer is %q instead of %q", line, word)
	}
	return nil
}
