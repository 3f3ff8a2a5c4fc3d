package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// All Services and slices are valid, and of none the name or address is another's.
func TestServicesDiffer(t *testing.T) {
	network := netip.MustParsePrefix(serviceNetwork)
	names, addresses := map[string]bool{}, map[string]bool{}
	add := func(k *registry.Kind, o registry.Object) {
		if err := k.Validate(o); err != nil {
			t.Fatal(err)
		}
		if id := k.Plural + " " + o.GetName(); names[id] {
			t.Fatalf("there are two of %s", id)
		} else {
			names[id] = true
		}
	}
	for i := range mostServices {
		s, slice := measured(), sliceOf(serviceNamespace, measuredService, "connect", "TCP", connectPort, routedServer)
		if i > 0 {
			s, slice = fillingService(i), fillingSlice(i)
		}
		add(api.Service, s)
		add(api.EndpointSlice, slice)
		all := []string{s.Spec.ClusterIP}
		for _, e := range slice.Endpoints {
			all = append(all, e.Addresses...)
		}
		for _, a := range all {
			if addresses[a] {
				t.Fatalf("%s is there twice", a)
			}
			addresses[a] = true
		}
		if !network.Contains(netip.MustParseAddr(s.Spec.ClusterIP)) {
			t.Fatalf("%s is not in %s", s.Spec.ClusterIP, network)
		}
	}
}

func TestServiceSettings(t *testing.T) {
	s, err := parseSettings([]string{"-only", "services", "-services", "1,20", "-changes", "0"})
	if err != nil || len(s.services) != 2 || s.services[1] != 20 {
		t.Errorf("it is %v, %v", s.services, err)
	}
	for _, wrong := range []string{"", "0", "20,1", "60001", "many"} {
		if _, err := parseSettings([]string{"-services", wrong}); err == nil || !strings.Contains(err.Error(), "-services") {
			t.Errorf("-services %q: %v", wrong, err)
		}
	}
}

// A worker's program ends when it is told so, when another takes its place, and with the worker.
func TestWorkersProgram(t *testing.T) {
	var p program
	log := t.TempDir() + "/log"
	first, err := p.start(log, "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	ended := p.ended
	second, err := p.start(log, "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	<-ended
	p.end()
	p.end()
	if first == second || p.cmd != nil {
		t.Errorf("programs %d and %d, and then %v", first, second, p.cmd)
	}
	if _, err := p.start(log, "no-such-program"); err == nil {
		t.Error("a program that there is not was run")
	}
}
