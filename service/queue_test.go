package service_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// paced compiles a world step by step, and leaves for later what takes long.
type paced struct {
	*testing.T
	world
	compiler service.Compiler
	plan     *plan.Plan
	// late says that it was said, while it was worked off, that a namespace is late.
	late bool
}

func newPaced(t *testing.T) *paced {
	p := &paced{T: t, world: world{}, compiler: service.Compiler{Gradual: true}}
	p.step()
	return p
}

// step compiles, and returns how many entries of the tables changed.
func (p *paced) step() (frontends, backends int) {
	p.Helper()
	now := planOf(node, p.compiler.Compile(p.snapshot(), node))
	if err := now.Validate(); err != nil {
		p.Fatal(err)
	}
	if p.plan != nil {
		d := p.plan.Diff(now)
		frontends, backends = len(d.Services), len(d.Backends)
	}
	p.plan = now
	return frontends, backends
}

// finish works off what is left for later, no more in one turn than is allowed, and returns how many
// turns that took.
func (p *paced) finish() (turns int) {
	p.Helper()
	p.late = false
	for ; len(p.compiler.Waiting()) > 0; turns++ {
		p.late = p.late || len(p.compiler.Late()) > 0
		if turns > 1000 {
			p.Fatal("it does not end")
		}
		p.compiler.Advance(p.compiler.Waiting()[0])
		if frontends, backends := p.step(); frontends > service.MaxFrontends+1 || backends > 2048 {
			p.Errorf("turn %d changes %d frontends and %d backends", turns, frontends, backends)
		}
	}
	fresh := service.Compiler{Grants: p.compiler.Grants}
	if anew := planOf(node, fresh.Compile(p.snapshot(), node)); !p.plan.Equal(anew) {
		p.Errorf("worked off, it is not what is compiled at once")
	}
	return turns
}

// of returns how many frontends and backends a Service has.
func (p *paced) of(name string) (frontends, backends int) {
	for _, s := range p.plan.Services.All() {
		if s.Origin == "Service "+name {
			frontends++
		}
	}
	for _, b := range p.plan.Backends.All() {
		if b.Origin == "EndpointSlice "+name {
			backends++
		}
	}
	return frontends, backends
}

// put has a Service, with a slice of its name, have ports and endpoints.
func (p *paced) put(namespace, name string, address, ports, endpoints int, outside ...string) {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	svc := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.%d.%d", address/250, address%250+1), ExternalIPs: outside}}
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: name}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4}
	for i := range ports {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(80 + i)})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", i)), Port: new(int32(8080 + i))})
	}
	for i := range endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.2.%d.%d", i/250, i%250+1)}})
	}
	p.world.put(api.Service, svc)
	p.world.put(api.EndpointSlice, slice)
}

// drop takes a Service away, with its slice.
func (p *paced) drop(namespace, name string) {
	delete(p.world[api.Service], registry.Key{Namespace: namespace, Name: name})
	delete(p.world[api.EndpointSlice], registry.Key{Namespace: namespace, Name: name})
}

// Services with very many backends keep no other's change waiting, while they come, change and go, and
// what is gone of them is so at once.
func TestLargeServicesKeepNobodyWaiting(t *testing.T) {
	p := newPaced(t)
	const many = 3
	small := 0
	// Whatever else changes, a small Service of another namespace is what it is to be at once.
	step := func(what string, most int) {
		t.Helper()
		small = small%5 + 1
		p.put("shop", "web", 0, 1, small)
		if _, backends := p.step(); backends > most {
			t.Errorf("%s, and %d backends change", what, backends)
		}
		if _, has := p.of("shop/web"); has != small {
			t.Errorf("%s, and another Service has %d backends, and not %d", what, has, small)
		}
	}
	expect := func(what string, frontends, backends int) {
		t.Helper()
		if f, b := p.of("evil/0"); f != frontends || b != backends {
			t.Errorf("%s, and it has %d frontends and %d backends", what, f, b)
		}
	}
	for i := range many {
		p.put("evil", fmt.Sprint(i), 1+i, 100, 200)
	}
	step("they came", 1024+10)
	if f, b := p.of("evil/1"); f+b > 0 { // of the first there is room for some
		t.Errorf("they came, and one has %d frontends and %d backends already", f, b)
	}
	if late := p.compiler.Late(); len(late) > 0 {
		t.Errorf("late are %v, though they came but now", late)
	}
	p.compiler.Advance("evil")
	step("one had a turn", 2048+10)
	if f, b := p.of("evil/0"); f != 101 || b == 0 || b >= 20000 {
		t.Errorf("after a turn it has %d frontends and %d backends", f, b)
	}
	if turns := p.finish(); turns > 100*many {
		t.Errorf("it took %d turns", turns)
	}
	if expect("all is done", 101, 20000); !p.late || len(p.compiler.Late()) > 0 {
		t.Errorf("that it is late was said: %t, and of all that is done: %v", p.late, p.compiler.Late())
	}

	p.put("evil", "0", 1, 100, 197) // no less than there is room for
	step("some of its endpoints went", 310)
	expect("some of its endpoints went", 101, 19700)
	p.put("evil", "0", 1, 99, 197) // port 100 is gone at once, and its backends are not
	for i := range many {
		p.put("evil", fmt.Sprint(i), 1+i, 99, 197)
	}
	step("it has a port less", 1024+10)
	if f, _ := p.of("evil/0"); f != 100 {
		t.Errorf("it has a port less, and %d frontends", f)
	}
	p.finish()
	expect("all is done", 100, 99*197)

	for i := range many {
		p.drop("evil", fmt.Sprint(i))
	}
	step("they went", 1024+10)
	for i := range many {
		if f, _ := p.of(fmt.Sprint("evil/", i)); f != 0 {
			t.Errorf("they went, and one is served at %d frontends", f)
		}
	}
	p.put("evil", "0", 1, 1, 2) // and comes again while it goes
	step("one comes again", 1024+10)
	p.finish()
	expect("all is done", 2, 2)
}

// Many Services of one namespace that change at once are one tenant's as well, and those of who
// rests wait even where they are few.
func TestManyServicesWait(t *testing.T) {
	p := newPaced(t)
	for i := range 3000 {
		p.put("evil", fmt.Sprint(i), 1+i, 1, 2)
	}
	p.put("shop", "web", 0, 1, 2)
	if _, backends := p.step(); backends > 1024+2 {
		t.Errorf("%d backends change at once", backends)
	}
	if hasty := p.compiler.Hasty(); !slices.Equal(hasty, []string{"evil"}) {
		t.Errorf("hasty are %v", hasty)
	}
	if turns := p.finish(); turns > 20 {
		t.Errorf("it took %d turns", turns)
	}
	p.put("shop", "web", 0, 1, 5)
	p.compiler.Rest(map[string]bool{"shop": true})
	p.step()
	if _, has := p.of("shop/web"); has != 2 {
		t.Errorf("who rests has %d backends", has)
	}
	p.put("shop", "web", 0, 1, 1)
	p.step()
	if _, has := p.of("shop/web"); has != 1 {
		t.Errorf("an endpoint went, and who rests has %d backends", has)
	}
	p.finish()
}

// For each time for which clients are remembered a data plane has rules of its own, which cost what all Services are large.
func TestTimesToRememberClientsForWait(t *testing.T) {
	p := newPaced(t)
	p.put("shop", "large", 0, 100, 200)
	p.step()
	p.finish()
	// The rules come with Services, whether they have an endpoint or not.
	const many = 40
	endpoints := 0
	remember := func(name string, address int, seconds int32) {
		p.put("evil", name, address, 1, endpoints)
		svc := p.world[api.Service][registry.Key{Namespace: "evil", Name: name}].(*corev1.Service)
		svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
	served := func() map[time.Duration]bool {
		all := make(map[time.Duration]bool)
		for _, s := range p.plan.Services.All() {
			if s.Affinity > 0 {
				all[s.Affinity] = true
			}
		}
		return all
	}
	// follow works off what is owed, and checks that few times come with each step.
	follow := func() {
		t.Helper()
		for before, turn := len(served()), 0; turn == 0 || len(p.compiler.Waiting()) > 0; turn++ {
			p.step()
			if now := len(served()); now > before+8 {
				t.Errorf("turn %d has %d times that there were not before", turn, now-before)
			} else {
				before = now
			}
			if len(p.compiler.Waiting()) > 0 {
				p.compiler.Advance("evil")
			}
			if turn > 2*many {
				t.Fatal("it does not end")
			}
		}
		p.finish()
	}
	for i := range many {
		remember(fmt.Sprint(i), 1+i, int32(100+i))
	}
	follow()
	if n := len(served()); n != many {
		t.Errorf("in the end there are %d times", n)
	}
	// Those of who has no address are nobody's.
	for i := range many {
		remember(fmt.Sprint("lost", i), 1, int32(1000+i))
	}
	follow()
	for i := range many {
		remember(fmt.Sprint("won", i), 2000+i, int32(1000+i))
	}
	follow()
	if n := len(served()); n != 2*many {
		t.Errorf("in the end there are %d times", n)
	}
	endpoints = 1
	for i := range many {
		remember(fmt.Sprint(i), 1+i, int32(100+i))
		remember(fmt.Sprint("more", i), 1000+i, 100)
	}
	p.step()
	if waiting := p.compiler.Waiting(); len(waiting) > 0 {
		t.Errorf("what needs no rules that there are not already waits: %v", waiting)
	}
}

// To draw a backend takes rules for how many there are, so that new numbers fill turns.
func TestNumbersOfBackendsWait(t *testing.T) {
	p := newPaced(t)
	const many, most = 120, 70
	grow := func(by int) (numbers map[int]bool) {
		for i := range many {
			p.put("evil", fmt.Sprint(i), 1+i, 1, 10+2*i+by)
		}
		p.step()
		return p.numbers()
	}
	grow(0)
	p.finish()
	before := p.numbers()
	now := grow(1)
	for turn := 0; ; turn++ {
		come := 0
		for n := range now {
			if !before[n] {
				come++
			}
		}
		if come > most {
			t.Errorf("turn %d has %d numbers that there were not before", turn, come)
		}
		if len(p.compiler.Waiting()) == 0 {
			break
		}
		before = now
		p.compiler.Advance("evil")
		p.step()
		now = p.numbers()
	}
	if len(now) != many {
		t.Errorf("in the end there are %d numbers", len(now))
	}
}

// numbers are how many backends sets have.
func (p *paced) numbers() map[int]bool {
	sets, all := make(map[string]int), make(map[int]bool)
	for k := range p.plan.Backends.All() {
		sets[k.Set]++
	}
	for _, n := range sets {
		all[n] = true
	}
	return all
}

// Who waits does not keep what is no longer due to it from others: the Service that has the address now is
// served there.
func TestWhoWaitsGivesUpWhatIsNotItsOwn(t *testing.T) {
	p := newPaced(t)
	p.put("evil", "large", 1, 100, 200, "192.0.2.1")
	p.step()
	p.finish()
	p.put("evil", "large", 2, 100, 200)
	p.put("shop", "web", 1, 1, 2, "192.0.2.1")
	p.step()
	for _, a := range []string{"10.96.0.2", "192.0.2.1"} {
		for k, s := range p.plan.Services.All() {
			if k.Address.String() == a && s.Origin != "Service shop/web" {
				t.Fatalf("at %v there is %v", k, s)
			}
		}
	}
	p.finish()
}

// TestTurns tells stories, as TestStories does, in which little is followed at once: eight entries of a
// namespace, and ten in a turn. A line "rest NAMESPACE" has what changes of a namespace wait from then on, and
// "turn" is one of whose it is. It tells whom something is owed.
func TestTurns(t *testing.T) {
	defer service.SetRooms(8, 10)()
	golden.Archives(t, "testdata/turns/*.txtar", func(t *testing.T, files []txtar.File) []txtar.File {
		var w world
		c := service.Compiler{Gradual: true}
		before := planOf(node, c.Compile(w.snapshot(), node))
		return golden.Answer(files, func(name, in string) string {
			var yaml strings.Builder
			resting := make(map[string]bool)
			for l := range strings.Lines(in) {
				switch word, namespace, _ := strings.Cut(strings.TrimSpace(l), " "); word {
				case "turn":
					if waiting := c.Waiting(); len(waiting) > 0 {
						c.Advance(waiting[0])
					} else {
						t.Errorf("%s: nothing is owed to anybody", name)
					}
				case "rest":
					resting[namespace] = true
				default:
					yaml.WriteString(l)
				}
			}
			c.Rest(resting)
			w.apply(t, name, yaml.String())
			now := planOf(node, c.Compile(w.snapshot(), node))
			if err := now.Validate(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			out := before.Diff(now).String()
			before = now
			if waiting := c.Waiting(); len(waiting) > 0 {
				return out + fmt.Sprintf("something is owed to %s\n", strings.Join(waiting, ", then "))
			}
			var fresh service.Compiler
			if anew := planOf(node, fresh.Compile(w.snapshot(), node)); !now.Equal(anew) {
				t.Errorf("%s: in turns it is\n%sand at once\n%s", name, now, anew)
			}
			return out + "nothing is owed\n"
		})
	})
}

// A large Service of which a port is called otherwise has the backends that it had until all are loaded anew, though
// one of them becomes another in each turn.
func TestRenamedPortKeepsBackends(t *testing.T) {
	p := newPaced(t)
	const endpoints = 5000
	p.put("shop", "web", 1, 1, endpoints)
	p.step()
	p.finish()
	key := registry.Key{Namespace: "shop", Name: "web"}
	svc, slice := p.world[api.Service][key].(*corev1.Service).DeepCopy(), p.world[api.EndpointSlice][key].(*discoveryv1.EndpointSlice)
	svc.Spec.Ports[0].Name = "http"
	p.world.put(api.Service, svc)
	for turn := 0; turn == 0 || len(p.compiler.Waiting()) > 0; turn++ {
		if turn > 20 {
			t.Fatal("it does not end")
		}
		slice = slice.DeepCopy()
		slice.Ports[0].Name = new("http")
		slice.Endpoints[turn].Addresses = []string{fmt.Sprintf("10.3.0.%d", turn)}
		p.world.put(api.EndpointSlice, slice)
		if turn > 0 {
			p.compiler.Advance("shop")
		}
		p.step()
		_, s, ok := p.plan.Service(plan.DefaultNetwork, netip.MustParseAddr(svc.Spec.ClusterIP), plan.TCP, 80, plan.Inside)
		has := 0
		for range p.plan.BackendsOf(plan.DefaultNetwork, s.Set) {
			has++
		}
		if !ok || has < endpoints-turn-1 {
			t.Errorf("turn %d: it has %d backends in %s", turn, has, s.Set)
		}
	}
	p.finish()
}

// A Service of which the port is called otherwise in each turn keeps no more of what it had by all these names than
// one may have, whether its frontends wait for the backends or, as nobody is on the node, go over at once.
func TestWhoseNameChangesFillsNothing(t *testing.T) {
	const endpoints, turns = 2500, 18
	for _, local := range []bool{false, true} {
		p := newPaced(t)
		p.put("evil", "a", 1, 1, endpoints)
		key := registry.Key{Namespace: "evil", Name: "a"}
		svc, slice := p.world[api.Service][key].(*corev1.Service), p.world[api.EndpointSlice][key].(*discoveryv1.EndpointSlice)
		if local {
			svc.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
		}
		p.step()
		p.finish()
		most := 0
		for turn := range turns {
			svc, slice = svc.DeepCopy(), slice.DeepCopy()
			svc.Spec.Ports[0].Name, slice.Ports[0].Name = fmt.Sprint("q", turn), new(fmt.Sprint("q", turn))
			p.world.put(api.Service, svc)
			p.world.put(api.EndpointSlice, slice)
			if turn > 0 {
				p.compiler.Advance("evil")
			}
			p.step()
			most = max(most, p.plan.Backends.Len())
		}
		if most > service.MaxBackends+2*endpoints+2*2048 {
			t.Errorf("local is %t, and it has up to %d backends", local, most)
		}
		p.finish()
	}
}

// Who comes and goes over and over, while another of the namespace waits, is waited for once.
func TestWhoComesAndGoesFillsNothing(t *testing.T) {
	p := newPaced(t)
	p.put("evil", "a", 1, 100, 200)
	p.step()
	p.compiler.Rest(map[string]bool{"evil": true})
	cycle := func() {
		p.put("evil", "b", 2, 1, 0)
		p.compiler.Compile(p.snapshot(), node)
		p.drop("evil", "b")
		p.compiler.Compile(p.snapshot(), node)
	}
	for range 1000 {
		cycle()
	}
	if n := p.compiler.Owed("evil"); n > 200 {
		t.Errorf("%d are remembered", n)
	}
	p.compiler.Rest(nil)
	p.finish()
}

// manyFrontends is as many addresses as give a Service with 50 ports, which has one of the cluster, more frontends than there is
// room for in a turn.
func manyFrontends() (outside []string) {
	for i := range 41 {
		outside = append(outside, fmt.Sprintf("198.51.100.%d", i+1))
	}
	return outside
}

// A Service with many frontends that is written before each turn gets its backends all the same, and keeps nobody else of its
// namespace waiting, whether anything that is compiled is another or not.
func TestWhoIsWrittenBetweenTurnsHasItsTurn(t *testing.T) {
	for name, write := range map[string]func(s *corev1.Service, turn int){
		"an annotation": func(s *corev1.Service, turn int) { s.Annotations = map[string]string{"turn": fmt.Sprint(turn)} },
		"all frontends": func(s *corev1.Service, turn int) { remember(s, int32(100*(1-turn%2))) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPaced(t)
			p.put("shop", "a", 0, 50, 3, manyFrontends()...)
			p.put("others", "a", 3, 1, 0)
			remember(p.svc("others", "a"), 100)
			p.step()
			p.finish()
			p.put("shop", "a", 0, 50, 6, manyFrontends()...)
			p.put("shop", "b", 1, 1, 1000)
			for turn := range 20 {
				write(p.svc("shop", "a"), turn)
				p.compiler.Advance("shop")
				p.step()
				p.put("shop", "b", 1, 1, 1200) // more than at once
			}
			_, a := p.of("shop/a")
			_, b := p.of("shop/b")
			if a != 50*6 || b != 1200 {
				t.Errorf("they have %d and %d backends", a, b)
			}
			p.finish()
		})
	}
}

// Frontends that change though nobody wrote their Services wait as those do that are written: an endpoint on the node is ready or not,
// and an older Service of the namespace leaves them room, or does not.
func TestFrontendsThatNobodyWroteWait(t *testing.T) {
	const younger, ports, most = 6, 50, 300 // 1800 frontends together
	outside := func(i int) (all []string) {
		for j := range most / ports {
			all = append(all, fmt.Sprintf("198.51.%d.%d", i, j+1))
		}
		return all
	}
	for name, toggle := range map[string]func(p *paced, on bool){
		"an endpoint on the node": func(p *paced, on bool) {
			for i := range younger {
				k := registry.Key{Namespace: "evil", Name: fmt.Sprint(i)}
				slice := p.world[api.EndpointSlice][k].DeepCopyObject().(*discoveryv1.EndpointSlice)
				slice.Endpoints[0].NodeName, slice.Endpoints[0].Conditions.Ready = new(node.Node), new(on)
				p.world.put(api.EndpointSlice, slice)
			}
		},
		"an older Service": func(p *paced, on bool) {
			ports := 1
			if !on {
				ports = 1000
			}
			p.put("evil", "older", 1, ports, 0, "192.0.2.1")
			p.svc("evil", "older").CreationTimestamp = metav1.Unix(1, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer service.SetBudget(2500, 100_000)()
			p := newPaced(t)
			for i := range younger {
				p.put("evil", fmt.Sprint(i), 100+i, ports, 2, outside(i)...)
				s := p.svc("evil", fmt.Sprint(i))
				s.CreationTimestamp, s.Spec.ExternalTrafficPolicy = metav1.Unix(2, 0), corev1.ServiceExternalTrafficPolicyLocal
			}
			toggle(p, true)
			p.step()
			p.finish()
			for _, on := range []bool{false, true, false} {
				toggle(p, on)
				before := p.plan
				for turn := 0; turn == 0 || len(p.compiler.Waiting()) > 0; turn++ {
					if turn > 0 {
						p.compiler.Advance("evil")
					}
					p.step()
					come, gone := 0, 0
					for _, d := range before.Diff(p.plan).Services {
						switch {
						case d.New != nil:
							come++
						case d.Old.Origin != "Service evil/older": // which was written
							gone++
						}
					}
					if before = p.plan; turn == 0 && max(come, gone) > 1024 || come > 2048 {
						t.Errorf("ready, or with room, is %t, and in turn %d come %d frontends, and %d go", on, turn, come, gone)
					}
				}
				p.finish()
			}
		})
	}
}

// However its Services come to have much, one after the other, a namespace has no more in the tables than twice what it may, and what
// a turn brings: what goes of one of them does not wait behind what comes, whichever asked first.
func TestWhoAsksFirstFillsNothing(t *testing.T) {
	const groups, each, endpoints, most = 12, 2, 25, 50
	for name, take := range map[string]func(p *paced, former string){
		"they are written to have less": func(p *paced, former string) { p.svc("evil", former).Spec.Ports = nil },
		"older ones take their room":    func(*paced, string) {},
	} {
		t.Run(name, func(t *testing.T) {
			defer service.SetRooms(4, 10)()
			defer service.SetBudget(1000, most)()
			p := newPaced(t)
			p.compiler.Rest(map[string]bool{"evil": true})
			put := func(group, i, ports int) (name string) {
				name = fmt.Sprintf("%02d-%d", group, i)
				p.put("evil", name, 1+group*each+i, ports, endpoints)
				p.svc("evil", name).CreationTimestamp = metav1.Unix(int64(groups-group), 0)
				return name
			}
			for group := range groups { // all have their places
				for i := range each {
					put(group, i, 0)
				}
			}
			p.step()
			large := 0
			for group := range groups {
				for i := range each {
					put(group, i, 1)
					if group > 0 {
						take(p, fmt.Sprintf("%02d-%d", group-1, i))
					}
				}
				// When it has nearly all the next asks, which has its place still.
				for turn, has := 0, 0; has < each*endpoints-9; turn++ {
					if turn > 100 {
						t.Fatal("it does not end")
					}
					p.compiler.Advance("evil")
					p.step()
					large, has = max(large, p.plan.Backends.Len()), 0
					for i := range each {
						_, n := p.of(fmt.Sprintf("evil/%02d-%d", group, i))
						has += n
					}
				}
			}
			if large > 2*most+10 {
				t.Errorf("at most there are %d backends", large)
			}
			p.compiler.Rest(nil)
			p.finish()
		})
	}
}

// Whom load balancers' addresses let in is a list that a data plane writes anew for each range that is another. Of many long ones
// what goes does at once, for which the namespace rests, and what comes waits.
func TestLongListsOfRangesWait(t *testing.T) {
	const many, ranges = 4, 600
	p := newPaced(t)
	for i := range many {
		p.put("evil", fmt.Sprint(i), 1+i, 1, 1)
	}
	// set has of the ranges of each Service some be others, and returns how many come and go.
	set := func(number, others int) (come, gone int) {
		for i := range many {
			s := p.svc("evil", fmt.Sprint(i))
			s.Spec.Type, s.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, nil
			for j := range ranges {
				by := 0
				if j < others {
					by = number
				}
				s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, fmt.Sprintf("198.%d.%d.%d/32", 18+by, j/250, j%250+1))
			}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("192.0.2.%d", i+1)}}
		}
		return p.sources(p.step)
	}
	set(0, 0)
	p.finish()
	for number, others := range []int{0, 1, 1, ranges, ranges} {
		come, gone := set(number, others)
		if come > 0 || gone > many*ranges {
			t.Errorf("of each list %d are others, and at once %d come and %d go", others, come, gone)
		}
		if hasty := slices.Contains(p.compiler.Hasty(), "evil"); hasty != (gone > 0) {
			t.Errorf("of each list %d are others, and that the namespace is hasty is %t", others, hasty)
		}
		for turn := 0; len(p.compiler.Waiting()) > 0; turn++ {
			p.compiler.Advance("evil")
			if come, gone := p.sources(p.step); come+gone > 2*2*ranges {
				t.Errorf("turn %d has %d come and %d go", turn, come, gone)
			}
		}
		p.finish()
	}
	for i := range many {
		p.drop("evil", fmt.Sprint(i))
	}
	if p.step(); len(p.compiler.Hasty()) == 0 {
		t.Error("all lists go, and the namespace is not hasty")
	}
	p.finish()
}

// sources returns how many of those whom load balancers' addresses let in come and go with a step.
func (p *paced) sources(step func() (int, int)) (come, gone int) {
	before := p.plan
	step()
	for _, c := range before.Diff(p.plan).Sources {
		if c.New != nil {
			come++
		} else {
			gone++
		}
	}
	return come, gone
}
