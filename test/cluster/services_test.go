package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
)

// fetch asks the server at an address and port.
func (c *cluster) fetch(from place, at netip.AddrPort) (server string, seen netip.Addr, err error) {
	out, err := c.exec(from, self, "fetch", "http://"+at.String()+"/")
	if err != nil {
		return "", netip.Addr{}, err
	}
	return parseAnswer(out)
}

// mustServe wants a place to get answers at an address and port from all of some servers
// and from no other, soon and then many times in a row.
func (c *cluster) mustServe(from place, at netip.AddrPort, servers ...string) {
	c.Helper()
	c.eventually(func() error {
		seen := make(map[string]bool)
		for range 4 * len(servers) {
			server, _, err := c.fetch(from, at)
			if err != nil {
				return err
			}
			if seen[server] = true; !slices.Contains(servers, server) {
				return fmt.Errorf("%s is served by %s at %s", from, server, at)
			}
		}
		if len(seen) < len(servers) {
			return fmt.Errorf("%s is served by %v alone of %v at %s", from, seen, servers, at)
		}
		return nil
	})
}

const webService = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: NodePort
  ipFamilyPolicy: PreferDualStack
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http, nodePort: 30080}, {name: echo, port: 7, targetPort: 9000}]
`

const balancedService = `
apiVersion: v1
kind: Service
metadata: {name: balanced, namespace: default}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 31999, selector: {app: web}, ports: [{port: 80, targetPort: http}]}
`

// answers waits until somebody is answered at an address with what has some words.
func (c *cluster) answers(from place, address, words string) {
	c.Helper()
	c.eventually(func() error {
		out, err := c.exec(from, self, "fetch", "http://"+address)
		if err == nil && !strings.Contains(out, words) {
			err = fmt.Errorf("%s says %q, and not %s", address, out, words)
		}
		return err
	})
}

// TestServices follows a Service through its day, in a cluster without kube-proxy: it gets
// addresses and endpoints, is reached from pods, nodes and outside, and goes on while its
// pods come and go, agents and the controller start anew, and the plug-in changes.
func TestServices(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 2, Plugin: "openshift-networkpolicy", IPv6: true})
	c.policyPod("web1", "node1", "web")
	c.policyPod("web2", "node2", "web")
	client := c.policyPod("client", "node2", "client")
	c.apply(webService)
	var svc *corev1.Service
	c.eventually(func() (err error) {
		svc, err = registryGet[*corev1.Service](c, api.Service, registry.Key{Namespace: "default", Name: "web"})
		if err == nil && len(svc.Spec.ClusterIPs) < 2 {
			err = fmt.Errorf("it has the addresses %v", svc.Spec.ClusterIPs)
		}
		return err
	})
	var at []netip.AddrPort
	for _, ip := range svc.Spec.ClusterIPs {
		at = append(at, netip.AddrPortFrom(netip.MustParseAddr(ip), 80))
	}
	nodePort := netip.MustParseAddrPort("172.30.0.11:30080")
	inside := []place{"pod/client", "pod/web1", "node/node1", "node/node2"}
	serve := func(servers ...string) {
		c.Helper()
		for _, p := range inside {
			for _, a := range at {
				c.mustServe(p, a, servers...)
			}
			c.mustServe(p, nodePort, servers...)
		}
		c.mustServe("outside", nodePort, servers...)
	}
	serve("web1", "web2")
	// A pod is seen as itself through an address of the cluster.
	c.eventually(func() error {
		_, seen, err := c.fetch("pod/client", at[0])
		if err == nil && seen != client {
			err = fmt.Errorf("it is seen as %s, not as %s", seen, client)
		}
		return err
	})
	// What is no port of it is refused.
	if out, err := c.exec("pod/client", self, "fetch", "http://"+netip.AddrPortFrom(at[0].Addr(), 81).String()+"/"); err == nil || !strings.Contains(out, "refused") {
		t.Errorf("port 81 of it says %q, %v", out, err)
	}
	c.weft("", "why", "client", "svc/web:http").want(t, 0, "allowed: each of the 2 backends")
	c.wantStatus(0, "No problems.")

	// Load balancers are told which nodes have endpoints.
	c.apply(balancedService)
	for address, want := range map[string]string{"172.30.0.11:31999": `"localEndpoints":1`, "172.30.0.11:10256/healthz": `"nodeEligible":true`} {
		c.answers("outside", address, want)
	}

	// A policy holds for who comes by way of it.
	c.apply(fmt.Sprintf(isolateAll, "web"))
	c.eventually(func() error {
		if server, _, err := c.fetch("pod/client", at[0]); err == nil {
			return fmt.Errorf("it is served by %s", server)
		}
		return nil
	})
	c.weft("", "why", "client", "svc/web:http").want(t, 1, "of the 2 backends of the service")
	c.weft("", "delete", "networkpolicy", "isolate-web").want(t, 0)
	serve("web1", "web2")

	// Who is gone gets nothing any more, and who comes is served, whoever starts anew meanwhile.
	if err := c.lab.Delete(t.Context(), "", "web2"); err != nil {
		t.Fatal(err)
	}
	serve("web1")
	if err := errors.Join(c.lab.Kill("node2"), c.lab.Start(t.Context(), "node2"), c.lab.Kill("controller1"), c.lab.Start(t.Context(), "controller1")); err != nil {
		t.Fatal(err)
	}
	c.policyPod("web3", "node2", "web")
	serve("web1", "web3")

	// Who leaves Services to kube-proxy has none here, and none of it stays.
	set := func(proxy string) {
		t.Helper()
		if _, err := registry.Modify(t.Context(), c.registry(), api.ClusterConfigKind, registry.Key{Name: api.DefaultName},
			func(config *api.ClusterConfig) error { config.Spec.ServiceProxy = proxy; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	set(api.KubeProxy)
	for _, node := range []place{"node/node1", "node/node2"} {
		c.eventually(func() error {
			if tables := c.mustExec(node, "nft", "list", "tables"); strings.Contains(tables, "weft-services") {
				return fmt.Errorf("%s has %s", node, tables)
			}
			return nil
		})
	}
	c.weft("", "why", "client", "svc/web:http").want(t, 2, "kube-proxy, not Weft, translates")
	set(api.WeftProxy)
	serve("web1", "web3")

	// It goes on while the plug-in changes.
	c.apply("apiVersion: weft.network/v1\nkind: FlannelConfig\nmetadata: {name: config}\nspec: {Network: 10.5.0.0/16, EnableIPv6: true, IPv6Network: 'fd05::/48', Backend: {Type: vxlan}}\n")
	c.weft("", "plugin", "change", "flannel-networkpolicy", "--wait", "--timeout", "1m").want(t, 0)
	c.policyPod("web4", "node1", "web")
	serve("web1", "web3", "web4")

	// What it had goes with it.
	c.weft("", "delete", "service", "web").want(t, 0)
	c.eventually(func() error {
		if out := c.weft("", "get", "endpointslices", "-o", "name").stdout; strings.Contains(out, "web") {
			return fmt.Errorf("there is still %s", out)
		}
		_, _, err := c.fetch("pod/client", at[0])
		if err == nil {
			return errors.New("it is still served")
		}
		return nil
	})
}
