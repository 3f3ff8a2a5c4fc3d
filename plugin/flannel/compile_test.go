package flannel

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Each file in testdata is a story: what is in the registry (config, leases/…,
// reserved/…, nodes, clusterconfig.yaml), the node to compile for, and then the plan and the problems that follow.
func TestCompile(t *testing.T) { tell(t, "testdata/*.txtar", Plugin{}, readStory) }

// tell compiles the stories and compares what follows.
func tell(t *testing.T, pattern string, p plugin.Plugin, read func(*testing.T, []txtar.File) plugin.Input) {
	golden.Archives(t, pattern, func(t *testing.T, story []txtar.File) []txtar.File {
		story = slices.DeleteFunc(story, func(f txtar.File) bool { return f.Name == "plan" || f.Name == "problems" })
		in := read(t, story)
		got, problems := p.Compile(in)
		if err := got.Validate(); err != nil {
			t.Errorf("the plan is not valid: %v", err)
		}
		in.Previous = got
		again, _ := p.Compile(in)
		if d := got.Diff(again); !d.Empty() {
			t.Errorf("compiled again:\n%s", d)
		}
		var text strings.Builder
		for _, p := range problems {
			fmt.Fprintln(&text, p)
		}
		return append(story, txtar.File{Name: "plan", Data: []byte(got.String())}, txtar.File{Name: "problems", Data: []byte(text.String())})
	})
}

func readStory(t *testing.T, files []txtar.File) plugin.Input {
	t.Helper()
	in := plugin.Input{Config: &api.ClusterConfig{}}
	objects := map[*registry.Kind][]registry.Object{}
	for _, f := range files {
		data := bytes.TrimSpace(f.Data)
		switch name, lease, _ := strings.Cut(f.Name, "/"); name {
		case "config":
			objects[ConfigKind] = append(objects[ConfigKind], decode(t, ConfigKind, ConfigName, data, false))
		case "leases", "reservations":
			created := 1
			if n, rest, found := strings.Cut(lease, " created "); found {
				lease, created = n, number(t, rest)
			}
			objects[LeaseKind] = append(objects[LeaseKind], decodeCreated(t, LeaseKind, lease, data, name == "leases", int64(created)))
		case "reserved":
			objects[ReservationKind] = append(objects[ReservationKind], decode(t, ReservationKind, lease, data, false))
		case "nodes":
			for _, line := range strings.Split(string(data), "\n") {
				objects[api.Node] = append(objects[api.Node], coreNode(strings.Fields(line)...))
			}
		case "clusterconfig.yaml":
			if err := yaml.UnmarshalStrict(data, in.Config); err != nil {
				t.Fatal(err)
			}
		case "node":
			in.Node = readNode(t, string(data))
		default:
			t.Fatalf("a story has no section %q", f.Name)
		}
	}
	in.Objects = registry.NewSnapshot(objects)
	return in
}

func number(t testing.TB, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func decode(t testing.TB, k *registry.Kind, name string, value []byte, expires bool) registry.Object {
	t.Helper()
	return decodeCreated(t, k, name, value, expires, 1)
}

func decodeCreated(t testing.TB, k *registry.Kind, name string, value []byte, expires bool, created int64) registry.Object {
	t.Helper()
	o, err := k.Decode(registry.Key{Name: name}, value, registry.Stored{Expires: expires, Created: created}, "1")
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func coreNode(nameAndAddresses ...string) *corev1.Node {
	n := &corev1.Node{}
	n.Name = nameAndAddresses[0]
	for _, a := range nameAndAddresses[1:] {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

// readNode reads lines such as "name node1", "address 172.30.0.1",
// "prefix 172.30.0.0/24", "mtu 1500" and "pod weft0 default/web 10.5.1.2".
func readNode(t *testing.T, text string) plugin.Node {
	t.Helper()
	var n plugin.Node
	for _, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		switch words[0] {
		case "name":
			n.Name = words[1]
		case "address":
			n.Addresses = append(n.Addresses, netip.MustParseAddr(words[1]))
		case "prefix":
			n.Prefixes = append(n.Prefixes, netip.MustParsePrefix(words[1]))
		case "mtu":
			n.MTU, _ = strconv.Atoi(words[1])
		case "pod":
			e := plugin.Endpoint{Interface: words[1], Network: plan.DefaultNetwork}
			e.Namespace, e.Pod, _ = strings.Cut(words[2], "/")
			for _, a := range words[3:] {
				e.Addresses = append(e.Addresses, netip.MustParseAddr(a))
			}
			e.MAC = plan.MACOf(e.Addresses[0])
			n.Endpoints = append(n.Endpoints, e)
		default:
			t.Fatalf("a node has no %q", words[0])
		}
	}
	return n
}

// BenchmarkCompile compiles again for one node among many when nothing has changed,
// which is what most events come to. After a change of the network the leases are outside
// of it.
func BenchmarkCompile(b *testing.B) {
	for _, leases := range []int{1000, 8000} {
		b.Run(fmt.Sprintf("%d leases in the network", leases), func(b *testing.B) { benchmarkCompile(b, leases, "10.0.0.0/8") })
		b.Run(fmt.Sprintf("%d leases outside", leases), func(b *testing.B) { benchmarkCompile(b, leases, "11.0.0.0/8") })
	}
}

func benchmarkCompile(b *testing.B, leases int, network string) {
	objects := map[*registry.Kind][]registry.Object{ConfigKind: {decode(b, ConfigKind, ConfigName, fmt.Appendf(nil, `{"Network":%q,"Backend":{"Type":"vxlan"}}`, network), false)}}
	for i := range leases {
		address := fmt.Sprintf("172.30.%d.%d", i/250, i%250+1)
		value := fmt.Sprintf(`{"PublicIP":%q,"PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q}}`, address, plan.MACOf(netip.MustParseAddr(address)))
		objects[LeaseKind] = append(objects[LeaseKind], decode(b, LeaseKind, fmt.Sprintf("10.%d.%d.0-24", i/256+1, i%256), []byte(value), true))
		objects[api.Node] = append(objects[api.Node], coreNode(fmt.Sprintf("node%d", i), address))
	}
	in := plugin.Input{Config: &api.ClusterConfig{}, Objects: registry.NewSnapshot(objects),
		Node: plugin.Node{Name: "node0", MTU: 1500, Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.1")}}}
	for b.Loop() {
		in.Previous, _ = Plugin{}.Compile(in)
	}
}
