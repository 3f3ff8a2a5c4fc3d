package announce_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/announce"
	"github.com/weftnet/weft/announce/election"
	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/registry"
)

// links are those of all nodes in stories.
var links = []announce.Link{
	{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("fd01::/64")}, Metrics: [2]int{0, -1}},
	{Name: "eth1", Prefixes: []netip.Prefix{netip.MustParsePrefix("172.30.9.0/24"), netip.MustParsePrefix("192.0.2.0/24")}, Metrics: [2]int{100, -1}},
}

// TestStories tells of each part of a story, which has all objects there are, who may answer
// for what. A line "# unserved ADDRESS", "# silent PORT", "# inside PREFIX" or "# has ADDRESS" says what
// the nodes know of themselves beside that.
func TestStories(t *testing.T) {
	golden.Archives(t, "testdata/*.txtar", func(t *testing.T, files []txtar.File) []txtar.File {
		return golden.Answer(files, func(name, in string) (out string) {
			unserved, silent, inside := make(map[string]bool), make(map[string]bool), []netip.Prefix{}
			has := make(map[netip.Addr]string)
			for l := range strings.Lines(in) {
				switch f := strings.Fields(l); {
				case len(f) < 3 || f[0] != "#":
				case f[1] == "unserved":
					unserved[f[2]] = true
				case f[1] == "silent":
					silent[f[2]] = true
				case f[1] == "has":
					has[netip.MustParseAddr(f[2])] = "eth1"
				case f[1] == "inside":
					inside = append(inside, netip.MustParsePrefix(f[2]))
				}
			}
			decoded, err := api.Decode([]byte(in), api.Kinds)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			objects := make(map[*registry.Kind][]registry.Object)
			for _, d := range decoded {
				objects[d.Kind] = append(objects[d.Kind], d.Object)
			}
			snapshot := registry.NewSnapshot(objects)
			said := make(map[string]bool)
			for n := range registry.Each[*corev1.Node](snapshot, api.Node) {
				found, problems := announce.Candidates(snapshot, announce.Self{Node: n.Name, Links: links,
					Serves: func(a netip.Addr, _ registry.Key) bool { return !unserved[a.String()] },
					Inside: func(a netip.Addr) string {
						if slices.ContainsFunc(inside, func(p netip.Prefix) bool { return p.Contains(a) }) {
							return "a pod's"
						}
						return ""
					},
					Has:     has,
					Answers: func(port uint16) bool { return !silent[fmt.Sprint(port)] },
				})
				for _, a := range slices.SortedFunc(maps.Keys(found), netip.Addr.Compare) {
					c := found[a]
					out += fmt.Sprintf("%s may answer for %s on %s, grade %d, behind %d", n.Name, a, c.Link, c.Grade, len(c.Before))
					if c.Virtual {
						out += ", and has it itself"
					}
					out += "\n"
				}
				for _, p := range problems {
					if text := p.String(); !said[text] {
						said[text] = true
						out += text + "\n"
					}
				}
			}
			return out
		})
	})
}

// TestCandidatesAgree has all nodes order the candidates alike, however many there are.
func TestCandidatesAgree(t *testing.T) {
	a := netip.MustParseAddr("192.0.2.7")
	objects := map[*registry.Kind][]registry.Object{}
	var names []string
	for i := range 30 {
		n := &corev1.Node{}
		n.Name = fmt.Sprint("node", i)
		names = append(names, n.Name)
		objects[api.Node] = append(objects[api.Node], n)
	}
	v := &api.VirtualAddress{Spec: api.VirtualAddressSpec{Address: a.String()}}
	v.Name = "router"
	objects[api.VirtualAddressKind] = []registry.Object{v}
	snapshot := registry.NewSnapshot(objects)
	slices.SortFunc(names, func(x, y string) int {
		return map[bool]int{true: -1, false: 1}[election.Score(a, x) < election.Score(a, y)]
	})
	for i, name := range names {
		found, problems := announce.Candidates(snapshot, announce.Self{Node: name, Links: links, Inside: func(netip.Addr) string { return "" }})
		if want := names[:min(i, election.MaxBefore)]; !slices.Equal(found[a].Before, want) || len(problems) > 0 {
			t.Errorf("before %s come %v, want %v (%v)", name, found[a].Before, want, problems)
		}
	}
}

// TestManyServicesLeaveRoom has a tenant have more Services than a node answers for addresses:
// VirtualAddresses and others' Services keep theirs, it is said once what is left, and
// different nodes leave different addresses.
func TestManyServicesLeaveRoom(t *testing.T) {
	objects := map[*registry.Kind][]registry.Object{}
	for i := range 8 {
		n := &corev1.Node{}
		n.Name = fmt.Sprint("node", i)
		objects[api.Node] = append(objects[api.Node], n)
	}
	pool := &api.AddressPool{}
	pool.Name = "public"
	objects[api.AddressPoolKind] = []registry.Object{pool}
	serve := func(namespace, name string, a netip.Addr) {
		svc := &corev1.Service{}
		svc.Namespace, svc.Name, svc.UID = namespace, name, "u1"
		g := &api.AddressGrant{Spec: api.AddressGrantSpec{Namespace: namespace, Name: name, UID: "u1", Pool: "public"}}
		g.Name = api.GrantName(a)
		objects[api.Service], objects[api.AddressGrantKind] = append(objects[api.Service], svc), append(objects[api.AddressGrantKind], g)
	}
	tenants := announce.MaxAddresses + 500
	for i := range tenants {
		serve("tenant", fmt.Sprint("web", i), netip.AddrFrom4([4]byte{172, 30, byte(i >> 8), byte(i)}))
	}
	mine := netip.MustParseAddr("172.30.200.7") // the last of all
	serve("shop", "web", mine)
	router := netip.MustParseAddr("192.0.2.7")
	v := &api.VirtualAddress{Spec: api.VirtualAddressSpec{Address: router.String()}}
	v.Name = "router"
	objects[api.VirtualAddressKind] = []registry.Object{v}
	snapshot := registry.NewSnapshot(objects)
	any := make(map[netip.Addr]bool)
	for i := range 8 {
		found, problems := announce.Candidates(snapshot, announce.Self{Node: fmt.Sprint("node", i), Links: links,
			Serves: func(netip.Addr, registry.Key) bool { return true }, Inside: func(netip.Addr) string { return "" }})
		if len(found) != announce.MaxAddresses || !found[router].Virtual || found[mine].Link == "" {
			t.Errorf("node%d may answer for %d addresses, the VirtualAddress: %v, that of another's Service: %v", i, len(found), found[router].Virtual, found[mine].Link != "")
		}
		if want := fmt.Sprintf("leaves %d to other nodes", tenants+2-announce.MaxAddresses); len(problems) != 1 || !strings.Contains(problems[0].Message, want) {
			t.Errorf("node%d says %v, want %q", i, problems, want)
		}
		for a := range found {
			any[a] = true
		}
	}
	if len(any) != tenants+2 {
		t.Errorf("nobody answers for %d of %d addresses", tenants+2-len(any), tenants+2)
	}
}

// TestManyChecks has VirtualAddresses name more ports than nodes try: those of the oldest are
// tried, and of the others it is told.
func TestManyChecks(t *testing.T) {
	n := &corev1.Node{}
	n.Name = "node1"
	objects := map[*registry.Kind][]registry.Object{api.Node: {n}}
	began := time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)
	virtual := func(i int, port int32) string {
		v := &api.VirtualAddress{Spec: api.VirtualAddressSpec{Address: fmt.Sprintf("192.0.2.%d", i), Check: &api.AddressCheck{Port: port}}}
		v.Name, v.CreationTimestamp = fmt.Sprint("v", 200-i), metav1.NewTime(began.Add(time.Duration(i)*time.Second))
		objects[api.VirtualAddressKind] = append(objects[api.VirtualAddressKind], v)
		return v.Name
	}
	for i := range announce.MaxChecks {
		virtual(i+1, int32(i+1))
	}
	beyond := virtual(announce.MaxChecks+1, 1000)
	virtual(announce.MaxChecks+2, 7) // which another has tried
	found, problems := announce.Candidates(registry.NewSnapshot(objects), announce.Self{Node: "node1", Links: links,
		Inside: func(netip.Addr) string { return "" }, Answers: func(uint16) bool { return true }})
	if len(found) != announce.MaxChecks+1 {
		t.Errorf("the node may answer for %d addresses", len(found))
	}
	if len(problems) != 1 || problems[0].Key.Name != beyond || !strings.Contains(problems[0].Message, "1000 is not tried") || !strings.Contains(problems[0].Message, announce.NobodyMay) {
		t.Errorf("it says %v", problems)
	}
}

func TestPlace(t *testing.T) {
	for address, want := range map[string]string{
		"172.30.1.1": "eth0", "172.30.9.1": "eth1", "192.0.2.1": "eth1", "198.51.100.1": "eth0", "fd01::9": "eth0", "fd02::9": "none",
	} {
		name, ok := announce.Place(netip.MustParseAddr(address), links)
		if !ok {
			name = "none"
		}
		if name != want {
			t.Errorf("%s is on %s, want %s", address, name, want)
		}
	}
}

func BenchmarkCandidates(b *testing.B) {
	objects := map[*registry.Kind][]registry.Object{}
	for i := range 200 {
		n := &corev1.Node{}
		n.Name = fmt.Sprint("node", i)
		objects[api.Node] = append(objects[api.Node], n)
	}
	for i := range 1000 {
		v := &api.VirtualAddress{Spec: api.VirtualAddressSpec{Address: fmt.Sprintf("192.0.%d.%d", i/250, i%250+1)}}
		v.Name = fmt.Sprint("address", i)
		objects[api.VirtualAddressKind] = append(objects[api.VirtualAddressKind], v)
	}
	snapshot := registry.NewSnapshot(objects)
	for b.Loop() {
		announce.Candidates(snapshot, announce.Self{Node: "node7", Links: links, Inside: func(netip.Addr) string { return "" }})
	}
}
