package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/registry"
)

// testKinds has the API server judge each YAML document of testdata/kinds, and
// holds its answers against the files behind them, and against what Weft says
// itself. The name of a file says who takes its documents: good.yaml both,
// bad.yaml neither; annotations.yaml the API server, whose rules cannot see
// annotations, and loose.yaml too, for what its rules leave out otherwise;
// strict.yaml Weft, which does not use what is wrong in them.
func (s *server) testKinds(t *testing.T) {
	golden.Answers(t, "testdata/kinds/*.txtar", s.answers)
}

// answers is what the API server says to each document of a file.
func (s *server) answers(t *testing.T, name, text string) string {
	t.Helper()
	var out strings.Builder
	for document := range strings.SplitSeq(text, "---\n") {
		path := filepath.Join(t.TempDir(), "object.yaml")
		if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{"create", "--dry-run=server", "-f", path}
		if strings.Contains(document, "kind: "+api.AddressGrantKind.Kind+"\n") {
			args = append(args, "--as=system:serviceaccount:"+namespace+":weft-controller") // users may not, whatever it says
		}
		answer, err := s.kubectl(args...)
		answer = strings.ReplaceAll(answer, path, "object.yaml")
		out.WriteString(inOrder(answer))
		if taken, want := err == nil, name == "good" || name == "annotations" || name == "loose"; taken != want {
			t.Errorf("%s.yaml: taken by the API server: %t\n%s%s", name, taken, document, answer)
		}
		objects, err := api.Decode([]byte(document), api.Kinds)
		if err != nil && strings.Contains(err.Error(), "unknown kind") {
			continue // one that Weft has no use for yet
		}
		if err == nil {
			err = objects[0].Kind.Validate(objects[0].Object)
		}
		if taken, want := err == nil, name == "good" || name == "strict"; taken != want {
			t.Errorf("%s.yaml: taken by Weft: %t (%v)\n%s", name, taken, err, document)
		}
	}
	return out.String()
}

// inOrder sorts the reasons of a refusal, which come in any order.
func inOrder(answer string) string {
	lines := slices.Collect(strings.Lines(answer))
	const reason = "* "
	for i := 0; i < len(lines); i++ {
		start := i
		for i < len(lines) && strings.HasPrefix(lines[i], reason) {
			i++
		}
		slices.Sort(lines[start:i])
	}
	return strings.Join(lines, "")
}

// dryRun has the API server judge an object without keeping it.
func (s *server) dryRun(ctx context.Context, k *registry.Kind, o registry.Object) error {
	o.GetObjectKind().SetGroupVersionKind(k.GroupVersionKind)
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return s.client.RESTClient().Post().AbsPath("/apis", k.Group, k.Version, k.Plural).
		Param("dryRun", metav1.DryRunAll).Param("fieldValidation", metav1.FieldValidationStrict).
		SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
}

// Values that mean something, or nearly.
var (
	someAddress = rapid.SampledFrom([]string{"", "10.0.0.1", "fd00::1", "FD00::1", "fd00:0::1", "fe80::1", "fe80::1%eth0", "0.0.0.0", "::", "127.0.0.1", "::1",
		"127.1.2.3", "224.0.0.1", "239.1.2.3", "ff02::1", "ff0e::1", "255.255.255.255", "255.255.255.254", "169.254.1.1", "::ffff:10.0.0.1", "10.0.0.256",
		"10.0.0", "010.0.0.1", "10.0.0.1/32", "node1", "[fd00::1]", "1", "0.0.0.1", "240.0.0.1", "64:ff9b::1.2.3.4", "2001:db8::"})
	someCIDR = rapid.SampledFrom([]string{"", "10.1.0.0/16", "10.1.3.0/24", "10.1.3.0/30", "10.1.3.0/31", "10.1.3.4/32", "10.1.3.1/24", "10.1.0.0/8", "0.0.0.0/0",
		"10.2.0.0/15", "172.30.0.0/16", "fd00::/48", "fd00:0:0:1::/64", "fd00::/126", "fd00::/127", "FD00::/48", "fd00::1/64", "::/0", "::ffff:10.1.0.0/112",
		"10.1.0.0/016", "10.1.0.0/33", "10.1.0.0", "10.1.0.0/", "/16", "10.1.0.0/255.255.0.0", "fd00::%eth0/64", "ten"})
	someBits = rapid.SampledFrom([]uint32{0, 1, 2, 7, 8, 9, 16, 24, 32, 63, 64, 80, 112, 128})
	someName = rapid.SampledFrom([]string{"default", "node1", "other"})
)

// someOf draws a pointer to one of the values, or nil.
func someOf(t *rapid.T, label string, values ...uint32) *uint32 {
	i := rapid.IntRange(-1, len(values)-1).Draw(t, label)
	if i < 0 {
		return nil
	}
	return &values[i]
}

var somePort = rapid.SampledFrom([]int32{-1, 0, 1, 2, 80, 443, 65534, 65535, 65536})

// someClusterPolicy draws what the rules of the definition see. What they leave
// to words, selectors that are none and domain names in rules that do not Accept,
// is in testdata/kinds.
func someClusterPolicy(t *rapid.T) (spec policyv1alpha2.ClusterNetworkPolicySpec) {
	// One mistake is enough: what is drawn is right but for that.
	wrong := rapid.SampledFrom([]string{"", "", "", "tier", "priority", "subject", "action", "peers", "peer", "networks", "domainNames", "protocols", "ports", "names"}).Draw(t, "wrong")
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	pods := &policyv1alpha2.NamespacedPod{PodSelector: *selector}
	spec.Tier, spec.Priority = policyv1alpha2.AdminTier, 1000
	switch spec.Subject.Namespaces = selector; wrong {
	case "tier":
		spec.Tier = rapid.SampledFrom([]policyv1alpha2.Tier{"", "admin", "NetworkPolicy"}).Draw(t, "tier")
	case "priority":
		spec.Priority = rapid.SampledFrom([]int32{-1, 1001}).Draw(t, "priority")
	case "subject":
		spec.Subject = policyv1alpha2.ClusterNetworkPolicySubject{}
		if rapid.Bool().Draw(t, "both") {
			spec.Subject.Namespaces, spec.Subject.Pods = selector, pods
		}
	}

	protocols := func() (list []policyv1alpha2.ClusterNetworkPolicyProtocol) {
		for range rapid.IntRange(0, 2).Draw(t, "protocols") {
			port := &policyv1alpha2.Port{Number: 80}
			if rapid.Bool().Draw(t, "range") {
				port = &policyv1alpha2.Port{Range: &policyv1alpha2.PortRange{Start: 1, End: 65535}}
			}
			if wrong == "ports" {
				port.Number = somePort.Draw(t, "number")
				if port.Range != nil {
					port.Range.Start, port.Range.End = somePort.Draw(t, "start"), somePort.Draw(t, "end")
				}
			}
			p := policyv1alpha2.ClusterNetworkPolicyProtocol{}
			switch rapid.IntRange(0, 2).Draw(t, "protocol") {
			case 0:
				p.TCP = &policyv1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}
			case 1:
				p.UDP = &policyv1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}
			case 2:
				p.SCTP = &policyv1alpha2.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}
			}
			if wrong == "protocols" {
				p.TCP = rapid.SampledFrom([]*policyv1alpha2.ClusterNetworkPolicyProtocolTCP{nil, {}, p.TCP}).Draw(t, "TCP")
			}
			if wrong == "names" || wrong == "protocols" {
				p.DestinationNamedPort = rapid.SampledFrom([]string{"", "http"}).Draw(t, "name")
			}
			if wrong == "names" && p.DestinationNamedPort != "" {
				p = policyv1alpha2.ClusterNetworkPolicyProtocol{DestinationNamedPort: p.DestinationNamedPort}
			}
			list = append(list, p)
		}
		return list
	}
	action := policyv1alpha2.ClusterNetworkPolicyRuleActionAccept
	if wrong == "action" {
		action = rapid.SampledFrom([]policyv1alpha2.ClusterNetworkPolicyRuleAction{"", "accept", "Log"}).Draw(t, "action")
	}
	name := strings.Repeat("ä", rapid.SampledFrom([]int{0, 100, 101}).Draw(t, "length of the name"))
	if wrong != "names" {
		name = "a rule"
	}
	from := []policyv1alpha2.ClusterNetworkPolicyIngressPeer{{Namespaces: selector}, {Pods: pods}}
	to := []policyv1alpha2.ClusterNetworkPolicyEgressPeer{{Namespaces: selector}, {Pods: pods}}
	switch wrong {
	case "peers":
		n := rapid.SampledFrom([]int{0, 25, 26}).Draw(t, "peers")
		from, to = slices.Repeat(from[:1], n), slices.Repeat(to[:1], n)
	case "peer":
		from = append(from, policyv1alpha2.ClusterNetworkPolicyIngressPeer{})
	}
	if rapid.Bool().Draw(t, "outside") {
		cidr := rapid.SampledFrom([]string{"10.1.0.0/16", "0.0.0.0/0", "fd00::/8", "10.1.3.1/24"})
		if wrong == "networks" {
			cidr = someCIDR
		}
		domain := rapid.SampledFrom([]string{"example.com", "*.example.com", "A_b.example.com.", "xn--bcher-kva.example"})
		if wrong == "domainNames" {
			domain = rapid.SampledFrom([]string{"", "com", "*", "a*.example.com", "-a.com", "a..com", "[.com", "_a.com", "a.com:80"})
		}
		text := func(n string, g *rapid.Generator[string]) []string { return rapid.SliceOfN(g, 1, 3).Draw(t, n) }
		outside := policyv1alpha2.ClusterNetworkPolicyEgressPeer{Nodes: selector}
		switch rapid.IntRange(0, 2).Draw(t, "which") {
		case 0:
			outside = policyv1alpha2.ClusterNetworkPolicyEgressPeer{}
			for _, c := range text("networks", cidr) {
				outside.Networks = append(outside.Networks, policyv1alpha2.CIDR(c))
			}
		case 1:
			outside = policyv1alpha2.ClusterNetworkPolicyEgressPeer{}
			for _, d := range text("domainNames", domain) {
				outside.DomainNames = append(outside.DomainNames, policyv1alpha2.DomainName(d))
			}
			if wrong == "action" {
				outside.DomainNames, outside.Nodes = nil, selector
			}
		}
		if wrong == "peer" && rapid.Bool().Draw(t, "and pods") {
			outside.Pods = pods
		}
		to = append(to, outside)
	}
	spec.Ingress = []policyv1alpha2.ClusterNetworkPolicyIngressRule{{Name: name, Action: action, From: from, Protocols: protocols()}}
	spec.Egress = []policyv1alpha2.ClusterNetworkPolicyEgressRule{{Name: name, Action: action, To: to, Protocols: protocols()}}
	if wrong == "peers" {
		spec.Ingress = slices.Repeat(spec.Ingress, rapid.SampledFrom([]int{0, 25, 26}).Draw(t, "rules"))
	}
	return spec
}

// testSameAsWeft draws objects and holds the API server's judgement against
// Weft's own: they must be one, so that what is applied with kubectl is what
// Weft can use, and that nothing Weft writes is refused.
func (s *server) testSameAsWeft(t *testing.T) {
	draw := map[*registry.Kind]func(*rapid.T) registry.Object{
		api.ClusterConfigKind: func(t *rapid.T) registry.Object {
			c := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: someName.Draw(t, "name")}}
			numbers := rapid.SampledFrom([]int{-1, 0, 1, 575, 576, 1500, 65535, 65536, 1 << 33})
			c.Spec.MTU, c.Spec.VXLANPort = numbers.Draw(t, "mtu"), numbers.Draw(t, "port")
			if rapid.Bool().Draw(t, "for some nodes") {
				names := rapid.SampledFrom([]string{"node1", "node2", "node1.example.com", "1", "Node1", "", "-node1", "node1.", "node1..a", strings.Repeat("a", 254)})
				c.Spec.PluginNodes = rapid.SliceOfN(names, 1, 3).Draw(t, "pluginNodes")
			}
			return c
		},
		api.HostSubnet: func(t *rapid.T) registry.Object {
			h := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: someName.Draw(t, "name")}}
			h.Host = rapid.SampledFrom([]string{"", h.Name, h.Name, "node1"}).Draw(t, "host")
			h.HostIP, h.Subnet = someAddress.Draw(t, "hostIP"), someCIDR.Draw(t, "subnet")
			return h
		},
		api.ClusterNetwork: func(t *rapid.T) registry.Object {
			n := &networkv1.ClusterNetwork{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
			cidr, bits, port, mtu := someCIDR, someBits, []uint32{0, 1, 4789, 65535, 65536}, []uint32{0, 575, 576, 9000, 65535, 65536}
			if rapid.Bool().Draw(t, "mostly right") {
				// So much can be wrong that little would be right by chance.
				cidr, bits = rapid.SampledFrom([]string{"10.1.0.0/16", "172.30.0.0/16", "10.4.0.0/14", "fd00::/48", "10.1.3.0/24"}), rapid.SampledFrom([]uint32{0, 2, 8})
				port, mtu = port[1:4], mtu[2:5]
			} else {
				n.Name = someName.Draw(t, "name")
			}
			for range rapid.IntRange(0, 3).Draw(t, "ranges") {
				n.ClusterNetworks = append(n.ClusterNetworks, networkv1.ClusterNetworkEntry{CIDR: cidr.Draw(t, "CIDR"), HostSubnetLength: bits.Draw(t, "bits")})
			}
			if len(n.ClusterNetworks) > 0 && rapid.Bool().Draw(t, "also in the old form") {
				n.Network, n.HostSubnetLength = n.ClusterNetworks[0].CIDR, n.ClusterNetworks[0].HostSubnetLength
			} else if rapid.Bool().Draw(t, "in the old form") {
				n.Network, n.HostSubnetLength = cidr.Draw(t, "network"), bits.Draw(t, "hostsubnetlength")
			}
			n.ServiceNetwork = rapid.OneOf(rapid.Just(""), cidr).Draw(t, "serviceNetwork")
			n.VXLANPort, n.MTU = someOf(t, "vxlanPort", port...), someOf(t, "mtu", mtu...)
			return n
		},
		api.ClusterNetworkPolicy: func(t *rapid.T) registry.Object {
			return &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: someName.Draw(t, "name")}, Spec: someClusterPolicy(t)}
		},
		api.TagKind: func(t *rapid.T) registry.Object {
			names := rapid.SampledFrom([]string{"0", "9", "10", "11", "99", "100", "010", "1000000", "8388607", "8388608", "9999999", "10000000", "ten", "1e3", "0x10"})
			tag := &api.Tag{ObjectMeta: metav1.ObjectMeta{Name: names.Draw(t, "name")}}
			tag.Spec.Namespace = "shop"
			if rapid.Bool().Draw(t, "with a port") {
				tag.Spec.Ports = []api.TagPort{{Name: rapid.SampledFrom([]string{"", "http"}).Draw(t, "port"),
					Protocol: rapid.SampledFrom([]string{"TCP", "UDP", "SCTP", "tcp", ""}).Draw(t, "protocol"), Port: somePort.Draw(t, "number")}}
			}
			return tag
		},
	}
	for k, object := range draw {
		t.Run(k.Kind, func(t *testing.T) {
			judged := map[bool]int{}
			rapid.Check(t, func(t *rapid.T) {
				o := object(t)
				own := k.Validate(o)
				theirs := s.dryRun(context.Background(), k, o)
				if theirs != nil && !apierrors.IsInvalid(theirs) && !apierrors.IsAlreadyExists(theirs) {
					t.Fatal(theirs)
				}
				if (own == nil) == apierrors.IsInvalid(theirs) {
					text, _ := json.Marshal(o)
					t.Fatalf("Weft: %v\nAPI server: %v\n%s", own, theirs, text)
				}
				judged[own == nil]++
			})
			if judged[true] == 0 || judged[false] == 0 {
				t.Error(fmt.Sprint("the objects drawn are all of one judgement: ", judged))
			}
		})
	}
}
