package announce_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"

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
// for what. A line "# unserved ADDRESS", "# silent PORT" or "# inside PREFIX" says what the nodes
// know of themselves beside that.
func TestStories(t *testing.T) {
	golden.Archives(t, "testdata/*.txtar", func(t *testing.T, files []txtar.File) []txtar.File {
		return golden.Answer(files, func(name, in string) (out string) {
			unserved, silent, inside := make(map[string]bool), make(map[string]bool), []netip.Prefix{}
			for l := range strings.Lines(in) {
				switch f := strings.Fields(l); {
				case len(f) < 3 || f[0] != "#":
				case f[1] == "unserved":
					unserved[f[2]] = true
				case f[1] == "silent":
					silent[f[2]] = true
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
