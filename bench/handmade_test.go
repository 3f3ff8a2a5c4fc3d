package main

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

// The workers of this test are its own program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == workerArgument {
		exit(runWorker())
	}
	os.Exit(m.Run())
}

// Every kind of load gets through every network that is built by hand.
func TestHandmadeNetworksCarryAllLoads(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	for _, program := range []string{"ip", "bridge", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s", program)
		}
	}
	var variants []variant
	bare, p := barePair()
	if err := bare.done(); err != nil {
		t.Fatal(err)
	}
	defer bare.close()
	variants = append(variants, variant{name: "bare", pair: p})
	for _, backend := range []string{"vxlan", "host-gw"} {
		h, same, across := byHand(backend)
		if err := h.done(); err != nil {
			t.Fatal(err)
		}
		defer h.close()
		variants = append(variants, variant{name: backend + " same", pair: same}, variant{name: backend + " across", pair: across})
	}
	got, err := measureTraffic(t.Context(), variants, loads, 1, 10*time.Millisecond, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range loads {
		for _, v := range variants {
			if s := got[l][v.name]; len(s) != 1 || s[0].Count == 0 {
				t.Errorf("%s: %s: %v", v.name, l.do, s)
			}
		}
	}
}

func TestMeasureTrafficEndsWithItsContext(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	h, p := barePair()
	if err := h.done(); err != nil {
		t.Fatal(err)
	}
	defer h.close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := measureTraffic(ctx, []variant{{name: "bare", pair: p}}, loads, 1, time.Hour, t.Logf); err == nil {
		t.Error("it went on")
	}
}
