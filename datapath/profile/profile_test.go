package profile

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// TestProfilesAreVerdicts checks what somebody finds who looks a packet up in what is
// said of a peer, against the interpreter; that the ranges are in order and disjoint;
// and that what is known by one name is the same.
func TestProfilesAreVerdicts(t *testing.T) {
	allowed, denied, shared := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := plantest.Policed(plantest.Shapes()).Draw(t, "shape").Plans()["node1"]
		if p == nil || !Policed(p) {
			return
		}
		all, known := map[PeerKey]Said{}, map[string]*Profile{}
		for k, s := range Peers(p) {
			if again, ok := all[k]; ok {
				t.Fatalf("%v comes twice: %v and %v", k, again, s)
			}
			all[k] = s
			for _, of := range []*Profile{s.Own, s.Like} {
				if of == nil {
					continue
				}
				for i, r := range of.Ranges {
					if r.Last < r.First || i > 0 && r.First <= of.Ranges[i-1].Last {
						t.Fatalf("the ranges of %v are not in order or not disjoint: %v", k, of.Ranges)
					}
				}
				if same := known[of.ID]; same == nil {
					known[of.ID] = of
				} else if shared++; len(same.Ranges) != len(of.Ranges) {
					t.Fatalf("%v and %v are known by one name", same.Ranges, of.Ranges)
				}
			}
		}
		for k := range all {
			if s := Of(p, k.PolicyKey).Said(k.Peer); !sameSaid(s, all[k]) {
				t.Fatalf("of %v alone it is said %v, among all others %v", k, s, all[k])
			}
			peer := k.Peer
			protocol := rapid.SampledFrom([]plan.Protocol{plan.TCP, plan.UDP, plan.SCTP, plan.ICMP, 99}).Draw(t, "protocol")
			port := uint16(0)
			if protocol.HasPorts() {
				port = rapid.OneOf(rapid.Uint16(), rapid.SampledFrom([]uint16{0, 8079, 8080, 8081, 65535})).Draw(t, "port")
			}
			_, want, _ := p.Verdict(k.Name, k.Direction, peer, protocol, port)
			found := lookup(KindOf(protocol, port), all[k].Own, all[k].Like, all[PeerKey{k.PolicyKey, plan.AnyPeer}].Own)
			if found == nil || found.Allow != want.Allow {
				t.Fatalf("%v, %s %d: %v is found; expected %v\n%s", k, protocol, port, found, want, p)
			}
			if want.Allow {
				allowed++
			} else {
				denied++
			}
		}
	})
	if allowed == 0 || denied == 0 || shared == 0 {
		t.Errorf("%d allowed, %d denied, %d shared: something was not tried", allowed, denied, shared)
	}
}

func sameSaid(a, b Said) bool {
	same := func(a, b *Profile) bool { return (a == nil) == (b == nil) && (a == nil || a.ID == b.ID) }
	return same(a.Own, b.Own) && same(a.Like, b.Like)
}

// lookup returns the first of the profiles' ranges that has a packet.
func lookup(k Kind, in ...*Profile) *Range {
	for _, p := range in {
		if p == nil {
			continue
		}
		for _, r := range p.Ranges {
			if r.First <= k && k <= r.Last {
				return &r
			}
		}
	}
	return nil
}
