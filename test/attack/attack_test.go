package attack

import (
	"fmt"
	"slices"
	"testing"
)

// attack is one thing that an attacker tries.
type attack struct {
	// name says what is done, as -run finds it: letters, digits and "_".
	name string
	by   attacker
	// must completes the sentence "must not".
	must string
	// ip are the families of addresses that it is tried over.
	ip families
	// left says why the attack does not apply to a cluster, "" where it does.
	left func(*stage) string
	// race says that what is open is not met every time: it is so for a moment
	// only, or hangs on the order of what nodes have drawn.
	race bool
	// try does it, and tells the trial what it came to.
	try func(*trial)
}

// attacker is who tries an attack.
type attacker string

const (
	podWithNothing attacker = "pod, no capability"
	podWithRaw     attacker = "pod, NET_RAW"
	podWithAdmin   attacker = "pod, NET_ADMIN"
	onUnderlay     attacker = "underlay, no node"
	tenant         attacker = "rights in one namespace"
	nodeUser       attacker = "user of a node, not root"
	runtimeOf      attacker = "what a runtime passes on"
	oneAgent       attacker = "one agent"
)

// families are those that an attack is tried over.
type families string

const (
	both     families = "IPv4 and IPv6"
	onlyIPv4 families = "IPv4"
	onlyIPv6 families = "IPv6"
	// noFamily is for what is not tried with packets of a family.
	noFamily families = ""
)

// attacks are all of them.
var attacks = slices.Concat(podAttacks, spoofingAttacks, linkAttacks, neighbourAttacks, icmpAttacks, hostPortAttacks,
	birthAttacks, policyAttacks, adminAttacks, underlayAttacks, cniAttacks, agentAttacks, floodAttacks, balancerAttacks)

// trial is an attack on a cluster, over one family.
type trial struct {
	*testing.T
	*stage
	attack attack
	// v6 says that it is tried over IPv6.
	v6 bool
	// breaches say how it succeeded.
	breaches []string
	// controls counts the controls that were seen.
	controls int
}

// breach says that the attack succeeded.
func (t *trial) breach(format string, args ...any) {
	t.breaches = append(t.breaches, fmt.Sprintf(format, args...))
}

// TestAttacks tries every attack on a cluster of every plug-in.
func TestAttacks(t *testing.T) {
	needRoot(t)
	for _, c := range clusters {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, c)
			for _, a := range attacks {
				t.Run(a.name, func(t *testing.T) { s.attempt(t, a) })
			}
		})
	}
}

// attempt tries an attack over its families.
func (s *stage) attempt(t *testing.T, a attack) {
	why := ""
	if a.left != nil {
		why = a.left(s)
	}
	if why == "" && a.ip == onlyIPv6 && !s.cluster.ipv6() {
		why = "the cluster has no IPv6"
	}
	if why != "" {
		record(a, s.cluster.name, outcome{left: why})
		t.Skip("does not apply: " + why)
	}
	if a.ip == noFamily {
		s.judge(t, a, false, "")
		return
	}
	if a.ip != onlyIPv6 {
		t.Run("ipv4", func(t *testing.T) { s.judge(t, a, false, "/ipv4") })
	}
	if a.ip != onlyIPv4 && s.cluster.ipv6() {
		t.Run("ipv6", func(t *testing.T) { s.judge(t, a, true, "/ipv6") })
	}
}

// most is how many ways in which an attack succeeded are told.
const most = 8

// judge tries an attack once. It fails where the attack succeeds, unless that
// is known; and where one that is known to succeed does not.
func (s *stage) judge(t *testing.T, a attack, v6 bool, family string) {
	tr := &trial{T: t, stage: s, attack: a, v6: v6}
	judged := false
	defer func() {
		if !judged && !t.Skipped() {
			s.broken = true
			record(a, s.cluster.name, outcome{broken: true})
		}
	}()
	a.try(tr)
	if tr.controls == 0 {
		t.Fatal("no control was seen: what did not happen says nothing")
	}
	if t.Failed() {
		return
	}
	judged = true
	record(a, s.cluster.name, outcome{succeeded: len(tr.breaches) > 0})
	hole, known := findHole(s.cluster.name, a.name, family)
	switch {
	case len(tr.breaches) > 0 && known:
		t.Logf("SUCCEEDED, as is known (%s): must not %s: %q", holes[hole], a.must, tr.breaches)
	case len(tr.breaches) > 0:
		t.Errorf("SUCCEEDED: %s: must not %s", a.by, a.must)
		for i, b := range tr.breaches {
			if i == most {
				t.Errorf("and %d more", len(tr.breaches)-most)
				break
			}
			t.Error(b)
		}
	case known && !a.race:
		t.Errorf("held, though holes_test.go says that it succeeds: delete the line of %q", hole)
	}
}

// TestTable holds the table of attacks and the list of holes to each other.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range attacks {
		if seen[a.name] {
			t.Errorf("there are two attacks %s", a.name)
		}
		seen[a.name] = true
		if a.must == "" || a.by == "" || a.try == nil {
			t.Errorf("attack %s does not say who does what, and what must not happen", a.name)
		}
	}
	for hole := range holes {
		if !slices.ContainsFunc(attacks, func(a attack) bool { return holeIsOf(hole, a) }) {
			t.Errorf("holes_test.go has %q, and there is no such attack", hole)
		}
	}
}
