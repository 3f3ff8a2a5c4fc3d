package networkpolicy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/registry"
)

// TestStories runs the agents of some nodes and the controller, and holds what
// the registry says against what people wrote down. In testdata/status, a file
// NAME.do has what users do, a command to a line; NAME.yaml has objects that they
// apply; and the file after it, NAME.out, what the registry says differently once
// nobody has anything left to do.
func TestStories(t *testing.T) {
	golden.Archives(t, "testdata/status/*.txtar", func(t *testing.T, story []txtar.File) (out []txtar.File) {
		bubble(t, func(t *testing.T, w *world) {
			c := newAgents(t, w)
			defer c.end()
			var before []string
			for _, f := range story {
				switch {
				case strings.HasSuffix(f.Name, ".do"):
					for line := range strings.Lines(string(f.Data)) {
						c.do(strings.Fields(line))
					}
				case strings.HasSuffix(f.Name, ".yaml"):
					w.apply(string(f.Data))
				default:
					continue
				}
				settle(time.Second)
				after := strings.Split(strings.TrimSpace(w.state()), "\n")
				var b strings.Builder
				for _, line := range before {
					if line != "" && !slices.Contains(after, line) {
						fmt.Fprintln(&b, "-", line)
					}
				}
				for _, line := range after {
					if !slices.Contains(before, line) && line != "" {
						fmt.Fprintln(&b, "+", line)
					}
				}
				before = after
				name, _, _ := strings.Cut(f.Name, ".")
				out = append(out, f, txtar.File{Name: name + ".out", Data: []byte(b.String())})
			}
			families, err := c.metrics.Gather()
			if err != nil || len(families) != 4 {
				t.Errorf("metrics %v, %v", families, err)
			}
		})
		return out
	})
}

// clusterOfAgents runs agents and a controller.
type clusterOfAgents struct {
	t       *testing.T
	world   *world
	nodes   map[string]*machine
	stops   map[string]func()
	names   *names
	metrics *prometheus.Registry
}

func newAgents(t *testing.T, w *world) *clusterOfAgents {
	c := &clusterOfAgents{t: t, world: w, nodes: map[string]*machine{}, stops: map[string]func(){}, metrics: prometheus.NewRegistry(),
		names: &names{answers: map[string][]netip.Addr{}}}
	c.start("controller", func(ctx context.Context) { w.run(ctx, c.names, c.metrics) })
	return c
}

// start runs something until it is stopped by name.
func (c *clusterOfAgents) start(name string, run func(context.Context)) {
	ctx, cancel := context.WithCancel(c.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { run(ctx) })
	c.stops[name] = func() { cancel(); wg.Wait() }
}

func (c *clusterOfAgents) end() {
	for _, stop := range c.stops {
		stop()
	}
}

func (c *clusterOfAgents) do(words []string) {
	c.t.Helper()
	w := c.world
	switch verb, args := words[0], words[1:]; verb {
	case "node":
		for _, name := range args {
			w.create(api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
			m := &machine{world: w, name: name}
			c.nodes[name] = m
			c.start(name, func(ctx context.Context) { m.run(ctx, On(flat{}, "p")) })
		}
	case "lose": // a node is gone
		c.stops[args[0]]()
		delete(c.stops, args[0])
		w.remove(api.Node, registry.Key{Name: args[0]})
	case "restart":
		c.stops[args[0]]()
		if m := c.nodes[args[0]]; m != nil {
			m.applied = nil
			c.start(args[0], func(ctx context.Context) { m.run(ctx, On(flat{}, "p")) })
			return
		}
		c.start("controller", func(ctx context.Context) { w.run(ctx, c.names, prometheus.NewRegistry()) })
	case "pod":
		c.nodes[args[0]].start(args[1], args[2:]...)
	case "stop":
		c.nodes[args[0]].stop(args[1])
	case "stuck", "free":
		m := c.nodes[args[0]]
		m.mu.Lock()
		m.stuck = verb == "stuck"
		m.mu.Unlock()
		m.changed()
	case "delete":
		k := map[string]*registry.Kind{"tag": api.TagKind, "nodepods": api.NodePodsKind, "nodereport": api.NodeReportKind, "cnp": api.ClusterNetworkPolicy, "np": api.NetworkPolicy}[args[0]]
		namespace, name, ok := strings.Cut(args[1], "/")
		if !ok {
			namespace, name = "", namespace
		}
		w.remove(k, registry.Key{Namespace: namespace, Name: name})
	case "resolves":
		c.names.set(args[0], args[1:]...)
	case "after":
		d, err := time.ParseDuration(args[0])
		if err != nil {
			c.t.Fatal(err)
		}
		time.Sleep(d)
	default:
		c.t.Fatalf("a story has nothing called %q", words)
	}
}
