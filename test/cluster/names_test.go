package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
)

// namedServices are what there are names of: a Service, a headless one whose endpoints are
// pods, one whose endpoints have names of their own, and one that stands for a name outside.
const namedServices = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  ipFamilyPolicy: PreferDualStack
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: v1
kind: Service
metadata: {name: peers, namespace: default}
spec: {clusterIP: None, ipFamilyPolicy: PreferDualStack, selector: {app: web}, ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: default}
spec: {clusterIP: None, ports: [{name: sql, port: 5432}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db, namespace: default, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.1], hostname: db-0}, {addresses: [192.0.2.2], hostname: db-1}]
ports: [{name: sql, port: 5432}]
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere, namespace: default}
spec: {type: ExternalName, externalName: www.outside.example}
---
apiVersion: v1
kind: Service
metadata: {name: till, namespace: shop}
spec: {selector: {app: none}, ports: [{port: 80}]}
`

// serviceAddresses waits until a Service of the default namespace has as many addresses as
// the cluster has families.
func (c *cluster) serviceAddresses(name string) (all []string) {
	c.Helper()
	families := 1
	if c.lab.Options().IPv6 {
		families = 2
	}
	c.eventually(func() error {
		svc, err := registryGet[*corev1.Service](c, api.Service, registry.Key{Namespace: "default", Name: name})
		if err == nil && len(svc.Spec.ClusterIPs) != families {
			err = fmt.Errorf("it has the addresses %v", svc.Spec.ClusterIPs)
		}
		if err == nil {
			all = svc.Spec.ClusterIPs
		}
		return err
	})
	return all
}

// nameServers are where pods of a lab ask.
func (c *cluster) nameServers() []string {
	if c.lab.Options().IPv6 {
		return []string{"10.96.0.10", "fd96::a"}
	}
	return []string{"10.96.0.10"}
}

// mustSay wants a program that a place runs to print some lines, soon.
func (c *cluster) mustSay(p place, want []string, program string, args ...string) {
	c.Helper()
	c.eventually(func() error {
		out, err := c.exec(p, append([]string{self, program}, args...)...)
		if err != nil {
			return err
		}
		got := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		var wrong []error
		for i, arg := range args {
			if len(got) != len(want) || got[i] != want[i] {
				wrong = append(wrong, fmt.Errorf("%s: %s: it says %q, and not %q", p, arg, got[min(i, len(got)-1)], want[i]))
			}
		}
		return errors.Join(wrong...)
	})
}

// sorted are words in the order in which answers are compared.
func sorted(words ...string) string {
	slices.Sort(words)
	return strings.Join(words, " ")
}

// TestNames looks up from pods on each node, and from nodes, what there is in the cluster and
// outside, under whole names and short ones.
func TestNames(t *testing.T) {
	for name, ipv6 := range map[string]bool{"IPv4": false, "both families": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			names(t, lab.Options{Nodes: 2, DNS: true, IPv6: ipv6})
		})
	}
}

func names(t *testing.T, o lab.Options) {
	c := up(t, o)
	var pods [][]netip.Addr
	for i, node := range c.lab.Nodes() {
		a, err := c.lab.Run(t.Context(), lab.Pod{Name: fmt.Sprint("web", i+1), Node: node, Labels: map[string]string{"app": "web"}})
		if err != nil {
			t.Fatal(err)
		}
		pods = append(pods, a)
	}
	c.apply(namedServices)
	web := c.serviceAddresses("web")
	clients := []place{"pod/near", "pod/far"}
	c.run("near", "node1")
	c.run("far", "node2")

	// What is asked of the name server itself.
	type asked struct{ of, name, want string }
	questions := []asked{
		{"A", "web.default.svc.cluster.local", web[0]},
		{"SRV", "_http._tcp.web.default.svc.cluster.local", "web.default.svc.cluster.local.:80"},
		{"SRV", "_udp._tcp.web.default.svc.cluster.local", "NXDOMAIN"},
		{"A", "peers.default.svc.cluster.local", sorted(pods[0][0].String(), pods[1][0].String())},
		{"A", "db.default.svc.cluster.local", "192.0.2.1 192.0.2.2"},
		{"A", "db-1.db.default.svc.cluster.local", "192.0.2.2"},
		{"SRV", "_sql._tcp.db.default.svc.cluster.local", "db-0.db.default.svc.cluster.local.:5432 db-1.db.default.svc.cluster.local.:5432"},
		{"A", "elsewhere.default.svc.cluster.local", sorted("www.outside.example.", "172.30.0.1")},
		{"A", "none.default.svc.cluster.local", "NXDOMAIN"},
		{"TXT", "dns-version.cluster.local", "1.1.0"},
		{"PTR", reverse(web[0]), "web.default.svc.cluster.local."},
		{"PTR", reverse("192.0.2.2"), "db-1.db.default.svc.cluster.local."},
		{"A", "www.outside.example", "172.30.0.1"},
		{"A", "alias.outside.example", sorted("www.outside.example.", "172.30.0.1")},
		{"MX", "www.outside.example", "no data"},
		{"A", "none.www.outside.example", "NXDOMAIN"},
	}
	// What only TCP has room for.
	var large []string
	for i := range 20 {
		large = append(large, strings.Repeat(fmt.Sprint(i%10), 200))
	}
	questions = append(questions, asked{"TXT", "large.outside.example", sorted(large...)})
	if o.IPv6 {
		questions = append(questions, asked{"AAAA", "web.default.svc.cluster.local", web[1]}, asked{"PTR", reverse(web[1]), "web.default.svc.cluster.local."},
			asked{"AAAA", "peers.default.svc.cluster.local", sorted(pods[0][1].String(), pods[1][1].String())},
			asked{"AAAA", "www.outside.example", "fd30::1"})
	} else {
		questions = append(questions, asked{"AAAA", "web.default.svc.cluster.local", "no data"}, asked{"AAAA", "www.outside.example", "no data"})
	}
	for _, p := range append(clients, "node/node1", "node/node2") {
		for _, server := range c.nameServers() {
			for _, network := range []string{"udp", "tcp"} {
				var args, want []string
				for _, q := range questions {
					args, want = append(args, strings.Join([]string{network, server, q.of, q.name}, ",")), append(want, q.want)
				}
				c.mustSay(p, want, "namesAsked", args...)
			}
		}
	}

	// What programs in pods find, which search.
	www := []string{"172.30.0.1"}
	if o.IPv6 {
		www = append(www, "fd30::1")
	}
	before, err := c.lab.Asked(t.Context(), "www.outside.example.default.svc.cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range clients {
		c.mustSay(p, []string{sorted(web...), sorted(web...), sorted(web...), sorted(web...), sorted(www...), sorted(www...), "192.0.2.1"}, "resolve",
			"web", "web.default", "web.default.svc", "web.default.svc.cluster.local", "elsewhere", "www.outside.example", "db-0.db")
		c.eventually(func() error {
			out, err := c.exec(p, self, "fetch", "http://web/")
			if err == nil && !strings.HasPrefix(out, "web") {
				err = fmt.Errorf("web says %q", out)
			}
			return err
		})
		if out := c.mustExec(p, self, "resolve", "till", "none"); strings.Count(out, "none:") != 2 {
			t.Errorf("%s finds what is in another namespace, or nowhere: %s", p, out)
		}
	}
	// Nobody outside hears what pods search for inside.
	after, err := c.lab.Asked(t.Context(), "www.outside.example.default.svc.cluster.local")
	if err != nil || before != 0 || after != 0 {
		t.Errorf("outside was asked for a name of the cluster %d and %d times, %v", before, after, err)
	}

	// A pod knows itself, and its commands the Services that were there before it.
	for file, want := range map[string]string{"/etc/hostname": "near\n", "/etc/hosts": "\tnear\n", "/etc/resolv.conf": "search default.svc.cluster.local svc.cluster.local cluster.local\n"} {
		if got := c.mustExec("pod/near", "cat", file); !strings.Contains(got, want) {
			t.Errorf("%s of a pod is %q", file, got)
		}
	}
	if got := c.mustExec("pod/near", "sh", "-c", "echo $WEB_SERVICE_HOST $WEB_PORT_80_TCP_PROTO"); got != web[0]+" tcp\n" {
		t.Errorf("the environment says %q", got)
	}
	c.weft("", "lab", "run", "alone", "--node", "node1", "--enable-service-links=false", "--env", "MODE=test", "--env", "MODE=test=2", "--", "sh", "-c", "echo $MODE $WEB_SERVICE_HOST >/dev/shm/out; sleep 1000").want(t, 0)
	c.weft("", "lab", "exec", "alone", "--", "sh", "-c", "echo $MODE $WEB_SERVICE_HOST").want(t, 0, "test=2\n")
	c.wantStatus(0, "No problems.")
}

// reverse is the name under which an address is looked up.
func reverse(address string) string {
	name, err := dns.ReverseAddr(address)
	if err != nil {
		panic(err)
	}
	return name
}

// askOnly lets the pods of an app send to the name servers of the cluster alone.
const askOnly = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: ask-only, namespace: default}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}]
    ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]
`

const sendNothing = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: ask-only, namespace: default}
spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Egress]}
`

// TestNamesAndPolicies has a policy let pods ask those that the Service for names selects,
// and nobody else: the node's own name server is one of them. Without that, nobody is asked.
func TestNamesAndPolicies(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2, Plugin: "openshift-networkpolicy", DNS: true, IPv6: true})
	web := c.policyPod("web", "node1", "web")
	c.policyPod("client", "node1", "client")
	c.policyPod("distant", "node2", "client")
	c.policyPod("free", "node1", "free")
	c.apply(webService)
	address := c.serviceAddresses("web")[0]
	clients := []place{"pod/client", "pod/distant"}
	var questions, want, nothing []string
	for _, server := range c.nameServers() {
		for _, network := range []string{"udp", "tcp"} {
			questions = append(questions, network+","+server+",A,web.default.svc.cluster.local", network+","+server+",A,www.outside.example")
			want, nothing = append(want, address, "172.30.0.1"), append(nothing, noAnswer, noAnswer)
		}
	}
	for _, p := range clients {
		c.mustSay(p, want, "namesAsked", questions...)
		c.mustReach(p, web)
	}
	c.apply(askOnly)
	for _, p := range clients {
		c.mustNotReach(p, web)
		c.mustSay(p, want, "namesAsked", questions...)
	}
	c.apply(sendNothing)
	for _, p := range clients {
		c.mustSay(p, nothing, "namesAsked", questions...)
	}
	c.mustSay("pod/free", want, "namesAsked", questions...)
	c.weft("", "delete", "networkpolicy", "ask-only").want(t, 0)
	for _, p := range clients {
		c.mustSay(p, want, "namesAsked", questions...)
	}
	c.wantStatus(0, "No problems.")
}

// TestNamesGoOn looks names up all the time while all is ended by which they are answered,
// one after the other.
func TestNamesGoOn(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2, DNS: true, IPv6: true, EtcdApart: true})
	c.run("near", "node1")
	c.run("far", "node2")
	c.apply(namedServices)
	web := c.serviceAddresses("web")
	var questions, args, want []string
	for i, server := range c.nameServers() {
		of := []string{"A", "AAAA"}[i]
		for _, network := range []string{"udp", "tcp"} {
			for name, answer := range map[string]string{"web.default.svc.cluster.local": web[i], "www.outside.example": []string{"172.30.0.1", "fd30::1"}[i]} {
				q := strings.Join([]string{network, server, of, name}, ",")
				args, want = append(args, q), append(want, answer)
				questions = append(questions, q+"="+answer)
			}
		}
	}
	var lookers []*looker
	for _, p := range []place{"pod/near", "pod/far"} {
		c.mustSay(p, want, "namesAsked", args...)
		lookers = append(lookers, c.lookUpAll(p, questions...))
	}
	lossless := func(what string) {
		t.Helper()
		for _, l := range lookers {
			l.lossless(what)
		}
	}
	lossless("nothing happens")

	for range 3 {
		c.killServer("node1")
		c.killServer("node2")
	}
	lossless("name servers killed")

	for range 2 {
		back := c.replaceKeeper("node1")
		lossless("keeper replaced")
		back()
		lossless("keeper replaced again")
	}

	if err := errors.Join(c.lab.Kill("node1"), c.lab.Kill("node2")); err != nil {
		t.Fatal(err)
	}
	lossless("agents gone")
	c.killServer("node1") // it begins by what the agent wrote
	lossless("agents gone, and a name server killed")
	if err := errors.Join(c.lab.Start(t.Context(), "node1"), c.lab.Start(t.Context(), "node2")); err != nil {
		t.Fatal(err)
	}
	lossless("agents back")

	if err := c.lab.Kill(lab.Etcd); err != nil {
		t.Fatal(err)
	}
	lossless("etcd away")
	c.killServer("node2")
	lossless("etcd away, and a name server killed")
	if err := c.lab.Start(t.Context(), lab.Etcd); err != nil {
		t.Fatal(err)
	}
	lossless("etcd back")

	// What was answered outside before is so still while nobody there answers.
	if err := c.lab.Kill(lab.OutsideNames); err != nil {
		t.Fatal(err)
	}
	lossless("outside away")
	if err := c.lab.Start(t.Context(), lab.OutsideNames); err != nil {
		t.Fatal(err)
	}
	for _, l := range lookers {
		if err := l.stop(); err != nil {
			t.Error(err)
		}
	}

	// What changes is answered anew.
	c.weft("", "delete", "service", "web").want(t, 0)
	for _, p := range []place{"pod/near", "pod/far"} {
		c.mustSay(p, []string{"NXDOMAIN"}, "namesAsked", "udp,10.96.0.10,A,web.default.svc.cluster.local")
	}

	// A node that comes back answers, and its name server is seen to be gone where it is.
	if err := errors.Join(c.lab.StopNode("node2"), c.lab.Start(t.Context(), "node2")); err != nil {
		t.Fatal(err)
	}
	c.mustSay("pod/far", []string{"172.30.0.1"}, "namesAsked", "udp,10.96.0.10,A,www.outside.example")
	if err := c.lab.Kill(lab.NameServer("node1")); err != nil {
		t.Fatal(err)
	}
	c.weft("", "lab", "status").want(t, 1, "node1-dns is dead.", "start it again with: weft lab start-node node1-dns")
	c.eventually(func() error {
		if o := c.weft("", "status"); o.code == 0 || !strings.Contains(o.stdout, "10.96.0.10") {
			return fmt.Errorf("weft status ends with %d and says\n%s", o.code, o.stdout)
		}
		return nil
	})
	c.weft("", "lab", "start-node", "node1").want(t, 0)
	c.mustSay("pod/near", []string{"172.30.0.1"}, "namesAsked", "udp,10.96.0.10,A,www.outside.example")
	c.eventually(func() error {
		if o := c.weft("", "status"); o.code != 0 {
			return fmt.Errorf("weft status says\n%s", o.stdout)
		}
		return nil
	})
}

// killServer ends a node's name server without a warning, and waits until there is another.
func (c *cluster) killServer(node string) {
	c.Helper()
	before := c.serverOf(node)
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		c.Fatal(err)
	}
	c.eventually(func() error {
		if now := c.childOf(c.lab.PID(lab.NameServer(node))); now == 0 || now == before {
			return fmt.Errorf("the name server of %s is process %d, as before", node, now)
		}
		return nil
	})
}

// serverOf waits until what keeps a node's name server running has one, and returns its process.
func (c *cluster) serverOf(node string) (pid int) {
	c.Helper()
	c.eventually(func() error {
		if pid = c.childOf(c.lab.PID(lab.NameServer(node))); pid == 0 {
			return fmt.Errorf("%s has no name server", node)
		}
		return nil
	})
	return pid
}

// childOf returns the one process that another has started; 0 where it has none.
func (c *cluster) childOf(pid int) (child int) {
	c.Helper()
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name()))
		if fields := strings.Fields(string(b)); len(fields) > 0 {
			fmt.Sscan(fields[0], &child)
		}
	}
	return child
}

// replaceKeeper starts another process that keeps a node's name server running, has it take
// over from that of the lab, which it ends then, and returns what does the same the other way
// round.
func (c *cluster) replaceKeeper(node string) (back func()) {
	c.Helper()
	signals, ended := make(chan os.Signal, 1), make(chan error, 1)
	out, write := io.Pipe()
	var errs bytes.Buffer
	go func() {
		ended <- c.execute(place("node/"+node), lab.Command{Args: []string{"sh", "-c", "echo $$; exec " + bin + "weft-dns"}, Stdout: write, Stderr: &errs, Signals: signals})
	}()
	var other int
	if _, err := fmt.Fscan(out, &other); err != nil {
		c.Fatal(err)
	}
	c.takesOver(other, c.lab.PID(lab.NameServer(node)))
	if err := c.lab.Kill(lab.NameServer(node)); err != nil {
		c.Fatal(err)
	}
	return func() {
		c.Helper()
		if err := c.lab.Start(c.Context(), lab.NameServer(node)); err != nil {
			c.Fatal(err)
		}
		c.takesOver(c.lab.PID(lab.NameServer(node)), other)
		signals <- syscall.SIGTERM
		if err := <-ended; err != nil {
			c.Errorf("the other keeper of %s: %v: %s", node, err, errs.String())
		}
	}
}

// takesOver waits until a keeper has a server and another has none.
func (c *cluster) takesOver(keeper, from int) {
	c.Helper()
	c.eventually(func() error {
		if has, had := c.childOf(keeper), c.childOf(from); has == 0 || had != 0 {
			return fmt.Errorf("keeper %d has server %d, and %d has %d", keeper, has, from, had)
		}
		return nil
	})
}
