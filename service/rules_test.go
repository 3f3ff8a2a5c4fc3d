package service_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// ruled is what a data plane has rules of its own for: for how long the clients of frontends of a family are remembered; or
// among how many backends is drawn, from a side and of a family, whether clients are remembered or not, and whether some alone may come or not.
type ruled struct {
	family             plan.Family
	lasts              time.Duration
	from               plan.Scope
	remembers, guarded bool
	among              int
}

// rulesOf are those that a plan needs, but for drawing one of few.
func rulesOf(p *plan.Plan) map[ruled]bool {
	type part struct {
		set    string
		family plan.Family
	}
	among := map[part]int{}
	for k, b := range p.Backends.All() {
		if b.Weight > 0 {
			among[part{k.Set, plan.FamilyOf(k.Address)}]++
		}
	}
	all := map[ruled]bool{}
	for k, s := range p.Services.All() {
		f := plan.FamilyOf(k.Address)
		if s.Set == "" {
			continue
		}
		if s.Affinity > 0 {
			all[ruled{family: f, lasts: s.Affinity}] = true
		}
		for _, from := range []plan.Scope{plan.Inside, plan.Outside} {
			if n := among[part{s.Set, f}]; n > 3 && (k.From == plan.Anywhere || k.From == from) {
				all[ruled{family: f, from: from, remembers: s.Affinity > 0, guarded: s.Sources != "", among: n}] = true
			}
		}
	}
	return all
}

// comes returns how many durations, and how many numbers of backends, a plan has rules for of which another has none.
func comes(before, now *plan.Plan) (durations, draws int) {
	was := rulesOf(before)
	for r := range rulesOf(now) {
		switch {
		case was[r]:
		case r.lasts > 0:
			durations++
		default:
			draws++
		}
	}
	return durations, draws
}

// few steps, and works off what is owed to a namespace, and fails the test where more rules come at once than is allowed.
func (p *paced) few(namespace string, mostDurations, mostDraws int) {
	p.Helper()
	for turn := 0; turn == 0 || len(p.compiler.Waiting()) > 0; turn++ {
		if turn > 200 {
			p.Fatal("it does not end")
		}
		if turn > 0 {
			p.compiler.Advance(namespace)
		}
		before := p.plan
		p.step()
		if durations, draws := comes(before, p.plan); durations > mostDurations || draws > mostDraws {
			p.Errorf("turn %d brings rules for %d durations and %d numbers of backends", turn, durations, draws)
		}
	}
	p.finish()
}

// svc returns a Service to be changed.
func (p *paced) svc(namespace, name string) *corev1.Service {
	k := registry.Key{Namespace: namespace, Name: name}
	s := p.world[api.Service][k].DeepCopyObject().(*corev1.Service)
	p.world.put(api.Service, s)
	return s
}

// remember has clients of a Service be remembered, where seconds are not 0.
func remember(s *corev1.Service, seconds int32) {
	s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	if seconds > 0 {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

// A Service that is served nowhere brings no rules, so that others find none that are paid for.
func TestWhoIsNotServedBringsNoRules(t *testing.T) {
	p := newPaced(t)
	p.put("shop", "large", 0, 100, 200)
	p.step()
	p.finish()
	const many = 20
	var outside []string
	for i := range 100 {
		outside = append(outside, fmt.Sprintf("192.0.2.%d", i+1))
	}
	for i := range many {
		p.put("evil", fmt.Sprint("not served", i), 1+i, 60, 0, outside...) // at more frontends than one may have
		remember(p.svc("evil", fmt.Sprint("not served", i)), int32(100+i))
	}
	p.few("evil", 0, 0)
	for i := range many {
		p.put("evil", fmt.Sprint(i), 1000+i, 1, 0)
		remember(p.svc("evil", fmt.Sprint(i)), int32(100+i))
	}
	p.few("evil", 7, 0)
}

// What Services get as another goes that had it is for their own namespaces to pay for, and waits where these cannot.
func TestWhatComesAsAnotherGoesWaits(t *testing.T) {
	p := newPaced(t)
	p.put("shop", "large", 0, 100, 200)
	p.step()
	p.finish()
	const many = 20
	var outside []string
	for i := range many {
		outside = append(outside, fmt.Sprintf("192.0.2.%d", i+1))
	}
	p.put("blue", "owner", 1, 1, 0, outside...)
	p.step()
	for i := range many {
		p.put("evil", fmt.Sprint(i), 1, 1, 0, outside[i]) // at the cluster's address of another
		remember(p.svc("evil", fmt.Sprint(i)), int32(100+i))
	}
	p.few("evil", 0, 0)
	p.put("blue", "owner", 1, 1, 0)
	p.put("blue", "another", 2, 1, 2)
	before := p.plan
	p.step()
	if durations, _ := comes(before, p.plan); durations == 0 || durations > 4 {
		t.Errorf("as another goes rules for %d durations come", durations)
	}
	if f, b := p.of("blue/another"); f != 2 || b != 2 {
		t.Errorf("another Service of who goes has %d frontends and %d backends", f, b)
	}
	p.few("evil", 7, 0)
}

// However numbers of backends change that get connections, there is room for few that are new, by what sets have and how
// frontends use them.
func TestNumbersThatAreNewWait(t *testing.T) {
	const many = 120
	endpoints := func(p *paced, i, n, ready, ports int) {
		p.put("evil", fmt.Sprint(i), 1+i, ports, n)
		slice := p.world[api.EndpointSlice][registry.Key{Namespace: "evil", Name: fmt.Sprint(i)}].(*discoveryv1.EndpointSlice)
		for j := range slice.Endpoints {
			slice.Endpoints[j].Conditions.Ready = new(j < ready)
		}
	}
	for name, change := range map[string]func(p *paced, i int){
		"an endpoint is ready":     func(p *paced, i int) { endpoints(p, i, 12+2*i, 11+2*i, 1) },
		"an endpoint is not ready": func(p *paced, i int) { endpoints(p, i, 12+2*i, 9+2*i, 1) },
		"an endpoint goes":         func(p *paced, i int) { endpoints(p, i, 9+2*i, 9+2*i, 1) },
		"clients are remembered":   func(p *paced, i int) { remember(p.svc("evil", fmt.Sprint(i)), 100) },
		"they come to a balanced address": func(p *paced, i int) {
			s := p.svc("evil", fmt.Sprint(i))
			s.Spec.Type, s.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, []string{"198.51.100.0/24"}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("192.0.2.%d", i+1)}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPaced(t)
			for i := range many {
				endpoints(p, i, 12+2*i, 10+2*i, 1)
			}
			p.step()
			p.finish()
			for i := range many {
				change(p, i)
			}
			p.few("evil", 1, 2*65)
		})
	}
	t.Run("each of many ports has another", func(t *testing.T) {
		p := newPaced(t)
		p.put("evil", "0", 1, 100, 0)
		slice := p.world[api.EndpointSlice][registry.Key{Namespace: "evil", Name: "0"}].(*discoveryv1.EndpointSlice)
		for i := range 100 {
			one := slice.DeepCopy()
			one.Name, one.Ports = fmt.Sprint("0-", i), slice.Ports[i:i+1]
			for j := range 10 + i {
				one.Endpoints = append(one.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.2.0.%d", j+1)}})
			}
			p.world.put(api.EndpointSlice, one)
		}
		p.few("evil", 0, 2*65)
		remember(p.svc("evil", "0"), 100)
		p.few("evil", 1, 2*65)
	})
}

// A data plane has an element more for each backend that clients are remembered to have, so that backends come to be such, or
// are not any more, in turns, also where nobody of them gets connections.
func TestRememberingClientsCostsBackends(t *testing.T) {
	const many, ports, endpoints = 4, 4, 150 // 600 backends each
	for _, ready := range []bool{true, false} {
		p := newPaced(t)
		p.put("others", "a", 0, 1, 1)
		remember(p.svc("others", "a"), 100)
		for i := range many {
			p.put("evil", fmt.Sprint(i), 1+i, ports, endpoints, fmt.Sprintf("192.0.2.%d", i+1))
			slice := p.world[api.EndpointSlice][registry.Key{Namespace: "evil", Name: fmt.Sprint(i)}].(*discoveryv1.EndpointSlice)
			for j := range slice.Endpoints {
				slice.Endpoints[j].Conditions.Ready = new(ready)
			}
		}
		p.step()
		p.finish()
		for round := range 4 {
			for i := range many {
				remember(p.svc("evil", fmt.Sprint(i)), int32(100*(1-round%2)))
			}
			for turn := 0; turn == 0 || len(p.compiler.Waiting()) > 0; turn++ {
				if turn > 0 {
					p.compiler.Advance("evil")
				}
				frontends, backends := p.step()
				if n := frontends + backends; turn == 0 && n > 1024 || n > 2048 {
					t.Errorf("ready is %t, round %d: turn %d has %d frontends and %d backends be others", ready, round, turn, frontends, backends)
				}
			}
			p.finish()
			for k, is := range p.plan.Backends.All() {
				if of := strings.HasPrefix(k.Set, "evil/"); is.Affinity != (!of || round%2 == 0) {
					t.Fatalf("ready is %t, round %d: backend %v has affinity %t in the end", ready, round, k, is.Affinity)
				}
			}
		}
	}
}

// A frontend comes to a Service, and goes from it, as another Service claims its address: none of the backends is another for that,
// however many these are.
func TestWhoGetsFrontendsHasItsBackends(t *testing.T) {
	const many, ports, endpoints = 5, 10, 200
	p := newPaced(t)
	var all []string
	for i := range many {
		all = append(all, fmt.Sprintf("192.0.2.%d", i+1))
		p.put("evil", fmt.Sprint(i), 1+i, ports, endpoints, all[i])
		s := p.svc("evil", fmt.Sprint(i))
		s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal) // no frontend names the set but for this address
		s.CreationTimestamp = metav1.Unix(2, 0)
		remember(s, 100)
	}
	own := func(outside ...string) {
		p.put("evil", "owner", 100, ports, 0, outside...)
		p.svc("evil", "owner").CreationTimestamp = metav1.Unix(1, 0)
	}
	own(all...)
	p.step()
	p.finish()
	moved := 0
	for round := range 4 {
		if own(); round%2 == 1 {
			own(all...)
		}
		for turn := 0; turn == 0 || len(p.compiler.Waiting()) > 0; turn++ {
			if turn > 0 {
				p.compiler.Advance("evil")
			}
			frontends, backends := p.step()
			if moved += frontends; backends > 0 {
				t.Errorf("round %d, turn %d: %d backends are others", round, turn, backends)
			}
		}
		p.finish()
	}
	if moved < 4*many*ports {
		t.Fatalf("%d frontends went from one to another", moved)
	}
}

// A Service of which clients come to be remembered for a time that is new, and one of two ports is called otherwise, has somebody at
// each port all the time, though the rules that one port needs take all room there is.
func TestRenamedPortKeepsBackendsWhereRulesTakeAllRoom(t *testing.T) {
	defer service.SetRooms(64, 512)()
	p := &paced{T: t, world: world{}, compiler: service.Compiler{Gradual: true}} // what there is at first is compiled whole
	p.put("shop", "large", 0, 100, 200)                                          // so that a time costs more than a turn
	p.put("shop", "other", 1, 100, 200)
	p.put("evil", "web", 2, 2, 10)
	slice := p.world[api.EndpointSlice][registry.Key{Namespace: "evil", Name: "web"}].(*discoveryv1.EndpointSlice)
	second := func(name string) {
		one, two := slice.DeepCopy(), slice.DeepCopy()
		one.Ports, two.Ports = one.Ports[:1], two.Ports[1:]
		two.Name, two.Ports[0].Name = "web-2", &name
		two.Endpoints = append(two.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.3.0.1"}}, discoveryv1.Endpoint{Addresses: []string{"10.3.0.2"}})
		p.world.put(api.EndpointSlice, one)
		p.world.put(api.EndpointSlice, two)
	}
	second("p1")
	p.step()
	second("renamed")
	s := p.svc("evil", "web")
	s.Spec.Ports[1].Name = "renamed"
	remember(s, 777)
	for turn := 0; turn == 0 || len(p.compiler.Waiting()) > 0; turn++ {
		if turn > 0 {
			p.compiler.Advance("evil")
		}
		p.step()
		for k, s := range p.plan.Services.All() {
			n := 0
			for _, b := range p.plan.BackendsOf(k.Network, s.Set) {
				n += min(int(b.Weight), 1)
			}
			if s.Set != "" && n == 0 {
				t.Errorf("turn %d: %v names %s, which has nobody", turn, k, s.Set)
			}
		}
	}
	p.finish()
}

// What is usual waits for nothing: one Service that has clients be remembered for a time of its own, and a few of which the
// endpoints are replaced one by one.
func TestUsualChangesWaitForNothing(t *testing.T) {
	p := newPaced(t)
	p.put("others", "large", 0, 100, 200)
	p.step()
	p.finish()
	const few = 8
	for i := range few {
		p.put("shop", fmt.Sprint(i), 1+i, 1, 5+3*i)
	}
	p.step()
	remember(p.svc("shop", "0"), 77)
	p.step()
	for by := range 3 {
		for i := range few {
			p.put("shop", fmt.Sprint(i), 1+i, 1, 4+3*i+by)
		}
		p.step()
		if waiting := p.compiler.Waiting(); len(waiting) > 0 {
			t.Errorf("something is owed to %v", waiting)
		}
	}
	p.finish()
}

// Whatever Services of a namespace do, a call of Compile brings no more rules than there is room for, and all is there in the end.
func TestRulesAreForTheNamespaceToPay(t *testing.T) {
	plantest.CheckMeeting(t, []string{"durations", "numbers", "waiting"}, func(t *rapid.T, meets func(string)) {
		const atOnce, ofTurn, many, perDraw = 64, 512, 24, 512 / 128
		defer service.SetRooms(atOnce, ofTurn)()
		w := world{api.Service: {}, api.EndpointSlice: {}}
		c := service.Compiler{Gradual: true}
		compile := func() *plan.Plan {
			now := planOf(node, c.Compile(w.snapshot(), node))
			if err := now.Validate(); err != nil {
				t.Fatal(err)
			}
			return now
		}
		before := compile()
		step := func(advances bool) {
			now := compile()
			durations, draws := comes(before, now)
			// One that needs much may take more than is left, but for less than half of a turn: a set, or an address and port.
			const over = 8 * perDraw
			price := durations*(1+(now.Services.Len()+now.Backends.Len())/64) + draws*perDraw
			if most := atOnce + over; price > most && (!advances || price > most+ofTurn+2*over) {
				t.Fatalf("rules for %d durations and %d numbers come at once, which is %d:\n%s", durations, draws, price, before.Diff(now))
			}
			if durations > 0 {
				meets("durations")
			}
			if draws > 0 {
				meets("numbers")
			}
			before = now
		}
		// Of some Services all at once is changed alike.
		has := make([]struct{ seconds, endpoints, ready int }, many)
		for range 1 + evenly(t, "steps", 8) {
			kind, by := evenly(t, "what", 8), evenly(t, "by", 4)
			for i := range has {
				if evenly(t, "spared", 8) == 0 {
					continue
				}
				key := registry.Key{Namespace: "default", Name: fmt.Sprint("s", i)}
				one := &has[i]
				switch kind {
				case 0:
					one.seconds = (100 + i) * by
				case 1, 2:
					one.endpoints = i + by
				case 3, 4:
					one.ready = by
				case 5: // only where there is nothing of it, or it stays what it is
					delete(w[api.Service], key)
					continue
				}
				if _, there := w[api.Service][key]; !there || kind == 0 || kind > 5 { // else its endpoints change alone
					s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Spec: corev1.ServiceSpec{
						Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{fmt.Sprintf("10.96.0.%d", 1+i), fmt.Sprintf("fd96::%d", 1+i)},
						ExternalIPs: []string{fmt.Sprintf("198.51.100.%d", 1+i/(1+evenly(t, "shared by", 4)))},
						Ports:       []corev1.ServicePort{{Name: "http", Port: 80}}}}
					if kind == 6 {
						s.Spec.ClusterIPs = []string{"10.96.0.1"}
					}
					if evenly(t, "guarded", 3) == 0 {
						s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "2001:db8::/32"}
						s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("203.0.113.%d", 1+i)}}
					}
					if evenly(t, "local", 6) == 0 {
						s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
					}
					remember(s, int32(one.seconds))
					w.put(api.Service, s)
				}
				slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: map[string]string{discoveryv1.LabelServiceName: key.Name}},
					AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}}}
				for j := range one.endpoints {
					for _, a := range []string{fmt.Sprintf("10.1.1.%d", 1+j), fmt.Sprintf("fd00:1::%d", 1+j)} {
						slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: new(fmt.Sprint("node", 1+j%2)),
							Conditions: discoveryv1.EndpointConditions{Ready: new(j >= one.ready), Serving: new(true)}})
					}
				}
				w.put(api.EndpointSlice, slice)
			}
			step(false)
			if rapid.Bool().Draw(t, "more before it is done") {
				continue
			}
			for turns := 0; len(c.Waiting()) > 0; turns++ {
				meets("waiting")
				if turns > 1000 {
					t.Fatal("it does not end")
				}
				c.Advance(c.Waiting()[0])
				step(true)
			}
			var fresh service.Compiler
			if anew := planOf(node, fresh.Compile(w.snapshot(), node)); !before.Equal(anew) {
				t.Fatalf("in turns it is\n%s\nand at once\n%s", before, anew)
			}
		}
	})
}
