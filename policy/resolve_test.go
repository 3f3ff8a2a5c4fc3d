package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/plan"
)

// What the texts of NetworkPolicy and ClusterNetworkPolicy say, each in a world
// of web pods that get something from a client in the same namespace.
func TestWhatThePolicyTextsSay(t *testing.T) {
	web := Identity{Namespace: "shop", Labels: labelsOf("app=web"), Ports: []NamedPort{{"dns", plan.TCP, 53}, {"dns", plan.UDP, 5353}}}
	client := Identity{Namespace: "shop", Labels: labelsOf("app=client")}
	peer := Party{Identity: &client, NamespaceLabels: labelsOf("team=a"), Address: netip.MustParseAddr("10.1.2.3"), Machines: nil}
	for text, c := range map[string]struct{ policies, want string }{
		"traffic is allowed to a pod if no policy selects it": {
			`p: {subject: {namespace: shop, pods: app=db}, isolates: [ingress]}`,
			`any allow no policy decides`},
		"a policy without ingress rules isolates the pods it selects": {
			`p: {subject: {namespace: shop}, isolates: [ingress]}`,
			`any deny p ingress isolation`},
		"a policy of the type Egress alone does not isolate ingress": {
			`p: {subject: {namespace: shop}, isolates: [egress]}`,
			`any allow no policy decides`},
		"rules of several policies are combined additively": {
			`p: {subject: {}, isolates: [ingress], ingress: [{action: allow, ports: [tcp/80]}]}
q: {subject: {}, isolates: [ingress], ingress: [{action: allow, ports: [tcp/81]}]}`,
			`tcp 0-79 deny p ingress isolation, tcp 80 allow p ingress[0], tcp 81 allow q ingress[0], tcp 82-65535 deny p ingress isolation, any deny p ingress isolation`},
		"an empty rule matches all peers and ports": {
			`p: {subject: {}, isolates: [ingress], ingress: [{action: allow}]}`,
			`any allow p ingress[0]`},
		"a peer's pod selector selects in the policy's own namespace": {
			`p: {subject: {}, isolates: [ingress], ingress: [{action: allow, peers: [{pods: {namespace: lab, pods: app=client}}]}]}`,
			`any deny p ingress isolation`},
		"namespaceSelector and podSelector must both match": {
			`p: {subject: {}, isolates: [ingress], ingress: [{action: allow, peers: [{pods: {namespaces: team=a, pods: app=db}}, {pods: {namespaces: team=b, pods: app=client}}]}]}
q: {subject: {}, isolates: [ingress], ingress: [{action: allow, peers: [{pods: {namespaces: team=a, pods: app=client}}], ports: [udp]}]}`,
			`udp any allow q ingress[0], any deny p ingress isolation`},
		"except is not included within the block": {
			`p: {subject: {}, isolates: [ingress], ingress: [{action: allow, peers: [{block: 10.0.0.0/8, except: [10.1.2.0/24]}]}, {action: allow, peers: [{block: 10.1.0.0/16, except: [10.1.3.0/24]}], ports: [sctp]}]}`,
			`sctp any allow p ingress[1], any deny p ingress isolation`},
		"endPort is inclusive, and a protocol without a port is all of its ports": {
			`p: {subject: {}, isolates: [ingress], ingress: [{action: allow, ports: [tcp/8000-65535, udp]}]}`,
			`tcp 0-7999 deny p ingress isolation, tcp 8000-65535 allow p ingress[0], udp any allow p ingress[0], any deny p ingress isolation`},
		"a named port is that of the pod, of the protocol that is asked for": {
			`p: {subject: {}, isolates: [ingress], ingress: [{action: allow, ports: [udp/dns, tcp/none]}]}`,
			`udp 0-5352 deny p ingress isolation, udp 5353 allow p ingress[0], udp 5354-65535 deny p ingress isolation, any deny p ingress isolation`},
		"destinationNamedPort is of whichever protocol": {
			`p: {tier: admin, subject: {}, ingress: [{action: deny, ports: [any/dns]}]}`,
			`tcp 0-52 allow no policy decides, tcp 53 deny p ingress[0], tcp 54-65535 allow no policy decides, udp 0-5352 allow no policy decides, udp 5353 deny p ingress[0], udp 5354-65535 allow no policy decides, any allow no policy decides`},
		"a protocol without ports is matched as a whole": {
			`p: {tier: admin, subject: {}, ingress: [{action: deny, ports: [icmp]}]}`,
			`icmp any deny p ingress[0], any allow no policy decides`},
		"the Admin tier takes precedence, and ends the evaluation": {
			`a: {tier: admin, subject: {}, ingress: [{action: allow, peers: [{pods: {}}]}]}
p: {subject: {}, isolates: [ingress]}`,
			`any allow a ingress[0]`},
		"lower values of priority go first, then the order of the rules": {
			`a: {tier: admin, priority: 2, subject: {}, ingress: [{action: allow}]}
b: {tier: admin, priority: 1, subject: {}, ingress: [{action: deny, ports: [tcp]}, {action: allow, ports: [tcp, udp]}]}`,
			`tcp any deny b ingress[0], udp any allow b ingress[1], any allow a ingress[0]`},
		"Pass skips all further rules of the tier": {
			`a: {tier: admin, priority: 1, subject: {}, ingress: [{action: pass, ports: [tcp]}]}
b: {tier: admin, priority: 2, subject: {}, ingress: [{action: allow}]}
c: {tier: baseline, subject: {}, ingress: [{action: deny}]}`,
			`tcp any deny c ingress[0], any allow b ingress[0]`},
		"a NetworkPolicy makes a final decision for the pods it selects": {
			`p: {subject: {}, isolates: [ingress], ingress: [{action: allow, ports: [tcp]}]}
c: {tier: baseline, subject: {}, ingress: [{action: deny, ports: [tcp]}, {action: allow}]}`,
			`tcp any allow p ingress[0], any deny p ingress isolation`},
		"Baseline decides for pods that none selects": {
			`p: {subject: {namespace: lab}, isolates: [ingress]}
c: {tier: baseline, subject: {}, ingress: [{action: deny}]}`,
			`any deny c ingress[0]`},
		"Pass in the Baseline tier leaves the default": {
			`c: {tier: baseline, subject: {}, ingress: [{action: pass}, {action: deny}]}`,
			`any allow no policy decides`},
		"a peer of which no field is set matches nothing": {
			`c: {tier: admin, subject: {}, ingress: [{action: deny, peers: [{}]}, {action: deny, peers: []}]}`,
			`any allow no policy decides`},
		"nodes and domain names are not pods": {
			`c: {tier: admin, subject: {}, ingress: [{action: deny, peers: [{nodes: ""}, {domain: example.com}]}]}`,
			`any allow no policy decides`},
	} {
		t.Run(text, func(t *testing.T) {
			var spec worldSpec
			if err := yaml.UnmarshalStrict([]byte(c.policies), &spec.Policies); err != nil {
				t.Fatal(err)
			}
			rules := Applicable(worldMaker{}.of(spec).Policies, &web, labelsOf("team=a"), plan.Incoming)
			var got []string
			for _, d := range Resolve(rules, peer, &web) {
				does := map[bool]string{true: "allow", false: "deny"}[d.Allow]
				if d.Protocol == plan.AnyProtocol {
					got = append(got, fmt.Sprintf("any %s %s", does, d.Origin))
				} else {
					got = append(got, fmt.Sprintf("%s %s %s %s", d.Protocol, d.Ports, does, d.Origin))
				}
			}
			if is := strings.Join(got, ", "); is != c.want {
				t.Errorf("got  %s\nwant %s", is, c.want)
			}
		})
	}
}
