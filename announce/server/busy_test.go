package server_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftnet/weft/announce/wire"
	"github.com/weftnet/weft/internal/await"
)

// TestWhatIsSaidToABusyNode has somebody say that he has the address for which a node asks, while the node is busy until it would be time to
// own it: it leaves the address alone.
func TestWhatIsSaidToABusyNode(t *testing.T) {
	_, client, all := nodes(t, 1)
	n, port, other := all[0], client.open(), netip.MustParseAddr("2001:db8::200")
	for range 3 {
		var once sync.Once
		n.took = func(int) {
			once.Do(func() {
				if err := port.Announce(six); err != nil {
					t.Error(err)
				}
				time.Sleep(300 * time.Millisecond)
			})
		}
		n.start(standing(all, n, false, other))
		time.Sleep(50 * time.Millisecond) // so that it asks for the second address when it takes the first
		n.Stand(standing(all, n, false, other, six))
		n.says("somebody else has ", six.String()+" ("+client.mac("eth0")+")")
		if slices.Contains(n.Answered(), six) {
			t.Fatal("it has taken the address beside the one that has said before that it has it")
		}
		n.end()
	}
}

// TestAPeerIsHeardAtOnce has a peer that a node has not heard before say in many heartbeats that it owns all addresses that the node
// owns, and tell the link of each, while the node is busy: it leaves them at once, and does not take the peer for a stranger.
func TestAPeerIsHeardAtOnce(t *testing.T) {
	_, client, all := nodes(t, 1)
	n, port, last := all[0], client.open(), netip.MustParseAddr("192.0.2.200")
	var many []netip.Addr
	var claims []wire.Claim
	for a := six; len(many) < 1000; a = a.Next() {
		many = append(many, a)
		claims = append(claims, wire.Claim{Address: a, State: wire.Owns})
	}
	owns := func(want int) {
		t.Helper()
		await.NoError(t, patience, fmt.Sprintf("%s owns %d addresses", n.name, want), func() error {
			if owned := len(n.Answered()); owned != want {
				return fmt.Errorf("it owns %d", owned)
			}
			return nil
		})
	}
	var once sync.Once
	n.took = func(addresses int) {
		if addresses > 1 {
			return
		}
		once.Do(func() {
			n.changes.Store(0)
			if err := port.Say(wire.Heartbeat{Node: "node9", Claims: claims}); err != nil {
				t.Error(err)
			}
			for _, a := range many {
				if err := port.Announce(a); err != nil {
					t.Error(err)
				}
			}
		})
	}
	now := standing(all, n, false, many...)
	now.Peers["node9"] = true
	for a, c := range now.Candidates {
		c.Grade = 9
		now.Candidates[a] = c
	}
	n.start(now)
	owns(len(many))
	then := standing(all, n, false, append(many, last)...)
	for a, c := range now.Candidates {
		then.Candidates[a] = c
	}
	then.Peers = now.Peers
	n.Stand(then)
	owns(1)
	// One change is that it owns the last one.
	if changes := n.changes.Load(); changes > 4 {
		t.Errorf("it leaves them in %d steps", changes)
	}
	// What is wrong is said all at once.
	if err := port.Say(wire.Heartbeat{Node: n.name, Claims: claims[:1]}); err != nil {
		t.Fatal(err)
	}
	n.says("says under this node's name")
	n.mu.Lock()
	defer n.mu.Unlock()
	if strings.Contains(n.problem, "somebody else") {
		t.Errorf("it takes the peer for a stranger: %s", n.problem)
	}
}
