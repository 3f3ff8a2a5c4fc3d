package stories

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weftnet/weft/test/kubernetes/cluster"
)

const (
	// lookups are how many names a second each node's pod looks up.
	lookups = 50
	// askedAgain is how long a resolver waits before it asks once more: what took that long
	// lost a question or an answer.
	askedAgain = 4 * time.Second
)

// names: nodes answer their pods' questions, also while their name servers are killed and
// replaced, and while agents are killed.
func (s *stage) names(short bool) func(*story) {
	return func(x *story) {
		if who := x.cluster.DNS(); who != cluster.NodeDNS {
			x.Skipf("names are answered by %q here, not by nodes", who)
		}
		x.asService()
		for _, n := range x.nodes {
			x.eventually(n.name+" says where it answers", patience, func() error {
				return n.saysNameServer(x)
			})
		}
		l := &load{x: x, rate: lookups}
		args := []string{"lookups", "-rate", strconv.Itoa(lookups), "server", "server." + x.namespace + ".svc.cluster.local.", "kubernetes.default"}
		for _, n := range x.nodes {
			name := "lookups-" + n.name
			x.run(name, on(n), running(args...))
			l.pods = append(l.pods, name)
		}
		for _, name := range l.pods {
			x.ready(name)
		}
		l.underWay()

		start := time.Now()
		for range 3 {
			killed := make(map[*node][]int)
			for _, n := range x.nodes {
				pids, err := n.processes("weft-dns-server")
				if err == nil {
					killed[n] = pids
					_, err = n.kill("weft-dns-server")
				}
				if err != nil || len(pids) == 0 {
					x.Fatalf("the name servers %v of %s were killed: %v", pids, n.name, err)
				}
			}
			for _, n := range x.nodes {
				x.eventually("the name server of "+n.name+" is back", patience, func() error {
					now, err := n.processes("weft-dns-server")
					if err != nil || len(now) == 0 || slices.ContainsFunc(now, func(pid int) bool { return slices.Contains(killed[n], pid) }) {
						return fmt.Errorf("its processes are %v, and %v were killed (%v)", now, killed[n], err)
					}
					return nil
				})
			}
		}
		l.answered("name servers killed", start, time.Now())

		start = time.Now()
		x.must(x.command(x.kubectl, "rollout", "restart", "-n", system, "daemonset/weft-dns"))
		x.must(x.command(x.kubectl, "rollout", "status", "-n", system, "daemonset/weft-dns", "--timeout="+patience.String()))
		x.measured("all name servers were replaced in %s", time.Since(start).Round(time.Second))
		l.answered("name servers replaced", start, time.Now())
		if short {
			return
		}

		start = time.Now()
		for _, n := range x.nodes {
			before, err := n.processes("weft-agent")
			if err != nil {
				x.Fatal(err)
			}
			if _, err := n.kill("weft-agent"); err != nil {
				x.Fatal(err)
			}
			x.agentBack(n, before)
		}
		l.answered("agents killed", start, time.Now())
	}
}

// saysNameServer fails while a node does not say that it answers.
func (n *node) saysNameServer(x *story) error {
	out, err := x.command(x.kubectl, "get", "node", n.name, "-o", `jsonpath={.metadata.annotations.weft\.network/name-server}`)
	if err == nil && strings.TrimSpace(out) == "" {
		err = fmt.Errorf("it says nothing")
	}
	return err
}

// answered fails the test if a name that was looked up between two moments was not found, or if
// a question or its answer was lost.
func (l *load) answered(what string, from, to time.Time) {
	l.x.Helper()
	for _, name := range l.pods {
		s := l.span(name, what, from, to)
		if s.Lost != 0 || s.Worst >= askedAgain || s.Rate() < 0.9*float64(l.rate) {
			l.x.Errorf("%s, from %s: %s: %q", what, name, s, s.Errors)
		}
	}
}
