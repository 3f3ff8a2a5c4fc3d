package plugin

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/plan"
)

// portsPlan is what all plug-ins and layers state of a node with three pods.
const portsPlan = `node node1 addresses 172.30.0.2,fd01::2 mtu 1450
pool default 10.1.1.0/24 gateway 10.1.1.1
pool default fd00:1::/64 gateway fd00:1::1
endpoint weft1 network default addresses 10.1.1.2,fd00:1::2 name default/a
endpoint weft2 network default addresses 10.1.1.3,fd00:1::3 name default/b
endpoint weft3 network default addresses 10.1.1.4 name default/c
service default 10.96.0.10 tcp 80 to default/web # Service default/web
service default 172.30.0.2 tcp 30080 to default/web masquerade endpoints,strangers # Service default/web
service default 172.30.0.2 tcp 30081 from inside to default/web # Service default/web
service default 172.30.0.2 tcp 30081 from outside to default/web/local # Service default/web
`

func TestPutPorts(t *testing.T) {
	base, err := plan.Parse(portsPlan)
	if err != nil {
		t.Fatal(err)
	}
	at := func(address string, protocol plan.Protocol, node, container uint16) Port {
		p := Port{Protocol: protocol, Node: node, Container: container}
		if address != "" {
			p.Address = netip.MustParseAddr(address)
		}
		return p
	}
	// The API server is on the node, and on another machine.
	var servers []plan.ServiceKey
	for _, address := range []string{"172.30.0.2", "172.30.0.9"} {
		servers = append(servers, plan.ServiceKey{Network: plan.DefaultNetwork, Address: netip.MustParseAddr(address), Protocol: plan.TCP, Port: 6443})
	}
	for what, test := range map[string]struct {
		a, b, c []Port // of the pods, of which b came last
		changed string // the lines that came (+) and went (-)
		said    []string
	}{
		"none": {a: []Port{}},
		"at all addresses": {
			a: []Port{at("", plan.TCP, 80, 8080)},
			changed: `+service default 127.0.0.1 tcp 80 from inside to hostport:weft1/8080-tcp # Pod default/a
+service default 172.30.0.2 tcp 80 to hostport:weft1/8080-tcp # Pod default/a
+service default fd01::2 tcp 80 to hostport:weft1/8080-tcp # Pod default/a
+backend default hostport:weft1/8080-tcp 10.1.1.2:8080@node1 # Pod default/a
+backend default hostport:weft1/8080-tcp [fd00:1::2]:8080@node1 # Pod default/a
`},
		"a pod without an address of a family": {
			c: []Port{at("", plan.UDP, 53, 53), at("fd01::2", plan.UDP, 54, 53)},
			changed: `+service default 127.0.0.1 udp 53 from inside to hostport:weft3/53-udp # Pod default/c
+service default 172.30.0.2 udp 53 to hostport:weft3/53-udp # Pod default/c
+backend default hostport:weft3/53-udp 10.1.1.4:53@node1 # Pod default/c
`,
			said: []string{"Pod default/c: hostPort [fd01::2]:54/UDP: the pod has no address of that family: give hostIP of the other"}},
		"one port at two addresses, of two pods": {
			a: []Port{at("172.30.0.2", plan.TCP, 80, 8080)},
			b: []Port{at("127.0.0.1", plan.TCP, 80, 8080)},
			changed: `+service default 127.0.0.1 tcp 80 from inside to hostport:weft2/8080-tcp # Pod default/b
+service default 172.30.0.2 tcp 80 to hostport:weft1/8080-tcp # Pod default/a
+backend default hostport:weft1/8080-tcp 10.1.1.2:8080@node1 # Pod default/a
+backend default hostport:weft1/8080-tcp [fd00:1::2]:8080@node1 # Pod default/a
+backend default hostport:weft2/8080-tcp 10.1.1.3:8080@node1 # Pod default/b
+backend default hostport:weft2/8080-tcp [fd00:1::3]:8080@node1 # Pod default/b
`},
		"twice by one pod": {
			c: []Port{at("172.30.0.2", plan.TCP, 80, 8080), at("172.30.0.2", plan.TCP, 80, 8080), at("172.30.0.2", plan.TCP, 80, 8081)},
			changed: `+service default 172.30.0.2 tcp 80 to hostport:weft3/8080-tcp # Pod default/c
+backend default hostport:weft3/8080-tcp 10.1.1.4:8080@node1 # Pod default/c
`},
		"of another interface of the node": {
			c: []Port{at("172.31.0.2", plan.SCTP, 80, 8080)},
			changed: `+service default 172.31.0.2 sctp 80 to hostport:weft3/8080-sctp # Pod default/c
+backend default hostport:weft3/8080-sctp 10.1.1.4:8080@node1 # Pod default/c
`},
		"the same port, of two pods": {
			a: []Port{at("172.30.0.2", plan.TCP, 80, 8080)},
			b: []Port{at("172.30.0.2", plan.TCP, 80, 80)},
			changed: `+service default 172.30.0.2 tcp 80 to hostport:weft2/80-tcp # Pod default/b
+backend default hostport:weft2/80-tcp 10.1.1.3:80@node1 # Pod default/b
+backend default hostport:weft2/80-tcp [fd00:1::3]:80@node1 # Pod default/b
`,
			said: []string{"Pod default/a: hostPort 172.30.0.2:80/TCP at 172.30.0.2: pod default/b has it, which came later: delete one of them"}},
		"of one family's addresses": {
			a: []Port{at("::", plan.TCP, 80, 8080)},
			b: []Port{at("0.0.0.0", plan.TCP, 80, 8080)},
			changed: `+service default 127.0.0.1 tcp 80 from inside to hostport:weft2/8080-tcp # Pod default/b
+service default 172.30.0.2 tcp 80 to hostport:weft2/8080-tcp # Pod default/b
+service default fd01::2 tcp 80 to hostport:weft1/8080-tcp # Pod default/a
+backend default hostport:weft1/8080-tcp 10.1.1.2:8080@node1 # Pod default/a
+backend default hostport:weft1/8080-tcp [fd00:1::2]:8080@node1 # Pod default/a
+backend default hostport:weft2/8080-tcp 10.1.1.3:8080@node1 # Pod default/b
+backend default hostport:weft2/8080-tcp [fd00:1::3]:8080@node1 # Pod default/b
`},
		"what a scheduler lets two pods have": {
			a: []Port{at("fd01::2", plan.TCP, 80, 8080), at("::", plan.TCP, 81, 8080)},
			b: []Port{at("::", plan.TCP, 80, 8080), at("fd01::2", plan.TCP, 81, 8080)},
			changed: `+service default fd01::2 tcp 80 to hostport:weft1/8080-tcp # Pod default/a
+service default fd01::2 tcp 81 to hostport:weft1/8080-tcp # Pod default/a
+backend default hostport:weft1/8080-tcp 10.1.1.2:8080@node1 # Pod default/a
+backend default hostport:weft1/8080-tcp [fd00:1::2]:8080@node1 # Pod default/a
`,
			said: []string{"Pod default/b: hostPort [::]:80/TCP at fd01::2: pod default/a has it, which came earlier: delete one of them, " +
				"[fd01::2]:81/TCP at fd01::2: pod default/a has it, which came earlier: delete one of them"}},
		"what it does not": {
			a: []Port{at("", plan.TCP, 80, 8080)},
			b: []Port{at("172.30.0.2", plan.TCP, 80, 8080)},
			changed: `+service default 127.0.0.1 tcp 80 from inside to hostport:weft1/8080-tcp # Pod default/a
+service default 172.30.0.2 tcp 80 to hostport:weft2/8080-tcp # Pod default/b
+service default fd01::2 tcp 80 to hostport:weft1/8080-tcp # Pod default/a
+backend default hostport:weft1/8080-tcp 10.1.1.2:8080@node1 # Pod default/a
+backend default hostport:weft1/8080-tcp [fd00:1::2]:8080@node1 # Pod default/a
+backend default hostport:weft2/8080-tcp 10.1.1.3:8080@node1 # Pod default/b
+backend default hostport:weft2/8080-tcp [fd00:1::3]:8080@node1 # Pod default/b
`,
			said: []string{"Pod default/a: hostPort 80/TCP at 172.30.0.2: pod default/b has it, which came later: delete one of them"}},
		"what Services have": {
			c: []Port{at("", plan.TCP, 30080, 80), at("", plan.TCP, 30081, 80)},
			changed: `-service default 172.30.0.2 tcp 30080 to default/web masquerade endpoints,strangers # Service default/web
-service default 172.30.0.2 tcp 30081 from inside to default/web # Service default/web
-service default 172.30.0.2 tcp 30081 from outside to default/web/local # Service default/web
+service default 127.0.0.1 tcp 30080 from inside to hostport:weft3/80-tcp # Pod default/c
+service default 127.0.0.1 tcp 30081 from inside to hostport:weft3/80-tcp # Pod default/c
+service default 172.30.0.2 tcp 30080 to hostport:weft3/80-tcp # Pod default/c
+service default 172.30.0.2 tcp 30081 to hostport:weft3/80-tcp # Pod default/c
+backend default hostport:weft3/80-tcp 10.1.1.4:80@node1 # Pod default/c
`,
			said: []string{"Service default/web: on node node1 172.30.0.2:30080/TCP is a hostPort of pod default/c, 172.30.0.2:30081/TCP is a hostPort of pod default/c, which is served in its place: give one of them another port"}},
		"where the API server is": {
			a: []Port{at("", plan.TCP, 6443, 80), at("172.30.0.2", plan.UDP, 6443, 80)},
			c: []Port{at("127.0.0.1", plan.TCP, 6443, 80)},
			changed: `+service default 172.30.0.2 udp 6443 to hostport:weft1/80-udp # Pod default/a
+service default fd01::2 tcp 6443 to hostport:weft1/80-tcp # Pod default/a
+backend default hostport:weft1/80-tcp 10.1.1.2:80@node1 # Pod default/a
+backend default hostport:weft1/80-tcp [fd00:1::2]:80@node1 # Pod default/a
+backend default hostport:weft1/80-udp 10.1.1.2:80@node1 # Pod default/a
+backend default hostport:weft1/80-udp [fd00:1::2]:80@node1 # Pod default/a
`,
			said: []string{"Pod default/a: hostPort 6443/TCP at 172.30.0.2: the API server is there, which nodes must find: choose another port",
				"Pod default/c: hostPort 127.0.0.1:6443/TCP at 127.0.0.1: the API server is there, which nodes must find: choose another port"}},
		"what no port can be at": {
			a: []Port{at("8.8.8.8", plan.UDP, 53, 53), at("::1", plan.TCP, 80, 80)},
			said: []string{"Pod default/a: hostPort 8.8.8.8:53/UDP: node1 has no address 8.8.8.8: leave hostIP out, or give one of the node's, " +
				"[::1]:80/TCP: no kernel hands what is sent to ::1 to a pod: leave hostIP out, or give one of the node's other addresses"}},
	} {
		t.Run(what, func(t *testing.T) {
			n := Node{Name: "node1", Addresses: base.Local.Addresses, Others: []netip.Addr{netip.MustParseAddr("172.31.0.2")}}
			for i, ports := range [][]Port{test.a, test.c, test.b} {
				name := []string{"a", "c", "b"}[i]
				n.Endpoints = append(n.Endpoints, Endpoint{Interface: map[string]string{"a": "weft1", "b": "weft2", "c": "weft3"}[name], Network: plan.DefaultNetwork,
					Namespace: "default", Pod: name, Ports: ports, Created: time.Unix(int64(i), 0)})
				for k, e := range base.Endpoints.All() {
					if k.Interface == n.Endpoints[i].Interface {
						n.Endpoints[i].Addresses = e.Addresses
					}
				}
			}
			before := base.String()
			p, problems := PutPorts(base, n, servers)
			if base.String() != before {
				t.Error("what it was given is changed")
			}
			if err := p.Validate(); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(test.changed, changedLines(base, p)); diff != "" {
				t.Errorf("what changes (-want +got):\n%s", diff)
			}
			var said []string
			for _, problem := range problems {
				said = append(said, problem.String())
			}
			if diff := cmp.Diff(test.said, said); diff != "" {
				t.Errorf("what is said (-want +got):\n%s", diff)
			}
			var w Ports
			for range 2 {
				if again, more := w.Put(base, n, servers); again.String() != p.String() || !slices.EqualFunc(more, problems, func(a, b Problem) bool { return a.String() == b.String() }) {
					t.Error("once more, it is another plan")
				}
			}
			// It knows what it has put where nothing changed that matters, and nothing else.
			other := *base
			other.Local.MTU++
			if again, _ := w.Put(&other, n, servers); again.Services != w.after.services && len(w.endpoints) > 0 || again.Local.MTU != other.Local.MTU {
				t.Error("it puts anew what it knows, or forgets the rest")
			}
			fresh, _ := PutPorts(base, n, nil)
			if again, _ := w.Put(base, n, nil); again.String() != fresh.String() {
				t.Error("the API server has gone, and it is not as if it had never been there")
			}
			if len(n.Endpoints[0].Ports) > 0 {
				n.Endpoints[0].Ports = n.Endpoints[0].Ports[1:]
				fresh, _ := PutPorts(base, n, servers)
				if again, _ := w.Put(base, n, servers); again.String() != fresh.String() {
					t.Error("a pod has one port less, and it is not as if it had never had it")
				}
			}
		})
	}
}

// changedLines are the lines of a plan that went, and those that came.
func changedLines(p, q *plan.Plan) string {
	var b strings.Builder
	before, after := strings.Split(p.String(), "\n"), strings.Split(q.String(), "\n")
	for _, side := range []struct {
		sign       string
		these, not []string
	}{{"-", before, after}, {"+", after, before}} {
		for _, line := range side.these {
			if !slices.Contains(side.not, line) {
				b.WriteString(side.sign + line + "\n")
			}
		}
	}
	return b.String()
}

func TestHostPorts(t *testing.T) {
	port := func(ip string, host, container int32, protocol corev1.Protocol) corev1.ContainerPort {
		return corev1.ContainerPort{HostIP: ip, HostPort: host, ContainerPort: container, Protocol: protocol}
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Ports: []corev1.ContainerPort{port("", 9000, 9001, corev1.ProtocolTCP)}}},
		Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
			port("", 0, 80, corev1.ProtocolTCP), port("0.0.0.0", 81, 80, ""), port("127.0.0.1", 82, 80, corev1.ProtocolUDP),
			port("", 70000, 80, corev1.ProtocolTCP), port("", 83, 0, corev1.ProtocolTCP), port("", 84, 80, "ICMP"), port("::ffff:172.30.0.2", 86, 80, ""), port("fd01:0::2", 87, 80, ""), port("fd01::2", 85, 80, corev1.ProtocolSCTP)}}},
	}}
	var got []string
	for _, p := range HostPorts(pod) {
		got = append(got, p.String())
	}
	if want := []string{"0.0.0.0:81/TCP", "127.0.0.1:82/UDP", "[fd01::2]:85/SCTP"}; !slices.Equal(got, want) {
		t.Errorf("it asks for %q, and not %q", got, want)
	}
	if none := HostPorts(&corev1.Pod{}); none == nil || len(none) > 0 {
		t.Errorf("of a pod that asks for none they are %v", none)
	}
}
