package policy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/policy/kubernetes"
)

func (o *objects) scene(policies []*policy.Policy) policy.Scene {
	s := policy.Scene{Namespaces: o.namespaces, Machines: o.machines, Domains: []*policy.Domain{
		{Name: "example.com", Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.7")}},
	}}
	for _, p := range o.pods {
		pod := policy.Pod{Name: p.Namespace + "/" + p.Name, Identity: kubernetes.Identity(p, kubernetes.Named(policies))}
		for a := range strings.SplitSeq(p.Status.PodIP, ",") {
			pod.Addresses = append(pod.Addresses, netip.MustParseAddr(a))
		}
		s.Pods = append(s.Pods, pod)
	}
	return s
}

// TestComparisons tells what would change with the policies of each file of the
// stories, or without those that it names if its own name begins so.
func TestComparisons(t *testing.T) {
	golden.Archives(t, "testdata/compare-*.txtar", func(t *testing.T, story []txtar.File) []txtar.File {
		var o objects
		return golden.Answer(story, func(name, text string) string {
			if name == "objects" {
				o.read(t, []byte(text))
				return ""
			}
			after := slices.Clone(o.policies)
			if strings.HasPrefix(name, "without") {
				for gone := range strings.Lines(text) {
					after = slices.DeleteFunc(after, func(p *policy.Policy) bool { return p.Name == strings.TrimSpace(gone) })
				}
			} else {
				var with objects
				with.read(t, []byte(text))
				for _, p := range with.policies {
					after = append(slices.DeleteFunc(after, func(q *policy.Policy) bool { return p.Name == q.Name }), p)
				}
			}
			differences, total := policy.Compare(o.policies, after, o.scene(slices.Concat(o.policies, after)), 0)
			var out strings.Builder
			for _, d := range differences {
				fmt.Fprintln(&out, d)
			}
			fmt.Fprintln(&out, total, "differences")
			return out.String()
		})
	})
}

// What Compare says of groups is what deciding about each pair of pods, before
// and after, says of them, port by port.
func TestCompareIsWhatIsDecided(t *testing.T) {
	changed := 0
	rapid.Check(t, func(t *rapid.T) {
		values := []string{"", "x", "y"}
		set := rapid.Custom(func(t *rapid.T) labels.Set {
			if v := rapid.SampledFrom(values).Draw(t, "a"); v != "" {
				return labels.Set{"a": v}
			}
			return nil
		})
		selector := rapid.Custom(func(t *rapid.T) policy.Selector {
			s := policy.Selector{Namespace: rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "namespace")}
			if l := set.Draw(t, "labels"); l != nil {
				s.Pods = l.AsSelector()
			}
			return s
		})
		block := rapid.SampledFrom([]*policy.Block{
			{Prefix: netip.MustParsePrefix("10.1.1.0/24")},
			{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Except: []netip.Prefix{netip.MustParsePrefix("10.1.1.2/32")}},
			{Prefix: netip.MustParsePrefix("192.0.2.0/24")},
			{Prefix: netip.MustParsePrefix("fd00::/64")},
			{Prefix: netip.MustParsePrefix("::/0")},
		})
		port := rapid.SampledFrom([]policy.Port{
			{Protocol: plan.TCP, Range: plan.PortRange{First: 1, Last: 2}}, {Protocol: plan.TCP, Name: "p"},
			{Protocol: plan.UDP, Range: plan.AllPorts}, {Range: plan.AllPorts},
		})
		rules := func(p *policy.Policy, d plan.Direction) (all []policy.Rule) {
			for i := range rapid.IntRange(0, 2).Draw(t, "rules") {
				r := policy.Rule{Origin: fmt.Sprintf("%s %s[%d]", p.Name, d, i)}
				if p.Tier != policy.Isolating {
					r.Action = rapid.SampledFrom([]policy.Action{policy.Allow, policy.Deny, policy.Pass}).Draw(t, "action")
				}
				if rapid.Bool().Draw(t, "to some") {
					peer := policy.Peer{Block: block.Draw(t, "block")}
					if rapid.Bool().Draw(t, "pods") {
						s := selector.Draw(t, "peer")
						peer = policy.Peer{Pods: &s}
					}
					r.Peers = []policy.Peer{peer}
				}
				if rapid.Bool().Draw(t, "some ports") {
					r.Ports = []policy.Port{port.Draw(t, "port")}
				}
				all = append(all, r)
			}
			return all
		}
		var before, after []*policy.Policy
		for i := range 4 {
			p := &policy.Policy{Name: fmt.Sprint("p", i), Tier: rapid.SampledFrom([]policy.Tier{policy.Admin, policy.Isolating, policy.Baseline}).Draw(t, "tier"), Subject: selector.Draw(t, "subject")}
			if p.Tier == policy.Isolating {
				p.IsolatesIngress, p.IsolatesEgress = rapid.Bool().Draw(t, "ingress"), rapid.Bool().Draw(t, "egress")
			}
			p.Ingress, p.Egress = rules(p, plan.Incoming), rules(p, plan.Outgoing)
			if rapid.Bool().Draw(t, "before") {
				before = append(before, p)
			}
			if rapid.Bool().Draw(t, "after") {
				after = append(after, p)
			}
		}
		var scene policy.Scene
		for i := range 4 {
			id := &policy.Identity{Namespace: rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "in"), Labels: set.Draw(t, "of")}
			if rapid.Bool().Draw(t, "named") {
				id.Ports = []policy.NamedPort{{Name: "p", Protocol: plan.TCP, Port: uint16(i + 1)}}
			}
			scene.Pods = append(scene.Pods, policy.Pod{Name: fmt.Sprint(id.Namespace, "/pod", i), Identity: id, Addresses: []netip.Addr{
				netip.MustParseAddr(fmt.Sprintf("10.1.%d.%d", i%2+1, i+1)), netip.MustParseAddr(fmt.Sprintf("fd00::%d:0:0:0:%d", i%2, i+1)),
			}})
		}
		scene.Pods = append(scene.Pods, policy.Pod{Name: "world", Addresses: []netip.Addr{netip.MustParseAddr("1.1.1.1"), netip.MustParseAddr("2001:db8::1")}})

		differences, total := policy.Compare(before, after, policy.Scene{Pods: scene.Pods[:4]}, 0)
		if total != len(differences) {
			t.Fatalf("%d of %d differences", len(differences), total)
		}
		some, all := policy.Compare(before, after, policy.Scene{Pods: scene.Pods[:4]}, 1)
		if all != total || len(some) != min(total, 1) {
			t.Fatalf("%d of %d differences", len(some), all)
		}
		// in says whether a side is a pod's, or the world's.
		in := func(s policy.Side, p policy.Pod, family string) bool {
			if p.Identity == nil {
				return s.Name == "world" && family == "IPv4" || s.Name == "world (IPv6)" && family == "IPv6"
			}
			return s.Name == p.Name
		}
		allowed := func(policies []*policy.Policy, src, dst policy.Pod, family int, protocol plan.Protocol, port uint16) bool {
			party := func(p policy.Pod) policy.Party {
				return policy.Party{Identity: p.Identity, Address: p.Addresses[family]}
			}
			out := policy.Connection{Direction: plan.Outgoing, Subject: party(src), Peer: party(dst), Protocol: protocol, Port: port}
			into := policy.Connection{Direction: plan.Incoming, Subject: party(dst), Peer: party(src), Protocol: protocol, Port: port}
			return out.Decide(policies).Allow && into.Decide(policies).Allow
		}
		for _, d := range differences {
			if d.Source.Pods > 1 || d.Destination.Pods > 1 {
				t.Skip("names of groups are for people")
			}
		}
		for _, src := range scene.Pods {
			for _, dst := range scene.Pods {
				if src.Name == dst.Name {
					continue
				}
				for f, family := range []string{"IPv4", "IPv6"} {
					for _, protocol := range []plan.Protocol{plan.TCP, plan.UDP, plan.SCTP, plan.ICMP} {
						for port := range uint16(6) {
							was, is := allowed(before, src, dst, f, protocol, port), allowed(after, src, dst, f, protocol, port)
							var said []bool
							for _, d := range differences {
								if !in(d.Source, src, family) || !in(d.Destination, dst, family) || d.Family != "" && d.Family != family {
									continue
								}
								for _, tr := range d.Traffic {
									if tr.Protocol == protocol && tr.Ports.Contains(port) || tr.Protocol == plan.AnyProtocol && protocol == plan.ICMP {
										said = append(said, d.Allowed)
									}
								}
							}
							var want []bool
							if was != is {
								want = []bool{is}
								changed++
							}
							if !slices.Equal(said, want) {
								t.Fatalf("%s -> %s %s %s %d: %v -> %v, but the differences say %v:\n%v", src.Name, dst.Name, family, protocol, port, was, is, said, differences)
							}
						}
					}
				}
			}
		}
	})
	if changed == 0 {
		t.Error("nothing changed in any case")
	}
}
