package stories

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/drops"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/test/kubernetes/traffic"
)

// enforcing is the plug-in that enforces policies.
const enforcing = "openshift-networkpolicy"

// isolating isolates all pods of the story's namespace in both directions. Only
// clients, and who else it says, reach the server.
const isolating = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolate}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: out}
spec:
  podSelector: {matchExpressions: [{key: role, operator: In, values: [client, stranger, leaver]}]}
  policyTypes: [Egress]
  egress: [{to: [{podSelector: {matchLabels: {role: server}}}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server}
spec:
  podSelector: {matchLabels: {role: server}}
  ingress: [{from: [{podSelector: {matchExpressions: [{key: role, operator: In, values: [client, %s]}]}}]}]
`

// guarding are what stands above these, and policies that cannot be enforced as
// they are written. The number that begins with 0 is decimal for Kubernetes, and
// octal for others.
const guarding = `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: stories-guard}
spec:
  tier: Admin
  priority: 10
  subject: {pods: {namespaceSelector: &here {matchLabels: {kubernetes.io/metadata.name: %[1]s}}, podSelector: {matchLabels: {role: server}}}}
  ingress:
  - {name: clients, action: Pass, from: [{pods: {namespaceSelector: *here, podSelector: {matchLabels: {role: client}}}}]}
  - {name: strangers, action: Deny, from: [{namespaces: *here}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: stories-wildcard}
spec:
  tier: Admin
  priority: 11
  subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}}
  egress: [{name: updates, action: Accept, to: [{domainNames: ["*.example.com"]}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: octal, namespace: %[1]s}
spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 010.0.0.0/8}}]}]}
`

// policies: what users may write about who talks to whom is in force, is said to
// be, and is explained; and stays so whatever ends and starts again.
func (s *stage) policies(short bool) func(*story) {
	return func(x *story) {
		// server is on another node than who talks to it.
		near, far := x.nodes[0], x.nodes[1]
		x.run("server", on(far), labelled("role", "server"), probed(byHTTP))
		for _, role := range []string{"client", "stranger"} {
			x.run(role, on(near), labelled("role", role))
		}
		server := x.ready("server")
		urls := servers(port, server, "tcp", "udp")
		for _, from := range []string{"client", "stranger"} {
			x.ready(from)
			x.answered(from, "server", urls)
		}

		x.apply(fmt.Sprintf(isolating, "leaver"))
		x.inForce()
		x.answered("client", "server", urls)
		x.unanswered("stranger", urls)
		x.decided("client", "server", "allowed", x.rule("server ingress[0]"))
		x.decided("stranger", "server", "denied", x.rule("isolate ingress isolation"))
		x.dropped("stranger", "server", plan.Incoming, x.rule("isolate ingress isolation"))

		// These begin under policies: the leaver may talk to the server, early may
		// not and sends all the time, and the kubelet asks late.
		addresses := []string{"load", "-rate", "50"}
		for _, a := range server {
			addresses = append(addresses, netip.AddrPortFrom(a, port).String())
		}
		x.run("leaver", on(near), labelled("role", "leaver"), running(addresses...))
		x.run("early", on(near), running(addresses...))
		x.run("late", on(near), probed(byTCP))
		x.ready("late")
		x.reports("early", func(r traffic.Report) error {
			if r.Answered > 0 {
				x.Fatalf("early may not talk to the server, and %d of its %d requests were answered", r.Answered, r.Sent)
			}
			return atLeast("requests of early", r.Sent, 50)
		})
		x.dropped("early", "server", plan.Outgoing, x.rule("isolate egress isolation"))
		x.reports("leaver", func(r traffic.Report) error { return atLeast("requests of leaver answered", r.Answered, 50) })

		// From here on the stranger may, and the leaver may not.
		x.apply(fmt.Sprintf(isolating, "stranger"))
		changed := time.Now()
		x.inForce()
		x.answered("stranger", "server", urls)
		x.ended("leaver", changed)

		x.Cleanup(func() {
			if _, err := x.command(x.kubectl, "delete", "clusternetworkpolicy", "stories-guard", "stories-wildcard"); err != nil {
				x.Error(err)
			}
		})
		x.apply(fmt.Sprintf(guarding, x.namespace))
		x.must(x.command(x.kubectl, "wait", "clusternetworkpolicy", "stories-guard", "--for=condition=Enforced=True", "--timeout="+patience.String()))
		x.answered("client", "server", urls)
		x.unanswered("stranger", urls)
		x.decided("client", "server", "allowed", x.rule("server ingress[0]"))
		strangers := `ClusterNetworkPolicy stories-guard ingress[1] "strangers"`
		x.decided("stranger", "server", "denied", strangers)
		x.dropped("stranger", "server", plan.Incoming, strangers)
		x.eventually("it is said what cannot be enforced", time.Minute, func() error {
			condition, err := x.command(x.kubectl, "get", "clusternetworkpolicy", "stories-wildcard", `-o=jsonpath={range .status.conditions[?(@.type=="Enforced")]}{.status} {.reason} {.message}{end}`)
			if err != nil {
				return err
			}
			events, err := x.command(x.kubectl, "get", "events", "-n", x.namespace, "--field-selector=involvedObject.kind=NetworkPolicy,involvedObject.name=octal", `-o=jsonpath={range .items[*]}{.type} {.reason} {.message}{end}`)
			if err != nil {
				return err
			}
			return errors.Join(says(condition, "False NotEnforceable", "*.example.com"), says(events, "Warning NotEnforceable", "010.0.0.0/8"))
		})
		if !short {
			x.policiesStay(server)
		}
	}
}

// policiesStay: neither agents that are killed nor an API server that is away
// let through what is denied, or disturb what is allowed. The pod client may
// talk to the server, the pod leaver tries all the time and may not.
func (x *story) policiesStay(server []netip.Addr) {
	args := []string{"load", "-rate", "100"}
	for _, a := range server {
		args = append(args, netip.AddrPortFrom(a, port).String())
	}
	x.run("steady", on(x.nodes[0]), labelled("role", "client"), running(args...))
	l := &load{x: x, pods: []string{"steady"}, rate: 100}
	// What is judged begins a second after the first report.
	x.reports("steady", func(r traffic.Report) error {
		return atLeast("requests of steady answered", r.Answered, 3*int64(l.rate))
	})
	last := func() (last traffic.Report) {
		x.reports("leaver", func(r traffic.Report) error { last = r; return nil })
		return last
	}
	step := func(what string, f func()) {
		x.Helper()
		begin, before := time.Now(), last()
		f()
		l.undisturbed(what, begin, time.Now())
		if after := last(); after.Answered != before.Answered || after.Sent == before.Sent {
			x.Errorf("%s: of %d requests that policies forbid, %d were answered", what, after.Sent-before.Sent, after.Answered-before.Answered)
		}
	}
	step("SIGKILL of all agents", func() {
		before := make(map[*node][]int)
		for _, n := range x.nodes {
			before[n], _ = n.processes("weft-agent")
			if killed, err := n.kill("weft-agent"); err != nil || killed == 0 {
				x.Fatalf("%d agents killed on %s: %v", killed, n.name, err)
			}
		}
		for _, n := range x.nodes {
			x.agentBack(n, before[n])
		}
	})
	step("the API server away", func() {
		n := x.nodes[2]
		back := x.stopAPIServer()
		pod := x.static(n, "unknown")
		var urls []string
		x.eventually("a static pod answers its own node, as all pods do", patience, func() error {
			a, err := n.attachment(x.namespace, pod)
			if err != nil {
				return err
			}
			urls = servers(port, a.Addresses, "tcp", "udp")
			return notAnswered(x.askFrom(n, urls...))
		})
		for _, r := range x.askFrom(x.nodes[0], urls...) {
			if r.Error == "" {
				x.Errorf("a static pod that nobody knows the labels of answers another node at %s", r.To)
			}
		}
		x.removeStatic(n, "unknown")
		back()
	})
	x.inForce("octal", "stories-wildcard")
	x.inOrder(x.nodes...)
}

// rule is what a part of a NetworkPolicy of the story is called where it
// decides.
func (x *story) rule(what string) string { return "NetworkPolicy " + x.namespace + "/" + what }

// apply applies objects in the story's namespace.
func (x *story) apply(objects string) {
	x.Helper()
	x.must(x.commandWith(objects, x.kubectl, "apply", "-n", x.namespace, "-f", "-"))
}

// inForce waits until all policies of the story are in force on every node
// concerned; some may have problems.
func (x *story) inForce(problems ...string) {
	x.Helper()
	x.eventually("weft policy status says that all are in force", patience, func() error {
		out, err := x.command(x.weft, "policy", "status", "-o", "json")
		if code := exitCode(err); code != 0 && code != 1 {
			return err
		}
		var states []struct {
			Namespace, Name   string
			Pending, Problems []string
		}
		if err := json.Unmarshal([]byte(out), &states); err != nil {
			return fmt.Errorf("%q: %w", out, err)
		}
		if len(states) == 0 {
			return errors.New("there are none")
		}
		for _, s := range states {
			if s.Namespace != "" && s.Namespace != x.namespace {
				continue
			}
			if len(s.Pending) > 0 || len(s.Problems) > 0 && !slices.Contains(problems, s.Name) {
				return fmt.Errorf("%s is pending on %q, problems %q", s.Name, s.Pending, s.Problems)
			}
		}
		return nil
	})
}

// answered waits until a pod of the story answers another everywhere.
func (x *story) answered(from, by string, urls []string) {
	x.Helper()
	x.eventually(by+" answers "+from, patience, func() error { return notAnswered(x.ask(from, urls...)) })
}

// notAnswered says which questions were not.
func notAnswered(replies []traffic.Reply) error {
	var errs []error
	for _, r := range replies {
		if r.Error != "" {
			errs = append(errs, fmt.Errorf("%s: %s", r.To, r.Error))
		}
	}
	return errors.Join(errs...)
}

// unanswered fails the test if a pod gets any answer.
func (x *story) unanswered(from string, urls []string) {
	x.Helper()
	for _, r := range x.ask(from, append([]string{"-timeout=2s"}, urls...)...) {
		if r.Error == "" {
			x.Errorf("%s asks %s, which policies forbid: %s answers", from, r.To, r.By)
		}
	}
}

// decided fails the test unless weft why says what becomes of a connection
// between two pods, and by which rule.
func (x *story) decided(from, to, verdict, rule string) {
	x.Helper()
	out, err := x.command(x.weft, "why", "-n", x.namespace, from, to, "--port", fmt.Sprint(port))
	want := 0
	if verdict == "denied" {
		want = 1
	}
	if code := exitCode(err); code != want {
		x.Errorf("weft why %s %s ends with exit code %d, not %d: %v\n%s", from, to, code, want, err, out)
		return
	}
	if err := says(out, verdict+":", rule); err != nil {
		x.Errorf("weft why %s %s: %v", from, to, err)
	}
}

// dropped waits until weft drops has counted that a rule denied packets, and
// shows one of these from one pod to another.
func (x *story) dropped(from, to string, direction plan.Direction, rule string) {
	x.Helper()
	from, to = x.namespace+"/"+from, x.namespace+"/"+to
	x.eventually(fmt.Sprintf("weft drops says that %s denied packets from %s to %s", rule, from, to), time.Minute, func() error {
		out, err := x.command(x.weft, "drops", "-o", "json")
		if err != nil {
			return err
		}
		r, err := drops.ReadReport(strings.NewReader(out))
		if err != nil {
			return err
		}
		counted := slices.ContainsFunc(r.Counts, func(c drops.Count) bool {
			return c.Rule == rule && c.Direction == direction && c.Packets > 0
		})
		shown := slices.ContainsFunc(r.Recent, func(d drops.Record) bool {
			return d.Rule == rule && d.Direction == direction && d.Source.Pod == from && d.Destination.Pod == to && d.Destination.Port == port
		})
		if !counted || !shown {
			return fmt.Errorf("counted: %t, shown: %t, in\n%s", counted, shown, tail(out, 40))
		}
		return nil
	})
}

// reports waits until the last report of a pod that sends load is as a function
// wants it.
func (x *story) reports(pod string, f func(traffic.Report) error) {
	x.Helper()
	x.eventually("the reports of "+pod+" say what they should", patience, func() error {
		all, err := x.allReports(pod)
		if err != nil {
			return err
		}
		return f(all[len(all)-1])
	})
}

// allReports returns what a pod that sends load has reported; at least one.
func (x *story) allReports(pod string) ([]traffic.Report, error) {
	out, err := x.command(x.kubectl, "logs", "-n", x.namespace, pod)
	if err != nil {
		return nil, err
	}
	all, err := ParseReports(out)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("%s has reported nothing", pod)
	}
	return all, err
}

// ended waits until a load has had no answer for some seconds, and says how
// long after a change that forbids it the last one came. A report is of the
// second before it.
func (x *story) ended(pod string, changed time.Time) {
	x.Helper()
	const quiet = 3 * time.Second
	var last time.Duration
	x.eventually(pod+" gets no answers any more", patience, func() error {
		all, err := x.allReports(pod)
		if err != nil {
			return err
		}
		end := all[len(all)-1]
		i := slices.IndexFunc(all, func(r traffic.Report) bool { return r.Answered == end.Answered })
		last = all[i].Time.Sub(changed)
		if silent := end.Time.Sub(all[i].Time); silent < quiet {
			return fmt.Errorf("the last answer was %s ago", silent)
		}
		return nil
	})
	x.measured("the last answer over connections that a change forbids came no later than %s after it", max(last, 0).Round(100*time.Millisecond))
	// A second, one to the report, and much for a machine that does other things.
	if last > 10*time.Second {
		x.Errorf("connections went on for %s after a change that forbids them; one second is the target", last)
	}
}

func atLeast(what string, n, want int64) error {
	if n < want {
		return fmt.Errorf("%d %s", n, what)
	}
	return nil
}

// says fails unless all words are in a text.
func says(text string, words ...string) error {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return fmt.Errorf("it does not say %q:\n%s", w, text)
		}
	}
	return nil
}

// labelled gives a pod a label more.
func labelled(key, value string) option { return func(p *corev1.Pod) { p.Labels[key] = value } }
