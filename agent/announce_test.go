package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/announce/server"
	"github.com/weftnet/weft/announce/wire"
	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// TestServes asks whether a plan hands on what comes from outside for addresses.
func TestServes(t *testing.T) {
	at := func(a string, from plan.Scope) plan.ServiceKey {
		return plan.ServiceKey{Network: plan.DefaultNetwork, Address: netip.MustParseAddr(a), Protocol: plan.TCP, Port: 80, From: from}
	}
	web := plan.Service{Set: "shop/web", Origin: "Service shop/web"}
	p := &plan.Plan{}
	p.Services = p.Services.Set(at("192.0.2.1", plan.Anywhere), web).Set(at("192.0.2.2", plan.Inside), web).
		Set(at("192.0.2.3", plan.Inside), web).Set(at("192.0.2.3", plan.Outside), web).Set(at("192.0.2.4", plan.Anywhere), plan.Service{Origin: web.Origin})
	for address, want := range map[string]bool{"192.0.2.0": false, "192.0.2.1": true, "192.0.2.2": false, "192.0.2.3": true, "192.0.2.4": false, "192.0.2.5": false} {
		a := netip.MustParseAddr(address)
		for origin, is := range map[string]bool{"": want, web.Origin: want, "Service shop/other": false} {
			if got := serves(p, a, origin); got != is {
				t.Errorf("%s by %q: %v, want %v", a, origin, got, is)
			}
		}
	}
	left := *p
	left.Local.ServicesLeft = true
	if serves(&left, netip.MustParseAddr("192.0.2.1"), "") {
		t.Error("what is left to kube-proxy is served")
	}
}

// TestNodesAreToldFromThoseOfOtherClusters asks what the server is told of nodes: of each its name and the mark of its UID, and
// whether the node itself is to go.
func TestNodesAreToldFromThoseOfOtherClusters(t *testing.T) {
	objects := make(registry.Snapshot)
	for name, uid := range map[string]types.UID{"node1": "1e6b6a4e", "node2": "2f7c7b5f"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid}}
		n.Spec.Unschedulable = name == "node2"
		objects.Put(api.Node, n)
	}
	for self, leaving := range map[string]bool{"node1": false, "node2": true} {
		now := among(objects, self)
		if !now.Peers["node1"] || !now.Peers["node2"] || now.Marks["node1"] != wire.MarkOf("1e6b6a4e") || now.Marks["node2"] != wire.MarkOf("2f7c7b5f") || now.Leaving != leaving {
			t.Errorf("%s is told %+v", self, now)
		}
	}
}

// TestAPlanComesMeanwhile has a plan come, which serves an address no more, while the announcer
// finds out what the node is a candidate for by the plan before.
func TestAPlanComesMeanwhile(t *testing.T) {
	n := &announcer{server: server.New("node1", slog.New(slog.DiscardHandler)), kick: make(chan struct{}, 1)}
	before, after := &plan.Plan{}, &plan.Plan{}
	n.loading(before)
	<-n.kick
	if !n.settle(before, server.Standing{}) {
		t.Error("the server is not told what holds")
	}
	n.loading(after)
	if n.settle(before, server.Standing{}) {
		t.Error("the server is told what held before")
	}
	select {
	case <-n.kick:
	default:
		t.Error("the announcer does not find out what holds now")
	}
}

// lonely returns the announcer of an agent that does nothing else.
func lonely() *announcer {
	a := &agent{node: &registrar{kick: make(chan struct{}, 1)}}
	a.Node, a.Log = "node1", slog.New(slog.DiscardHandler)
	return &announcer{agent: a, kick: make(chan struct{}, 1)}
}

// TestInterfacesChange has the announcer see interfaces: it finds out anew what the node is a
// candidate for where they are others than before, and not where they could not be read.
func TestInterfacesChange(t *testing.T) {
	n := lonely()
	eth0 := link{Name: "eth0", MTU: 1500, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.5/24")}, Metrics: [2]int{-1, -1}}
	routed, other := eth0, eth0
	routed.Metrics = [2]int{0, -1}
	other.Addresses = []netip.Prefix{netip.MustParsePrefix("192.0.2.6/24")}
	for _, step := range []struct {
		name  string
		links []link
		own   map[netip.Addr]string
		err   error
		looks bool
	}{
		{"none at first", nil, nil, nil, true},
		{"one", []link{eth0}, nil, nil, true},
		{"the same", []link{eth0}, nil, nil, false},
		{"they cannot be read", nil, nil, errors.New("no memory"), false},
		{"the same again", []link{eth0}, nil, nil, false},
		{"it has a default route", []link{routed}, nil, nil, true},
		{"it has another address", []link{other}, nil, nil, true},
		{"the kernel has one elsewhere", []link{other}, map[netip.Addr]string{netip.MustParseAddr("192.0.2.7"): "lo"}, nil, true},
		{"it has that still", []link{other}, map[netip.Addr]string{netip.MustParseAddr("192.0.2.7"): "lo"}, nil, false},
		{"none any more", nil, nil, nil, true},
	} {
		n.see(step.links, step.own, step.err)
		select {
		case <-n.kick:
			if !step.looks {
				t.Errorf("%s: it looks again", step.name)
			}
		default:
			if step.looks {
				t.Errorf("%s: it does not look again", step.name)
			}
		}
		if step.err == nil && len(n.links) != len(step.links) {
			t.Errorf("%s: it knows %v", step.name, n.links)
		}
	}
	if !n.seen {
		t.Error("the interfaces count as not seen")
	}
}

// TestTroublesOfTheAnnouncer has the server have a problem, and the interfaces not be read for a
// while: neither hides the other.
func TestTroublesOfTheAnnouncer(t *testing.T) {
	n := lonely()
	a := n.agent
	said := func(want ...api.Problem) {
		t.Helper()
		if got := n.problems(); !slices.Equal(got, want) {
			t.Errorf("the problems are %v, want %v", got, want)
		}
	}
	n.say(&n.trouble, "somebody else has 192.0.2.7")
	n.see(nil, nil, errors.New("list interfaces: no memory"))
	said(a.own("somebody else has 192.0.2.7"), a.own("list interfaces: no memory"))
	n.see(nil, nil, nil)
	said(a.own("somebody else has 192.0.2.7"))
	n.say(&n.trouble, "")
	said()
}

// TestRoundsRest has changes come all the time: behind each round there is a rest, in proportion
// to what it took.
func TestRoundsRest(t *testing.T) {
	n := &announcer{kick: make(chan struct{}, 1)}
	notify(n.kick)
	rounds, rests := 0, 0
	var took time.Duration
	n.rounds(t.Context(), nil, func() {
		rounds++
		began := time.Now()
		for time.Since(began) < 20*time.Millisecond*time.Duration(rounds) {
		}
		took = time.Since(began)
		notify(n.kick)
	}, func(_ context.Context, d time.Duration) bool {
		if rests++; rests != rounds || d < roundRest || d < min((roundShare-1)*took, roundLongest) {
			t.Errorf("behind round %d, which took %s, it rests for %s", rounds, took, d)
		}
		return rests < 3
	})
	if rounds != 3 {
		t.Errorf("there were %d rounds, want 3", rounds)
	}
}

// TestPortChecks has a program listen, and end.
func TestPortChecks(t *testing.T) {
	changes := 0
	c := portChecks{changed: func() { changes++ }}
	v := &api.VirtualAddress{Spec: api.VirtualAddressSpec{Address: "192.0.2.7"}}
	v.Name = "router"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	v.Spec.Check = &api.AddressCheck{Port: int32(port)}
	objects := registry.NewSnapshot(map[*registry.Kind][]registry.Object{api.VirtualAddressKind: {v}})
	c.set(objects)
	if c.answers(port) {
		t.Error("a port that was never tried answers")
	}
	c.note(port, accepts(t.Context(), port))
	if !c.answers(port) || changes != 1 {
		t.Errorf("a port that accepts connections answers: %v, after %d changes", c.answers(port), changes)
	}
	l.Close()
	for i := range checkFails {
		if !c.answers(port) {
			t.Errorf("it does not answer after %d failures", i)
		}
		c.note(port, accepts(t.Context(), port))
	}
	if c.answers(port) || changes != 2 {
		t.Errorf("a port that accepts none any more answers: %v, after %d changes", c.answers(port), changes)
	}
	c.set(registry.NewSnapshot(nil))
	c.note(port, true)
	if c.answers(port) || changes != 2 {
		t.Error("a port that nobody asks for any more is known")
	}
}
