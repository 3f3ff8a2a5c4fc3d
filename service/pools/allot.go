package pools

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// pool is an AddressPool, and what of it there is to give.
type pool struct {
	*api.AddressPool
	// ranges are its addresses, in the order in which they are written.
	ranges []api.AddressRange
	// free are the ranges of each family that Services may be given, in the order in which
	// they are written. What was looked at in this round is there no more.
	free map[corev1.IPFamily][]api.AddressRange
	// total is how many addresses these have.
	total int64
	// shared are the names of other pools that have addresses of this one, lost is what else of
	// it Services cannot be given.
	shared, lost []string
}

// allotment is what there is to give, and who has what.
type allotment struct {
	// pools are in the order of their names, in says which has what.
	pools []*pool
	in    segments
	// reserved are ranges, and own single addresses, that no Service gets; edges are those that
	// links have for themselves, of which a Service that has one keeps it.
	reserved   []reserved
	own, edges map[netip.Addr]string
	// labels are those of Namespaces.
	labels map[string]map[string]string
	// may are the pools that Services of a class in a namespace may have addresses of.
	may map[[2]string][]*pool
	// taken are the grants that there are, or are made in this round.
	taken map[netip.Addr]*api.AddressGrant
	// kept are addresses that Services have in their status, whoever has the grants: each with the
	// oldest Service that may have the grant of it and has it not yet, nil where none may.
	kept map[netip.Addr]*corev1.Service
	// held are those that Services use.
	held map[holder][]*api.AddressGrant
	// used is, by pool, how many of the addresses that it has now are among these.
	used map[string]int64
}

func newAllotment(objects registry.Objects) *allotment {
	a := &allotment{labels: make(map[string]map[string]string), may: make(map[[2]string][]*pool), taken: make(map[netip.Addr]*api.AddressGrant), kept: make(map[netip.Addr]*corev1.Service),
		held: make(map[holder][]*api.AddressGrant), used: make(map[string]int64)}
	for p := range registry.Each[*api.AddressPool](objects, api.AddressPoolKind) {
		a.pools = append(a.pools, &pool{AddressPool: p, ranges: p.Ranges(), free: make(map[corev1.IPFamily][]api.AddressRange)})
	}
	slices.SortFunc(a.pools, comparePools)
	for n := range registry.Each[*corev1.Namespace](objects, api.Namespace) {
		a.labels[n.Name] = n.Labels
	}
	if len(a.pools) == 0 {
		return a
	}
	a.in, a.reserved = divide(a.pools), reservedRanges(objects)
	a.own = ownReserved(objects, a.in)
	a.edges = edgesOf(a.pools, a.own)
	for _, s := range a.in {
		for _, p := range s.pools {
			for _, other := range s.pools {
				if other != p && !slices.Contains(p.shared, other.Name) {
					p.shared = append(p.shared, other.Name)
				}
			}
		}
	}
	for _, p := range a.pools {
		for _, r := range p.ranges {
			for _, s := range a.alone(r) {
				left := without(s, a.reserved)
				if len(left) != 1 || left[0] != s {
					p.lost = append(p.lost, a.lostIn(s))
				}
				for _, one := range left {
					family := familyOf(one.First)
					p.free[family] = append(p.free[family], one)
					p.total = min(p.total+one.Len(), api.MaxPoolTotal)
				}
			}
		}
	}
	for address, why := range a.own {
		if p := a.loses(address); p != nil {
			p.lost = append(p.lost, address.String()+" "+why)
		}
	}
	for address := range a.edges {
		a.loses(address)
	}
	return a
}

// loses counts that a single address is not given, and returns the pool that it counts for.
func (a *allotment) loses(address netip.Addr) *pool {
	pools := a.in.at(address)
	if len(pools) != 1 || reservedAt(a.reserved, address) != "" {
		return nil
	}
	if p := pools[0]; p.total < api.MaxPoolTotal {
		p.total--
	}
	return pools[0]
}

// alone returns what of a range of a pool is in no other.
func (a *allotment) alone(r api.AddressRange) (all []api.AddressRange) {
	i, _ := slices.BinarySearchFunc(a.in, r.First, func(s segment, first netip.Addr) int { return s.Last.Compare(first) })
	for ; i < len(a.in) && a.in[i].Overlaps(r); i++ {
		if s := a.in[i]; len(s.pools) == 1 {
			// Ranges of one pool may share an address where an API server let them in.
			all = append(all, api.AddressRange{First: later(s.First, r.First), Last: earlier(s.Last, r.Last)})
		}
	}
	return all
}

func later(a, b netip.Addr) netip.Addr {
	if a.Less(b) {
		return b
	}
	return a
}

func earlier(a, b netip.Addr) netip.Addr {
	if b.Less(a) {
		return b
	}
	return a
}

// keep has what a Service has in its status given to nobody who does not ask for it, and to nobody
// else at all if the Service is to be given it. Of each family that is one address: who may write
// a status is not to keep all of them. Older Services are kept theirs before younger ones.
func (a *allotment) keep(svc *corev1.Service) {
	has, _ := inStatus(svc)
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		i := slices.IndexFunc(has, func(address netip.Addr) bool { return familyOf(address) == family && len(a.in.at(address)) > 0 })
		if i >= 0 && a.kept[has[i]] == nil {
			a.kept[has[i]] = nil
			if a.adopts(svc, has[i]) {
				a.kept[has[i]] = svc
			}
		}
	}
}

// adopts reports whether a Service will be given an address that it has in its status, if it
// gets no other that it asks for.
func (a *allotment) adopts(svc *corev1.Service, address netip.Addr) bool {
	family := familyOf(address)
	if _, left := svc.Labels[service.ProxyName]; left || !isBalanced(svc) || svc.DeletionTimestamp != nil || !slices.Contains(familiesOf(svc), family) {
		return false
	}
	holds := func(g *api.AddressGrant) bool { return familyOf(g.Address()) == family }
	if a.taken[address] != nil || slices.ContainsFunc(a.held[holder{registry.KeyOf(svc), svc.UID}], holds) {
		return false
	}
	_, why := a.against(svc, address)
	return why == "" || why == a.edges[address]
}

// lostIn says what of a range is reserved.
func (a *allotment) lostIn(r api.AddressRange) string {
	i := slices.IndexFunc(a.reserved, func(o reserved) bool { return o.Overlaps(r) })
	return r.String() + " has addresses of " + a.reserved[i].of
}

// serves reports whether a pool serves a Service's class.
func (a *allotment) serves(svc *corev1.Service, p *pool) bool {
	return p.ServesClass(svc.Spec.LoadBalancerClass)
}

// isFor reports whether a pool is for a Service's namespace.
func (a *allotment) isFor(svc *corev1.Service, p *pool) bool {
	labels, known := a.labels[svc.Namespace]
	if !known {
		labels = map[string]string{corev1.LabelMetadataName: svc.Namespace}
	}
	return p.ServesNamespace(svc.Namespace, labels)
}

// mayUse returns the pools that a Service may have addresses of, by its class and namespace.
func (a *allotment) mayUse(svc *corev1.Service) []*pool {
	of := [2]string{svc.Namespace, class(svc)}
	all, known := a.may[of]
	if !known {
		for _, p := range a.pools {
			if a.serves(svc, p) && a.isFor(svc, p) {
				all = append(all, p)
			}
		}
		a.may[of] = all
	}
	return all
}

// class is a Service's, empty where it has none.
func class(svc *corev1.Service) string {
	if svc.Spec.LoadBalancerClass == nil {
		return ""
	}
	return *svc.Spec.LoadBalancerClass
}

// against says what speaks against a Service's having an address, whoever has it now: the end
// of a sentence that begins with the address. It is empty where nothing does.
func (a *allotment) against(svc *corev1.Service, address netip.Addr) (of *pool, why string) {
	pools := a.in.at(address)
	switch {
	case len(pools) == 0:
		return nil, "is in no AddressPool"
	case len(pools) > 1:
		return nil, fmt.Sprintf("is in the AddressPools %s and %s, so that it is not known whose rules it goes by", pools[0].Name, pools[1].Name)
	}
	p := pools[0]
	if why = a.unfit(svc, p); why != "" {
		return p, fmt.Sprintf("is in AddressPool %s, which %s", p.Name, why)
	}
	return p, cmp.Or(reservedAt(a.reserved, address), a.own[address], a.edges[address])
}

// unfit says why a Service may have no address of a pool: the end of a sentence that begins with the pool.
// It is empty where it may.
func (a *allotment) unfit(svc *corev1.Service, p *pool) string {
	switch {
	case !a.serves(svc, p) && p.Spec.LoadBalancerClass == "":
		return "serves Services that have no loadBalancerClass"
	case !a.serves(svc, p):
		return "serves Services of loadBalancerClass " + p.Spec.LoadBalancerClass
	case !a.isFor(svc, p):
		return "is not for namespace " + svc.Namespace
	}
	return ""
}

// retagged returns a grant that names the pool that has its address now, nil where the one that
// it names has it, or none has alone.
func (a *allotment) retagged(g *api.AddressGrant) *api.AddressGrant {
	pools := a.in.at(g.Address())
	if len(pools) != 1 || pools[0].Name == g.Spec.Pool {
		return nil
	}
	now := g.DeepCopyObject().(*api.AddressGrant)
	now.Spec.Pool = pools[0].Name
	return now
}

// serve returns what a Service is to have, nil where it has that, and what is to be said of it.
func (a *allotment) serve(svc *corev1.Service) (*giving, statement) {
	of := holder{registry.KeyOf(svc), svc.UID}
	mine := a.held[of]
	has, _ := inStatus(svc)
	isMine := func(address netip.Addr) bool {
		return slices.ContainsFunc(mine, func(g *api.AddressGrant) bool { return g.Address() == address })
	}
	if !isBalanced(svc) {
		return given(svc, slices.DeleteFunc(slices.Clone(svc.Status.LoadBalancer.Ingress), func(i corev1.LoadBalancerIngress) bool {
			address, err := netip.ParseAddr(i.IP)
			return err == nil && isMine(address.Unmap())
		}), nil, nil), statement{}
	}
	// One that is going keeps what it has until it is gone.
	if _, left := svc.Labels[service.ProxyName]; len(mine) == 0 && left || svc.DeletionTimestamp != nil {
		return nil, statement{}
	}
	candidate := func(p *pool) bool { return a.serves(svc, p) }
	if len(mine) == 0 && !slices.ContainsFunc(a.pools, candidate) {
		return nil, a.unserved(svc)
	}
	return a.balance(svc, mine, slices.DeleteFunc(has, func(address netip.Addr) bool {
		return !isMine(address) && !slices.ContainsFunc(a.in.at(address), candidate)
	}))
}

// unserved says of a Service that no pool serves why it gets nothing, if it asks AddressPools.
func (a *allotment) unserved(svc *corev1.Service) statement {
	switch {
	case !asksUs(svc):
		return statement{}
	case len(a.pools) == 0:
		return lacks("there is no AddressPool: make one")
	case class(svc) == "":
		return lacks("no AddressPool serves Services that have no loadBalancerClass: give it one of an AddressPool, or %s", api.LinkClass)
	}
	return lacks("no AddressPool serves Services of loadBalancerClass %s", class(svc))
}

// balance decides what a Service has that pools serve. mine are its grants, has is what its status
// has of these, and of pools. What else that has is of another load balancer, and stays as it is.
// While it is there the Service is given nothing new.
func (a *allotment) balance(svc *corev1.Service, mine []*api.AddressGrant, has []netip.Addr) (*giving, statement) {
	isOurs := func(i corev1.LoadBalancerIngress) bool {
		address, is := addressOf(i)
		return is && slices.Contains(has, address)
	}
	theirs := slices.DeleteFunc(slices.Clone(svc.Status.LoadBalancer.Ingress), isOurs)
	wants, wrong := askedOf(svc)
	asked, fixed := wants, wrong != ""
	if len(theirs) > 0 {
		asked, fixed = nil, true
	}
	var said statement
	if wrong != "" && (len(theirs) == 0 || asksUs(svc)) {
		said.lack("%s", wrong)
	}
	families := familiesOf(svc)
	if len(families) == 0 {
		return nil, said // it is not decided yet what it is of
	}
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		if address, is := asked[family]; is && !slices.Contains(families, family) {
			said.lack("%s, which it asks for, is of %s, and it is of %s alone: have spec.ipFamilies say both, or ask for none", address, family, families[0])
		}
	}
	var ingress []corev1.LoadBalancerIngress
	var lacking, begins []*api.AddressGrant
	var without []corev1.IPFamily // those of which it gets none, as there is none
	short := false                // says that it has not all that it asks for
	mode := corev1.LoadBalancerIPModeVIP
	for _, family := range families {
		is := a.choose(svc, family, mine, has, asked, fixed, &said)
		if one, asks := wants[family]; is.grant == nil || asks && is.grant.Address() != one {
			short = short || asks || len(wants) == 0
		}
		switch {
		case is.none:
			without = append(without, family)
			continue
		case is.stays.IsValid():
			ingress = append(ingress, entryOf(svc, is.stays))
			continue
		case is.grant == nil:
			continue
		}
		address := is.grant.Address()
		switch {
		case is.made:
			lacking = append(lacking, is.grant)
		case !slices.Contains(has, address):
			begins = append(begins, is.grant)
		}
		ingress = append(ingress, corev1.LoadBalancerIngress{IP: address.String(), IPMode: &mode})
	}
	for _, family := range without {
		// Who only prefers to have both is content with one.
		if p := svc.Spec.IPFamilyPolicy; len(ingress) == 0 || p == nil || *p != corev1.IPFamilyPolicyPreferDualStack {
			what := "no AddressPool that is for it has"
			if name, _ := poolOf(svc); name != "" {
				what = "AddressPool " + name + ", which it asks for, does not have"
			}
			said.lack("%s %s addresses", what, family)
		}
	}
	if len(theirs) > 0 {
		ingress = beside(svc, ingress, isOurs)
	}
	if len(theirs) > 0 && short && asksUs(svc) {
		var names []string
		for _, i := range theirs {
			names = append(names, printable.Line(printable.Brief(cmp.Or(i.IP, i.Hostname))))
		}
		said.lack("its status.loadBalancer.ingress has %s, which another load balancer gave it: have that one leave it, for instance by loadBalancerClass %s", printable.Few(names, 0), api.LinkClass)
	}
	return given(svc, ingress, lacking, begins), said
}

// beside returns what a Service's status is to have of which some is of another load balancer:
// that stays in its place, as what is ours and there does.
func beside(svc *corev1.Service, ours []corev1.LoadBalancerIngress, isOurs func(corev1.LoadBalancerIngress) bool) (all []corev1.LoadBalancerIngress) {
	for _, i := range svc.Status.LoadBalancer.Ingress {
		if !isOurs(i) {
			all = append(all, i)
			continue
		}
		address, _ := addressOf(i)
		at := slices.IndexFunc(ours, func(o corev1.LoadBalancerIngress) bool { now, _ := addressOf(o); return now == address })
		if at >= 0 {
			all, ours = append(all, ours[at]), slices.Delete(ours, at, at+1)
		}
	}
	return append(all, ours...)
}

// choice is what a Service is to have of a family. The zero choice is nothing, or nothing yet.
type choice struct {
	// grant is of the address that it is to have; made says that it is new.
	grant *api.AddressGrant
	made  bool
	// stays is what its status has without a grant, and has still.
	stays netip.Addr
	// none says that no AddressPool that is for it has addresses of the family.
	none bool
}

// choose returns what a Service is to have of a family. fixed says that it is given none that it
// does not ask for.
func (a *allotment) choose(svc *corev1.Service, family corev1.IPFamily, mine []*api.AddressGrant, has []netip.Addr, asked map[corev1.IPFamily]netip.Addr, fixed bool, said *statement) choice {
	// What it has in its status goes before what it was given and has not yet.
	var held *api.AddressGrant
	for _, g := range mine {
		if address := g.Address(); familyOf(address) == family && (held == nil || slices.Contains(has, address) && !slices.Contains(has, held.Address())) {
			held = g
		}
	}
	var before netip.Addr // what it has of who served it before, if it holds nothing
	if i := slices.IndexFunc(has, func(address netip.Addr) bool { return familyOf(address) == family }); i >= 0 && held == nil {
		before = has[i]
	}
	one, asks := asked[family]
	if i := slices.IndexFunc(mine, func(g *api.AddressGrant) bool { return g.Address() == one }); asks && i >= 0 {
		held = mine[i]
	} else if asks && one != before {
		p, why := a.against(svc, one)
		if why = cmp.Or(why, a.others(svc, one)); why == "" {
			return choice{grant: a.make(svc, p, one), made: true}
		}
		said.lack("%s, which it asks for, %s: ask for another", one, why)
	}
	switch {
	case held != nil:
		p, why := a.against(svc, held.Address())
		if name, _ := poolOf(svc); why == "" && !asks && name != "" && name != p.Name {
			why = "is in AddressPool " + p.Name + ", and not in " + name + ", which it asks for"
		}
		if why != "" {
			said.keep("it keeps %s, which %s: nothing need be done", held.Address(), why)
		}
		return choice{grant: held}
	case before.IsValid():
		return a.adopt(svc, before, said)
	case asks || fixed:
		return choice{}
	}
	return a.free(svc, family, said)
}

// adopt decides about an address that a Service has in its status, and not the grant: that of who
// served it before. It keeps the address, unless another Service has the grant. Then it loses it
// first: while it has one, it has no use for another.
func (a *allotment) adopt(svc *corev1.Service, address netip.Addr, said *statement) choice {
	if a.taken[address] != nil {
		return choice{}
	}
	p, why := a.against(svc, address)
	switch why {
	case "":
	case a.edges[address]:
		said.keep("it keeps %s, which %s: nothing need be done", address, why)
	default:
		said.lack("%s, which another load balancer gave it, %s, and is not served: change that, or ask for another", address, why)
		return choice{stays: address}
	}
	return choice{grant: a.make(svc, p, address), made: true}
}

// others says, as against does, which other Service has the grant of an address, or will be given
// it, as it has it in its status.
func (a *allotment) others(svc *corev1.Service, address netip.Addr) string {
	if g := a.taken[address]; g != nil {
		return "is Service " + g.Spec.Service().String() + "'s"
	}
	if by := a.kept[address]; by != nil && by != svc {
		return "is Service " + registry.KeyOf(by).String() + "'s"
	}
	return ""
}

// make returns a new grant.
func (a *allotment) make(svc *corev1.Service, p *pool, address netip.Addr) *api.AddressGrant {
	g := &api.AddressGrant{Spec: api.AddressGrantSpec{Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID, Pool: p.Name}}
	g.Name = api.GrantName(address)
	a.taken[address] = g
	return g
}

// free takes the first free address of a family that there is for a Service, of the pool that it
// asks for if it asks for one.
func (a *allotment) free(svc *corev1.Service, family corev1.IPFamily, said *statement) choice {
	may := a.mayUse(svc)
	if len(may) == 0 {
		said.lack("no AddressPool that serves its class is for namespace %s", svc.Namespace)
		return choice{}
	}
	name, by := poolOf(svc)
	if name != "" {
		i := slices.IndexFunc(may, func(p *pool) bool { return p.Name == name })
		if i < 0 {
			why := "there is no AddressPool " + name
			if i := slices.IndexFunc(a.pools, func(p *pool) bool { return p.Name == name }); i >= 0 {
				why = "AddressPool " + name + " " + a.unfit(svc, a.pools[i])
			}
			said.lack("annotation %s: %s: name another, or take the annotation off", by, why)
			return choice{}
		}
		may = may[i : i+1]
	}
	var full, unasked []string
	for _, p := range may {
		switch {
		case !slices.ContainsFunc(p.ranges, func(r api.AddressRange) bool { return familyOf(r.First) == family }):
		case name == "" && !p.Assigns():
			unasked = append(unasked, p.Name)
		default:
			if address := p.next(family, a); address.IsValid() {
				return choice{grant: a.make(svc, p, address), made: true}
			}
			full = append(full, p.Name)
		}
	}
	switch {
	case len(full) > 0:
		said.lack("no %s address is free in %s %s: write more into spec.addresses", family, plural(full), printable.Few(full, 0))
	case len(unasked) > 0:
		said.lack("no %s address is given without being asked for: write one of %s %s into the annotation %s", family, plural(unasked), printable.Few(unasked, 0), api.AddressesAnnotation)
	default:
		return choice{none: true}
	}
	return choice{}
}

func plural(names []string) string {
	if len(names) == 1 {
		return api.AddressPoolKind.Kind
	}
	return api.AddressPoolKind.Kind + "s"
}

// next takes an address of a pool that nobody has. Each is looked at once in a round, whoever
// asks, so that this costs what there is of grants, and not what there is of addresses.
func (p *pool) next(family corev1.IPFamily, a *allotment) netip.Addr {
	ranges := p.free[family]
	for len(ranges) > 0 {
		r := &ranges[0]
		if r.Last.Less(r.First) {
			ranges = ranges[1:]
			p.free[family] = ranges
			continue
		}
		address := r.First
		r.First = address.Next()
		if _, kept := a.kept[address]; !kept && a.taken[address] == nil && a.own[address] == "" && a.edges[address] == "" {
			return address
		}
	}
	return netip.Addr{}
}

// entryOf is what a Service's status says of an address that it has.
func entryOf(svc *corev1.Service, address netip.Addr) corev1.LoadBalancerIngress {
	all := svc.Status.LoadBalancer.Ingress
	return all[slices.IndexFunc(all, func(i corev1.LoadBalancerIngress) bool {
		has, is := addressOf(i)
		return is && has == address
	})]
}

// given returns a Service with another status, nil where nothing is to be done.
func given(svc *corev1.Service, ingress []corev1.LoadBalancerIngress, lacks, begins []*api.AddressGrant) *giving {
	same := slices.EqualFunc(ingress, svc.Status.LoadBalancer.Ingress, func(a, b corev1.LoadBalancerIngress) bool {
		return a.IP == b.IP && a.Hostname == b.Hostname && (a.IPMode == nil) == (b.IPMode == nil) && (a.IPMode == nil || *a.IPMode == *b.IPMode)
	})
	if same && len(lacks) == 0 {
		return nil
	}
	if same {
		return &giving{service: svc, lacks: lacks, same: true}
	}
	svc = svc.DeepCopy()
	svc.Status.LoadBalancer.Ingress = ingress
	return &giving{service: svc, lacks: lacks, begins: begins}
}
