package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// addressed is a pod of node1 with an address.
func addressed(name, uid, address string) *corev1.Pod {
	p := pod(name, uid, "node1", nil)
	p.Status.PodIPs = []corev1.PodIP{{IP: address}}
	return p
}

// TestCutOff looks at which pods are told of as cut off.
func TestCutOff(t *testing.T) {
	const address = "10.1.0.2"
	gone := attachment("web", "u1")
	gone.HostInterface = "weftweb"
	ended := addressed("web", "u1", address)
	ended.Status.Phase = corev1.PodSucceeded
	elsewhere := addressed("web", "u1", address)
	elsewhere.Spec.NodeName = "node2"
	unidentified := ipam.Attachment{Request: ipam.Request{Network: plan.DefaultNetwork, Unidentified: true}, Addresses: []netip.Addr{netip.MustParseAddr(address)}}
	elsewhereUnidentified := unidentified
	elsewhereUnidentified.Network = "red"
	second := gone
	second.IfName, second.HostInterface, second.Network, second.Secondary = "net1", "weftnet1", "red", true
	const lost, unknown = "interface weftweb on node1 is gone", "node1 knows no interface of it with its address " + address
	for name, test := range map[string]struct {
		start, now     *corev1.Pod // the pod when the agent starts, and later
		attached, lost []ipam.Attachment
		unreachable    bool // whether the registry answers no more
		want           string
	}{
		"its interface is there":                  {start: addressed("web", "u1", address), now: addressed("web", "u1", address), attached: []ipam.Attachment{gone}},
		"its interface is gone":                   {start: addressed("web", "u1", address), now: addressed("web", "u1", address), attached: []ipam.Attachment{gone}, lost: []ipam.Attachment{gone}, want: lost},
		"its interface is gone, and the registry": {start: addressed("web", "u1", address), now: addressed("web", "u1", address), attached: []ipam.Attachment{gone}, lost: []ipam.Attachment{gone}, unreachable: true, want: lost},
		"its second interface is gone": {start: addressed("web", "u1", address), now: addressed("web", "u1", address), attached: []ipam.Attachment{gone, second}, lost: []ipam.Attachment{second},
			want: "its interface weftnet1 in network red on node1 is gone"},
		"both interfaces are gone":                    {start: addressed("web", "u1", address), now: addressed("web", "u1", address), attached: []ipam.Attachment{gone, second}, lost: []ipam.Attachment{gone, second}, want: lost},
		"the node has its address in another network": {start: addressed("web", "u1", address), now: addressed("web", "u1", address), attached: []ipam.Attachment{elsewhereUnidentified}, want: unknown},
		"the pod is gone, too":                        {start: addressed("web", "u1", address), attached: []ipam.Attachment{gone}, lost: []ipam.Attachment{gone}},
		"another has the name":                        {start: addressed("web", "u1", address), now: addressed("web", "u2", "10.1.0.3"), attached: []ipam.Attachment{gone}, lost: []ipam.Attachment{gone}},
		"it has ended":                                {start: ended, now: ended, attached: []ipam.Attachment{gone}, lost: []ipam.Attachment{gone}},
		"it is on another node":                       {start: elsewhere, now: elsewhere, attached: []ipam.Attachment{gone}, lost: []ipam.Attachment{gone}},
		"the node knows nothing of it":                {start: addressed("web", "u1", address), now: addressed("web", "u1", address), want: unknown},
		"it has no address yet":                       {start: pod("web", "u1", "node1", nil), now: addressed("web", "u1", address)},
		"the node does not know whose it is":          {start: addressed("web", "u1", address), now: addressed("web", "u1", address), attached: []ipam.Attachment{unidentified}},
		"nothing is known of it, and it was deleted":  {start: addressed("web", "u1", address)},
		"it was made anew since":                      {start: addressed("web", "u1", address), now: addressed("web", "u2", address)},
		"it got another address since":                {start: addressed("web", "u1", address), now: addressed("web", "u1", "10.1.0.3")},
	} {
		t.Run(name, func(t *testing.T) {
			var told []api.Problem
			current, outage := test.start, error(nil)
			w := &cutOffWatch{node: "node1", log: slog.New(slog.DiscardHandler),
				attached: func() []ipam.Attachment { return test.attached }, lost: func() []ipam.Attachment { return test.lost }, collected: func() []ipam.Attachment { return nil },
				own: func(context.Context) ([]*corev1.Pod, error) {
					if current == nil || current.Spec.NodeName != "node1" {
						return nil, nil
					}
					return []*corev1.Pod{current}, nil
				},
				get: func(context.Context, registry.Key) (registry.Object, error) {
					switch {
					case outage != nil:
						return nil, outage
					case current == nil:
						return nil, fmt.Errorf("pod: %w", registry.ErrNotFound)
					}
					return current, nil
				},
				tell: func(wrong []api.Problem) { told = wrong }}
			w.look(t.Context())
			if len(told) != 0 {
				t.Errorf("what was seen once is told: %v", told)
			}
			current = test.now
			if test.unreachable {
				outage = registry.ErrUnavailable
			}
			w.look(t.Context())
			if test.want == "" && len(told) != 0 {
				t.Errorf("told is %v", told)
			}
			if test.want != "" && (len(told) != 1 || told[0].Object() != "pod default/web" || !strings.Contains(told[0].Message, test.want)) {
				t.Errorf("told is %v, not %q", told, test.want)
			}
			current, outage = nil, nil
			if w.look(t.Context()); len(told) != 0 {
				t.Errorf("of a pod that was deleted, this is told still: %v", told)
			}
		})
	}
}

// TestCutOffIsLookedForLater has the registry away when the agent starts.
func TestCutOffIsLookedForLater(t *testing.T) {
	away, told := errors.New("away"), []api.Problem(nil)
	p := addressed("web", "u1", "10.1.0.2")
	w := &cutOffWatch{node: "node1", log: slog.New(slog.DiscardHandler),
		attached: func() []ipam.Attachment { return nil }, lost: func() []ipam.Attachment { return nil }, collected: func() []ipam.Attachment { return nil },
		own:  func(context.Context) ([]*corev1.Pod, error) { return []*corev1.Pod{p}, away },
		get:  func(context.Context, registry.Key) (registry.Object, error) { return p, nil },
		tell: func(wrong []api.Problem) { told = wrong }}
	for range 2 {
		w.look(t.Context())
	}
	if len(told) != 0 {
		t.Errorf("told is %v", told)
	}
	away = nil
	for range 2 {
		w.look(t.Context())
	}
	if len(told) != 1 {
		t.Errorf("told is %v", told)
	}
}

// TestCollected has the runtime take the interface of a pod away that runs on, while the
// registry is away. It is told once the registry is there, until the pod is gone; of one
// that has gone with its interface nothing is told.
func TestCollected(t *testing.T) {
	runs, away, told := true, error(nil), []api.Problem(nil)
	p := addressed("web", "u1", "10.1.0.2")
	attached := []ipam.Attachment{attachment("web", "u1"), attachment("gone", "u2")}
	var collected []ipam.Attachment
	w := &cutOffWatch{node: "node1", log: slog.New(slog.DiscardHandler),
		attached: func() []ipam.Attachment { return attached }, lost: func() []ipam.Attachment { return nil },
		collected: func() []ipam.Attachment { all := collected; collected = nil; return all },
		own:       func(context.Context) ([]*corev1.Pod, error) { return []*corev1.Pod{p}, away },
		get: func(_ context.Context, key registry.Key) (registry.Object, error) {
			if away == nil && (key.Name != "web" || !runs) {
				return nil, registry.ErrNotFound
			}
			return p, away
		},
		tell: func(wrong []api.Problem) { told = wrong }}
	look := func(when string, want int) {
		t.Helper()
		for range 3 {
			w.look(t.Context())
		}
		if len(told) != want {
			t.Errorf("%s, told is %v", when, told)
		}
	}
	look("while all is well", 0)
	attached, collected, away = nil, attached, registry.ErrUnavailable
	look("while nobody can be asked", 0)
	away = nil
	look("as it runs on", 1)
	runs = false
	look("as it is gone", 0)
}

// TestPodsCutOffAreProblems looks at what the Node says of pods that are cut
// off, also of more than it can name.
func TestPodsCutOffAreProblems(t *testing.T) {
	a := &agent{Config: Config{Node: "node1"}, trouble: map[string]string{}}
	for i := range api.MaxNodeProblems {
		a.cutOff = append(a.cutOff, api.Problem{Kind: api.Pod.Kind, Namespace: "default", Name: fmt.Sprint("web-", i), Message: "gone"})
	}
	state := a.nodeState()
	if !slices.Equal(state.Problems, a.cutOff) || !strings.Contains(state.OutOfSync, "pod default/web-0: gone") {
		t.Errorf("the Node says %v, %q", state.Problems, state.OutOfSync)
	}
	a.cutOff = append(a.cutOff, a.cutOff[0])
	state = a.nodeState()
	last := state.Problems[len(state.Problems)-1]
	if len(state.Problems) != api.MaxNodeProblems || last != a.own("there are 2 more problems: see the agent's log") {
		t.Errorf("of too many, the Node says %v", state.Problems)
	}
}
