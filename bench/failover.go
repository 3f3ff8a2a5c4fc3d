package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
)

// virtual is the address that fails over between the nodes of a lab, one of their own network.
var virtual = netip.MustParseAddr("172.30.0.200")

// How often the address is asked, for how long after what happens to its owner, and how often
// who asks forgets where it is, if he does.
const (
	askEvery    = 20 * time.Millisecond
	askFor      = 9 * time.Second
	forgetEvery = 100 * time.Millisecond
)

// failovers are what can happen to the owner of an address.
var failovers = []struct {
	name string
	// forgets says that who asks has to look for the address again and again.
	forgets bool
	happen  func(l *lab.Lab, owner string) error
}{
	{"the owner's power is cut", false, func(l *lab.Lab, owner string) error { return l.StopNode(owner) }},
	{"its agent is killed", false, func(l *lab.Lab, owner string) error { return l.Kill(owner) }},
	{"its agent is killed, for who looks for the address anew", true, func(l *lab.Lab, owner string) error { return l.Kill(owner) }},
}

// failover is for how long an address did not answer, in milliseconds, round by round, by what
// happened to its owner.
type failover struct {
	Name  string
	Gaps  []float64
	Moved int
}

// measureFailover has things happen to the owner of an address, in a lab of three nodes.
func (s settings) measureFailover(ctx context.Context) (all []failover, err error) {
	v := &api.VirtualAddress{ObjectMeta: metav1.ObjectMeta{Name: "bench"}, Spec: api.VirtualAddressSpec{Address: virtual.String()}}
	c, err := bringUp(ctx, s.weft, 3, "openshift-subnet", lab.Object{Kind: api.VirtualAddressKind, Object: v})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	reg, err := c.lab.Registry()
	if err != nil {
		return nil, err
	}
	defer reg.Close()
	for _, f := range failovers {
		result := failover{Name: f.name}
		for range s.rounds {
			owner, err := ownerOf(ctx, reg, "")
			if err != nil {
				return nil, err
			}
			say("failover: %s (%s)", f.name, owner)
			gap, err := gapOf(c.lab, f.forgets, func() error { return f.happen(c.lab, owner) })
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.name, err)
			}
			result.Gaps = append(result.Gaps, milliseconds(gap))
			now, err := ownerOf(ctx, reg, owner)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.name, err)
			}
			if now != owner {
				result.Moved++
			}
			if err := c.lab.StartNode(ctx, owner); err != nil {
				return nil, err
			}
			retry.Sleep(ctx, 2*time.Second) // until it has seen that another has the address
		}
		all = append(all, result)
	}
	return all, nil
}

// ownerOf waits until one node alone says that it answers for the address, but for one that is
// dead and may still say so.
func ownerOf(ctx context.Context, reg registry.Registry, dead string) (string, error) {
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) && ctx.Err() == nil {
		nodes, _, err := reg.List(ctx, api.Node)
		if err != nil {
			return "", err
		}
		var owners []string
		for _, o := range nodes {
			if addresses, _ := api.Announces(o.(*corev1.Node)); o.GetName() != dead && slices.Contains(addresses, virtual) {
				owners = append(owners, o.GetName())
			}
		}
		if len(owners) == 1 {
			return owners[0], nil
		}
		retry.Sleep(ctx, 100*time.Millisecond)
	}
	return "", fmt.Errorf("no node alone says that it answers for %s", virtual)
}

// answered finds when an answer came in what ping says.
var answered = regexp.MustCompile(`(?m)^\[(\d+\.\d+)\] \d+ bytes from`)

// gapOf returns the longest time without an answer of the address while something happens.
func gapOf(l *lab.Lab, forgets bool, happen func() error) (time.Duration, error) {
	var out bytes.Buffer
	var wg sync.WaitGroup
	ended := make(chan struct{})
	var pinged error
	wg.Go(func() {
		defer close(ended)
		// With -w it would end as soon as it is told that the address cannot be reached.
		pinged = l.ExecOutside(lab.Command{Stdout: &out, Args: []string{"ping", "-n", "-D", "-i", fmt.Sprint(askEvery.Seconds()), "-W", "1", "-c", strconv.Itoa(int(askFor / askEvery)), virtual.String()}})
	})
	if forgets {
		wg.Go(func() {
			for {
				select {
				case <-ended:
					return
				case <-time.After(forgetEvery):
					_ = l.ExecOutside(lab.Command{Args: []string{"ip", "neigh", "flush", "to", virtual.String()}})
				}
			}
		})
	}
	time.Sleep(time.Second)
	err := happen()
	wg.Wait()
	if err := errors.Join(err, pinged); err != nil {
		return 0, err
	}
	var last, longest float64
	for _, m := range answered.FindAllStringSubmatch(out.String(), -1) {
		at, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return 0, err
		}
		if last != 0 {
			longest = max(longest, at-last)
		}
		last = at
	}
	if last == 0 {
		return 0, fmt.Errorf("%s never answered", virtual)
	}
	return time.Duration(longest * float64(time.Second)), nil
}

// failovers writes for how long an address did not answer.
func (r *report) failovers(all []failover) {
	if len(all) == 0 {
		return
	}
	r.line("\n## An address that fails over\n")
	r.line("A VirtualAddress in a lab of three nodes, asked every %v by a host next to them that is none.", askEvery)
	r.line("The longest time without an answer while something happens to the node that has it; the")
	r.line("target is to be at 2 s at most.")
	r.head("", "median", "longest", "moved", "target", "")
	for _, f := range all {
		longest := slices.Max(f.Gaps)
		r.row(f.Name, amount(spreadOf(f.Gaps).Median, "ms"), amount(longest, "ms"), fmt.Sprintf("%d of %d", f.Moved, len(f.Gaps)), "≤ 2 s", r.judged(atMost(longest, 2000)))
	}
}
