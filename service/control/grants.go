package control

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// The ports of nodes that Services get, as Kubernetes gives them by default.
const (
	firstNodePort = 30000
	lastNodePort  = 32767
)

func newGrant(svc *corev1.Service, name, port string) *service.Grant {
	g := &service.Grant{Spec: service.GrantSpec{Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID, Port: port}}
	g.Name = name
	return g
}

// allotment is what Services have, and what is given out.
type allotment struct {
	ranges []netip.Prefix
	// taken are the names of Grants that there are, or may be.
	taken map[string]bool
	// granted are the Grants that Services use, by name, held the same by what they are for.
	granted map[string]*service.Grant
	held    map[purpose]*service.Grant
	// addresses are what is left of ranges, ports of the ports of nodes.
	addresses map[netip.Prefix]*left
	ports     map[corev1.Protocol]*left
}

// purpose is what of a Service a Grant is for: an address of a family, or a port.
type purpose struct {
	of  registry.Key
	uid types.UID
	is  string
}

// purposeOf returns what a Grant is for.
func purposeOf(g *service.Grant) purpose {
	if g.Spec.Port != "" {
		return purpose{g.Spec.Service(), g.Spec.UID, g.Spec.Port}
	}
	ip, _ := netip.ParseAddr(g.Name) // who uses it knows that
	return purpose{g.Spec.Service(), g.Spec.UID, string(addressType(ip))}
}

// left are the ports of nodes, or the addresses of a range, that were not looked at yet: how many, and
// the first of them. None comes free while it is decided.
type left struct{ many, first int32 }

// allot returns what Services have that there are. ranges are those that addresses are given
// from, the preferred family's first; used are the Grants that Services use, unused those that
// are still in the way.
func allot(ranges []netip.Prefix, services []*corev1.Service, used, unused []*service.Grant) *allotment {
	a := &allotment{ranges: ranges, taken: make(map[string]bool), granted: make(map[string]*service.Grant), held: make(map[purpose]*service.Grant),
		addresses: make(map[netip.Prefix]*left), ports: make(map[corev1.Protocol]*left)}
	for _, g := range unused {
		a.taken[g.Name] = true
	}
	for _, g := range used {
		a.taken[g.Name], a.granted[g.Name] = true, g
		if is := purposeOf(g); a.held[is] == nil {
			a.held[is] = g
		}
	}
	for _, svc := range services {
		for _, ip := range api.ClusterAddresses(svc) {
			a.taken[ip.String()] = true
		}
		if hasTooManyPorts(svc) {
			continue
		}
		for _, p := range nodePorts(svc) {
			if p.number != 0 {
				a.taken[p.grant()] = true
			}
		}
	}
	return a
}

// claim returns the Grant that a Service lacks of what it says that it has, nil where it has
// that Grant. other is the Service that has it already.
func (a *allotment) claim(svc *corev1.Service, name, port string) (lacks *service.Grant, other string) {
	switch g := a.granted[name]; {
	case g == nil:
		a.granted[name] = newGrant(svc, name, port)
		return a.granted[name], ""
	case !g.IsOf(svc):
		return nil, g.Spec.Service().String()
	}
	return nil, ""
}

// has reports whether a Service has a Grant already.
func (a *allotment) has(svc *corev1.Service, name string) bool {
	g := a.granted[name]
	return g != nil && g.IsOf(svc)
}

// portName is what a Grant calls a port of a Service.
func portName(p corev1.ServicePort) string {
	return fmt.Sprintf("%d/%s", p.Port, cmp.Or(p.Protocol, corev1.ProtocolTCP))
}

// needsAddress reports whether a Service is to have an address of the cluster.
func needsAddress(svc *corev1.Service) bool {
	return svc.Spec.Type != corev1.ServiceTypeExternalName && !isHeadless(svc)
}

// needsNodePorts reports whether a Service is to have ports of nodes for all of its own.
func needsNodePorts(svc *corev1.Service) bool {
	given := svc.Spec.Type != corev1.ServiceTypeLoadBalancer || svc.Spec.AllocateLoadBalancerNodePorts == nil || *svc.Spec.AllocateLoadBalancerNodePorts
	return mayHaveNodePorts(svc) && given
}

// mayHaveNodePorts reports whether a Service has the ports of nodes that it says.
func mayHaveNodePorts(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeNodePort || svc.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// nodePort is a port of nodes that a Service has, or is to have.
type nodePort struct {
	// is names what it is for, as Grants do: a port of the Service, or service.HealthPort.
	is       string
	protocol corev1.Protocol
	// number is 0 where the Service says none; needed says that it is to get one then.
	number int32
	needed bool
	// port is the index of the Service's port; -1 for service.HealthPort.
	port int
}

// nodePorts returns those of a Service.
func nodePorts(svc *corev1.Service) (all []nodePort) {
	if !mayHaveNodePorts(svc) {
		return nil
	}
	for i, p := range svc.Spec.Ports {
		all = append(all, nodePort{portName(p), cmp.Or(p.Protocol, corev1.ProtocolTCP), p.NodePort, needsNodePorts(svc), i})
	}
	if service.IsChecked(svc) {
		all = append(all, nodePort{service.HealthPort, corev1.ProtocolTCP, svc.Spec.HealthCheckNodePort, true, -1})
	}
	return all
}

// grant is the name of its Grant.
func (p nodePort) grant() string { return service.NodePortGrant(p.number, p.protocol) }

// of returns where a Service says its number.
func (p nodePort) of(svc *corev1.Service) *int32 {
	if p.port < 0 {
		return &svc.Spec.HealthCheckNodePort
	}
	return &svc.Spec.Ports[p.port].NodePort
}

// what says what it is for.
func (p nodePort) what() string {
	if p.port < 0 {
		return "health checks"
	}
	return "port " + p.is
}

// String is for people.
func (p nodePort) String() string {
	if p.port < 0 {
		return fmt.Sprintf("healthCheckNodePort %d", p.number)
	}
	return fmt.Sprintf("nodePort %d of port %s", p.number, p.is)
}

// hasTooManyPorts reports whether a Service has more ports than any node serves, at however
// few addresses.
func hasTooManyPorts(svc *corev1.Service) bool { return len(svc.Spec.Ports) > service.MaxFrontends }

// serve returns the Service as it is to be by the Grants that it has, those that it uses
// that way among them, and the Grants that it lacks. problems say what it cannot have.
func (a *allotment) serve(svc *corev1.Service) (filled *corev1.Service, uses, lacks []*service.Grant, problems []string) {
	if hasTooManyPorts(svc) {
		return svc, nil, nil, []string{fmt.Sprintf("its ports are %d, more than %d, and it is given nothing, nor endpoints: make several Services of it",
			len(svc.Spec.Ports), service.MaxFrontends)}
	}
	ports := nodePorts(svc)
	if isLacking(svc, ports) {
		// What is kept for it would be nobody's, as it could not be written into it.
		if refused := refusal(withAddresses(svc, addressTexts(svc))); refused != "" {
			return svc, nil, nil, []string{refused}
		}
	}
	filled = svc.DeepCopy()
	if needsAddress(svc) {
		var ips []string
		ips, uses, lacks, problems = a.clusterIPs(svc)
		filled = withAddresses(svc, ips)
	}
	for _, p := range ports {
		switch {
		case p.number != 0 && (p.number < firstNodePort || p.number > lastNodePort) && !a.has(svc, p.grant()):
			// It would be in the place of nodes' own programs.
			problems = append(problems, fmt.Sprintf("%s is served on no node: choose one from %d to %d, or 0 to be given one", p, firstNodePort, lastNodePort))
		case p.number != 0:
			g, other := a.claim(svc, p.grant(), p.is)
			if g != nil {
				lacks = append(lacks, g)
			}
			if other != "" {
				problems = append(problems, fmt.Sprintf("%s is Service %s's: choose another, or 0 to be given one", p, other))
			}
		case p.needed:
			if g := a.held[purpose{registry.KeyOf(svc), svc.UID, p.is}]; g != nil {
				if _, err := fmt.Sscanf(g.Name, "%d-", p.of(filled)); err == nil {
					uses = append(uses, g)
				}
			} else if g := a.freeNodePort(svc, p); g != nil {
				lacks = append(lacks, g)
			} else {
				problems = append(problems, fmt.Sprintf("no port of nodes from %d to %d is free for %s: delete Services of type NodePort that nobody needs, or give this one a port",
					firstNodePort, lastNodePort, p.what()))
			}
		}
	}
	return filled, uses, lacks, problems
}

// isLacking reports whether a Service says none of its addresses, or not all of its ports of nodes.
func isLacking(svc *corev1.Service, ports []nodePort) bool {
	return needsAddress(svc) && len(api.ClusterAddresses(svc)) == 0 ||
		slices.ContainsFunc(ports, func(p nodePort) bool { return p.number == 0 && p.needed })
}

// addressTexts are the addresses that a Service says it has, as far as they are some.
func addressTexts(svc *corev1.Service) (texts []string) {
	if !needsAddress(svc) {
		return svc.Spec.ClusterIPs
	}
	for _, ip := range api.ClusterAddresses(svc) {
		texts = append(texts, ip.String())
	}
	return texts
}

// withAddresses returns a Service that has some addresses, and their families.
func withAddresses(svc *corev1.Service, ips []string) *corev1.Service {
	svc = svc.DeepCopy()
	before := svc.Spec.IPFamilies
	svc.Spec.ClusterIPs, svc.Spec.ClusterIP, svc.Spec.IPFamilies = ips, "", nil
	if len(ips) > 0 {
		svc.Spec.ClusterIP = ips[0]
	}
	for _, ip := range api.ClusterAddresses(svc) {
		svc.Spec.IPFamilies = append(svc.Spec.IPFamilies, corev1.IPFamily(addressType(ip)))
	}
	if len(svc.Spec.IPFamilies) == 0 {
		svc.Spec.IPFamilies = before
	}
	return svc
}

// refusal says why no registry writes a Service that one has, as it was stored before there was a
// rule that it breaks; it is empty where one would.
func refusal(svc *corev1.Service) string {
	err := api.Service.Validate(svc)
	if err == nil {
		return ""
	}
	return fmt.Sprintf("it was stored before there was a rule that it breaks, and so it can be given nothing more (%s): apply it anew as it is to be", inFew(err))
}

// inFew names the first of the errors that Validate of a kind returned.
func inFew(err error) string {
	all := []error{err}
	var several utilerrors.Aggregate
	if errors.As(err, &several) {
		all = several.Errors()
	}
	var texts []string
	for _, e := range all[:min(len(all), printable.MaxNamed)] {
		texts = append(texts, printable.Brief(e.Error()))
	}
	return printable.Few(texts, len(all)-len(texts))
}

// wantedFamilies returns the families of which a Service is to have an address each, those of
// which it has one first, and whether it can do with the first alone.
func (a *allotment) wantedFamilies(svc *corev1.Service) (all []corev1.IPFamily, firstWillDo bool) {
	put := func(f corev1.IPFamily) {
		if !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	for _, ip := range api.ClusterAddresses(svc) {
		put(corev1.IPFamily(addressType(ip)))
	}
	for _, f := range svc.Spec.IPFamilies {
		put(f)
	}
	policy := or(svc.Spec.IPFamilyPolicy)
	for _, r := range a.ranges {
		if len(all) == 0 || policy == corev1.IPFamilyPolicyPreferDualStack || policy == corev1.IPFamilyPolicyRequireDualStack {
			put(corev1.IPFamily(addressType(r.Addr())))
		}
	}
	if policy == corev1.IPFamilyPolicyRequireDualStack {
		put(corev1.IPv4Protocol)
		put(corev1.IPv6Protocol)
	}
	return all, policy == corev1.IPFamilyPolicyPreferDualStack
}

// clusterIPs returns the addresses of a Service: those that it has, and behind them those that
// it gets by a Grant; and what Grants are lacking.
func (a *allotment) clusterIPs(svc *corev1.Service) (ips []string, uses, lacks []*service.Grant, problems []string) {
	families, firstWillDo := a.wantedFamilies(svc)
	if len(families) == 0 {
		return nil, nil, nil, []string{"the cluster has no range that Services get addresses from: give the ClusterConfig spec.serviceNetworks, or the Service a clusterIP"}
	}
	has := make(map[corev1.IPFamily]bool)
	for _, ip := range api.ClusterAddresses(svc) {
		has[corev1.IPFamily(addressType(ip))] = true
		ips = append(ips, ip.String())
		if !slices.ContainsFunc(a.ranges, func(r netip.Prefix) bool { return r.Contains(ip) }) && len(a.ranges) > 0 && !a.has(svc, ip.String()) {
			// It would be in the place of whoever has it.
			problems = append(problems, fmt.Sprintf("clusterIP %s is outside of %s, where Services get addresses, and is served on no node: choose one in there, or none to be given one", ip, inWordsOf(a.ranges)))
			continue
		}
		g, other := a.claim(svc, ip.String(), "")
		if g != nil {
			lacks = append(lacks, g)
		}
		if other != "" {
			problems = append(problems, fmt.Sprintf("clusterIP %s is Service %s's: choose another, or none to be given one", ip, other))
		}
	}
	waits := false
	for i, f := range families {
		if has[f] {
			continue
		}
		if g := a.held[purpose{registry.KeyOf(svc), svc.UID, string(f)}]; g != nil {
			// The first address is of the first family: a later one has to wait for it.
			if !waits {
				ips, uses = append(ips, g.Name), append(uses, g)
			}
			continue
		}
		waits = true
		if g, why := a.freeAddress(svc, f); g != nil {
			lacks = append(lacks, g)
		} else if i == 0 || !firstWillDo {
			problems = append(problems, why)
		}
	}
	return ips, uses, lacks, problems
}

// inWordsOf names ranges.
func inWordsOf(ranges []netip.Prefix) string {
	var texts []string
	for _, r := range ranges {
		texts = append(texts, r.String())
	}
	return strings.Join(texts, " and ")
}

// freeAddress takes a free address for a Service, and says why there is none.
func (a *allotment) freeAddress(svc *corev1.Service, f corev1.IPFamily) (g *service.Grant, why string) {
	i := slices.IndexFunc(a.ranges, func(r netip.Prefix) bool { return corev1.IPFamily(addressType(r.Addr())) == f })
	if i < 0 {
		return nil, fmt.Sprintf("the cluster has no range of %s that Services get addresses from: give the ClusterConfig one in spec.serviceNetworks, or the Service other ipFamilies", f)
	}
	r := a.ranges[i].Masked()
	why = fmt.Sprintf("all addresses of %s are taken: give the ClusterConfig a larger range in spec.serviceNetworks", r)
	bits := min(r.Addr().BitLen()-r.Bits(), 20) // more than a million Services there are not
	mask := int32(1)<<bits - 1
	try := func(n int32) bool {
		ip := offset(r.Addr(), uint32(n&mask))
		if ip == r.Addr() || ip.Is4() && ip == lastOf(r) || a.taken[ip.String()] {
			return false
		}
		a.taken[ip.String()] = true
		g = newGrant(svc, ip.String(), "")
		return true
	}
	// Two that give out at once begin in different places for different Services.
	first := int32(start(svc.UID)) & mask
	for n := range int32(looksAtOwn) {
		if try(first + n) {
			return g, ""
		}
	}
	rest := a.addresses[r]
	if rest == nil {
		rest = &left{mask + 1, first}
		a.addresses[r] = rest
	}
	for rest.many > 0 {
		n := rest.first
		rest.many, rest.first = rest.many-1, (n+1)&mask
		if try(n) {
			return g, ""
		}
	}
	return nil, why
}

// looksAtOwn is how many addresses are looked at for each Service. After these it gets one that
// was looked at for no other, so that a range that is nearly full is gone through once for all.
const looksAtOwn = 16

// start is where to begin to look for something free for a Service.
func start(uid types.UID) uint32 {
	h := fnv.New32a()
	h.Write([]byte(uid))
	return h.Sum32()
}

// offset returns the address that is n behind another.
func offset(a netip.Addr, n uint32) netip.Addr {
	bytes := a.AsSlice()
	for i := len(bytes) - 1; i >= 0 && n > 0; i-- {
		n += uint32(bytes[i])
		bytes[i] = byte(n)
		n >>= 8
	}
	out, _ := netip.AddrFromSlice(bytes)
	return out
}

// lastOf returns the last address of an IPv4 prefix.
func lastOf(r netip.Prefix) netip.Addr {
	return offset(r.Addr(), 1<<(32-r.Bits())-1)
}

// freeNodePort takes a port of nodes for a port of a Service, nil where there is none. Each
// is looked at once, whoever asks. Two that give out at once begin in different places for
// different Services.
func (a *allotment) freeNodePort(svc *corev1.Service, p nodePort) *service.Grant {
	const n = lastNodePort - firstNodePort + 1
	rest := a.ports[p.protocol]
	if rest == nil {
		rest = &left{n, int32(start(svc.UID) % n)}
		a.ports[p.protocol] = rest
	}
	for rest.many > 0 {
		p.number = firstNodePort + rest.first
		rest.many, rest.first = rest.many-1, (rest.first+1)%n
		if name := p.grant(); !a.taken[name] {
			a.taken[name] = true
			return newGrant(svc, name, p.is)
		}
	}
	return nil
}

// usage is what a Service has, or may come to have.
type usage struct {
	// service is nil where there is none.
	service *corev1.Service
	// chosen are ports of the Service by the ports of nodes that it says they have, open are
	// those of which it says none. Both are named as in Grants.
	chosen map[string]string
	open   map[string]bool
}

// usageOf returns what a Service uses; svc is nil where there is none.
func usageOf(svc *corev1.Service) usage {
	u := usage{service: svc}
	if svc == nil {
		return u
	}
	u.chosen, u.open = make(map[string]string), make(map[string]bool)
	for _, p := range nodePorts(svc) {
		if p.number == 0 {
			u.open[p.is] = p.needed
		} else if _, twice := u.chosen[p.grant()]; !twice {
			u.chosen[p.grant()] = p.is
		}
	}
	return u
}

// has reports whether what a Grant says is among it.
func (u usage) has(g *service.Grant) bool {
	if u.service == nil || !g.IsOf(u.service) {
		return false
	}
	if g.Spec.Port != "" {
		if port, chosen := u.chosen[g.Name]; chosen {
			return port == g.Spec.Port
		}
		return u.open[g.Spec.Port]
	}
	if !needsAddress(u.service) {
		return false
	}
	own, err := netip.ParseAddr(g.Name)
	if err != nil {
		return false
	}
	all, family := api.ClusterAddresses(u.service), corev1.IPFamily(addressType(own))
	for _, ip := range all {
		if ip == own {
			return true
		}
		if ip.Is4() == own.Is4() {
			return false
		}
	}
	// One that is to have one family, and has the other.
	policy := or(u.service.Spec.IPFamilyPolicy)
	single := policy == "" || policy == corev1.IPFamilyPolicySingleStack
	return len(all) == 0 || !single || slices.Contains(u.service.Spec.IPFamilies, family)
}
