package cluster

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
)

// TestFlows sends from pods and nodes to pods, nodes, the world outside and
// addresses that nobody has, and holds what arrives, and from whom, against
// what weft why says.
func TestFlows(t *testing.T) {
	for name, o := range map[string]lab.Options{
		"openshift-subnet": {IPv6: true},
		"flannel vxlan":    {Plugin: "flannel", IPv6: true},
		"flannel host-gw": {Plugin: "flannel", IPv6: true, Objects: []lab.Object{flannelConfig(
			`{"Network": "10.5.0.0/16", "EnableIPv6": true, "IPv6Network": "fd05::/48", "Backend": {"Type": "host-gw"}}`)}},
	} {
		o.Nodes = 2
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flows(t, o)
		})
	}
}

// end is an end of a flow: where it is, its name for weft why, and its
// addresses.
type end struct {
	place     place
	name      string
	addresses []netip.Addr
}

func flows(t *testing.T, o lab.Options) {
	c := up(t, o)
	var pods, nodes []end
	for _, p := range []struct{ name, node string }{{"client", "node1"}, {"near", "node1"}, {"far", "node2"}} {
		pods = append(pods, end{place("pod/" + p.name), p.name, c.run(p.name, p.node)})
	}
	for i, node := range c.lab.Nodes() {
		n := end{place("node/" + node), "node/" + node,
			[]netip.Addr{netip.AddrFrom4([4]byte{172, 30, 0, byte(11 + i)}), netip.MustParseAddr(fmt.Sprintf("fd30::%d", 11+i))}}
		nodes = append(nodes, n)
		c.serveOn(n, node)
	}
	outside := end{"outside", "outside", []netip.Addr{lab.Outside, lab.Outside6}}
	nobody := end{name: "nobody"}
	for _, p := range pods {
		for _, a := range p.addresses {
			nobody.addresses = append(nobody.addresses, beyond(a, 100)) // in the subnet of a node
		}
	}
	nobody.addresses = append(nobody.addresses, elsewhere(pods[0].addresses[0], 250), elsewhere(pods[0].addresses[1], 250))

	destinations := append(append(append([]end{}, pods...), nodes...), outside, nobody)
	sources := []end{pods[0], pods[2], nodes[0], nodes[1]}
	seenBy := make(map[string]netip.Addr)
	plans := c.plans(o.Plugin)
	results, errs := make([][]flow, len(sources)), make([]error, len(sources))
	var trying sync.WaitGroup
	for i, from := range sources {
		trying.Go(func() { results[i], errs[i] = c.try(from, destinations) })
	}
	trying.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for i := range sources {
		for _, f := range results[i] {
			c.compare(plans, f, i == 0 && f.protocol == "tcp")
			seenBy[fmt.Sprint(f.from.name, " ", f.to.name, " ", f.address.Is4())] = f.seen
		}
	}

	// What everybody must see, whatever the explanation says.
	for i, v4 := range []bool{true, false} {
		for _, f := range []struct {
			from, to end
			as       netip.Addr
		}{
			{pods[0], pods[1], pods[0].addresses[i]},
			{pods[0], pods[2], pods[0].addresses[i]},
			{pods[0], nodes[0], pods[0].addresses[i]},
			{pods[0], nodes[1], pods[0].addresses[i]},
			{pods[0], outside, nodes[0].addresses[i]},
			{pods[2], outside, nodes[1].addresses[i]},
		} {
			if seen := seenBy[fmt.Sprint(f.from.name, " ", f.to.name, " ", v4)]; seen != f.as {
				t.Errorf("%s sees %s as %s, not as %s", f.to.name, f.from.name, seen, f.as)
			}
		}
	}
}

// beyond returns an address n after another one.
func beyond(a netip.Addr, n int) netip.Addr {
	for range n {
		a = a.Next()
	}
	return a
}

// elsewhere returns an address of another subnet of the same cluster, for an
// address in a /24 or a /64.
func elsewhere(a netip.Addr, subnet byte) netip.Addr {
	b := a.AsSlice()
	if a.Is4() {
		b[2] = subnet
	} else {
		b[6], b[7] = subnet, subnet
	}
	other, _ := netip.AddrFromSlice(b)
	return other
}

// serveOn runs a server at an end's addresses until the test ends.
func (c *cluster) serveOn(e end, name string) {
	c.Helper()
	args := []string{self, "serve", name}
	for _, a := range e.addresses {
		args = append(args, a.String())
	}
	c.Cleanup(c.startServer(e.place, args))
}

// startServer runs the command of a server and returns what stops it.
func (c *cluster) startServer(p place, args []string) (stop func()) {
	c.Helper()
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	var ended sync.WaitGroup
	var errs bytes.Buffer
	ended.Go(func() {
		err := c.execute(p, lab.Command{Args: args, Stdin: inRead, Stdout: outWrite, Stderr: &errs})
		outWrite.CloseWithError(fmt.Errorf("%w: %s", err, errs.String()))
	})
	if _, err := outRead.Read(make([]byte, 64)); err != nil {
		c.Fatalf("server on %s: %v", p, err)
	}
	return func() { inWrite.Close(); outRead.Close(); ended.Wait() }
}

// flow is something that was sent, and what became of it.
type flow struct {
	from, to end
	address  netip.Addr
	protocol string
	// arrived says so; server is who answered, and seen whom that saw.
	arrived bool
	server  string
	seen    netip.Addr
}

// try sends from one end to all others, over both protocols.
func (c *cluster) try(from end, to []end) ([]flow, error) {
	var all []flow
	args := []string{self, "fetch"}
	for _, d := range to {
		for _, a := range d.addresses {
			for protocol, form := range map[string]string{"tcp": "http://%s/", "udp": "udp://%s"} {
				all = append(all, flow{from: from, to: d, address: a, protocol: protocol})
				args = append(args, fmt.Sprintf(form, netip.AddrPortFrom(a, lab.ServerPort)))
			}
		}
	}
	out, err := c.exec(from.place, args...)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(out, "\n")
	if len(lines) != len(all)+1 {
		return nil, fmt.Errorf("%d answers to %d questions: %q", len(lines)-1, len(all), lines)
	}
	for i := range all {
		if lines[i] == "-" {
			continue
		}
		var err error
		all[i].arrived = true
		if all[i].server, all[i].seen, err = parseAnswer(lines[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// compare holds what became of a flow against what a cluster's plans say, and
// that against what weft why does where ask says so.
func (c *cluster) compare(plans explain.Cluster, f flow, ask bool) {
	c.Helper()
	protocol, err := plan.ParseProtocol(f.protocol)
	if err != nil {
		c.Fatal(err)
	}
	why, err := plans.Why(explain.Question{Namespace: lab.DefaultNamespace, Source: f.from.name, Destination: f.address.String(),
		Protocol: protocol, Port: lab.ServerPort})
	if err != nil {
		c.Fatal(err)
	}
	name := fmt.Sprintf("%s to %s (%s) %s", f.from.name, f.to.name, f.address, f.protocol)
	switch {
	case why.Allowed != f.arrived:
		c.Errorf("%s: arrived: %t, but the explanation is %q", name, f.arrived, why.Reason)
	case !f.arrived:
	case f.server != strings.TrimPrefix(f.to.name, "node/"):
		c.Errorf("%s: %s answers", name, f.server)
	case why.SeenSource != f.seen:
		c.Errorf("%s: the receiver sees %s, but the explanation says %s", name, f.seen, why.SeenSource)
	}
	if !ask {
		return
	}
	said := c.weft("", "why", f.from.name, f.address.String(), "--protocol", f.protocol, "--port", fmt.Sprint(lab.ServerPort), "-o", "json")
	want, err := json.MarshalIndent(why, "", "  ")
	if err != nil {
		c.Fatal(err)
	}
	if (said.code == 0) != why.Allowed || said.code > 1 || said.stdout != string(want)+"\n" {
		c.Errorf("weft why ends with %d and says\n%s%s\nnot\n%s", said.code, said.stdout, said.stderr, want)
	}
}

// plans reads what an explanation is made of.
func (c *cluster) plans(plugin string) explain.Cluster {
	c.Helper()
	plug, err := plugins.Get(cmp.Or(plugin, api.DefaultPlugin))
	if err != nil {
		c.Fatal(err)
	}
	r, objects := c.registry(), make(registry.Snapshot)
	for _, k := range append([]*registry.Kind{api.ClusterConfigKind, api.Node, api.Pod}, plug.Kinds()...) {
		if objects[k], _, err = r.List(c.Context(), k); err != nil {
			c.Fatal(err)
		}
	}
	return explain.Cluster{Plugin: plugins.Finder(r.Serves), Objects: objects}
}
