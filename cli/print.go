package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
	"github.com/weftnet/weft/service/control"
)

// column is a column of the table that get prints.
type column struct {
	title string
	// wide says that it is shown with -o wide only.
	wide  bool
	value func(registry.Object) string
}

// of makes a column of the objects of one type.
func of[T registry.Object](title string, value func(T) string) column {
	return column{title: title, value: func(o registry.Object) string {
		if t, ok := o.(T); ok {
			return value(t)
		}
		return ""
	}}
}

// wideOf makes a column that is shown with -o wide only.
func wideOf[T registry.Object](title string, value func(T) string) column {
	c := of(title, value)
	c.wide = true
	return c
}

// columns are those of each kind between NAME and AGE, by its plural name.
var columns = map[string][]column{
	"clusterconfigs": {
		of("PLUGIN", func(c *api.ClusterConfig) string { return api.Effective(c).Spec.Plugin }),
		wideOf("USED", func(c *api.ClusterConfig) string { return strings.Join(api.PluginMix(c), ",") }),
		of("DATAPLANE", func(c *api.ClusterConfig) string { return api.Effective(c).Spec.DataPlane }),
		of("MTU", func(c *api.ClusterConfig) string { return orAuto(c.Spec.MTU) }),
		wideOf("VXLAN-PORT", func(c *api.ClusterConfig) string { return orAuto(c.Spec.VXLANPort) }),
		of("PROBLEM", func(c *api.ClusterConfig) string { return conditionProblems(c.Status.Conditions) }),
	},
	"clusternetworks": {
		of("CLUSTER-NETWORKS", func(c *networkv1.ClusterNetwork) string {
			var nets []string
			for _, e := range c.ClusterNetworks {
				nets = append(nets, e.CIDR)
			}
			if len(nets) == 0 && c.Network != "" {
				nets = []string{c.Network}
			}
			return strings.Join(nets, ",")
		}),
		of("SERVICE-NETWORK", func(c *networkv1.ClusterNetwork) string { return c.ServiceNetwork }),
		wideOf("PLUGIN-NAME", func(c *networkv1.ClusterNetwork) string { return c.PluginName }),
		of("PROBLEM", annotatedProblem[*networkv1.ClusterNetwork]),
	},
	"hostsubnets": {
		of("HOST", func(h *networkv1.HostSubnet) string { return h.Host }),
		of("HOST-IP", func(h *networkv1.HostSubnet) string {
			return join(h.HostIP, h.Annotations[api.AdditionalHostIPs])
		}),
		of("SUBNET", func(h *networkv1.HostSubnet) string {
			return join(h.Subnet, h.Annotations[api.AdditionalSubnets])
		}),
		wideOf("EGRESS-IPS", func(h *networkv1.HostSubnet) string { return joined(h.EgressIPs) }),
		wideOf("EGRESS-CIDRS", func(h *networkv1.HostSubnet) string { return joined(h.EgressCIDRs) }),
		of("PROBLEM", annotatedProblem[*networkv1.HostSubnet]),
	},
	"nodes": {
		of("STATUS", nodeStatus),
		of("INTERNAL-IP", func(n *corev1.Node) string { return strings.Join(internalIPs(n), ",") }),
		wideOf("PROBLEM", func(n *corev1.Node) string { return strings.Join(explain.NodeProblems(n), "; ") }),
	},
	"pods": {
		of("STATUS", func(p *corev1.Pod) string { return string(p.Status.Phase) }),
		of("IP", func(p *corev1.Pod) string {
			return joinedBy(p.Status.PodIPs, func(ip corev1.PodIP) string { return ip.IP })
		}),
		of("NODE", func(p *corev1.Pod) string { return p.Spec.NodeName }),
		wideOf("LABELS", func(p *corev1.Pod) string { return metav1.FormatLabelSelector(metav1.SetAsLabelSelector(p.Labels)) }),
	},
	"namespaces": {
		wideOf("LABELS", func(n *corev1.Namespace) string {
			return metav1.FormatLabelSelector(metav1.SetAsLabelSelector(n.Labels))
		}),
	},
	"services": {
		of("TYPE", func(s *corev1.Service) string { return string(cmp.Or(s.Spec.Type, corev1.ServiceTypeClusterIP)) }),
		of("CLUSTER-IP", clusterIP),
		of("EXTERNAL-IP", externalIPs),
		of("PORTS", func(s *corev1.Service) string {
			return joinedBy(s.Spec.Ports, func(p corev1.ServicePort) string {
				node := ""
				if p.NodePort > 0 {
					node = fmt.Sprintf(":%d", p.NodePort)
				}
				return fmt.Sprintf("%d%s/%s", p.Port, node, cmp.Or(p.Protocol, corev1.ProtocolTCP))
			})
		}),
		wideOf("SELECTOR", func(s *corev1.Service) string {
			return metav1.FormatLabelSelector(metav1.SetAsLabelSelector(s.Spec.Selector))
		}),
		wideOf("PROBLEM", func(s *corev1.Service) string {
			var words []string
			for _, c := range s.Status.Conditions {
				if control.IsProblem(c) {
					words = append(words, cmp.Or(c.Message, c.Reason))
				}
			}
			return strings.Join(words, "; ")
		}),
	},
	"endpointslices": {
		of("SERVICE", func(s *discoveryv1.EndpointSlice) string { return s.Labels[discoveryv1.LabelServiceName] }),
		of("ADDRESSTYPE", func(s *discoveryv1.EndpointSlice) string { return string(s.AddressType) }),
		of("PORTS", func(s *discoveryv1.EndpointSlice) string {
			return joinedBy(s.Ports, func(p discoveryv1.EndpointPort) string {
				if p.Port == nil {
					return "<all>"
				}
				return fmt.Sprint(*p.Port)
			})
		}),
		of("ENDPOINTS", func(s *discoveryv1.EndpointSlice) string {
			var all []string
			for _, e := range s.Endpoints {
				all = append(all, e.Addresses...)
			}
			return printable.Few(all, 0)
		}),
		wideOf("NODES", func(s *discoveryv1.EndpointSlice) string {
			var all []string
			for _, e := range s.Endpoints {
				if e.NodeName != nil && !slices.Contains(all, *e.NodeName) {
					all = append(all, *e.NodeName)
				}
			}
			return printable.Few(all, 0)
		}),
	},
	"servicegrants": {
		of("SERVICE", func(g *service.Grant) string { return g.Spec.Service().String() }),
		of("PORT", func(g *service.Grant) string { return g.Spec.Port }),
	},
	"addresspools": {
		of("ADDRESSES", func(p *api.AddressPool) string { return joined(p.Spec.Addresses) }),
		of("ANNOUNCE", func(p *api.AddressPool) string { return cmp.Or(p.Spec.Announce, api.AnnounceLink) }),
		of("USED", usedOf),
		wideOf("CLASS", func(p *api.AddressPool) string { return p.Spec.LoadBalancerClass }),
		wideOf("AUTO-ASSIGN", func(p *api.AddressPool) string { assigns := p.Assigns(); return yesNo(&assigns) }),
		wideOf("NAMESPACES", func(p *api.AddressPool) string {
			if p.Spec.Namespaces == nil {
				return "<all>"
			}
			return joined(append(slices.Clone(p.Spec.Namespaces.Names), selected(p.Spec.Namespaces.Selector)...))
		}),
		wideOf("NODES", func(p *api.AddressPool) string {
			if p.Spec.Nodes == nil {
				return "<all>"
			}
			return joined(selected(p.Spec.Nodes))
		}),
		of("PROBLEM", func(p *api.AddressPool) string { return conditionProblems(p.Status.Conditions) }),
	},
	"addressgrants": {
		of("ADDRESS", func(g *api.AddressGrant) string {
			if a := g.Address(); a.IsValid() {
				return a.String()
			}
			return ""
		}),
		of("SERVICE", func(g *api.AddressGrant) string { return g.Spec.Service().String() }),
		of("POOL", func(g *api.AddressGrant) string { return g.Spec.Pool }),
	},
	"virtualaddresses": {
		of("ADDRESS", func(v *api.VirtualAddress) string { return v.Spec.Address }),
		of("CHECK", func(v *api.VirtualAddress) string {
			if v.Spec.Check == nil {
				return ""
			}
			return strconv.Itoa(int(v.Spec.Check.Port))
		}),
		wideOf("NODES", func(v *api.VirtualAddress) string {
			if v.Spec.Nodes == nil {
				return "<all>"
			}
			return joined(selected(v.Spec.Nodes))
		}),
	},
	"networkpolicies": {
		of("POD-SELECTOR", func(p *networkingv1.NetworkPolicy) string { return metav1.FormatLabelSelector(&p.Spec.PodSelector) }),
		wideOf("POLICY-TYPES", func(p *networkingv1.NetworkPolicy) string { return joined(p.Spec.PolicyTypes) }),
	},
	"clusternetworkpolicies": {
		of("TIER", func(p *policyv1alpha2.ClusterNetworkPolicy) string { return string(p.Spec.Tier) }),
		of("PRIORITY", func(p *policyv1alpha2.ClusterNetworkPolicy) string { return fmt.Sprint(p.Spec.Priority) }),
		wideOf("NAMESPACE-SELECTOR", func(p *policyv1alpha2.ClusterNetworkPolicy) string {
			if pods := p.Spec.Subject.Pods; pods != nil {
				return metav1.FormatLabelSelector(&pods.NamespaceSelector)
			}
			return metav1.FormatLabelSelector(p.Spec.Subject.Namespaces)
		}),
		wideOf("POD-SELECTOR", func(p *policyv1alpha2.ClusterNetworkPolicy) string {
			if pods := p.Spec.Subject.Pods; pods != nil {
				return metav1.FormatLabelSelector(&pods.PodSelector)
			}
			return ""
		}),
		of("PROBLEM", func(p *policyv1alpha2.ClusterNetworkPolicy) string { return conditionProblems(p.Status.Conditions) }),
	},
	"egressnetworkpolicies": {
		of("RULES", func(p *networkv1.EgressNetworkPolicy) string { return fmt.Sprint(len(p.Spec.Egress)) }),
	},
	"tags": {
		of("NAMESPACE", func(t *api.Tag) string { return t.Spec.Namespace }),
		of("LABELS", func(t *api.Tag) string { return metav1.FormatLabelSelector(metav1.SetAsLabelSelector(t.Spec.Labels)) }),
		of("PORTS", func(t *api.Tag) string {
			return joinedBy(t.Spec.Ports, func(p api.TagPort) string { return fmt.Sprintf("%s:%d/%s", p.Name, p.Port, p.Protocol) })
		}),
		wideOf("UNUSED-SINCE", func(t *api.Tag) string {
			if t.Spec.UnusedSince == nil {
				return ""
			}
			return t.Spec.UnusedSince.UTC().Format(time.RFC3339)
		}),
	},
	"nodepods": {
		of("TAGS", func(n *api.NodePods) string { return fmt.Sprint(len(n.Pods)) }),
		of("ADDRESSES", func(n *api.NodePods) string {
			count := 0
			for _, p := range n.Pods {
				count += len(p.Addresses)
			}
			return fmt.Sprint(count)
		}),
	},
	"nodereports": {
		wideOf("ENFORCED", func(n *api.NodeReport) string {
			return joinedBy(slices.Sorted(maps.Keys(n.Enforced)), func(kind string) string { return kind + ":" + n.Enforced[kind] })
		}),
		of("PROBLEM", func(n *api.NodeReport) string {
			var words []string
			for _, p := range n.Problems {
				words = append(words, fmt.Sprintf("%s %s: %s", p.Kind, registry.Key{Namespace: p.Namespace, Name: p.Name}, p.Message))
			}
			return strings.Join(words, "; ")
		}),
	},
	"domainnames": {
		of("ADDRESSES", func(d *api.DomainName) string { return joined(d.Addresses) }),
		of("PROBLEM", func(d *api.DomainName) string { return d.Problem }),
	},
	"flannelconfigs": {
		of("SPEC", func(c *flannel.Config) string { return string(c.Spec) }),
	},
	"flannelleases": {
		of("NODE", ofLease(func(a flannel.Attributes) string {
			if a.Weft == nil {
				return "" // of flanneld's leases none says it
			}
			return a.Weft.Node
		})),
		of("SUBNET", func(l *flannel.Lease) string {
			s, err := flannel.ParseSubnet(l.Name)
			if err != nil {
				return ""
			}
			return joinedBy(s.Prefixes(), netip.Prefix.String)
		}),
		of("PUBLIC-IP", ofLease(func(a flannel.Attributes) string {
			addresses := slices.DeleteFunc([]netip.Addr{a.PublicIP, a.PublicIPv6}, func(ip netip.Addr) bool { return !ip.IsValid() })
			return joinedBy(addresses, netip.Addr.String)
		})),
		of("BACKEND", ofLease(func(a flannel.Attributes) string { return a.BackendType })),
		of("EXPIRES", func(l *flannel.Lease) string { return yesNo(&l.Expires) }),
	},
}

// ofLease returns what a lease of flannel's says, nothing where it cannot be read.
func ofLease(value func(flannel.Attributes) string) func(*flannel.Lease) string {
	return func(l *flannel.Lease) string {
		a, err := flannel.ParseAttributes(l.Spec)
		if err != nil {
			return ""
		}
		return value(a)
	}
}

// clusterIP is the Service's address in the cluster, or pending where it is to get one, which the controller
// gives it on etcd.
func clusterIP(s *corev1.Service) string {
	if s.Spec.ClusterIP == "" && s.Spec.Type != corev1.ServiceTypeExternalName {
		return "<pending>"
	}
	return s.Spec.ClusterIP
}

// externalIPs are where a Service is reached from outside of the cluster, or pending where it
// waits for a load balancer; of one that stands for a host name that name.
func externalIPs(s *corev1.Service) string {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return s.Spec.ExternalName
	}
	var all []string
	for _, i := range s.Status.LoadBalancer.Ingress {
		all = append(all, cmp.Or(i.IP, i.Hostname))
	}
	if all = append(all, s.Spec.ExternalIPs...); len(all) == 0 && s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		return "<pending>"
	}
	return strings.Join(all, ",")
}

// usedOf says how many of a pool's addresses Services have.
func usedOf(p *api.AddressPool) string {
	total := fmt.Sprint(p.Status.Total)
	if p.Status.Total >= api.MaxPoolTotal {
		total = "very many"
	}
	return fmt.Sprintf("%d of %s", p.Status.Used, total)
}

// selected is a selector in words, none where there is no selector.
func selected(s *metav1.LabelSelector) []string {
	switch {
	case s == nil:
		return nil
	case len(s.MatchLabels)+len(s.MatchExpressions) == 0:
		return []string{"<all>"}
	}
	return []string{metav1.FormatLabelSelector(s)}
}

func annotatedProblem[T registry.Object](o T) string {
	return o.GetAnnotations()[api.ProblemAnnotation]
}

func orAuto(n int) string {
	if n == 0 {
		return "auto"
	}
	return fmt.Sprint(n)
}

func join(first, others string) string {
	if others == "" {
		return first
	}
	return first + "," + others
}

func joined[T ~string](list []T) string { return joinedBy(list, func(t T) string { return string(t) }) }

func joinedBy[T any](list []T, text func(T) string) string {
	var words []string
	for _, t := range list {
		words = append(words, text(t))
	}
	return strings.Join(words, ",")
}

func internalIPs(n *corev1.Node) []string {
	var ips []string
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			ips = append(ips, a.Address)
		}
	}
	return ips
}

// printTable prints objects of one kind as kubectl would, with more columns behind those of the kind.
func printTable(w io.Writer, k *registry.Kind, objects []registry.Object, wide, namespaces bool, now time.Time, more ...column) error {
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	columns := slices.DeleteFunc(slices.Concat(columns[k.Plural], more), func(c column) bool {
		// A column of problems is there only when there are some.
		return c.wide && !wide || c.title == "PROBLEM" && !wide &&
			!slices.ContainsFunc(objects, func(o registry.Object) bool { return c.value(o) != "" })
	})
	var titles []string
	if namespaces {
		titles = append(titles, "NAMESPACE")
	}
	titles = append(titles, "NAME")
	for _, c := range columns {
		titles = append(titles, c.title)
	}
	// What has a form of another system does not say when it was made.
	aged := k.Layout == nil
	if aged {
		titles = append(titles, "AGE")
	}
	fmt.Fprintln(t, strings.Join(titles, "\t"))
	for _, o := range objects {
		var cells []string
		if namespaces {
			cells = append(cells, o.GetNamespace())
		}
		cells = append(cells, o.GetName())
		for _, c := range columns {
			cells = append(cells, cmp.Or(c.value(o), "<none>"))
		}
		if created := o.GetCreationTimestamp(); aged && created.IsZero() {
			cells = append(cells, "<unknown>")
		} else if aged {
			cells = append(cells, duration.HumanDuration(now.Sub(created.Time)))
		}
		for i, c := range cells {
			cells[i] = printable.Line(c)
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// What -o may say. Without it, people are told.
var (
	// valueFormats are those of printValue, which every command has that says something.
	valueFormats = []string{"json", "yaml"}
	// objectFormats are those of get besides: a table with more columns, and the names alone,
	// as other commands take them.
	objectFormats = slices.Concat(valueFormats, []string{"wide", "name"})
)

// outputFlag gives a command the flag -o, of which one of the formats is allowed besides none.
func outputFlag(cmd *cobra.Command, formats ...string) func() (string, error) {
	output := cmd.Flags().StringP("output", "o", "", fmt.Sprintf("output `FORMAT`: %s (default: text for people)", oneOf(formats)))
	cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	return func() (string, error) {
		if *output != "" && !slices.Contains(formats, *output) {
			return "", fmt.Errorf("-o %q: the formats are %s; leave the flag out for text (see: %s --help)", *output, oneOf(formats), cmd.CommandPath())
		}
		return *output, nil
	}
}

// printValue prints what a command says in one of valueFormats. Both have the same names.
func printValue(w io.Writer, format string, v any) error {
	if format == "json" {
		return printable.JSON(w, "  ", v)
	}
	// YAML is made of the JSON in which all that a terminal would obey is escaped already:
	// what agents say may hold characters that no YAML may have.
	var text bytes.Buffer
	if err := printable.JSON(&text, "", v); err != nil {
		return err
	}
	lines, err := yaml.JSONToYAML(text.Bytes())
	if err == nil {
		_, err = io.WriteString(w, printable.Lines(string(lines)))
	}
	return err
}

// printYAML prints objects as documents that apply reads.
func printYAML(w io.Writer, objects []registry.Object) error {
	for i, o := range objects {
		b, err := yaml.Marshal(o)
		if err != nil {
			return err
		}
		if i > 0 {
			fmt.Fprintln(w, "---")
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// printJSON prints an object, or a list of objects as kubectl would.
func printJSON(w io.Writer, objects []registry.Object, list bool) error {
	var v any = map[string]any{"apiVersion": "v1", "kind": "List", "items": append([]registry.Object{}, objects...)}
	if !list && len(objects) == 1 {
		v = objects[0]
	}
	return printable.JSON(w, "    ", v)
}
