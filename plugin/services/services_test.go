package services_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/networkpolicy"
	"github.com/weftnet/weft/plugin/openshift"
	"github.com/weftnet/weft/plugin/services"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

const objects = `
apiVersion: network.openshift.io/v1
kind: ClusterNetwork
metadata: {name: default}
network: 10.1.0.0/16
hostsubnetlength: 8
clusterNetworks: [{CIDR: 10.1.0.0/16, hostSubnetLength: 8}]
serviceNetwork: 10.3.0.0/16
---
apiVersion: network.openshift.io/v1
kind: HostSubnet
metadata: {name: node1}
host: node1
hostIP: 172.30.0.11
subnet: 10.1.1.0/24
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  clusterIP: 10.3.0.9
  clusterIPs: [10.3.0.9]
  ipFamilies: [IPv4]
  ports: [{name: http, port: 80, protocol: TCP}]
---
apiVersion: v1
kind: Service
metadata: {name: odd, namespace: default}
spec:
  clusterIP: 10.3.0.9
  clusterIPs: [10.3.0.9]
  ipFamilies: [IPv4]
  ports: [{name: http, port: 80, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.1.1.2], nodeName: node1}]
`

func compile(t *testing.T, p plugin.Plugin, c plugin.Compiler, text string) (*plan.Plan, []plugin.Problem) {
	t.Helper()
	return compileObjects(t, c, decode(t, p, text))
}

// decode returns the objects of a text.
func decode(t *testing.T, p plugin.Plugin, text string) registry.Snapshot {
	t.Helper()
	kinds := slices.Clone(api.Kinds)
	for _, k := range slices.Concat(p.Kinds(), service.Kinds) {
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	decoded, err := api.Decode([]byte(text), kinds)
	if err != nil {
		t.Fatal(err)
	}
	there := map[*registry.Kind][]registry.Object{}
	for _, d := range decoded {
		there[d.Kind] = append(there[d.Kind], d.Object)
	}
	return registry.NewSnapshot(there)
}

func compileObjects(t *testing.T, c plugin.Compiler, there registry.Snapshot) (*plan.Plan, []plugin.Problem) {
	t.Helper()
	made, problems := c.Compile(plugin.Input{Config: api.Effective(there.Get(api.ClusterConfigKind, registry.Key{Name: api.DefaultName})), Objects: there, Node: plugin.Node{Name: "node1", MTU: 1500,
		Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.11")}, Prefixes: []netip.Prefix{netip.MustParsePrefix("172.30.0.0/24")}}})
	if err := made.Validate(); err != nil {
		t.Fatal(err)
	}
	return made, problems
}

// A plug-in with Services says what it says without them, and the tables of these.
func TestServicesOnAPlugin(t *testing.T) {
	base := openshift.Subnet{}
	p := services.On(base, base.Name())
	c := plugin.CompilerOf(p)
	with, problems := compile(t, p, c, objects)
	without, _ := compile(t, base, plugin.CompilerOf(base), objects)
	for _, line := range strings.Split(strings.TrimSpace(without.String()), "\n") {
		if !strings.Contains(with.String(), line) {
			t.Errorf("with Services it does not say: %s", line)
		}
	}
	for _, line := range []string{"service default 10.3.0.9 tcp 80 to ", " 10.1.1.2:8080@node1"} {
		if !strings.Contains(with.String(), line) {
			t.Errorf("it does not say %q, but:\n%s", line, with)
		}
	}
	if len(problems) > 0 {
		t.Errorf("two Services have one address, and the node says what the cluster's work does: %v", problems)
	}
	// What changes of backends changes nothing else.
	next, _ := compile(t, p, c, strings.Replace(objects, "10.1.1.2", "10.1.1.3", 1))
	if d := with.Diff(next); len(d.Backends) != 2 || len(d.Services)+len(d.Routes)+len(d.Endpoints) > 0 || d.Local {
		t.Errorf("another backend is %+v", d)
	}
}

// Services are below policies, which go by what the base says.
func TestServicesBelowPolicies(t *testing.T) {
	p := plugin.Stack("openshift-networkpolicy", openshift.Subnet{}, services.On, networkpolicy.On)
	made, _ := compile(t, p, plugin.CompilerOf(p), objects)
	if made.Services.Len() == 0 || made.Backends.Len() == 0 {
		t.Errorf("it has no Services:\n%s", made)
	}
	mixed := plugin.Mix(p, openshift.Subnet{})
	if again, _ := compile(t, mixed, plugin.CompilerOf(mixed), objects); len(made.Diff(again).Services) > 0 {
		t.Errorf("in a mix they are\n%s", again)
	}
}

// Services that take long are worked off in slices where the agent has it so, also below policies, and where
// that takes seconds it is a problem until then.
func TestALargeServiceIsWorkedOff(t *testing.T) {
	ports, of, endpoints := "", "", ""
	for i := range 100 {
		ports += fmt.Sprintf("{name: p%d, port: %d},", i, 1000+i)
		of += fmt.Sprintf("{name: p%d, port: %d, protocol: TCP},", i, 1000+i)
	}
	for i := range 200 {
		endpoints += fmt.Sprintf("{addresses: [10.1.1.%d]},", 2+i)
	}
	large := objects
	for i, name := range []string{"large", "larger", "largest", "huge"} {
		large += fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: evil}\nspec: {clusterIP: 10.3.0.%d, ports: [%s]}\n"+
			"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s, namespace: evil, labels: {kubernetes.io/service-name: %s}}\naddressType: IPv4\nports: [%s]\nendpoints: [%s]\n",
			name, 10+i, ports, name, name, of, endpoints)
	}
	p := plugin.Stack("openshift-networkpolicy", openshift.Subnet{}, services.On, networkpolicy.On)
	c := plugin.CompilerOf(p).(plugin.Gradual)
	c.LeaveForLater()
	compile(t, p, c, objects)
	there := decode(t, p, large)
	made, problems := compileObjects(t, c, there)
	if made.Backends.Len() > 2000 || len(problems) > 0 {
		t.Errorf("they have %d backends, and it is said: %v", made.Backends.Len(), problems)
	}
	said := false
	for turns := 0; len(c.Waiting()) > 0; turns++ {
		if turns > 100 {
			t.Fatal("it does not end")
		}
		if want := (plugin.Debt{Of: plugin.Services, Owner: "evil", Slices: true}); c.Waiting()[0] != want {
			t.Fatalf("waiting are %v", c.Waiting())
		}
		c.Advance(c.Waiting()[0])
		made, problems = compileObjects(t, c, there)
		for _, p := range problems {
			if said = true; p.Kind != api.Namespace || p.Key.Name != "evil" || !p.Passing || !strings.Contains(p.Message, "not all of them is served yet as it is written") {
				t.Errorf("it is said: %v", p)
			}
		}
	}
	if !said {
		t.Error("it is not said that they are late")
	}
	if made.Backends.Len() != 80001 || len(problems) > 0 {
		t.Errorf("worked off, it has %d backends, and it is said: %v", made.Backends.Len(), problems)
	}
}

// Where Services get their addresses nothing leaves for, but where pods or machines are.
func TestServiceNetworks(t *testing.T) {
	p := services.On(openshift.Subnet{}, "openshift-subnet")
	for network, want := range map[string]string{"10.4.0.0/16": "", "10.1.1.128/25": "overlaps with the subnet 10.1.1.0/24", "172.30.0.0/16": "has the address 172.30.0.11 of node1"} {
		config := fmt.Sprintf("apiVersion: weft.network/v1\nkind: ClusterConfig\nmetadata: {name: default}\nspec: {serviceNetworks: [%s]}\n---", network)
		made, problems := compile(t, p, plugin.CompilerOf(p), config+objects)
		_, there := made.Routes.Get(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix(network)})
		if there != (want == "") {
			t.Errorf("%s has a route: %t", network, there)
		}
		said := ""
		for _, problem := range problems {
			said += problem.Message
		}
		if !strings.Contains(said, want) || want == "" && said != "" {
			t.Errorf("of %s it is said: %q", network, said)
		}
	}
}

// What another machine says that it has where Services get their addresses is not believed:
// nothing leaves for there, no more than where nobody says so, and who says so is named.
func TestAnotherMachineInAServiceNetwork(t *testing.T) {
	p := services.On(openshift.Subnet{}, "openshift-subnet")
	for name, host := range map[string]string{
		"its first":                     "metadata: {name: node2, annotations: {pod.network.openshift.io/node-uid: u}}\nhostIP: 10.4.7.7",
		"its second":                    "metadata: {name: node2, annotations: {pod.network.openshift.io/node-uid: u, weft.network/additional-host-ips: 'fd30::12,10.4.7.7'}}\nhostIP: 172.30.0.12",
		"its second, of another family": "metadata: {name: node2, annotations: {pod.network.openshift.io/node-uid: u, weft.network/additional-host-ips: 'fd04::7'}}\nhostIP: 172.30.0.12",
	} {
		t.Run(name, func(t *testing.T) {
			config := "apiVersion: weft.network/v1\nkind: ClusterConfig\nmetadata: {name: default}\nspec: {serviceNetworks: [10.4.0.0/16, 'fd04::/112']}\n---\n"
			made, problems := compile(t, p, plugin.CompilerOf(p), config+"apiVersion: network.openshift.io/v1\nkind: HostSubnet\nhost: node2\nsubnet: 10.1.2.0/24\n"+host+"\n---"+objects)
			for _, network := range []string{"10.4.0.0/16", "fd04::/112"} {
				prefix := netip.MustParsePrefix(network)
				if r, there := made.Routes.Get(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: prefix}); !there || r.Way != plan.ToDrop {
					t.Errorf("what leads nowhere in %s goes %v", network, r)
				}
				for k, r := range made.Routes.All() {
					if k.Prefix != prefix && prefix.Contains(k.Prefix.Addr()) {
						t.Errorf("to %s there is %v", k.Prefix, r)
					}
				}
			}
			if _, there := made.Routes.Get(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix("10.1.2.0/24")}); !there {
				t.Error("to its pods there is no way")
			}
			if len(problems) != 1 || problems[0].Kind != api.HostSubnet || problems[0].Key.Name != "node2" || !strings.HasPrefix(problems[0].Message, "node2 says that it has the address ") {
				t.Errorf("it is said: %v", problems)
			}
		})
	}
}
