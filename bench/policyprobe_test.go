package main

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFlip(t *testing.T) {
	const steady = 3
	// A datagram is sent each millisecond, the first at 1; a letter is one that
	// arrived.
	for _, c := range []struct {
		arrived string
		wanted  bool
		before  int
		at      int // 0: not known
	}{
		{"", true, 10, 0},
		{"....aaaa", true, 20, 5},
		{"....aaaa", false, 20, 0},
		{"....aaaa", true, 7, 0}, // two of them are old enough
		{"....aaaa", true, 8, 5},
		{"aaa..a...", false, 20, 7},
		{"aaaa", true, 20, 1},
		{"aaaa....", false, 8, 5},
		{"...aaa.aaa", true, 20, 8}, // one was late
	} {
		var tr trial
		for i := range c.arrived {
			tr.sent = append(tr.sent, time.Duration(i+1)*time.Millisecond)
			tr.arrived = append(tr.arrived, c.arrived[i] == 'a')
		}
		at, ok := tr.flip(c.wanted, time.Duration(c.before)*time.Millisecond, steady)
		if want := time.Duration(c.at) * time.Millisecond; ok != (c.at > 0) || ok && at != want {
			t.Errorf("flip(%q, %v, %dms) = %v, %v; want %v", c.arrived, c.wanted, c.before, at, ok, want)
		}
	}
}

func TestParseDatagram(t *testing.T) {
	header := make([]byte, 24) // with an option
	header[0], header[9] = 0x46, unix.IPPROTO_UDP
	to := netip.MustParseAddrPort("10.1.2.3:8080")
	copy(header[16:], to.Addr().AsSlice())
	packet := append(header, datagram(1024, to.Port(), 7, 9)...)
	if got, generation, number, ok := parseDatagram(packet); !ok || got != to || generation != 7 || number != 9 {
		t.Errorf("parsed as %s, %d, %d, %v", got, generation, number, ok)
	}
	for n := range packet {
		if _, _, _, ok := parseDatagram(packet[:n]); ok {
			t.Errorf("the first %d bytes of %d are one, too", n, len(packet))
		}
	}
	for i, wrong := range map[int]byte{0: 0x66, 9: unix.IPPROTO_TCP} {
		other := append([]byte(nil), packet...)
		other[i] = wrong
		if _, _, _, ok := parseDatagram(other); ok {
			t.Errorf("byte %d may be %#x", i, wrong)
		}
	}
}

// A probe sees both what a change lets through and what it stops.
func TestProbe(t *testing.T) {
	h, p := handRouted("routed", "")
	if err := h.done(); err != nil {
		t.Fatal(err)
	}
	defer h.close()
	probe, err := newProbe(p.from.namespace(), p.to.namespace(), "eth0", p.address, podPort)
	if err != nil {
		t.Fatal(err)
	}
	defer probe.close()
	for _, c := range []struct {
		rules  string
		wanted bool
	}{
		{"table ip filter { chain forward { type filter hook forward priority filter; drop; }; }\n", false},
		{"delete table ip filter\n", true},
	} {
		took, err := probe.time(t.Context(), c.wanted, func() error {
			return h.workers["routed"].run(c.rules, "nft", "-f", "-")
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%v after the change", took)
	}
}

// The rules by hand let through what is measured, and nothing else.
func TestRulesByHand(t *testing.T) {
	for name, rules := range map[string]string{"by pod": rulesByPod(routedServer, routedClient), "by policy": rulesByPolicy(routedServer, routedClient)} {
		h, p := handRouted(name, rules)
		if err := h.done(); err != nil {
			t.Fatal(err)
		}
		defer h.close()
		if _, err := measureTraffic(t.Context(), []variant{{name: name, pair: p}}, policyLoads, 1, 10*time.Millisecond, t.Logf); err != nil {
			t.Fatal(err)
		}
		probe, err := newProbe(p.from.namespace(), p.to.namespace(), "eth0", p.address, podPort)
		if err != nil {
			t.Fatal(err)
		}
		defer probe.close()
		if _, err := probe.time(t.Context(), true, func() error {
			return h.workers[name].run("delete table ip policies\n", "nft", "-f", "-")
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
