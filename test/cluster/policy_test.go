package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/drops"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/plugin/networkpolicy"
)

// policyPod runs a pod with labels; without a command it serves on
// lab.ServerPort, which it calls http.
func (c *cluster) policyPod(name, node, app string, command ...string) netip.Addr {
	c.Helper()
	addresses, err := c.lab.Run(c.Context(), lab.Pod{Name: name, Node: node, Labels: map[string]string{"app": app}, Command: command,
		Ports: []corev1.ContainerPort{{Name: "http", Protocol: corev1.ProtocolTCP, ContainerPort: lab.ServerPort}}})
	if err != nil {
		c.Fatal(err)
	}
	return addresses[0]
}

// mustReach wants a place to reach a server, soon.
func (c *cluster) mustReach(from place, to netip.Addr) {
	c.Helper()
	c.eventually(func() error { _, _, err := c.reach(from, to); return err })
}

// mustNotReach wants a place not to reach a server, soon.
func (c *cluster) mustNotReach(from place, to netip.Addr) {
	c.Helper()
	c.eventually(func() error {
		if server, _, err := c.reach(from, to); err == nil {
			return fmt.Errorf("%s reaches %s at %s", from, server, to)
		}
		return nil
	})
}

const isolateAll = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolate-%[1]s, namespace: default}
spec: {podSelector: {matchLabels: {app: %[1]s}}, policyTypes: [Ingress]}
`

const allowWeb = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: default}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: friend}}}]
    ports: [{port: http}]
  - from: [{ipBlock: {cidr: %[1]s, except: [%[2]s/32, %[3]s/32]}}]
`

const allowFriends = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friends, namespace: default}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]
`

// TestPoliciesOnFlannel has policies on another network than OpenShift's, whose nodes
// say by their leases which pods are theirs.
func TestPoliciesOnFlannel(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2, Plugin: "flannel-networkpolicy", IPv6: true})
	web := c.policyPod("web", "node1", "web")
	c.policyPod("friend", "node2", "friend")
	c.policyPod("near", "node1", "friend")
	c.policyPod("stranger", "node2", "stranger")
	for _, p := range []place{"pod/friend", "pod/near", "pod/stranger", "node/node1", "node/node2"} {
		c.mustReach(p, web)
	}
	check := func() {
		c.Helper()
		for _, p := range []place{"pod/friend", "pod/near", "node/node1"} {
			c.mustReach(p, web)
		}
		for _, p := range []place{"pod/stranger", "node/node2"} {
			c.mustNotReach(p, web)
		}
		c.weft("", "status").want(t, 0)
	}
	c.apply(fmt.Sprintf(isolateAll, "web"))
	c.mustNotReach("pod/friend", web)
	c.apply(allowFriends)
	check()
	// Whoever comes later is told apart as well, and an agent that begins anew knows
	// what the one before knew.
	if err := errors.Join(c.lab.Kill("node1"), c.lab.Start(t.Context(), "node1")); err != nil {
		t.Fatal(err)
	}
	c.policyPod("friend2", "node2", "friend")
	c.policyPod("stranger2", "node1", "stranger")
	c.mustReach("pod/friend2", web)
	c.mustNotReach("pod/stranger2", web)
	check()
}

// TestPolicies follows a cluster's policies through its day: what they allow,
// what they deny, and who says so, while labels change, the registry goes away
// and agents start again.
func TestPolicies(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2, Plugin: "openshift-networkpolicy"})
	web := c.policyPod("web", "node1", "web")
	c.policyPod("friend", "node2", "friend")
	c.policyPod("near", "node1", "friend")
	c.policyPod("guest", "node2", "guest")
	stranger := c.policyPod("stranger", "node2", "stranger")
	everyone := []place{"pod/friend", "pod/near", "pod/guest", "pod/stranger", "node/node1", "node/node2"}
	for _, p := range everyone {
		c.mustReach(p, web)
	}

	c.apply(fmt.Sprintf(isolateAll, "web"))
	for _, p := range everyone {
		if p == "node/node1" { // the node reaches its own pods
			c.mustReach(p, web)
		} else {
			c.mustNotReach(p, web)
		}
	}
	// All of node2 but stranger and the node itself, which sends from its
	// gateway's address.
	block, err := stranger.Prefix(24)
	if err != nil {
		t.Fatal(err)
	}
	c.apply(fmt.Sprintf(allowWeb, block, stranger, block.Addr().Next()))
	check := func() {
		t.Helper()
		for _, p := range []place{"pod/friend", "pod/near", "pod/guest", "node/node1"} {
			c.mustReach(p, web)
		}
		for _, p := range []place{"pod/stranger", "node/node2"} {
			c.mustNotReach(p, web)
		}
	}
	check()

	// Who denied it, before and after.
	c.weft("", "why", "friend", "web").want(t, 0, "NetworkPolicy default/web ingress[0]")
	c.weft("", "why", "stranger", "web").want(t, 1, "NetworkPolicy default/isolate-web ingress isolation", "app=friend")
	c.eventually(func() error {
		said := c.weft("", "drops", "-o", "json")
		var r drops.Report
		if err := json.Unmarshal([]byte(said.stdout), &r); err != nil || said.code != 0 {
			return fmt.Errorf("weft drops ends with %d: %v\n%s%s", said.code, err, said.stdout, said.stderr)
		}
		const rule = "NetworkPolicy default/isolate-web ingress isolation"
		counted := slices.ContainsFunc(r.Counts, func(c drops.Count) bool { return c.Rule == rule && c.Packets > 0 })
		for _, d := range r.Recent {
			if counted && d.Source.Pod == "default/stranger" && d.Destination.Pod == "default/web" && d.Destination.Port == lab.ServerPort && d.Rule == rule && d.Node == "node1" {
				return nil
			}
		}
		return fmt.Errorf("weft drops tells nothing of stranger:\n%s", said.stdout)
	})
	c.followDrops(web)

	// Labels change.
	relabel := func(app string) {
		t.Helper()
		c.apply("{apiVersion: v1, kind: Pod, metadata: {name: stranger, namespace: default, labels: {app: " + app + "}}}")
	}
	relabel("friend")
	c.mustReach("pod/stranger", web)
	relabel("stranger")
	check()

	// An agent starts again: what is allowed goes on, what is not, does not,
	// and that while there is none, too.
	if err := c.lab.Kill("node1"); err != nil {
		t.Fatal(err)
	}
	check()
	if err := c.lab.Start(t.Context(), "node1"); err != nil {
		t.Fatal(err)
	}
	check()

	// The registry goes away: the last policies stay in force.
	if err := c.lab.Kill("controller1"); err != nil {
		t.Fatal(err)
	}
	check()
}

// followDrops wants one who follows to be told of a packet, with its rule.
func (c *cluster) followDrops(web netip.Addr) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin+"weft", "drops", "-f", "--node", "node1", "-o", "json")
	cmd.Env = append(os.Environ(), lab.DirVariable+"="+c.dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	told := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if l := lines.Text(); strings.Contains(l, `"pod":"default/stranger"`) {
				told <- l
				break
			}
		}
		io.Copy(io.Discard, out)
	}()
	for {
		c.reach("pod/stranger", web) // it does not, and that is what is told
		select {
		case line := <-told:
			cancel()
			cmd.Wait()
			if !strings.Contains(line, "NetworkPolicy default/isolate-web ingress isolation") {
				c.Errorf("told is %s", line)
			}
			return
		case <-ctx.Done():
			cmd.Wait()
			c.Fatal("weft drops -f tells nothing")
		default:
		}
	}
}

// A connection that a new policy forbids ends within a second; one that is
// allowed lasts, through a start of the agent, too.
func TestPoliciesEndConnections(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2, Plugin: "openshift-networkpolicy"})
	shut := c.policyPod("shut", "node1", "shut", self, "echo")
	open := c.policyPod("open", "node1", "open", self, "echo")
	c.listens("shut")
	c.listens("open")
	c.policyPod("client", "node2", "client")
	ends, lasts := c.converse("pod/client", shut), c.converse("pod/client", open)
	ends.exchange('a')
	lasts.exchange('a')

	c.apply(fmt.Sprintf(isolateAll, "shut"))
	c.planHas("node1", "NetworkPolicy default/isolate-shut")
	for forbidden := time.Now(); ; {
		if _, err := ends.in.Write([]byte("b")); err != nil {
			break
		}
		ends.out.SetReadDeadline(time.Now().Add(fetchTimeout))
		if n, _ := ends.out.Read(make([]byte, 1)); n == 0 {
			break
		}
		if took := time.Since(forbidden); took > time.Second {
			t.Fatalf("a connection that a policy forbids goes on for %s", took)
		}
	}
	lasts.exchange('b')
	if err := c.lab.Kill("node1"); err != nil {
		t.Fatal(err)
	}
	lasts.exchange('c')
	if err := c.lab.Start(t.Context(), "node1"); err != nil {
		t.Fatal(err)
	}
	lasts.exchange('d')
	lasts.end()
}

// A pod is isolated from its first packet: one that sends from before it has
// an address reaches nothing that its policies forbid.
func TestAPodIsIsolatedFromItsFirstPacket(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2, Plugin: "openshift-networkpolicy"})
	web := c.policyPod("web", "node2", "web")
	c.apply(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: silent, namespace: default}
spec: {podSelector: {matchLabels: {app: silent}}, policyTypes: [Egress]}
`)
	c.planHas("node1", "node node1")
	for i := range 5 {
		name := fmt.Sprint("silent-", i)
		to := netip.AddrPortFrom(web, lab.ServerPort).String()
		c.policyPod(name, "node1", "silent", "sh", "-c",
			fmt.Sprintf("for i in 1 2 3; do %s fetch http://%s/ && echo reached; done; echo tried; exec sleep 1000", self, to))
		c.eventually(func() error {
			s, err := c.lab.Status()
			if err != nil {
				return err
			}
			for _, p := range s.Pods {
				if p.Name != name {
					continue
				}
				b, err := os.ReadFile(p.Log)
				if err != nil {
					return err
				}
				if strings.Contains(string(b), "reached") {
					t.Fatalf("%s reaches web:\n%s", name, b)
				}
				if !strings.Contains(string(b), "tried") {
					return fmt.Errorf("%s says %s", name, b)
				}
			}
			return nil
		})
	}
	c.outliveNothing(web)
}

const isolateByCluster = `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: shut}
spec:
  tier: Admin
  priority: 5
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}
  ingress:
  - {action: Deny, from: [{namespaces: {}}]}
`

// outliveNothing changes to a plug-in that enforces no policies and back. It is refused
// unless it is forced. What is said of policies is so at each point.
func (c *cluster) outliveNothing(web netip.Addr) {
	c.Helper()
	choose := func(plugin string) outcome {
		c.Helper()
		return c.weft("{apiVersion: weft.network/v1, kind: ClusterConfig, metadata: {name: default}, spec: {plugin: "+plugin+"}}", "apply", "-f", "-")
	}
	says := func(want metav1.ConditionStatus, reason string) {
		c.Helper()
		c.eventually(func() error {
			p, err := get[*policyv1alpha2.ClusterNetworkPolicy](c, c.registry(), api.ClusterNetworkPolicy, "shut")
			if err != nil {
				return err
			}
			if now := meta.FindStatusCondition(p.Status.Conditions, networkpolicy.Enforced); now == nil || now.Status != want || now.Reason != reason {
				return fmt.Errorf("the condition is %+v, want %s %s", now, want, reason)
			}
			return nil
		})
	}
	c.policyPod("caller", "node1", "caller")
	c.mustReach("pod/caller", web)
	c.apply(isolateByCluster)
	c.mustNotReach("pod/caller", web)
	says(metav1.ConditionTrue, networkpolicy.ReasonInForce)
	c.weft("", "status").want(c, 0, "No problems.")

	choose("openshift-subnet").want(c, 0, "warning: the cluster will not change to openshift-subnet: 1 clusternetworkpolicy, which openshift-networkpolicy enforces, would be without effect under openshift-subnet (shut)")
	c.weft("", "plugin", "change", "openshift-subnet", "--wait").want(c, 1, "would be without effect under openshift-subnet (shut)")
	c.eventually(func() error {
		if s := c.weft("", "plugin", "status"); s.code != 1 || !strings.Contains(s.stdout, "Refused: ") {
			return fmt.Errorf("weft plugin status ends with %d:\n%s%s", s.code, s.stdout, s.stderr)
		}
		return nil
	})
	c.mustNotReach("pod/caller", web)
	says(metav1.ConditionTrue, networkpolicy.ReasonInForce)
	c.weft("", "plugin", "change", "openshift-subnet", "--force", "--wait").want(c, 0, "Done: new pods get addresses of openshift-subnet.")
	c.mustReach("pod/caller", web)
	says(metav1.ConditionFalse, networkpolicy.ReasonNobodyEnforces)
	c.weft("", "status").want(c, 1, "policies: 2 are enforced by nobody under plug-in openshift-subnet")
	c.weft("", "policy", "status").want(c, 1, "nobody enforces it under plug-in openshift-subnet")
	c.eventually(func() error {
		events, _, err := c.registry().List(c.Context(), api.Event)
		for _, o := range events {
			if e := o.(*corev1.Event); e.InvolvedObject.Name == "silent" && e.Reason == networkpolicy.ReasonNobodyEnforces {
				return nil
			}
		}
		return fmt.Errorf("no Event says that nobody enforces the NetworkPolicy silent: %v", err)
	})
	// What nodes said is taken back, so that nobody goes by it later.
	c.eventually(func() error {
		for _, n := range c.lab.Nodes() {
			if r, err := get[*api.NodeReport](c, c.registry(), api.NodeReportKind, n); err != nil || len(r.Enforced) > 0 {
				return fmt.Errorf("%s says of what is in force: %v, %v", n, r, err)
			}
		}
		return nil
	})

	choose("openshift-networkpolicy").want(c, 0)
	says(metav1.ConditionTrue, networkpolicy.ReasonInForce)
	c.mustNotReach("pod/caller", web)
	c.eventually(func() error {
		if s := c.weft("", "status"); s.code != 0 {
			return fmt.Errorf("weft status ends with %d:\n%s%s", s.code, s.stdout, s.stderr)
		}
		return nil
	})
}
