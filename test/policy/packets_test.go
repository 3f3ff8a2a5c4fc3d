package policy

import (
	"flag"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/conformance"
	"github.com/weftnet/weft/datapath/linux"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
	"github.com/weftnet/weft/test/policy/oracle"
)

var packets = flag.Int("packets", 200, "how many real packets to send")

// Of each cluster so many packets are sent in each of its states, which are so
// many.
const (
	sentEach   = 20
	statesEach = 4
)

// TestPackets sends packets through the linux data plane and holds what arrives
// against the oracle.
func TestPackets(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	sent := 0
	var answers = tally{}
	for i := uint64(0); sent < *packets && !t.Failed(); i++ {
		if *cluster >= 0 {
			i, sent = uint64(*cluster), *packets
		}
		rounds, count := roundsOf(t, i, answers)
		if count == 0 {
			continue
		}
		sent += count
		t.Run(strconv.FormatUint(i, 10), func(t *testing.T) {
			conformance.Cluster(t, func(n conformance.Namespace) (datapath.DataPlane, error) {
				return linux.NewAt(n.Path(), linux.Config{})
			}, rounds)
			if t.Failed() {
				t.Logf("again: go test ./test/policy -run TestPackets -seed %d -cluster %d", *seed, i)
			}
		})
	}
	t.Logf("seed %d: %d packets; %v", *seed, sent, answers)
}

// roundsOf takes a cluster through some states, and picks packets in each that
// are allowed and that are denied, of which the interpreter says what the oracle
// says.
func roundsOf(t *testing.T, cluster uint64, answers tally) (rounds []conformance.Round, count int) {
	g := newGenerator(*seed, cluster)
	s := newCompiled().(*compiled)
	var c *oracle.Cluster
	for i := range statesEach {
		if i == 0 {
			c = g.cluster()
		} else {
			c = g.mutate(c)
		}
		if d := become(s, c); d != nil {
			t.Fatal(d)
		}
		var allowed, denied []oracle.Packet
		for _, p := range g.packets(c, 20*sentEach) {
			to := &allowed
			if !c.Evaluate(p).Allowed {
				to = &denied
			}
			if canSend(p) && !slices.Contains(*to, p) {
				*to = append(*to, p)
			}
		}
		chosen := slices.Concat(allowed[:min(len(allowed), sentEach/2)], denied[:min(len(denied), sentEach/2)])
		if d := compare(s, c, chosen, answers); d != nil {
			t.Fatal(d)
		}
		r := conformance.Round{Plans: s.plans}
		for _, p := range chosen {
			r.Flows = append(r.Flows, flowOf(p))
		}
		rounds = append(rounds, r)
		count += len(r.Flows)
	}
	return rounds, count
}

// canSend reports whether somebody can send a packet, and an echo request where
// it is to be one.
func canSend(p oracle.Packet) bool {
	f := flowOf(p)
	outside := !podNetworks[family(p.Source)].Contains(p.Source)
	return slices.Contains([]plan.Protocol{plan.TCP, plan.UDP, plan.ICMP, plan.ICMPv6}, f.Protocol) &&
		(!outside || slices.Contains(plantest.Outside, p.Source))
}
