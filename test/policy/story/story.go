// Package story reads and writes clusters with policies, and packets in them,
// as files that people read: txtar archives of YAML and lines.
//
// Each file whose name ends in .yaml is the whole cluster from there on: the
// objects that kubectl would know, and DomainNames. Each file named packets is
// about the cluster before it, a line for each packet:
//
//	default/web to default/db TCP 5432 => allowed
//	198.51.100.7 to default/web ICMP => denied by NetworkPolicy default/web ingress isolation
//
// A pod's name stands for its first address; "default/web/1" is its second.
package story

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/test/policy/oracle"
)

// Story is clusters that follow each other.
type Story struct {
	Comment string
	States  []State
}

// State is a cluster, and packets in it. An object that is as it was in the
// state before is the same pointer.
type State struct {
	Cluster *oracle.Cluster
	Packets []Expectation
}

// Expectation is a packet and what should become of it.
type Expectation struct {
	Line    string
	Packet  oracle.Packet
	Allowed bool
	// By is the rule that decides, where the story says so.
	By string
}

// Parse reads a story.
func Parse(data []byte) (*Story, error) {
	archive := txtar.Parse(data)
	s := &Story{Comment: string(archive.Comment)}
	for _, f := range archive.Files {
		switch {
		case strings.HasSuffix(f.Name, ".yaml"):
			c, err := parseCluster(f.Data)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			if n := len(s.States); n > 0 {
				share(s.States[n-1].Cluster, c)
			}
			s.States = append(s.States, State{Cluster: c})
		case f.Name == "packets" && len(s.States) > 0:
			state := &s.States[len(s.States)-1]
			for line := range strings.Lines(string(f.Data)) {
				if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
					continue
				}
				e, err := parsePacket(state.Cluster, line)
				if err != nil {
					return nil, fmt.Errorf("%s: %q: %w", f.Name, line, err)
				}
				state.Packets = append(state.Packets, e)
			}
		default:
			return nil, fmt.Errorf("file %q is neither a .yaml nor packets behind one", f.Name)
		}
	}
	return s, nil
}

// kinds are those of which a cluster consists.
var kinds = []*registry.Kind{api.Node, api.Namespace, api.Pod, api.DomainNameKind, api.NetworkPolicy, api.ClusterNetworkPolicy}

func parseCluster(data []byte) (*oracle.Cluster, error) {
	objects, err := api.Decode(data, kinds)
	if err != nil {
		return nil, err
	}
	c := &oracle.Cluster{Domains: map[string][]netip.Addr{}}
	for _, d := range objects {
		switch o := d.Object.(type) {
		case *corev1.Node:
			c.Nodes = append(c.Nodes, o)
		case *corev1.Namespace:
			c.Namespaces = append(c.Namespaces, o)
		case *corev1.Pod:
			c.Pods = append(c.Pods, o)
		case *networkingv1.NetworkPolicy:
			c.NetworkPolicies = append(c.NetworkPolicies, o)
		case *policyv1alpha2.ClusterNetworkPolicy:
			c.ClusterNetworkPolicies = append(c.ClusterNetworkPolicies, o)
		case *api.DomainName:
			for _, text := range o.Addresses {
				a, err := netip.ParseAddr(text)
				if err != nil {
					return nil, fmt.Errorf("line %d: %w", d.Line, err)
				}
				c.Domains[o.Name] = append(c.Domains[o.Name], a)
			}
		}
	}
	return c, nil
}

// share makes what is equal in both clusters the same pointer.
func share(before, after *oracle.Cluster) {
	shareAll(before.Namespaces, after.Namespaces)
	shareAll(before.Pods, after.Pods)
	shareAll(before.Nodes, after.Nodes)
	shareAll(before.NetworkPolicies, after.NetworkPolicies)
	shareAll(before.ClusterNetworkPolicies, after.ClusterNetworkPolicies)
}

func shareAll[T any](before, after []*T) {
	for i, o := range after {
		if j := slices.IndexFunc(before, func(b *T) bool { return reflect.DeepEqual(b, o) }); j >= 0 {
			after[i] = before[j]
		}
	}
}

func parsePacket(c *oracle.Cluster, line string) (Expectation, error) {
	e := Expectation{Line: line}
	question, answer, ok := strings.Cut(line, " => ")
	words := strings.Fields(question)
	if !ok || len(words) < 4 || len(words) > 5 || words[1] != "to" {
		return e, fmt.Errorf("it is not of the form: SOURCE to DESTINATION PROTOCOL [PORT] => allowed|denied [by RULE]")
	}
	var err error
	if e.Packet.Source, err = address(c, words[0]); err != nil {
		return e, err
	}
	if e.Packet.Destination, err = address(c, words[2]); err != nil {
		return e, err
	}
	e.Packet.Protocol = corev1.Protocol(words[3])
	if len(words) == 5 {
		port, err := strconv.ParseUint(words[4], 10, 16)
		if err != nil {
			return e, err
		}
		e.Packet.Port = uint16(port)
	}
	answer, e.By, _ = strings.Cut(answer, " by ")
	switch answer {
	case "allowed", "denied":
		e.Allowed = answer == "allowed"
	default:
		return e, fmt.Errorf("the answer is neither allowed nor denied")
	}
	return e, nil
}

func address(c *oracle.Cluster, text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err == nil {
		return a, nil
	}
	parts := append(strings.Split(text, "/"), "0")
	if len(parts) < 3 {
		return a, err
	}
	which, err := strconv.Atoi(parts[2])
	if err != nil {
		return a, err
	}
	for _, p := range c.Pods {
		if p.Namespace == parts[0] && p.Name == parts[1] && which < len(p.Status.PodIPs) {
			return netip.ParseAddr(p.Status.PodIPs[which].IP)
		}
	}
	return a, fmt.Errorf("%s is neither an address nor a pod with so many", text)
}

// Format writes a story as Parse reads it.
func Format(s *Story) ([]byte, error) {
	archive := &txtar.Archive{Comment: []byte(s.Comment)}
	for i, state := range s.States {
		data, err := FormatCluster(state.Cluster)
		if err != nil {
			return nil, err
		}
		archive.Files = append(archive.Files, txtar.File{Name: fmt.Sprintf("cluster%d.yaml", i+1), Data: data})
		var lines strings.Builder
		for _, e := range state.Packets {
			answer := "denied"
			if e.Allowed {
				answer = "allowed"
			}
			if e.By != "" {
				answer += " by " + e.By
			}
			fmt.Fprintf(&lines, "%s => %s\n", FormatPacket(e.Packet), answer)
		}
		if lines.Len() > 0 {
			archive.Files = append(archive.Files, txtar.File{Name: "packets", Data: []byte(lines.String())})
		}
	}
	return txtar.Format(archive), nil
}

// FormatPacket writes a packet as it is in a line.
func FormatPacket(p oracle.Packet) string {
	text := fmt.Sprintf("%s to %s %s", p.Source, p.Destination, p.Protocol)
	if p.Port != 0 {
		text += " " + strconv.Itoa(int(p.Port))
	}
	return text
}

// FormatCluster writes a cluster as YAML.
func FormatCluster(c *oracle.Cluster) ([]byte, error) {
	var objects []any
	var err error
	write := func(k *registry.Kind, o registry.Object) {
		var text []byte
		var tree map[string]any
		if text, err = json.Marshal(o); err == nil {
			err = json.Unmarshal(text, &tree)
		}
		tree["apiVersion"], tree["kind"] = k.GroupVersionKind.ToAPIVersionAndKind()
		objects = append(objects, tidy(tree))
	}
	for _, o := range c.Nodes {
		write(api.Node, o)
	}
	for _, o := range c.Namespaces {
		write(api.Namespace, o)
	}
	for _, o := range c.Pods {
		write(api.Pod, o)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Domains)) {
		o := &api.DomainName{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, a := range c.Domains[name] {
			o.Addresses = append(o.Addresses, a.String())
		}
		write(api.DomainNameKind, o)
	}
	for _, o := range c.NetworkPolicies {
		write(api.NetworkPolicy, o)
	}
	for _, o := range c.ClusterNetworkPolicies {
		write(api.ClusterNetworkPolicy, o)
	}
	var out bytes.Buffer
	for i, o := range objects {
		if i > 0 {
			out.WriteString("---\n")
		}
		text, e := yaml.Marshal(o)
		err = errors.Join(err, e)
		out.Write(text)
	}
	return out.Bytes(), err
}

// tidy removes what the Go types write though nobody said it.
func tidy(tree map[string]any) map[string]any {
	for key, value := range tree {
		switch v := value.(type) {
		case nil:
			delete(tree, key)
		case map[string]any:
			if tidy(v); len(v) == 0 && slices.Contains([]string{"status", "spec", "resources", "nodeInfo", "daemonEndpoints", "kubeletEndpoint"}, key) {
				delete(tree, key)
			}
		case []any:
			if len(v) == 0 {
				delete(tree, key)
			}
			for _, item := range v {
				if item, ok := item.(map[string]any); ok {
					tidy(item)
				}
			}
		case string:
			if v == "" {
				delete(tree, key)
			}
		case float64:
			if key == "Port" { // of a node's kubelet
				delete(tree, key)
			}
		}
	}
	return tree
}
